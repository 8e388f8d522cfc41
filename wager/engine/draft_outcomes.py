"""Compares every draft with the tokens that were emitted later; the results are the policy's evidence.

A draft makes a statement about every depth, whether it was verified or not, because the emitted tokens are
the target's own whatever was bet. So the value of another drafter can be measured without a bet on it. A
draft is complete when a token was not among its candidates, at its last depth, or when its request ends.
Forced tokens complete it early, because they say nothing about the drafter. Tokens are only stored when they
are emitted, since a device may be idle at that moment, and are compared when the evidence is asked for. This
module knows no torch and no policy.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wager.policy import Evidence


@dataclass(slots=True)
class _OpenDraft:
    """A draft whose outcome is not complete."""

    drafter: str
    phase: str
    token_ids: list[list[int]]
    logprobs: npt.NDArray[np.float32] | None
    spine_only: bool
    request_id: Hashable
    ranks: list[int] = field(default_factory=list)

    def feed(self, token: int) -> bool:
        """Take the next emitted token; returns whether the draft is complete."""
        candidates = self.token_ids[len(self.ranks)]
        rank = candidates.index(token) if token in candidates else -1
        self.ranks.append(rank)
        has_failed = rank < 0 or (self.spine_only and rank > 0)
        return has_failed or len(self.ranks) == len(self.token_ids)

    def evidence(self) -> Evidence:
        num_depths = len(self.ranks)
        logprobs = None if self.logprobs is None else self.logprobs[:num_depths]
        ranks = np.array(self.ranks, np.int64)
        return Evidence(self.drafter, self.phase, logprobs, ranks, self.spine_only, self.request_id)


class DraftOutcomes:
    """Open drafts by request, and the evidence that nobody has taken yet."""

    def __init__(self) -> None:
        self._open: dict[Hashable, list[_OpenDraft]] = {}
        self._emitted: list[tuple[Hashable, Sequence[int]]] = []
        self._complete: list[Evidence] = []

    def add(
        self,
        request_id: Hashable,
        drafter: str,
        phase: str,
        proposal: tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None, bool],
        *,
        is_bet: bool = True,
    ) -> None:
        """A drafter proposed (token ids, log-probabilities, spine only) for the tokens that come next.

        `is_bet` is False for a draft that was made for comparison; only a recorder treats it differently.
        """
        self._compare()
        token_ids, logprobs, spine_only = proposal
        draft = _OpenDraft(drafter, phase, token_ids.tolist(), logprobs, spine_only, request_id)
        self._open.setdefault(request_id, []).append(draft)

    def feed(self, request_id: Hashable, tokens: Sequence[int]) -> None:
        """These tokens were emitted."""
        if self._open.get(request_id):
            self._emitted.append((request_id, tokens))

    def close(self, request_id: Hashable) -> None:
        """Complete the drafts of a request that has ended or whose next tokens are forced."""
        self._compare()
        drafts = self._open.pop(request_id, [])
        self._complete += [draft.evidence() for draft in drafts if draft.ranks]

    def drop(self, request_id: Hashable) -> None:
        """Discard the drafts of a request that has failed: they say nothing."""
        self._compare()
        self._open.pop(request_id, None)

    def take_complete(self) -> list[Evidence]:
        """The evidence that became complete since the last call."""
        self._compare()
        found, self._complete = self._complete, []
        return found

    def _compare(self) -> None:
        for request_id, tokens in self._emitted:
            for token in tokens:
                still_open = []
                for draft in self._open.get(request_id, ()):
                    if draft.feed(token):
                        self._complete.append(draft.evidence())
                    else:
                        still_open.append(draft)
                self._open[request_id] = still_open
        self._emitted.clear()
