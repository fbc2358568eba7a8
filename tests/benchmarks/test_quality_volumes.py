"""The benchmark of quality on volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baselines.recipes import Progress
from quality.runs import Place, Run
from quality.tables import describe
from quality.training import Training, finish, load_network
from result_table import read_rows

TINY: dict[str, Any] = {"data": "cubes", "epochs": 2, "size": None, "crop": (8, 8, 8)}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Write volumes of several sizes, each with a bright cube of class 1."""
    root = tmp_path / "cubes"
    for split, count in {"train": 5, "val": 2}.items():
        (root / split).mkdir(parents=True)
        for n in range(count):
            labels = np.zeros((7 + n, 9, 8), dtype=np.uint8)
            labels[2:5, 3:7, 2:6] = 1
            np.savez(root / split / f"{n}.npz", image=labels * 200, label=labels)
    (root / "classes.txt").write_text("0 background\n1 cube\n")
    return Place(tmp_path, None, tmp_path / "results.jsonl", tmp_path / "state")


@pytest.mark.parametrize("loss", ["ce", "weighted", "ours"])
def test_a_run_on_volumes(place: Place, loss: str) -> None:
    run = Run(loss, {} if loss == "ce" else {"class_balance": 1}, 0, **TINY)
    finish(run, place)
    (row,) = read_rows(place.results)
    assert row["images"] == {"train": 5, "evaluated": 2}
    assert all(0 <= row["metrics"][name] <= 1 for name in ("miou", "boundary_iou_005", "f1_1", "trimap_1"))
    assert "5 images at their own sizes for training, in 1 crops of 8 × 8 × 8 per epoch" in describe(row)
    network = load_network(run, place.state, 2, "cpu")
    assert network(torch.zeros(1, 1, 9, 9, 8)).shape == (1, 2, 9, 9, 8)


def test_volumes_are_cropped_for_training_and_scored_whole(place: Place) -> None:
    training = Training(Run("ce", {}, 0, **TINY), place)
    assert [images.shape for images, _ in training._batches()] == [(4, 1, 8, 8, 8), (1, 1, 8, 8, 8)]
    assert [labels.shape for _, labels in training.evaluated] == [(1, 7, 9, 8), (1, 8, 9, 8)]
    sized = Training(Run("ce", {}, 0, **{**TINY, "crop": None, "size": (8, 8, 8)}), place)
    assert [images.shape for images, _ in sized.evaluated] == [(2, 1, 8, 8, 8)]


def test_loss_and_metrics_measure_in_the_spacing_of_the_files(place: Place) -> None:
    run = Run("ours", {"radius": 2, "decay": 1.0}, 0, **TINY)

    def trained(spacing: tuple[float, ...] | None) -> Training:
        for path in place.data_of(run).glob("*/*.npz"):
            with np.load(path) as arrays:
                parts = {name: arrays[name] for name in ("image", "label")}
            np.savez(path, **parts, **({} if spacing is None else {"spacing": np.array(spacing)}))
        return Training(run, place)

    def figures(training: Training) -> dict[str, Any]:
        training.epoch = training.run.epochs
        training.score()
        images, labels = training.evaluated[0]
        logits = training.model(images)
        return training.curve[-1]["metrics"] | {"loss": training.criterion(logits, labels, Progress()).item()}

    plain, cubes, flat = (figures(trained(spacing)) for spacing in (None, (2.0, 2.0, 2.0), (6.0, 2.0, 2.0)))
    assert plain == cubes
    assert {name for name in plain if plain[name] != flat[name]} >= {"loss", "hd95", "f1_1", "trimap_3"}
    scaled = figures(trained((3.0, 1.0, 1.0)))
    assert scaled == flat
