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
from edgeloss.cli.progress import with_steps


@pytest.mark.parametrize("command", ["view", "compare", "metrics", "diagnose", "info"])
def test_help_has_examples(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"Examples:\n  edgeloss {command}" in ran.out  # one line each, not wrapped as prose


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


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "edgeloss.cli", "info"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (141, "")


GIVEN = ["--pred", __file__, "--mask", __file__]
# Words, and the exit code and a part of the output of each.
LIGHT: list[tuple[list[str], int, str]] = [
    (["view", "--help"], 0, "--edge-weight"),
    (["--version"], 0, f"edgeloss {edgeloss.__version__}\n"),
    (["view", "--pred", "no.npy", "--mask", "no.png", "-o", "a.png"], 2, "error: no.npy: no such file or folder\n"),
    (["metrics", "--pred", __file__, "--mask", "no.png", "--classes", "3"], 2, "error: no.png: no such"),
    (["view", *GIVEN, "--classes", "no.txt", "-o", "a.png"], 2, "error: no.txt: no such file or folder\n"),
    (["view", *GIVEN, "--slice", "4-2", "-o", "a.png"], 2, "error: argument --slice: expected N or FIRST-LAST"),
    (["view", *GIVEN, "--remap", "1:2:3", "-o", "a.png"], 2, "error: argument --remap: expected FROM:TO"),
    (["diagnose", *GIVEN, "--classes", "1"], 2, "error: argument --classes: expected 2 to 32767 classes"),
    (["compare", __file__, __file__, *GIVEN[2:], "--palette", "VOC", "-o", "a.html"], 2, "error: VOC: expected a"),
]
STARTS = [["/bin/edgeloss"], ["-m", "edgeloss.cli"]]
EACH = """
import contextlib, io, json, sys
found = []
for start, words in json.loads(sys.argv[1]):
    sys.argv, sys.orig_argv = [start[0], *words], [sys.executable, *start, *words]
    for name in [name for name in sys.modules if name.partition(".")[0] == "edgeloss"]:
        del sys.modules[name]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            from edgeloss.cli import main
            main()
        except SystemExit as end:
            found.append([end.code or 0, out.getvalue(), "torch" in sys.modules or "numpy" in sys.modules])
print(json.dumps(found))
"""


def test_torch_is_imported_where_it_is_needed() -> None:
    """Importing torch takes longer than they should; all begin without the package, in one process."""
    given = [(start, words) for start in STARTS for words, *_ in LIGHT]
    ran = subprocess.run([sys.executable, "-c", EACH, json.dumps(given)], capture_output=True, text=True, timeout=120)
    for (start, words), found, (_, code, expected) in zip(given, json.loads(ran.stdout), LIGHT * 2, strict=True):
        assert found[::2] == [code, False], (start, words, found)
        assert expected in found[1], (start, words)


@pytest.mark.parametrize(
    ("slow", "start"),
    [
        ("rich", "program"),
        ("torch", "module"),
        pytest.param("rich", "module", marks=pytest.mark.slow),
        pytest.param("torch", "program", marks=pytest.mark.slow),
    ],
)
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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_computed_is_shown_on_a_terminal_only(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for _, said in with_steps(["a[b]\n.npy"], "images"):
        said("maps, row 512 of 4000")
    shown = capsys.readouterr().err
    if is_terminal:
        assert all(text in shown for text in ("a[b]\\n.npy: maps, row 512 of 4000", "0/1", "0:00:00"))
    assert is_terminal or not shown
