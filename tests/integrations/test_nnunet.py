"""The trainer of nnU-Net, from its planning to a checkpoint."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from packages import require
from torch import Tensor

require("nnunetv2")

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
example = runpy.run_path(str(FOLDER / "nnunet_squares.py"))["main"]


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def edge_losses(trainer: Any, outputs: list[Tensor], targets: list[Tensor]) -> Tensor:
    """Return the weighted sum of the losses of each resolution."""
    edges = trainer.loss.edges
    assert len(outputs) == len(targets) == len(edges.criteria) > 2
    parts = zip(edges.criteria, edges.weights, outputs, targets, strict=True)
    return sum(weight * criterion(logits, target) for criterion, weight, logits, target in parts)


def test_classes_with_deep_supervision(tmp_path: Path) -> None:
    trainer = example(tmp_path)
    assert float(trainer.logger.get_value("mean_fg_dice", step=-1)) > 0.8
    assert type(trainer).__name__ == "nnUNetTrainerEdgeAware"

    batch = next(trainer.dataloader_train)
    outputs, targets = trainer.network(batch["data"]), batch["target"]
    expected = trainer.loss.dice(outputs, targets) + edge_losses(trainer, outputs, [y[:, 0].long() for y in targets])
    torch.testing.assert_close(trainer.loss(outputs, targets), expected)

    trainer.load_checkpoint(str(Path(trainer.output_folder, "checkpoint_final.pth")))
    assert {path.suffix for path in Path(trainer.output_folder).glob("checkpoint*")} == {".pth"}


def test_regions_with_ignored_pixels(tmp_path: Path) -> None:
    trainer = example(tmp_path, epochs=1, regions=True)
    assert trainer.label_manager.has_regions
    batch = next(trainer.dataloader_train)
    outputs, targets = trainer.network(batch["data"]), batch["target"]
    assert targets[0].shape[1] == outputs[0].shape[1] + 1 == 3
    assert targets[0][:, 2].any()
    labels = [y[:, :2].long().masked_fill(y[:, 2:].bool(), 3) for y in targets]
    expected = trainer.loss.dice(outputs, targets) + edge_losses(trainer, outputs, labels)
    torch.testing.assert_close(trainer.loss(outputs, targets), expected)
