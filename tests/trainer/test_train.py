"""The trainer: what a run writes, and that its steps do not depend on micro-batches, processes and interruptions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packages import require
from page_data import parts_of
from small_data import CLASSES, VOID, metrics_of, run_in, state_of, write_config

require("lightning")

import edgeloss  # noqa: E402
from edgeloss.io import find_split  # noqa: E402
from edgeloss.metrics import boundary_f1  # noqa: E402
from segkit.checkpoint import open_network  # noqa: E402
from segkit.data import SegmentationDataset  # noqa: E402
from segkit.guard import NanGuard  # noqa: E402
from segkit.model import UNet  # noqa: E402
from segkit.module import SegmentationModule  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's and MONAI's own


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, of three steps each."""
    folder = tmp_path_factory.mktemp("run")
    assert run_in(folder, config, "--page.worst=2") == 0
    return folder


def test_files_of_a_run(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {
        *(".lock", "best.ckpt", "last.ckpt", "config.yaml", "metrics.csv", "metrics.json", "report.html")
    }
    rows = metrics_of(trained)
    assert [row["epoch"] for row in rows] == [1, 2]
    for name in (
        "train/loss",
        "train/edge_fraction",
        "train/edge_focus",
        "train/gradient_share/region",
        "lr",
        "edge_weight",
    ):
        assert all(np.isfinite(row[name]) for row in rows), name
    for name in ("val/loss", "val/miou", "val/boundary_f1_1", "val/iou/box", "val/edge_accuracy"):
        assert all(row[name] >= 0 for row in rows), name
    assert rows[0]["lr"] == pytest.approx(0.003 * np.mean([1 / 3 * 1, 2 / 3 * (5 / 6) ** 0.9, (4 / 6) ** 0.9]), rel=0.1)
    for row, part in ((row, part) for row in rows for part in ("train", "val")):
        total = row[f"{part}/cross_entropy"] + row[f"{part}/edge_focused"] + 3 * row[f"{part}/region"]
        assert row[f"{part}/loss"] == pytest.approx(total)
    page = (trained / "report.html").read_text("utf-8")
    (worst,) = parts_of(page, "figures")
    assert len({row["name"] for row in worst["rows"]}) == 2
    assert "edge_weight: 1.0" in page  # the configuration
    assert len((trained / "metrics.csv").read_text().splitlines()) == 3


def test_figures_are_those_of_the_network(trained: Path) -> None:
    network, about = open_network(trained / "last.ckpt")
    files = find_split(*(about["data"][name] for name in ("layout", "root", "val")))
    dataset = SegmentationDataset(files, size=about["data"]["size"])
    images, target = (torch.stack(parts) for parts in zip(*dataset, strict=True))
    with torch.inference_mode():
        prediction = network(images).argmax(1)
    score = boundary_f1(prediction, target, 3, ignore_index=VOID, radius=1)
    assert metrics_of(trained)[-1]["val/boundary_f1_1"] == pytest.approx(float(score))
    network, about = open_network(trained / "best.ckpt")
    assert about["classes"] == CLASSES
    assert about["ignore_index"] == VOID
    assert about["edgeloss"] == edgeloss.__version__
    assert isinstance(network, UNet)


@pytest.mark.slow
def test_an_error_is_one_line(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, options, message in (
        (tmp_path, ["--data.root=nowhere"], "nowhere/train/images: no such file or folder"),
        (tmp_path, ["--model.loss.edge_weight=-1"], "edge_weight: expected"),
        (tmp_path, ["--trainer.accelerator=mps"], "train.py: "),
        (tmp_path, ["--best.monitor=val/other"], "monitor='val/other'"),
    ):
        assert run_in(folder, config, *options) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_weights_can_be_averaged(config: Path, tmp_path: Path) -> None:
    average = "--trainer.callbacks+=lightning.pytorch.callbacks.EMAWeightAveraging"
    assert run_in(tmp_path, config, average, "--trainer.callbacks.decay=0.5") == 0
    network, _ = open_network(tmp_path / "last.ckpt")
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)["current_model_state"]
    assert not torch.equal(network.head.weight, last["network.head.weight"])


def test_volumes_with_options_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("0 air\n1 body\n255 void\n")
    for part, count in {"train": 2, "val": 1}.items():
        (tmp_path / part).mkdir()
        for i in range(count):
            image = np.random.default_rng(i).normal(size=(12, 16, 12)).astype(np.float32)
            np.savez(tmp_path / part / f"{i}.npz", image=image, label=(image.cumsum(0) > 0).astype(np.uint8))
    config = write_config(tmp_path / "images")
    options = [f"--data.root={tmp_path}", "--data.layout=volumes", "--data.size=[8, 16, 8]", "--trainer.max_epochs=1"]
    options += ["--data.augment={flip: 0.5, color: 0.1, crop: [8, 8, 8]}", "--page.worst=2"]
    options += ["--model.loss=edgeloss.EdgeAwareLoss", "--model.loss.weight=[1, 2]", "--model.loss.edge_weight=2"]
    assert run_in(tmp_path / "run", config, *options, "--model.edge_schedule=linear") == 0
    assert 0 <= metrics_of(tmp_path / "run")[0]["val/miou"] <= 1
    assert metrics_of(tmp_path / "run")[0]["edge_weight"] <= 2
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["state_dict"]
    assert state["criterion.weight"].tolist() == [1, 2]


# ------------------------------------------------------------------------------------------ the gradient of the batch


def gradients_of(folder: Path, config: Path, *options: str) -> list[torch.Tensor]:
    """Return the clipped gradient of the first step, over four images."""
    folder.mkdir()

    def noted(self: SegmentationModule, optimizer: Any, **clipping: Any) -> None:
        self.clip_gradients(optimizer, **clipping)
        if self.trainer.is_global_zero:
            torch.save([parameter.grad for parameter in self.network.parameters()], folder / "gradients.pt")

    step = ["--data.batch_size=4", "--trainer.max_steps=1", "--trainer.gradient_clip_val=0.1", "--best.monitor=null"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentationModule, "configure_gradient_clipping", noted)
        assert run_in(folder, config, *step, *options) == 0
    gradients: list[torch.Tensor] = torch.load(folder / "gradients.pt")
    return gradients


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    return gradients_of(tmp_path_factory.mktemp("batch") / "whole", config)


TWO = ("--trainer.devices=2", "--trainer.strategy=ddp_fork")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--trainer.accumulate_grad_batches=4"], marks=pytest.mark.slow),
        pytest.param([*TWO], marks=pytest.mark.slow),
        [*TWO, "--trainer.accumulate_grad_batches=2"],
    ],
)
def test_parts_have_the_gradient_of_the_batch(
    options: list[str], whole: list[torch.Tensor], config: Path, tmp_path: Path
) -> None:
    parts = gradients_of(tmp_path / "parts", config, *options)
    norm = torch.nn.utils.get_total_norm(whole)
    assert norm == pytest.approx(0.1, rel=1e-4)  # it was clipped
    assert torch.nn.utils.get_total_norm([a - b for a, b in zip(whole, parts, strict=True)]) < 1e-6 * norm


