"""The model card of a trained drafter: for which target, from which data, how, and what it reached.

Takes finished figures and writes Markdown; it measures nothing. Licences are those that the corpus's own
records state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from textwrap import fill

from wager import __version__
from wager.train.corpus import DataFile
from wager.train.trial import Measured

_WIDTH = 110


@dataclass(frozen=True)
class Card:
    """Everything a card tells."""

    name: str
    target: str
    """The target's name as its users know it."""
    target_mark: str
    num_parameters: int
    data: Sequence[DataFile]
    own_text: int
    """Texts written by the target; 0 where the corpus itself was learned from."""
    settings: Mapping[str, object]
    measured: Sequence[Measured]
    mask: str
    loss: float


def card_text(card: Card, day: date | None = None) -> str:
    """The README.md of a drafter's folder."""
    parts = [_head(card), _introduction(card), _measured(card), _data(card), _settings(card), _made(day)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(card: Card) -> str:
    return f"---\nbase_model: {card.target}\ntags: [speculative-decoding, dflash]\n---"


def _introduction(card: Card) -> str:
    what = (
        f"A DFlash block drafter for `{card.target}`: it proposes a block of {card.settings['block_size']} "
        f"tokens in one pass, from the target's own hidden features. It has {card.num_parameters:,} "
        "parameters and neither embedding nor output head: both are the target's, and with any other target "
        "it is of no use. The text that comes out is the target's own, whatever the drafter proposes."
    )
    use = '```\nwager generate --model TARGET_FOLDER --drafter THIS_FOLDER --prompt "..."\n```'
    made = f"Made for the target known as {card.target_mark}. Mask token: {card.mask}."
    return "\n\n".join([f"# {card.name}", fill(what, _WIDTH), use, made])


def _measured(card: Card) -> str:
    if not card.measured:
        return "## Measured\n\nNothing was measured."
    depths = range(1, len(card.measured[0].by_depth) + 1)
    how = (
        "On texts that the target wrote behind held-out beginnings; a whole block verified as a chain, the "
        "target's own token counted. By depth: of the guesses whose predecessors all stood, the share that "
        "stood."
    )
    lines = [
        "## Measured",
        "",
        fill(how, _WIDTH),
        "",
        "| | texts | tokens | tokens per step | " + " | ".join(str(depth) for depth in depths) + " |",
        "|---" * (4 + len(depths)) + "|",
    ]
    for own in card.measured:
        label = "greedy" if own.temperature == 0 else f"T = {own.temperature:g}"
        rates = " | ".join(f"{rate:.2f}" for rate in own.by_depth)
        lines.append(
            f"| {label} | {own.num_texts} | {own.num_tokens} | {own.tokens_per_step:.2f} | {rates} |"
        )
    return "\n".join(lines)


def _data(card: Card) -> str:
    source = (
        f"Learned from {card.own_text:,} texts that the target itself wrote, beginning as these files do."
        if card.own_text
        else "Learned from these files themselves."
    )
    rows = [
        f"| {file.name} | {file.num_records:,} | {file.num_characters:,} | {_licences(file)} |"
        for file in card.data
    ]
    return "\n".join(
        ["## Data", "", source, "", "| file | records | characters | licences |", "|---|---|---|---|", *rows]
    )


def _licences(file: DataFile) -> str:
    """Licences with their records, the commonest first."""
    by_count = sorted(file.licences.items(), key=lambda item: -item[1])
    return ", ".join(f"{name or 'none stated'} ({count:,})" for name, count in by_count)


def _settings(card: Card) -> str:
    rows = [f"| {name} | {value} |" for name, value in card.settings.items()]
    last = f"Last smoothed loss: {card.loss:.4f}."
    return "\n".join(["## Settings", "", last, "", "| setting | value |", "|---|---|", *rows])


def _made(day: date | None) -> str:
    return f"Trained with wager {__version__}, {day or date.today():%Y-%m-%d}."
