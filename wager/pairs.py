"""The drafter of each target: the pair that ships, a table of published names, and the search in it.

A model name matches the table entry with the longest name contained in it. So a folder, a fine-tune or a
quantised copy finds the pair of the model it was made from. Names of shipped models must match exactly. This
module compares names only; `wager doctor` reads the configs to check whether two folders fit. `wager models`,
`wager doctor` and the engine's assembly use it.
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
    "FETCHED",
    "MODELS_FOLDER",
    "PAIRS",
    "SHIPPED",
    "Match",
    "Pair",
    "drafter_beside",
    "find_pair",
    "shipped_folder",
]

BUILT_IN = ("none", "lookup")
"""Drafters without weights; `none` selects plain decoding."""

DEMO = "demo"
"""Name of the pair that ships; it is the default model."""

MODELS_FOLDER = Path(__file__).parent / "models"
"""Folder of everything with weights inside the package."""

DEMO_FOLDER = MODELS_FOLDER / DEMO
"""Folder of the demo pair inside the package, with its target, drafter and chain drafter."""


class Pair(NamedTuple):
    """A target and the drafter published for it."""

    target: str
    drafter: str
    model_type: str = ""
    """The target's model type as in its config.json; empty if this version cannot run the target."""
    note: str = ""

    @property
    def runs(self) -> bool:
        """Whether this version can run the target."""
        return bool(self.model_type)

    @property
    def short_name(self) -> str:
        """The target's name without its owner and without suffixes that drafter names omit."""
        return self.target.partition("/")[2].removesuffix("-Instruct")


class Match(NamedTuple):
    """A pair found by name; `exact` is false if only a part of the name matches."""

    pair: Pair
    exact: bool


_NO_THINKING = "trained without thinking"
# The names under which the authors of DFlash publish their drafters.
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
"""The demo pair with each of its drafters; "auto" takes the first."""

FETCHED: tuple[Pair, ...] = (Pair("smollm2", "smollm2/drafter", "llama", "`wager fetch smollm2` brings it"),)
"""Models that `wager fetch` brings to this machine, with their drafters, which ship with Wager."""


def shipped_folder(name: str) -> Path | None:
    """Returns the place of `demo`, `demo/drafter`, `demo/chain` or `smollm2/drafter`, otherwise None.

    These names take precedence over folders of the same name; write `./demo` for such a folder. The function
    does not check whether the folder or file exists.
    """
    if name == DEMO:
        return DEMO_FOLDER / "target"
    if name in {pair.drafter for pair in FETCHED}:
        return MODELS_FOLDER / f"{name}.gguf"
    known = {pair.drafter for pair in SHIPPED}
    return DEMO_FOLDER / name.partition("/")[2] if name in known else None


def find_pair(name: str, pairs: Iterable[Pair] = PAIRS) -> Match | None:
    """Returns the pair whose target name is the longest one contained in `name`, ignoring case, or None.

    The name of a drafter finds its pair too, but is never taken for a target. Names of models that ship or
    are fetched must match exactly.
    """
    shipped = next((pair for pair in SHIPPED if name in (pair.target, pair.drafter)), None)
    shipped = shipped or next((pair for pair in FETCHED if name in (pair.target, pair.drafter)), None)
    if shipped is not None:
        return Match(shipped, True)
    wanted = _normalized(name)
    best: tuple[int, Match] | None = None
    for pair in pairs:
        if wanted in (_normalized(pair.drafter), _last_part(_normalized(pair.drafter))):
            return Match(pair, True)
        for known in (pair.target.partition("/")[2], pair.short_name):
            if _contains_words(wanted, _normalized(known)) and "dflash" not in wanted:
                exact = wanted in (_normalized(pair.target), _last_part(_normalized(pair.target)))
                if best is None or len(known) > best[0]:
                    best = (len(known), Match(pair, exact))
    return None if best is None else best[1]


def drafter_beside(target: str | Path) -> Path | None:
    """Returns the folder of a drafter that is stored next to its target, or None.

    It looks for `drafter` inside the target's folder, for `drafter` next to a folder named `target`, and for
    the published name next to the target's folder.
    """
    folder = Path(target)
    places = [folder / "drafter", *([folder.with_name("drafter")] if folder.name == "target" else [])]
    for place in places:
        if (place / "config.json").is_file():
            return place
    match = find_pair(folder.name)
    names = {f"{folder.name}-DFlash".lower()} | (
        {_last_part(_normalized(match.pair.drafter))} if match else set()
    )
    if not folder.is_dir():
        return None
    found = [one for one in folder.resolve().parent.iterdir() if one.name.lower() in names]
    return next((one for one in sorted(found) if (one / "config.json").is_file()), None)


def _normalized(name: str) -> str:
    """Returns the name in lower case, with the folder name of a download cache converted back to a model
    name.
    """
    return name.strip().rstrip("/").replace("models--", "").replace("--", "/").lower()


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _contains_words(name: str, known: str) -> bool:
    """Whether `name` contains `known` as whole words: 14B and 4Bit do not contain 4B."""
    return re.search(rf"(?<![a-z0-9.]){re.escape(known)}(?![a-z0-9.])", name) is not None
