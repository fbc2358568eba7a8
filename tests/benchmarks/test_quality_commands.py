"""The commands of the benchmark of quality."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from sample_results import RESULTS, result_of

from label_maps import regions
from quality.arguments import parse
from quality.command import main
from quality.cost import costs_of, measure_time
from quality.runs import Place, runs_of
from quality.scores import METRICS
from quality.training import finish
from result_table import read_rows
from segkit.checkpoint import load_checkpoint


def test_tables_of_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "results.jsonl"
    table.write_text("".join(json.dumps(result) + "\n" for result in RESULTS))
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump({"runs": [{"loss": "ce", "seeds": [0]}, {"loss": "cpg", "seeds": [0]}]}))
    narrow = ["table", "--results", str(table), "--split", "val", "--plan", str(plan), "--metrics", "miou"]
    assert main(narrow) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines if line.startswith("| camvid")] == [
        "cross-entropy",
        *["CE + CPG"] * 2,
    ]
    plan.write_text(yaml.safe_dump({"epochs": 80, "runs": [{"loss": "ce", "seeds": [0]}]}))
    assert main(narrow) == 1  # no result has these settings
    assert "--results: expected results of `run` or `plan` of split val, but got none" in capsys.readouterr().err
    assert main(["table", "--results", str(table), "--split", "test"]) == 1
    assert "results of `run` or `plan` of split test, but got none" in capsys.readouterr().err


def test_several_data_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = ("ce", "cpg", "module")
    rows = [result_of(loss, 0, 0.4) for loss in losses]
    others = [result_of(loss, 0, 0.5) for loss in losses]
    for row in others:
        row["run"]["data"] = "sstem"
    table, plan = tmp_path / "results.jsonl", tmp_path / "plan.yaml"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows + others))
    runs = [{"loss": loss, "seeds": [0]} for loss in losses]
    plan.write_text(yaml.safe_dump({"data": {"sstem": {}, "camvid": {}}, "runs": runs}, sort_keys=False))
    chosen = [
        "--results",
        str(table),
        "--plan",
        str(plan),
        "--losses",
        "cross-entropy",
        "EdgeAwareLoss()",
    ]
    assert main(["plot", *chosen, "--output", str(tmp_path)]) == 0
    for name in ("quality-data.png", "quality-data-curves.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert main(["plot", *chosen, "--curve", "edge_weight", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "quality-edge_weight.png").read_bytes().startswith(b"\x89PNG")
    assert main(["table", *chosen, "--metrics", "miou"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| sstem", "| camvid"))]
    assert lines[:4] == [  # in the order of the plan
        "| sstem | cross-entropy | 1 | 50.00 |",
        "| sstem | EdgeAwareLoss() | 1 | 50.00 |",
        "| camvid | cross-entropy | 1 | 40.00 |",
        "| camvid | EdgeAwareLoss() | 1 | 40.00 |",
    ]
    assert main(["table", *chosen, "soft"]) == 1
    assert "--losses: expected some of ['cross-entropy', 'CE + CPG', 'EdgeAwareLoss()'], but got 'soft'" in (
        capsys.readouterr().err
    )


@pytest.fixture
def _no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score all runs the same, which is quicker than computing the metrics."""
    monkeypatch.setattr("quality.training.evaluate", lambda *arguments, **options: dict.fromkeys(METRICS, 0.5))


