"""One step of the engine: nine stages in order, with what is prelaunched on a device. Read this first.

    plan     who runs, with which prompt chunks       accept   which path of each tree is accepted
    bet      which rows draft, with which drafter     commit   make the caches equal to the verdict
    draft    the proposals of the drafters            emit     append tokens, end requests, make events
    arrange  which guesses to verify                  learn    tell the policy what it cost and yielded
    verify   one target pass over all rows, and the target's choices

A row is pending tokens plus a tree: prefill, plain decoding and speculation are the same code with other
numbers. On a device `engine.prelaunch` launches work early, and `engine.pipeline` holds the pass in flight;
on a CPU `engine.multi_step` takes several steps from `draft` to `commit` at once.
"""

from __future__ import annotations

from wager.engine.drafting import Drafting
from wager.engine.observation import observe
from wager.engine.pipeline import Strategy, is_typical
from wager.engine.prelaunch import Prelaunch
from wager.engine.rows import StepRow, Verdicts, close_thinking, drafts_of, stacked_tokens
from wager.engine.step_engine import StepEngine
from wager.engine.taken import StepTaken, outcome_of, report_of
from wager.engine.telemetry import StageClock, StepReport
from wager.policy import Controller, Plan
from wager.target import NO_CHOICES, Choices, RunResult, judge
from wager.tree import row_trees


def run_step(engine: StepEngine) -> list[StepReport]:
    """Run one step, or several that native code takes under one plan; [] when nobody can run."""
    clock = StageClock()
    rows = plan(engine)
    clock.mark("plan")
    if not rows:
        engine.learning.catch_up()
        return []
    bets = bet(engine.controller, rows)
    clock.mark("bet")
    taken = engine.multi_step.take(rows, bets, clock) or [take(engine, rows, bets, clock)]
    return conclude(engine, bets, [emit(engine, step) for step in taken])


def take(engine: StepEngine, rows: list[StepRow], bets: Plan, clock: StageClock) -> StepTaken:
    """The stages that native code can take by itself, for one step."""
    draft(engine.prelaunch, engine.drafting, rows, bets)
    clock.mark("draft")
    arrange(engine, rows, bets)
    clock.mark("arrange")
    result, choices, typical = verify(engine, rows)
    clock.mark("verify")
    verdicts = accept(rows, choices)
    clock.mark("accept")
    commit(engine, rows, result, verdicts)
    clock.mark("commit")
    return StepTaken(rows, verdicts, clock, choices, typical)


def emit(engine: StepEngine, step: StepTaken) -> StepTaken:
    """Append tokens, end what ends, make the events; of several steps, those of texts that still run."""
    step = step.of_running()
    step.clock.start()
    engine.drafting.track_outcomes(step.rows)
    engine.delivery.deliver(step.rows, step.verdicts, step.choices)
    step.clock.mark("emit")
    return step


def conclude(engine: StepEngine, bets: Plan, taken: list[StepTaken]) -> list[StepReport]:
    """Learn: tell the policy about these steps, now or while the next pass runs, and report them."""
    steps = [step for step in taken if step.rows]
    outcomes = [outcome_of(step, bets, engine.learning.learn_ms / len(steps)) for step in steps]
    engine.learning.take_in(outcomes, engine.delivery, [step.clock for step in steps])
    return [report_of(outcome, step.clock.ms) for outcome, step in zip(outcomes, steps, strict=True)]


def plan(engine: StepEngine) -> list[StepRow]:
    """The rows of the plain pass in flight, or those that the scheduler plans, as the policy sees them."""
    in_flight = engine.pipeline.planned()
    planned = engine.scheduler.plan(in_flight)
    return observe(engine, engine.drafting, planned, bool(in_flight), engine.pipeline.num_plain)


def bet(controller: Controller, rows: list[StepRow]) -> Plan:
    """The policy's first decision: which rows draft, with which drafter."""
    bets = controller.plan([row.view for row in rows])
    for row, offer in zip(rows, bets.offers, strict=True):
        row.offer = offer
    return bets


def draft(prelaunch: Prelaunch, drafting: Drafting, rows: list[StepRow], bets: Plan) -> None:
    """One draft per drafter for all rows that it serves; a blind bet has its verify pass launched behind."""
    prelaunch.blind.launch(rows, bets)
    drafting.propose(rows)


def arrange(engine: StepEngine, rows: list[StepRow], bets: Plan) -> None:
    """The policy's second decision: one forest, cut into a tree per row; a blind bet's trees are read."""
    drafts = drafts_of(rows)
    if engine.pipeline.strategy is Strategy.BLIND:
        trees = engine.prelaunch.blind.read_trees()
    elif any(drafts):
        forest = engine.controller.arrange(bets, [row.view for row in rows], drafts)
        trees = row_trees(forest, forest.num_nodes, stacked_tokens([row.proposal for row in rows]))
        trees = [engine.drafting.fit_tree(row, tree) for row, tree in zip(rows, trees, strict=True)]
        trees = engine.prelaunch.copy.prefer_in_flight(rows, trees)
    else:
        return
    for row, shown, tree in zip(rows, drafts, trees, strict=True):
        row.draft, row.tree = shown, tree


def verify(engine: StepEngine, rows: list[StepRow]) -> tuple[RunResult, Choices, bool]:
    """One target pass, the target's choice at every judged place, and whether the time is typical."""
    taken = engine.pipeline.take(rows)
    result = taken.result if taken else engine.runner.run([row.run_row() for row in rows])
    # The pass runs now: this is the time for host work that nothing waits for.
    engine.learning.catch_up()
    engine.learning.prepare(rows)
    engine.drafting.compare_unchosen(rows)
    engine.prelaunch.copy.prepare(rows)
    judged = [row.choice_row() for row in rows if row.is_judged]
    if result.logits is None:
        return result, NO_CHOICES, True
    pending = engine.sampler.launch(result.logits, judged, engine.wants_p1)
    can_follow = engine.prelaunch.plain.can_follow(rows)
    typical = is_typical(rows, taken, can_follow)
    if pending.device_tokens is not None:  # the choices are on the device before the host can read them
        engine.prelaunch.draft.launch_behind(rows, result, pending.device_tokens)
        typical = not (can_follow and engine.prelaunch.plain.launch_behind(rows, result, pending)) and typical
    return result, pending.read(), typical


def accept(rows: list[StepRow], choices: Choices) -> Verdicts:
    """The acceptance rule; a path also ends where a row's thinking is closed."""
    verdicts = judge([row.tree if row.is_judged else None for row in rows], choices)
    return close_thinking(rows, verdicts, choices)


def commit(engine: StepEngine, rows: list[StepRow], result: RunResult, verdicts: Verdicts) -> None:
    """Hand the drafters the features of the tokens that stay, and move accepted paths into place."""
    result = engine.prelaunch.copy.launch(rows, verdicts, result)
    kept = [row.kept_places(verdict) for row, verdict in zip(rows, verdicts, strict=True)]
    if engine.pipeline.strategy is not Strategy.PLAIN:  # else they were handed over before it was launched
        engine.drafting.keep(rows, result, kept)
    for row, places in zip(rows, kept, strict=True):
        row.sequence.num_cached += len(places)
    engine.prelaunch.draft.launch_with_verdicts(rows, verdicts)
    if all(row.next_draft_by is None for row in rows):  # else the device has moved the paths already
        engine.runner.commit(result, kept)
