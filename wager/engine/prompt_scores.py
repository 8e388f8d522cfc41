"""Log-probabilities of the tokens of a prompt, for requests with `prompt_logprobs`.

The prompt is read as if a drafter had guessed it: a pass verifies a chain of its own tokens, and gives the
scores behind every one of them. So every kind of pass can do it, with the bits of a speculative step. The
pages are given back at the end; the request itself reads its prompt like any other. engine.py calls it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from wager.engine.scheduler import Memory
from wager.errors import CapacityError, OutOfPages
from wager.records import TopLogprobs
from wager.target import RunRow, TargetRunner, top_logprobs
from wager.tree import Tree

_CHUNK = 64
"""Most tokens of a pass: it has scores for all of them, and a table of scores is large."""


def score_prompt(
    runner: TargetRunner, memory: Memory, token_ids: Many[int], count: int
) -> list[TopLogprobs | None]:
    """Returns an entry per token with the `count` best ones; None for the first, which nothing precedes.

    Raises CapacityError where too few pages are free at the moment. Precondition: no pass is in flight.
    """
    allocator, num_read = memory.allocator, len(token_ids) - 1
    found: list[TopLogprobs | None] = [None]
    try:
        pages = allocator.allocate(allocator.pages_for(num_read))
    except OutOfPages as error:
        raise CapacityError(f"prompt_logprobs: {error}") from error
    try:
        size = min(_CHUNK, 1 + runner.max_nodes)
        for start in range(0, num_read, size):
            chunk = list(token_ids[start : min(start + size, num_read)])
            result = runner.run([RunRow(chunk[:1], Tree.chain(chunk[1:]), start, pages)])
            runner.commit(result, [range(len(chunk))])
            assert result.logits is not None
            found += top_logprobs(result.logits, token_ids[start + 1 : start + 1 + len(chunk)], count)
    finally:
        allocator.release(pages)
    return found
