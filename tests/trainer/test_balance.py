"""Class weights of the edge terms from the labels of a training set."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from packages import require
from small_data import blocks, metrics_of, open_folder, open_volumes, run_in, save, save_volume, write_config

require("lightning")

from edgeloss.functional import balanced_edge_class_weight  # noqa: E402
from edgeloss.io import find_split  # noqa: E402
from segkit.balance import data_edge_class_weight  # noqa: E402
from segkit.checkpoint import load_checkpoint  # noqa: E402
from segkit.data import Augment, SegmentationDataset  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, classes in (("a", 3), ("b", 2)):
        save(tmp_path / "data", name, blocks(classes=classes))
    return tmp_path / "data"


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read, counted = SegmentationDataset.labels, list[int]()

    def labels(self: SegmentationDataset, i: int) -> torch.Tensor:
        counted.append(i)
        return read(self, i)

    monkeypatch.setattr(SegmentationDataset, "labels", labels)
    return counted


def test_weights_are_those_of_all_labels_and_are_counted_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, cache = open_folder(folder, 3, augment=Augment()), tmp_path / "run" / "weights.json"
    maps = [dataset.labels(i)[None] for i in range(2)]
    expected = balanced_edge_class_weight(maps, 3, ignore_index=255, radius=1)
    assert len(expected.unique()) == 3
    counted = count_reads(monkeypatch)
    for _ in range(2):
        torch.testing.assert_close(data_edge_class_weight(dataset, 1, cache), expected, rtol=0, atol=0)
    assert counted == [0, 1]
    assert data_edge_class_weight(dataset, 2, cache).tolist() != expected.tolist()  # another radius counts again
    for other in (open_folder(folder, 3, size=(20, 20)), open_folder(folder, 4), open_folder(folder, 3, remap="2:255")):
        counted.clear()
        data_edge_class_weight(other, 2, cache)
        assert counted == [0, 1]
    mask = folder / "masks" / "a.png"
    os.utime(mask, ns=(0, 0))  # another mask of the same size
    counted.clear()
    data_edge_class_weight(other, 2, cache)
    assert counted == [0, 1]
    for content in ("damaged", "[]", '{"key": 1}'):
        cache.write_text(content)
        torch.testing.assert_close(data_edge_class_weight(dataset, 1, cache), expected, rtol=0, atol=0)


def test_counting_shows_progress(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeloss.cli.progress._SECONDS", 0.0)
    data_edge_class_weight(open_folder(folder, 3), 1, tmp_path / "weights.json")
    about = "training labels, whose edge pixels are counted, after 0 s"
    lines = [f"edgeloss: 0 of 2 {about}; a", f"edgeloss: 1 of 2 {about}; about 0 s left; b"]
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.slow
def test_a_run_takes_the_weights_of_its_training_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = write_config(tmp_path / "data"), tmp_path / "run"
    counted = count_reads(monkeypatch)
    assert run_in(run, config, "--model.balance=data", "--trainer.max_epochs=1") == 0
    split = find_split("folder", tmp_path / "data", "train")
    maps = [SegmentationDataset(split)[i][1][None] for i in range(5)]
    expected = balanced_edge_class_weight(maps, 3, ignore_index=255)
    assert counted == [*range(5)]
    saved = load_checkpoint(run / "last.ckpt")["state_dict"]["criterion.edge_class_weight"]
    torch.testing.assert_close(saved, expected, rtol=0, atol=0)
    assert run_in(run, config, "--model.balance=data", "--ckpt_path=last") == 0
    assert counted == [*range(5)]  # they were kept
    assert [row["epoch"] for row in metrics_of(run)] == [1, 2]
    options = ["--model.balance=data", "--model.loss.edge_class_weight=[1, 2, 3]"]
    assert run_in(tmp_path / "other", config, *options) == 1
    assert "model.balance: expected batch for a loss with edge_class_weight, but got data" in capsys.readouterr().err


def test_volumes_are_counted_as_a_whole(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 3, (5, 8, 6))
    save_volume(tmp_path, "v", labels)
    weight = data_edge_class_weight(open_volumes(tmp_path, size=(2, 2, 2)), 1, tmp_path / "weights.json")
    expected = balanced_edge_class_weight([torch.from_numpy(labels)[None]], 3, ignore_index=255)
    torch.testing.assert_close(weight, expected, rtol=0, atol=0)
