"""Near-ties: the gap of plain decoding's two best final scores at the place where another text differs.

Passes of different widths round differently, so two texts may part where plain decoding itself hardly
preferred one token (docs/exactness.md). This module decodes plainly once more up to that place and reads the
scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from wager.bench.plan import BASELINE, RunOptions
from wager.bench.records import Difference
from wager.bench.runs import Encoded, PolicyContender
from wager.errors import ModelError
from wager.records import SamplingParams
from wager.target.sampler import ChoiceRow, PendingChoices, Sampler

if TYPE_CHECKING:
    from wager.llm import LLM

__all__ = ["NEAR", "gap_at", "judged", "near_tie"]

NEAR: dict[str, float] = {"float32": 1e-4, "float64": 1e-9}
"""The gap below which two texts may part, by dtype; other dtypes have too many near-ties for a rule."""


def near_tie(llm: LLM) -> float | None:
    """Returns the rule for this model's dtype; None if there is none."""
    return NEAR.get(str(llm.engine.runner.decoder.dtype).removeprefix("torch."))


def judged(
    llm: LLM, found: Sequence[Difference], prompts: Sequence[Encoded], options: RunOptions
) -> list[Difference]:
    """Returns the differences with their gaps, and whether the rule excuses them."""
    near = near_tie(llm)
    answered = []
    for one in found:
        params = options.params(one.prompt)
        gap = gap_at(llm, prompts[one.prompt].token_ids, params, one.position)
        answered.append(replace(one, gap=gap, excused=near is not None and gap < near))
    return answered


def gap_at(llm: LLM, prompt_ids: Sequence[int], params: SamplingParams, position: int) -> float:
    """Returns best minus second-best final score, noise included, at an output position of plain decoding."""
    engine = llm.engine
    own = engine.sampler
    scores = _ObservedSampler(own)
    engine.sampler = scores  # type: ignore[assignment]
    try:
        PolicyContender(llm, BASELINE).answer(prompt_ids, replace(params, max_tokens=position + 1))
    finally:
        engine.sampler = own
    if scores.last is None:
        raise ModelError("plain decoding gave no scores")
    final = scores.last.double()
    if params.temperature:
        place = len(prompt_ids) + position
        noise = engine.parts.noise.rows([(scores.seed, place)])[0]
        final = final / params.temperature + noise.double()
    best, second = final.topk(2).values.tolist()
    return float(best - second)


class _ObservedSampler:
    """Wraps the sampler and stores the last scores that it received."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.last: Tensor | None = None
        self.seed = 0

    def launch(self, logits: Tensor, rows: Sequence[ChoiceRow], *others: Any) -> PendingChoices:
        self.last, self.seed = logits[-1].clone(), rows[-1].seed
        return self._sampler.launch(logits, rows, *others)
