"""A run that is stopped and resumed gives, bit for bit, what an uninterrupted run gives."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import CLOCK, metrics_of, run_in, write_config
from torch import nn

from segkit import build, trainer
from segkit.checkpoint import load_checkpoint, save_checkpoint
from segkit.model import UNet
from segkit.signals import Interrupted

ROOT = Path(__file__).resolve().parents[2]
# Everything that has a state: AdamW, averaged weights, both schedules, micro-batches, sums over edge pixels. An epoch
# has 3 steps of training and 2 batches of validation; a run has 2 epochs.
OPTIONS = (
    *("ema=0.9", "optim.clip=1", "accumulate=2", "edge_schedule.kind=cosine", "edge_schedule.warmup=0.7"),
    *("loss.edge_class_weight=running", "loss.edge_focus=0.5"),
)


class Dropping(UNet):
    """A network that draws random numbers in each step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Put a dropout before the last layer."""
        super().__init__(*arguments, **options)
        self.head = nn.Sequential(nn.Dropout2d(0.5), self.head)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def straight(config: Path) -> Path:
    """A run that is not stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "UNet", Dropping)
        assert run_in(config.parent / "straight", config, *OPTIONS) == 0
    return config.parent / "straight"


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Choose the step after which runs stop, as after a signal."""
    monkeypatch.setattr(build, "UNet", Dropping)

    def choose(steps: int) -> None:
        @contextmanager
        def stop() -> Iterator[Callable[[], None]]:
            left = [steps]

            def check() -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise Interrupted(signal.SIGINT)

            yield check

        monkeypatch.setattr(trainer, "stop_on_signals", stop)

    return choose


def assert_equal_runs(folder: Path, expected: Path) -> None:
    assert metrics_of(folder) == metrics_of(expected)
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3
    for name in ("last.pt", "best.pt"):
        assert plain(load_checkpoint(folder / name)) == plain(load_checkpoint(expected / name))


def plain(value: Any) -> Any:
    """Return a checkpoint in a form that == compares bit by bit, without clock and output folder."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in ("config", *CLOCK)}
    return [plain(item) for item in value] if isinstance(value, list) else value


# Every step of both epochs: within training, at its end, in validation, and after it; some with workers.
@pytest.mark.parametrize(("steps", "workers"), [*((n, 0) for n in range(1, 11)), (2, 2), (7, 2)])
def test_stopped_once(
    steps: int, workers: int, config: Path, tmp_path: Path, straight: Path, stop_after: Callable[[int], None]
) -> None:
    stop_after(steps)
    assert run_in(tmp_path, config, f"data.workers={workers}", *OPTIONS) == 130
    stop_after(0)
    assert run_in(tmp_path, config, f"data.workers={workers}", "resume=auto", *OPTIONS) == 0
    assert_equal_runs(tmp_path, straight)


def test_stopped_again_and_again(
    config: Path, tmp_path: Path, straight: Path, stop_after: Callable[[int], None]
) -> None:
    stop_after(3)
    places = []
    while run_in(tmp_path, config, "resume=auto", *OPTIONS) == 130:
        checkpoint = load_checkpoint(tmp_path / "last.pt")
        places.append((checkpoint["epoch"], checkpoint["batch"]))
    assert places == [(0, 3), (1, 1), (1, 3)]
    assert_equal_runs(tmp_path, straight)


def test_another_folder_goes_on_from_a_checkpoint(
    config: Path, tmp_path: Path, straight: Path, stop_after: Callable[[int], None]
) -> None:
    stop_after(4)
    assert run_in(tmp_path / "a", config, *OPTIONS) == 130
    stop_after(0)
    assert run_in(tmp_path / "b", config, f"resume={tmp_path / 'a' / 'last.pt'}", *OPTIONS) == 0
    assert plain(load_checkpoint(tmp_path / "b" / "last.pt")) == plain(load_checkpoint(straight / "last.pt"))
    assert load_checkpoint(tmp_path / "a" / "last.pt")["step"] == 3


def test_a_finished_run_stays_as_it_is(config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, "resume=auto", "epochs=1") == 0  # nothing to go on from: a new run
    before = (tmp_path / "last.pt").read_bytes()
    assert run_in(tmp_path, config, "resume=auto", "epochs=1") == 0
    assert (tmp_path / "last.pt").read_bytes() == before
    assert run_in(tmp_path, config, "resume=auto", "epochs=2") == 0  # longer
    assert [row["epoch"] for row in metrics_of(tmp_path)] == [1, 2]


