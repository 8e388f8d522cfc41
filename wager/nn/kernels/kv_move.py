"""Copies K/V of some slots to others, in every layer and head: accepted paths of trees move into place.

It needs one launch, where plain torch needs two operations that are split into many on a large pool. The
speed is limited by the launch. A program has one head of one layer and reads a few slots before it writes
any.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import power_of_two

_AT_ONCE = 16  # slots that a program reads before it writes them


def move_slots(store: Tensor, places: Tensor, count: int) -> None:
    """Copies slots places[0, i] to places[1, i] for i < count; store is [layers, 2, kv_heads, slots,
    head_dim].

    Precondition: no slot is written that is a source of a later copy. This holds for paths of trees: a node
    moves forward, and the nodes of a row are in order.
    """
    layers, pair, heads, slots, head_dim = store.shape
    assert store.is_contiguous() and places.stride(1) == 1 and count <= places.shape[1]
    if count:
        _move[(layers * pair * heads,)](
            store, places, count, places.stride(0), slots * head_dim,
            HEAD_DIM=head_dim, BLOCK=power_of_two(head_dim), AT_ONCE=_AT_ONCE, num_warps=4,
        )  # fmt: skip


def move_kept(store: Tensor, slots: Tensor, kept: Tensor) -> None:
    """Copies K/V from slots[kept[2, r, i]] to slot kept[1, r, i], if the latter is not negative.

    `slots` are those of the tokens of the pass, and `kept` are the kept tokens of each row, as `accept_paths`
    finds them on the device. Precondition: no row writes a slot that another reads, and the slots of a row
    are in the order of its tokens.
    """
    layers, pair, heads, num_slots, head_dim = store.shape
    _, num_rows, num_kept = kept.shape
    assert store.is_contiguous() and slots.is_contiguous()
    assert kept.stride(2) == 1 and kept.stride(1) == num_kept
    _move_kept[(layers * pair * heads, num_rows)](
        store, slots, kept, kept.stride(0), num_slots * head_dim,
        KEPT=num_kept, HEAD_DIM=head_dim, BLOCK=power_of_two(head_dim), AT_ONCE=_AT_ONCE, num_warps=4,
    )  # fmt: skip


def move_slots_reference(store: Tensor, places: Tensor, count: int) -> None:
    """Computes the same in plain torch: everything is read before it is written."""
    store.index_copy_(3, places[1, :count], store.index_select(3, places[0, :count]))


@triton.jit(do_not_specialize=["count"])
def _move(
    store, places, count, line, plane,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    own = store + tl.program_id(0).to(tl.int64) * plane
    which, dim = tl.arange(0, AT_ONCE), tl.arange(0, BLOCK)
    for first in range(0, count, AT_ONCE):
        inside = first + which < count
        source = tl.load(places + first + which, mask=inside, other=0)
        target = tl.load(places + line + first + which, mask=inside, other=0)
        mask = inside[:, None] & (dim < HEAD_DIM)[None, :]
        values = tl.load(own + source[:, None] * HEAD_DIM + dim[None, :], mask=mask)
        tl.debug_barrier()  # another thread may have to read what one thread writes
        tl.store(own + target[:, None] * HEAD_DIM + dim[None, :], values, mask=mask)
        tl.debug_barrier()


@triton.jit
def _move_kept(
    store, slots, kept, line, plane,
    KEPT: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    own = store + tl.program_id(0).to(tl.int64) * plane
    kept += tl.program_id(1) * KEPT
    which, dim = tl.arange(0, AT_ONCE), tl.arange(0, BLOCK)
    for first in tl.static_range(0, KEPT, AT_ONCE):
        inside = first + which < KEPT
        target = tl.load(kept + line + first + which, mask=inside, other=-1)
        place = tl.load(kept + 2 * line + first + which, mask=inside, other=0)
        source = tl.load(slots + place, mask=target >= 0, other=0)
        moves = (target >= 0) & (source != target)
        mask = moves[:, None] & (dim < HEAD_DIM)[None, :]
        values = tl.load(own + source[:, None] * HEAD_DIM + dim[None, :], mask=mask)
        tl.debug_barrier()
        tl.store(own + target[:, None] * HEAD_DIM + dim[None, :], values, mask=mask)
        tl.debug_barrier()
