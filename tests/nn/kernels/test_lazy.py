"""Triton is needed by nobody without a CUDA device: no file outside imports this folder when it is loaded."""

import ast

from tests.architecture.layout import imports_of, module_name, package_files


def loaded_imports(source: str, module: str, is_package: bool) -> list[str]:
    """What a file imports when it is loaded: functions' own imports, and those for types, are left out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
    return [one.name for one in imports_of(tree, module, is_package)]


KERNEL_FILES = {
    "wager.target.graphs",
    "wager.target.pass_packing",
    "wager.target.places",
    "wager.target.tree_builder",
    "wager.target.choice_kernels",
    "wager.draft.block_kernels",
    "wager.draft.block_prelaunch",
}
"""Files outside that are of use on a CUDA device alone: nobody loads them elsewhere."""

WITHOUT_TRITON = tuple(
    f"wager.nn.kernels.{name}"
    for name in ("has_kernels", "capture", "staging", "support", "quant_layers", "quant_weights")
)


def needs_triton(name: str) -> bool:
    """Whether an imported name is a kernel's, triton's, or of a file that loads them."""
    is_kernel = name.startswith("wager.nn.kernels.") and not name.startswith(WITHOUT_TRITON)
    return is_kernel or name.split(".")[0] == "triton" or any(name.startswith(file) for file in KERNEL_FILES)


def test_nobody_outside_loads_a_kernel_or_triton() -> None:
    found = []
    for path in package_files():
        module = module_name(path)
        if module in KERNEL_FILES or module.startswith("wager.nn.kernels."):
            continue
        names = loaded_imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        found += [f"{module}: {name}" for name in names if needs_triton(name)]
    assert not found, "\n".join(found)


def test_an_import_inside_a_function_is_not_counted() -> None:
    source = "import os\ndef f():\n    import triton\n"
    assert loaded_imports(source, "wager.x", False) == ["os"]
