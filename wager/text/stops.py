"""Finds stop strings in text that arrives token by token, wherever the token borders are.

Text that may begin a stop string is held back until this is decided. The stop string that is completed first
wins, whatever the pieces; of two that end together, the longer one. This module does not know token ids. The
engine feeds it the detokenizer's increments and ends an accepted path after the token that stopped it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wager.errors import RequestError


@dataclass(frozen=True)
class StopHit:
    """A stop string that was found, and the length of the text before the cut."""

    stop: str
    cut: int


class StopText(NamedTuple):
    """Text that may be shown now, and the hit if the text ended."""

    text: str
    hit: StopHit | None


class StopFinder:
    """Watches one sequence for any of `stops`; with `include_stop` the stop string is part of the text."""

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise RequestError("expected a list of strings, none of them empty", "stop")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._include_stop = include_stop
        self._held = ""
        self._num_shown = 0
        self.hit: StopHit | None = None

    def feed(self, pieces: Iterable[str]) -> StopText:
        """Takes the text of the next tokens, one piece each; pieces after a hit are ignored."""
        shown = [self._feed_one(piece) for piece in pieces if self.hit is None]
        return StopText("".join(shown), self.hit)

    def flush(self, rest: str = "") -> StopText:
        """Ends the text with `rest`, the text that the detokenizer held back."""
        if self.hit is None:
            shown = self._feed_one(rest)
            if self.hit is None:
                shown, self._held = shown + self._held, ""
                return StopText(shown, None)
            return StopText(shown, self.hit)
        return StopText("", self.hit)

    def _feed_one(self, piece: str) -> str:
        text = self._held + piece
        found = self._first_complete(text)
        if found is None:
            num_ready = len(text) - self._num_open(text)
            self._held = text[num_ready:]
        else:
            start, stop = found
            num_ready = start + len(stop) if self._include_stop else start
            self._held = ""
            self.hit = StopHit(stop, self._num_shown + num_ready)
        self._num_shown += num_ready
        return text[:num_ready]

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        """Returns the start of the stop string that ends first, and the string."""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1:] if found else None

    def _num_open(self, text: str) -> int:
        """Returns the length of the longest suffix of `text` with which a stop string could begin."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
