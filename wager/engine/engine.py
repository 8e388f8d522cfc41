"""The engine: requests in, events out, one step at a time.

Holds the parts (scheduler, target, drafters, policy controller) and does what the stages of step.py ask of
them. Not thread-safe: one thread owns it; the server's bridge hands requests over. A failing drafter costs
its rows their bets, a failing target the requests of that step, never the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path

from wager.config import EngineConfig
from wager.draft.base import Drafter
from wager.engine.ahead import Ahead
from wager.engine.drafting import Drafting
from wager.engine.events import Event, event_since, note_choices
from wager.engine.hindsight import Hindsight
from wager.engine.rows import NO_TREE, StepRow, permitted_tree
from wager.engine.scheduler import Hooks, Planned, Scheduler
from wager.engine.sequence import Finish, Request, Sequence
from wager.engine.step import run_step
from wager.engine.supposed import Supposed
from wager.engine.telemetry import Telemetry
from wager.engine.unseen import SightUnseen
from wager.errors import OutOfPages, RequestError, one_line
from wager.nn.noise import NoiseSource
from wager.policy import Coming, Controller, CostModel, Row, StepOutcome, needs_target_p1
from wager.records import CloseKind, SamplingParams, Verdict
from wager.target import Choices, Sampler, TargetRunner, is_bare
from wager.text.detokenize import Detokenizer
from wager.text.grammar import Grammars
from wager.text.stops import StopFinder
from wager.text.tokenizer import Tokenizer
from wager.tree import Tree, derive_seed

__all__ = ["Engine", "Event", "Parts", "Sequence"]

log = logging.getLogger("wager.engine")


@dataclass
class Parts:
    """What an engine is made of; assemble.py builds it from a config."""

    runner: TargetRunner
    tokenizer: Tokenizer | None
    drafters: dict[str, Drafter]
    controller: Controller
    scheduler: Scheduler
    noise: NoiseSource
    max_context: int
    end_ids: tuple[int, ...] = ()
    seed: int = 0
    folder: Path = Path()
    """Where the target was loaded from."""
    notes: dict[str, object] = field(default_factory=dict)
    """Effective values and where they came from, for doctor and banners."""
    when_idle: Callable[[Engine], None] | None = None
    """Called before a request is taken while nothing runs."""
    settle: Callable[[Engine, Callable[[str], None]], None] | None = None
    """Waits for what is prepared in the background."""
    make_costs: Callable[[], CostModel] = CostModel
    """A new cost model, with all that is known of passes before any is run."""
    spare_time: Callable[[], bool] | None = None
    """Does a little of what can wait, while nothing runs; True while there is more of it."""


class Engine:
    """Runs requests."""

    @classmethod
    def from_config(cls, config: EngineConfig, seed: int = 0) -> Engine:
        """Load everything a config names. Raises ModelError and its kin, one line each."""
        from wager.engine.assemble import build_engine

        return build_engine(config, seed)

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.runner = parts.runner
        self.drafters = parts.drafters
        self.controller = parts.controller
        self.scheduler = parts.scheduler
        self.sampler = Sampler(parts.noise, by_kernels=parts.runner.has_kernels)
        self.hindsight = Hindsight()
        self.grammars = Grammars(parts.tokenizer, parts.runner.vocab_size, parts.end_ids)
        self.telemetry = Telemetry()
        self.runner.feature_layers = _features(parts.drafters)
        self.scheduler.hooks = self._hooks()
        self.ahead = Ahead(self)
        self.unseen = SightUnseen(self)
        self.supposed = Supposed(self)
        self.drafting = Drafting(self)
        self._events: list[Event] = []
        self._ended: list[tuple[Sequence, Event]] = []
        self._arrivals = 0
        self.unlearned: StepOutcome | None = None
        """The step before, where what it taught waits until the device is at work again."""
        self.learn_ms = 0.0
        """What learning took in the latest step: it is told to the next, which waited for it."""

    # -- from outside

    def add(
        self, request_id: Hashable, prompt_ids: Many[int], params: SamplingParams, client: str = ""
    ) -> Sequence:
        """Queue a request. Raises RequestError or CapacityError when it can never run."""
        if self.scheduler.find(request_id) is not None:
            raise RequestError(f"{request_id!r} is already running", field="request_id")
        self._check_prompt(prompt_ids)
        self._check_ids("logit_bias", params.logit_bias or ())
        self._check_ids("stop_token_ids", params.stop_token_ids)
        if params.thinking is not None:
            self._check_ids("thinking", params.thinking.mark_ids)
        seed = derive_seed(self.parts.seed, self._arrivals + 1) if params.seed is None else params.seed
        end_ids = () if params.ignore_eos else self.parts.end_ids
        request = Request(
            request_id, tuple(prompt_ids), params, seed, client, (*end_ids, *params.stop_token_ids)
        )
        tokenizer = self.parts.tokenizer
        sequence = Sequence(
            request,
            max_len=min(len(prompt_ids) + params.max_tokens, self.parts.max_context),
            arrival=self._arrivals,
            detokenizer=None
            if tokenizer is None
            else Detokenizer(tokenizer, after=prompt_ids, shown_ids=params.shown_ids),
            stops=StopFinder(params.stop) if params.stop and tokenizer is not None else None,
            bare=is_bare(params),
            constraint=self.grammars.begin(params),
        )
        if self.parts.when_idle is not None and not self.scheduler.has_work:
            self.parts.when_idle(self)
        self.scheduler.add(sequence)
        self._arrivals += 1
        if sequence.thinking is not None and sequence.thinking.is_due:
            self._close_at_once(sequence)
        return sequence

    def abort(self, request_id: Hashable) -> bool:
        """End a request now; its pages are free before the next step. False where it is not running."""
        sequence = self.scheduler.find(request_id)
        if sequence is None:
            return False
        self.catch_up()
        self.end(sequence, Finish.ABORT)
        self.close_ended()
        return True

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._events)

    def set_policy(self, name: str) -> None:
        """Change the policy from the next step on; what was learned about costs stays."""
        self.catch_up()
        self.controller.set_policy(name)

    def record_trace(
        self, asked: Many[tuple[Many[int], SamplingParams]], path: Path, kind: str = "text"
    ) -> None:
        """Run (prompt ids, params) plainly; write what the first drafter offers on the way (shadow.py)."""
        from wager.engine.shadow import Asked, record_trace

        record_trace(self, [Asked(*one) for one in asked], path, kind)

    def settle(self, tell: Callable[[str], None] = log.info) -> None:
        """Wait until passes are what they will stay; `tell` hears why it takes long. For benchmarks alone."""
        assert not self.scheduler.has_work
        if self.parts.settle is not None:
            self.parts.settle(self, tell)

    def use_spare_time(self) -> bool:
        """Nothing runs: do a little of what can wait, a pass at most. True while there is more of it."""
        spare_time = self.parts.spare_time
        return spare_time is not None and not self.has_work and spare_time()

    def step(self) -> list[Event]:
        """Run one step and return what it gave. A target that fails ends the requests of this step."""
        try:
            report = run_step(self) if self.scheduler.has_work else None
        except Exception as error:
            log.exception("step failed")
            self._fail_running(error)
            report = None
        if report is not None:
            self.telemetry.record(report)
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Integrity of the page accounts; raises PageError. Cheap enough for whenever the engine is idle."""
        memory = self.scheduler.memory
        holders = [sequence.pages for sequence in self.scheduler.running]
        if memory.index is not None:
            memory.index.check()
            holders.append(memory.index.pages())
        memory.allocator.check(holders)

    # -- asked by the stages

    @property
    def wants_p1(self) -> bool:
        return needs_target_p1(self.controller.policy.name)

    def observe(self, planned: Many[Planned]) -> list[StepRow]:
        """The rows as the policy may see them."""
        num_tokens = sum([row.num_tokens for row in planned])
        left = max([row.sequence.max_depth for row in planned], default=0)
        coming = Coming(len(planned), num_tokens, left)
        policy = self.controller.policy
        resting = self.ahead.has_begun or policy.rests(coming)
        enough = [] if resting else [name for name in self.drafters if policy.suffices(name, coming)]
        return [self._observe_row(row, len(planned), resting, enough) for row in planned]

    def _observe_row(self, planned: Planned, num_rows: int, resting: bool, enough: list[str]) -> StepRow:
        sequence, num_tokens = planned
        whole = planned.is_whole
        max_depth = sequence.max_depth if whole else 0
        asks = not resting if sequence.nodes is None else sequence.nodes > 0
        able = self.drafting.able(planned, enough) if asks and max_depth > 0 else {}
        view = Row(
            sequence.request_id,
            sequence.num_cached,
            sequence.phase,
            num_tokens,
            max_nodes=min(self.scheduler.room(planned, num_rows), self.runner.max_nodes) if able else 0,
            max_depth=max_depth,
            target_p1=1.0 if sequence.target_p1 is None else sequence.target_p1,
            drafters=tuple(able),
            grades=tuple(able.values()) if any(able.values()) else (),
            emits=whole,
            nodes=sequence.nodes or 0,
        )
        return StepRow(sequence, num_tokens, whole, view, NO_TREE)

    def fit_tree(self, row: StepRow, tree: Tree) -> Tree:
        """Pages for the nodes that its grammar permits; where there are too few, the least likely go."""
        sequence = row.sequence
        tree = permitted_tree(sequence, tree)
        base = sequence.num_cached + row.num_tokens
        try:
            self.scheduler.grow(sequence, base + tree.num_nodes)
        except OutOfPages:
            room = len(sequence.pages) * self.scheduler.memory.allocator.page_size - base
            return tree.prefix(max(room, 0))
        return tree

    def deliver(self, row: StepRow, verdict: Verdict, choices: Choices, start: int) -> None:
        """Append a verdict's tokens to their sequence and tell the caller."""
        sequence, num_nodes = row.sequence, row.tree.num_nodes
        if sequence.constraint is not None and sequence.constraint.problem is not None:
            self.end(sequence, Finish.ERROR, f"the grammar: {sequence.constraint.problem}")
            return
        num_text, num_tokens = len(sequence.text), len(sequence.tokens)
        bonus = None if row.close is CloseKind.SOFT else verdict.target_token
        emitted = row.emitted = sequence.append(verdict.accepted, bonus)
        sequence.stats.record(min(len(verdict.accepted), emitted), num_nodes, emitted=emitted)
        if choices.logprobs or choices.top_p1:
            note_choices(sequence, emitted, choices, [start, *[start + 1 + node for node in verdict.path]])
        self.scheduler.serve(sequence, emitted)
        self.hindsight.feed(sequence.request_id, sequence.tokens[num_tokens:])
        if row.close is not None and sequence.finish is None:
            self.hindsight.close(sequence.request_id)  # what is forced says nothing of a draft
            sequence.force(row.close)
        event = event_since(sequence, num_tokens, num_text, row)
        if sequence.finish is not None:
            self.hindsight.close(sequence.request_id)
            self._ended.append((sequence, event))
            self.scheduler.finish(sequence)
            return
        if sequence.stats.steps == 1:
            self.scheduler.share(sequence)  # the prompt is in the cache: others may start from it
        self._events.append(event)

    def may_learn_late(self, outcome: StepOutcome) -> bool:
        """Whether learning can wait until the next pass runs: a device drafts, and nobody has ended."""
        controller = self.controller
        if not self.runner.has_kernels or not controller.policy.learns_late or self._ended:
            return False
        drafted = any(share.offer.drafter is not None for share in outcome.rows)
        return drafted and controller.on_decision is None

    def meanwhile(self, rows: list[StepRow]) -> None:
        """The pass of these rows runs: what need not be done before it, and what can be for the next."""
        self.catch_up()
        self.drafting.watch(rows)
        self.supposed.lay(rows)

    def catch_up(self) -> None:
        """Learn what the step before taught, if that has waited."""
        outcome, self.unlearned = self.unlearned, None
        if outcome is not None:
            self.learn(outcome)

    def learn(self, outcome: StepOutcome) -> None:
        """Let costs, ledger and policy take in a step, and what has become known of drafts by now."""
        evidence = self.hindsight.ripe()
        self.controller.learn(outcome._replace(evidence=evidence) if evidence else outcome)

    def end(self, sequence: Sequence, finish: Finish, error: str | None = None) -> None:
        """End a sequence from outside its text: an abort or a failure."""
        if finish is Finish.ERROR:
            self.telemetry.failed_requests += 1
        num_sent = len(sequence.text)
        sequence.end(finish, error)
        self.hindsight.drop(sequence.request_id)
        self._ended.append((sequence, Event(sequence.request_id, text=sequence.text[num_sent:])))
        self.scheduler.finish(sequence)

    def close_ended(self) -> None:
        """The terminal event of every sequence that ended, with its account: the last word on a request."""
        for sequence, event in self._ended:
            account = self.controller.forget(sequence.request_id)
            sequence.stats.time_s = account.elapsed_ms / 1e3
            sequence.stats.plain_time_s = account.plain_ms / 1e3
            finish, error = sequence.finish, sequence.error
            event = event._replace(finish=finish, error=error, sequence=sequence, account=account)
            self._events.append(event)
        self._ended.clear()

    # -- own affairs

    def _close_at_once(self, sequence: Sequence) -> None:
        """Nothing may be thought and the prompt ends inside the span: its close is read with the prompt."""
        sequence.force(CloseKind.HARD)
        event = event_since(sequence, sequence.num_prompt, 0)
        if sequence.finish is None:
            self._events.append(event)
            return
        self._ended.append((sequence, event))
        self.scheduler.finish(sequence)
        self.close_ended()

    def _fail_running(self, error: Exception) -> None:
        self.ahead.drop()
        self.unseen.drop()
        self.supposed.drop()
        self.unlearned = None
        for sequence in list(self.scheduler.running):
            self.end(sequence, Finish.ERROR, f"the step failed: {one_line(error)}")
        self.close_ended()

    def _check_prompt(self, prompt_ids: Many[int]) -> None:
        if not prompt_ids:
            raise RequestError("is empty", field="prompt")
        if len(prompt_ids) >= self.parts.max_context:
            raise RequestError(
                f"has {len(prompt_ids)} tokens, and the context holds {self.parts.max_context}",
                field="prompt",
            )
        self._check_ids("prompt", prompt_ids)

    def _check_ids(self, where: str, token_ids: Iterable[int]) -> None:
        """Refuse ids the model has no score for: in the pass they would cost other requests their step."""
        vocab = self.runner.vocab_size
        bad = next((token for token in token_ids if not 0 <= token < vocab), None)
        if bad is not None:
            raise RequestError(f"has token id {bad}, outside 0..{vocab - 1}", field=where)

    def _hooks(self) -> Hooks:
        drafters = self.drafters.values()

        def adopt(sequence: Sequence) -> None:
            for drafter in drafters:
                drafter.adopt(sequence.request_id, sequence.num_cached)

        def settle(sequence: Sequence, num_tokens: int) -> bool:
            try:
                # All of them settle, whatever one of them answers.
                ready = [d.settle(sequence.request_id, sequence.pages, num_tokens) for d in drafters]
                return all(ready)
            except Exception as error:
                self.drafting.lose([sequence], error)
                return False

        def forget(sequence: Sequence) -> None:
            for drafter in drafters:
                drafter.forget(sequence.request_id)

        def relocate(source: list[int], target: list[int]) -> None:
            self.runner.pool.copy_pages(source, target)
            for drafter in drafters:
                drafter.relocate(source, target)

        needs = any(drafter.feature_layers for drafter in drafters)
        reads_runs = self.runner.pool.store.device.type == "cpu"
        return Hooks(needs, adopt, settle, forget, relocate if reads_runs else None)


def _features(drafters: dict[str, Drafter]) -> tuple[int, ...]:
    """The layers whose outputs are wanted; at most one drafter of an engine may want any."""
    wanted = [drafter.feature_layers for drafter in drafters.values() if drafter.feature_layers]
    assert len(wanted) <= 1, "two drafters want features"
    return wanted[0] if wanted else ()
