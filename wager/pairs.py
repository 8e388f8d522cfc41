"""Which drafter belongs to which target: the pair that ships, a table of published names, and the search.

A published name fits by the longest table name inside it, so a folder, a fine-tune or a quantised copy finds
the pair of the model it was made from; a name that ships fits as it is spelt. It knows names only: whether
two folders really fit is read from their configs (`wager doctor`). Asked by `wager models`, the engine's
assembly and doctor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BUILT_IN",
    "DEMO",
    "DEMO_FOLDER",
    "PAIRS",
    "SHIPPED",
    "Match",
    "Pair",
    "drafter_beside",
    "find_pair",
    "shipped_folder",
]

BUILT_IN = ("none", "lookup")
"""Drafters without weights; `none` is the only name that asks for plain decoding."""

DEMO = "demo"
"""The name of the pair that ships; what is run where no model is named."""

DEMO_FOLDER = Path(__file__).parent / "models" / DEMO
"""Where it lies, inside the package: its target, drafter and chain."""


class Pair(NamedTuple):
    """A target and the drafter published for it."""

    target: str
    drafter: str
    model_type: str = ""
    """The target's, as its config.json spells it; empty where this version cannot run it."""
    note: str = ""

    @property
    def runs(self) -> bool:
        """Whether this version can run the target."""
        return bool(self.model_type)

    @property
    def short_name(self) -> str:
        """The target without its owner and without endings that drafter names leave out."""
        return self.target.partition("/")[2].removesuffix("-Instruct")


class Match(NamedTuple):
    """A pair found by name; `exact` is false where only a part of the name fits."""

    pair: Pair
    exact: bool


_NO_THINKING = "trained without thinking"
# Names as the authors of DFlash publish them.
PAIRS: tuple[Pair, ...] = (
    Pair("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", "qwen3", _NO_THINKING),
    Pair("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", "qwen3", _NO_THINKING),
    Pair(
        "meta-llama/Llama-3.1-8B-Instruct",
        "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        "llama",
    ),
    Pair("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash"),
    Pair("Qwen/Qwen3-Coder-Next", "z-lab/Qwen3-Coder-Next-DFlash"),
    Pair("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash"),
    Pair("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash"),
    Pair("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash"),
    Pair("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash"),
    Pair("Qwen/Qwen3.5-122B-A10B", "z-lab/Qwen3.5-122B-A10B-DFlash"),
    Pair("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", note="preview"),
    Pair("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash"),
    Pair("moonshotai/Kimi-K2.5", "z-lab/Kimi-K2.5-DFlash"),
    Pair("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash"),
    Pair("openai/gpt-oss-120b", "z-lab/gpt-oss-120b-DFlash"),
)

SHIPPED: tuple[Pair, ...] = (
    Pair(DEMO, f"{DEMO}/drafter", "qwen3", "ships with Wager"),
    Pair(DEMO, f"{DEMO}/chain", "qwen3", "ships with Wager; guesses a chain"),
)
"""The demo pair; the first of its drafters is the one that "auto" takes."""


def shipped_folder(name: str) -> Path | None:
    """Where a model that ships should lie: `demo`, `demo/drafter`, `demo/chain`; None for every other name.

    These names come before folders: `./demo` is a folder of that name. Whether it is there is not looked at.
    """
    if name == DEMO:
        return DEMO_FOLDER / "target"
    known = {pair.drafter for pair in SHIPPED}
    return DEMO_FOLDER / name.partition("/")[2] if name in known else None


def find_pair(name: str, pairs: Iterable[Pair] = PAIRS) -> Match | None:
    """The pair whose target's name is the longest inside `name`, in any case of letters; None where none is.

    A drafter's own name finds its pair too, but never passes for a target. Names that ship must fit exactly.
    """
    shipped = next((pair for pair in SHIPPED if name in (pair.target, pair.drafter)), None)
    if shipped is not None:
        return Match(shipped, True)
    wanted = _plain(name)
    best: tuple[int, Match] | None = None
    for pair in pairs:
        if wanted in (_plain(pair.drafter), _last(_plain(pair.drafter))):
            return Match(pair, True)
        for known in (pair.target.partition("/")[2], pair.short_name):
            if _inside(_plain(known), wanted) and "dflash" not in wanted:
                exact = wanted in (_plain(pair.target), _last(_plain(pair.target)))
                if best is None or len(known) > best[0]:
                    best = (len(known), Match(pair, exact))
    return None if best is None else best[1]


def drafter_beside(target: str | Path) -> Path | None:
    """A drafter's folder that lies with its target's.

    That is `drafter` inside it, `drafter` beside a folder called `target`, or the published name beside it.
    """
    folder = Path(target)
    places = [folder / "drafter", *([folder.with_name("drafter")] if folder.name == "target" else [])]
    for place in places:
        if (place / "config.json").is_file():
            return place
    match = find_pair(folder.name)
    names = {f"{folder.name}-DFlash".lower()} | ({_last(_plain(match.pair.drafter))} if match else set())
    if not folder.is_dir():
        return None
    found = [one for one in folder.resolve().parent.iterdir() if one.name.lower() in names]
    return next((one for one in sorted(found) if (one / "config.json").is_file()), None)


def _plain(name: str) -> str:
    """Lower case, and the spelling of a download cache turned back into a name."""
    return name.strip().rstrip("/").replace("models--", "").replace("--", "/").lower()


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _inside(known: str, name: str) -> bool:
    """Whether `known` stands in `name` as whole words: a name of 4B is not inside one of 4Bit or 14B."""
    return re.search(rf"(?<![a-z0-9.]){re.escape(known)}(?![a-z0-9.])", name) is not None
