"""The arithmetic of the GPU benchmarks: bytes, spans, batches, partings, options."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from bench.gpu.all import SCRIPTS, read_settings
from bench.gpu.batch import MIXES, BatchRun, batch_rounds, cell_figures, lowest_figures, make_batch, run_order
from bench.gpu.exactness import compared_tokens, comparison_figures
from bench.gpu.floor import StreamedBytes, drafter_bytes, target_bytes
from bench.gpu.grown import TINY_SHAPE, BenchSession, plan_pair
from bench.gpu.passes import bushy, pass_rows
from bench.gpu.profiled import Profile, covered_length, is_attention
from bench.gpu.script import read_value, run_script
from bench.gpu.steps import ProfiledAnswer, mean_bet, most_similar, step_figures
from bench.partings import Comparison, Parting
from wager.bench.records import Answer, Counts, Timing
from wager.errors import ConfigError
from wager.train.grow import reader_of


def test_a_pass_reads_every_tensor_but_the_embedding() -> None:
    plan = plan_pair(TINY_SHAPE, torch.float32)
    tensors = dict(reader_of(plan.target, plan).tensors())
    head = tensors["lm_head.weight"].nbytes
    read = sum(one.nbytes for one in tensors.values()) - tensors["model.embed_tokens.weight"].nbytes
    assert target_bytes(plan).weight_bytes == read
    assert plan.drafter is not None
    own = sum(one.nbytes for _, one in reader_of(plan.drafter, plan).tensors())
    assert drafter_bytes(plan).weight_bytes == own + head


def test_the_8b_shape_reads_the_bytes_of_an_8b_model() -> None:
    found = target_bytes(plan_pair("8b", torch.bfloat16))
    assert found.weight_bytes == pytest.approx(15.14e9, rel=1e-3)
    assert found.kv_bytes == 36 * 2 * 8 * 128 * 2
    assert StreamedBytes(1000, 10).at(3) == 1030
    assert StreamedBytes(1000, 10).limit_ms(100, 2e6) == pytest.approx(1.0)


def test_overlapping_spans_count_once() -> None:
    assert covered_length([]) == 0.0
    assert covered_length([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4.0


def test_attention_kernels_are_recognised_by_name() -> None:
    assert (
        is_attention("_attend") and is_attention("merge_after") and is_attention("flash_fwd_splitkv_kernel")
    )
    assert not is_attention("_add_norm") and not is_attention("nvjet_tst_64x8")


def test_a_timed_pass_has_one_root_and_a_branching_tree() -> None:
    (row,) = pass_rows(16, 100, 32)
    assert len(row.pending) + row.tree.num_nodes == 16 and len(row.pages) == 4
    row.tree.validate()
    assert not row.tree.is_chain and bushy(0).num_nodes == 0


def test_the_gap_is_the_share_of_idle_device_time() -> None:
    found = step_figures(8.0, 6.0)
    assert (found["gap"], found["of_kernels"]) == (0.25, 0.75)


def answer_of(wall_ms: float, *bets: int) -> Answer:
    return Answer(Timing(wall_ms / 1e3, 0.0, len(bets)), (), Counts(steps=len(bets), bets=Counter(bets)))


def test_a_step_is_compared_with_the_profile_of_the_most_similar_bets() -> None:
    answers = [
        answer_of(12.0, 31, 31),
        answer_of(10.0, 15, 15),
        answer_of(10.6, 15, 15),
        answer_of(9.0, 0, 0),
    ]
    profiles = [
        ProfiledAnswer(counts, Profile({}, 1.0))
        for one in (answer_of(0.0, 63, 31), answer_of(0.0, 15, 16))
        if (counts := one.counts) is not None
    ]
    own, seen = most_similar(answers, profiles)
    assert mean_bet(seen.counts) == 15.5
    assert own is answers[2], "of two with equal bets, the one nearer to the median step time"


def encoded() -> dict[str, list[list[int]]]:
    return {kind: [[kind_id] * 30, [kind_id + 1] * 20] for kind_id, kind in enumerate(MIXES["mixed"])}


@pytest.mark.parametrize("mix", MIXES)
def test_a_batch_takes_kinds_in_turn_and_no_prompt_twice(mix: str) -> None:
    requests = make_batch(encoded(), mix, range(8), 5, 0.8)
    kinds = MIXES[mix]
    assert [one.kind for one in requests] == [kinds[i % len(kinds)] for i in range(8)]
    seen = [(tuple(one.prompt_ids), one.params.temperature) for one in requests]
    assert len(set(seen)) == 8 or len(kinds) == 1
    heats = {one.params.temperature for one in requests}
    assert heats == ({0.0, 0.8} if mix == "half sampled" else {0.0})


def test_prompts_that_are_used_again_are_cut() -> None:
    lengths = [len(one.prompt_ids) for one in make_batch(encoded(), "code", range(6), 5, 0.8)]
    assert lengths == [30, 20, 23, 13, 16, 8]
    with pytest.raises(ConfigError, match="mixes"):
        make_batch(encoded(), "poems", range(2), 5, 0.8)


def test_the_first_two_policies_take_turns() -> None:
    names = ["ar", "auto", "fixed:15"]
    assert run_order(names, 0) == [*names, *reversed(names)]
    assert run_order(names, 1) == ["auto", "ar", "fixed:15", "fixed:15", "ar", "auto"]
    assert run_order(names, 2) == run_order(names, 0) and run_order(["ar"], 1) == ["ar", "ar"]
    both = [*run_order(names, 0), *run_order(names, 1)]
    after_chain = [name for last, name in pairwise(both) if last == "fixed:15" != name]
    assert sorted(after_chain) == ["ar", "auto"]


def test_rounds_of_small_batches_take_different_requests() -> None:
    assert batch_rounds(64, 2) == [range(64), range(64)]
    assert batch_rounds(16, 1) == [range(16)]
    assert batch_rounds(4, 2) == [range(4), range(4, 8), range(8, 12), range(12, 16)]
    assert batch_rounds(5, 5) == [*[range(start, start + 5) for start in (0, 5, 10, 15)], range(5)]
    parts = [one for places in batch_rounds(4, 2) for one in make_batch(encoded(), "mixed", places, 5, 0.8)]
    assert parts == make_batch(encoded(), "mixed", range(16), 5, 0.8)


def done(wall_s: float, *ended: float, token: int = 1) -> BatchRun:
    return BatchRun(wall_s, list(ended), [[token] * 10 for _ in ended])


def test_late_steps_are_listed() -> None:
    assert BatchRun(1.0, [1.0], [[1]], [5.0, 5.1, 16.504, 4.9, 9.0]).late_ms == [16.5]
    assert done(1.0, 1.0).late_ms == []


def test_a_cell_compares_totals_and_the_slowest_request() -> None:
    found = cell_figures(
        {"ar": [done(1.0, 1.0, 1.0), done(2.0, 2.0, 2.0)], "auto": [done(0.5, 0.25, 0.5, token=2)] * 2}
    )
    assert found["tokens_per_s"]["ar"] == pytest.approx(40 / 3.0)
    assert found["over_ar"]["auto"] == pytest.approx(40.0 / (40 / 3.0))
    assert found["slowest_over_mean"] == {"ar": 1.0, "auto": pytest.approx(20 / 30)}
    assert found["runs"]["ar"] == [20.0, 10.0]
    assert found["control"] == 2.0
    assert found["texts_like_ar"] == {"ar": 2, "auto": 0}
    worst = lowest_figures([found, {"over_ar": {"auto": 0.9}, "slowest_over_mean": {"auto": 0.8}}])
    assert worst["lowest_over_ar"] == {"auto": 0.9}
    assert worst["lowest_slowest_over_mean"] == {"ar": 1.0, "auto": pytest.approx(20 / 30)}


def parting(position: int, gap: float) -> Parting:
    return Parting("code", "code/1", position, 3, 4, "a", "b", gap, False)


def test_texts_count_up_to_their_parting() -> None:
    assert compared_tokens(40, 4, []) == 40
    assert compared_tokens(40, 4, [parting(0, 0.1), parting(9, 0.1)]) == 31
    found = Comparison()
    for one in (None, parting(4, 0.25), parting(9, 0.5), None):
        found.enter("code", 10, one)
    figures = comparison_figures(found)
    assert (figures["texts"], figures["identical"], figures["tokens_compared"]) == (4, 2, 35)
    assert figures["partings_per_1000_tokens"] == pytest.approx(2000 / 35)
    assert figures["gaps"] == {"median": 0.375, "largest": 0.5}
    assert comparison_figures(Comparison())["gaps"] is None


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        (3, "4", 4),
        (1.5, "2", 2.0),
        ("a", "b", "b"),
        ((1, 2), "4,8", (4, 8)),
        (("ar",), "ar,auto", ("ar", "auto")),
    ],
)
def test_options_are_read_as_the_type_of_their_default(default: Any, text: str, value: Any) -> None:
    assert read_value(default, text) == value


def test_settings_are_given_to_their_script() -> None:
    settings = read_settings(["pair.limit=2", "pair.max-tokens=64", "batch.batches=4,16"])
    assert SCRIPTS["pair"].read_options(settings["pair"], tiny=False).limit == 2
    assert SCRIPTS["pair"].read_options(settings["pair"], tiny=True).max_tokens == 64
    assert SCRIPTS["batch"].read_options(settings["batch"], tiny=False).batches == (4, 16)
    for word in ("pair.limit", "limit=2", "nobody.limit=2"):
        with pytest.raises(ConfigError, match="set"):
            read_settings([word])
    with pytest.raises(ConfigError, match="pair"):
        SCRIPTS["pair"].read_options({"limits": "2"}, tiny=False)


def test_a_failed_script_leaves_its_result_and_its_error(tmp_path: Any) -> None:
    session = BenchSession(TINY_SHAPE, True, tmp_path)

    def run(own: BenchSession, options: object) -> None:
        own.save("floor", {}, {"half": 1})
        raise RuntimeError("cut")

    run_script(SCRIPTS["floor"]._replace(run=run), session, None)
    assert session.errors == [{"case": "floor", "error": "RuntimeError: cut"}]
    assert (tmp_path / "gpu_floor.json").exists()
