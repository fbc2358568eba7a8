"""Scores at several offsets of the logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from sample_results import PLAN, result_of

from quality.command import main
from quality.offsets import POINTS, at_offsets, best_offsets, log_balance, report, scores_at, sweep
from quality.runs import Place, Run
from result_table import Row, read_rows
from segkit.checkpoint import load_checkpoint


def row_of(loss: str, seed: int, *f1: float, **options: float) -> Row:
    """Return a row with these scores at t = 0, 0.5, 1."""
    result = {key: value for key, value in result_of(loss, seed, 0.5, **options).items() if key != "metrics"}
    return {**result, "offsets": [0.0, 0.5, 1.0], "scores": {name: list(f1) for name in POINTS}}


@pytest.mark.slow
def test_an_offset_is_a_bias_of_the_last_layer(trained: tuple[Place, list[Run]], tmp_path: Path) -> None:
    place, (_, run) = trained
    log_u = log_balance(run, place)
    assert log_u.min() < 0 < log_u.max()
    scores = scores_at(run, place, log_u, [0.0, 1.0])
    metrics = next(row["metrics"] for row in read_rows(place.results) if row["run"]["loss"] == "ours")
    assert {name: values[0] for name, values in scores.items()} == {name: metrics[name] for name in POINTS}
    checkpoint = load_checkpoint(place.checkpoint(run))
    checkpoint["model"]["head.bias"] -= log_u
    moved = replace(place, state=tmp_path)
    torch.save(checkpoint, moved.checkpoint(run))
    shifted = scores_at(run, moved, log_u, [0.0])
    assert {name: values[0] for name, values in shifted.items()} == {name: scores[name][1] for name in POINTS}
    assert scores["f1_1"][0] != scores["f1_1"][1]


def test_the_best_offset_is_that_of_the_mean_over_the_seeds() -> None:
    rows = [row_of("ce", 0, 0.3, 0.2, 0.1), row_of("ours", 0, 0.4, 0.6, 0.5), row_of("ours", 1, 0.4, 0.4, 0.7)]
    best = {"cross-entropy": 0.0, "CE + edge terms": 1.0}
    assert best_offsets(rows) == best
    assert [row["metrics"]["f1_1"] for row in at_offsets(rows, best)] == [0.3, 0.5, 0.7]
    _, zero, first, chosen, second = report(rows, "cross-entropy").split("**")
    assert zero == "t = 0"
    assert chosen == "best boundary F1 1 px ↑, chosen on the same images: cross-entropy: t = 0; CE + edge terms: t = 1"
    # 0.4 - 0.3 and 0.5 - 0.3, of the seed that both have
    assert "| CE + edge terms | 1 | +10.0 |" in first
    assert "| CE + edge terms | 1 | +20.0 |" in second


def test_command(
    trained: tuple[Place, list[Run]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It scores what is finished, and nothing twice."""
    monkeypatch.setattr("quality.offsets.OFFSETS", (0.0, 0.5))
    place, (ce, _) = trained
    plan, table = tmp_path / "plan.yaml", tmp_path / "offsets.jsonl"
    plan.write_text(yaml.safe_dump(PLAN | {"runs": [*PLAN["runs"], {"loss": "weighted", "seeds": [0]}]}))
    words = ["offsets", str(plan), "--data-root", str(place.root), "--state", str(place.state)]
    words += ["--results", str(table), "--output", str(tmp_path)]
    assert main(words) == 0
    printed, reported = capsys.readouterr()
    assert "left out: " in reported  # the third loss, which has no finished run
    assert "best boundary F1 1 px ↑, chosen on the same images: cross-entropy: t = " in printed
    rows = read_rows(table)
    assert [(row["split"], row["images"]) for row in rows] == [("val", {"train": 10, "evaluated": 3})] * 2
    assert (tmp_path / "quality-offsets.png").read_bytes().startswith(b"\x89PNG")
    sweep([ce], Place(Path("nowhere"), table, Path("nowhere")))
    assert read_rows(table) == rows
