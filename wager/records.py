"""The small frozen records that rooms hand to one another.

Standard library only, so that every room may import it. Records carry values and read-outs of those values;
they decide nothing. Who makes a record and who reads it is said in its own docstring.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target said about one row's tree: made by accept, read by commit, emit and learn."""

    accepted: tuple[int, ...]
    """The guessed tokens that stand, in order."""
    path: tuple[int, ...]
    """Their node indices in the tree."""
    target_token: int
    """The bonus: the target's own token after the last accepted guess."""
    num_drafted: int
    """Nodes that were verified."""
    first_rejection: int | None = None
    """0-based depth of the first refused guess; None where the path ended at a leaf: nothing was refused."""

    @property
    def num_accepted(self) -> int:
        return len(self.accepted)

    @property
    def emitted(self) -> tuple[int, ...]:
        """Accepted guesses and the bonus."""
        return (*self.accepted, self.target_token)
