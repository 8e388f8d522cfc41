"""Small random pairs to grow, and one pass of a pair whose every number can be compared. Judges nothing."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.nn.tiny import SHAPE, save_drafter, save_target
from wager.kvcache.pool import KVPool
from wager.nn.batch import BlockBatch, BlockRow, PassBatch, PassRow
from wager.nn.models import dflash_spec, load_target, qwen3
from wager.nn.models.decoder import Decoder
from wager.nn.models.dflash import DFlash, load_drafter, read_weights
from wager.nn.models.tensors import read_decoder
from wager.train.grow import GrowthPlan, SmallPair, reader_of
from wager.train.grow_shape import LayerShape

VOCAB, HIDDEN = SHAPE["vocab_size"], SHAPE["hidden_size"]
PAGES = list(range(16))
WINDOWED = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "tied-bias": ({"tie_word_embeddings": True, "attention_bias": True}, {"rms_norm_eps": 3e-6}),
    "window": (
        WINDOWED | {"rms_norm_eps": 1e-5},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    ),
}


def save_pair(folder: Path, kind: str = "plain", **changes: Any) -> SmallPair:
    target, drafter = KINDS[kind]
    save_target(folder / "target", "qwen3", **target, **changes)
    save_drafter(folder / "drafter", **drafter)
    return SmallPair(folder / "target", folder / "drafter")


@st.composite
def layer_shapes(draw: st.DrawFn, num_layers: int, ffn: int) -> LayerShape:
    """Shapes that hold layers of 4 query heads over 2 key heads of 16."""
    group = draw(st.integers(1, 5))
    kv_heads = draw(st.integers(4 if group == 1 else 2, 6))
    return LayerShape(
        num_layers + draw(st.integers(0, 4)),
        kv_heads * group,
        kv_heads,
        16 * draw(st.integers(1, 4)),
        ffn + draw(st.integers(0, 30)),
    )


class Networks(NamedTuple):
    """A loaded pair."""

    target: Decoder
    drafter: DFlash


def load_small(pair: SmallPair, dtype: torch.dtype = torch.float64) -> Networks:
    assert pair.drafter is not None
    target = load_target(pair.target, dtype, layout="out_in")
    return Networks(target, load_drafter(pair.drafter, dtype, layout="out_in"))


def load_grown(plan: GrowthPlan) -> Networks:
    """Builds the grown pair without files."""
    assert plan.drafter is not None
    target = qwen3.read_spec(plan.target.config)
    drafter = dflash_spec.read_spec(plan.drafter.config)
    return Networks(
        Decoder(target, read_decoder(reader_of(plan.target, plan), target), "out_in"),
        DFlash(drafter, read_weights(reader_of(plan.drafter, plan), drafter), "out_in"),
    )


class Seen(NamedTuple):
    """What a pair computes for one text: scores of every next word, features, a block's scores."""

    logits: Tensor
    features: Tensor
    guesses: Tensor


@torch.inference_mode()
def observe(nets: Networks, ids: Tensor) -> Seen:
    """Run the target over `ids`, then draft a block behind all but the last of them."""
    target, drafter = nets
    pool = KVPool(target.pool_spec(len(PAGES), 8))
    where, count = torch.arange(len(ids)), len(ids)
    batch = PassBatch(ids, where, pool.slots(PAGES, 0, count), [PassRow(0, count, 0, PAGES)])
    out = target.forward(batch, pool, drafter.spec.target_layer_ids)
    assert out.features is not None
    own, context = KVPool(drafter.pool_spec(len(PAGES), 8)), count - 1
    drafter.ingest(out.features[:context], where[:context], own.slots(PAGES, 0, context), own)
    size = drafter.spec.block_size
    block = torch.full((size,), drafter.spec.mask_token_id)
    block[0] = ids[-1]
    places = torch.arange(context, context + size)
    row = BlockRow(0, size, context, PAGES)
    hidden = drafter.forward(BlockBatch(target.embed(block), places, [row]), own)
    return Seen(target.logits(out.hidden), out.features, target.logits(hidden))


def random_ids(count: int = 40, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))
