"""Wager beside llama.cpp: the plan, the sums and the tables; and, where it is installed, llama.cpp itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cpu import peers
from bench.cpu.peers import all_setups, read_setup
from bench.cpu.peers_figures import (
    F32,
    MEAN,
    Q8,
    Bar,
    Clocks,
    bars,
    decode_rate,
    medians,
    pass_lines,
    ratio_lines,
    speed_lines,
    there_and_back,
)
from bench.cpu.peers_passes import Plan, agreement, time_passes
from tests.engine.conftest import add_tokenizer
from tests.nn.tiny import save_target
from wager.bench.records import Run, Timing
from wager.errors import ConfigError, ModelError


def clocks(walls: dict[str, list[tuple[float, float]]], kinds: tuple[str, ...]) -> Clocks:
    """Two answers of ten tokens each to every prompt, the first token after a tenth of the time."""
    found = Clocks(kinds)
    for name, pairs in walls.items():
        for prompt, pair in enumerate(pairs):
            for place, wall in enumerate(pair):
                found.runs.append(Run(name, prompt, 0, place, Timing(wall, wall / 10, 10)))
    return found


CLOCKS = clocks(
    {
        "auto": [(1.0, 1.0), (1.0, 3.0), (0.5, 0.5), (2.0, 2.0)],
        F32: [(2.0, 2.0), (2.0, 2.0), (2.0, 2.0), (8.0, 8.0)],
    },
    ("code", "code", "code", "chat"),
)


def test_everybody_answers_there_and_back() -> None:
    assert there_and_back(["a", "b", "c"]) == ["a", "b", "c", "c", "b", "a"]
    assert there_and_back(["a", "b", "c"], 4) == ["b", "c", "a", "a", "c", "b"]
    assert there_and_back(["a"], 3) == ["a", "a"]


def test_a_rate_is_the_median_of_the_sets_of_a_kind() -> None:
    # A set's two answers are one: 20 tokens over 2, 4 and 1 seconds.
    assert CLOCKS.by_kind("auto") == {"code": 10.0, "chat": 5.0, MEAN: pytest.approx(50**0.5)}
    assert CLOCKS.by_kind("auto", decode_rate)["code"] == pytest.approx(10.0)


def test_a_set_without_a_rate_is_left_out() -> None:
    found = clocks({"auto": [(1.0, 1.0), (4.0, 4.0)]}, ("code", "code"))
    found.runs = [
        run._replace(timing=run.timing._replace(num_first=10 - 5 * run.prompt)) for run in found.runs
    ]
    assert found.by_kind("auto", decode_rate)["code"] == pytest.approx(10 / 7.2)


def test_a_ratio_is_taken_within_a_set() -> None:
    found = CLOCKS.ratios("auto", F32)
    assert found == {"code": 2.0, "chat": 4.0, MEAN: pytest.approx(8**0.5)}
    back = CLOCKS.ratios(F32, "auto")
    assert back["code"] == 0.5 and back[MEAN] == pytest.approx(8**-0.5)


def test_tables_name_everybody_and_every_kind() -> None:
    lines = speed_lines(CLOCKS, ["auto", F32])
    assert lines[0].split() == ["tokens/s", "code", "chat", "mean"]
    assert lines[1].split() == ["auto", "10", "5", "7"] and len({len(line) for line in lines}) == 1
    (head, line) = ratio_lines(CLOCKS, ["auto"], [F32])
    assert head.split() == ["ratio", "code", "chat", "mean"]
    assert line.split() == ["auto", "/", "llama.cpp", "F32", "2.00", "4.00", "2.83"]
    assert pass_lines({"ar": {1: 7.5, 16: 12.25}})[1].split() == ["ar", "7.50", "12.25"]


def test_bars_are_those_whose_parts_were_measured() -> None:
    passes = {"ar": {1: 6.0, 16: 9.0}, "auto": {1: 6.0, 16: 12.0}, F32: {1: 4.0, 16: 11.0}}
    plain, verify, speed = bars(passes, CLOCKS)
    assert (plain.value, plain.is_met) == (1.5, False) and (verify.value, verify.is_met) == (2.0, False)
    assert speed.value == pytest.approx(8**0.5) and speed.is_met and "auto / llama.cpp F32" in speed.what
    assert bars({}, None) == [] and bars({"ar": {1: 6.0}}, None) == []
    full = bars({"full": {1: 4.0, 16: 6.0}, F32: {1: 4.0}}, None)
    assert [(bar.value, bar.limit) for bar in full] == [(1.0, 1.3), (1.5, 1.8)]
    both = clocks({"auto int8": [(1.0, 1.0)], Q8: [(0.5, 0.5)]}, ("code",))
    assert [(bar.value, bar.is_met) for bar in bars({}, both)] == [(0.5, False)]
    assert str(Bar("x", 1.0, "<=", 1.3)) == "x: 1.00 (<= 1.3: met)"


class Clocked:
    """Passes that last as many milliseconds as they have tokens; the first behind another's, ten times."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said, self.context = name, said, 0

    def read(self, context_ids: Any) -> None:
        self.context = len(context_ids)

    def times(self, token_ids: Any, num: int) -> list[float]:
        self.said.append(f"{self.name}{len(token_ids)}")
        return [10.0 * len(token_ids)] + [float(len(token_ids))] * (num - 1)


