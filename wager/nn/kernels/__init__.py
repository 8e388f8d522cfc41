"""KERNELS: the same numbers as the layers' plain torch, in fewer reads and fewer launches, on CUDA.

The kernels are written in Triton. Each file has one kernel, its launcher and its plain-torch reference, and
states what is fused and what limits its speed. `tables.py` has the device tables of a pass, which have a
fixed size, so that a pass can be captured once and replayed. `split_plan.py` and `product_plan.py` select the
measured best configuration by size, and `passes.py` runs a whole network. May import levels 0-1, torch,
triton and `wager.nn`'s own files. Other rooms import this folder only for a CUDA device, because triton may
be missing elsewhere; the exceptions are `quant_weights.py` and `quant_layers.py`, which are plain torch.

Read `tables.py` first, then `attention.py`. Every test also runs in Triton's interpreter, without a GPU.
"""

from importlib.util import find_spec

import torch


def has_kernels(device: object) -> bool:
    """Whether kernels can run a network on this device: it is CUDA, and triton is installed."""
    return torch.device(str(device)).type == "cuda" and find_spec("triton") is not None
