"""Which part of the library may import which: a part imports those below it, and nothing imports itself by others."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from house import RANK, ROOT, arrows, graph, imports_of


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others() -> None:
    assert len([*TopologicalSorter(graph()).static_order()]) > 100  # a CycleError names the modules of a circle


def test_imports_go_down() -> None:
    pairs = arrows()
    assert len(pairs) > 30
    assert {(upper, lower) for upper, lower in pairs if lower and RANK[lower] >= RANK[upper]} == set()


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
