"""The examples of docs/frameworks.md and of the modules run; those in files are short."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest
from documents import run_examples, sections
from packages import require

DOCUMENT = Path(__file__).parents[2] / "docs" / "frameworks.md"
FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
IMPORTED = re.compile(r"^>>> (?:from|import) (?:edgeloss\.integrations\.)?(\w+)", re.MULTILINE)
PACKAGES = {"nnunet": "nnunetv2"}
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(("title", "examples"), sections(DOCUMENT).items())
def test_recipe(title: str, examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(*(PACKAGES.get(name, name) for name in IMPORTED.findall(examples)))
    monkeypatch.chdir(tmp_path)
    run_examples(examples, title)


@pytest.mark.parametrize(("module", "package"), [("fastai", "fastai"), ("mmseg", "mmseg")])
def test_docstrings(module: str, package: str) -> None:
    require(package)
    result = doctest.testmod(importlib.import_module(f"edgeloss.integrations.{module}"))
    assert result.attempted
    assert not result.failed


def test_every_python_block_runs() -> None:
    text = DOCUMENT.read_text()
    assert text.count("```python\n") == text.count("```python\n>>> ") == len(sections(DOCUMENT)) + 1


@pytest.mark.parametrize("path", [*FOLDER.rglob("*.py"), *FOLDER.rglob("*.sbatch")], ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 100
