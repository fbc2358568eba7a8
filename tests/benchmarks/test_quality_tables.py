"""Summaries and tables of the benchmark of quality, checked by hand."""

from __future__ import annotations

import math

import pytest
from sample_results import RESULTS, result_of

from quality.intervals import holm, interval, p_value
from quality.tables import markdown, markdown_by_data, summarize


def test_interval() -> None:
    # 0.03, 0.04, 0.02: deviation 0.01, and t of two degrees of freedom is 4.302653.
    low, high = interval([0.03, 0.04, 0.02])
    assert low == pytest.approx(0.03 - 4.302653 * 0.01 / math.sqrt(3))
    assert high == pytest.approx(0.03 + 4.302653 * 0.01 / math.sqrt(3))
    assert interval([0.03]) is None


def test_p_value() -> None:
    # t = 0.03 / (0.01 / √3) = 5.196152; for two degrees of freedom p = 1 - t / √(t² + 2)
    assert p_value([0.03, 0.04, 0.02]) == pytest.approx(1 - math.sqrt(27 / 29))
    assert p_value([0.03]) is None
    assert [p_value([0.5, 0.5]), p_value([0.0, 0.0])] == [0, 1]


def test_holm() -> None:
    adjusted = holm({"a": 0.02, "b": 0.01, "c": 0.5, "d": 0.019})
    assert adjusted == pytest.approx({"b": 0.04, "d": 0.057, "a": 0.057, "c": 0.5})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1, "b": 1}


def test_earlier_results_lack_metrics() -> None:
    results = [result_of(loss, seed, 0.5 + seed / 10) for loss in ("ce", "ours") for seed in (0, 1)]
    for result in results[:3]:
        del result["metrics"]["ece"], result["metrics"]["hd95"]
    results[3]["metrics"]["hd95"] = None  # no class occurs in both
    text = markdown(summarize(results), {}, metrics=["miou", "ece", "hd95"])
    assert "| cross-entropy | 2 | 55.00 ± 7.07 | – |" in text
    assert "| edgeloss | 2 | 55.00 ± 7.07 | 60.00 |" in text
    assert "| edgeloss | 2 | +0.00 [+0.00, +0.00], p 1.000 | – |" in text
    assert "HD95" not in text


def test_metrics_with_units_are_no_percentages() -> None:
    text = markdown(summarize([result_of("ce", 0, 0.25), result_of("ours", 0, 0.5)]), {}, metrics=["nll", "ece"])
    assert "| cross-entropy | 1 | 0.25 | 25.00 |" in text
    assert "| edgeloss | 1 | +0.25 | +25.00 |" in text


def test_table() -> None:
    rows = summarize(RESULTS)
    cost = {"edgeloss": {"milliseconds": 12.34, "ratio": 0.5, "megabytes": 1.25}}
    scores, borders, differences = markdown(rows, cost).split("\n\n")[1::2]
    lines = {line.split(" | ")[0].strip("| "): line.strip("| \n").split(" | ") for line in scores.splitlines()}
    # by hand: 0.42 ± 0.02; (0.43 + 0.46 + 0.46) / 3 = 0.45 ± 0.01732
    assert lines["cross-entropy"][1:3] == ["3", "42.00 ± 2.00"]
    assert lines["edgeloss"][1:3] == ["3", "45.00 ± 1.73"]
    assert lines["edgeloss"][-3:] == ["12.3", "0.50", "1.2"]
    assert lines["edge-weighted CE (k 2)"][1:3] == ["1", "41.00"]
    assert lines["edge-weighted CE (k 2)"][-3:] == ["–"] * 3
    assert lines["CE + CPG"][1:3] == ["2 (1 diverged)", "46.00 ± 1.41"]
    assert "precision 1 px" in borders
    assert "precision 1 px" not in scores
    lines = {line.split(" | ")[0].strip("| "): line.strip("| \n").split(" | ") for line in differences.splitlines()}
    assert lines["edgeloss"][1:3] == ["3", "+3.00 [+0.52, +5.48], p 0.035"]  # the only one with two pairs
    assert lines["edge-weighted CE (k 2)"][1:3] == ["1", "+1.00"]
    assert lines["CE + CPG"][1:3] == ["1", "+5.00"]  # of the seeds that both have
    assert "cross-entropy" not in lines
    short = markdown(rows, {}, metrics=["f1_1", "miou"]).split("\n\n")
    assert [part.splitlines()[0] for part in short[1::2]] == [
        "| loss | seeds | boundary F1 1 px | mIoU |",
        "| loss | pairs | boundary F1 1 px | mIoU |",
    ]
    assert markdown(rows, {}).endswith("Diverged with every seed: CE + active boundary\n")


def test_data_sets_one_below_the_other() -> None:
    results = {data: [result_of("ce", 0, 0.4), result_of("ours", 0, score)] for data, score in (("a", 0.5), ("b", 0.3))}
    for data, rows in results.items():
        for row in rows:
            row["run"]["data"] = data
    scores, differences = markdown_by_data(results, "cross-entropy", ["f1_1"]).split("\n\n")[1::2]
    assert scores.splitlines() == [
        "| data | loss | seeds | boundary F1 1 px |",
        "|---|---:|---:|---:|",
        "| a | cross-entropy | 1 | 40.00 |",
        "| a | edgeloss | 1 | 50.00 |",
        "| b | cross-entropy | 1 | 40.00 |",
        "| b | edgeloss | 1 | 30.00 |",
    ]
    assert differences.splitlines()[2:] == ["| a | edgeloss | 1 | +10.00 |", "| b | edgeloss | 1 | -10.00 |"]


def test_another_baseline() -> None:
    rows = {row["loss"]: row for row in summarize(RESULTS, "edgeloss")}
    assert rows["edge-weighted CE (k 2)"]["differences"]["miou"]["mean"] == pytest.approx(-0.02)
    assert rows["edgeloss"]["differences"] == {}
