"""Runs: whose folder it is, how one ends and goes on, and what is believed of a checkpoint."""

from __future__ import annotations

import functools
import http.server
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from packages import require
from page_data import parts_of
from small_data import metrics_of, run_in, save, state_of, write_config

require("lightning")

from segkit import folder as run_folder  # noqa: E402
from segkit.callbacks import shown  # noqa: E402
from segkit.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from segkit.module import SegmentationModule  # noqa: E402
from segkit.scores import flatten  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, which may be continued: the second epoch is never saved."""
    folder = tmp_path_factory.mktemp("run")
    assert run_in(folder, config, "--trainer.max_epochs=1") == 0
    return folder


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """The files of the run in another folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in run.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def error_of(capsys: pytest.CaptureFixture[str], folder: Path, config: Path, *options: str) -> str:
    """Return the one line of a call that fails and changes nothing in its folder but for the lock."""
    (folder / ".lock").touch()
    before = contents(folder)
    capsys.readouterr()
    assert run_in(folder, config, *options) == 1
    error = capsys.readouterr().err
    assert error.startswith("train.py: ")
    assert error.count("\n") == 1
    assert contents(folder) == before
    return error


# ------------------------------------------------------------------------------------------------------------- folders


@pytest.mark.slow
def test_a_folder_belongs_to_one_run(
    run: Path, copied: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = f"--ckpt_path={run / 'last.ckpt'}"
    for options in ([], [other]):
        error = error_of(capsys, copied, config, *options)
        assert f"expected a folder without a run, but {copied} has last.ckpt" in error
        assert "--ckpt_path=last, choose another folder, or replace the run by --overwrite" in error
    (copied / "last.ckpt").unlink()
    assert "has best.ckpt" in error_of(capsys, copied, config)
    # A checkpoint may be continued in a folder of its own, too.
    assert run_in(tmp_path / "new", config, other) == 0
    assert [row["epoch"] for row in metrics_of(tmp_path / "new")] == [1, 2]


@pytest.mark.slow
def test_a_run_can_be_replaced(copied: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object) -> None:
        raise RuntimeError("before the first checkpoint")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentationModule, "training_step", ends)
        with pytest.raises(RuntimeError, match="before the first"):
            run_in(copied, config, "--overwrite")
    assert {path.name for path in copied.iterdir()} == {".lock", "config.yaml"}  # nothing is left to be mistaken
    assert run_in(copied, config, "--ckpt_path=last", "--trainer.max_epochs=1") == 0  # there is none: a new run


def test_a_folder_in_use_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "_PATIENCE", 0.0)
    with FileLock(tmp_path / ".lock"):
        error = error_of(capsys, tmp_path, config)
    assert f"expected a folder that no other process trains in, but got {tmp_path}" in error


@pytest.mark.slow
def test_a_lock_ends_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, time; from pathlib import Path; from segkit.folder import locked\n"
    code += f"with locked(Path({str(tmp_path)!r})): print('locked', flush=True); time.sleep(60)"
    paths = os.pathsep.join([str(TRAIN.parent), str(TRAIN.parents[1])])
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        monkeypatch.setattr(run_folder, "_PATIENCE", 0.0)
        with pytest.raises(ValueError, match="no other process trains in"):
            run_folder.locked(tmp_path).__enter__()
        process.kill()
    with run_folder.locked(tmp_path):
        pass


# ------------------------------------------------------------------------------------------------------------ resuming


