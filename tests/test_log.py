"""Logging: the level's source, one line per record, and no doubled handlers."""

import io
import logging
from collections.abc import Iterator

import pytest

from wager import log
from wager.errors import ConfigError


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger("wager")
    before = (logger.handlers[:], logger.propagate, logger.level)
    yield
    logger.handlers[:], logger.propagate, level = before
    logger.setLevel(level)


def test_flag_beats_variable_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log.VARIABLE, raising=False)
    assert log.chosen_level() == "warning"
    monkeypatch.setenv(log.VARIABLE, "INFO")
    assert log.chosen_level() == "info"
    assert log.chosen_level("debug") == "debug"


def test_an_unknown_level_names_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log.VARIABLE, "loud")
    with pytest.raises(ConfigError, match="WAGER_LOG = 'loud'"):
        log.configure()


def test_a_record_is_one_line_and_written_once() -> None:
    stream = io.StringIO()
    log.configure("info", io.StringIO())
    log.configure("info", stream)
    logger = logging.getLogger("wager.engine")
    logger.debug("too quiet")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("drafter\nfailed")
    [line] = stream.getvalue().splitlines()
    assert line.endswith("ERROR wager.engine: drafter failed (ValueError: first second)")
