"""The batch script for SLURM, with two machines that are this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import metrics_of, run_in, write_config

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

# As SLURM's, but all tasks run here.
COMMANDS = {
    "scontrol": "echo localhost",
    "srun": 'for node in 1 2; do "$@" & tasks="${tasks:-} $!"; done; for task in $tasks; do wait $task || exit 1; done',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
}


def test_two_machines_train_as_one(tmp_path: Path) -> None:
    config = write_config(tmp_path / "data")
    for name, script in COMMANDS.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = {
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "7",
        "PORT": port,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    words = ["--config", str(config), f"output={tmp_path / 'two'}", "panels=0"]
    done = subprocess.run(
        ["bash", "examples/frameworks/slurm.sbatch", *words],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_in(tmp_path / "one", config) == 0
    for got, wanted in zip(metrics_of(tmp_path / "two"), metrics_of(tmp_path / "one"), strict=True):
        assert got == pytest.approx(wanted, rel=1e-2, abs=1e-2)
