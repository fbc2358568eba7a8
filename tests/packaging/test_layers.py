"""Which part of the library may import which: a part imports those below it, and nothing imports itself by others."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# From the lowest layer up; the parts of a layer do not import each other. edgeloss alone is what `import edgeloss` is.
LAYERS = (
    ("_checks",),
    ("_reduction",),
    ("_reference",),
    ("_kernels", "_C"),
    ("_call",),
    ("functional",),
    ("loss", "adapters", "numerics"),
    ("fields", "metrics"),
    ("io",),
    ("viz",),
    ("debug",),
    ("doctor", "integrations"),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def imports_of(tree: ast.AST) -> set[str]:
    """Return what a module imports, in functions and by ``import_module`` too, but not for types alone."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            assert isinstance(node.args[0], ast.Constant), f"line {node.lineno}: a module whose name is computed"
            names.add(str(node.args[0].value))
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            names |= imports_of(node)
    return names


def graph() -> dict[str, set[str]]:
    """Return the modules of the repository and what each imports of them."""
    found = {}
    for folder, pattern in (("", "edgeloss/**/*.py"), *((name, "**/*.py") for name in ("examples", "benchmarks"))):
        for path in (ROOT / folder).glob(pattern):
            name = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")
            found[name] = imports_of(ast.parse(path.read_text("utf-8")))
    for name, imported in found.items():  # `from package import module` needs the module, not all of the package
        known = imported & found.keys() - {name}
        found[name] = {other for other in known if not any(one.startswith(f"{other}.") for one in known)}
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert len([*TopologicalSorter(graph()).static_order()]) > 100  # a CycleError names the modules of a circle


def test_imports_go_down() -> None:
    modules, upward = graph(), []
    for name, imported in modules.items():
        part = name.removeprefix("edgeloss.").partition(".")[0]
        if name == "edgeloss" or not name.startswith("edgeloss."):
            continue
        for other in imported - {"edgeloss"}:
            below = other.removeprefix("edgeloss.").partition(".")[0]
            if below != part and RANK[below] >= RANK[part]:
                upward.append(f"{name} imports {other}")
    assert upward == []


@pytest.mark.parametrize("source", ["import edgeloss.cli", "def f():\n    importlib.import_module('edgeloss.cli')"])
def test_every_way_to_import_is_read(source: str) -> None:
    assert "edgeloss.cli" in imports_of(ast.parse(source))


def test_includes_go_down() -> None:
    """The folder of one device includes nothing of another, and what all share nothing of either."""
    included: dict[str, set[str]] = {}
    for path in (ROOT / "csrc").rglob("*.*"):
        targets = re.findall(r'#include "([^"]+)"', path.read_text("utf-8"))
        found = {(path.parent / target).resolve().relative_to(ROOT / "csrc").as_posix() for target in targets}
        included[path.relative_to(ROOT / "csrc").as_posix()] = found
    assert len([*TopologicalSorter(included).static_order()]) > 30
    for name, found in included.items():
        own = {Path(name).parent.as_posix(), "."}
        assert {Path(target).parent.as_posix() for target in found} <= own, name
