"""One step of the engine, nine stages, top to bottom. Read this first.

    plan     who runs, which prompt chunks            emit     append, finish, release
    bet      is drafting worth it, with which drafter  learn    what it cost and what it yielded
    draft    what might come
    arrange  which guesses to verify, now that their confidence is known
    verify   one target pass over all rows
    accept   which path stands
    commit   make caches equal to the verdict

A row is pending tokens plus a tree. Prefill, plain decoding and speculation are the same code with other
numbers: there is no branch on drafter, model or policy kind here. Called by engine.py, one step at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wager.draft.base import Proposal
from wager.engine.rows import StepRow, closed, drafts_of, outcome_of, report_of, stacked_tokens
from wager.engine.sequence import Finish
from wager.engine.telemetry import StageClock, StepReport
from wager.policy import Offer, StepOutcome
from wager.records import Verdict
from wager.target import Choices, RunResult, judge
from wager.tree import row_trees

if TYPE_CHECKING:
    from wager.engine.engine import Engine


def run_step(engine: Engine) -> StepReport | None:
    """Run one step; None when nobody can run. Afterwards every row has moved on, ended or failed."""
    clock = StageClock()
    rows = plan(engine)
    clock.mark("plan")
    if not rows:
        engine.catch_up()
        return None
    offers = bet(engine, rows)
    clock.mark("bet")
    proposals = draft(engine, rows, offers)
    clock.mark("draft")
    arrange(engine, rows, proposals)
    clock.mark("arrange")
    result, choices = verify(engine, rows)
    clock.mark("verify")
    verdicts = accept(rows, choices)
    clock.mark("accept")
    commit(engine, rows, result, verdicts)
    clock.mark("commit")
    emit(engine, rows, verdicts, choices)
    clock.mark("emit")
    outcome = outcome_of(rows, clock.ms, engine.learn_ms)
    is_typical = not engine.ahead.has_paused and not engine.supposed.was_taken
    overlaps = engine.runner.has_kernels
    learn(engine, outcome._replace(is_typical=is_typical, overlaps=overlaps))
    clock.mark("learn")
    engine.learn_ms = clock.ms["learn"]
    return report_of(outcome, clock.ms)


def plan(engine: Engine) -> list[StepRow]:
    """Ask the scheduler who runs, or take the rows that run already; look at each as the policy will."""
    return engine.observe(engine.scheduler.plan(engine.ahead.sequences()))


def bet(engine: Engine, rows: list[StepRow]) -> list[Offer]:
    """The first decision: which rows draft, with which drafter."""
    return engine.controller.offer([row.view for row in rows])


def draft(engine: Engine, rows: list[StepRow], offers: list[Offer]) -> list[Proposal | None]:
    """One pass per drafter for all rows it serves; a bet sight unseen has its target pass queued behind."""
    for row, offer in zip(rows, offers, strict=True):
        row.offer = offer
    engine.unseen.begin(rows)
    return engine.drafting.propose(rows)


def arrange(engine: Engine, rows: list[StepRow], proposals: list[Proposal | None]) -> None:
    """The second decision: one forest, cut into a tree per row. Sight unseen it was made with the bet."""
    drafts = drafts_of(rows, proposals)
    if engine.unseen.has_begun:
        trees = engine.unseen.see(rows, drafts)
    elif any(drafts):
        forest = engine.controller.arrange([row.view for row in rows], drafts)
        trees = row_trees(forest, forest.num_nodes, stacked_tokens(proposals))
        trees = [engine.fit_tree(row, tree) for row, tree in zip(rows, trees, strict=True)]
        trees = engine.supposed.bet(rows, trees)
    else:
        return
    for row, proposal, tree in zip(rows, proposals, trees, strict=True):
        row.tree = tree
        engine.drafting.remember(row, proposal)


def verify(engine: Engine, rows: list[StepRow]) -> tuple[RunResult, Choices]:
    """One target pass over pending tokens and nodes, and the target's own choice at every judged place."""
    begun = (engine.ahead.take(rows), engine.unseen.take(), engine.supposed.take(rows))
    result = next(filter(None, begun), None) or engine.runner.run([row.run_row() for row in rows])
    engine.meanwhile(rows)
    judged = [row.choice_row() for row in rows if row.is_judged]
    if result.logits is None:
        return result, Choices([], [], [], [])
    return result, engine.sampler.choose(
        result.logits, judged, engine.wants_p1, engine.drafting.following(rows, result)
    )


def accept(rows: list[StepRow], choices: Choices) -> list[Verdict | None]:
    """The one rule; a path ends early where a row's thinking is closed."""
    verdicts = judge([row.tree if row.is_judged else None for row in rows], choices)
    return closed(rows, verdicts, choices)


def commit(engine: Engine, rows: list[StepRow], result: RunResult, verdicts: list[Verdict | None]) -> None:
    """Hand the drafters the features of what now stands, and move accepted paths into place."""
    result = engine.supposed.begin(rows, verdicts, result)
    kept = [row.kept(verdict) for row, verdict in zip(rows, verdicts, strict=True)]
    engine.drafting.keep(rows, result, kept)
    for row, indices in zip(rows, kept, strict=True):
        row.sequence.num_cached += len(indices)
    engine.drafting.start(rows, verdicts)
    if all(row.followed_by is None for row in rows):  # what follows a pass has moved its paths as well
        engine.runner.commit(result, kept)


def emit(engine: Engine, rows: list[StepRow], verdicts: list[Verdict | None], choices: Choices) -> None:
    """Append tokens, end what ends, tell the callers."""
    start = 0
    for row, verdict in zip(rows, verdicts, strict=True):
        if not row.is_judged:
            continue
        if verdict is None:
            engine.end(row.sequence, Finish.ERROR, "the model's scores are not finite numbers")
        else:
            row.verdict = verdict
            engine.deliver(row, verdict, choices, start)
        start += row.tree.num_nodes + 1


def learn(engine: Engine, outcome: StepOutcome) -> None:
    """Let costs, ledger and policy take in what happened, now or behind the next pass; close what ended."""
    if engine.may_learn_late(outcome):
        engine.unlearned = outcome
        return
    engine.learn(outcome)
    engine.close_ended()
