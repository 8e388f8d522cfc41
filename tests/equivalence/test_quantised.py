"""The whole engine on narrow weights: texts and guesses of plain torch with the weights those stand for."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equivalence.world import Job, World, alone, drive, is_clean, make_engine, make_world, prompt
from tests.nn.kernels import interpreter
from wager.draft.block import BlockDrafter
from wager.draft.chain import ChainDrafter
from wager.engine.engine import Engine
from wager.engine.native_passes import pass_notes
from wager.errors import ConfigError
from wager.nn import kernels
from wager.nn.kernels.quant_layers import HEAD_BITS
from wager.nn.kernels.quant_weights import dequantised, quantise
from wager.nn.models.decoder import QuantDecoder
from wager.nn.models.dflash import QuantDFlash
from wager.nn.weights import WeightReader
from wager.records import SamplingParams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
assert interpreter


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("narrow"))


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)


def engine_of(world: World, policy: str, drafter: str = "block", **settings: Any) -> Engine:
    values = {"dtype": "float32", "device": DEVICE, "max_rows": 2, "max_step_tokens": 64, "calibrate": False}
    return make_engine(world, drafter, policy, **values | {"native": "off"} | settings)


def round_what_is_read(patch: pytest.MonkeyPatch, bits: int) -> None:
    """Let every matrix be read as the numbers that a narrow one stands for."""
    read = WeightReader.get

    def get(self: WeightReader, name: str, *args: Any) -> Tensor:
        tensor = read(self, name, *args)
        if tensor.ndim != 2 or "embed_tokens" in name:
            return tensor
        return dequantised(quantise(tensor, HEAD_BITS if name.startswith("lm_head") else bits), tensor.dtype)

    patch.setattr(WeightReader, "get", get)


def guesses_of(engine: Engine) -> list[list[int]]:
    """The best guess of every depth, of every draft from here on."""
    drafter = engine.drafters["block"]
    found: list[list[int]] = []
    draft = drafter.propose

    def watched(*args: Any) -> Any:
        proposals = draft(*args)
        found.extend(proposal.token_ids[:, 0].tolist() for proposal in proposals if proposal is not None)
        return proposals

    drafter.propose = watched  # type: ignore
    return found


def jobs(max_tokens: int = 5) -> list[Job]:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return [Job(prompt(index, length, period=4), sampling) for index, length in enumerate((5, 23))]


@pytest.mark.parametrize(("weights", "policy"), [("int8", "tree:5"), ("int4", "fixed:3")])
def test_texts_and_guesses_are_those_of_the_rounded_weights(
    world: World, monkeypatch: pytest.MonkeyPatch, weights: str, policy: str
) -> None:
    round_what_is_read(monkeypatch, int(weights[3:]))
    plain = engine_of(world, policy, kernels="off")
    wanted_guesses, wanted = guesses_of(plain), alone(plain, jobs())
    monkeypatch.undo()
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)
    engine = engine_of(world, policy, weights=weights)
    assert isinstance(engine.runner.decoder.weights, QuantDecoder)
    drafter = engine.drafters["block"]
    assert isinstance(drafter, BlockDrafter) and isinstance(drafter.net.weights, QuantDFlash)
    guesses = guesses_of(engine)
    assert alone(engine, jobs()) == wanted
    assert wanted_guesses and guesses == wanted_guesses
    assert engine.telemetry.drafter_failures == 0 and is_clean(engine)


def test_nothing_wide_is_kept_and_notes_say_so(world: World, on_kernels: None) -> None:
    engine = engine_of(world, "ar", weights="int4")
    decoder, drafter = engine.runner.decoder, engine.drafters["block"]
    assert isinstance(drafter, BlockDrafter)
    assert not decoder.layers and not drafter.net.layers and not drafter.net.has_plain_passes
    assert not decoder.try_native() and not drafter.net.try_native()
    wide = engine_of(world, "ar").runner.decoder
    assert wide.streamed_bytes is not None and decoder.streamed_bytes is not None
    assert decoder.streamed_bytes < 0.5 * wide.streamed_bytes
    notes = pass_notes(engine.parts)
    assert notes["layout"] == "int4 in groups of 64, head int8"
    assert notes["passes"] == {"value": "kernels", "source": "auto"}
    assert drafter.describe()["weights"] == "int4"


def test_rows_that_do_not_fit_the_device_bet_nothing(world: World, on_kernels: None) -> None:
    """Narrow weights have no plain passes to fall back to."""
    engine = engine_of(world, "fixed:3", weights="int8")
    drafter = engine.drafters["block"]
    assert isinstance(drafter, BlockDrafter) and drafter.device is not None
    drafter.device.fits = lambda jobs: False  # type: ignore[method-assign]
    run = drive(engine, {0: [("one", jobs(2)[0])]}, {})
    assert len(run.tokens("one")) == 2 and not run.verified
    assert engine.telemetry.drafter_failures == 0


def test_a_chain_drafter_keeps_its_weights(world: World, on_kernels: None) -> None:
    engine = engine_of(world, "fixed:2", "chain", weights="int4")
    drafter = engine.drafters["chain"]
    assert isinstance(drafter, ChainDrafter) and drafter.model.layers
    run = drive(engine, {0: [("one", jobs(2)[0])]}, {})
    assert run.verified and engine.telemetry.drafter_failures == 0


@pytest.mark.parametrize("settings", [{"device": "cpu"}, {"kernels": "off"}])
def test_int4_is_refused_where_there_are_no_kernels(world: World, settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"weights = 'int4': .*CUDA"):
        engine_of(world, "ar", weights="int4", **settings)


def test_float64_is_refused(world: World, on_kernels: None) -> None:
    with pytest.raises(ConfigError, match=r"dtype = 'float64': .*quantised"):
        engine_of(world, "ar", weights="int8", dtype="float64")
