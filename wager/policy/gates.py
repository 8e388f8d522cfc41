"""Gates that stand in front of any policy and say whether it may bet at all.

`ema`: the commit-EMA gate. Speed against plain decoding (live plain cost) as a half-half average; three steps
below par close it, and backed-off probes open it again. `entropy`: the target's own certainty; one very
unsure token, or two steps of a sagging average, close it for the rest of the request.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from wager.errors import ConfigError
from wager.policy.base import (
    PLAIN,
    Blind,
    Coming,
    Draft,
    Inquiry,
    MultiStep,
    Plan,
    Policy,
    Row,
    StepOutcome,
)
from wager.policy.experience import Experience, shape_of_rows
from wager.tree import Forest, build_forest

LONGEST_INTERVAL = 48
"""Steps between two trials at most."""


class Backoff:
    """Intervals between trials of what does not pay: they double with each loss and end with a win."""

    def __init__(self, longest: int = LONGEST_INTERVAL) -> None:
        self.longest = longest
        self.interval = 1
        self.waited = 0

    @property
    def is_due(self) -> bool:
        """Whether the next step is a trial."""
        return self.waited + 1 >= self.interval

    def wait(self) -> None:
        """A step went by without a trial."""
        self.waited += 1

    def result(self, *, won: bool) -> None:
        """A trial was made."""
        self.waited = 0
        self.interval = 1 if won else min(self.interval * 2, self.longest)


class EmaSettings(NamedTuple):
    """When the ema gate closes: below this speed against plain decoding, for so many steps."""

    margin: float = 1.0
    patience: int = 3


class EntropySettings(NamedTuple):
    """When the entropy gate closes: one token less sure than `unsure`, or an average below `sagging`."""

    unsure: float = 0.45
    sagging: float = 0.90
    patience: int = 2


class _Gate:
    """What both gates share: the inner policy answers unless the gate says no."""

    kind = ""

    def __init__(self, inner: Policy, experience: Experience) -> None:
        self.inner = inner
        self.experience = experience
        self.name = f"{self.kind}+{inner.name}"

    def inquire(self, coming: Coming) -> Inquiry:
        return self.inner.inquire(coming)

    def plan(self, rows: Sequence[Row]) -> Plan:
        plan = self.inner.plan(rows)
        admitted = self.admits(rows)
        offers = [offer if ok else PLAIN for offer, ok in zip(plan.offers, admitted, strict=True)]
        return plan._replace(offers=tuple(offers))

    def admits(self, rows: Sequence[Row]) -> list[bool]:
        """Whether each row may draft now. Changes nothing."""
        raise NotImplementedError

    def blind_bet(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Blind | None:
        return self.inner.blind_bet(plan, rows, drafts)

    def arrange(self, plan: Plan, rows: Sequence[Row], drafts: Sequence[Draft | None]) -> Forest:
        if all(draft is None for draft in drafts):
            return build_forest(np.empty((len(rows), 0, 0)), 0)
        return self.inner.arrange(plan, rows, drafts)

    def multi_step(self, plan: Plan, rows: Sequence[Row]) -> MultiStep | None:
        """A gate looks at every step."""
        return None

    def learn(self, *outcomes: StepOutcome) -> None:
        self.inner.learn(*outcomes)
        for outcome in outcomes:
            self._look(outcome)

    def _look(self, outcome: StepOutcome) -> None:
        """Take in what a step says about the gate."""
        raise NotImplementedError

    def forget(self, request_id: Hashable) -> None:
        self.inner.forget(request_id)


class EmaGate(_Gate):
    """Closes when speculation has not been faster than plain decoding lately."""

    kind = "ema"
    warm_up = 2

    def __init__(self, inner: Policy, experience: Experience, settings: EmaSettings | None = None) -> None:
        super().__init__(inner, experience)
        self.margin, self.patience = settings or EmaSettings()
        self.ratio = 2.0
        self.open = True
        self._steps = 0
        self._below = 0
        self._trials = Backoff()

    def admits(self, rows: Sequence[Row]) -> list[bool]:
        return [self.open or self._trials.is_due] * len(rows)

    def _look(self, outcome: StepOutcome) -> None:
        drafted = any(share.offer.drafter is not None for share in outcome.rows)
        rows = [share.row for share in outcome.rows]
        if not drafted and not self.open:
            self._trials.wait()
        if not drafted or not all(row.emits for row in rows):
            return
        plain_ms = self.experience.costs.plain_ms(*shape_of_rows(rows))
        emitted = sum(share.accepted + 1 for share in outcome.rows) / len(rows)
        # A stall must not flip the verdict: no step counts as worse than a quarter of plain speed.
        ratio = max(emitted * plain_ms / (outcome.verify_ms + outcome.draft_ms), 0.25)
        self.ratio = 0.5 * self.ratio + 0.5 * ratio
        self._steps += 1
        if self.open:
            self._below = self._below + 1 if self.ratio < self.margin and self._steps > self.warm_up else 0
            self.open = self._below < self.patience
            return
        self._trials.result(won=ratio >= self.margin)
        if ratio >= self.margin:
            # One good probe opens for a trial: the average starts just above par, so it must prove itself.
            self.open, self._below, self.ratio = True, 0, max(ratio, self.margin)


class EntropyGate(_Gate):
    """Closes for the rest of a request once its target is unsure of its own next token."""

    kind = "entropy"

    def __init__(
        self, inner: Policy, experience: Experience, settings: EntropySettings | None = None
    ) -> None:
        super().__init__(inner, experience)
        self.unsure, self.sagging, self.patience = settings or EntropySettings()
        self._average: dict[Hashable, float] = {}
        self._below: dict[Hashable, int] = {}
        self._closed: set[Hashable] = set()

    def admits(self, rows: Sequence[Row]) -> list[bool]:
        return [row.request_id not in self._closed and not self._closes(row) for row in rows]

    def _next(self, row: Row) -> tuple[float, int]:
        """The certainty average with this row's latest token, and for how many steps it has been low."""
        if row.target_p1 is None:
            raise ConfigError("policy", self.name, "a source of the target's top-1 probability (target_p1)")
        average = 0.5 * self._average.get(row.request_id, 1.0) + 0.5 * row.target_p1
        return average, self._below.get(row.request_id, 0) + 1 if average < self.sagging else 0

    def _closes(self, row: Row) -> bool:
        _, below = self._next(row)
        assert row.target_p1 is not None
        return row.target_p1 < self.unsure or below >= self.patience

    def _look(self, outcome: StepOutcome) -> None:
        for share in outcome.rows:
            row, key = share.row, share.row.request_id
            if row.target_p1 is None:
                continue  # planned by a policy that did not need it
            if self._closes(row):
                self._closed.add(key)
            self._average[key], self._below[key] = self._next(row)

    def forget(self, request_id: Hashable) -> None:
        super().forget(request_id)
        self._average.pop(request_id, None)
        self._below.pop(request_id, None)
        self._closed.discard(request_id)
