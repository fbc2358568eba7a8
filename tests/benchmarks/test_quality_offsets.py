"""Scores at several offsets of the logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from sample_results import result_of

from quality.command import main
from quality.data import scored_batches
from quality.offsets import POINTS, at_offsets, best_offsets, count_images, log_balance, report, scores_of, sweep
from quality.runs import Place, Run, checkpoint_path
from quality.training import finish
from result_table import Row, read_rows
from segkit.checkpoint import CheckpointError, load_checkpoint

RUN = Run("weighted", {"class_balance": 1}, 0, data="shapes", epochs=2, size=(24, 32))


def row_of(loss: str, seed: int, *f1: float, **options: float) -> Row:
    """Return a row with these scores at t = 0, 0.5, 1."""
    result = {key: value for key, value in result_of(loss, seed, 0.5, **options).items() if key != "metrics"}
    return {**result, "offsets": [0.0, 0.5, 1.0], "scores": {name: list(f1) for name in POINTS}}


def test_without_an_offset_the_scores_are_those_of_the_run(place: Place) -> None:
    finish(RUN, place)
    (row,) = read_rows(place.results)
    counts = count_images(RUN, place, [0.0], log_balance(RUN, place))
    assert counts.shape == (1, 3, 8, 10)
    assert scores_of(counts[0].sum(0), 255) == pytest.approx({name: row["metrics"][name] for name in POINTS}, abs=2e-6)


def test_an_offset_is_a_bias_of_the_last_layer(place: Place) -> None:
    finish(RUN, place)
    log_u = log_balance(RUN, place)
    assert log_u.min() < 0 < log_u.max()
    at_zero, at_one = count_images(RUN, place, [0.0, 1.0], log_u)
    path = checkpoint_path(RUN, place.state)
    checkpoint = load_checkpoint(path)
    checkpoint["model"]["head.bias"] -= log_u
    torch.save(checkpoint, path)
    assert torch.equal(count_images(RUN, place, [0.0], log_u)[0], at_one)
    assert not torch.equal(at_zero, at_one)


def test_scores_by_hand() -> None:
    counts = torch.zeros(8, 3, dtype=torch.long)
    counts[:, 0] = torch.tensor([1, 2, 3, 4, 1, 4, 3, 4])
    counts[:, 1] = torch.tensor([0, 0, 0, 5, 0, 6, 1, 4])  # the last class does not occur
    # P = 1/2 and R = 3/4 for one class, 0 for the other.
    expected = {"f1_1": 0.3, "precision_1": 0.25, "recall_1": 0.375, "boundary_iou_005": 0.125, "miou": 0.5}
    assert scores_of(counts, 255) == pytest.approx(expected)


def test_the_best_offset_is_that_of_the_mean_over_the_seeds() -> None:
    rows = [row_of("ce", 0, 0.3, 0.2, 0.1), row_of("ours", 0, 0.4, 0.6, 0.5), row_of("ours", 1, 0.4, 0.4, 0.7)]
    best = {"cross-entropy": 0.0, "edgeloss": 1.0}
    assert best_offsets(rows, [0.0, 0.5, 1.0]) == best
    assert best_offsets(rows, [0.0, 0.5])["edgeloss"] == 0.5
    assert [row["metrics"]["f1_1"] for row in at_offsets(rows, best)] == [0.3, 0.5, 0.7]
    text = report(rows, [0.0, 0.5, 1.0], {"": 0.5, "edgeloss": 0.0}, "cross-entropy")
    zero, given, chosen = text.split("**")[1::2]
    assert zero == "t = 0"
    assert given == "given: cross-entropy: t = 0.5; edgeloss: t = 0"
    assert chosen == "best boundary F1 1 px, chosen on the same images: cross-entropy: t = 0; edgeloss: t = 1"
    parts = text.split("**")[2::2]
    # 0.4 - 0.3, 0.4 - 0.2 and 0.5 - 0.3, of the seed that both have
    assert ["| edgeloss | 1 | +10.00 |" in parts[0], "| edgeloss | 1 | +20.00 |" in parts[1]] == [True, True]
    assert "| edgeloss | 1 | +20.00 |" in parts[2]


def test_sweeps_resume(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = Run("ce", {}, 0, data="shapes", epochs=2, size=(24, 32))
    with pytest.raises(CheckpointError, match="--state: expected finished runs of the plan, but got none in"):
        sweep([unfinished], place, [0.0])
    finish(RUN, place)
    place.results.unlink()
    (row,) = sweep([unfinished, RUN], place, [0.0, 1.0])
    assert f"left out: {checkpoint_path(unfinished, place.state)}" in capsys.readouterr().err
    assert read_rows(place.results) == json.loads(json.dumps([row]))
    assert row["images"] == {"train": 10, "evaluated": 3}
    monkeypatch.setattr("quality.offsets.count_images", lambda *arguments: pytest.fail("scored again"))
    assert sweep([RUN], place, [1.0]) == read_rows(place.results)


def test_offsets_of_held_out_images(place: Place) -> None:
    run = Run("ce", {}, 0, data="shapes", epochs=1, size=(24, 32), held_out=True)
    finish(run, place)
    place.results.unlink()
    (row,) = sweep([run], place, [0.0])
    assert (row["split"], row["images"]) == ("held-out", {"train": 8, "evaluated": 2})
    assert sum(len(labels) for _, labels in scored_batches(run, place)) == 2


def test_command(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(shapes.parent, None, tmp_path / "results.jsonl", tmp_path / "state")
    for loss in ("ce", "ours"):
        finish(Run(loss, {}, 0, data="shapes", epochs=1, size=(16, 16)), place)
    plan = tmp_path / "plan.yaml"
    losses = [{"loss": loss, "seeds": [0]} for loss in ("ce", "ours", "weighted")]
    plan.write_text(yaml.safe_dump({"epochs": 1, "size": [16, 16], "runs": losses}))
    table = tmp_path / "offsets.jsonl"
    command = ["offsets", str(plan), "--data", str(shapes), "--state", str(place.state), "--results", str(table)]
    command += ["--output", str(tmp_path / "images"), "--offsets", "-0.5", "0.5", "--at", "0.3", "edgeloss=0.1"]
    assert main([*command, "--losses", "cross-entropy", "edgeloss"]) == 0
    printed, reported = capsys.readouterr()
    assert "left out" not in reported  # the third loss, which has no finished run
    assert "**given: cross-entropy: t = 0.3; edgeloss: t = 0.1**" in printed
    assert [row["offsets"] for row in read_rows(table)] == [[-0.5, 0.0, 0.1, 0.3, 0.5]] * 2
    assert (tmp_path / "images" / "quality-offsets.png").read_bytes().startswith(b"\x89PNG")
