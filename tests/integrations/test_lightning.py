"""The callbacks: one logs the terms of the loss and panels, one writes the page about a run."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from packages import require
from page_data import parts_of

require("lightning")

import lightning  # noqa: E402
from lightning.pytorch.callbacks import WeightAveraging  # noqa: E402
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from edgeloss import EdgeAwareLoss  # noqa: E402
from edgeloss.integrations.lightning import LogEdgeLoss, WriteRunPage  # noqa: E402
from lightning_module import Segmenter  # noqa: E402
from squares import squares  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


class Named(Segmenter):
    """A module that may be called, with names of its classes."""

    classes = ("ground", "square")

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


class Overlapping(Segmenter):
    """Two classes with a sigmoid each: the square, and all."""

    def __init__(self, classes: int) -> None:
        """Replace the loss."""
        super().__init__(classes)
        self.criterion = EdgeAwareLoss(multilabel=True)

    def training_step(self, batch: Any, index: int) -> Tensor:
        images, labels = batch
        return self.criterion(self.network(images), torch.stack([labels, torch.ones_like(labels)], 1))

    def validation_step(self, batch: Any, index: int) -> None:
        """Nothing is validated."""


class Pictures(CSVLogger):
    """A logger with the method of Weights & Biases."""

    def log_image(self, key: str, images: list[Any], step: int) -> None:
        self.logged = (key, images[0].shape[-1], step)


def train(
    folder: Path, *callbacks: Any, kind: type[Segmenter] = Segmenter, images: Dataset[Any] | None = None
) -> tuple[Segmenter, list[Any]]:
    lightning.seed_everything(0, verbose=False)
    loggers = [TensorBoardLogger(folder), Pictures(folder)]
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=loggers,
        accumulate_grad_batches=2,
        log_every_n_steps=2,
        enable_checkpointing=False,
        callbacks=[*callbacks],
        default_root_dir=folder,
    )
    module = kind(2)
    trainer.fit(module, DataLoader(images or squares(48), 4), DataLoader(squares(8), 4))
    return module, loggers


def test_terms_and_panels_are_logged(tmp_path: Path) -> None:
    _, (board, pictures) = train(tmp_path, LogEdgeLoss(panel_every_n_steps=4))
    events = EventAccumulator(board.log_dir, size_guidance={"images": 0}).Reload()
    assert {"criterion/other_side", "criterion/edge_focus", "criterion/loss"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("criterion/same_side")] == [0, 2, 4]
    assert [event.step for event in events.Images("criterion/panel")] == [0, 4]
    assert pictures.logged == ("criterion/panel", 3, 4)


def test_a_multilabel_loss_has_a_panel_per_class(tmp_path: Path) -> None:
    _, (board, _) = train(tmp_path, LogEdgeLoss(panel_every_n_steps=4), kind=Overlapping)
    events = EventAccumulator(board.log_dir).Reload()
    assert events.Tags()["images"] == ["criterion/panel/0", "criterion/panel/1"]


def test_one_class_and_ignored_pixels_are_warned_of(tmp_path: Path) -> None:
    """As of masks of 0 and 255, whose objects are ignored."""
    images, labels = squares(48).tensors
    message = "^criterion: expected labels of several classes in the first epoch, but got only 0, and ignored pixels; "
    with pytest.warns(UserWarning, match=message + "check that ignore_index=255"):
        train(tmp_path, LogEdgeLoss(), images=TensorDataset(images, labels * 255))
    for fine in (labels * 0, torch.where(labels == 1, torch.arange(48).view(-1, 1, 1) % 2 * 254 + 1, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(tmp_path, LogEdgeLoss(), images=TensorDataset(images, fine))
        assert not [one for one in caught if "several classes" in str(one.message)]


def test_weights_may_be_averaged(tmp_path: Path) -> None:
    """Those of a module with its loss in it."""
    averaged, _ = train(tmp_path / "averaged", LogEdgeLoss(), WeightAveraging(use_buffers=True))
    last, _ = train(tmp_path / "last")
    for mean, value in zip(averaged.parameters(), last.parameters(), strict=True):
        assert 0 < (mean - value).abs().max() < 0.1
    assert not averaged.criterion.state_dict()


def test_logging_does_not_change_the_training(tmp_path: Path) -> None:
    watched, _ = train(tmp_path / "watched", LogEdgeLoss(panel_every_n_steps=4), WriteRunPage(worst=1), kind=Named)
    alone, _ = train(tmp_path / "alone")
    torch.testing.assert_close(watched.state_dict(), alone.state_dict(), rtol=0.0, atol=0.0)
    assert not watched.criterion._forward_hooks


def test_a_run_has_figures_per_epoch_and_a_page_of_its_worst_images(tmp_path: Path) -> None:
    before, page = {"epoch": 0, "val_loss": 1.0}, WriteRunPage(worst=3)
    page.load_state_dict({"history": [before, {"epoch": 1, "val_loss": 9.0}]})  # the epoch that is trained again
    train(tmp_path, page, kind=Named)
    first, last = page.state_dict()["history"]
    assert first == before
    assert {"epoch": 1, "val_loss": last["val_loss"]}.items() <= last.items()
    assert 0 < last["val_loss"] < 9
    assert last["images_per_second"] > 0
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"classes": [*Named.classes], "epochs": [first, last]}
    with (tmp_path / "metrics.csv").open() as table:
        assert [row["val_loss"] for row in csv.DictReader(table)] == ["1.0", str(last["val_loss"])]
    (worst,) = parts_of((tmp_path / "report.html").read_text("utf-8"), "figures")
    assert len(worst["rows"]) == 3
