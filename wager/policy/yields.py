"""What drafts yield: expected tokens by number of verified nodes, W(n), per drafter and request.

Yields are gross: they contain no prices, so what one batch size teaches holds for every other. Drafts differ
in confidence, and a bet that sees its draft profits from that. So drafts are sorted into classes by the
expected tokens of their first guesses; each class has a mean curve W(n), which all requests share, and each
request has its own class frequencies, which start from the common ones. A drafter without probabilities has
a single class, whose curve follows from how far its guesses survived. It knows no costs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from wager.policy.base import Draft, Evidence, FloatArray, Row
from wager.policy.calibration import Calibrator
from wager.policy.survival import Survival, chain_curve
from wager.tree import Forest, build_forest

CURVE_NODES = 64
"""Nodes of one row that a curve covers; deeper into a draft there is next to nothing to gain."""
HEAD_DEPTHS = 4
"""Guesses whose expected tokens give a draft its class; every draft, however short, shows about as many."""
CLASS_EDGES = (0.15, 0.35, 0.6, 1.0, 1.5, 2.2, 3.0)
"""Expected tokens of the head between two classes; they are closer where the decision to bet is."""
NUM_CLASSES = len(CLASS_EDGES) + 1
PRIOR_WEIGHT = 4.0
"""Drafts of all classes alike that a new drafter is taken to have made, so that it is tried a few times."""
PRIOR_FADE = 0.85
"""Share of the prior that each draft leaves."""
COMMON_MEMORY = 150.0
"""Steps that the common frequencies remember, and drafts that the curve of a class remembers."""
OWN_MEMORY = 64.0
"""Steps that a request remembers, drafted or not: its text changes, and then it is as the others are."""
OWN_FADE = 1.0 - 1.0 / OWN_MEMORY
COMMON_WEIGHT = 4.0
"""Drafts of its own after which a request's frequencies count as much as the common ones."""
YOUNG_STEPS = 8
"""Steps of an answer whose drafts are learned apart: a drafter has to find its way into a text."""
SHIFTED_WEIGHT = 3.0
"""Drafts that the past counts for after the calibration has found that a drafter changed."""
LEARNED_CURVES = 8
"""Drafts of one step whose whole curves are learned; building them takes host time."""

_EDGES = np.array(CLASS_EDGES)
_Key = tuple[str, str]


class Group(NamedTuple):
    """Rows whose drafts come from one drafter in one phase, and the yield to expect of them."""

    places: list[int]
    """Places of the rows in their step."""
    frequencies: FloatArray
    """[rows, classes], each row summing to 1."""
    curves: FloatArray
    """[rows or 1, classes, CURVE_NODES]: W(n) of each class, from one node on; 1 if it is common to all."""


@dataclass
class _Line:
    """One drafter in one phase of the text."""

    calibrator: Calibrator
    counts: FloatArray = field(default_factory=lambda: np.zeros((2, NUM_CLASSES)))
    """[young, classes]: faded number of drafts, apart for the first steps of an answer."""
    curves: dict[int, FloatArray] = field(default_factory=dict)
    """Mean W(n) by depth limit (0: whole drafts): [classes, CURVE_NODES]."""
    prior: FloatArray = field(default_factory=lambda: np.full(2, PRIOR_WEIGHT))
    """[young]: what is left of the prior, in drafts of all classes alike."""
    samples: FloatArray = field(default_factory=lambda: np.zeros(NUM_CLASSES))
    """Curves learned by class."""
    num_depths: int = 0
    """Depth of a whole draft; 0 before the first."""

    def copy(self) -> _Line:
        """A line of a new phase: as good as a few drafts."""
        curves = {depth: curve.copy() for depth, curve in self.curves.items()}
        counts, samples = _shrunk(self.counts, COMMON_WEIGHT), np.minimum(self.samples, COMMON_WEIGHT)
        return _Line(self.calibrator.copy(), counts, curves, self.prior.copy(), samples, self.num_depths)


@dataclass
class _Own:
    """One request."""

    counts: dict[_Key, FloatArray] = field(default_factory=dict)
    """[classes]: faded number of its drafts."""
    steps: int = 0
    survival: Survival = field(default_factory=Survival)


_NEW = _Own()


