"""Tests for benchmarks/gpu/host_time.py: Triton's launcher runs with a driver that launches nothing."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu/host_time.py"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_step_is_enqueued_by_launches(tmp_path: Path) -> None:
    output = tmp_path / "host.jsonl"
    subprocess.run([sys.executable, SCRIPT, "--rounds", "1", "--output", output], check=True)
    (row,) = map(json.loads, output.read_text().splitlines())
    assert row["EdgeAwareLoss"]["launches"] > row["region_weight=0"]["launches"] > row["cross-entropy"]["launches"] == 0
    assert all(0 < row[name]["microseconds"] < 1e5 for name in ("EdgeAwareLoss", "region_weight=0", "cross-entropy"))
