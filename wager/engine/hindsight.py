"""What became of every draft: its candidates against the tokens emitted later.

A draft says something at every depth, verified or not, once the tokens are there: they are the target's own
whatever was bet. So what another drafter would have been worth can be seen without a bet on it. A draft is
ripe when a token fell outside it, at its last depth, or when its request ends. Forced tokens end it early:
they say nothing about the drafter. Tokens are only noted when they come, since a device may be waiting, and
held against the drafts when somebody asks what is ripe. No torch, no policy: it makes the policy's evidence.
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
    token_ids: list[list[int]]
    logprobs: npt.NDArray[np.float32] | None
    spine_only: bool
    watched: Hashable | None
    ranks: list[int] = field(default_factory=list)

    def feed(self, token: int) -> bool:
        """Take the next token; True when there is nothing more to learn."""
        candidates = self.token_ids[len(self.ranks)]
        rank = candidates.index(token) if token in candidates else -1
        self.ranks.append(rank)
        dead = rank < 0 or (self.spine_only and rank > 0)
        return dead or len(self.ranks) == len(self.token_ids)

    def evidence(self) -> Evidence:
        known = len(self.ranks)
        logprobs = None if self.logprobs is None else self.logprobs[:known]
        ranks = np.array(self.ranks, np.int64)
        return Evidence(self.drafter, self.phase, logprobs, ranks, self.spine_only, self.watched)


class Hindsight:
    """Open drafts by request."""

    def __init__(self) -> None:
        self._open: dict[Hashable, list[_Open]] = {}
        self._noted: list[tuple[Hashable, Sequence[int]]] = []
        self._ripe: list[Evidence] = []

    def add(
        self,
        request_id: Hashable,
        drafter: str,
        phase: str,
        proposal: tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None, bool],
        *,
        is_bet: bool = True,
    ) -> None:
        """A drafter proposed (token ids, log-probabilities, spine only) for the tokens that come next."""
        self._compare()
        token_ids, logprobs, spine_only = proposal
        watched = None if is_bet else request_id
        draft = _Open(drafter, phase, token_ids.tolist(), logprobs, spine_only, watched)
        self._open.setdefault(request_id, []).append(draft)

    def feed(self, request_id: Hashable, tokens: Sequence[int]) -> None:
        """These tokens were emitted."""
        if self._open.get(request_id):
            self._noted.append((request_id, tokens))

    def close(self, request_id: Hashable) -> None:
        """The request has ended, or its next tokens are forced: what is known of its drafts is ripe."""
        self._compare()
        drafts = self._open.pop(request_id, [])
        self._ripe += [draft.evidence() for draft in drafts if draft.ranks]

    def drop(self, request_id: Hashable) -> None:
        """The request has failed: its drafts say nothing."""
        self._compare()
        self._open.pop(request_id, None)

    def ripe(self) -> list[Evidence]:
        """What has become known since it was asked last."""
        self._compare()
        found, self._ripe = self._ripe, []
        return found

    def _compare(self) -> None:
        for request_id, tokens in self._noted:
            for token in tokens:
                still = []
                for draft in self._open.get(request_id, ()):
                    if draft.feed(token):
                        self._ripe.append(draft.evidence())
                    else:
                        still.append(draft)
                self._open[request_id] = still
        self._noted.clear()
