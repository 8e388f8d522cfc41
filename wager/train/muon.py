"""Muon for many small matrices: the update of torch.optim.Muon, computed for all matrices of one shape
together.

A small decoder has hundreds of small matrices. One after the other, their Newton-Schulz steps need thousands
of kernel launches per update, more than the passes of the model. Stacked by shape they are a few batched
products. This module knows nothing of schedules; loop.py sets the learning rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
_EPS = 1e-7


class StackedMuon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; the step size is scaled by the root of the longer side to match
    AdamW's.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        if any(weight.ndim != 2 for group in self.param_groups for weight in group["params"]):
            raise ValueError("Muon takes matrices only")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[tuple(weight.shape)].append(weight)
            for weights in by_shape.values():
                self._step_stack(weights, group)

    def _step_stack(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        grads = [weight.grad for weight in weights if weight.grad is not None]
        moments = [self._moment(weight) for weight in weights]
        torch._foreach_lerp_(moments, grads, 1.0 - group["momentum"])
        looking_ahead = torch._foreach_lerp(grads, moments, group["momentum"])
        steps = orthogonalised(torch.stack(looking_ahead))
        rows, columns = weights[0].shape
        size = group["lr"] * 0.2 * max(rows, columns) ** 0.5
        torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(steps.to(weights[0].dtype).unbind()), alpha=-size)

    def _moment(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        return state["momentum_buffer"]


def orthogonalised(stack: Tensor) -> Tensor:
    """Returns matrices [N, rows, columns] whose singular values are near one, by Newton-Schulz."""
    a, b, c = _COEFFICIENTS
    tall = stack.shape[1] > stack.shape[2]
    x = stack.bfloat16()
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPS)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
