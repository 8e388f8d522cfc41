"""What every test starts from: loggers as a program finds them, passes by plain torch, unmeasured costs."""

import importlib.util
import logging
from collections.abc import Iterator

import pytest

from wager.engine import cost_file
from wager.nn.native import build

if importlib.util.find_spec("uvicorn") is None:
    collect_ignore = ["server", "cli/test_serve.py"]  # a machine for kernels need not be able to serve


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """The command line and the server set up the `wager` logger; here that ends with a test."""
    logger = logging.getLogger("wager")
    before = (logger.level, logger.propagate, list(logger.handlers), logger.disabled)
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers, logger.disabled = before[1:]


@pytest.fixture(autouse=True, scope="session")
def nothing_calibrated() -> Iterator[None]:
    """No calibration is read, kept or made: what a test decides must not hang on what ran before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_file, "folder", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def plain_passes() -> Iterator[None]:
    """Passes are plain torch's, whatever lies in the user's cache; tests/nn/native asks for the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "find", lambda: build.Built(None, "not in tests"))
        patch.setattr(build, "start", lambda: None)
        yield
