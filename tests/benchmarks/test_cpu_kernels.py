"""Tests for benchmarks/cpu_kernels.py: its table of results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cpu_kernels
from result_table import read_rows


def test_figures_go_to_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(kernels: str, milliseconds: float) -> None:
        times = {"cross-entropy": 10.0, "EdgeAwareLoss": milliseconds, "region_weight=0": 5.0}
        result = {"edge_fraction": 0.05, "milliseconds": times, "held_bytes": dict.fromkeys(times, 0)}
        monkeypatch.setattr(cpu_kernels, "alone", lambda *arguments: result)
        arguments = ["--case", "binary", "small", "--output", str(tmp_path / "table.jsonl"), "--kernels", kernels]
        monkeypatch.setattr(sys, "argv", ["cpu_kernels.py", *arguments])
        assert cpu_kernels.main() == 0

    run("old", 9.0)
    run("new", 7.0)
    run("new", 5.0)  # instead of the one before
    rows = read_rows(tmp_path / "table.jsonl")
    found = {(row["case"], row["kernels"]): row["ratio"]["EdgeAwareLoss"] for row in rows}
    assert found == {("binary", "old"): 0.9, ("binary", "new"): 0.5, ("small", "old"): 0.9, ("small", "new"): 0.5}
    assert rows[0]["machine"]["torch"] in capsys.readouterr().out
    assert {row["case"]: row["aims"] for row in rows} == {"binary": [1.0, 0.7], "small": [2.0, 1.6]}
