"""Small random networks for the tests of native passes, and ways to run texts through them.

Weights are bfloat16 values held in float32, as published models are on a CPU; the same in float64 by plain
torch is the reference. Sizes are odd on purpose: no vector fits them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wager.kvcache.pool import KVPool
from wager.nn.batch import PassBatch, PassRow
from wager.nn.layers.decoder_layer import LayerWeights, Linear
from wager.nn.models.decoder import Decoder, DecoderSpec, DecoderWeights
from wager.nn.models.dflash import DFlash, DFlashWeights
from wager.nn.models.dflash_spec import DFlashSpec
from wager.nn.native.loader import PassOptions
from wager.nn.rope import RopeSpec

PAGE = 4
VOCAB = 101
NATIVE = PassOptions("on")
SHAPE: dict[str, Any] = {"hidden": 48, "heads": 6, "kv_heads": 3, "size": 6, "middle": 20}
CASES: dict[str, dict[str, Any]] = {
    "odd": SHAPE,
    "biases": SHAPE | {"bias": True, "qk_norm": False},
    "windows": SHAPE | {"windows": (None, 5, 9)},
    "one-kv-head": {"hidden": 37, "heads": 5, "kv_heads": 1, "size": 22, "middle": 51},
    "many-queries": {"hidden": 40, "heads": 40, "kv_heads": 1, "size": 8, "middle": 24},
    "whole-vectors": {"hidden": 128, "heads": 4, "kv_heads": 2, "size": 64, "middle": 96},
    "yarn": SHAPE | {"rope": RopeSpec(6, type="yarn", factor=4.0, original_max_position=16)},
}


class Maker:
    """Random tensors of one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, outputs: int, inputs: int) -> Tensor:
        return self._tensor(outputs, inputs) * inputs**-0.5

    def norm(self, *shape: int) -> Tensor:
        return self._rounded(1.0 + 0.2 * self._tensor(*shape))

    def linear(self, outputs: int, inputs: int, bias: bool) -> Linear:
        own_bias = 0.3 * self._tensor(outputs) if bias else None
        return Linear(self._rounded(self.matrix(outputs, inputs)), own_bias)

    def _tensor(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator)

    def _rounded(self, tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16).float()

    def layer(self, case: dict[str, Any]) -> LayerWeights:
        hidden, heads, kv_heads, size, middle = (case[name] for name in SHAPE)
        bias = case.get("bias", False)
        return LayerWeights(
            self.norm(hidden),
            self.linear((heads + 2 * kv_heads) * size, hidden, bias),
            self.norm(heads + kv_heads, size) if case.get("qk_norm", True) else None,
            self.linear(hidden, heads * size, bias),
            self.norm(hidden),
            self.linear(2 * middle, hidden, bias),
            self.linear(hidden, middle, bias),
        )


class Pair(NamedTuple):
    """A network natively and, in float64, by plain torch."""

    native: Any
    exact: Any


def decoder_parts(case: dict[str, Any], seed: int = 0) -> tuple[DecoderSpec, DecoderWeights]:
    make, windows = Maker(seed), case.get("windows", (None,) * 3)
    spec = DecoderSpec(
        "random",
        case["hidden"],
        len(windows),
        case["heads"],
        case["kv_heads"],
        case["size"],
        case["middle"],
        VOCAB,
        1e-6,
        case.get("rope", RopeSpec(case["size"])),
        windows,
        512,
    )
    embedding = make.norm(VOCAB, case["hidden"]) - 1.0
    layers = [make.layer(case) for _ in windows]
    head = make.linear(VOCAB, case["hidden"], False).weight
    return spec, DecoderWeights(embedding * 5, layers, make.norm(case["hidden"]), head)


def make_decoder(case: dict[str, Any], options: PassOptions = NATIVE) -> Pair:
    spec, weights = decoder_parts(case)
    native = Decoder(spec, weights, options=options)
    assert not native.native_loader.reason
    return Pair(native, Decoder(spec, widened(weights), "out_in"))


def make_drafter(case: dict[str, Any], options: PassOptions = NATIVE, causal: bool = False) -> Pair:
    case = case | {"qk_norm": True}  # a block drafter always has one
    make, windows = Maker(1), case.get("windows", (None,) * 3)
    spec = DFlashSpec(
        case["hidden"],
        len(windows),
        case["heads"],
        case["kv_heads"],
        case["size"],
        case["middle"],
        1e-6,
        case.get("rope", RopeSpec(case["size"])),
        windows,
        8,
        5,
        (0, 2),
        block_causal_in_sliding=causal,
        attention_bias=case.get("bias", False),
    )
    hidden = case["hidden"]
    fc = make.linear(hidden, 2 * hidden, False).weight
    layers = [make.layer(case) for _ in windows]
    weights = DFlashWeights(fc, make.norm(hidden), layers, make.norm(hidden))
    native = DFlash(spec, weights, options=options)
    assert not native.native_loader.reason
    return Pair(native, DFlash(spec, widened(weights), "out_in"))


def widened(parts: Any) -> Any:
    """Weights in float64, whatever they are nested in."""
    if isinstance(parts, Tensor):
        return parts.double()
    if isinstance(parts, list):
        return [widened(part) for part in parts]
    return None if parts is None else type(parts)(*[widened(part) for part in parts])


def poisoned(network: Decoder | DFlash, num_pages: int = 80) -> KVPool:
    """A pool full of NaN: reading a slot that was never written would show."""
    pool = KVPool(network.pool_spec(num_pages, PAGE))
    pool.store.fill_(float("nan"))
    return pool


def scattered(seed: int, count: int = 16, among: int = 80) -> list[int]:
    return torch.randperm(among, generator=torch.Generator().manual_seed(seed))[:count].tolist()


def ids(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


class Text:
    """A text on its way through a decoder: its pages and how far it is."""

    def __init__(self, decoder: Decoder, pool: KVPool, pages: Sequence[int]) -> None:
        self.decoder, self.pool, self.pages, self.cached = decoder, pool, pages, 0

    def row(self, start: int, count: int, mask: Tensor | None = None) -> PassRow:
        return PassRow(start, start + count, self.cached, self.pages, mask)

    def places(self, count: int) -> Tensor:
        return self.pool.slots(self.pages, self.cached, self.cached + count)

    def run(
        self, tokens: Tensor, depths: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and features of layers 2 and 0; the text does not move on."""
        positions = self.cached + (torch.arange(len(tokens)) if depths is None else depths)
        rows = [self.row(0, len(tokens), mask)]
        batch = PassBatch(tokens, positions, self.places(len(tokens)), rows)
        hidden, features = self.decoder.forward(batch, self.pool, (2, 0))
        assert features is not None
        return hidden, features

    def feed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        result = self.run(tokens)
        self.cached += len(tokens)
        return result


def tree(parents: list[int]) -> tuple[Tensor, Tensor]:
    """Depths, and who sees whom."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask.sum(dim=1) - 1, mask


def off(got: Tensor, want: Tensor) -> float:
    """The largest difference, as a part of the largest number."""
    assert got.shape == want.shape and torch.isfinite(got).all()
    return float((got.double() - want).abs().max() / want.abs().max())