def test_passes_take_turns_and_the_first_of_a_row_is_left_out() -> None:
    said: list[str] = []
    pair = [Clocked("a", said), Clocked("b", said)]
    found = time_passes(pair, [1, 2, 3], Plan(sizes=(1, 4), num_context=7, rounds=2, in_a_row=3))
    assert " ".join(said) == "a1 b1 b1 a1 a4 b4 b4 a4 b1 a1 a1 b1 b4 a4 a4 b4"
    assert pair[0].context == 7
    assert medians(found) == {name: {1: 1.0, 4: 4.0} for name in "ab"} and len(found["a"][4]) == 8


def test_agreement_is_over_all_texts() -> None:
    ours = [np.array([[0.0, 1.0], [2.0, 0.0]], np.float32), np.array([[1.0, 0.0]], np.float32)]
    theirs = [ours[0] + np.float32(0.25), np.array([[0.0, 0.5]], np.float32)]
    found = agreement(ours, theirs)
    assert found[:3] == (1.0, 2 / 3, 3)
    likely = 1 / (1 + np.exp(-1.0))
    lost = likely * np.log(likely * (1 + np.exp(0.5))) + (1 - likely) * np.log(
        (1 - likely) * (1 + np.exp(-0.5))
    )
    assert found.nats_per_token == pytest.approx(lost / 3, abs=1e-6), "a shift of all scores loses nothing"


def test_a_set_up_is_read_from_a_flag() -> None:
    found = read_setup("deep=fixed:8, page_size=16,layout=out_in")
    assert found == ("deep", "fixed:8", (("page_size", 16), ("layout", "out_in")))
    for wrong in ("deep", "=auto", "deep=", "deep=auto,layout", "deep=auto,layuot=packed"):
        with pytest.raises(ConfigError):
            read_setup(wrong)


def test_every_contender_has_a_name_of_its_own() -> None:
    assert [one.name for one in all_setups(["deep=fixed:8"])] == ["ar", "auto", "deep"]
    for taken in ("auto", F32):
        with pytest.raises(ConfigError, match="no other contender"):
            all_setups([f"{taken}=fixed:8"])


