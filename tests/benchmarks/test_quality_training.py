"""Runs of the benchmark of quality repeat, resume, and differ only in their loss."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import wait_for_end

from baselines.recipes import Progress, Recipe
from edgeloss.io import find_split
from quality.runs import Place, Run, key_of
from quality.scores import METRICS, PER_CLASS, PER_IMAGE, SHOWN
from quality.training import Training, execute, finish, left_of, load_network
from result_table import add_rows, read_rows
from segkit.checkpoint import load_checkpoint
from segkit.data import SegmentationDataset

TINY: dict[str, Any] = {"data": "shapes", "epochs": 2, "batch": 4, "size": (16, 16)}  # batches of 4, 4 and 2 images


def outcome(run: Run, place: Place) -> dict[str, Any]:
    """Return the row of a run without its times."""
    (row,) = (row for row in read_rows(place.results) if key_of(row) == run.key)
    row["curve"].pop("seconds", None)
    return row


def weights(run: Run, place: Place) -> dict[str, torch.Tensor]:
    return load_checkpoint(place.checkpoint(run))["model"]


def images_of_an_epoch(training: Training) -> list[torch.Tensor]:
    """Train for an epoch, and return the images that the network has seen, by batch."""
    batches: list[torch.Tensor] = []
    training.model.register_forward_pre_hook(lambda _, args: batches.append(args[0]))
    training.train_epoch()
    return batches


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.slow
def test_a_run_repeats_and_goes_on_where_it_was_killed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("module", {"edge_focus": 2}, 0, **TINY)  # a step depends on those before
    finish(run, place)
    other = Place(place.root, tmp_path / "other.jsonl", tmp_path / "other")
    train_epoch = Training.train_epoch
    trained = []

    def killed_in_the_second(training: Training) -> float:
        trained.append(training.epoch)
        if trained == [0, 1]:
            raise KeyboardInterrupt
        return train_epoch(training)

    monkeypatch.setattr(Training, "train_epoch", killed_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        finish(run, other)
    assert not other.results.exists()
    finish(run, other)
    assert trained == [0, 1, 1]
    result = outcome(run, place)
    assert outcome(run, other) == result
    assert same(weights(run, other), weights(run, place))
    other.results.unlink()
    finish(run, other)  # a trained run without a row gets one
    assert outcome(run, other) == result
    assert result["images"] == {"train": 10, "evaluated": 3}
    assert result["metrics"].keys() == {*METRICS, *PER_CLASS, *PER_IMAGE, "pixels"} - {"cldice"}
    curve = result["curve"]
    assert curve["epoch"] == [1, 2]
    assert curve.keys() == {"epoch", "loss", *SHOWN}
    assert all(curve[name][-1] == result["metrics"][name] for name in SHOWN)
    present = [value for value in result["metrics"]["iou"] if value is not None]
    assert result["metrics"]["miou"] == pytest.approx(sum(present) / len(present), abs=1e-5)


def test_only_the_loss_differs(place: Place) -> None:
    starts = [Training(Run(loss, {}, seed, **TINY), place) for loss, seed in (("ce", 0), ("weighted", 0), ("ce", 1))]
    states = [training.model.state_dict() for training in starts]
    assert same(states[0], states[1])
    assert not same(states[0], states[2])
    seen = [images_of_an_epoch(training) for training in starts]
    assert [len(batch) for batch in seen[0]] == [4, 4, 2]
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))
    assert not torch.equal(seen[0][0], seen[2][0])


def test_held_out_images_are_not_trained_on(place: Place) -> None:
    trainings = [Training(Run(loss, {}, seed, held_out=True, **TINY), place) for loss, seed in (("ce", 0), ("cpg", 1))]
    assert [len(training.chosen) for training in trainings] == [8, 8]
    assert (trainings[0].chosen == trainings[1].chosen).all()  # the same ones, whatever the seed
    held_out = [index for index in range(10) if index not in trainings[0].chosen]
    plain = SegmentationDataset(find_split("folder", place.root / "shapes", "train"), size=(16, 16))
    scored = torch.cat([labels for _, labels in trainings[0].evaluated])
    assert torch.equal(scored, torch.stack([plain[index][1] for index in held_out]))
    sections = Training(Run("ce", {}, 0, held_out=True, contiguous=True, **TINY), place)
    assert sections.chosen.tolist() == [*range(8)]


def test_crops(place: Place) -> None:
    training = Training(Run("ce", {}, 0, **{**TINY, "size": None, "crop": (8, 16), "crops": 3}), place)
    steps: list[Progress] = []
    criterion = training.criterion
    training.criterion = lambda logits, labels, progress: steps.append(progress) or criterion(logits, labels, progress)
    batches = images_of_an_epoch(training)
    assert [batch.shape for batch in batches] == [(4, 3, 8, 16), (4, 3, 8, 16), (2, 3, 8, 16)] * 3
    assert [(progress.step, progress.steps) for progress in steps] == [(step, 18) for step in range(9)]
    assert len(torch.cat(batches).unique(dim=0)) == 30  # every sample is another crop
    assert [len(labels) for _, labels in training.evaluated] == [1, 1, 1]  # whole, of their own sizes
    assert all(labels.numel() > 8 * 16 for _, labels in training.evaluated)


def test_volumes(tmp_path: Path) -> None:
    """They have several sizes, each with a bright cube of class 1, and are cropped for training and scored whole."""
    root = tmp_path / "cubes"
    for split, count in {"train": 5, "val": 2}.items():
        (root / split).mkdir(parents=True)
        for n in range(count):
            labels = np.zeros((7 + n, 9, 8), dtype=np.uint8)
            labels[2:5, 3:7, 2:6] = 1
            np.savez(root / split / f"{n}.npz", image=labels * 200, label=labels)
    (root / "classes.txt").write_text("0 background\n1 cube\n")
    place = Place(tmp_path, tmp_path / "results.jsonl", tmp_path / "state")
    settings = {"data": "cubes", "epochs": 1}
    run = Run("ours", {"class_balance": 1}, 0, size=None, crop=(8, 8, 8), **settings)
    training = Training(run, place)
    assert [images.shape for images, _ in training._batches()] == [(4, 1, 8, 8, 8), (1, 1, 8, 8, 8)]
    assert [labels.shape for _, labels in training.evaluated] == [(1, 7, 9, 8), (1, 8, 9, 8)]
    finish(run, place)
    (row,) = read_rows(place.results)
    assert row["images"] == {"train": 5, "evaluated": 2}
    assert all(0 <= row["metrics"][name] <= 1 for name in ("miou", "boundary_iou_005", "f1_1", "trimap_1"))
    assert load_network(run, place)(torch.zeros(1, 1, 9, 9, 8)).shape == (1, 2, 9, 9, 8)
    sized = Training(Run("ce", {}, 0, size=(8, 8, 8), **settings), place)
    assert [images.shape for images, _ in sized.evaluated] == [(2, 1, 8, 8, 8)]


def test_a_network_with_a_pretrained_encoder(place: Place) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is not installed")
    settings = {**TINY, "epochs": 1, "network": "efficientnet-lite0"}
    run = Run("module", {}, 0, **settings, pretrained=True)
    training, plain = Training(run, place), Training(Run("ce", {}, 0, **settings), place)
    assert not torch.equal(training.model.stem[0].weight, plain.model.stem[0].weight)
    assert 3.4e6 < sum(p.numel() for p in training.model.parameters()) < 3.6e6
    for size in ((34, 64), (17, 30)):
        image = torch.randn(2, 3, *size)
        assert training.model.train()(image).shape == (2, 10, (size[0] + 1) // 2, size[1] // 2)
        assert training.model.eval()(image).shape == (2, 10, *size)
    for each in (plain, training):  # the module interpolates by itself, and other losses are given the image's size
        each.train_epoch()


def test_rows_that_lack_scores_are_scored_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run("ce", {}, 0, **TINY), Run("ours", {}, 0, **TINY)]
    assert execute([runs], place, workers=1, threads=1) == 0
    whole = [outcome(run, place) for run in runs]
    old = dict(whole[0], metrics={name: whole[0]["metrics"][name] for name in ("miou", "iou")})
    add_rows(place.results, [old], key_of)
    again = replace(place, rescore=True)
    assert [left_of([runs], each) for each in (place, again)] == [[], runs[:1]]
    monkeypatch.setattr(Training, "train_epoch", lambda training: pytest.fail("trained again"))
    assert execute([runs], again, workers=1, threads=1) == 0
    assert [outcome(run, place) for run in runs] == whole
    assert left_of([runs], again) == []


def test_a_diverged_run_is_a_result(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = {"nan": Recipe("nan", lambda logits, target, given: logits.sum() * math.nan)}
    monkeypatch.setattr("baselines.recipes.RECIPES", nan)
    run = Run("nan", {}, 0, **TINY)
    finish(run, place)
    result = outcome(run, place)
    assert result["failed"] == "the loss is nan in step 1 of 6, epoch 1"
    assert "metrics" not in result
    assert left_of([[run]], replace(place, rescore=True)) == []


POOL = """
import os, time
from measure import processes

with processes(1) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    busy = pool.submit(time.sleep, 600)
    while not busy.done():  # not result(): a signal that comes just before its wait begins is raised only after it
        time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(timeout=30)
    wait_for_end(worker)


def die(run: Run, place: Place, threads: int) -> None:
    """End the process of one of the runs, as a signal would."""
    if run.seed == 1:
        os._exit(9)


@pytest.mark.slow
def test_workers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run("ce", {}, seed, **{**TINY, "epochs": 1}) for seed in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr("quality.training.finish", die)
        assert execute([runs], place, workers=2, threads=1) == 1  # the others go on
    assert execute([runs], place, workers=2, threads=1) == 0
    assert [key_of(row) for row in read_rows(place.results)] == sorted(run.key for run in runs)


def test_a_run_that_would_not_end_in_time_stops(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("ce", {}, 0, **{**TINY, "epochs": 10**6})
    finish(run, replace(place, end=time.time() + 60))
    assert "left for the next call: it would take" in capsys.readouterr().out
    assert not place.results.exists()
    assert load_checkpoint(place.checkpoint(run))["epoch"] == 2
