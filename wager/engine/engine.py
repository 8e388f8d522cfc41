"""The engine: requests in, events out, one step at a time.

It holds the parts (scheduler, target, drafters, policy controller) that the stages of step.py use. It is not
thread-safe: one thread owns it, and the server's bridge hands requests over. A failing drafter costs its rows
their bets, a failing target the requests of that step, and neither stops the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from wager.costs import CostModel
from wager.draft.base import Drafter
from wager.engine.delivery import Delivery
from wager.engine.draft_outcomes import DraftOutcomes
from wager.engine.drafting import Drafting
from wager.engine.events import Event
from wager.engine.learning import Learning
from wager.engine.multi_step import MultiSteps
from wager.engine.pipeline import Pipeline
from wager.engine.prelaunch import Prelaunch
from wager.engine.prompt_scores import score_prompt
from wager.engine.scheduler import Hooks, Scheduler
from wager.engine.sequence import Finish, Request, Sequence
from wager.engine.step import run_step
from wager.engine.telemetry import Telemetry
from wager.errors import RequestError, one_line
from wager.nn.noise import NoiseSource
from wager.policy import Controller, needs_target_p1
from wager.records import SamplingParams, TopLogprobs
from wager.target import Sampler, TargetRunner, is_bare
from wager.text.detokenize import Detokenizer
from wager.text.grammar import Grammars
from wager.text.stops import StopFinder
from wager.text.tokenizer import Tokenizer
from wager.tree import derive_seed

__all__ = ["Engine", "Event", "Parts", "Sequence"]

log = logging.getLogger("wager.engine")


@dataclass
class Parts:
    """What an engine is built from; assemble.py makes it from a config."""

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
    """The folder from which the target was loaded."""
    notes: dict[str, object] = field(default_factory=dict)
    """Effective values and where they came from, for doctor and banners."""
    when_idle: Callable[[Engine], None] | None = None
    """Called before a request is added while nothing runs."""
    settle: Callable[[Engine, Callable[[str], None]], None] | None = None
    """Waits for what is prepared in the background."""
    make_costs: Callable[[], CostModel] = CostModel
    """Makes a new cost model from all that is known about passes before any has run."""
    num_threads: int = 0
    """Number of threads of CPU passes; 0: as many as torch has."""
    spare_time: Callable[[], bool] | None = None
    """Does a little of the work that can wait while nothing runs; returns whether there is more of it."""


class Engine:
    """Runs requests."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.runner = parts.runner
        self.drafters = parts.drafters
        self.controller = parts.controller
        self.scheduler = parts.scheduler
        runner = parts.runner
        self.sampler = Sampler(
            parts.noise, by_kernels=runner.has_kernels, native=lambda: runner.native_chooser
        )
        self.draft_outcomes = DraftOutcomes()
        self.grammars = Grammars(parts.tokenizer, parts.runner.vocab_size, parts.end_ids)
        self.telemetry = Telemetry()
        self.runner.feature_layers = _features(parts.drafters)
        self.scheduler.hooks = self._hooks()
        self.drafting = Drafting(self)
        self.pipeline = Pipeline(self)
        self.prelaunch = Prelaunch(self, self.drafting, self.pipeline)
        self.multi_step = MultiSteps(self, self.drafting)
        self.delivery = Delivery(self)
        self.learning = Learning(self)
        self._arrivals = 0

    # -- from outside

    def add(
        self, request_id: Hashable, prompt_ids: Many[int], params: SamplingParams, client: str = ""
    ) -> Sequence:
        """Queue a request. Raises RequestError or CapacityError when it can never run."""
        if self.scheduler.find(request_id) is not None:
            raise RequestError(f"{request_id!r} is already running", field="request_id")
        self._check_prompt(prompt_ids)
        self._check_params(params)
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
        if params.prompt_logprobs is not None:
            sequence.prompt_logprobs = self._score_prompt(prompt_ids, params.prompt_logprobs)
        self.scheduler.add(sequence)
        self._arrivals += 1
        if sequence.thinking is not None and sequence.thinking.is_due:
            self.delivery.force_close(sequence)
        return sequence

    def abort(self, request_id: Hashable) -> bool:
        """End a request now; its pages are free before the next step. False where it is not running."""
        sequence = self.scheduler.find(request_id)
        if sequence is None:
            return False
        self.learning.catch_up()
        self.delivery.end(sequence, Finish.ABORT)
        self.delivery.close_ended()
        return True

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self.delivery.has_events

    @property
    def model(self) -> object:
        """The name of the model in its config."""
        return self.parts.notes.get("model", "")

    @property
    def noise(self) -> NoiseSource:
        return self.parts.noise

    @property
    def wants_p1(self) -> bool:
        return needs_target_p1(self.controller.policy.name)

    def takes_several_steps(self, num_rows: int) -> bool:
        """Whether native code may take several steps of so many rows, if it can take steps of each."""
        return self.multi_step.is_possible(num_rows)

    def set_policy(self, name: str) -> None:
        """Change the policy from the next step on; what was learned about costs stays."""
        self.learning.catch_up()
        self.controller.set_policy(name)

    def record_trace(
        self, asked: Many[tuple[Many[int], SamplingParams]], path: Path, kind: str = "text"
    ) -> None:
        """Run (prompt ids, params) plainly and write what the first drafter proposes (trace_recorder.py)."""
        from wager.engine.trace_recorder import RecordRequest, record_trace

        record_trace(self, [RecordRequest(*one) for one in asked], path, kind)

    def settle(self, tell: Callable[[str], None] = log.info) -> None:
        """Wait until passes no longer change; `tell` receives the reason for a long wait. For benchmarks."""
        assert not self.scheduler.has_work
        if self.parts.settle is not None:
            self.parts.settle(self, tell)

    def use_spare_time(self) -> bool:
        """Do a little of the work that can wait, at most one pass, while nothing runs.

        Returns whether there is more of it.
        """
        spare_time = self.parts.spare_time
        return spare_time is not None and not self.has_work and spare_time()

    def step(self) -> list[Event]:
        """Run one step, or several at once, and return what it gave. A target that fails ends the requests of
        this step.
        """
        try:
            reports = run_step(self) if self.scheduler.has_work else []
        except Exception as error:
            log.exception("step failed")
            self._fail_running(error)
            reports = []
        for report in reports:
            self.telemetry.record(report)
        return self.delivery.take()

    def interrupt(self) -> None:
        """End a step that consists of several after the one in progress. Any thread may call this."""
        self.multi_step.interrupt()

    def resume(self) -> None:
        """Allow steps that consist of several again."""
        self.multi_step.resume()

    def check(self) -> None:
        """Integrity of the page accounts; raises PageError. Cheap enough for whenever the engine is idle."""
        memory = self.scheduler.memory
        holders = [sequence.pages for sequence in self.scheduler.running]
        if memory.index is not None:
            memory.index.check()
            holders.append(memory.index.pages())
        memory.allocator.check(holders)

    def _fail_running(self, error: Exception) -> None:
        """End every running request after a step that failed."""
        self.pipeline.drop()
        self.learning.drop()
        for sequence in list(self.scheduler.running):
            self.delivery.end(sequence, Finish.ERROR, f"the step failed: {one_line(error)}")
        self.delivery.close_ended()

    def _check_prompt(self, prompt_ids: Many[int]) -> None:
        if not prompt_ids:
            raise RequestError("is empty", field="prompt")
        if len(prompt_ids) >= self.parts.max_context:
            raise RequestError(
                f"has {len(prompt_ids)} tokens, and the context holds {self.parts.max_context}",
                field="prompt",
            )
        self._check_ids("prompt", prompt_ids)

    def _check_params(self, params: SamplingParams) -> None:
        """Refuse what the model has no tokens or no words for, and what only callers can do."""
        self._check_ids("logit_bias", params.logit_bias or ())
        self._check_ids("stop_token_ids", params.stop_token_ids)
        if params.thinking is not None:
            self._check_ids("thinking", params.thinking.mark_ids)
        if params.stop and self.parts.tokenizer is None:
            raise RequestError("needs text, but the model folder has no tokenizer", field="stop")
        if params.n != 1:
            raise RequestError("several answers are several requests, each with its own seed", field="n")

    def _score_prompt(self, prompt_ids: Many[int], count: int) -> list[TopLogprobs | None]:
        """The log-probabilities of a prompt's tokens, by passes between two steps."""
        self.learning.catch_up()
        self.pipeline.drop()  # these passes write over what a pass in flight has not given yet
        return score_prompt(self.runner, self.scheduler.memory, prompt_ids, count)

    def _check_ids(self, where: str, token_ids: Iterable[int]) -> None:
        """Refuse ids the model has no score for: in the pass they would cost other requests their step."""
        vocab = self.runner.vocab_size
        bad = next((token for token in token_ids if not 0 <= token < vocab), None)
        if bad is not None:
            raise RequestError(f"has token id {bad}, outside 0..{vocab - 1}", field=where)

    def _hooks(self) -> Hooks:
        drafters = self.drafters.values()
        needs = any(drafter.feature_layers for drafter in drafters)

        def adopt(sequence: Sequence) -> None:
            for drafter in drafters if sequence.may_draft else ():
                call = partial(drafter.adopt, sequence.request_id, sequence.num_cached)
                self.drafting.guard([sequence], call)

        def settle(sequence: Sequence, num_tokens: int) -> bool:
            if not sequence.may_draft:
                return not needs
            try:
                # Every drafter is asked, whatever the others answer.
                ready = [
                    drafter.prepare_sharing(sequence.request_id, sequence.pages, num_tokens)
                    for drafter in drafters
                ]
                return all(ready)
            except Exception as error:
                self.drafting.fail([sequence], error)
                return False

        def forget(sequence: Sequence) -> None:
            for drafter in drafters if sequence.may_draft else ():
                self.drafting.guard([sequence], partial(drafter.forget, sequence.request_id))

        def relocate(source: list[int], target: list[int]) -> None:
            self.runner.pool.copy_pages(source, target)
            for drafter in drafters:
                # The pages' owner is not named here, so a failure ends the drafts of all running sequences.
                self.drafting.guard(self.scheduler.running, partial(drafter.copy_pages, source, target))

        reads_runs = self.runner.pool.store.device.type == "cpu"
        return Hooks(needs, adopt, settle, forget, relocate if reads_runs else None)


def _features(drafters: dict[str, Drafter]) -> tuple[int, ...]:
    """The layers whose outputs the drafters want; at most one drafter of an engine may want any."""
    wanted = [drafter.feature_layers for drafter in drafters.values() if drafter.feature_layers]
    assert len(wanted) <= 1, "two drafters want features"
    return wanted[0] if wanted else ()
