"""What the kernels share: products of tiles, how one overlaps the next, order-preserving bits of scores.

Small kernels leave memory idle, and two means against that are passed on by `Launch`. `ahead`: programs
beyond a kernel's own fetch the next product's weights into the cache; nothing is written, so it may be wrong
but never harmful. `early` (programmatic dependent launch): a kernel may start before the one in front of it
has ended; it reads weights at once, and what an earlier kernel wrote only behind `wait_for_input`.

Knows no shapes and no models.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_SECTOR = 32  # bytes: memory is read in no smaller pieces
_ROOMY_BYTES = 220_000

# The interpreter stores bfloat16 as raw words and cannot multiply them.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def _mend_interpreter() -> None:
    """Let the interpreter take loop bounds out of arrays of one element, as NumPy before 2.4 did."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if INTERPRETED.value:
    _mend_interpreter()


class Ahead(NamedTuple):
    """Memory to fetch into the cache for a later kernel: some pieces of each row, evenly spread.

    A product begins with all of its rows at once, so what it wants first are the beginnings of rows.
    """

    start: Tensor
    num_rows: int
    num_pieces: int
    step: int
    """Bytes from one piece to the next, and from the last of a row to the first of the next row."""
    piece: int


def ahead_of(weight: Tensor, num_bytes: int, pieces: int = 1) -> Ahead:
    """About `num_bytes` of a contiguous weight [out, in], as many `pieces` of every row."""
    num_rows, row_bytes = weight.shape[0], weight.shape[1] * weight.itemsize
    step = row_bytes // pieces
    piece = min(num_bytes // (num_rows * pieces), step) // _SECTOR * _SECTOR
    assert step % 16 == 0 and row_bytes % pieces == 0, f"rows of {row_bytes} bytes in {pieces} pieces"
    return Ahead(weight.view(-1).view(torch.uint8), num_rows, pieces, step, piece)


class Launch(NamedTuple):
    """How a kernel is launched; `early` and `ahead` need compute capability 9."""

    early: bool = False
    ahead: Ahead | None = None
    ahead_programs: int = 128

    @property
    def options(self) -> dict[str, Any]:
        return {"EARLY": True, "launch_pdl": True} if self.early else {"EARLY": False}

    @property
    def extra(self) -> int:
        """Programs beyond a kernel's own."""
        return self.ahead_programs if self.ahead is not None and self.ahead.piece else 0

    def fetching(self, other: Tensor) -> dict[str, Any]:
        """The arguments of kernels that can fetch ahead; `other` is any tensor, to fill the place."""
        ahead = (other, 0, 1, 0, 0) if self.ahead is None else tuple(self.ahead)
        return {"ahead": ahead, "FETCHES": self.extra > 0, **self.options}


PLAIN = Launch()


class Machine(NamedTuple):
    """What choices depend on: multiprocessors, early launches, and room for deep pipelines of tiles."""

    processors: int = 4
    early: bool = False
    is_roomy: bool = False
    """Whether a program may have the shared memory that the measured configurations take."""

    @property
    def launch(self) -> Launch:
        return Launch(self.early)


INTERPRETER = Machine()


def machine_of(device: torch.device | str) -> Machine:
    """Of a CUDA device what it states; of anything else the interpreter's."""
    if torch.device(device).type != "cuda":
        return INTERPRETER
    found, index = torch.cuda.get_device_properties(device), torch.device(device).index
    index = torch.cuda.current_device() if index is None else index
    shared_bytes = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return Machine(found.multi_processor_count, found.major >= 9, shared_bytes >= _ROOMY_BYTES)


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()


def is_rows(x: Tensor) -> bool:
    """Whether the last dimension is dense, so that a stride per row describes the tensor."""
    return x.stride(-1) == 1 or x.shape[-1] == 1


@triton.jit
def tile_product(a, b, total):
    """total + a @ b, accumulated in float32; float32 operands are split in three, not rounded to tf32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    else:
        return tl.dot(a, b, total, input_precision="tf32x3")


@triton.jit
def allow_next(EARLY: tl.constexpr):
    """Let the next kernel's programs take whatever room this one leaves."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_input(EARLY: tl.constexpr):
    """From here on everything that earlier kernels wrote can be read."""
    if EARLY:
        gdc_wait()


@triton.jit
def fetch_ahead(ahead, program, num_programs):
    """This program's share of an `Ahead`: asked for, not waited for."""
    if not INTERPRETED:
        start, num_rows, num_pieces, step, piece = ahead
        # As wide as the widest program has threads: narrower, and threads would ask for the same.
        one = program * 512 + tl.arange(0, 512)
        count = num_rows * num_pieces
        for _ in range(tl.cdiv(count, num_programs * 512)):
            at = tl.minimum(one, count - 1).to(tl.int64)
            place = start + (at % num_rows * num_pieces + at // num_rows) * step
            fetch_runs(place, piece)
            one += num_programs * 512


@triton.jit
def fetch_runs(places, num_bytes):
    """Ask for as many bytes, a multiple of 16, at each of the places into the cache."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;", "=r,l,r", [places, num_bytes],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def fetch_run(place, num_bytes):
    """Ask for a run of bytes, a multiple of 16, at one place; one thread asks."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            """{
            .reg .pred first; .reg .u32 thread;
            mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r", [place, num_bytes], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def order_key(x):
    """uint32 words that compare as the float32 `x` do; both zeros are one value."""
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)


@triton.jit
def key_value(key):
    """The float32 behind an `order_key`."""
    bits = tl.where(key >> 31 == 1, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)
