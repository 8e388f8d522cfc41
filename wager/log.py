"""Logging for the command line: one line per record, on stderr, under the logger `wager`.

The level comes from the caller's flag, else from the variable WAGER_LOG, else it is `warning`. Numbers do not
belong here: they go to the step report and to metrics. A program that embeds Wager sets up its own logging
and never calls this; only `wager.cli` does.
"""

import logging
import os
from typing import TextIO

from wager.errors import ConfigError, one_line

LEVELS = ("debug", "info", "warning", "error")
VARIABLE = "WAGER_LOG"


class _OneLine(logging.Formatter):
    """Folds a record, its exception's message included, into one line."""

    def format(self, record: logging.LogRecord) -> str:
        text = (
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname} {record.name}: {record.getMessage()}"
        )
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f" ({type(error).__name__}: {error})"
        return one_line(text)


def chosen_level(flag: str | None = None) -> str:
    """The level's name: the flag's, else the variable's, else `warning`; ConfigError on an unknown one."""
    field, value = ("--log", flag) if flag else (VARIABLE, os.environ.get(VARIABLE) or "warning")
    level = value.lower()
    if level not in LEVELS:
        raise ConfigError(field, value, f"one of {', '.join(LEVELS)}")
    return level


def configure(flag: str | None = None, stream: TextIO | None = None) -> str:
    """Send the records of `wager` to stderr (or `stream`) and return the level; a later call replaces it."""
    level = chosen_level(flag)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine())
    logger = logging.getLogger("wager")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    return level