def test_without_llama_cpp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ModelError, match=r"package gguf.*\[bench\]"):
        peers.main([])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A tiny target in transformers, and its float32 file in llama.cpp."""
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    from bench.cpu.gguf_file import write_gguf
    from bench.cpu.peers_llama import LlamaModel

    folder = tmp_path_factory.mktemp("llama")
    reference = save_target(folder, "qwen3", seed=3, hidden_size=64, intermediate_size=96)
    return reference, LlamaModel(write_gguf(folder, folder / "f32.gguf", "f32"))


@pytest.mark.parametrize("flash", [False, True])
def test_llama_cpp_computes_what_transformers_does(llama: tuple[Any, Any], flash: bool) -> None:
    import torch

    from bench.cpu.peers_llama import LlamaContext, LlamaSettings

    reference, model = llama
    tokens = [5, 17, 3, 88, 41, 2, 60]
    context = LlamaContext(model, LlamaSettings(flash=flash, cache="f32", threads=1, num_context=64))
    with torch.inference_mode():
        wanted = reference(torch.tensor([tokens])).logits[0].numpy()
    # Flash attention gathers its sums in sixteen bits here and there.
    assert np.abs(context.scores(tokens) - wanted).max() < (0.05 if flash else 1e-3)
    context.keep(3)
    again = context.scores(tokens[3:], start=3)
    assert np.abs(again - wanted[3:]).max() < (0.05 if flash else 1e-3)
    context.close()


def test_llama_cpp_decodes_greedily(llama: tuple[Any, Any]) -> None:
    import torch

    from bench.cpu.peers_llama import LlamaContext, LlamaPeer, LlamaSettings
    from wager.records import SamplingParams

    reference, model = llama
    # A prompt longer than a batch is read in parts.
    context = LlamaContext(model, LlamaSettings(cache="f32", threads=1, num_context=64, num_batch=4))
    peer, prompt = LlamaPeer("llama", context), [5, 17, 3, 88, 41, 2]
    answer = peer.answer(prompt, SamplingParams(max_tokens=8, ignore_eos=True))
    wanted = list(prompt)
    with torch.inference_mode():
        for _ in range(8):
            wanted.append(int(reference(torch.tensor([wanted])).logits[0, -1].argmax()))
    assert list(answer.token_ids) == wanted[len(prompt) :]
    clock = answer.timing
    assert clock.num_tokens == 8 and 0.0 < clock.first_s < clock.wall_s
    assert peer.answer(prompt, SamplingParams(max_tokens=8, ignore_eos=True)).token_ids == answer.token_ids
    sampled = SamplingParams(max_tokens=8, temperature=0.5, ignore_eos=True)
    assert peer.answer(prompt, sampled).token_ids == answer.token_ids
    context.close()


def test_a_file_that_is_no_model_is_refused(llama: tuple[Any, Any], tmp_path: Path) -> None:
    from bench.cpu.peers_llama import LlamaModel

    (tmp_path / "bad.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match=r"cannot load bad\.gguf"):
        LlamaModel(tmp_path / "bad.gguf")


def test_a_short_run(
    llama: tuple[Any, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, folder = tmp_path / "peers.json", tmp_path / "target"
    save_target(folder, "qwen3", seed=5, hidden_size=64, intermediate_size=96, vocab_size=360)
    add_tokenizer(folder)
    flags = ["--model", str(folder), "--limit", "1", "--max-tokens", "24", "--threads", "1"]
    flags += ["--pass-rounds", "1", "--setup", "short=fixed:2,page_size=8", "--json", str(path)]
    assert peers.main(flags) == 0
    found = json.loads(path.read_text(encoding="utf-8"))["data"]
    names = ["ar", "auto", "short", F32, Q8]
    assert list(found["pass_ms"]) == names and set(found["pass_ms"]["ar"]) == {"1", "4", "8", "16", "32"}
    assert list(found["whole_requests"]["tokens_per_s"]) == names
    kinds = {"code", "math", "prose", "chat", "dialog", MEAN}
    assert set(found["whole_requests"]["ratios"]["short / " + F32]) == kinds
    assert len(found["clocks"]) == 5 * 2 * 5 and found["texts_as_plain"]["short"] == 5
    assert found["short"]["scores"]["same_best"] == 1.0
    assert found[F32]["scores"]["max_difference"] < 1e-2 < found[Q8]["scores"]["max_difference"]
    assert [bar["sign"] for bar in found["bars"]] == ["<=", "<=", ">="]
    assert "tokens/s, auto / llama.cpp F32: " in capsys.readouterr().out