def test_a_run_ended_before_its_page_gets_it_later(config: Path, tmp_path: Path) -> None:
    """The page has the figures and images of an uninterrupted run, although there is one of fewer epochs."""

    def train(name: str, *options: str) -> int:
        return run_in(tmp_path / name, config, "worst=1", "resume=auto", *options, page=True)

    def cells(name: str) -> list[str]:
        return re.findall(r"<td>.*?</td>|<figcaption>.*?</figcaption>", (tmp_path / name / "report.html").read_text())

    def killed(*arguments: object) -> None:
        raise SystemExit

    for name in ("straight", "killed"):
        assert train(name, "epochs=1") == 0
    assert train("straight") == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "_finish", killed)
        with pytest.raises(SystemExit):
            train("killed")
    assert cells("killed") != cells("straight")
    checkpoint = (tmp_path / "killed" / "last.pt").read_bytes()
    assert train("killed") == 0
    assert cells("killed") == cells("straight")
    assert len(cells("killed")) > 10
    written = (tmp_path / "killed" / "report.html").stat().st_mtime_ns
    assert train("killed") == 0
    assert (tmp_path / "killed" / "report.html").stat().st_mtime_ns == written
    assert (tmp_path / "killed" / "last.pt").read_bytes() == checkpoint


# Holds the lock of a folder until it is killed.
LOCKING = """
import sys, time
from pathlib import Path
from segkit.run_files import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks")
@pytest.mark.parametrize("option", ["resume=auto", "overwrite=true"])
def test_a_folder_in_use_is_refused(
    option: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    (tmp_path / "metrics.csv").write_text("of the other run")
    command = [sys.executable, "-c", LOCKING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert run_in(tmp_path, config, option) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"but process {process.pid} on " in line
        assert f"is using {tmp_path}" in line
        process.kill()
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "metrics.csv"}
    (tmp_path / "metrics.csv").unlink()
    assert run_in(tmp_path, config, option, "epochs=1") == 0  # the lock ended with its process


# Trains as the command does, but stops halfway through the third checkpoint that it writes.
HALFWAY = """
import sys, time, torch, train
write, written = torch.save, []
def save(value, file):
    written.append(value)
    if len(written) < 3:
        return write(value, file)
    import io
    whole = io.BytesIO()
    write(value, whole)
    file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
    file.flush()
    print("halfway", flush=True)
    time.sleep(600)
torch.save = save
train.main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_killed_while_it_writes_a_checkpoint(config: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        HALFWAY,
        "--config",
        str(config),
        f"output={tmp_path}",
        "panels=0",
        "checkpoint_every=1",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert "halfway\n" in iter(process.stdout.readline, "")
        process.kill()
    assert len(list(tmp_path.glob(".edgeloss-*"))) == 1  # the partial file, which the next one replaces
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 1  # the first checkpoint is that of the start
    assert run_in(tmp_path, config, "resume=auto", "checkpoint_every=1") == 0
    assert run_in(tmp_path / "straight", config) == 0
    assert_equal_runs(tmp_path, tmp_path / "straight")


# At the beginning, best.pt and last.pt after each of the two epochs.
@pytest.mark.parametrize("count", range(5))
def test_ended_before_it_writes_a_checkpoint(
    count: int,
    config: Path,
    tmp_path: Path,
    straight: Path,
    stop_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_after(0)
    written = []

    def save(path: Path, checkpoint: dict[str, Any]) -> None:
        if len(written) == count:
            raise SystemExit
        written.append(path)
        save_checkpoint(path, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "save_checkpoint", save)
        with pytest.raises(SystemExit):
            run_in(tmp_path, config, *OPTIONS)
    assert run_in(tmp_path, config, "resume=auto", *OPTIONS) == 0
    assert_equal_runs(tmp_path, straight)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("batch_size=1", "last.pt: expected batch_size 1, but got 2"),
        ("seed=1", "last.pt: expected seed 1, but got 0"),
        ("model.width=16", "last.pt: expected weights of this model, but got a size mismatch for "),
        (
            "model.levels=2",
            "last.pt: expected weights of this model, but down.2.0.weight is unknown (9 in total)",
        ),
        (
            "model.levels=4",
            "last.pt: expected weights of this model, but down.3.0.weight is missing (9 in total)",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_line(
    change: str,
    expected: str,
    config: Path,
    tmp_path: Path,
    stop_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop_after(1)
    monkeypatch.setattr(build, "UNet", UNet)
    assert run_in(tmp_path, config) == 130
    capsys.readouterr()
    assert run_in(tmp_path, config, "resume=auto", change) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_weights_alone_are_no_run(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path / "weights.pt", {"model": {}})
    assert run_in(tmp_path / "run", config, f"resume={tmp_path / 'weights.pt'}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "weights.pt: expected a run to resume, but got a file without 'epoch'" in line


def test_a_run_may_begin_to_average(config: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, "epochs=1") == 0
    first = load_checkpoint(tmp_path / "last.pt")
    assert first["ema"] is None
    assert run_in(tmp_path, config, "epochs=2", "resume=auto", "ema=0.999999") == 0
    averaged = load_checkpoint(tmp_path / "last.pt")["ema"]  # close to where it began
    for name, weight in first["model"].items():
        torch.testing.assert_close(averaged[name], weight, rtol=1e-3, atol=1e-4)
