"""No file of the engine imports, directly or through others, a file that imports it; types count as well."""

import ast

from tests.architecture.layout import PACKAGE, imports_of, module_name, package_files


def engine_imports() -> dict[str, set[str]]:
    """Of every module of the engine, the engine's modules that it imports anywhere."""
    paths = {module_name(path): path for path in package_files() if (PACKAGE / "engine") in path.parents}
    found = dict[str, set[str]]()
    for module, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {one.name for one in imports_of(tree, module, path.name == "__init__.py")}
        modules = {name if name in paths else name.rpartition(".")[0] for name in names}
        found[module] = (modules & paths.keys()) - {module}
    return found


def reached_from(module: str, imports: dict[str, set[str]]) -> set[str]:
    found, open_ends = set[str](), [module]
    while open_ends:
        new = imports[open_ends.pop()] - found
        found |= new
        open_ends += new
    return found


def test_the_engine_has_no_import_cycle() -> None:
    imports = engine_imports()
    assert "wager.engine.prelaunch.plain" in reached_from("wager.engine.step", imports)
    assert not [module for module in imports if module in reached_from(module, imports)]
