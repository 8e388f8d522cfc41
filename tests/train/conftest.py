"""The toy target, trained once for all tests of this folder."""

import pytest

from tests.train.toy import Toy, make_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))
