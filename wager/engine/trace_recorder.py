"""Records a trace: plain decoding in which a drafter proposes at every position and nothing is verified.

While it records, the engine has another controller and other draft outcomes, so that neither the policy nor
what it has learned changes. The trace is written in the format of wager/trace, whose replay can then try any
policy on this run. `LLM.record_trace` calls it; it knows no text and simulates nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wager.draft.base import Proposal
from wager.engine.context import EngineParts
from wager.engine.draft_outcomes import DraftOutcomes
from wager.engine.events import Event
from wager.engine.sequence import Sequence
from wager.errors import ConfigError, DrafterError, InputError, ModelError, RequestError
from wager.policy import PLAIN, Coming, Controller, Experience, Inquiry, Offer, Plan, Row
from wager.policy.simple import Plain
from wager.records import SamplingParams
from wager.trace.format import PADDING, Trace, save_traces

_KIND = re.compile(r"[\w.-]+")
_MAX_TEMPERATURE = 10.0
"""Temperatures must be below this, because a trace's names have one digit before the point (t08 is 0.8)."""


class RecordingEngine(EngineParts, Protocol):
    """The engine as the recorder uses it."""

    @property
    def has_work(self) -> bool: ...

    @property
    def model(self) -> object:
        """The name of its model, for the file."""
        ...

    def add(self, request_id: Hashable, prompt_ids: Many[int], params: SamplingParams) -> Sequence: ...

    def abort(self, request_id: Hashable) -> bool: ...

    def step(self) -> list[Event]: ...


class RecordRequest(NamedTuple):
    """A request to record."""

    prompt_ids: Many[int]
    params: SamplingParams


class Position(NamedTuple):
    """One token of the output, and what was known before it was chosen."""

    token: int
    proposal: Proposal | None
    """None where the drafter had no proposal."""
    target_p1: float


def record_trace(engine: RecordingEngine, asked: Many[RecordRequest], path: Path, kind: str = "text") -> None:
    """Run these requests and write what the first drafter proposed, one trace per temperature.

    Raises ConfigError where that drafter has no probabilities, RequestError or InputError on what cannot be
    recorded, DrafterError or ModelError where the run fails; nothing is written then.
    """
    drafter = _drafter_of(engine)
    if not _KIND.fullmatch(kind):
        raise InputError(f"{kind!r} is not a word of letters, digits, '.', '_' and '-'", "trace_kind")
    labels = [label_of(one.params.temperature) for one in asked]
    positions = record(engine, asked)
    by_label = {
        label: [own for own, its in zip(positions, labels, strict=True) if its == label]
        for label in dict.fromkeys(labels)
    }
    traces = [_trace(kind, label, sequences) for label, sequences in by_label.items()]
    temperatures = {label: one.params.temperature for label, one in zip(labels, asked, strict=True)}
    meta: dict[str, object] = {
        "drafter": drafter,
        "model": engine.model,
        "noised": any(value > 0 for value in temperatures.values()),
        "temperature": temperatures,
    }
    try:
        save_traces(path, traces, meta)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", "record_trace") from error


def record(engine: RecordingEngine, asked: Many[RecordRequest]) -> list[list[Position]]:
    """Run these requests to their end; the positions of each, in order. The engine must be idle."""
    if engine.has_work:
        raise RequestError("other requests are running; a recording needs the engine alone", "record_trace")
    for one in asked:
        if one.params.thinking is not None or one.params.speculation is not None:
            raise RequestError("a trace is of plain text: no limit on thinking, no bets", "record_trace")
    recorder, failures = _Recorder(), engine.telemetry.drafter_failures
    ids = [("recording", i) for i in range(len(asked))]
    with _replaced_parts(engine, recorder, _drafter_of(engine)):
        try:
            for request_id, one in zip(ids, asked, strict=True):
                engine.add(request_id, one.prompt_ids, one.params)
            _run(engine)
        finally:
            for request_id in ids:
                engine.abort(request_id)
            engine.step()  # nothing runs: this takes the terminal events of aborted requests
    if engine.telemetry.drafter_failures > failures:
        raise DrafterError("the drafter failed on the way, so its drafts are not complete")
    return [recorder.positions[request_id] for request_id in ids]


def label_of(temperature: float) -> str:
    """The temperature as a trace's names have it: t0, t08, t12. Raises ConfigError where they cannot."""
    if temperature >= _MAX_TEMPERATURE:
        raise ConfigError("temperature", temperature, f"below {_MAX_TEMPERATURE:g} in a trace")
    digits = format(Decimal(repr(temperature)), "f")
    whole, _, rest = digits.partition(".")
    return f"t{whole}{rest.rstrip('0')}"


