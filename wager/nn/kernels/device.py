"""Parts that the kernels share: tile products, the overlap of successive kernels, order-preserving bits of
scores.

Small kernels leave the memory idle, and `Launch` has two means against that. `prefetch`: additional programs
fetch the next product's weights into the cache; they write nothing, so a wrong prefetch is harmless. `pdl`
(programmatic dependent launch): a kernel may start before the previous one has ended. It reads weights at
once, and reads what an earlier kernel wrote only after `wait_for_input`. This module knows no shapes and no
models.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_SECTOR = 32  # bytes: the smallest unit of a memory read
_ROOMY_BYTES = 220_000

# The interpreter stores bfloat16 as raw words and cannot multiply them.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def _mend_interpreter() -> None:
    """Lets the interpreter take loop bounds from arrays of one element, as NumPy before 2.4 did."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if INTERPRETED.value:
    _mend_interpreter()


class Prefetch(NamedTuple):
    """Memory to fetch into the cache for a later kernel: some pieces of each row, evenly spread.

    A product begins with all of its rows at once, so the beginnings of rows are needed first.
    """

    start: Tensor
    num_rows: int
    num_pieces: int
    step: int
    """Bytes from one piece to the next, and from the last piece of a row to the first of the next row."""
    piece: int


def prefetch_of(weight: Tensor, num_bytes: int, pieces: int = 1) -> Prefetch:
    """Returns a prefetch of about `num_bytes` of a contiguous weight [out, in], with `pieces` per row."""
    num_rows, row_bytes = weight.shape[0], weight.shape[1] * weight.itemsize
    step = row_bytes // pieces
    piece = min(num_bytes // (num_rows * pieces), step) // _SECTOR * _SECTOR
    assert step % 16 == 0 and row_bytes % pieces == 0, f"rows of {row_bytes} bytes in {pieces} pieces"
    return Prefetch(weight.view(-1).view(torch.uint8), num_rows, pieces, step, piece)


class Launch(NamedTuple):
    """How a kernel is launched; `pdl` and `prefetch` need compute capability 9."""

    pdl: bool = False
    prefetch: Prefetch | None = None
    prefetch_programs: int = 128

    @property
    def options(self) -> dict[str, Any]:
        return {"PDL": True, "launch_pdl": True} if self.pdl else {"PDL": False}

    @property
    def extra(self) -> int:
        """Number of programs beyond a kernel's own."""
        return self.prefetch_programs if self.prefetch is not None and self.prefetch.piece else 0

    def fetching(self, other: Tensor) -> dict[str, Any]:
        """Returns the prefetch arguments of a kernel; `other` is any tensor, used if there is no prefetch."""
        prefetch = (other, 0, 1, 0, 0) if self.prefetch is None else tuple(self.prefetch)
        return {"prefetch": prefetch, "PREFETCHES": self.extra > 0, **self.options}


PLAIN_LAUNCH = Launch()


class DeviceInfo(NamedTuple):
    """The properties of a device that configurations depend on."""

    num_sms: int = 4
    pdl: bool = False
    has_large_shared_memory: bool = False
    """Whether a program may use the amount of shared memory that the measured configurations need."""

    @property
    def launch(self) -> Launch:
        return Launch(self.pdl)


INTERPRETER_INFO = DeviceInfo()


def read_device_info(device: torch.device | str) -> DeviceInfo:
    """Returns the properties of a CUDA device, else those of the interpreter."""
    if torch.device(device).type != "cuda":
        return INTERPRETER_INFO
    found, index = torch.cuda.get_device_properties(device), torch.device(device).index
    index = torch.cuda.current_device() if index is None else index
    shared_bytes = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return DeviceInfo(found.multi_processor_count, found.major >= 9, shared_bytes >= _ROOMY_BYTES)


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def is_rows(x: Tensor) -> bool:
    """Whether the last dimension is dense, so that one stride per row describes the tensor."""
    return x.stride(-1) == 1 or x.shape[-1] == 1


@triton.jit
def tile_product(a, b, total):
    """Returns total + a @ b, accumulated in float32; float32 operands are split in three instead of rounded
    to tf32.
    """
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    else:
        return tl.dot(a, b, total, input_precision="tf32x3")


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """Lets the programs of the next kernel start as soon as there is room."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_input(PDL: tl.constexpr):
    """Waits until everything that earlier kernels wrote can be read."""
    if PDL:
        gdc_wait()


@triton.jit
def prefetch_share(prefetch, program, num_programs):
    """Prefetches this program's share of a `Prefetch`, without waiting."""
    if not INTERPRETED:
        start, num_rows, num_pieces, step, piece = prefetch
        # As wide as the largest number of threads; if it were narrower, threads would fetch the same bytes.
        one = program * 512 + tl.arange(0, 512)
        count = num_rows * num_pieces
        for _ in range(tl.cdiv(count, num_programs * 512)):
            at = tl.minimum(one, count - 1).to(tl.int64)
            place = start + (at % num_rows * num_pieces + at // num_rows) * step
            prefetch_runs(place, piece)
            one += num_programs * 512


@triton.jit
def prefetch_runs(places, num_bytes):
    """Prefetches `num_bytes`, a multiple of 16, at each of the places."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;", "=r,l,r", [places, num_bytes],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def prefetch_run(place, num_bytes):
    """Prefetches `num_bytes`, a multiple of 16, at one place; only one thread does this."""
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
    """Returns uint32 words with the same order as the float32 `x`; both zeros have one value."""
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)


@triton.jit
def key_value(key):
    """Returns the float32 of an `order_key`."""
    bits = tl.where(key >> 31 == 1, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)
