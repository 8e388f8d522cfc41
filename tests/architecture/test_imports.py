"""Rooms import downwards only, by the levels in layout.py; every rule is shown to catch its breach."""

import ast

import pytest

from tests.architecture.layout import imports_of, level_of, module_name, offences, package_files

FILES = package_files()


def test_the_package_obeys_its_levels() -> None:
    found = []
    for path in FILES:
        is_package = path.name == "__init__.py"
        found += offences(path.read_text(encoding="utf-8"), module_name(path), is_package)
    assert not found, "\n".join(found)


def test_every_module_has_a_room() -> None:
    homeless = [name for path in FILES if (name := module_name(path)) != "wager" and level_of(name) is None]
    assert not homeless


def test_the_root_imports_wager_only_for_type_checkers() -> None:
    [root] = [path for path in FILES if module_name(path) == "wager"]
    at_run_time = [
        node for node in ast.parse(root.read_text(encoding="utf-8")).body if not isinstance(node, ast.If)
    ]
    names = [found.name for node in at_run_time for found in imports_of(node, "wager", is_package=True)]
    assert not [name for name in names if name.startswith("wager")]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wager.errors", "import numpy"),
        ("wager.config", "from wager.policy import stats"),
        ("wager.tree.build", "from wager.policy.bod import BODConfig"),
        ("wager.tree.build", "import scipy.special"),
        ("wager.policy.auto", "import torch"),
        ("wager.policy.auto", "def late():\n    import torch.nn"),
        ("wager.policy.auto", "from wager.trace import record"),
        ("wager.policy.auto", "from scipy.special import lambertw"),
        ("wager.policy.auto", "from ..trace.record import Trace"),
        ("wager.text.detokenize", "from wager.tree import Tree"),
        ("wager.kvcache.pages", "from wager.kvcache.pool import Pool"),
        ("wager.kvcache.pages", "from wager.kvcache import pool"),
        ("wager.kvcache.prefix", "from . import commit"),
        ("wager.kvcache.pages", "from wager.policy import stats"),
        ("wager.nn.models.qwen3", "from wager.target.runner import Runner"),
        ("wager.target.runner", "from wager.draft.base import Drafter"),
        ("wager.draft.block", "from wager.target import runner"),
        ("wager.draft.block", "import wager.engine.step"),
        ("wager.engine.scheduler", "import torch"),
        ("wager.engine.step", "from wager.server.routes import app"),
        ("wager.train.loop", "from wager.engine.engine import Engine"),
        ("wager.train.loop", "from wager.server import routes"),
        ("wager.llm", "import torch"),
        ("wager.llm", "from wager.engine.scheduler import Scheduler"),
        ("wager.server.routes", "from wager.nn.weights import load"),
        ("wager.server.routes", "from wager.llm import LLM"),
        ("wager.server.routes", "from wager.cli.main import run"),
    ],
)
def test_a_breach_is_seen(module: str, source: str) -> None:
    assert len(offences(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wager.config", "import json\nfrom wager.errors import ConfigError"),
        ("wager.policy.auto", "import numpy as np\nfrom numpy import linalg"),
        ("wager.policy.auto", "from wager.tree.build import build"),
        ("wager.trace.replay", "from wager.policy import bod\nfrom wager.tree import Tree"),
        ("wager.kvcache.prefix", "from .pages import Pages"),
        ("wager.kvcache.pool", "import torch\nfrom wager.kvcache.pages import Pages"),
        (
            "wager.target.verify",
            "import torch\nfrom wager.tree.accept import accept\nfrom wager.nn import weights",
        ),
        ("wager.engine.step", "import torch\nfrom wager.draft import base\nfrom wager.target import runner"),
        ("wager.server.routes", "import fastapi\nfrom wager.engine.engine import Engine"),
        ("wager.llm", "from wager.engine import engine\nfrom wager.text import stop"),
        ("wager.cli.serve", "import torch\nfrom wager.server import routes\nfrom wager.train import loop"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert offences(source, module) == []
