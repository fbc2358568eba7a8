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
from edgeloss.cli.progress import with_progress, with_steps


@pytest.mark.parametrize("command", ["view", "compare", "metrics", "diagnose", "info"])
def test_help_has_examples(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"Examples:\n  edgeloss {command}" in ran.out  # one line each, not wrapped as prose


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("command", ["view", "compare", "metrics", "diagnose"])
def test_help_fits_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in (["--help"], [command, "--help"], [command, "--help-all"]):
        lines = run(*words).out.splitlines()
        assert max(map(len, lines)) <= width
        assert not [line for line in lines if line.endswith(("-", "[C,", "[D,"))]  # a broken word or shape


def test_examples_can_be_pasted_at_any_width(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    for width in (50, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        examples = run("view", "--help").out.partition("Examples:\n")[2].partition("\n\n")[0]
        shown.append([line.split() for line in examples.replace("\\\n", "").splitlines()])
    assert shown[0] == shown[1]
    assert len(shown[0]) == 4


@pytest.mark.parametrize("command", ["view", "compare", "metrics", "diagnose"])
def test_help_describes_the_usual_options_and_names_the_others(run: Run, command: str) -> None:
    usual, every = (run(command, word).out for word in ("--help", "--help-all"))
    described, known = (set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE)) for text in (usual, every))
    assert described < known
    assert {"--mask", "--classes", "--palette", "--help", "--help-all"} <= described
    assert {"--slice", "--remap"} <= known - described
    assert ("--radius" in known) == (command != "metrics")
    begin, others = usual.split(" more options, ")
    assert int(begin.rpartition("\n")[2]) == len(known - described)
    assert set(re.findall("--[a-z-]+", others)) - {"--help-all"} == known - described
    assert "more options" not in every
    assert "None" not in every
    assert "--help-all" not in run("info", "--help").out


def test_without_a_command_the_help_is_printed(run: Run) -> None:
    assert run() == run("--help")


def test_info(run: Run) -> None:
    facts = json.loads(run("info", "--json").out)
    assert facts["torch"].startswith(torch.__version__)
    assert facts["backends"]["reference"] == "available"
    text = run("info").out
    assert re.search(r"^numpy: \d", text, re.MULTILINE)
    assert "\n  reference: available\n" in text


def test_a_missing_package_is_one_line_with_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_package(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'torchmetrics'", name="torchmetrics")

    monkeypatch.setattr("edgeloss.cli.info.info", without_package)
    ran = run("info")
    assert ran.code == 2
    assert ran.err.startswith("edgeloss: error: the command needs torchmetrics; ")
    assert "[cli]" in ran.err


@pytest.mark.slow  # two starts that import everything; the next test starts the program too
def test_runs_as_a_program(folder: Path) -> None:
    ran = process("view", *arguments(folder), "-o", folder / "panel.png")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert re.fullmatch(wrote(folder / "panel.png"), ran.stderr)
    (folder / "mask.png").write_bytes(b"")
    ran = process("view", *arguments(folder), "-o", folder / "panel.png")
    assert ran.returncode == 2
    assert re.fullmatch(r"edgeloss: error: .*mask\.png: can't be read as an image \(.*\)\n", ran.stderr)


@pytest.mark.slow
def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "edgeloss", "info"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (141, "")


GIVEN = ["--pred", __file__, "--mask", __file__]
# Words, and the exit code and a part of the output of each.
LIGHT: list[tuple[list[str], int, str]] = [
    (["view", "--help-all"], 0, "--edge-weight"),
    (["--version"], 0, f"edgeloss {edgeloss.__version__}\n"),
    (["view", "--pred", "no.npy", "--mask", "no.png", "-o", "a.png"], 2, "error: no.npy: no such file or folder; "),
    (["metrics", "--pred", __file__, "--mask", "no.png", "--classes", "3"], 2, "error: no.png: no such"),
    (["view", *GIVEN, "--classes", "no.txt", "-o", "a.png"], 2, "error: no.txt: no such file or folder; "),
    (["view", *GIVEN, "--slice", "4-2", "-o", "a.png"], 2, "error: --slice: expected N or FIRST-LAST"),
    (["view", *GIVEN, "--remap", "1:2:3", "-o", "a.png"], 2, "error: --remap: expected FROM:TO"),
    (["diagnose", *GIVEN, "--classes", "1"], 2, "error: --classes: expected 2 to 32767 classes"),
    (
        ["compare", __file__, __file__, *GIVEN[2:], "--palette", "VOC", "-o", "a.html"],
        2,
        "error: --palette: expected a",
    ),
]
STARTS = [["/bin/edgeloss"], ["-m", "edgeloss"]]
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
    # Short sleeps: a signal that comes just before a sleep begins is raised only after it.
    wait = "for _ in range(6000):\n    time.sleep(0.01)\n"
    (tmp_path / f"{slow}.py").write_text(f"import time\nprint('importing', flush=True)\n{wait}")
    for name in ("mask.png", "pred.npy"):  # a missing file is reported before torch is imported
        (tmp_path / name).touch()
    program = tmp_path / "edgeloss"
    program.write_text("from edgeloss.cli import main\nmain()\n")
    begin = [str(program)] if start == "program" else ["-m", "edgeloss"]
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


def test_there_are_no_control_codes_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert list(with_progress(["a", "b"], "images")) == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_long_work_has_a_line_every_ten_seconds_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("edgeloss.cli.progress.time.monotonic", lambda: now)
    for name, said in with_steps(["a", "b", "c"], "images"):
        for second in range(12):
            now += 1
            said(f"row {second} of {name}")
    assert capsys.readouterr().err == (
        "edgeloss: 0 of 3 images after 10 s; a: row 9 of a\n"
        "edgeloss: 1 of 3 images after 20 s; about 40 s left; b\n"
        "edgeloss: 2 of 3 images after 30 s; about 15 s left; c\n"
    )
    for _, said in with_steps(["d", "e"], "images"):
        now += 600
        said("")
    assert capsys.readouterr().err == (
        "edgeloss: 0 of 2 images after 10 min; d\nedgeloss: 1 of 2 images after 20 min; about 20 min left; e\n"
    )


# ------------------------------------------------------------------------------------------- consoles, disks and paths


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("command", ["view", "compare", "diagnose", "metrics"])
def test_help_is_printed_on_any_console(command: str, encoding: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "edgeloss", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"Examples:" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_reports_are_printed_on_any_console(encoding: str, folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "edgeloss", "diagnose", *map(str, arguments(folder))],
        cwd=ROOT,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert b"diagnose(EdgeAwareLoss)" in ran.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    "words",
    [["--help"], *(pytest.param(w, marks=pytest.mark.slow) for w in (["view", "--help"], ["--version"], ["info"]))],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output_is_one_line(words: list[str], unbuffered: str) -> None:
    if words == ["--version"] and unbuffered:
        pytest.skip("argparse drops the error")
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "edgeloss", *words],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    error = "edgeloss: error: standard output: can't be written (No space left on device)\n"
    assert (ran.returncode, ran.stderr) == (2, error)


LONG = "n" * 300
PLACES = [["--mask", "{}.png"], ["--pred", "{}.npy"], ["--image", "{}.png"], ["-o", "{}.png"], ["-o", "{}/x.png"]]
PLACES += [["--classes", "{}"], ["--palette", "{}"]]


@pytest.mark.parametrize("place", PLACES, ids=" ".join)
@pytest.mark.parametrize("name", [LONG, "locked/x", "\udcff", "a\0b"], ids=["long", "locked", "surrogate", "null"])
def test_paths_that_cannot_be_looked_at_are_one_line(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, place: list[str], name: str
) -> None:
    monkeypatch.chdir(folder)
    status = Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:  # as of a folder that may not be entered
        if path.parent.name == "locked":
            raise PermissionError(13, "Permission denied")
        return status(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    words = ["view", "--pred", "pred.npy", "--mask", "mask.png", "-o", "out.png", "--dpi", 20]
    ran = run(*words, place[0], place[1].format(name))
    if name == "\udcff" and place[0] == "-o":  # a name like any other
        assert ran.code == 0, ran.err
        return
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("edgeloss: error: ")
    assert {LONG: "File name too long", "locked/x": "Permission denied"}.get(name, "") in ran.err


@pytest.mark.parametrize("command", ["view", "compare", "metrics", "diagnose"])
@pytest.mark.parametrize("label", [2**70, 2**63, -(2**63) - 1])
def test_the_label_to_ignore_has_64_bits(run: Run, command: str, label: int) -> None:
    ran = run(command, "--ignore-index", label)
    assert ran.code == 2
    assert f"--ignore-index: expected a 64-bit int, but got {label}; see edgeloss {command}" in ran.err


@pytest.mark.slow
def test_names_of_any_bytes_are_read_and_printed(run: Run, folders: Path) -> None:
    for kind, suffix in {"masks": "png", "preds": "pt"}.items():
        (folders / kind / f"a.{suffix}").rename(folders / kind / f"\udcff\n.{suffix}")
    given = ["--pred", folders / "preds", "--mask", folders / "masks"]
    ran = run("view", *given, "-o", folders / "pages", "--dpi", 20, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["pages"][2]["page"].endswith("\udcff\n.png")
    (folders / "preds" / "\udcff\n.pt").write_bytes(b"")
    ran = run("diagnose", *given)
    assert ran.code == 2
    assert ran.err.endswith("1 of 3 images were skipped: \\udcff\\n\n")
