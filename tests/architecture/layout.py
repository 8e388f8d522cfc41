"""The import rules as data, and the reading of source files that the architecture tests share.

It parses files and never imports them, so it needs no torch and minds no room that does not exist yet.
`offences` is the one judgement: what a module may not import, in words.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "wager"

# The longest prefix decides. `wager` itself only lists names and is judged on its own.
LEVELS = {
    "wager.errors": 0,
    "wager.extras": 0,
    "wager.garbage": 0,
    "wager.threads": 0,
    "wager.records": 0,
    "wager.stats": 0,
    "wager.config": 0,
    "wager.server_config": 0,
    "wager.resolve": 0,
    "wager.pairs": 0,
    "wager.fetched": 0,
    "wager.log": 0,
    "wager.cards": 0,
    "wager.gguf": 0,
    "wager.costs": 1,
    "wager.policy": 1,
    "wager.tree": 1,
    "wager.trace": 1,
    "wager.text": 1,
    "wager.kvcache": 1,
    "wager.kvcache.pool": 2,
    "wager.kvcache.commit": 2,
    "wager.nn": 2,
    "wager.target": 3,
    "wager.draft": 3,
    "wager.engine": 4,
    "wager.train": 4,
    "wager.llm": 5,
    "wager.server": 5,
    "wager.cli": 6,
    "wager.bench": 6,
}

# Between different rooms of one level nothing is allowed but this.
SAME_LEVEL = {"policy": {"costs", "tree"}, "trace": {"costs", "policy", "tree"}, "nn": {"kvcache"}}

# Third-party names open to the torch-free rooms; the standard library always is.
LIBRARIES = {
    "costs": {"numpy"},
    "policy": {"numpy"},
    "tree": {"numpy"},
    "trace": {"numpy"},
    "text": {"numpy", "tokenizers", "transformers", "jinja2", "huggingface_hub", "llguidance"},
    "kvcache": {"numpy"},
}

ENGINE_INTERFACE = {"wager.engine.engine", "wager.engine.assemble", "wager.engine.thread"}
"""What callers of the engine may import: the engine, the function that builds one, and its thread."""

TORCH_FREE_ENGINE = {"wager.engine.scheduler", "wager.engine.sequence", "wager.engine.budget"}


class Import(NamedTuple):
    """One imported module, or `module.name` where the name might be a module, and its line."""

    name: str
    line: int


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def level_of(module: str) -> int | None:
    """The level of a module, or None for one that no room claims."""
    while module != "wager" and module:
        if module in LEVELS:
            return LEVELS[module]
        module = module.rpartition(".")[0]
    return None


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    here = module.split(".") if is_package else module.split(".")[:-1]
    here = here[: len(here) - (node.level - 1)]
    return ".".join([*here, node.module] if node.module else here)


def imports_of(tree: ast.AST, module: str, is_package: bool = False) -> Iterator[Import]:
    """Every import in the file, the late and the type-only ones included: they are dependencies too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _within(name: str, allowed: Iterable[str]) -> bool:
    return any(name == one or name.startswith(one + ".") for one in allowed)


def _own_offence(module: str, name: str) -> str | None:
    """Why `module` may not import `name` from inside wager."""
    mine, theirs = level_of(module), level_of(name)
    if mine is None or theirs is None or mine == 6:
        return None
    same_room = room_of(module) == room_of(name)
    if theirs > mine:
        return f"level {mine} imports level {theirs}"
    if mine == 5 and not same_room and theirs > 1 and not _within(name, ENGINE_INTERFACE):
        return "level 5 may import engine/{engine,assemble,thread}.py and levels 0-1 only"
    if theirs == mine > 0 and not same_room and room_of(name) not in SAME_LEVEL.get(room_of(module), ()):
        return f"{room_of(module)} and {room_of(name)} are of one level"
    return None


def _library_offence(module: str, name: str) -> str | None:
    """Why `module` may not import `name` from outside wager."""
    level, top = level_of(module), name.partition(".")[0]
    if top in sys.stdlib_module_names or level is None:
        return None
    if level == 0:
        return "level 0 is standard library only"
    if level == 1 and not _within(name, LIBRARIES[room_of(module)]):
        return f"{room_of(module)} may import {', '.join(sorted(LIBRARIES[room_of(module)]))} only"
    if top == "torch" and (level == 5 or module in TORCH_FREE_ENGINE):
        return "this module has no direct torch"
    return None


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line per import that the levels refuse."""
    found = []
    for imported in imports_of(ast.parse(source), module, is_package):
        judge = _own_offence if _within(imported.name, {"wager"}) else _library_offence
        if reason := judge(module, imported.name):
            found.append(f"{module}:{imported.line} imports {imported.name}: {reason}")
    return found
