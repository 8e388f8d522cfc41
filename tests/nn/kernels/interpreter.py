"""What the kernel tests share. Import it before anything of `wager.nn.kernels`: it skips where there is no
triton, and switches the interpreter on where there is no device.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("triton was imported before its interpreter could be chosen", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton", reason="kernels need triton")
tl = triton.language


def _speed_up_interpreter() -> None:
    """Patch the language once per module instead of once per call of a function inside a kernel.

    The interpreter looks through the whole language at every such call, which is nearly all of its time.
    """
    from triton.runtime import interpreter

    patched: set[str] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        # A kernel's own run patches `triton.language` and takes that back; only what is below it lasts.
        if module.startswith("triton.") and module not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(module)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


if not torch.cuda.is_available():
    _speed_up_interpreter()

# Norm of the error over norm of the float64 reference. The interpreter rounds bfloat16 towards zero.
BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = list(BOUNDS)


def error(out: Tensor, want: Tensor) -> float:
    """|out - want| / |want|; infinite where out is not a number everywhere."""
    out, want = out.double(), want.double()
    if not bool(torch.isfinite(out).all()):
        return float("inf")
    length = float(want.norm())
    return float((out - want).norm()) / length if length else float(out.norm())


def random(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


@contextmanager
def framed(*shape: int, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
    """A matrix of NaN inside a frame that must be as it was afterwards: rows have a stride of their own."""
    room = torch.full((shape[0] + 2, shape[1] + 5), 7.0, dtype=dtype, device=device)
    inner = room[1:-1, 2:-3]
    inner.fill_(torch.nan)
    yield inner
    outside = torch.ones_like(room, dtype=torch.bool)
    outside[1:-1, 2:-3] = False
    assert bool((room[outside] == 7.0).all()), "something was written outside the output"
