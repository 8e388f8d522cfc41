"""The model card of a trained drafter: its target, its data, its training and its measured quality.

It formats finished figures as Markdown and measures nothing. The licences are those in the records of the
corpus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from textwrap import fill

from wager import __version__
from wager.train.corpus import DataFile
from wager.train.drafter_quality import Measured

_WIDTH = 110


@dataclass(frozen=True)
class Card:
    """The contents of a card."""

    name: str
    target: str
    """The published name of the target."""
    target_mark: str
    num_parameters: int
    data: Sequence[DataFile]
    own_text: int
    """Number of texts written by the target; 0 if the drafter was trained on the corpus itself."""
    settings: Mapping[str, object]
    measured: Sequence[Measured]
    mask: str
    loss: float


def card_text(card: Card, day: date | None = None) -> str:
    """Returns the README.md of a drafter's folder."""
    parts = [_head(card), _introduction(card), _measured(card), _data(card), _settings(card), _made(day)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(card: Card) -> str:
    return f"---\nbase_model: {card.target}\ntags: [speculative-decoding, dflash]\n---"


def _introduction(card: Card) -> str:
    what = (
        f"A DFlash block drafter for `{card.target}`: it proposes a block of {card.settings['block_size']} "
        f"tokens in one pass, from the target's own hidden features. It has {card.num_parameters:,} "
        "parameters and neither embedding nor output head: it uses those of the target and cannot be used "
        "with another target. The generated text is the target's own, whatever the drafter proposes."
    )
    use = '```\nwager generate --model TARGET_FOLDER --drafter THIS_FOLDER --prompt "..."\n```'
    made = f"Trained for the target with the fingerprint {card.target_mark}. Mask token: {card.mask}."
    return "\n\n".join([f"# {card.name}", fill(what, _WIDTH), use, made])


def _measured(card: Card) -> str:
    if not card.measured:
        return "## Measured\n\nNothing was measured."
    depths = range(1, len(card.measured[0].by_depth) + 1)
    how = (
        "On texts that the target wrote after held-out prompts. A whole block is verified as a chain, and "
        "the target's own token counts. By depth: the share of accepted guesses among those whose "
        "predecessors were all accepted."
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
        heat = "greedy" if own.temperature == 0 else f"T = {own.temperature:g}"
        label = f"{own.kind}, {heat}" if own.kind else heat
        rates = " | ".join(f"{rate:.2f}" for rate in own.by_depth)
        lines.append(
            f"| {label} | {own.num_texts} | {own.num_tokens} | {own.tokens_per_step:.2f} | {rates} |"
        )
    return "\n".join(lines)


def _data(card: Card) -> str:
    source = (
        f"Trained on {card.own_text:,} texts that the target itself wrote after prompts from these files."
        if card.own_text
        else "Trained on these files."
    )
    rows = [
        f"| {file.name} | {file.num_records:,} | {file.num_characters:,} | {_licences(file)} |"
        for file in card.data
    ]
    return "\n".join(
        ["## Data", "", source, "", "| file | records | characters | licences |", "|---|---|---|---|", *rows]
    )


def _licences(file: DataFile) -> str:
    """Returns the licences with their number of records, the most frequent first."""
    by_count = sorted(file.licences.items(), key=lambda item: -item[1])
    return ", ".join(f"{name or 'none stated'} ({count:,})" for name, count in by_count)


def _settings(card: Card) -> str:
    rows = [f"| {name} | {value} |" for name, value in card.settings.items()]
    last = f"Last smoothed loss: {card.loss:.4f}."
    return "\n".join(["## Settings", "", last, "", "| setting | value |", "|---|---|", *rows])


def _made(day: date | None) -> str:
    return f"Trained with wager {__version__}, {day or date.today():%Y-%m-%d}."