class Yields:
    """Curves by drafter and phase, and class frequencies of every request."""

    def __init__(self, survival: Survival) -> None:
        """`survival` holds how far guesses survived over all requests; its owner feeds it."""
        self._survival = survival
        self._lines: dict[_Key, _Line] = {}
        self._own: dict[Hashable, _Own] = {}

    # -- before a draft

    def groups(self, rows: Sequence[Row], places: Sequence[int], drafter: str) -> list[tuple[_Key, Group]]:
        """The yields of whole drafts for the rows at these places, by phase."""
        by_key: dict[_Key, list[int]] = {}
        for i in places:
            by_key.setdefault((drafter, rows[i].phase_of(drafter)), []).append(i)
        found = list[tuple[_Key, Group]]()
        for key, own in by_key.items():
            line, ids = self._line(key), [rows[i].request_id for i in own]
            if line.num_depths:
                found.append((key, Group(own, self._frequencies(key, line, ids), line.curves[0][None])))
            else:
                rates = np.array(self._rates(key, CURVE_NODES, ids))
                found.append((key, Group(own, np.ones((len(own), 1)), chain_curve(rates)[:, None])))
        return found

    def at_depth(self, key: _Key, group: Group, depth: int) -> Group:
        """The same rows with shorter drafts."""
        curves = self._line(key).curves.get(depth)
        return group if curves is None else group._replace(curves=curves[None])

    def mean_curve(self, row: Row, drafter: str) -> FloatArray:
        """W(n) of a whole draft over all classes, for a bet that does not read its draft."""
        ((_, group),) = self.groups([row], [0], drafter)
        return np.asarray(group.frequencies[0] @ group.curves[0])

    def _frequencies(self, key: _Key, line: _Line, ids: Sequence[Hashable]) -> FloatArray:
        """How often the drafts of these requests are of each class."""
        common = _shrunk(line.counts + line.prior[:, None] / NUM_CLASSES, COMMON_WEIGHT)
        own = [self._own.get(request_id, _NEW) for request_id in ids]
        counts = [common[int(one.steps < YOUNG_STEPS)] + one.counts.get(key, 0.0) for one in own]
        found = np.array(counts)
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def _rates(self, key: _Key, num_depths: int, ids: Sequence[Hashable]) -> list[FloatArray]:
        """How probably each guess of these requests survives; for a drafter without probabilities."""
        rates = self._survival.rates(num_depths, key)
        return [self._own.get(request_id, _NEW).survival.among(rates, key) for request_id in ids]

    def depths(self, drafter: str, phase: str) -> tuple[int, ...]:
        """Depths worth considering besides the whole draft: half of it and a quarter."""
        return options(self._line((drafter, phase)).num_depths)

    def calibrator_of(self, row: Row, draft: Draft) -> Calibrator | None:
        """The calibration of such drafts; None where none with probabilities was seen."""
        line = self._line((draft.drafter, row.phase_of(draft.drafter)))
        return line.calibrator if line.num_depths else None

    def calibration(self, row: Row, drafter: str) -> Calibrator | None:
        """The calibration of a drafter whose order of candidates is that of their probabilities."""
        line = self._line((drafter, row.phase_of(drafter)))
        return line.calibrator if line.num_depths and line.calibrator.keeps_order else None

    def num_steps(self, request_id: Hashable) -> int:
        """Steps that the request has taken."""
        return self._own.get(request_id, _NEW).steps

    # -- after a draft

    def log_acceptance(self, row: Row, draft: Draft) -> FloatArray:
        """Log-probability of each candidate [depths, ranks] to be accepted, given that it is reached."""
        key = (draft.drafter, row.phase_of(draft.drafter))
        if draft.logprobs is not None:
            return self._line(key).calibrator.log_acceptance(draft.logprobs)
        (rates,) = self._rates(key, draft.num_depths, [row.request_id])
        return np.log(np.clip(rates, 1e-6, 1.0 - 1e-6))[:, None]

    def step(self, request_id: Hashable, num_steps: int = 1) -> None:
        """The request took steps: what it has shown is that much older."""
        own = self._of(request_id)
        own.steps += num_steps
        for counts in own.counts.values():
            counts *= OWN_FADE**num_steps

    def learn_draft(self, row: Row, draft: Draft, num_drafts: int, *, with_curve: bool) -> None:
        """One of the drafts of a step was seen; `with_curve` spends the time to learn its whole curve."""
        if draft.logprobs is None or row.max_depth < draft.num_depths:
            return  # A row near its end shows less than a whole draft.
        key = (draft.drafter, row.phase_of(draft.drafter))
        line = self._line(key, keep=True)
        log_acceptance = line.calibrator.log_acceptance(draft.logprobs)
        head = np.exp(log_acceptance[:HEAD_DEPTHS, 0].cumsum()).sum()
        place = int(np.searchsorted(_EDGES, head))
        own = self._of(row.request_id)
        own.counts.setdefault(key, np.zeros(NUM_CLASSES))[place] += 1.0
        young = int(own.steps < YOUNG_STEPS)
        common = line.counts[young]
        line.prior[young] *= PRIOR_FADE
        common *= 1.0 - 1.0 / (COMMON_MEMORY * num_drafts)
        common[place] += 1.0
        if with_curve or not line.num_depths:
            self._learn_curve(line, place, draft, log_acceptance)

    def _learn_curve(self, line: _Line, place: int, draft: Draft, log_acceptance: FloatArray) -> None:
        forest = build_forest(
            log_acceptance[None], CURVE_NODES, spine_only=[True] if draft.spine_only else None
        )
        whole = draft.num_depths
        if whole > line.num_depths:
            line.num_depths = whole
            line.curves = {
                depth: np.tile(curve_of(forest, depth or whole), (NUM_CLASSES, 1))
                for depth in (0, *options(whole))
            }
            line.samples[:] = 0.0
            scale = (np.array([0.0, *CLASS_EDGES]) + np.array([*CLASS_EDGES, 4.0])) / 2.0
            head = max(float(np.exp(log_acceptance[:HEAD_DEPTHS, 0].cumsum()).sum()), 1e-3)
            for curves in line.curves.values():
                curves *= (scale / head)[:, None]
        line.samples[place] = min(line.samples[place] + 1.0, COMMON_MEMORY)
        rate, delta = 1.0 / line.samples[place], np.zeros(CURVE_NODES)
        for depth in sorted(line.curves, key=lambda depth: depth or line.num_depths):
            curves = line.curves[depth]
            # What a short draft does not show of deeper ones is taken to move with what it shows.
            if (depth or line.num_depths) <= whole:
                delta = curve_of(forest, depth or line.num_depths) - curves[place]
            curves[place] += rate * delta

    def learn_evidence(self, item: Evidence) -> float:
        """A draft was compared with the text: move its calibration, or the survival of wordless guesses.

        Returns by how many standard deviations more guesses were right than expected.
        """
        key = (item.drafter, item.phase)
        if item.request_id is not None:
            ranks = item.ranks.tolist()
            stood = next((place for place, rank in enumerate(ranks) if rank != 0), len(ranks))
            self._of(item.request_id).survival.observe(stood, len(ranks), key)
        line = self._line(key, keep=True)
        surprise = line.calibrator.learn(item)
        if surprise.shifted:
            own = [own.counts[key] for own in self._own.values() if key in own.counts]
            for counts in [*line.counts, *own]:
                counts[:] = _shrunk(counts, SHIFTED_WEIGHT)
        return surprise.deviation

    def forget(self, request_id: Hashable) -> None:
        self._own.pop(request_id, None)

    def _of(self, request_id: Hashable) -> _Own:
        return self._own.setdefault(request_id, _Own())

    def _line(self, key: _Key, *, keep: bool = False) -> _Line:
        """The line of a drafter in a phase; one that nothing was learned of is kept only by who learns."""
        line = self._lines.get(key)
        if line is None:
            kin = next((known for (name, _), known in self._lines.items() if name == key[0]), None)
            line = _Line(Calibrator()) if kin is None else kin.copy()
            if keep:
                self._lines[key] = line
        return line


def _shrunk(counts: FloatArray, weight: float) -> FloatArray:
    """The same frequencies with at most this weight."""
    return np.asarray(counts * (weight / np.maximum(counts.sum(axis=-1, keepdims=True), weight)))


def options(full: int) -> tuple[int, ...]:
    """Half and a quarter of a whole draft, rounded up; nothing below two guesses."""
    return tuple(depth for depth in (-(-full // 2), -(-full // 4)) if 2 <= depth < full)


def curve_of(forest: Forest, depth: int) -> FloatArray:
    """[CURVE_NODES]: expected tokens of the best n nodes no deeper than `depth`."""
    probs = forest.path_probs
    if depth < int(forest.depth.max(initial=0)):
        probs = probs[forest.depth <= depth]
    curve = np.full(CURVE_NODES, float(probs.sum()))
    curve[: len(probs)] = probs.cumsum()
    return curve
