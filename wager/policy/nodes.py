"""The nodes of drafts, best first: each candidate as probable as such ones have turned out to be.

What a drafter says of its guesses is corrected by its calibration; guesses without a word of their own are as
likely to stand as others of their kind were. Called by `auto` when drafts are there; knows no costs but the
prices it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wager.policy.allocation import evened
from wager.policy.auto_step import Room, Weighed
from wager.policy.base import UNLIMITED, Draft, FloatArray, Row, limits_of, stack_scores
from wager.policy.experience import Experience
from wager.policy.known import Known
from wager.policy.survival import as_chain
from wager.tree import Forest, build_forest, one_tree


class Nodes:
    """Reads what is known of drafters; keeps nothing of its own."""

    def __init__(self, experience: Experience, known: Known, max_nodes: int) -> None:
        """max_nodes: most of one row among several."""
        self._experience, self._known, self._max_nodes = experience, known, max_nodes

    def weigh(self, rows: Sequence[Row], drafts: Sequence[Draft | None], room: Room) -> Weighed:
        """All nodes that there is room for, in the order in which they are taken."""
        forest = self.best(rows, drafts, room.places)
        if len(rows) == 1:
            worth = counted = forest.path_probs.cumsum()
        else:
            forest, amounts = evened(forest)
            worth, counted = forest.path_probs.cumsum(), amounts.cumsum()
        return Weighed(forest, worth, counted - room.prices[: len(counted)])

    def best(self, rows: Sequence[Row], drafts: Sequence[Draft | None], places: int) -> Forest:
        """As many nodes as there are places for, best first."""
        alone = len(rows) == 1
        if alone and drafts[0] is not None:
            row, draft = rows[0], drafts[0]
            calibrator = self._known.line(draft.drafter, row.phase_of(draft.drafter)).calibrator
            is_free = row.max_depth >= draft.num_depths and not draft.spine_only
            if is_free and draft.logprobs is not None and calibrator.keeps_order:
                return one_tree(calibrator.costs(draft.logprobs), places)
        # Of one row the places are its cap.
        limits = limits_of(rows, drafts, UNLIMITED if alone else self._max_nodes)
        return build_forest(
            self._scores(rows, drafts),
            places,
            row_caps=None if alone else limits.row_caps,
            max_depths=limits.max_depths,
            spine_only=limits.spine_only,
        )

    def chain_worth(self, row: Row, draft: Draft) -> FloatArray:
        """What each number of guesses of a draft without probabilities is worth in tokens, from one on."""
        return np.asarray(np.exp(self._increments(row, draft)[:, 0].cumsum()).cumsum())

    def _scores(self, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> FloatArray:
        """[rows, depths, ranks]: log-probabilities of all candidates, as they have turned out to be."""
        made = [(i, draft) for i, draft in enumerate(drafts) if draft is not None]
        kinds = {(draft.drafter, rows[i].phase_of(draft.drafter)) for i, draft in made}
        logprobs = [draft.logprobs for _, draft in made if draft.logprobs is not None]
        same = len(kinds) == 1 and len(logprobs) == len(made) and len({one.shape for one in logprobs}) == 1
        if not same:
            return stack_scores(drafts, lambda i, draft: self._increments(rows[i], draft))
        scores = np.full((len(rows), *logprobs[0].shape), -np.inf)
        calibrator = self._known.line(*kinds.pop()).calibrator
        scores[[i for i, _ in made]] = calibrator.log_acceptance(np.array(logprobs))  # in one go
        return scores

    def _increments(self, row: Row, draft: Draft) -> FloatArray:
        key = (draft.drafter, row.phase_of(draft.drafter))
        if draft.logprobs is None:
            others = self._experience.survival.rates(draft.num_depths, key)
            return as_chain(self._known.survival(row).among(others, key))
        return self._known.line(*key).calibrator.log_acceptance(draft.logprobs)
