"""The figures of the documents are those of the committed results, and their commands can be given."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, name_of
from test_commands import check_script

import doc_figures
from doc_figures import FIGURES


@pytest.mark.parametrize("page", doc_figures.pages())
def test_figures_are_those_of_the_results(page: str) -> None:
    text = (ROOT / page).read_text()
    assert doc_figures.written(page, text) == text, "run python benchmarks/doc_figures.py --write"
    assert doc_figures.missing(page, text) == []


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_has_a_command_and_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (ROOT / "benchmarks" / "results" / FIGURES[name].results).is_file()
    monkeypatch.chdir(ROOT)
    check_script(shlex.split(FIGURES[name].command)[1:], monkeypatch)


def test_no_page_names_a_figure_that_is_not_listed() -> None:
    named = {
        (name_of(document), name)
        for document in DOCUMENTS
        for name in re.findall("<!-- figures: (.*) -->", document.read_text())
    }
    assert named == {(page, name) for name, of_results in FIGURES.items() for page in of_results.tables}


def test_every_committed_result_is_listed() -> None:
    results = {path.name for path in (ROOT / "benchmarks" / "results").iterdir()}
    assert results == {of_results.results for of_results in FIGURES.values()}


def test_a_figure_that_differs_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in doc_figures.pages():
        (tmp_path / page).parent.mkdir(exist_ok=True)
        text = (ROOT / page).read_text().replace("| camvid |", "| CamVid |")
        (tmp_path / page).write_text(re.sub("which the loss takes [0-9.]+ %", "which the loss takes 99 %", text))
    monkeypatch.setattr(sys, "argv", ["doc_figures.py"])
    assert doc_figures.main(tmp_path) == 1
    reported = capsys.readouterr().err
    assert "README.md: a table differs" in reported
    assert "docs/training.md: expected the words: A step of 4 images" in reported
    monkeypatch.setattr(sys, "argv", ["doc_figures.py", "--write"])
    doc_figures.main(tmp_path)
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()