@pytest.mark.usefixtures("_no_metrics")
def test_commands(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    places = ["--data", str(shapes), "--results", str(results), "--state", str(tmp_path / "state")]
    settings = ["--epochs", "1", "--size", "16", "16"]
    assert main(["run", *places, *settings, "--loss", "weighted", "--option", "k=2", "--seeds", "0", "1"]) == 0
    assert "2 runs, 2 of them to do" in capsys.readouterr().out
    plan = {"epochs": 1, "size": [16, 16], "runs": [{"loss": "weighted", "seeds": [0], "options": {"k": 2}}]}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    assert main(["plan", *places, str(path)]) == 0
    assert "1 runs, 0 of them to do" in capsys.readouterr().out  # `run` has done it
    assert main(["plan", str(path), *places[:2], "--results", str(tmp_path / "own.jsonl"), str(results)]) == 0
    assert "1 runs, 0 of them to do" in capsys.readouterr().out  # its row is in another table
    assert main(["plan", *places, str(path), "--held-out"]) == 0
    assert "1 runs, 1 of them to do" in capsys.readouterr().out  # on other images
    assert len(read_rows(results)) == 3
    assert main(["run", *places, "--loss", "ce", "--option", "k=2"]) == 1
    assert "quality.py: options of ce: expected some of [], but got 'k'" in capsys.readouterr().err


def test_default_tables() -> None:
    plan = ["plan.yaml"]
    for command, table in {("table",): "quality", ("plan", *plan): "quality", ("offsets", *plan): "offsets"}.items():
        assert parse(command).results[0].name == f"{table}.jsonl"


def test_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "results.jsonl"
    assert main(["table", "--results", str(table)]) == 1
    assert f"--results: expected results of `run` or `plan`, but got none in {table}" in capsys.readouterr().err
    assert main(["merge", str(table), "--results", str(tmp_path / "all.jsonl")]) == 1
    assert f"merge: expected a table of results, but got {table}; pass a file that" in capsys.readouterr().err


def test_merge(tmp_path: Path) -> None:
    for n, result in enumerate(RESULTS[:3]):
        (tmp_path / f"{n}.json").write_text(json.dumps(result) + "\n")
    table = tmp_path / "results.jsonl"
    for names in ((2, 1), (1, 0)):
        assert main(["merge", *(str(tmp_path / f"{n}.json") for n in names), "--results", str(table)]) == 0
    assert [row["run"]["seed"] for row in read_rows(table)] == [0, 1, 2]  # sorted, each once
    assert read_rows(table)[0] == json.loads(json.dumps(RESULTS[1]))


@pytest.mark.usefixtures("_no_metrics")
def test_crops(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    place = Place(shapes.parent, None, tmp_path / "results.jsonl", state)
    plan = {"epochs": 1, "size": [16, 16], "runs": [{"loss": loss, "seeds": [0]} for loss in ("ce", "ours")]}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    command = ["crops", str(path), "--data", str(shapes), "--state", str(state), "--output", str(tmp_path / "images")]
    command += ["--losses", "cross-entropy", "edgeloss", "--window", "8", "--count", "2"]
    ce, ours = runs_of(plan, data="shapes")
    finish(ce, place)
    assert main(command) == 1
    assert (
        capsys.readouterr().err
        == f"quality.py: {state / ours.slug}.pt: expected a checkpoint, but there is no such file\n"
    )
    finish(ours, place)
    assert main(command) == 0
    assert "edgeloss against cross-entropy; shapes, val, seed 0: ahead in" in capsys.readouterr().out
    files = sorted((tmp_path / "images").iterdir())
    assert [file.name for file in files] == [f"quality-crops-{kind}.png" for kind in ("better", "median", "worse")]
    assert all(file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size < 500_000 for file in files)

    assert main([*command, "--percentile", "100"]) == 0
    assert (tmp_path / "images" / "benefit.png").read_bytes().startswith(b"\x89PNG")

    assert main([*command, "--seed", "3"]) == 1
    assert "--seed: expected one of [0], the seeds of the plan, but got 3" in capsys.readouterr().err
    assert main([*command, "--window", "17"]) == 1
    assert "--window: expected 2 to 16 for images of this size, but got 17" in capsys.readouterr().err
    assert main([*command, "--count", "4"]) == 1
    assert "--count: expected 1 to 3, the images with enough border, but got 4" in capsys.readouterr().err
    checkpoint = load_checkpoint(state / f"{ours.slug}.pt")
    torch.save({**checkpoint, "epoch": 0}, state / f"{ours.slug}.pt")
    assert main(command) == 1
    assert f"{ours.slug}.pt: expected 1 epochs, but got 0; finish the run with `plan`" in capsys.readouterr().err


def test_cost() -> None:
    # 64 × 64 pixels: large enough for a peak of megabytes, small enough to be quick.
    labels = regions(2, (64, 64), 5, 1)
    seconds = measure_time([("ce", {}), ("weighted", {"k": 2.0})], labels, 5, 2)
    assert list(seconds) == ["cross-entropy", "edge-weighted CE (k 2)"]
    assert all(value > 0 for value in seconds.values())


@pytest.mark.slow
def test_cost_in_processes_of_their_own() -> None:
    labels = regions(4, (128, 128), 11, 1)
    costs = costs_of([("ce", {}), ("affinity", {})], labels, 11, 2)
    assert costs["cross-entropy"]["ratio"] == 1
    # Eight neighbors of all pixels and classes, compared with a few maps of the logits' size.
    assert costs["CE + affinity 3×3"]["megabytes"] > 3 * costs["cross-entropy"]["megabytes"] > 0
