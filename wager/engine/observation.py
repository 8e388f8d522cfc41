"""Builds the rows of a step with the view that the policy has of each.

Which drafters can propose for a row is looked up here, as far as the policy inquires about it. The functions
change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from wager.engine.context import EngineParts
from wager.engine.drafting import Drafting
from wager.engine.rows import NO_TREE, StepRow
from wager.engine.scheduler import Planned
from wager.policy import Coming, Inquiry, Row

_NO_INQUIRY = Inquiry(asks=False)


def observe(
    parts: EngineParts, drafting: Drafting, planned: Many[Planned], *, is_in_flight: bool
) -> list[StepRow]:
    """The rows of a step. `is_in_flight`: their pass runs already, and it has no trees."""
    if not planned:
        return []
    inquiry = _NO_INQUIRY
    if not is_in_flight:
        num_tokens = sum([row.num_tokens for row in planned])
        max_depth = max([row.sequence.max_depth for row in planned])
        inquiry = parts.controller.inquire(Coming(len(planned), num_tokens, max_depth))
    num_rows = len(planned)
    rows = []
    for one in planned:
        able: dict[str, str] = {}
        if not is_in_flight and one.is_whole and one.sequence.max_depth > 0:
            nodes = one.sequence.nodes
            if inquiry.asks if nodes is None else nodes > 0:
                able = drafting.able(one, inquiry)
        rows.append(_row(parts, one, num_rows, able))
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
    )
    return StepRow(sequence, num_tokens, is_whole, view, NO_TREE)


def _grades(able: dict[str, str]) -> tuple[str, ...]:
    return tuple(able.values()) if any(able.values()) else ()
