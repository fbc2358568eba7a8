"""Tests for benchmarks/speed.py: what it measures, its table of results, and the clock of a CUDA device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import label_maps
import measure
import speed
from result_table import read_rows
from timing import losses


def test_regions_are_made_once_and_point_by_point(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    blobs = label_maps.blobs
    monkeypatch.setattr(label_maps, "blobs", lambda *args, **kwargs: started.append(args) or blobs(*args, **kwargs))
    labels = label_maps.regions(3, (96, 160), 19, 1)
    assert labels.shape == (3, 96, 160)
    assert 0.04 <= label_maps.edge_fraction(labels[:1], 1) < 0.06
    assert len(started) == 4  # to find how many points, and an image each
    assert label_maps.regions(3, (96, 160), 19, 1) is labels  # for logits of another dtype


def test_figures_go_to_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(kernels: str, milliseconds: float) -> None:
        times = {"cross-entropy": 10.0, "EdgeAwareLoss": milliseconds, "region_weight=0": 5.0}
        result = {"edge_fraction": 0.05, "milliseconds": times, "held_bytes": dict.fromkeys(times, 0)}
        monkeypatch.setattr(losses, "alone", lambda *arguments: result)
        arguments = ["--case", "binary", "small", "--output", str(tmp_path / "table.jsonl"), "--kernels", kernels]
        assert speed.main(arguments) == 0

    run("old", 9.0)
    run("new", 7.0)
    run("new", 5.0)  # instead of the one before
    rows = read_rows(tmp_path / "table.jsonl")
    found = {(row["case"], row["kernels"]): row["ratio"]["EdgeAwareLoss"] for row in rows}
    assert found == {("binary", "old"): 0.9, ("binary", "new"): 0.5, ("small", "old"): 0.9, ("small", "new"): 0.5}
    assert rows[0]["machine"]["torch"] in capsys.readouterr().out
    assert {row["case"]: row["aims"] for row in rows} == {"binary": [1.0, 0.7], "small": [2.0, 1.6]}


def test_losses_take_turns_on_the_same_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    case = losses.Case("tiny", (2, 3, 8, 8), options={"upsample": True})
    result = losses.measure(case, None, 1, 1, (*losses.NAMES, "reference"))
    assert result["milliseconds"].keys() == result["held_bytes"].keys() == {*losses.NAMES, "reference"}
    assert all(milliseconds > 0 for milliseconds in result["milliseconds"].values())
    assert 0 < result["edge_fraction"] < 1


def test_a_step_has_its_loss_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    words = ["step", "--size", "32", "32", "--batch", "1", "--width", "8", "--rounds", "1", "--output", str(path)]
    assert speed.main(words) == 0
    result = json.loads(path.read_text())
    assert 0 < result["loss_seconds"] < result["step_seconds"]
    assert f"{result['loss_share']:.1%}" in capsys.readouterr().out


def test_enqueuing_a_run_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            pass

        def record(self) -> None:
            happened.append("record")

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return 2.0

    class Eviction:
        def zero_(self) -> None:
            happened.append("evict")

    monkeypatch.setattr(torch, "empty", lambda *_, **__: Eviction())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: happened.append("sleep"), raising=False)
    assert measure.stopwatch("cuda")(lambda: happened.append("run")) == 0.002
    assert happened == ["evict", "sleep", "record", "run", "record"]
