"""What became of every draft: its candidates against the tokens emitted later.

A draft that was paid for says something at every depth, verified or not, once the tokens are there. A draft
is ripe when a token fell outside it, at its last depth, or when its request ends. Forced tokens end it early:
they say nothing about the drafter. No torch, no policy: it makes the policy's evidence.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wager.policy import Evidence


@dataclass(slots=True)
class _Open:
    """A draft whose fate is not yet known."""

    drafter: str
    phase: str
    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32] | None
    spine_only: bool
    ranks: list[int] = field(default_factory=list)

    def feed(self, token: int) -> bool:
        """Take the next token; True when there is nothing more to learn."""
        candidates = self.token_ids[len(self.ranks)].tolist()
        rank = candidates.index(token) if token in candidates else -1
        self.ranks.append(rank)
        dead = rank < 0 or (self.spine_only and rank > 0)
        return dead or len(self.ranks) == len(self.token_ids)

    def evidence(self) -> Evidence:
        known = len(self.ranks)
        logprobs = None if self.logprobs is None else self.logprobs[:known]
        return Evidence(self.drafter, self.phase, logprobs, np.array(self.ranks, np.int64), self.spine_only)


class Hindsight:
    """Open drafts by request."""

    def __init__(self) -> None:
        self._open: dict[Hashable, list[_Open]] = {}

    def add(
        self,
        request_id: Hashable,
        drafter: str,
        phase: str,
        proposal: tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None, bool],
    ) -> None:
        """A drafter proposed (token ids, log-probabilities, spine only) for the tokens that come next."""
        token_ids, logprobs, spine_only = proposal
        draft = _Open(drafter, phase, token_ids, logprobs, spine_only)
        self._open.setdefault(request_id, []).append(draft)

    def feed(self, request_id: Hashable, tokens: Sequence[int]) -> list[Evidence]:
        """These tokens were emitted; returns what is ripe."""
        drafts = self._open.get(request_id)
        if not drafts:
            return []
        ripe: list[Evidence] = []
        for token in tokens:
            still = []
            for draft in drafts:
                if draft.feed(token):
                    ripe.append(draft.evidence())
                else:
                    still.append(draft)
            drafts = still
        self._open[request_id] = drafts
        return ripe

    def close(self, request_id: Hashable) -> list[Evidence]:
        """The request has ended, or its next tokens are forced: hand out what is known."""
        drafts = self._open.pop(request_id, [])
        return [draft.evidence() for draft in drafts if draft.ranks]
