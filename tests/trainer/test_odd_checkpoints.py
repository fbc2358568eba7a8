"""A checkpoint with values that can't be right is refused, in one line."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import run_in, write_config

import predict
from segkit.checkpoint import load_checkpoint, save_checkpoint

Checkpoint = dict[str, Any]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def saved(config: Path) -> Checkpoint:
    assert run_in(config.parent / "run", config, "epochs=1") == 0
    return load_checkpoint(config.parent / "run" / "last.pt")


def put(*path: Any) -> Callable[[Checkpoint], None]:
    """Return a change of a checkpoint: the keys of a value, and what replaces it."""

    def change(checkpoint: Checkpoint) -> None:
        *keys, last, value = path
        at: Any = checkpoint
        for key in keys:
            at = at[key]
        at[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("epoch", 10**9), "epoch: expected 1, the length of the history, but got 1000000000"),
        (put("epoch", "1"), "epoch: expected a value of type int, but got '1'"),
        (put("batch", -3), "batch: expected a number >= 0, but got -3"),
        (put("batch", 2), "sums: expected those of 2 batches, but got none"),
        (lambda c: c.update(batch=4, sums={"images": 8, "seconds": 1.0, "waiting": 0.0}), "batch: expected at most 3"),
        (put("step", 99), "scheduler: expected that of step 99, but got that of step 3"),
        (put("scheduler", "last_epoch", 10**9), "scheduler: expected that of step 3, but got that of step 1000000000"),
        (put("optimizer", None), "optimizer: expected a value of type dict, but got None"),
        (put("optimizer", {}), "optimizer: expected its state, but got another (KeyError('param_groups'))"),
        (put("optimizer", "param_groups", 0, "lr", "x"), "optimizer: expected numbers as options, but got others"),
        (put("optimizer", "state", 0, "exp_avg", torch.zeros(3)), "optimizer: expected exp_avg of the shape of its"),
        (put("history", [{}]), "history: expected the figures of each epoch, but got others"),
        (put("history", 0, "val/miou", float("nan")), "history: expected the figures of each epoch, but got others"),
        (put("best", None), "best: expected a value of type int | float, but got None"),
        (put("ema", [1]), "ema: expected a value of type dict | None, but got [1]"),
        (put("model", {"a": 3}), "expected weights of this model, but got values that are no tensors"),
        (put("classes", ["a"]), "expected classes ['ground', 'box', 'bar'], but got ['a']"),
        (put("criterion", None), "criterion: expected the counts of this loss, but got others"),
        (put("criterion", "edge_counts", torch.zeros(7)), "criterion: expected counts of 3 classes, but got others"),
        (lambda c: c.pop("images"), "expected a run to resume, but got a file without 'images'"),
    ],
)
def test_resuming_names_the_value(
    change: Callable[[Checkpoint], None],
    message: str,
    saved: Checkpoint,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = copy.deepcopy(saved)
    change(checkpoint)
    save_checkpoint(tmp_path / "last.pt", checkpoint)
    assert run_in(tmp_path, config, "epochs=2", "resume=auto") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"train.py: {tmp_path / 'last.pt'}: {message}")


@pytest.mark.parametrize(
    "change",
    [
        put("config", 3),
        put("config", {}),
        put("config", "model", {"width": "wide"}),
        put("config", "data", []),
        put("config", "data", "size", "big"),
        put("classes", 7),
        put("ignore_index", None),
        put("model", [1]),
    ],
)
def test_predicting_names_the_checkpoint(
    change: Callable[[Checkpoint], None],
    saved: Checkpoint,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = copy.deepcopy(saved)
    change(checkpoint)
    save_checkpoint(tmp_path / "best.pt", checkpoint)
    images = str(config.parent / "val" / "images")
    assert predict.main(["--checkpoint", str(tmp_path / "best.pt"), "--images", images, "-o", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"predict.py: {tmp_path / 'best.pt'}: expected ")
