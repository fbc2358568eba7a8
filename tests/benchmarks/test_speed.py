"""Tests for benchmarks/speed.py: what it measures, its table of results, and the clock of a CUDA device."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import label_maps
import measure
import speed
from result_table import read_rows
from timing import losses, peers, versions


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
    table = tmp_path / "table.jsonl"
    for milliseconds in (9.0, 5.0):  # the second instead of the first
        times = dict(zip(losses.NAMES, (10.0, milliseconds, 5.0), strict=True))
        monkeypatch.setattr(losses, "alone", lambda *arguments, times=times: {"milliseconds": times})
        assert speed.main(["--case", "binary", "11 classes, one thread", "--threads", "2", "--output", str(table)]) == 0
    rows = {row["case"]: row for row in read_rows(table)}
    assert {case: row["ratio"]["EdgeAwareLoss"] for case, row in rows.items()} == dict.fromkeys(rows, 0.5)
    threads = {case: row["machine"]["threads"] for case, row in rows.items()}
    assert threads == {"binary": 2, "11 classes, one thread": 1}
    printed = capsys.readouterr().out
    assert rows["binary"]["machine"]["torch"] in printed
    assert "| binary | (8, 1, 512, 512) | float32 | 10, 5, 5 | 1, 0.5, 0.5 | 2 |" in printed


def test_losses_take_turns_on_the_same_tensors() -> None:
    result = losses.measure(losses.Case("tiny", (2, 3, 8, 8), {"upsample": True}), None, 1, 1)
    assert result["milliseconds"].keys() == result["held_bytes"].keys() == {*losses.NAMES}
    assert all(milliseconds > 0 for milliseconds in result["milliseconds"].values())
    assert 0 < result["edge_fraction"] < 1


def test_other_losses_are_compared_with_cross_entropy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "alone", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(peers, "LOSSES", [("ce", {}), ("weighted", {"k": 2.0})])
    monkeypatch.setattr(peers, "measure_memory", lambda *arguments: 2**20)
    assert speed.main(["peers", "--shape", "2", "5", "32", "32", "--output", str(tmp_path / "peers.jsonl")]) == 0
    rows = {row["case"]: row for row in read_rows(tmp_path / "peers.jsonl")}
    assert rows.keys() == {"cross-entropy", "edge-weighted CE (k 2)"}
    assert rows["cross-entropy"]["ratio"] == 1
    assert all(row["milliseconds"] > 0 and row["megabytes"] == 1 for row in rows.values())


@pytest.mark.slow
def test_versions_take_turns(tmp_path: Path) -> None:
    case = losses.Case("tiny", (2, 3, 8, 8))
    row = versions.measure(case, versions.HERE, None, 1, 2)
    assert all(0.1 < ratio < 10 for ratio in row["ratio"].values())
    assert row["milliseconds"].keys() == row["bytes of the other"].keys() == {"default", "region_weight=0"}
    with pytest.raises(SystemExit):  # the process says that the folder has no edgeloss
        versions.measure(case, tmp_path, None, 1, 2)


@pytest.mark.slow
def test_memory_of_other_losses() -> None:
    shape = [4, 11, 128, 128]
    plain, fields = (measure.alone(peers.measure_memory, shape, None, (name, {}), 1) for name in ("ce", "affinity"))
    # Eight neighbors of all pixels and classes, compared with a few maps of the logits' size.
    assert fields > 3 * plain > 0


def test_a_step_has_its_loss_in_it(tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl"
    words = ["step", "--shape", "1", "11", "32", "32", "--rounds", "1", "--output", str(path)]
    assert speed.main(words) == 0
    (row,) = read_rows(path)
    assert 0 < row["loss_seconds"] < row["step_seconds"]
    assert row["loss_share"] == row["loss_seconds"] / row["step_seconds"]


def test_enqueuing_a_run_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Mock()
    device.Event().elapsed_time.return_value = 2.0
    for name in ("Event", "synchronize", "_sleep"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name), raising=False)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: device)
    device.reset_mock()
    assert measure.stopwatch("cuda")(device.run) == 0.002
    happened = [call[0] for call in device.mock_calls if call[0] not in ("Event", "synchronize")]
    assert happened[:5] == ["zero_", "_sleep", "Event().record", "run", "Event().record"]
