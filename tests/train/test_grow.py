"""Growing a pair: the same scores, features, guesses and texts in any legal shape; other shapes refused."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.nn.tiny import save_target
from tests.train.grown import (
    HIDDEN,
    KINDS,
    VOCAB,
    Seen,
    layer_shapes,
    load_grown,
    load_small,
    observe,
    random_ids,
    save_pair,
)
from wager.errors import CapacityError, ConfigError, InputError, ModelError, WeightsError
from wager.llm import LLM
from wager.nn.models import load_target
from wager.nn.models.dflash import load_drafter
from wager.pairs import DEMO_FOLDER
from wager.records import SamplingParams
from wager.train import grow
from wager.train.grow import SmallPair, grown_from, plan_growth, reader_of, write_pair
from wager.train.grow_shape import LayerShape, PairShape

MEDIUM = (
    "hidden=160,vocab=211,layers=7,heads=12,kv_heads=4,head_dim=32,ffn=200,"
    "draft_layers=3,draft_heads=10,draft_kv_heads=5,draft_head_dim=32,draft_ffn=100"
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SmallPair]:
    return {kind: save_pair(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def assert_same(small: Seen, big: Seen, tolerance: float, vocab: int, hidden: int) -> None:
    for old, new in ((small.logits, big.logits), (small.guesses, big.guesses)):
        assert (old - new[:, :vocab]).abs().max() < tolerance
        assert_new_words_lose(new, vocab)
    taps = small.features.shape[1] // hidden
    kept = big.features.unflatten(1, (taps, -1))
    assert (small.features.unflatten(1, (taps, -1)) - kept[:, :, :hidden]).abs().max() < tolerance
    assert (kept[:, :, hidden + 1 :] == 0).all()


def assert_new_words_lose(logits: torch.Tensor, vocab: int) -> None:
    """Each far below the word it copies."""
    for place in range(vocab, logits.shape[1]):
        assert (logits[:, place] < logits[:, (place - vocab) % vocab] - 60).all()


@st.composite
def pair_shapes(draw: st.DrawFn) -> PairShape:
    hidden = HIDDEN + draw(st.integers(0, 50))
    vocab = VOCAB + (draw(st.integers(0, 150)) if hidden > HIDDEN else 0)
    return PairShape(hidden, vocab, 512, draw(layer_shapes(3, 80)), draw(layer_shapes(2, 72)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(shape=pair_shapes(), seed=st.integers(0, 1000))
def test_any_legal_shape_computes_the_same(
    pairs: dict[str, SmallPair], kind: str, shape: PairShape, seed: int
) -> None:
    plan = plan_growth(pairs[kind], shape, torch.float64, seed)
    ids = random_ids(seed=seed)
    small, big = observe(load_small(pairs[kind]), ids), observe(load_grown(plan), ids)
    assert_same(small, big, 1e-9, VOCAB, HIDDEN)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_within_its_rounding(pairs: dict[str, SmallPair], kind: str) -> None:
    plan = plan_growth(pairs[kind], MEDIUM, torch.float32)
    ids = random_ids()
    small, big = observe(load_small(pairs[kind], torch.float32), ids), observe(load_grown(plan), ids)
    assert_same(small, big, 1e-4, VOCAB, HIDDEN)


def test_transformers_agrees(pairs: dict[str, SmallPair], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write_pair(plan_growth(pairs["window"], MEDIUM, torch.float32), tmp_path / "out")
    small = AutoModelForCausalLM.from_pretrained(pairs["window"].target, dtype=torch.float32)
    big = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    ids = random_ids()[None]
    with torch.no_grad():
        old, new = small(ids).logits[0], big(ids).logits[0]
    assert (old - new[:, :VOCAB]).abs().max() < 1e-4
    assert_new_words_lose(new, VOCAB)


class Told(NamedTuple):
    """A text of a pair and how its steps went: how many accepted 0, 1, 2, ... guesses."""

    tokens: list[int]
    histogram: list[int]


WAYS = (SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=0.8, seed=5))


def tell(target: Path, drafter: Path, prompts: list[Any]) -> list[Told]:
    """Every prompt greedily and sampled, eight guesses to a step."""
    settings = {"layout": "out_in", "device": "cpu", "threads": 1, "num_pages": 64, "dtype": "float32"}
    llm = LLM(str(target), str(drafter), "fixed:8", **settings)
    outputs = [llm.generate(prompt, params)[0] for prompt in prompts for params in WAYS]
    return [Told(one.token_ids, one.stats.histogram) for one in outputs]


def test_texts_and_steps_are_the_same(pairs: dict[str, SmallPair], tmp_path: Path) -> None:
    pair, out = pairs["plain"], tmp_path / "out"
    write_pair(plan_growth(pair, MEDIUM, torch.float32), out)
    prompts = [random_ids(12, seed).tolist() for seed in range(2)]
    assert pair.drafter is not None
    small = tell(pair.target, pair.drafter, prompts)
    assert small == tell(out, out / "drafter", prompts)
    assert all(len(one.tokens) == 40 for one in small)


@pytest.mark.skipif(not (DEMO_FOLDER / "drafter").is_dir(), reason="the demo pair is not here")
def test_the_demo_pair_keeps_its_acceptance(tmp_path: Path) -> None:
    pair, out = SmallPair(DEMO_FOLDER / "target", DEMO_FOLDER / "drafter"), tmp_path / "out"
    larger = _slightly_larger(plan_growth(pair, "8b").small)
    write_pair(plan_growth(pair, larger, torch.float32), out)
    small = tell(DEMO_FOLDER / "target", DEMO_FOLDER / "drafter", ["def add(a, b):\n"])
    assert small == tell(out, out / "drafter", ["def add(a, b):\n"])
    # A pair whose guesses never stand would pass with any drafter.
    assert sum(sum(one.histogram[1:]) for one in small) > 3


def _slightly_larger(small: PairShape) -> PairShape:
    def wider(net: LayerShape) -> LayerShape:
        return LayerShape(
            net.num_layers + 1,
            net.num_heads + net.group,
            net.num_kv_heads + 1,
            2 * net.head_dim,
            net.intermediate_size + 8,
        )

    assert small.drafter is not None
    return PairShape(
        small.hidden_size + 32,
        small.vocab_size + 100,
        small.max_position,
        wider(small.target),
        wider(small.drafter),
    )


def test_sixteen_bits_round_no_weight(tmp_path: Path) -> None:
    """Widths times four and heads twice as long move all weights by powers of two: what is left is eps."""
    pair, out = save_pair(tmp_path), tmp_path / "out"
    assert pair.drafter is not None
    for folder in (pair.target, pair.drafter):
        path = folder / "model.safetensors"
        save_file({name: one.bfloat16() for name, one in load_file(path).items()}, path)
    write_pair(plan_growth(pair, f"{MEDIUM},hidden={4 * HIDDEN}", torch.bfloat16), out)
    big = load_small(SmallPair(out, out / "drafter"))
    ids = random_ids()
    assert_same(observe(load_small(pair), ids), observe(big, ids), 1e-4, VOCAB, HIDDEN)


def test_a_pair_may_stay_as_it_is(pairs: dict[str, SmallPair]) -> None:
    plan = plan_growth(pairs["plain"], "layers=3", torch.float32)
    assert plan.big == plan.small and plan.target.config["rms_norm_eps"] == pytest.approx(1e-6)
    want = load_file(pairs["plain"].target / "model.safetensors")
    for name, tensor in reader_of(plan.target, plan).tensors():
        assert torch.equal(tensor, want[name])


def test_a_target_grows_alone(pairs: dict[str, SmallPair], tmp_path: Path) -> None:
    alone = SmallPair(pairs["plain"].target)
    plan = plan_growth(alone, "8b")
    assert plan.drafter is None and plan.num_bytes == 2 * plan.target.num_parameters
    with pytest.raises(ConfigError, match="no drafter"):
        plan_growth(alone, "draft_layers=9")
    write_pair(plan_growth(alone, "hidden=64"), tmp_path / "out")
    assert not (tmp_path / "out" / "drafter").exists()


def test_presets_have_the_published_sizes(pairs: dict[str, SmallPair]) -> None:
    plan = plan_growth(pairs["plain"], "8b")
    assert plan.target.num_parameters == 8_190_735_360  # Qwen3-8B
    assert plan_growth(pairs["plain"], "30b").target.num_parameters == 32_762_123_264  # Qwen3-32B
    assert plan.drafter is not None
    own = plan.drafter.config["dflash_config"]
    assert own["target_layer_ids"] == [plan.target.growth.layers[index] for index in (0, 2)] == [0, 35]


def test_weights_are_such_as_models_have(pairs: dict[str, SmallPair]) -> None:
    """Finite, not tiny, and zero only where a part must not be heard."""
    plan = plan_growth(pairs["plain"], MEDIUM, torch.bfloat16)
    tiny, used = torch.finfo(torch.bfloat16).tiny, plan.target.growth.layers
    for name, tensor in reader_of(plan.target, plan).tensors():
        size = tensor.abs()
        assert torch.isfinite(tensor).all() and ((size == 0) | (size >= tiny)).all()
        layer = int(name.split(".")[2]) if ".layers." in name else None
        is_writing = "o_proj" in name or "down_proj" in name
        if layer is not None and layer not in used:
            assert (tensor == 0).all() if is_writing else (tensor != 0).all()
            if tensor.ndim == 2 and not is_writing:
                assert 0.015 < tensor.float().std() < 0.025
        elif is_writing:
            assert (tensor[HIDDEN:] == 0).all() and (tensor[:HIDDEN] != 0).any()


def test_a_seed_gives_the_same_weights_in_any_order(pairs: dict[str, SmallPair]) -> None:
    plan = plan_growth(pairs["plain"], MEDIUM, seed=7)
    first = dict(reader_of(plan.target, plan).tensors())
    reader = grow.reader_of(plan.target, plan)
    for name in reversed(first):
        assert torch.equal(reader.get(name, first[name].shape), first[name])
    other_plan = plan_growth(pairs["plain"], MEDIUM, seed=8)
    other = dict(reader_of(plan.target, other_plan).tensors())
    assert not torch.equal(other["lm_head.weight"], first["lm_head.weight"])


def test_shards_hold_what_memory_holds(
    pairs: dict[str, SmallPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grow, "SHARD_BYTES", 100_000)
    plan, out, seen = plan_growth(pairs["plain"], MEDIUM), tmp_path / "out", []
    write_pair(plan, out, lambda file, number, count: seen.append((Path(file).name, number, count)))
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(files) > 3 and files == [name for name, _, count in seen if count == len(files)]
    stored = {name: one for file in files for name, one in load_file(out / file).items()}
    made = dict(reader_of(plan.target, plan).tensors())
    assert stored.keys() == made.keys() and all(torch.equal(stored[name], made[name]) for name in made)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in made.values())
    load_target(out), load_drafter(out / "drafter")


def test_a_grown_folder_says_what_it_is(tmp_path: Path) -> None:
    pair, out = save_pair(tmp_path), tmp_path / "out"
    for name in ("tokenizer.json", "LICENSE", "README.md"):
        (pair.target / name).write_text(name)
    write_pair(plan_growth(pair, MEDIUM, seed=3), out)
    assert grown_from(out) and grown_from(out / "drafter") and grown_from(pair.target) is None
    found = grown_from(out)
    assert found is not None
    assert (found["hidden_size"], found["vocab_size"], found["seed"]) == (HIDDEN, VOCAB, 3)
    assert found["name"] == f"{tmp_path.name}/target" and len(found["weights_sha256"]) == 64
    assert (out / "tokenizer.json").is_file() and (out / "LICENSE").is_file()
    # The small model's card would tell of another model.
    assert not (out / "README.md").exists()
    with pytest.raises(ModelError, match="already a grown model"):
        plan_growth(SmallPair(out), "8b")


def test_other_kinds_of_models_are_refused(pairs: dict[str, SmallPair], tmp_path: Path) -> None:
    save_target(tmp_path / "llama", "llama")
    with pytest.raises(ModelError, match="only qwen3 targets can be grown, not 'llama'"):
        plan_growth(SmallPair(tmp_path / "llama"), "8b")
    with pytest.raises(ModelError, match="only DFlash drafters can be grown"):
        plan_growth(SmallPair(pairs["plain"].target, pairs["plain"].target), "8b")
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    for name, changes in (("rope_type", {"rope_parameters": yarn}), ("rms_norm_eps", {"rms_norm_eps": 0.0})):
        save_target(tmp_path / name, "qwen3", **changes)
        with pytest.raises(ModelError, match=name):
            plan_growth(SmallPair(tmp_path / name), "8b")


def test_a_pair_that_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    pair = save_pair(tmp_path, num_hidden_layers=4)
    with pytest.raises(ModelError, match="num_target_layers = 3, but the target has 4"):
        plan_growth(pair, "8b")


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    pair = save_pair(tmp_path)
    path = pair.target / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.up_proj"):
        write_pair(plan_growth(pair, MEDIUM), tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_full_folder_or_disk_is_refused(
    pairs: dict[str, SmallPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_growth(pairs["plain"], MEDIUM)
    (tmp_path / "kept").write_text("")
    with pytest.raises(InputError, match="not an empty folder"):
        write_pair(plan, tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(9, 9, plan.num_bytes - 1)
    )
    with pytest.raises(CapacityError, match="free"):
        write_pair(plan, tmp_path / "out")


@pytest.mark.gpu
def test_a_device_makes_the_same_network(pairs: dict[str, SmallPair]) -> None:
    """Random parts are the device's own; all that is heard is the same."""
    plan = plan_growth(pairs["plain"], MEDIUM, torch.float32)
    here, there = (
        dict(reader_of(plan.target, plan).tensors()),
        dict(reader_of(plan.target, plan, "cuda").tensors()),
    )
    again = dict(reader_of(plan.target, plan, "cuda").tensors())
    for name, tensor in there.items():
        assert tensor.device.type == "cuda" and torch.equal(tensor, again[name])
        if "o_proj" in name or "down_proj" in name:
            assert torch.equal(tensor.cpu(), here[name])
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert torch.equal(tensor[:VOCAB, : HIDDEN + 1].cpu(), here[name][:VOCAB, : HIDDEN + 1])
