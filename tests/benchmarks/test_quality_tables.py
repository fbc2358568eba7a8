"""Summaries and tables of the benchmark of quality, checked by hand."""

from __future__ import annotations

import math

import pytest
from sample_results import RESULTS, result_of

from quality.tables import interval, markdown, summarize, trials


def test_interval() -> None:
    # 0.03, 0.04, 0.02: deviation 0.01, and t of two degrees of freedom is 4.302653.
    low, high = interval([0.03, 0.04, 0.02])
    assert low == pytest.approx(0.03 - 4.302653 * 0.01 / math.sqrt(3))
    assert high == pytest.approx(0.03 + 4.302653 * 0.01 / math.sqrt(3))
    assert interval([0.03]) is None


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
    assert lines["edgeloss"][1:3] == ["3", "+3.00 [+0.52, +5.48]"]
    assert lines["edge-weighted CE (k 2)"][1:3] == ["1", "+1.00"]
    assert lines["CE + CPG"][1:3] == ["1", "+5.00"]  # of the seeds that both have
    assert "cross-entropy" not in lines
    short = markdown(rows, {}, metrics=["f1_1", "miou"]).split("\n\n")
    assert [part.splitlines()[0] for part in short[1::2]] == [
        "| loss | seeds | boundary F1 1 px | mIoU |",
        "| loss | pairs | boundary F1 1 px | mIoU |",
    ]
    assert markdown(rows, {}).endswith("Diverged with every seed: CE + active boundary\n")


def test_another_baseline() -> None:
    rows = {row["loss"]: row for row in summarize(RESULTS, "edgeloss")}
    assert rows["edge-weighted CE (k 2)"]["differences"]["miou"]["mean"] == pytest.approx(-0.02)
    assert rows["edgeloss"]["differences"] == {}


def test_trials_are_sorted_by_the_criterion() -> None:
    results = [result_of("weighted", 0, score, k=k) for k, score in ((1, 0.4), (2, 0.6), (8, 0.5))]
    lines = trials(summarize(results), ["miou", "f1_1"]).splitlines()
    assert "mean of miou, f1_1" in lines[0]
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| **edge-weighted CE (k 2)**",
        "| edge-weighted CE (k 8)",
        "| edge-weighted CE (k 1)",
    ]
