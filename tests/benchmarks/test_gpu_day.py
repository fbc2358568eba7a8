"""Tests for benchmarks/gpu_day.py: its steps run, end in time, and are not run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import wait_for_end

import gpu_day
from edgeloss import backends
from quality.runs import Run
from quality.segformer import SegFormer
from quality.training import make_network

SCRIPT = Path(gpu_day.__file__)


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True)


def rows_of(output: Path) -> dict[str, dict[str, Any]]:
    return {row["step"]: row for row in map(json.loads, (output / "steps.jsonl").read_text().splitlines())}


def test_lists_every_step(tmp_path: Path) -> None:
    done = call("--list", "--output", tmp_path)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:6] == ["install", "smoke", "device-tests", "kernel-tests", "loss-tests", "sanitizer"]
    assert {"speed-19", "speed-150", "speed-2", "speed-upsample", "ncu"} < set(names)
    assert names[-2:] == ["quality-gpu-unet", "quality-gpu-segformer"]
    assert "9 min" in done.stdout
    unknown = call("--only", "nothing", "--output", tmp_path)
    assert unknown.returncode == 2
    assert "expected some of ['install'" in unknown.stderr


@pytest.mark.slow
@pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")
def test_the_steps_run_without_a_gpu(shapes: Path, tmp_path: Path) -> None:
    plan = tmp_path / "tiny.yaml"
    plan.write_text(
        "{data: {shapes: {}}, network: segformer, epochs: 1, batch: 4, size: [16, 16],"
        " runs: [{loss: ce, seeds: [0]}, {loss: module, seeds: [0]}]}"
    )
    given = ["--device", "cpu", "--tiny", "--output", tmp_path / "out", "--data", shapes.parent, "--plans", plan]
    done = call(*given, "--skip", "kernel-tests", "device-tests")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(tmp_path / "out")
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(
        ["install", "smoke", "speed-small", "tiny"], "passed"
    )
    assert len((tmp_path / "out" / "quality.jsonl").read_text().splitlines()) == 2
    assert len((tmp_path / "out" / "speed.jsonl").read_text().splitlines()) == 1
    again = call(*given, "--skip", "kernel-tests", "device-tests")
    assert "==>" not in again.stdout  # all have passed


def step(code: str) -> gpu_day.Step:
    return gpu_day.Step("step", "a test", 1, [sys.executable, "-c", code])


@pytest.mark.parametrize(("code", "status"), [("print('seen')", "passed"), ("print('seen'); 1 / 0", "failed")])
def test_keeps_what_a_step_prints(code: str, status: str, tmp_path: Path) -> None:
    assert gpu_day.run(step(code), tmp_path, 1)["status"] == status
    assert "seen" in (tmp_path / "step.log").read_text()


def test_a_step_out_of_time_ends_with_its_processes(tmp_path: Path) -> None:
    command = ["bash", "-c", "sleep 600 & echo $! && wait"]
    row = gpu_day.run(gpu_day.Step("step", "a test", 1, command), tmp_path, 1 / 60)
    assert row["status"] == "out of time"
    wait_for_end(int((tmp_path / "step.log").read_text()))


def test_a_tool_that_is_not_there_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    row = gpu_day.run(gpu_day.Step("ncu", "", 1, ["bash", "-c", "ncu --version"]), tmp_path, 1)
    assert row["status"] == "not there"


def test_the_network_has_the_size_of_segformer_b0() -> None:
    network = make_network(Run("ce", {}, 0, network="segformer"), 11)
    assert isinstance(network, SegFormer)
    assert 3.5e6 < sum(p.numel() for p in network.parameters()) < 4.1e6
    for size in ((32, 64), (17, 30)):
        assert network(torch.randn(1, 3, *size)).shape == (1, 11, *size)
    with pytest.raises(ValueError, match="network: expected one of"):
        Run("ce", {}, 0, network="transformer")
