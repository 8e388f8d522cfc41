"""The event that a step gives one request, and the origin of each of its tokens.

Made by delivery.py from a row and its sequence; the functions here change neither, except for `note_choices`,
which stores log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from collections.abc import Sequence as Many
from typing import NamedTuple

from wager.draft.base import Proposal
from wager.engine.rows import StepRow
from wager.engine.sequence import Finish, Origin, Sequence
from wager.policy import Account
from wager.records import CloseReport, TokenDetail
from wager.target import Choices


class Event(NamedTuple):
    """The tokens and the text that a step gave one request; exactly the last event has `finish` set."""

    request_id: Hashable
    token_ids: tuple[int, ...] = ()
    text: str = ""
    origins: tuple[Origin, ...] = ()
    bet: int = 0
    finish: Finish | None = None
    error: str | None = None
    sequence: Sequence | None = None
    """The whole state of the request, on its last event."""
    account: Account | None = None
    details: tuple[TokenDetail, ...] = ()
    """One per token if the request asked for them."""

    @property
    def close(self) -> CloseReport | None:
        """How its thinking ended, on the last event of a request that limits or counts it."""
        return None if self.sequence is None else self.sequence.close

    @property
    def repeat_stopped(self) -> bool:
        """Whether it was ended because its answer only repeated itself; known on the last event."""
        return self.sequence is not None and self.sequence.repeat_stopped


def event_since(sequence: Sequence, num_tokens: int, num_text: int, row: StepRow | None = None) -> Event:
    """The tokens and the text that a sequence has gained since it had so many tokens and characters.

    `row` is its row in the step; None for forced tokens before the first step.
    """
    num_output = num_tokens - sequence.num_prompt
    token_ids, origins = tuple(sequence.tokens[num_tokens:]), tuple(sequence.origins[num_output:])
    bet = 0 if row is None else row.tree.num_nodes
    details: tuple[TokenDetail, ...] = ()
    if sequence.params.token_details:
        details = details_of(token_ids, origins, bet, row)
    text = sequence.text[num_text:]
    return Event(sequence.request_id, token_ids, text, origins, bet, details=details)


def details_of(
    token_ids: Many[int], origins: Many[Origin], bet: int, row: StepRow | None
) -> tuple[TokenDetail, ...]:
    """The details of a step's tokens: guesses come first, the i-th from depth i + 1."""
    found = []
    for place, (token, origin) in enumerate(zip(token_ids, origins, strict=True)):
        is_guess = origin is Origin.GUESS
        if is_guess and row is not None:
            confidence = _confidence(row.proposal, place, token)
            found.append(TokenDetail(origin.value, bet, place + 1, confidence, row.offer.drafter))
        else:
            found.append(TokenDetail(origin.value, bet, 0, None))
    return tuple(found)


def _confidence(proposal: Proposal | None, place: int, token: int) -> float | None:
    """The drafter's probability of this token at this depth; None where it has none."""
    if proposal is None or proposal.logprobs is None:
        return None
    candidates: list[int] = proposal.token_ids[place].tolist()
    if token not in candidates:
        return None
    return min(math.exp(float(proposal.logprobs[place][candidates.index(token)])), 1.0)


def note_choices(sequence: Sequence, emitted: int, choices: Choices, places: Many[int]) -> None:
    """Store the log-probabilities of emitted tokens and the target's confidence, from the judged places."""
    if choices.logprobs:
        sequence.logprobs += [choices.logprobs[place] for place in places[:emitted]]
    if choices.top_p1:
        sequence.target_p1 = choices.top_p1[places[-1]]
