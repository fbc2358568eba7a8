"""Tables of results, safe from other processes; summaries of the benchmark of quality, checked by hand."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import pytest
from sample_results import RESULTS, result_of

from quality.runs import Run, key_of, run_of
from quality.tables import (
    by_class,
    classes_table,
    compare,
    holm,
    images_table,
    interval,
    markdown,
    resampled,
    rows_of,
    without_most,
)
from result_table import Row, add_rows, read_rows


def test_interval_and_p_value() -> None:
    # 0.03, 0.04, 0.02: deviation 0.01, and t of two degrees of freedom is 4.302653.
    found = compare([0.03, 0.04, 0.02])
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert found["interval"] == pytest.approx((0.03 - half, 0.03 + half))
    # t = 0.03 / (0.01 / √3) = 5.196152; for two degrees of freedom p = 1 - t / √(t² + 2)
    assert found["p"] == pytest.approx(1 - math.sqrt(27 / 29))
    assert compare([0.03]) == {"values": [0.03], "mean": 0.03, "interval": None, "p": None}
    assert [compare([0.5, 0.5])["p"], compare([0.0, 0.0])["p"]] == [0, 1]


def test_an_end_of_an_interval_shows_on_which_side_of_0_it_is() -> None:
    assert interval("f1_1", (-0.0123, 0.034)) == "[-1.2, 3.4]"
    assert interval("f1_1", (0.00008, 0.034)) == "[0.008, 3.4]"
    assert interval("f1_1", (-0.014, -0.0004)) == "[-1.4, -0.04]"
    assert interval("f1_1", (0.0, 0.034)) == "[0.0, 3.4]"


def test_holm() -> None:
    adjusted = holm({"a": 0.02, "b": 0.01, "c": 0.5, "d": 0.019})
    assert adjusted == pytest.approx({"b": 0.04, "d": 0.057, "a": 0.057, "c": 0.5})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1, "b": 1}


def test_earlier_results_lack_metrics() -> None:
    results = [result_of(loss, seed, 0.5 + seed / 10) for loss in ("ce", "ours") for seed in (0, 1)]
    for result in results[:3]:
        del result["metrics"]["ece"], result["metrics"]["hd95"]
    results[3]["metrics"]["hd95"] = None  # no class occurs in both
    text = markdown({"camvid": results}, "cross-entropy", ["miou", "ece", "hd95"])
    assert "| camvid | cross-entropy | 2 | 55.0 ± 7.1 | – | – |" in text
    assert "| camvid | CE + edge terms | 2 | 55.0 ± 7.1 | 60.0 (1) | – |" in text
    assert "| camvid | CE + edge terms | 2 | 0.0 [0.0, 0.0], p 1.000 (0.0, 0.0) | – | – |" in text
    results = [result_of("ce", 0, 0.25), result_of("ours", 0, 0.5)]
    text = markdown({"camvid": results}, "cross-entropy", ["nll", "ece"])  # of which the first has a unit
    assert "| camvid | CE + edge terms | 1 | +0.25 | +25.0 |" in text


def test_table() -> None:
    text = markdown({"camvid": RESULTS}, "cross-entropy", ["miou"])
    assert "\n| data | loss | seeds | mIoU ↑ |\n|---|---|--:|--:|\n| camvid | cross-entropy | 3 |" in text
    scores, differences = (
        {cells[1]: cells[2:] for line in part.splitlines()[2:] if (cells := line.strip("| ").split(" | "))}
        for part in text.split("\n\n")[1::2]
    )
    # by hand: 0.42 ± 0.02; (0.43 + 0.46 + 0.46) / 3 = 0.45 ± 0.01732
    assert scores["cross-entropy"] == ["3", "42.0 ± 2.0"]
    assert scores["CE + edge terms"] == ["3", "45.0 ± 1.7"]
    assert scores["edge-weighted CE (k 2)"] == ["1", "41.0"]
    assert scores["CE + CPG"] == ["2 (1 diverged)", "46.0 ± 1.4"]
    assert scores["CE + active boundary"] == ["0 (1 diverged)", "–"]
    assert differences["CE + edge terms"] == [
        "3",
        "**+3.0** [0.5, 5.5], p 0.035 (3.0, 4.0, 2.0)",
    ]  # the only one with two pairs
    assert differences["edge-weighted CE (k 2)"] == ["1", "+1.0"]
    assert differences["CE + CPG"] == ["1", "+5.0"]  # of the seeds that both have
    assert "cross-entropy" not in differences


def of_four(loss: str, seed: int, *iou: float | None) -> Row:
    """Return a result with the IoU of four classes, and a per-class F1 of half of it."""
    row = result_of(loss, seed, 0.0)
    lists = {"iou": list(iou), "f1_class": [value and value / 2 for value in iou], "pixels": [70, 20, 10, 0]}
    return {**row, "classes": ["road", "car", "pole", "sky"], "metrics": row["metrics"] | lists}


@pytest.fixture
def four() -> list[Row]:
    return [
        of_four("ce", 0, 0.9, 0.2, 0.1, 0.5),
        of_four("ours", 0, 0.9, 0.6, 0.3, 0.6),
        of_four("ce", 1, 0.8, 0.3, 0.2, 0.4),
        of_four("ours", 1, 0.9, 0.5, 0.2, 0.6),
        of_four("cpg", 1, 0.8, 0.3, 0.2, None),
    ]


def test_gain_without_the_classes_that_gain_most(four: list[Row]) -> None:
    found = without_most(four, "CE + edge terms", "cross-entropy", "miou")
    assert found is not None
    # Means over the seeds of the classes: road 0.05, car 0.3, pole 0.1, sky 0.15.
    assert found["classes"] == pytest.approx({"car": 0.3, "sky": 0.15})
    assert list(found["classes"]) == ["car", "sky"]
    assert found["all"]["values"] == pytest.approx([0.175, 0.125])
    assert found["without"]["values"] == pytest.approx([0.1, 0.05])  # of road and pole
    assert found["share"] == pytest.approx(0.45 / 0.6)
    half = without_most(four, "CE + edge terms", "cross-entropy", "f1_1")
    assert half is not None
    assert half["all"]["mean"] == pytest.approx(found["all"]["mean"] / 2)
    for row in four[:2]:
        del row["metrics"]["f1_class"]  # as in rows of earlier versions
    less = without_most(four, "CE + edge terms", "cross-entropy", "f1_1")
    assert less is not None
    assert less["all"]["values"] == pytest.approx([0.0625])
    assert without_most(four, "CE with SVLS", "cross-entropy", "miou") is None
    two = [{**row, "classes": ["road", "car"], "metrics": {"iou": row["metrics"]["iou"][:2]}} for row in four]
    assert without_most(two, "CE + edge terms", "cross-entropy", "miou") is None  # nothing is left


def test_table_of_classes(four: list[Row]) -> None:
    lines = classes_table(four, ["cross-entropy", "CE + edge terms", "CE + CPG"])
    assert lines[0] == "| class | pixels, % | cross-entropy | CE + edge terms | CE + CPG |"
    assert lines[3] == "| car | 20.00 | 25.0 / 12.5 | 55.0 / 27.5 | 30.0 / 15.0 |"
    assert lines[5] == "| sky | 0.00 | 45.0 / 22.5 | 60.0 / 30.0 | – |"  # a class without pixels
    assert [row["metrics"]["miou"] for row in by_class(four)["pole"]] == [0.1, 0.3, 0.2, 0.2, 0.2]
    for row in four:
        del row["metrics"]["pixels"]
    assert classes_table(four, ["CE + edge terms"])[3] == "| car | 55.0 / 27.5 |"


def of_images(loss: str, seed: int, *scores: float | None) -> Row:
    row = result_of(loss, seed, 0.0)
    lists = {name: [*scores] for name in ("f1_image", "boundary_iou_image")}
    return {**row, "metrics": row["metrics"] | lists}


def test_intervals_over_images() -> None:
    ce = [of_images("ce", seed, 0.5, 0.5, 0.5, None) for seed in (0, 1)]
    ours = [of_images("ours", 0, 0.6, 0.7, 0.8, 0.9), of_images("ours", 1, 0.6, 0.5, 0.8, 0.9)]
    found = resampled([*ce, *ours, of_images("ours", 2, *[0.9] * 4)], "CE + edge terms", "cross-entropy", "f1_image")
    assert found is not None
    assert found["seeds"]["values"] == pytest.approx([0.2, 0.4 / 3])
    assert found["images"] == 3  # of which the means over the seeds are 0.1, 0.1 and 0.3
    # A mean of 0.1 has a probability of 8 / 27, and one of 0.3 of 1 / 27: both are within 95 %.
    assert found["interval"] == pytest.approx((0.1, 0.3))
    assert resampled([*ce, result_of("ours", 0, 0.5)], "CE + edge terms", "cross-entropy", "f1_image") is None
    lines = images_table([("camvid", [*ce, *ours], "CE + edge terms")], "cross-entropy")
    assert lines[0].startswith("| data | loss | pairs | images | boundary F1 1 px ↑, [seeds] | [images] |")
    assert "| camvid | CE + edge terms | 2 | 3 | +16.7 [-25.7, 59.0] | [10.0, 30.0] |" in lines[2]


def test_results_are_grouped_by_settings(tmp_path: Path) -> None:
    table = tmp_path / "results.jsonl"
    runs = [Run("ce", {}, 0, data="sstem"), Run("ce", {}, 0), Run("ce", {}, 0, epochs=80)]
    runs.append(Run("ce", {}, 0, network="efficientnet-lite0"))
    rows = [{"run": asdict(run), "split": "val"} for run in runs]
    add_rows(table, rows, key_of)
    names = ["sstem", "camvid, 15 epochs", "camvid, 80 epochs", "camvid 240 × 180, from scratch"]
    assert list(rows_of(table, runs)) == names  # in the order of the runs
    assert list(rows_of(table, runs[:2])) == [*names[:1], "camvid"]
    add_rows(table, [{"run": asdict(Run("ce", {}, 0, lr=0.1)), "split": "val"}], key_of)
    with pytest.raises(ValueError, match="expected results of one setting per data set; pass --plan, but got"):
        rows_of(table, map(run_of, read_rows(table)))


def name_of(row: Row) -> str:
    return row["name"]


def add_twenty(path: Path, worker: int) -> None:
    for n in range(20):
        add_rows(path, [{"name": f"{worker}-{n:02}"}], name_of)


def test_rows_are_sorted_and_unique(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.jsonl"
    assert read_rows(path) == []
    add_rows(path, [{"name": "b", "value": 0.1}, {"name": "a", "value": None}], name_of)
    add_rows(path, [{"name": "b", "value": 1 / 3}], name_of)
    assert read_rows(path) == [{"name": "a", "value": None}, {"name": "b", "value": 1 / 3}]
    assert [file.name for file in path.parent.iterdir()] == ["table.jsonl"]


def test_processes_add_at_once(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        list(pool.map(add_twenty, repeat(path), range(2)))
    assert [row["name"] for row in read_rows(path)] == [f"{worker}-{n:02}" for worker in range(2) for n in range(20)]
