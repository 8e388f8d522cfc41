"""The sizes of a pair before and after growing, and where each small part sits in the large one.

Presets, the words of `--shape`, the check that a shape can hold the pair, and the seats: which layer, head,
rotary pair or channel of the large network does the work of which small one. Plain integers: it knows no
weights. Read by `grow_tensors.py` and `grow.py`.
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
        """Query heads per key head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class PairShape:
    """A target and its block drafter, if it has one; the hidden size and the words are common to both."""

    hidden_size: int
    vocab_size: int
    max_position: int
    target: LayerShape
    drafter: LayerShape | None = None


_QWEN3_VOCAB, _QWEN3_POSITIONS = 151_936, 40_960
PRESETS = {
    # Qwen3-8B and the five-layer drafter published for it.
    "8b": PairShape(
        hidden_size=4096,
        vocab_size=_QWEN3_VOCAB,
        max_position=_QWEN3_POSITIONS,
        target=LayerShape(36, 32, 8, 128, 12_288),
        drafter=LayerShape(5, 32, 8, 128, 12_288),
    ),
    # Qwen3-32B, the dense model of that size, and a drafter of five such layers.
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
    """A preset, sizes as `word=number`, or both: "8b", "hidden=512,layers=24", "8b,ffn=9000".

    Sizes nobody names are the preset's, without one the small pair's. Raises ConfigError on anything else.
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
    """Raise ConfigError naming the first size that cannot hold the small pair."""
    for name in _PAIR_WORDS.values():
        _at_least(name, getattr(big, name), getattr(small, name))
    if big.vocab_size > small.vocab_size and big.hidden_size == small.hidden_size:
        # New words are kept down through a channel of their own.
        raise ConfigError("hidden_size", big.hidden_size, f"above {small.hidden_size}, as the words grow too")
    _check_layers("target", small.target, big.target)
    if small.drafter is not None:
        if big.drafter is None:
            raise ConfigError("drafter", None, "the drafter's sizes, as it grows too")
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
        # Otherwise no rotary pair of the large head turns as fast as one of the small.
        raise ConfigError(f"{net}.head_dim", big.head_dim, f"a multiple of the original's {small.head_dim}")
    needed = small.num_kv_heads * _kv_copies(small, big)
    if big.num_kv_heads < needed:
        raise ConfigError(
            f"{net}.num_kv_heads",
            big.num_kv_heads,
            f"at least {needed}: {small.group} query heads read each of the original's, "
            f"{big.group} each of these",
        )


class Seats(NamedTuple):
    """Places along one dimension: `big[i]` does the work of `small[i]`; `empty` ones must hold zeros."""

    big: tuple[int, ...]
    small: tuple[int, ...]
    empty: tuple[int, ...] = ()


def first_seats(count: int) -> Seats:
    """The small ones first, in their order."""
    return Seats(tuple(range(count)), tuple(range(count)))


def layer_seats(num_small: int, num_big: int) -> tuple[int, ...]:
    """The large layer of each small one: spread evenly, first to first and last to last."""
    if num_small == 1:
        return (num_big // 2,)
    return tuple(index * (num_big - 1) // (num_small - 1) for index in range(num_small))


def _kv_copies(small: LayerShape, big: LayerShape) -> int:
    """Large key heads that stand for one small one: several, where each serves fewer query heads."""
    return -(-small.group // big.group)


def query_heads(small: LayerShape, big: LayerShape) -> tuple[int, ...]:
    """The large query head of each small one: one that reads a copy of the same key head."""
    copies = _kv_copies(small, big)
    found = []
    for head in range(small.num_heads):
        key_head, place = divmod(head, small.group)
        copy, rest = divmod(place, big.group)
        found.append((key_head * copies + copy) * big.group + rest)
    return tuple(found)


def key_heads(small: LayerShape, big: LayerShape) -> tuple[int, ...]:
    """For each large key head in use, from the first on, the small one it copies."""
    copies = _kv_copies(small, big)
    return tuple(index // copies for index in range(small.num_kv_heads * copies))


def rotary_seats(small_dim: int, big_dim: int, copies: int) -> Seats:
    """Dimensions of one head. Pair i, which is (i, i + dim / 2), turns by theta^(-2i / dim) per position.

    So with big_dim = n * small_dim the large pair n * i turns as the small pair i. `copies` fills that many
    of the n pairs from there on; what is left stays empty.
    """
    ratio, half = big_dim // small_dim, small_dim // 2
    pairs = [(ratio * pair + copy, pair) for pair in range(half) for copy in range(copies)]
    big = [place for place, _ in pairs] + [place + big_dim // 2 for place, _ in pairs]
    source = [pair for _, pair in pairs] + [pair + half for _, pair in pairs]
    return Seats(tuple(big), tuple(source), tuple(sorted(set(range(big_dim)) - set(big))))


def query_dims(small: LayerShape, big: LayerShape) -> Seats:
    """A query head fills its new pairs with copies of itself; see `key_dims`."""
    return rotary_seats(small.head_dim, big.head_dim, big.head_dim // small.head_dim)


def key_dims(small: LayerShape, big: LayerShape) -> Seats:
    """A key head leaves its new pairs empty, so that the copies in the queries meet zeros.

    With dim = n * small dim, the norm over a head then leaves queries as they were and makes keys sqrt(n)
    larger, which is what the attention scale 1 / sqrt(dim) takes away: no weight has to change for it.
    """
    return rotary_seats(small.head_dim, big.head_dim, 1)


def value_dims(small: LayerShape) -> Seats:
    """Values are not rotated: the first dimensions of a head."""
    return first_seats(small.head_dim)


def head_rows(heads: list[tuple[int, int]], dims: Seats, small_dim: int, big_dim: int) -> Seats:
    """The dims of all heads as rows of one matrix; `heads` are (large, small)."""
    return Seats(
        tuple(head * big_dim + place for head, _ in heads for place in dims.big),
        tuple(head * small_dim + place for _, head in heads for place in dims.small),
        tuple(head * big_dim + place for head, _ in heads for place in dims.empty),
    )
