"""The program: help, information, processes and imports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import ROOT, Run, arguments, process, wrote

import edgeloss
from edgeloss.cli.messages import with_clock


@pytest.mark.parametrize("command", ["view", "metrics", "diagnose", "info"])
def test_help_has_examples(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"  Examples:\n    edgeloss {command}" in ran.out  # one line each, not wrapped as prose


def test_missing_options_are_named(run: Run) -> None:
    ran = run("view", "--mask", "mask.png")
    assert ran.code == 2
    assert "Missing option '--pred'" in ran.err


def test_info(run: Run) -> None:
    facts = json.loads(run("info", "--json").out)
    assert facts["torch"].startswith(torch.__version__)
    assert facts["backends"]["reference"] == "available"
    text = run("info").out
    assert re.search(r"^numpy: \d", text, re.MULTILINE)
    assert "\n  reference: available\n" in text


@pytest.mark.slow  # two starts that import everything; the next test starts the program too
def test_runs_as_a_program(folder: Path) -> None:
    ran = process("view", *arguments(folder), "-o", folder / "panel.png")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert re.fullmatch(wrote(folder / "panel.png"), ran.stderr)
    (folder / "mask.png").write_bytes(b"")
    ran = process("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran.returncode == 2
    assert re.fullmatch(r"edgeloss: error: .*mask\.png: can't be read as an image \(.*\)\n", ran.stderr)


GIVEN = ["--pred", __file__, "--mask", __file__]


@pytest.mark.parametrize("start", [["/bin/edgeloss"], ["-m", "edgeloss.cli"]])
@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["view", "--help"], 0, "--edge-weight"),
        (["--version"], 0, f"edgeloss {edgeloss.__version__}\n"),
        (["view", "--pred", "no.npy", "--mask", "no.png", "-o", "a.png"], 2, "error: no.npy: no such file or folder\n"),
        (["metrics", "--pred", __file__, "--mask", "no.png", "--classes", "3"], 2, "error: no.png: no such"),
        (["view", *GIVEN, "--classes", "no.txt", "-o", "a.png"], 2, "error: no.txt: no such file or folder\n"),
        (["compare", __file__, __file__, *GIVEN[2:], "--palette", "VOC", "-o", "a.html"], 2, "error: VOC: expected a"),
    ],
)
def test_torch_is_imported_where_it_is_needed(start: list[str], words: list[str], code: int, expected: str) -> None:
    """Importing torch takes longer than they should."""
    program = f"""
import sys
sys.argv = ["{start[0]}", *{words}]
sys.orig_argv = [sys.executable, *{start}, *{words}]
from edgeloss.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    ran = process(code=program)
    assert ran.returncode == code
    assert expected in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("slow", ["typer", "torch"])
@pytest.mark.parametrize("start", ["program", "module"])
def test_imports_can_be_interrupted(slow: str, start: str, tmp_path: Path) -> None:
    (tmp_path / f"{slow}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    for name in ("mask.png", "pred.npy"):  # a missing file is reported before torch is imported
        (tmp_path / name).touch()
    program = tmp_path / "edgeloss"
    program.write_text("from edgeloss.cli import main\nmain()\n")
    begin = [str(program)] if start == "program" else ["-m", "edgeloss.cli"]
    command = [sys.executable, *begin, "view", *map(str, arguments(tmp_path)), "-o", "panel.png"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "importing\n"
        child.send_signal(signal.SIGINT)
        child.wait(timeout=60)  # by its process, not by pipes, which one of its own children might hold open
        errors = child.stderr.read()
    assert (child.returncode, errors) == (130, "")


def test_other_programs_import_all_names(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__init__.py").write_text("import edgeloss\nfrom edgeloss import EdgeAwareLoss\n")
    (tmp_path / "project" / "train.py").write_text(
        "import edgeloss\nprint([name for name in edgeloss.__all__ if not hasattr(edgeloss, name)])\n"
    )
    # Python imports the package of a module that is run with -m before it sets sys.argv.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "project.train", "--help"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "[]\n", ran.stderr


@pytest.mark.parametrize("is_terminal", [True, False])
def test_one_picture_shows_the_time_on_a_terminal_only(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", "xterm")
    with with_clock("a[b]\n.npy"):
        pass
    shown = capsys.readouterr().err
    assert ("a[b]\\n.npy" in shown) == is_terminal
    assert ("0:00:00" in shown) == is_terminal
    assert is_terminal or not shown
