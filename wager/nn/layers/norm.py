"""RMS normalisation over the last dimension.

On the CPU in float32 and float64 it is computed as norm, hypot, divide, multiply. These four operations
replace the seven of `F.rms_norm`, which takes twice as long for one token. Half precisions and other devices
use `F.rms_norm`, which accumulates in float32. All networks use this at inference; training uses
`F.rms_norm`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """Computes weight * x / sqrt(mean(x^2) + eps); `weight` may have leading dimensions, for example one per
    head.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.size = weight.shape[-1]
        self._small = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
        # x / sqrt(|x|^2 / n + eps) = sqrt(n) * x / hypot(|x|, sqrt(n * eps))
        self._scaled = weight * self.size**0.5
        self._floor = torch.tensor((self.size * eps) ** 0.5, dtype=weight.dtype, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        if self._small:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return (x / torch.hypot(length, self._floor)).mul_(self._scaled)
        if self.weight.dim() == 1:
            return F.rms_norm(x, (self.size,), self.weight, self.eps)
        return F.rms_norm(x, (self.size,), None, self.eps) * self.weight
