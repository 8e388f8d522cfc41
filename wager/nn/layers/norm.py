"""RMS normalisation over the last dimension.

On the CPU in float32 and float64 it is spelled as norm, hypot, divide, multiply: four small operations
instead of the seven behind `F.rms_norm`, which at one token is half the time. Half precisions and other
devices take `F.rms_norm`, which accumulates in float32. Used by all networks at inference; training uses
`F.rms_norm` itself.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """weight * x / sqrt(mean(x^2) + eps); `weight` may have further leading dimensions to broadcast (per
    head).
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
