"""The trainer of nnU-Net, from its planning to a checkpoint."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from edgeloss import EdgeAwareLoss
from frameworks import require

require("nnunetv2")

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_classes_with_deep_supervision(tmp_path: Path) -> None:
    trainer = runpy.run_path(str(FOLDER / "nnunet_squares.py"))["main"](tmp_path)
    assert float(trainer.logger.get_value("mean_fg_dice", step=-1)) > 0.8
    assert type(trainer).__name__ == "nnUNetTrainerEdgeAware"

    batch = next(trainer.dataloader_train)
    outputs = trainer.network(batch["data"])
    assert len(outputs) == len(batch["target"]) > 2
    losses = trainer.loss.eval()
    expected = losses.dice(outputs, batch["target"])
    for criterion, weight, logits, label in zip(
        losses.edges.criteria, losses.edges.weights, outputs, batch["target"], strict=True
    ):
        assert isinstance(criterion, EdgeAwareLoss)
        assert criterion.counted_steps == 20
        expected = expected + weight * criterion(logits, label[:, 0].long())
    torch.testing.assert_close(losses(outputs, batch["target"]), expected)

    checkpoint = Path(trainer.output_folder, "checkpoint_final.pth")
    counts = losses.edges.criteria[0].edge_counts.clone()
    losses.edges.criteria[0].edge_counts.zero_()
    trainer.load_checkpoint(str(checkpoint))
    assert losses.edges.criteria[0].edge_counts.equal(counts)
