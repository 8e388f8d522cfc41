"""The sizes of a pair before and after growing, and the position of each small part in the large network.

It has the presets, the words of `--shape`, the check that a shape can hold the pair, and the seats: which
layer, head, rotary pair or channel of the large network does the work of which small one. All values are
plain integers: this module knows no weights. `grow_tensors.py` and `grow.py` use it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from wager.errors import ConfigError


@dataclass(frozen=True)
class LayerShape:
    """The layers of one network."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int

    @property
    def group(self) -> int:
        """Number of query heads per key head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class PairShape:
    """A target and its block drafter, if any; both share the hidden size and the vocabulary."""

    hidden_size: int
    vocab_size: int
    max_position: int
    target: LayerShape
    drafter: LayerShape | None = None


_QWEN3_VOCAB, _QWEN3_POSITIONS = 151_936, 40_960
PRESETS = {
    # Qwen3-8B and its published five-layer drafter.
    "8b": PairShape(
        hidden_size=4096,
        vocab_size=_QWEN3_VOCAB,
        max_position=_QWEN3_POSITIONS,
        target=LayerShape(36, 32, 8, 128, 12_288),
        drafter=LayerShape(5, 32, 8, 128, 12_288),
    ),
    # Qwen3-32B, a dense model, and a drafter with five of its layers.
    "30b": PairShape(
        hidden_size=5120,
        vocab_size=_QWEN3_VOCAB,
        max_position=_QWEN3_POSITIONS,
        target=LayerShape(64, 64, 8, 128, 25_600),
        drafter=LayerShape(5, 64, 8, 128, 25_600),
    ),
}

_PAIR_WORDS = {"hidden": "hidden_size", "vocab": "vocab_size", "positions": "max_position"}
_LAYER_WORDS = {
    "layers": "num_layers",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
}
_DRAFT = "draft_"
SHAPE_WORDS = (*_PAIR_WORDS, *_LAYER_WORDS, *(_DRAFT + word for word in _LAYER_WORDS))


def parse_shape(text: str, small: PairShape) -> PairShape:
    """Reads a preset, sizes as `word=number`, or both: "8b", "hidden=512,layers=24", "8b,ffn=9000".

    Other sizes are those of the preset, or without a preset those of the small pair. Raises ConfigError.
    """
    shape = small
    for index, part in enumerate(one.strip() for one in text.split(",")):
        word, equals, number = part.partition("=")
        if index == 0 and not equals:
            shape = _preset(part)
        elif word in SHAPE_WORDS and number.isascii() and number.isdigit():
            shape = _with_size(shape, word, int(number))
        else:
            raise ConfigError(
                "shape", part, f"one of {', '.join(PRESETS)}, or word=number with {', '.join(SHAPE_WORDS)}"
            )
    return shape


def _preset(name: str) -> PairShape:
    if name not in PRESETS:
        raise ConfigError("shape", name, f"one of {', '.join(PRESETS)}, or sizes such as hidden=512")
    return PRESETS[name]


def _with_size(shape: PairShape, word: str, size: int) -> PairShape:
    if word in _PAIR_WORDS:
        changes: dict[str, Any] = {_PAIR_WORDS[word]: size}
        return replace(shape, **changes)
    if word.startswith(_DRAFT):
        if shape.drafter is None:
            raise ConfigError("shape", word, "sizes of the target only: there is no drafter")
        changed = replace(shape.drafter, **{_LAYER_WORDS[word.removeprefix(_DRAFT)]: size})
        return replace(shape, drafter=changed)
    return replace(shape, target=replace(shape.target, **{_LAYER_WORDS[word]: size}))


def check_growth(small: PairShape, big: PairShape) -> None:
    """Raises ConfigError that names the first size that cannot hold the small pair."""
    for name in _PAIR_WORDS.values():
        _at_least(name, getattr(big, name), getattr(small, name))
    if big.vocab_size > small.vocab_size and big.hidden_size == small.hidden_size:
        # The scores of new token ids are lowered through an additional channel.
        raise ConfigError(
            "hidden_size", big.hidden_size, f"above {small.hidden_size}, because the vocabulary grows too"
        )
    _check_layers("target", small.target, big.target)
    if small.drafter is not None:
        if big.drafter is None:
            raise ConfigError("drafter", None, "the sizes of the drafter, because it grows too")
        _check_layers("drafter", small.drafter, big.drafter)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(name, value, f"at least {least}, the original's")


def _check_layers(net: str, small: LayerShape, big: LayerShape) -> None:
    for field in fields(LayerShape):
        _at_least(f"{net}.{field.name}", getattr(big, field.name), getattr(small, field.name))
    if big.num_heads % big.num_kv_heads:
        raise ConfigError(
            f"{net}.num_heads", big.num_heads, f"a multiple of num_kv_heads = {big.num_kv_heads}"
        )
    if big.head_dim % small.head_dim:
        # Otherwise no rotary pair of the large head has the frequency of one of the small head.
        raise ConfigError(f"{net}.head_dim", big.head_dim, f"a multiple of the original's {small.head_dim}")
    needed = small.num_kv_heads * _kv_copies(small, big)
    if big.num_kv_heads < needed:
        raise ConfigError(
            f"{net}.num_kv_heads",
            big.num_kv_heads,
            f"at least {needed}: {small.group} query heads share a key head in the original, "
            f"{big.group} in the grown model",
        )


class Seats(NamedTuple):
    """Indices along one dimension: `big[i]` does the work of `small[i]`; `empty` ones must be zero."""

    big: tuple[int, ...]
    small: tuple[int, ...]
    empty: tuple[int, ...] = ()


def first_seats(count: int) -> Seats:
    """Returns seats that keep the small indices in order."""
    return Seats(tuple(range(count)), tuple(range(count)))


def layer_seats(num_small: int, num_big: int) -> tuple[int, ...]:
    """Returns the large layer of each small one: spread evenly, first to first and last to last."""
    if num_small == 1:
        return (num_big // 2,)
    return tuple(index * (num_big - 1) // (num_small - 1) for index in range(num_small))


def _kv_copies(small: LayerShape, big: LayerShape) -> int:
    """Returns the number of large key heads per small one; several if each serves fewer query heads."""
    return -(-small.group // big.group)


def query_heads(small: LayerShape, big: LayerShape) -> tuple[int, ...]:
    """Returns the large query head of each small one, which reads a copy of the same key head."""
    copies = _kv_copies(small, big)
    found = []
    for head in range(small.num_heads):
        key_head, place = divmod(head, small.group)
        copy, rest = divmod(place, big.group)
        found.append((key_head * copies + copy) * big.group + rest)
    return tuple(found)


def key_heads(small: LayerShape, big: LayerShape) -> tuple[int, ...]:
    """Returns for each used large key head, in order, the small one that it copies."""
    copies = _kv_copies(small, big)
    return tuple(index // copies for index in range(small.num_kv_heads * copies))


def rotary_seats(small_dim: int, big_dim: int, copies: int) -> Seats:
    """Returns the dimensions of one head. Pair i is (i, i + dim / 2) and rotates by theta^(-2i / dim) per
    position.

    With big_dim = n * small_dim, the large pair n * i rotates like the small pair i. `copies` fills that many
    of the n pairs from there on; the others stay empty.
    """
    ratio, half = big_dim // small_dim, small_dim // 2
    pairs = [(ratio * pair + copy, pair) for pair in range(half) for copy in range(copies)]
    big = [place for place, _ in pairs] + [place + big_dim // 2 for place, _ in pairs]
    source = [pair for _, pair in pairs] + [pair + half for _, pair in pairs]
    return Seats(tuple(big), tuple(source), tuple(sorted(set(range(big_dim)) - set(big))))


def query_dims(small: LayerShape, big: LayerShape) -> Seats:
    """Returns the dimensions of a query head, which fills its new pairs with copies; see `key_dims`."""
    return rotary_seats(small.head_dim, big.head_dim, big.head_dim // small.head_dim)


def key_dims(small: LayerShape, big: LayerShape) -> Seats:
    """Returns the dimensions of a key head, which leaves its new pairs empty, so that copied queries meet
    zeros.

    With dim = n * small dim, the norm over a head then keeps queries and scales keys by sqrt(n). The
    attention scale 1 / sqrt(dim) cancels this factor, so no weight has to change.
    """
    return rotary_seats(small.head_dim, big.head_dim, 1)


def value_dims(small: LayerShape) -> Seats:
    """Returns the dimensions of a value head: the first ones, because values are not rotated."""
    return first_seats(small.head_dim)


def head_rows(heads: list[tuple[int, int]], dims: Seats, small_dim: int, big_dim: int) -> Seats:
    """Returns the dimensions of all heads as rows of one matrix; `heads` are (large, small)."""
    return Seats(
        tuple(head * big_dim + place for head, _ in heads for place in dims.big),
        tuple(head * small_dim + place for _, head in heads for place in dims.small),
        tuple(head * big_dim + place for head, _ in heads for place in dims.empty),
    )
