"""Which path stands: the one rule of tree/accept.py over a whole step.

The target's choices come from the sampler, one per judged position; here they are cut into rows and walked.
A row whose scores are not numbers gets no verdict: its request fails, the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from wager.records import Verdict
from wager.target.sampler import Choices
from wager.tree import Tree, accept


def judge(trees: Sequence[Tree | None], choices: Choices) -> list[Verdict | None]:
    """A verdict per row, in order; None where a row is not judged (tree None) or its scores are broken."""
    verdicts: list[Verdict | None] = []
    start = 0
    for tree in trees:
        if tree is None:
            verdicts.append(None)
            continue
        num_nodes = tree.num_nodes
        stop = start + num_nodes + 1
        if choices.broken and any(choices.broken[start:stop]):
            verdicts.append(None)
        elif num_nodes == 0:
            verdicts.append(Verdict((), (), choices.tokens[start], 0))
        else:
            verdicts.append(accept(tree, choices.tokens[start:stop]))
        start = stop
    return verdicts
