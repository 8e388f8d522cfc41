"""Builds the rows of a step with the view that the policy has of each.

Which drafters can propose for a row is looked up here, as far as the policy inquires about it. The functions
change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.rows import NO_TREE, StepRow, can_run_natively
from wager.engine.scheduler import Planned
from wager.policy import Coming, Inquiry, Row


def observe(
    parts: EngineParts, drafting: Drafting, planned: Many[Planned], in_flight: bool, num_plain: int
) -> list[StepRow]:
    """The rows of a step behind `num_plain` plain ones. `in_flight`: their pass runs, and has no trees."""
    if in_flight:
        return [_row(parts, one, len(planned), {}) for one in planned]
    return rows_of(parts, drafting, planned, inquire(parts, planned, num_plain)) if planned else []


def inquire(parts: EngineParts, planned: Many[Planned], num_plain: int) -> Inquiry:
    """Whether drafters are to be asked in a step of these rows, behind `num_plain` plain ones."""
    num_tokens = sum([row.num_tokens for row in planned])
    max_depth = max([row.sequence.max_depth for row in planned])
    return parts.controller.inquire(Coming(len(planned), num_tokens, max_depth, num_plain))


def rows_of(
    parts: EngineParts, drafting: Drafting, planned: Many[Planned], inquiry: Inquiry
) -> list[StepRow]:
    """The rows of a step, with the drafters that can propose for each."""
    rows = []
    for one in planned:
        able, nodes = dict[str, str](), one.sequence.nodes
        if one.is_whole and one.sequence.max_depth > 0 and (inquiry.asks if nodes is None else nodes > 0):
            able = drafting.able(one, inquiry)
        rows.append(_row(parts, one, len(planned), able))
    return rows


def _row(parts: EngineParts, planned: Planned, num_rows: int, able: dict[str, str]) -> StepRow:
    sequence, num_tokens = planned
    is_whole = planned.is_whole
    room = min(parts.scheduler.room(planned, num_rows), parts.runner.max_nodes) if able else 0
    view = Row(
        sequence.request_id,
        sequence.num_cached,
        sequence.phase,
        num_tokens,
        max_nodes=room,
        max_depth=sequence.max_depth if is_whole else 0,
        target_p1=1.0 if sequence.target_p1 is None else sequence.target_p1,
        drafters=tuple(able),
        grades=_grades(able),
        emits=is_whole,
        nodes=sequence.nodes or 0,
        native=parts.takes_several_steps(num_rows) and can_run_natively(sequence, num_tokens),
    )
    return StepRow(sequence, num_tokens, is_whole, view, NO_TREE)


def _grades(able: dict[str, str]) -> tuple[str, ...]:
    return tuple(able.values()) if any(able.values()) else ()
