"""The commands in the documents can be given, and their figures are those of the committed results.

Programs, targets and extras exist, and options are known.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import DOCUMENTS, ROOT, blocks, name_of

import doc_figures
from doc_figures import FIGURES

OURS = ("edgeloss", "make", "pip", "python")
OTHERS = ("echo", "export", "mkdir", "nnUNetv2_train", "sbatch", "uv")  # of the system and of frameworks


def words(line: str) -> list[str]:
    """Split a line of a shell, without what stands before the command: variables, and programs that start others."""
    found = shlex.split(line, comments=True)
    while found and (re.match(r"\w+=", found[0]) or found[0] == "nice"):
        found = found[1:]
    if found and found[0] == "torchrun":
        found = ["python", *(word for word in found[1:] if not word.startswith("--n"))]
    return found


def commands() -> Iterator[Any]:
    """Return every command of the documents; a block that does not begin with one holds something else."""
    for document in DOCUMENTS:
        for block in blocks(document, "", "bash", "sh"):
            lines = [words(line) for line in block.replace("\\\n", " ").splitlines()]
            if lines[0] and lines[0][0] in OURS + OTHERS:
                yield from (pytest.param(line, id=f"{name_of(document)}: {shlex.join(line)}") for line in lines if line)


def sessions() -> Iterator[Any]:
    """Return every command of the documents that stands above what it prints."""
    for document in DOCUMENTS:
        for block in blocks(document, "console"):
            command, _, output = block.partition("\n")
            if command.startswith("$ edgeloss "):
                yield pytest.param(shlex.split(command)[2:], output, id=f"{name_of(document)}: {command}")


def numbers_of(text: str) -> tuple[list[str], list[float], list[float]]:
    """Split a text into words, numbers, and the unit of the last digit of each number, by which machines may differ."""
    number = r"\d+(?:\.\d+)?"
    found = re.findall(number, text)
    return re.split(number, text), [*map(float, found)], [10.0 ** -len(one.partition(".")[2]) for one in found]


@pytest.mark.parametrize(("words", "output"), list(sessions()))
def test_session(
    words: list[str], output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    from edgeloss.cli import main

    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit):
        main(words)
    (texts, numbers, units), (others, printed, _) = numbers_of(output), numbers_of(capsys.readouterr().out)
    assert others == texts
    assert all(abs(one - other) <= 1.5 * unit for one, other, unit in zip(numbers, printed, units, strict=True))


def test_there_is_a_session() -> None:
    assert [*sessions()]


class Parsed(Exception):  # noqa: N818
    """What a program has made of its arguments; it ends the program."""


@pytest.mark.filterwarnings("default")  # Lightning's own
@pytest.mark.parametrize("command", list(commands()))
def test_command(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = command
    monkeypatch.chdir(ROOT)
    if program == "edgeloss":
        check_edgeloss(arguments)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", Path("Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
    elif program == "pip":
        table = Path("pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
        extras = re.findall(r"^(\w+) = ", table, re.MULTILINE)
        assert {word for group in re.findall(r"\.\[(.+)\]", " ".join(arguments)) for word in group.split(",")} <= {
            *extras
        }
    elif program == "python" and arguments[0] == "-m":
        assert arguments[1] in ("build", "venv")
    elif program == "python":
        check_script(arguments, monkeypatch)
    else:
        assert program in OTHERS


def check_edgeloss(arguments: list[str]) -> None:
    """Parse the arguments of the command of the package."""
    pytest.importorskip("rich", reason="rich is not installed")
    from edgeloss.cli.commands import make_parser

    if arguments[0] in ("--help", "--version"):
        return
    make_parser().parse_args(arguments)


def check_script(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script up to the place where it has parsed its arguments."""
    script = arguments[0]
    assert Path(script).is_file()
    if len(arguments) == 1:  # there is nothing to parse, and it would run
        return

    def ends(parse: Any) -> Any:
        def call(parser: argparse.ArgumentParser, given: list[str] | None = None) -> None:
            raise Parsed(parse(parser, given))

        return call

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, ends(getattr(argparse.ArgumentParser, name)))
    monkeypatch.setattr(sys, "argv", arguments)
    if script == "examples/train.py":
        pytest.importorskip("lightning", reason="Lightning is not installed")
        from segkit.run import TrainCLI

        monkeypatch.setattr(TrainCLI, "instantiate_classes", ends(lambda cli, given: cli.config))
    with pytest.raises(Parsed):
        runpy.run_path(script, run_name="__main__")


# -------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("page", doc_figures.pages())
@pytest.mark.slow
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


@pytest.mark.slow
def test_a_figure_that_differs_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in doc_figures.pages():
        (tmp_path / page).parent.mkdir(exist_ok=True)
        text = (ROOT / page).read_text().replace("| CamVid", "| camvid")
        (tmp_path / page).write_text(re.sub("which the loss takes [0-9.]+ %", "which the loss takes 99 %", text))
    monkeypatch.setattr(sys, "argv", ["doc_figures.py"])
    assert doc_figures.main(tmp_path) == 1
    reported = capsys.readouterr().err
    assert "README.md: a table differs" in reported
    assert "docs/training.md: expected the words: A step of 4 images" in reported
    monkeypatch.setattr(sys, "argv", ["doc_figures.py", "--write"])
    doc_figures.main(tmp_path)
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()
