"""The trace file: what is written is read, and what is wrong is refused by the name of its array."""

import io
import json
from dataclasses import replace
from importlib import resources
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.recorded import cut_at_its_limit, made_up
from wager.errors import TraceError
from wager.trace import PADDING, Trace, demo_traces, load_traces, save_traces


def arrays_of(trace: Trace) -> dict[str, np.ndarray]:
    stem = f"{trace.kind}_{trace.temperature}"
    return {f"{stem}_logprobs": trace.logprobs, f"{stem}_rank": trace.ranks}


def written(arrays: dict[str, np.ndarray]) -> io.BytesIO:
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    return file


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 2**16),
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3)),
    st.booleans(),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, seed: int, shape: tuple[int, int, int, int], p1: bool
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    first, second = made_up(seed, shape, p1=p1), made_up(seed + 1, shape, kind="two_words", temperature="t08")
    save_traces(path, [first, second], {"noised": True, "drafter": "made up"})
    file = load_traces(path)
    assert file.noised and file.meta["drafter"] == "made up"
    assert [(t.kind, t.temperature) for t in file.traces] == [("code", "t0"), ("two_words", "t08")]
    for before, after in zip([first, second], file.traces, strict=True):
        assert np.array_equal(before.logprobs.astype(np.float16), after.logprobs)
        assert np.array_equal(before.ranks, after.ranks)
    assert (file.traces[0].target_p1 is not None) == p1


def test_a_padded_sequence_is_shorter() -> None:
    trace = made_up(lengths=(7, 40, 1))
    assert [trace.length(i) for i in range(3)] == [7, 40, 1]


def test_a_text_was_cut_where_the_last_position_alone_has_no_offer() -> None:
    trace = made_up(lengths=(7, 40, 1))
    assert not any(trace.was_cut(i) for i in range(3))
    assert [cut_at_its_limit(trace).was_cut(i) for i in range(3)] == [True, True, False]


def test_the_shipped_trace_is_whole_and_small() -> None:
    file = demo_traces()
    kinds = ("code", "math", "prose", "chat", "dialog")
    assert {(one.kind, one.temperature) for one in file.traces} == set(product(kinds, ("t0", "t08")))
    assert all(one.num_sequences >= 2 and one.num_depths == 15 for one in file.traces)
    assert all(sum(map(one.length, range(one.num_sequences))) >= 250 for one in file.traces)
    assert "/" not in json.dumps(file.meta), "no place of the machine it was recorded on"
    assert len(resources.files("wager.trace").joinpath("demo.npz").read_bytes()) < 1 << 20


def spoilt(name: str, value: object) -> dict[str, np.ndarray]:
    arrays = {key: array.copy() for key, array in arrays_of(made_up()).items()}
    arrays[name].flat[3] = value
    return arrays


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        (spoilt("code_t0_logprobs", np.nan), "code_t0_logprobs"),
        (spoilt("code_t0_logprobs", 0.5), "code_t0_logprobs"),
        (spoilt("code_t0_logprobs", np.inf), "code_t0_logprobs"),
        (spoilt("code_t0_rank", 3), "code_t0_rank"),
        (spoilt("code_t0_rank", PADDING - 1), "code_t0_rank"),
        (arrays_of(made_up()) | {"code_t0_logprobs": np.zeros((3, 40, 5))}, "code_t0_logprobs"),
        (arrays_of(made_up()) | {"code_t0_logprobs": np.zeros((3, 0, 5, 3))}, "code_t0_logprobs"),
        (arrays_of(made_up()) | {"code_t0_rank": np.zeros((3, 40, 4), np.int8)}, "code_t0_rank"),
        (arrays_of(made_up()) | {"code_t0_rank": np.zeros((3, 40, 5))}, "code_t0_rank"),
        (arrays_of(made_up()) | {"code_t0_rank": np.full((3, 40, 5), 65536)}, "code_t0_rank"),
        (arrays_of(made_up()) | {"code_t0_rank": np.full((3, 40, 5), PADDING)}, "code_t0_rank"),
        (arrays_of(made_up()) | {"code_t0_target_p1": np.zeros((3, 39))}, "code_t0_target_p1"),
        (arrays_of(made_up()) | {"code_t0_target_p1": np.full((3, 40), np.nan)}, "code_t0_target_p1"),
        (arrays_of(made_up()) | {"code_t0_target_p1": np.full((3, 40), 1.5)}, "code_t0_target_p1"),
        ({"code_t0_rank": made_up().ranks}, "code_t0_logprobs"),
        ({"code_t0_logprobs": made_up().logprobs}, "code_t0_rank"),
        (arrays_of(made_up()) | {"surprise": np.zeros(3)}, "surprise"),
        (arrays_of(made_up()) | {"meta": np.array("{not json")}, "meta"),
        (arrays_of(made_up()) | {"meta": np.array("[1]")}, "meta"),
        ({}, "traces"),
    ],
)
def test_what_is_wrong_is_refused_by_name(arrays: dict[str, np.ndarray], field: str) -> None:
    with pytest.raises(TraceError) as caught:
        load_traces(written(arrays))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_the_writer_checks_too(tmp_path: Path) -> None:
    trace = made_up()
    bad = Trace("code", "t0", trace.logprobs, trace.ranks[:, :-1])
    with pytest.raises(TraceError, match="code_t0_rank"):
        save_traces(tmp_path / "bad.npz", [bad])
    assert not (tmp_path / "bad.npz").exists()


def test_spine_only_travels_in_the_meta_data(tmp_path: Path) -> None:
    spine = replace(made_up(), spine_only=True)
    save_traces(tmp_path / "a.npz", [spine], {"noised": True})
    file = load_traces(tmp_path / "a.npz")
    assert file.traces[0].spine_only and file.noised
    with pytest.raises(TraceError, match="spine_only"):
        save_traces(tmp_path / "b.npz", [spine, made_up(kind="prose")])


def a_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    whole = written(arrays_of(made_up())).getvalue()
    lone = io.BytesIO()
    np.save(lone, np.zeros(3))
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 0xFF
    contents = [b"", b"no archive", whole[: len(whole) // 2], lone.getvalue(), bytes(broken)]
    paths = [a_file(tmp_path / f"{i}.npz", content) for i, content in enumerate(contents)]
    for path in [*paths, tmp_path / "missing.npz", tmp_path]:
        with pytest.raises(TraceError, match="traces: cannot read"):
            load_traces(path)
