"""Tests for benchmarks/speed.py: results as they come, and the clock of a CUDA device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import label_maps
import measure
import speed
from result_table import read_rows


def test_regions_are_made_once_and_point_by_point(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    blobs = label_maps.blobs
    monkeypatch.setattr(label_maps, "blobs", lambda *args, **kwargs: started.append(args) or blobs(*args, **kwargs))
    labels = label_maps.regions(3, (96, 160), 19, 1)
    assert labels.shape == (3, 96, 160)
    assert 0.04 <= label_maps.edge_fraction(labels[:1], 1) < 0.06
    assert len(started) == 4  # to find how many points, and an image each
    assert label_maps.regions(3, (96, 160), 19, 1) is labels  # for logits of another dtype


def measured(case: speed.Case, options: argparse.Namespace, log: object) -> dict[str, Any]:
    if case.name == "2 classes" and options.rounds == 1:
        raise KeyboardInterrupt
    common = {"case": case.name, "logits": [1, 2, 3, 4], "labels_shape": [1, 3, 4], "dtype": "float32", "notes": {}}
    numbers = {"edge_fraction": 0.1, "bar": None, "bytes_a_pixel": {"edgeloss": 9.0, "cross-entropy": 9.0}}
    return (
        common
        | numbers
        | {
            "milliseconds": dict.fromkeys(("cross-entropy", "edgeloss"), 1.0),
            "ratio": {"cross-entropy": 1.0, "edgeloss": 0.5},
        }
    )


def test_a_run_that_is_cut_off_keeps_its_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "measure", measured)
    path = tmp_path / "speed.jsonl"
    for rounds in (1, 2):
        monkeypatch.setattr(sys, "argv", ["speed.py", "--rounds", str(rounds), "--output", str(path)])
        if rounds == 1:
            assert speed.main() == 130
            assert capsys.readouterr().err.endswith("speed.py: interrupted; the cases before are complete\n")
            (row,) = read_rows(path)
            assert row["missing"][0] == "2 classes"
        else:
            speed.main()
    (row,) = read_rows(path)  # in place of the one cut off
    assert [case["case"] for case in row["cases"]] == [case.name for case in speed.CPU_CASES]
    assert "missing" not in row


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


def test_cuda_cases_are_replayed_too() -> None:
    names = [name for group, _ in speed.groups(speed.CUDA_CASES[0], "cuda", everything=False) for name in group]
    assert {"edgeloss", "edgeloss, replayed", "cross-entropy, replayed", "compiled cross-entropy"} <= set(names)
    assert not any("replayed" in name for group, _ in speed.groups(speed.CPU_CASES[0], "cpu", True) for name in group)
