"""Logging of the command line: one line per record, on stderr, under the logger `wager`.

The level comes from the caller's flag, else from the variable WAGER_LOG, else it is `warning`. Measured
numbers are not logged: they go to the step report and to the metrics. A program that embeds Wager sets up its
own logging and never calls this module; only `wager.cli` does.
"""

import logging
import os
from typing import TextIO

from wager.errors import ConfigError, one_line

LEVELS = ("debug", "info", "warning", "error")
VARIABLE = "WAGER_LOG"


class _OneLine(logging.Formatter):
    """Formats a record, including the message of its exception, as one line."""

    def format(self, record: logging.LogRecord) -> str:
        text = (
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname} {record.name}: {record.getMessage()}"
        )
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f" ({type(error).__name__}: {error})"
        return one_line(text)


def chosen_level(flag: str | None = None) -> str:
    """Returns the name of the level from the flag, the variable or the default. Raises ConfigError on an
    unknown one.
    """
    field, value = ("--log", flag) if flag else (VARIABLE, os.environ.get(VARIABLE) or "warning")
    level = value.lower()
    if level not in LEVELS:
        raise ConfigError(field, value, f"one of {', '.join(LEVELS)}")
    return level


def configure(flag: str | None = None, stream: TextIO | None = None) -> str:
    """Sends the records of `wager` to stderr or `stream` and returns the level; a later call replaces the
    handler.
    """
    level = chosen_level(flag)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine())
    logger = logging.getLogger("wager")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    return level