@pytest.mark.parametrize(
    ("option", "difference"),
    [
        ("--model.loss.init_args.edge_weight=3", "model.loss.init_args.edge_weight is 3.0 instead of 1.0"),
        ("--model.width=16", "model.width is 16 instead of 8"),
        ("--data.batch_size=4", "data.batch_size is 4 instead of 2"),
        ("--seed_everything=1", "seed_everything is 1 instead of 0"),
    ],
)
@pytest.mark.slow
def test_other_options_are_named_and_refused(
    option: str, difference: str, copied: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(capsys, copied, config, "--ckpt_path=last", option)
    checkpoint = copied / "last.ckpt"
    assert f"{checkpoint}: expected the options of its run, but {difference}; give the same, or add --allow" in error


@pytest.mark.slow
def test_other_options_can_be_allowed(copied: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ckpt_path=last", "--model.loss.init_args.edge_weight=3", "--allow_changes=true"]
    wide = error_of(capsys, copied, config, *options, "--model.width=16")
    assert (
        "last.ckpt: expected the weights of this network, network.down.0.0.weight [16, 3, 3, 3], but got [8, 3" in wide
    )
    assert run_in(copied, config, *options) == 0
    assert (
        "goes on with other options: model.loss.init_args.edge_weight is 3.0 instead of 1.0" in capsys.readouterr().out
    )
    assert yaml.safe_load((copied / "config.yaml").read_text())["model"]["loss"]["init_args"]["edge_weight"] == 3


@pytest.mark.slow
def test_options_of_speed_may_differ(copied: Path, config: Path) -> None:
    assert run_in(copied, config, "--ckpt_path=last", "--data.cache=true", "--model.shares_every=0") == 0
    assert [row["epoch"] for row in metrics_of(copied)] == [1, 2]


@pytest.mark.slow
def test_the_best_epoch_is_that_of_best_ckpt_in_a_folder_that_was_moved(
    copied: Path, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second epoch has a lower boundary F1, and a higher mean IoU."""

    def changed(*arguments: Any) -> dict[str, torch.Tensor]:
        return flatten(*arguments) | {"boundary_f1_1": torch.tensor(0.01), "miou": torch.tensor(0.99)}

    monkeypatch.setattr("segkit.module.flatten", changed)
    before = (copied / "best.ckpt").read_bytes()
    assert run_in(copied, config, "--ckpt_path=last") == 0
    first, second = metrics_of(copied)
    assert (second["val/boundary_f1_1"], second["val/miou"]) == pytest.approx((0.01, 0.99))
    assert (copied / "best.ckpt").read_bytes() == before
    assert load_checkpoint(copied / "best.ckpt")["epoch"] == 0  # of 0 and 1
    score = shown("val/boundary_f1_1", first["val/boundary_f1_1"])
    assert f"best epoch: 1, by boundary F1 (1 px) {score}" in capsys.readouterr().out
    (tiles,) = parts_of((copied / "report.html").read_text("utf-8"), "tiles")
    assert tiles["title"] == "Scores after epoch 2, the last"
    assert tiles["changes"]["boundary F1 (1 px)"]["text"] == f"best: {score} after epoch 1"


# -------------------------------------------------------------------------------------------- what a checkpoint may do


class Writes:
    """An object whose loading by pickle creates a file."""

    def __init__(self, path: Path) -> None:
        """Store the path."""
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (str(self.path), "w")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the files of the folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


NOT_PLAIN = "expected a checkpoint of tensors and plain values, but got a damaged file or other objects"


@pytest.mark.slow
def test_a_checkpoint_runs_no_code(
    config: Path, served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    torch.save({"state_dict": {}, "x": Writes(tmp_path / "hacked")}, tmp_path / "evil.ckpt")
    for path in (str(tmp_path / "evil.ckpt"), f"{served}/evil.ckpt"):
        for options in ([], ["--weights_only=null"]):
            error = error_of(capsys, tmp_path / "run", config, f"--ckpt_path={path}", *options)
            assert error == f"train.py: {path}: {NOT_PLAIN}\n"
    error = error_of(capsys, tmp_path / "run", config, f"--ckpt_path={path}", "--weights_only=false")
    assert "weights_only: expected true, but got false" in error
    assert "best.ckpt: expected a checkpoint, but there is no such file" in error_of(
        capsys, tmp_path / "run", config, "--ckpt_path=best"
    )
    assert not (tmp_path / "hacked").exists()


@pytest.mark.slow
def test_a_checkpoint_is_continued_from_its_url(copied: Path, config: Path, served: str, tmp_path: Path) -> None:
    assert run_in(tmp_path / "new", config, f"--ckpt_path={served}/run/last.ckpt") == 0
    assert [row["epoch"] for row in metrics_of(tmp_path / "new")] == [1, 2]
    assert not isinstance(load_checkpoint(f"{served}/run/last.ckpt"), str)
    with pytest.raises(ValueError, match=r"nothing\.ckpt: expected a checkpoint, but it can't be fetched"):
        load_checkpoint(f"{served}/nothing.ckpt")


@pytest.mark.slow
def test_a_damaged_checkpoint_is_one_line(copied: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copied / "last.ckpt"
    whole = path.read_bytes()
    for content in (b"garbage" * 99, whole[:5000], pickle.dumps([]), b""):
        path.write_bytes(content)
        assert error_of(capsys, copied, config, "--ckpt_path=last") == f"train.py: {path}: {NOT_PLAIN}\n"


def test_hyper_parameters_of_a_checkpoint_import_and_set_nothing(copied: Path, config: Path) -> None:
    checkpoint = load_checkpoint(copied / "last.ckpt")
    others = {"lr": 0.5, "loss": {"class_path": "this.Zen"}, "_class_path": "this.Zen", "_instantiator": "this.Zen"}
    save_checkpoint(copied / "last.ckpt", {**checkpoint, "hyper_parameters": others})
    sys.modules.pop("this", None)
    assert run_in(copied, config, "--ckpt_path=last") == 0
    assert "this" not in sys.modules
    written = yaml.safe_load((copied / "config.yaml").read_text())["model"]
    assert (written["lr"], written["loss"]["class_path"]) == (0.003, "edgeloss.EdgeAwareLoss")


# ------------------------------------------------------------------------------------------------------- interruptions


@pytest.mark.parametrize(
    ("number", "code", "step"),  # of three steps in an epoch
    [
        (signal.SIGTERM, 143, 1),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in ((signal.SIGINT, 130, 1), (signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 2))
        ),
    ],
)
def test_a_signal_saves_and_ends_the_run(
    number: int,
    code: int,
    step: int,
    config: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = SegmentationModule.on_train_batch_start

    def interrupted(self: SegmentationModule, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == step:
            os.kill(os.getpid(), number)
        start(self, batch, batch_idx)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentationModule, "on_train_batch_start", interrupted)
        with pytest.raises(SystemExit) as exit_:
            run_in(tmp_path, config)
    assert exit_.value.code == code
    assert signal.getsignal(number) == before
    words = "train.py: interrupted in epoch 1; continue by the same command with --ckpt_path=last"
    assert words in capfd.readouterr().err
    assert load_checkpoint(tmp_path / "last.ckpt")["global_step"] == step + 1
    assert run_in(tmp_path, config, "--ckpt_path=last") == 0
    assert run_in(tmp_path / "whole", config) == 0
    torch.testing.assert_close(state_of(tmp_path), state_of(tmp_path / "whole"), rtol=0, atol=0)


def test_a_second_ctrl_c_ends_at_once(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SegmentationModule, "on_train_batch_start", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert run_in(tmp_path, config) == 130
    signal.signal(signal.SIGINT, before)  # Lightning ignores it from then on
    assert not (tmp_path / "last.ckpt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_all_processes_of_a_run(number: int, code: int, config: Path, tmp_path: Path) -> None:
    """As a terminal and a job scheduler send it, to workers too."""
    command = [sys.executable, TRAIN, "fit", "--config", config, f"--trainer.default_root_dir={tmp_path}"]
    command += ["--data.workers=1", "--trainer.max_epochs=1000"]
    environment = os.environ | {"PYTHONPATH": str(TRAIN.parents[1])}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
        while not (tmp_path / "last.ckpt").exists() and process.poll() is None:
            time.sleep(0.1)
        os.killpg(process.pid, number)
        _, error = process.communicate(timeout=60)
    assert b"continue by the same command with --ckpt_path=last" in error
    assert b"Traceback" not in error
    assert process.returncode == code


# -------------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(("void", "is_warned"), [(255, True), (1, False)])
def test_ignored_foreground_is_a_warning_after_the_first_epoch(
    void: int, is_warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in "ab":
            mask = np.where(rng.random((16, 16)) < 0.3, 255, 0).astype(np.uint8)
            save(tmp_path / part, name, mask)
    (tmp_path / "classes.txt").write_text("0 background\n1 object\n255 void\n")
    config = write_config(tmp_path / "other")
    options = [f"--data.root={tmp_path}"] + ["--data.remap=255:1"] * (void == 1)
    assert run_in(tmp_path / "run", config, *options) == 0
    warning = "warning: the training masks have no pixels but of background and of the label 255, which is ignored"
    assert capsys.readouterr().out.count(warning) == is_warned
    assert (metrics_of(tmp_path / "run")[0]["train/edge_fraction"] > 0) != is_warned
