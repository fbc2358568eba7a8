"""Tests for benchmarks/gpu_day.py: what it repeats, and its steps in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu_day

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/gpu_day.py"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [*map(json.loads, path.read_text().splitlines())]


def test_what_has_succeeded_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, calls = tmp_path / "day.jsonl", []

    def run(name: str) -> dict[str, Any]:
        calls.append(name)
        if name == "wrong" and calls.count(name) == 1:
            raise ArithmeticError("expected 1, but got 2")
        return {"figure": len(calls)}

    def step(place: gpu_day.Place) -> Iterator[Any]:
        yield from ((name, lambda name=name: run(name)) for name in ("right", "wrong"))

    monkeypatch.setitem(gpu_day.STEPS, "scaler", step)
    place = gpu_day.Place("cpu", 1)
    assert gpu_day.run_step("scaler", place, output) == 1
    rows = {row["name"]: row for row in rows_of(output)}
    assert {name: row["status"] for name, row in rows.items()} == {"right": "ok", "wrong": "failed"}
    assert rows["wrong"]["reason"] == "ArithmeticError: expected 1, but got 2"
    assert rows["right"].keys() >= {"step", "gpu", "torch", "triton", "figure", "seconds"}
    assert gpu_day.run_step("scaler", place, output) == 0
    assert calls == ["right", "wrong", "wrong"]
    assert rows_of(output)[-1]["figure"] == 3
    assert gpu_day.run_step("scaler", place._replace(end=0.0), tmp_path / "late.jsonl") == 2  # not reached
    assert not (tmp_path / "late.jsonl").exists()


@pytest.mark.slow
def test_what_fails_does_not_stop_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure ends its process; one that has ended by itself is reported."""
    (tmp_path / "tasks.py").write_text(
        "import os\n"
        "def run(step, task):\n"
        "    open(f'{step}/{task}', 'w').write(str(os.getpid()))\n"
        "    if task == 'ends':\n"
        "        os._exit(3)\n"
        "    return task == 'fails'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run, lost = importlib.import_module("tasks").run, []
    names = ["first", "fails", "second", "ends", "third"]
    tasks = [(str(tmp_path), name) for name in names]
    assert gpu_day.run_all(run, tasks, gpu_day.Place("cuda", 1), 1, lambda *given: lost.append(given)) == 2
    processes = [int((tmp_path / name).read_text()) for name in names]
    assert len({*processes}) == 3
    assert processes[0] == processes[1]
    assert processes[2] == processes[3]
    ((step, task, reason),) = lost
    assert (step, task) == (str(tmp_path), "ends")
    assert reason.startswith("BrokenProcessPool: ")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton")
@pytest.mark.slow
def test_the_steps_run_in_the_interpreter(tmp_path: Path) -> None:
    output = tmp_path / "day.jsonl"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--output", str(output), "--only", *gpu_day.STEPS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(output)
    assert {row["step"] for row in rows} == {*gpu_day.STEPS}
    assert all(row["status"] == "ok" for row in rows)
    of_values = [row for row in rows if row["step"] == "agreement" and "case" in row]
    assert of_values
    assert all(0 <= row["error_of_value"] < 1e-4 for row in of_values)
