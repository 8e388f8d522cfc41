"""KERNELS: the same numbers as the layers' plain torch, in fewer reads and fewer launches, on CUDA.

Written in Triton; each file holds one kernel, its launcher and its plain-torch reference, and says what is
fused and what bounds it. `tables.py` holds what a pass reads on the device, of fixed size, so that a pass
can be captured once and replayed; `cuts.py` and `ways.py` choose by size what was measured to be quickest,
and `passes.py` strings a network together. May import levels 0-1, torch, triton and `wager.nn`'s own files.
Nothing outside imports this folder but for a CUDA device: elsewhere triton need not exist. Only
`narrow_weights.py` and `narrow_layers.py`, plain torch, are the models' too.

Read `tables.py` first, then `attention.py`. Every test here also runs in Triton's interpreter, without a GPU.
"""

from importlib.util import find_spec

import torch


def has_kernels(device: object) -> bool:
    """Whether a network on this device can be run by kernels: CUDA, and triton is installed."""
    return torch.device(str(device)).type == "cuda" and find_spec("triton") is not None
