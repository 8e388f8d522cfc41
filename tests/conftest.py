"""What every test starts from: the loggers as a program finds them, whatever an earlier test set up."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """The command line and the server set up the `wager` logger; here that ends with a test."""
    logger = logging.getLogger("wager")
    before = (logger.level, logger.propagate, list(logger.handlers), logger.disabled)
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers, logger.disabled = before[1:]