def _drafter_of(engine: RecordingEngine) -> str:
    """The engine's first drafter; a trace holds noised log-probabilities, so it must have some."""
    name = next(iter(engine.drafters), "none")
    if name == "none" or not engine.drafters[name].uses_noise:
        raise ConfigError(
            "drafter", name, "one with probabilities of its own, from a model folder, to record"
        )
    return name


def _run(engine: RecordingEngine) -> None:
    while engine.has_work:
        for event in engine.step():
            if event.error is not None:
                raise ModelError(event.error)


class _Recorder(DraftOutcomes):
    """Replaces the engine's draft outcomes and stores every draft and token that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[Hashable, list[Position]] = {}
        self._drafts: dict[Hashable, Proposal] = {}
        self._confidence: dict[Hashable, float] = {}

    def see(self, rows: Many[Row]) -> None:
        """Store what a policy sees of these rows before the step."""
        for row in rows:
            self._confidence[row.request_id] = 1.0 if row.target_p1 is None else row.target_p1

    def add(
        self,
        request_id: Hashable,
        drafter: str,
        phase: str,
        proposal: tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None, bool],
        *,
        is_bet: bool = True,
    ) -> None:
        if is_bet:
            self._drafts[request_id] = Proposal(*proposal)

    def feed(self, request_id: Hashable, tokens: Many[int]) -> None:
        (token,) = tokens  # plain decoding emits one token per step
        draft = self._drafts.pop(request_id, None)
        found = Position(token, draft, self._confidence[request_id])
        self.positions.setdefault(request_id, []).append(found)

    def close(self, request_id: Hashable) -> None:
        self._drafts.pop(request_id, None)

    drop = close


class _AlwaysDraft(Plain):
    """Lets one drafter run wherever it can, and verifies nothing of it."""

    # The gate in the name tells the engine to measure the target's confidence, which a trace holds.
    name = "entropy+ar"

    def __init__(self, experience: Experience, recorder: _Recorder, drafter: str) -> None:
        super().__init__(experience)
        self._recorder = recorder
        self._offer = Offer(drafter)

    def inquire(self, coming: Coming) -> Inquiry:
        return Inquiry(asks=True)

    def plan(self, rows: Many[Row]) -> Plan:
        self._recorder.see(rows)
        offers = [self._offer if self._offer.drafter in row.drafters else PLAIN for row in rows]
        return Plan(tuple(offers))


@contextmanager
def _replaced_parts(engine: RecordingEngine, recorder: _Recorder, drafter: str) -> Iterator[None]:
    """Give the engine another policy, experience and draft outcomes; its own are restored at the end."""
    own = engine.controller, engine.draft_outcomes
    controller = Controller("ar", Experience())
    controller.policy = _AlwaysDraft(controller.experience, recorder, drafter)
    engine.controller, engine.draft_outcomes = controller, recorder
    try:
        yield
    finally:
        engine.controller, engine.draft_outcomes = own


def _trace(kind: str, label: str, sequences: Many[Many[Position]]) -> Trace:
    """The arrays of docs/trace-format.md. Where nothing was offered: minus infinity, and rank -1."""
    drafts = [p.proposal for positions in sequences for p in positions if p.proposal is not None]
    if not drafts:
        raise RequestError("too few to draft anything: there is nothing to record", "max_tokens")
    depths, ranks = np.max([draft.token_ids.shape for draft in drafts], axis=0)
    shape = (len(sequences), max(map(len, sequences)), int(depths))
    scores = np.full((*shape, int(ranks)), -np.inf, np.float32)
    found = np.full(shape, PADDING, np.int16)
    confidence = np.ones(shape[:2], np.float32)
    for i, positions in enumerate(sequences):
        confidence[i, : len(positions)] = [position.target_p1 for position in positions]
        found[i, : len(positions)] = -1
        tokens = np.array([position.token for position in positions])
        for start, position in enumerate(positions):
            if position.proposal is not None:
                _enter(position.proposal, tokens[start:], scores[i, start], found[i, start])
    return Trace(kind, label, scores, found, confidence, any(draft.spine_only for draft in drafts))


def _enter(
    draft: Proposal,
    tokens: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
    ranks: npt.NDArray[np.int16],
) -> None:
    """One draft into its place, set against the tokens that came; behind the end of the text none did."""
    assert draft.logprobs is not None
    depths, width = draft.token_ids.shape
    scores[:depths, :width] = np.minimum(draft.logprobs, 0.0)
    known = min(depths, len(tokens))
    hits = draft.token_ids[:known] == tokens[:known, None]
    ranks[:known] = np.where(hits.any(axis=1), hits.argmax(axis=1), -1)
