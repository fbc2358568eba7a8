"""The trainer in several processes: how it trains, resumes, fails and stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import children
from small_run import metrics_of, run_in, write_config

from segkit.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("torchrun"))


def start(processes: int, folder: Path, config: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += [str(ROOT / "examples" / "train.py"), "--config", str(config), f"output={folder}", "panels=0"]
    return subprocess.Popen(
        [*command, *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.fixture(scope="module")
def two(config: Path) -> Path:
    """A run in two processes."""
    folder = config.parent / "two"
    code, output = finish(start(2, folder, config, "ema=0.9", "accumulate=1"))
    assert code == 0, output
    assert output.count("epoch 1/2") == 1, output  # one process prints
    return folder


def assert_close(folder: Path, expected: Path) -> None:
    """Compare the figures of two runs; AdamW divides by the size of gradients, and so enlarges rounding."""
    for got, wanted in zip(metrics_of(folder), metrics_of(expected), strict=True):
        assert got == pytest.approx(wanted, rel=1e-2, abs=1e-2)


def test_two_processes_train_as_one(two: Path, config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, "ema=0.9", page=True) == 0
    assert {path.name for path in two.iterdir()} == {path.name for path in tmp_path.iterdir()}
    assert_close(two, tmp_path)
    ours, theirs = (load_checkpoint(folder / "last.pt") for folder in (two, tmp_path))
    assert ours.keys() == theirs.keys()
    for part in ("model", "ema"):
        assert ours[part].keys() == theirs[part].keys()  # no trace of DistributedDataParallel
    assert ours["step"] == theirs["step"] == 6


@pytest.mark.slow
def test_a_run_resumes_in_another_number_of_processes(two: Path, config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, "ema=0.9", "epochs=1") == 0
    code, output = finish(start(3, tmp_path, config, "ema=0.9", "resume=auto", "batch_size=3", "epochs=2"))
    assert code == 0, output
    assert f"resuming from {tmp_path / 'last.pt'}, step 3" in output
    assert [row["epoch"] for row in metrics_of(tmp_path)] == [1, 2]
    assert run_in(tmp_path, config, "ema=0.9", "resume=auto", "epochs=3") == 0
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 3 + 2 + 3


@pytest.mark.slow
def test_an_error_of_one_process_ends_the_run(config: Path, tmp_path: Path) -> None:
    """The fourth image in order is broken: it is in the second batch, and belongs to rank 1."""
    data = write_config(tmp_path / "data").parent / "train"
    names = sorted(path.stem for path in (data / "masks").iterdir())
    broken = data / "masks" / f"{names[np.random.default_rng((0, 1)).permutation(len(names))[3]]}.png"
    broken.write_bytes(b"no image")
    code, output = finish(start(2, tmp_path / "run", config, f"data.train={data}", "checkpoint_every=1"))
    assert code == 1
    report = output[output.index("Root Cause") :]
    assert "rank      : 1 " in report, output
    assert f"DataError: {broken}: can't be read as an image" in report.replace("\\n", ""), output
    assert load_checkpoint(tmp_path / "run" / "last.pt")["step"] == 1


def lines_until(process: subprocess.Popen[str], start_of_line: str) -> list[str]:
    """Read the output of a process up to a line."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(start_of_line):
            return lines
    return pytest.fail("".join(lines))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_killed_process_ends_the_run(config: Path, tmp_path: Path) -> None:
    with start(2, tmp_path, config, "epochs=100000") as process:
        lines_until(process, "epoch 2/")
        os.kill(max(children(process.pid)), signal.SIGKILL)
        code, output = finish(process)
    assert code == 1
    assert "Signal 9 (SIGKILL)" in output
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] >= 2
    assert run_in(tmp_path, config, "resume=auto", f"epochs={load_checkpoint(tmp_path / 'last.pt')['epoch'] + 1}") == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_after_the_same_step(number: signal.Signals, config: Path, tmp_path: Path) -> None:
    with start(2, tmp_path, config, "epochs=100000") as process:
        lines_until(process, "epoch 2/")
        process.send_signal(number)
        _, output = finish(process)
    assert f"resume=auto continues from {tmp_path / 'last.pt'}" in output
    checkpoint = load_checkpoint(tmp_path / "last.pt")
    assert checkpoint["step"] == 3 * checkpoint["epoch"] + checkpoint["batch"]
    assert checkpoint["epoch"] >= 2