@pytest.mark.slow
def test_two_processes_train_as_one(config: Path, trained: Path, tmp_path: Path) -> None:
    assert run_in(tmp_path, config, *TWO) == 0
    for got, wanted in zip(metrics_of(tmp_path), metrics_of(trained), strict=True):
        assert got.keys() == wanted.keys()
        assert got == pytest.approx(wanted, rel=1e-2, abs=1e-2)


# ------------------------------------------------------------------------------------------------------ interruptions


class Killed(BaseException):
    """The end of a process, as far as a test is concerned."""


@pytest.mark.slow
def test_a_stopped_run_continues_with_the_same_bits(
    config: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SegmentationModule.on_train_batch_start

    def ends(self: SegmentationModule, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 2:  # of 3 in an epoch
            raise Killed
        start(self, batch, batch_idx)

    every = "--last.every_n_train_steps=1"
    with monkeypatch.context() as patch:
        patch.setattr(SegmentationModule, "on_train_batch_start", ends)
        with pytest.raises(Killed):
            run_in(tmp_path, config, every)
    assert run_in(tmp_path, config, every, "--ckpt_path=last") == 0
    assert_same(tmp_path, trained)


def assert_same(resumed: Path, whole: Path) -> None:
    """Compare the end of two runs, and all figures but shares of the gradient, which are measured now and then."""
    torch.testing.assert_close(state_of(resumed), state_of(whole), rtol=0, atol=0)
    kept = ([{k: v for k, v in row.items() if "share" not in k} for row in metrics_of(f)] for f in (resumed, whole))
    assert next(kept) == next(kept)


@pytest.mark.slow  # at any moment; the test before has one moment, and those of checkpoints have half a file
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_killed_run_continues_with_the_same_bits(config: Path, tmp_path: Path) -> None:
    """KILLS=20 kills it more often."""
    kills, random = int(os.environ.get("KILLS", "3")), np.random.default_rng(0)
    options = ["--last.every_n_train_steps=1", "--ckpt_path=last", f"--trainer.max_epochs={2 + 2 * kills}"]
    assert run_in(tmp_path / "whole", config, *options) == 0
    folder, written = tmp_path / "run", 0
    for _ in range(kills):  # each a little after another checkpoint
        process = multiprocessing.get_context("fork").Process(target=run_in, args=(folder, config, *options))
        process.start()
        while process.is_alive() and changed_at(folder / "last.ckpt") == written:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        written = changed_at(folder / "last.ckpt")
    assert run_in(folder, config, *options) == 0
    assert_same(folder, tmp_path / "whole")


def changed_at(path: Path) -> int:
    """Return when a file was written, in nanoseconds; 0 if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else 0


# --------------------------------------------------------------------------------------------------------------- guard


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the logits of the calls with these numbers nan, in training."""
    forward, calls, bad = UNet.forward, [0], [2]

    def spoil(self: UNet, image: torch.Tensor) -> torch.Tensor:
        logits = forward(self, image)
        calls[0] += self.training
        return logits * torch.nan if self.training and calls[0] in bad else logits

    monkeypatch.setattr(UNet, "forward", spoil)
    return bad


def test_nan_stops_the_run(
    spoiled: list[int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="expected limit >= 0 and in_a_row >= 1, but got 4 and 0"):
        NanGuard(in_a_row=0)
    assert run_in(tmp_path, config) == 1
    assert "train.py: epoch 1: the loss is nan at step 2 on train" in capsys.readouterr().err
    saved = torch.load(tmp_path / "nan" / "step_2.pt", weights_only=True)
    assert saved["logits"].isnan().all()
    assert saved["images"].shape == (2, 3, 32, 32)
    assert saved["names"][0].startswith("train")
    assert np.isnan(saved["loss"])
    assert "NOT OK" in (tmp_path / "nan" / "step_2.txt").read_text()
    assert (tmp_path / "nan" / "step_2.png").exists()


def test_a_step_of_nan_can_be_skipped(
    spoiled: list[int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--guard.action=skip", "--guard.limit=0", "--trainer.max_epochs=1"]
    assert run_in(tmp_path, config, *options) == 0
    assert not (tmp_path / "nan").exists()
    assert capsys.readouterr().out.count("skipped a step: epoch 1: the loss is nan at step 2") == 1
    (row,) = metrics_of(tmp_path)
    assert np.isfinite(row["train/loss"])
    assert row["skipped"] == 1
    assert "1 steps skipped, not finite" in (tmp_path / "report.html").read_text()
    spoiled.extend(range(3, 20))
    assert run_in(tmp_path / "other", config, *options, "--guard.in_a_row=2") == 1
    assert "2 steps in a row, so the weights are the cause" in capsys.readouterr().err
