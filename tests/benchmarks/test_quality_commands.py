"""The commands of the benchmark of quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sample_results import RESULTS, result_of

from quality.command import main, parse
from quality.plots import with_ends
from quality.runs import Place
from quality.scores import METRICS, PER_CLASS, PER_IMAGE
from result_table import Row, read_rows


def write_rows(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_plan(path: Path, *losses: str, **settings: Any) -> str:
    runs = [{"loss": loss, "seeds": [0]} for loss in losses]
    path.write_text(yaml.safe_dump(settings | {"runs": runs}, sort_keys=False))
    return str(path)


def test_the_end_of_a_curve_has_a_panel_of_its_own_if_it_has_three_points() -> None:
    long, short = ({epoch: [epoch / last] for epoch in range(10, last + 1, 10)} for last in (100, 40))
    panels = with_ends({"long": {"one": long, "other": short}, "short": {"one": short}})
    assert [*panels] == ["long", "long, from epoch 60", "short"]
    assert {loss: [*curve] for loss, curve in panels["long, from epoch 60"].items()} == {"one": [60, 70, 80, 90, 100]}


def test_tables_and_plots_of_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = ("ce", "cpg", "module")
    rows, others = ([result_of(loss, 0, score) for loss in losses] for score in (0.4, 0.5))
    for row in others:
        row["run"]["data"] = "sstem"
    for row in (*rows, *others):
        row["metrics"] |= {"iou": [0.4, 0.6], "f1_class": [0.3, 0.2], "pixels": [30, 10]}
    table = write_rows(tmp_path / "results.jsonl", rows + others)
    plan = write_plan(tmp_path / "plan.yaml", *losses, data={"sstem": {}, "camvid": {}})
    chosen = ["--results", table, "--plan", plan, "--losses", "cross-entropy", "EdgeAwareLoss()"]
    output = ["--output", str(tmp_path)]
    assert main(["plot", *chosen, *output]) == 0
    assert main(["plot", *chosen, *output, "--curve", "edge_weight"]) == 0
    for name in ("data", "data-curves", "edge_weight"):
        for width in ("", "-narrow"):
            assert (tmp_path / f"quality-{name}{width}.png").read_bytes().startswith(b"\x89PNG")
    assert main(["table", *chosen, "--metrics", "miou"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| sstem", "| camvid"))]
    assert lines[:4] == [  # in the order of the plan
        "| sstem | cross-entropy | 1 | 50.0 |",
        "| sstem | EdgeAwareLoss() | 1 | 50.0 |",
        "| camvid | cross-entropy | 1 | 40.0 |",
        "| camvid | EdgeAwareLoss() | 1 | 40.0 |",
    ]
    assert main(["table", *chosen, "--classes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:6] == [
        "| class | pixels, % | cross-entropy | EdgeAwareLoss() |",
        "|---|--:|--:|--:|",
        "| road | 75.00 | 40.0 / 30.0 | 40.0 / 30.0 |",
        "| car | 25.00 | 60.0 / 20.0 | 60.0 / 20.0 |",
    ]
    assert main(["table", *chosen, "soft"]) == 1
    expected = "--losses: expected some of ['cross-entropy', 'CE + CPG', 'EdgeAwareLoss()'], but got 'soft'"
    assert expected in capsys.readouterr().err
    write_plan(tmp_path / "plan.yaml", *losses, epochs=80)
    assert main(["table", *chosen]) == 1  # no result has these settings
    assert "--results: expected results of these runs; train them with `plan`, but got " in capsys.readouterr().err


def test_runs_are_not_repeated(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = dict.fromkeys(METRICS, 0.5)
    monkeypatch.setattr("quality.training.evaluate", lambda *arguments, **options: metrics)
    plan = write_plan(tmp_path / "plan.yaml", "weighted", data={"shapes": {"epochs": 1, "size": [16, 16]}})
    words = ["plan", plan, "--data-root", str(place.root), "--state", str(place.state)]
    for more, left in ((["--minutes", "0"], 1), ([], 1), ([], 0), (["--held-out"], 1)):  # the last on other images
        assert main([*words, "--results", str(place.results), *more]) == 0
        assert f"1 runs, {left} of them to do" in capsys.readouterr().out
    assert len(read_rows(place.results)) == 2


def test_default_tables() -> None:
    for command, table in {"table": "quality", "plan plan.yaml": "quality", "offsets plan.yaml": "offsets"}.items():
        assert parse(command.split()).results.name == f"{table}.jsonl"


def test_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "results.jsonl"
    assert main(["merge", str(table), "--results", str(tmp_path / "all.jsonl")]) == 1
    assert f"merge: expected a table of results, but got {table}; pass a file that" in capsys.readouterr().err
    monkeypatch.setattr("quality.command.PLANS", tmp_path)
    plan = {"runs": [{"loss": "ours", "seeds": [0, 1, 2]}]}
    (tmp_path / "quality-plan.yaml").write_text(yaml.safe_dump(plan))
    parts = [write_rows(tmp_path / f"{n}.json", [result, RESULTS[-1]]) for n, result in enumerate(RESULTS[:3])]
    for names in ((parts[2], parts[1]), (parts[1], parts[0])):
        assert main(["merge", *names, "--results", str(table)]) == 0
    assert [row["run"]["seed"] for row in read_rows(table)] == [0, 1, 2]  # sorted, each once, of the plan
    assert f"{parts[0]}: 1 rows, and 1 left out" in capsys.readouterr().out
    assert read_rows(table)[0] == json.loads(json.dumps(RESULTS[1]))
    whole = result_of("ours", 0, 0.9)
    whole["metrics"] |= {name: [1] for name in (*PER_CLASS, *PER_IMAGE, "pixels")}
    again = write_rows(tmp_path / "again.json", [whole])
    for name in (again, parts[1]):  # the second lacks scores
        assert main(["merge", name, "--results", str(table)]) == 0
        assert read_rows(table)[0]["metrics"]["miou"] == 0.9
