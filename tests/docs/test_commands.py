"""The commands in the documents can be given: programs, targets and extras exist, and options are known."""

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
        for block in blocks(document, "", "bash", "console", "sh"):
            lines = [words(line) for line in block.replace("\\\n", " ").splitlines()]
            if lines[0] and lines[0][0] in OURS + OTHERS:
                yield from (pytest.param(line, id=f"{name_of(document)}: {shlex.join(line)}") for line in lines if line)


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
