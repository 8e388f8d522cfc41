"""Shows the text of `wager generate` while it is generated.

On a terminal, accepted draft tokens are coloured, finished lines scroll up, and the last line is redrawn with
a status line (bet, tokens per step, ledger). Without a terminal the text is written as it is.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wager.policy.ledger import Account
from wager.text.detokenize import Detokenizer

if TYPE_CHECKING:
    from wager.llm import StreamEvent

# Control characters in a model's output must not reach the terminal; only line end and tab are kept.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
STYLES = {"guess": "green", "forced": "yellow", "target": ""}
_REDRAW_S = 0.05


class Screen(Protocol):
    """Shows the text of one request."""

    def show(self, event: StreamEvent) -> None:
        """Shows one event of the stream."""
        ...

    def close(self) -> None:
        """Prints what is not printed yet and ends the line."""
        ...


class PlainScreen:
    """Writes the text without colours. Used for pipes and files."""

    def __init__(self) -> None:
        self._open_line = False

    def show(self, event: StreamEvent) -> None:
        if event.text:
            sys.stdout.write(event.text)
            sys.stdout.flush()
            self._open_line = not event.text.endswith("\n")

    def close(self) -> None:
        if self._open_line:
            sys.stdout.write("\n")
        sys.stdout.flush()


class OriginPainter:
    """Colours each character of the text by the origin of its token.

    The text can be behind the tokens, because a character or a possible stop string is incomplete. A queue
    holds the pieces of tokens whose text has not arrived yet.
    """

    def __init__(self, detokenizer: Detokenizer, styles: Mapping[str, str] = STYLES) -> None:
        self._detokenizer = detokenizer
        self._styles = styles
        self._waiting: deque[tuple[str, str]] = deque()
        self._last = "target"

    def paint(self, text: str, token_ids: Sequence[int], origins: Sequence[str]) -> Text:
        pieces = self._detokenizer.feed_each(token_ids)
        self._waiting.extend((p, str(o)) for p, o in zip(pieces, origins, strict=True) if p)
        painted = Text()
        while text:
            piece, origin = self._waiting.popleft() if self._waiting else (text, self._last)
            if len(piece) > len(text):
                self._waiting.appendleft((piece[len(text) :], origin))
            painted.append(text[: len(piece)].translate(_CONTROLS), self._styles[origin])
            text, self._last = text[len(piece) :], origin
        return painted


class LiveScreen:
    """Shows coloured text and a status line on a terminal."""

    def __init__(
        self, painter: OriginPainter, ledger: Callable[[], Account | None], console: Console | None = None
    ) -> None:
        self.console = console or Console(highlight=False, soft_wrap=False)
        self._painter = painter
        self._ledger = ledger
        self._tail = Text()
        self._steps = self._tokens = self._bet = 0
        self._drawn_at = 0.0
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, event: StreamEvent) -> None:
        self._steps += 1
        self._tokens += len(event.token_ids)
        self._bet = event.bet
        self._tail.append_text(self._painter.paint(event.text, event.token_ids, event.origins))
        self._scroll()
        now = time.monotonic()
        if now - self._drawn_at >= _REDRAW_S:
            self._drawn_at = now
            self._live.update(Group(self._tail, self.status()), refresh=True)

    def close(self) -> None:
        self._live.stop()
        if self._tail:
            self.console.print(self._tail)
            self._tail = Text()

    def status(self) -> Text:
        """Returns the status line."""
        parts = [f"bet {self._bet}", f"{self._tokens / max(self._steps, 1):.2f} tokens per step"]
        account = self._ledger()
        if account is not None:
            parts.append(describe_ledger(account))
        return Text(" · ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")

    def _scroll(self) -> None:
        """Prints all finished lines, and the full rows of a long line."""
        rows = [
            row
            for line in self._tail.split("\n", allow_blank=True)
            for row in (line.wrap(self.console, self.console.width) or [line])
        ]
        for row in rows[:-1]:
            self.console.print(row)
        self._tail = rows[-1] if rows else Text()


def describe_ledger(account: Account) -> str:
    """Describes the time saved compared with plain decoding, and the speed-up."""
    words = f"ledger {account.balance_ms / 1e3:+.2f} s"
    return words if account.speedup is None else f"{words} ({account.speedup:.2f}x plain)"
