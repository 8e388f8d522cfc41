"""What `wager chat` shows: answers coloured by the origin of their tokens, a line of figures, and notices.

Without a terminal the answers are plain text on stdout, and notices go to stderr.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from wager.cli.generate_screen import LiveScreen, OriginPainter, PlainScreen, Screen
from wager.text.detokenize import Detokenizer

if TYPE_CHECKING:
    from wager.cli.chat_session import Answered, ChatSession

__all__ = ["ChatScreen", "PlainChatScreen", "TerminalChatScreen", "figures", "styles_of"]

# The first drafter of an engine has the first style, as in `wager generate`.
_COLOURS = ("green", "cyan", "magenta", "blue")
_WITHOUT_COLOURS = ("underline", "underline italic", "underline bold", "underline")


def styles_of(drafters: list[str], *, has_colours: bool) -> dict[str, str]:
    """Returns the style of each origin: `target`, `forced`, and `guess:` with the name of a drafter."""
    palette = _COLOURS if has_colours else _WITHOUT_COLOURS
    styles = {"target": "", "forced": "yellow" if has_colours else "reverse", "guess": palette[0]}
    return styles | {f"guess:{name}": palette[at % len(palette)] for at, name in enumerate(drafters)}


def _with_thinking(styles: Mapping[str, str]) -> Mapping[str, str]:
    """Adds the styles of thinking: the same, but dim. An unknown origin has no style."""
    dim = {f"thinking:{origin}": f"dim {style}".strip() for origin, style in styles.items()}
    return defaultdict(str, {**styles, **dim})


def figures(answered: Answered) -> str:
    """Describes the speed of one answer."""
    parts = [f"{answered.num_tokens} tokens", f"{answered.tokens_per_s:.0f} tokens/s"]
    parts.append(f"{answered.tokens_per_step:.2f} tokens per step")
    output = answered.output
    if output is None:
        return " · ".join([*parts, "stopped"])
    if output.stats.speedup is not None:
        parts.append(f"{output.stats.speedup:.2f}x plain decoding")
    if output.close is not None and output.close.thinking_tokens:
        parts.append(f"{output.close.thinking_tokens} of thinking ({output.close.kind} close)")
    if output.finish_reason == "length":
        parts.append("cut at its length")
    return " · ".join(parts)


class PlainChatScreen:
    """For pipes and files."""

    def loading(self, model: str) -> AbstractContextManager[object]:
        """Says on stderr which model is loaded."""
        self.notice(f"talking to {model}")
        return nullcontext()

    def greet(self, session: ChatSession) -> None:
        """Says nothing: the output has answers only."""

    def answer(self, session: ChatSession, prompt_ids: list[int]) -> Screen:
        return PlainScreen()

    def finished(self, answered: Answered) -> None:
        """Says nothing."""

    def notice(self, text: str) -> None:
        print(f"wager: {text}", file=sys.stderr, flush=True)

    def table(self, text: str) -> None:
        print(text, flush=True)


class TerminalChatScreen:
    """For a terminal."""

    def __init__(self, *, no_color: bool) -> None:
        self.console = Console(highlight=False, no_color=True if no_color else None)

    def loading(self, model: str) -> AbstractContextManager[object]:
        """Shows that the model is being loaded, until it is."""
        return self.console.status(f"loading {model}")

    def greet(self, session: ChatSession) -> None:
        notes, drafters = session.llm.notes, _drafters(session)
        parts = [str(notes["model"]), f"policy {session.llm.engine.controller.policy.name}"]
        parts.append(f"{session.max_context} tokens of context")
        self.console.print(Text(" · ".join(parts), style="bold"))
        styles, legend = self._styles(drafters), Text("tokens: the model's own")
        for name in drafters:
            legend.append(", ").append(f"guessed by {name}", styles[f"guess:{name}"])
        self.console.print(legend)
        self.console.print(Text("/help lists commands · Ctrl-C stops an answer · Ctrl-D leaves", style="dim"))
        self.console.print()

    def answer(self, session: ChatSession, prompt_ids: list[int]) -> Screen:
        tokenizer = session.llm.engine.parts.tokenizer
        assert tokenizer is not None
        detokenizer = Detokenizer(tokenizer, after=prompt_ids, shown_ids=session.shown_ids)
        painter = OriginPainter(detokenizer, _with_thinking(self._styles(_drafters(session))))
        ledger = session.llm.engine.controller.experience.ledger
        return LiveScreen(painter, lambda: ledger.total, self.console)

    def finished(self, answered: Answered) -> None:
        self.console.print(Text(figures(answered), style="dim"))
        self.console.print()

    def notice(self, text: str) -> None:
        self.console.print(Text(text, style="dim" if self.console.no_color else "dim yellow"))

    def table(self, text: str) -> None:
        self.console.print(Text(text))
        self.console.print()

    def _styles(self, drafters: list[str]) -> dict[str, str]:
        return styles_of(drafters, has_colours=not self.console.no_color)


ChatScreen = PlainChatScreen | TerminalChatScreen


def _drafters(session: ChatSession) -> list[str]:
    return list(session.llm.engine.parts.drafters)
