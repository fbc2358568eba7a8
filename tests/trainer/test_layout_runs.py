"""Trainings on data sets as their archives have them, without a file renamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_trees import write_tree
from packages import require
from PIL import Image
from small_data import metrics_of, run_in, save, write_config

require("lightning")

from segkit.loader import PARTS, SegmentationData  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own

# The parts that the small trees have, where these are not the ones for training and validation.
OPTIONS = {"camvid": ["--data.val=train"], "cityscapes": ["--data.val=train"], "coco-stuff": ["--data.val=train2017"]}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ade20k", "camvid", "cityscapes", "coco-stuff", "pet", "voc"])
def test_two_epochs_of_each_layout(layout: str, tmp_path: Path) -> None:
    write_tree(layout, tmp_path / "archive", (24, 32))
    config = write_config(tmp_path / "other")
    options = [f"--data.root={tmp_path / 'archive'}", f"--data.layout={layout}", *OPTIONS.get(layout, [])]
    assert run_in(tmp_path / "run", config, *options, "--data.size=[24, 32]") == 0
    rows = metrics_of(tmp_path / "run")
    assert [row["epoch"] for row in rows] == [1, 2]
    assert all(np.isfinite(row["train/loss"]) and row["val/miou"] >= 0 for row in rows)


def test_parts_have_the_names_of_their_layout(tmp_path: Path) -> None:
    for layout in ("ade20k", "pet"):
        write_tree(layout, tmp_path / layout)
        data = SegmentationData(str(tmp_path / layout), layout)
        assert data.source["val"] == PARTS[layout][1]
        assert data.train_set.names != data.val_set.names


def test_palette_and_rules_of_the_trainer(tmp_path: Path) -> None:
    numbers = np.array([[1, 2, 0], [2, 2, 1]], np.uint8)
    colors = np.array([[0, 0, 0], [128, 0, 0], [0, 128, 0]], np.uint8)  # the first ones of VOC
    for part in ("train", "val"):
        save(tmp_path / part, "a", numbers)
        Image.fromarray(colors[numbers]).save(tmp_path / part / "masks" / "a.png")
    (tmp_path / "classes.txt").write_text("0 a\n1 b\n255 void\n")
    data = SegmentationData(str(tmp_path), palette="voc", remap="0:255,1-2:0", augment=None)
    for dataset in (data.train_set, data.val_set):
        assert dataset[0][1].tolist() == [[0, 1, 255], [1, 1, 0]]
