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

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/gpu_day.py"
sys.path.extend(str(ROOT / folder) for folder in ("tests", "tests/loss"))

import gpu_day  # noqa: E402
import gpu_model  # noqa: E402


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_what_has_succeeded_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, calls = tmp_path / "day.jsonl", []

    def run(name: str) -> dict[str, Any]:
        calls.append(name)
        if name == "wrong" and calls.count(name) == 1:
            raise ArithmeticError("expected 1, but got 2")
        return {"figure": len(calls)}

    def step(place: gpu_day.Place) -> Iterator[Any]:
        yield from ((name, lambda name=name: run(name)) for name in ("right", "wrong"))

    monkeypatch.setitem(gpu_day.STEPS, "checks", step)
    place = gpu_day.Place("cpu", 1)
    assert gpu_day.run_step("checks", place, output) == 1
    rows = rows_of(output)
    assert {name: row["status"] for name, row in rows.items()} == {"right": "ok", "wrong": "failed"}
    assert rows["wrong"]["reason"] == "ArithmeticError: expected 1, but got 2"
    assert rows["right"].keys() >= {"step", "gpu", "torch", "triton", "figure", "seconds"}
    assert gpu_day.run_step("checks", place, output) == 0
    assert calls == ["right", "wrong", "wrong"]
    assert rows_of(output)["wrong"]["figure"] == 3


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton")
@pytest.mark.parametrize("only", [["agreement"], pytest.param([*gpu_day.STEPS], marks=pytest.mark.slow)])
def test_the_steps_run_in_the_interpreter(only: list[str], tmp_path: Path) -> None:
    output = tmp_path / "day.jsonl"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--output", str(output), "--only", *only]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(output)
    assert {row["step"] for row in rows.values()} == {*only}
    assert all(row["status"] == "ok" for row in rows.values())
    assert all(0 <= row["error_of_value"] < 1e-4 for row in rows.values() if row["step"] == "agreement")


def test_calls_past_their_bounds_are_named() -> None:
    bounds = {"2 classes": {"instructions": 100.0, "bytes": 50.0}}
    assert not gpu_model.excess(bounds, {"2 classes": {"instructions": 109.0, "bytes": 50.0}})
    (message,) = gpu_model.excess(bounds, {"2 classes": {"instructions": 111.0, "bytes": 50.0}})
    assert message == "2 classes: expected at most 1.1 · 100.0 instructions per pixel, but got 111.0"
    assert len(gpu_model.excess(bounds, {"new": {"instructions": 1.0, "bytes": 1.0}})) == 2
    names = [case.name for case in gpu_model.CASES]
    assert {*json.loads(gpu_model.BOUNDS.read_text())} == {*names}
    assert len({*names}) == len(names)
