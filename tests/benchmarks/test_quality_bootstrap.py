"""Comparisons over resampled images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from quality.bootstrap import bootstrap_table, count_losses, resample
from quality.command import main
from quality.runs import Place, Run
from quality.training import finish
from segkit.checkpoint import CheckpointError

SETTINGS = {"data": "shapes", "epochs": 1, "size": (16, 16)}


def counts_of(correct: list[int]) -> torch.Tensor:
    """Return counts [N, 8, 1] of images with so many of 10 border pixels, band pixels and pixels right."""
    right, ten = torch.tensor(correct), torch.full((len(correct),), 10)
    return torch.stack([right, ten, right, ten, right, ten, right, ten], 1)[:, :, None]


def test_resampled_scores() -> None:
    scores = resample(counts_of([2, 8]), 2000, 255)["miou"]
    assert scores.shape == (2001,)
    assert scores[0] == 0.5
    assert set(scores.tolist()) == {0.2, 0.5, 0.8}  # of twice the first, each once, twice the second
    shares = [(scores[1:] == value).double().mean().item() for value in (0.2, 0.5, 0.8)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.05)
    assert torch.equal(scores, resample(counts_of([2, 8]), 2000, 255)["miou"])


def test_table_by_hand(place: Place) -> None:
    run = Run("ce", {}, 0, **SETTINGS)
    # The second loss is 10 points ahead on every image, so in every set; seed 3 has no pair.
    counts = {
        "cross-entropy": {0: counts_of([2, 8]), 1: counts_of([1, 3]), 3: counts_of([9, 9])},
        "edgeloss": {1: counts_of([2, 4]), 0: counts_of([3, 9])},
    }
    text = bootstrap_table(counts, place, run, 50)
    assert "Differences to cross-entropy, mean over 2 seeds; 95 % interval over 50 resamplings of the 2 images" in text
    assert text.splitlines()[-1] == f"| edgeloss |{' +10.00 [+10.00, +10.00] |' * 5}"
    del counts["edgeloss"][0], counts["cross-entropy"][1]
    with pytest.raises(CheckpointError, match="--state: expected a seed finished for all losses, but got none in"):
        bootstrap_table(counts, place, run, 50)


def test_command(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(shapes.parent, None, tmp_path / "results.jsonl", tmp_path / "state")
    runs = [Run(loss, {}, 0, **SETTINGS) for loss in ("ce", "ours")]
    for run in runs:
        finish(run, place)
    plan = tmp_path / "plan.yaml"
    losses = [{"loss": loss, "seeds": [0, 1]} for loss in ("ours", "ce")]
    plan.write_text(yaml.safe_dump({"epochs": 1, "size": [16, 16], "runs": losses}))
    command = ["bootstrap", str(plan), "--data", str(shapes), "--state", str(place.state), "--samples", "20"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "Differences to cross-entropy, mean over 1 seeds" in captured.out
    assert "| edgeloss | " in captured.out
    assert captured.err.count("left out") == 2  # the second seed
    counts = count_losses(runs, place, {run.title: 0.5 for run in runs})
    assert [list(by_seed) for by_seed in counts.values()] == [[0], [0]]
