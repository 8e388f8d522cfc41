"""Which packages belong to each optional extra of Wager, and the error when one of them is missing.

The names are those of `pip install 'wager[NAME]'`; pyproject.toml has the versions, and a test compares the
two. The command line and the rooms call `require` before they import such a package.
"""

from __future__ import annotations

from importlib.util import find_spec

from wager.errors import InputError

__all__ = ["EXTRAS", "missing_packages", "require"]

EXTRAS: dict[str, tuple[str, ...]] = {
    "plot": ("matplotlib",),
    "server": ("fastapi", "uvicorn", "pydantic", "prometheus_client"),
    "train": ("transformers",),
}
"""The names under which the packages are imported. `server` also installs llguidance, which only requests
with a grammar need: wager.text.grammar reports its absence."""


def missing_packages(extra: str) -> list[str]:
    """Returns the packages of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if find_spec(name) is None]


def require(extra: str, what: str) -> None:
    """Raises InputError if a package is missing that `what` needs; the message names the extra."""
    if missing := missing_packages(extra):
        raise InputError(f"{what} needs {', '.join(missing)}: pip install 'wager[{extra}]'")
