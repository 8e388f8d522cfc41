"""Levels 0 and 1 and the engine's planning files import in a process that has no torch at all."""

import json
import subprocess
import sys

from tests.architecture.layout import ROOT, TORCH_FREE_ENGINE, level_of, module_name, package_files

# Finders are wrapped, rather than torch blocked, so that a library asking whether torch exists hears "no".
WITHOUT_TORCH = """
import importlib, json, sys, traceback

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
failures = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception as error:
        failures[name] = "".join(traceback.format_exception_only(error)).strip()
print(json.dumps(failures))
"""


def python(*args: str) -> str:
    done = subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def failures_without_torch(names: list[str]) -> dict[str, str]:
    return json.loads(python("-c", WITHOUT_TORCH, json.dumps(names)))


def test_the_lower_levels_import_without_torch() -> None:
    names = [module_name(path) for path in package_files()]
    lower = [name for name in names if level_of(name) in (0, 1) or name in TORCH_FREE_ENGINE]
    assert "wager.errors" in lower
    assert failures_without_torch(["wager", *lower]) == {}


def test_the_process_really_has_no_torch() -> None:
    assert list(failures_without_torch(["torch", "torch.nn", "json"])) == ["torch", "torch.nn"]


def test_importing_wager_imports_neither_torch_nor_numpy() -> None:
    loaded = python("-c", "import sys, wager; print(*sys.modules)").split()
    assert "wager" in loaded
    assert not {"torch", "numpy"} & set(loaded)


def test_help_and_version_import_neither_torch_nor_numpy() -> None:
    program = (
        "import sys; from wager.cli.main import exit_status\n"
        "assert exit_status(['--help']) == exit_status(['--version']) == 0\n"
        "print('LOADED', *sys.modules)"
    )
    loaded = python("-c", program).rpartition("LOADED")[2].split()
    assert "typer" in loaded
    assert not {"torch", "numpy"} & set(loaded)
