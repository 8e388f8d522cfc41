"""Converts words of a quantised weight to numbers in registers, and whole rows of it for the library's
product.

The bits of a small integer are a subnormal number of x's type. One multiply-add scales it and removes its
offset exactly, two values at a time and without a conversion. What remains is a common factor (`unit`), which
is applied to the sum. Bits in a word's upper byte are shifted down first, because there they would be
exponents. It knows the layout of `quant_weights.py`; `quant_matmul.py` uses it.
"""

# Arguments of kernels are typed by their compiler.
# mypy: allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from wager.nn.kernels.device import INTERPRETED, is_rows
from wager.nn.kernels.quant_weights import QuantWeight

_ROWS = 32


def widen(weight: QuantWeight, start: int, out: Tensor) -> Tensor:
    """Writes rows `start` onwards to `out` [rows, in], in its dtype: `dequantised` in one kernel."""
    num_rows, inner = out.shape
    assert inner == weight.num_in and 0 <= start <= weight.num_out - num_rows and is_rows(out)
    weight.check()
    if num_rows and inner:
        _widen[(triton.cdiv(num_rows, _ROWS), len(weight.packed))](
            weight.packed, weight.scales, out, start, num_rows, inner, out.stride(0),
            weight.packed.stride(0), weight.scales.stride(0),
            ROWS=_ROWS, WORDS=weight.group // 2, BITS=weight.bits,
        )  # fmt: skip
    return out


def _lifted_bytes(kind: str, lift: int, offset: int) -> str:
    """Returns PTX that converts the low bytes of two words in $2 to $0, the high ones to $1."""
    return f"""{{ .reg .b32 a, b, l, o;
        mov.b32 l, {lift * 0x10001:#x}; mov.b32 o, {offset * 0x10001:#x};
        prmt.b32 a, $2, 0, 0x4240; prmt.b32 b, $2, 0, 0x4341;
        fma.rn.{kind} $0, a, l, o; fma.rn.{kind} $1, b, l, o; }}"""


def _lifted_halves(kind: str, low_lift: int, high_lift: int, offset: int) -> str:
    """Returns PTX that converts four bits at a time of two words in $4, from the lowest, to $0 to $3."""
    return f"""{{ .reg .b32 a, b, c, d, l, h, o;
        mov.b32 l, {low_lift * 0x10001:#x}; mov.b32 h, {high_lift * 0x10001:#x};
        mov.b32 o, {offset * 0x10001:#x};
        shr.u32 d, $4, 8;
        and.b32 a, $4, 0x000F000F; and.b32 b, $4, 0x00F000F0;
        and.b32 c, d, 0x000F000F; and.b32 d, d, 0x00F000F0;
        fma.rn.{kind} $0, a, l, o; fma.rn.{kind} $1, b, h, o;
        fma.rn.{kind} $2, c, l, o; fma.rn.{kind} $3, d, h, o; }}"""


# Of bfloat16, bits 0 to 7 count in units of 2^-133, the first normal exponent included: times 2^127, minus
# 128/64 or 8/64. Bits 4 to 7 are 16 times as large at their position: times 2^123.
_BYTES_BF16 = tl.constexpr(_lifted_bytes("bf16x2", 0x7F00, 0xC000))
_HALVES_BF16 = tl.constexpr(_lifted_halves("bf16x2", 0x7F00, 0x7D00, 0xBE00))
# Of float16, in units of 2^-24: times 2^15 or 2^11, minus 128/512 or 8/512.
_BYTES_FP16 = tl.constexpr(_lifted_bytes("f16x2", 0x7800, 0xB400))
_HALVES_FP16 = tl.constexpr(_lifted_halves("f16x2", 0x7800, 0x6800, 0xA400))


@triton.jit
def unit(DTYPE: tl.constexpr):
    """Returns the factor of converted values; no factor of their type can scale a subnormal up to one."""
    if DTYPE.is_bf16():
        return 64.0
    elif DTYPE.is_fp16():
        return 512.0
    else:
        return 1.0


@triton.jit
def two_of(own, DTYPE: tl.constexpr):
    """Returns (bits - 128) / unit of the low and the high bytes of words, exactly."""
    if INTERPRETED or DTYPE.is_fp32():
        return _bits_of(own, 0, 8, DTYPE), _bits_of(own, 8, 8, DTYPE)
    elif DTYPE.is_bf16():
        return tl.inline_asm_elementwise(_BYTES_BF16, "=r,=r,r", [own], (tl.bfloat16, tl.bfloat16), True, 2)
    else:
        return tl.inline_asm_elementwise(_BYTES_FP16, "=r,=r,r", [own], (tl.float16, tl.float16), True, 2)


@triton.jit
def four_of(own, DTYPE: tl.constexpr):
    """Returns (bits - 8) / unit of every four bits of words, from the lowest, exactly."""
    if INTERPRETED or DTYPE.is_fp32():
        first, second = _bits_of(own, 0, 4, DTYPE), _bits_of(own, 4, 4, DTYPE)
        return first, second, _bits_of(own, 8, 4, DTYPE), _bits_of(own, 12, 4, DTYPE)
    elif DTYPE.is_bf16():
        return tl.inline_asm_elementwise(
            _HALVES_BF16, "=r,=r,=r,=r,r", [own],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            _HALVES_FP16, "=r,=r,=r,=r,r", [own],
            (tl.float16, tl.float16, tl.float16, tl.float16), True, 2,
        )  # fmt: skip


@triton.jit
def _bits_of(own, SHIFT: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """Returns (bits - offset) / unit of some bits of words, without PTX."""
    value = (own.to(tl.int32) >> SHIFT) & ((1 << BITS) - 1)
    return ((value.to(tl.float32) - (1 << (BITS - 1))) / unit(DTYPE)).to(DTYPE)


@triton.jit
def _widen(
    packed, scales, out, start, num_rows, inner, out_stride, chunk_stride, scale_stride,
    ROWS: tl.constexpr, WORDS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    chunk = tl.program_id(1).to(tl.int64)
    word = tl.arange(0, WORDS)
    is_row = row < num_rows
    lines = packed + chunk * chunk_stride + (start + row)[:, None] * WORDS + word[None, :]
    own = tl.load(lines, mask=is_row[:, None], other=0)
    scale_lines = scales + chunk * scale_stride + (start + row) * (8 // BITS)
    target = out + row.to(tl.int64)[:, None] * out_stride
    for part in tl.static_range(16 // BITS):
        scale = tl.load(scale_lines + part // 2, mask=is_row, other=0.0).to(tl.float32)
        at = (chunk * (16 // BITS) + part) * WORDS + word
        wide = _bits_of(own, part * BITS, BITS, tl.float32) * scale[:, None]
        tl.store(target + at[None, :], wide, mask=is_row[:, None] & (at < inner)[None, :])
