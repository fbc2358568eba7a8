"""The tables of the documents that choose among results: the best rival, and the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from sample_results import result_of

import doc_figures
from result_table import Row

CONTROL_WITH_DICE = {"weight": 2, "k": 12, "class_balance": 1}


def seeds_of(loss: str, *scores: float, **options: float) -> list[Row]:
    return [result_of(loss, seed, score, **options) for seed, score in enumerate(scores)]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, list[Row]]]]:
    """Yield what takes the place of the committed results: rows by plan and data set."""
    of_plans: dict[str, dict[str, list[Row]]] = {}
    monkeypatch.setattr(doc_figures, "results_of", lambda plan: of_plans.get(plan, {}))
    cached: list[Any] = [doc_figures.rows_in, doc_figures.quality, doc_figures.ours, doc_figures.best_rival]
    for each in cached:
        each.cache_clear()
    yield of_plans
    for each in cached:
        each.cache_clear()


RIVALS = [
    *seeds_of("dice", 0.60, 0.62),
    *seeds_of("dice", 0.50, 0.52, **CONTROL_WITH_DICE),
    *seeds_of("rmi", 0.7),  # of one seed
]


def test_held_out_images_choose_the_best_rival(results: dict[str, dict[str, list[Row]]]) -> None:
    results["rivals"] = {"camvid": RIVALS, "sstem": RIVALS}
    trials = [seeds_of("dice", 0.4), seeds_of("dice", 0.5, **CONTROL_WITH_DICE), seeds_of("dice", 0.9, weight=0.5)]
    results["rivals-tune"] = {"camvid": [*chain(*trials)]}
    assert doc_figures.best_rival("camvid") == "CE + Dice (weight 2, k 12, class_balance 1)"
    assert doc_figures.best_rival("sstem") == "CE + Dice"  # without trials, the best on the scored images
    assert doc_figures.best_rival("dsb2018") is None


def test_the_newest_version_with_three_seeds(results: dict[str, dict[str, list[Row]]]) -> None:
    earlier = seeds_of("module", 0.6, 0.7, 0.6, version=0.3)
    results["sets"] = {"camvid": earlier, "sstem": earlier}
    results["default"] = {"camvid": seeds_of("module", 0.6, 0.7), "sstem": seeds_of("module", 0.6, 0.7, 0.6)}
    assert doc_figures.ours("camvid") == "EdgeAwareLoss() (version 0.3)"
    assert doc_figures.ours("sstem") == "EdgeAwareLoss()"
    assert doc_figures.ours("vessels") is None


def test_bold_is_clearly_above_cross_entropy(results: dict[str, dict[str, list[Row]]]) -> None:
    ours = seeds_of("module", 0.60, 0.72, 0.81, 0.9)
    rival = seeds_of("dice", 0.50, 0.62, 0.71)
    for row in ours:
        row["metrics"]["miou"] -= 0.4  # behind
    for row, score in zip(ours, (0.5, 0.5, 0.6, 0.9), strict=True):
        row["metrics"]["boundary_iou_005"] = score  # ahead by 0.1, 0 and 0
    plain = seeds_of("ce", 0.4, 0.5, 0.6, 0.7)
    results["default"] = {"camvid": [*plain, *ours, *rival]}
    name = doc_figures.DATA["camvid"]
    expected = [  # of the seeds that all three have
        "| data | edgeloss | cross-entropy | best rival |",
        f"| {name} | **71.0** / 53.3 / 31.0 | 50.0 / 50.0 / 50.0 | **61.0** / **61.0** / **61.0** |",
    ]
    head, _, *lines = (line.replace("\N{NO-BREAK SPACE}", " ") for line in doc_figures.sets_table())
    assert [head, *lines] == expected
    assert "| camvid | CE + Dice | 3 | **-10.0** [-10.0, -10.0]" in doc_figures.rival_table()[2]
    lead = "| CamVid: CE + Dice | **+10.0** [10.0, 10.0] | -7.7 [-24.2, 8.9] | _-30.0 [-30.0, -30.0]_ |"
    assert doc_figures.leads_table()[2:] == [lead]  # bold where ours is ahead, and in italics where it is behind


def test_the_first_page_marks_what_is_clearly_above_cross_entropy(results: dict[str, dict[str, list[Row]]]) -> None:
    ours, rival = seeds_of("module", 0.50, 0.52, 0.54), seeds_of("dice", 0.60, 0.52, 0.56)
    for row in ours:
        row["metrics"]["miou"] -= 0.2  # behind
    results["default"] = {"camvid": [*seeds_of("ce", 0.40, 0.42, 0.44), *ours, *rival]}
    lines = doc_figures.first_table()[2:]
    # Ours is ahead by 0.1 with every seed, the rival by 0.2, 0.1 and 0.12.
    broken = [line.replace("\N{NO-BREAK SPACE}/ ", " / ") for line in lines]
    assert broken == ["| CamVid, 11 classes | **52.0** / 32.0 | 42.0 / 42.0 | **56.0** / **56.0**<br>CE + Dice |"]


def test_tables_of_the_current_version_have_no_other(results: dict[str, dict[str, list[Row]]]) -> None:
    ours = seeds_of("module", 0.60, 0.72, 0.81, version=0.3)
    results["sets"] = {"camvid": [*seeds_of("ce", 0.4, 0.5, 0.6), *ours, *seeds_of("dice", 0.50, 0.62, 0.71)]}
    for made in (doc_figures.first_table, doc_figures.sets_table, doc_figures.leads_table):
        assert made() == ["| not trained yet |", "|---|"]
    assert doc_figures.rival_table()[2:]


def test_ours_against_both_others(results: dict[str, dict[str, list[Row]]]) -> None:
    plain, rival = seeds_of("ce", 0.40, 0.42, 0.44), seeds_of("dice", 0.60, 0.52, 0.44)
    ours = seeds_of("module", 0.60, 0.62, 0.64)
    results["default"] = {"camvid": [*plain, *ours, *rival]}
    del ours[0]["metrics"]["ece"]  # as in rows of earlier versions
    head, _, *lines = doc_figures.ahead_by("f1_1", "ece")
    assert head == "| data | against | pairs | boundary F1 1 px ↑ | ECE ↓ |"
    assert [line.split(" | ")[1:] for line in lines] == [
        ["cross-entropy", "3", "**+20.0** [20.0, 20.0]", "**+20.0** [20.0, 20.0] (2) |"],
        ["CE + Dice", "3", "+10.0 [-14.8, 34.8]", "+15.0 [-48.5, 78.5] (2) |"],
    ]
    assert doc_figures.ahead_by("f1_1", classes=3)[0] == "| not trained yet |"


def test_ours_against_both_others_as_the_schedule_goes(results: dict[str, dict[str, list[Row]]]) -> None:
    runs = {
        "ce": seeds_of("ce", 0.4, 0.4),
        "module": seeds_of("module", 0.6, 0.6, 0.6),
        "dice": seeds_of("dice", 0.5, 0.5),
    }
    for loss, scores in {"ce": [0.1, 0.2, 0.4], "module": [0.5, 0.5, 0.6], "dice": [0.4, 0.3, 0.5]}.items():
        for row in runs[loss]:
            row["run"]["epochs"], row["curve"] = 40, {"epoch": [10, 20, 40], "f1_1": scores}
    results["default"] = {"camvid": [row for rows in runs.values() for row in rows]}
    head, _, *lines = doc_figures.epochs_table()
    assert head == "| data | against | a quarter | a half | three quarters | the end |"
    shown = [[cell.split(" [")[0].strip("*") for cell in line.split(" | ")[1:]] for line in lines]
    assert shown == [
        ["cross-entropy", "+40.0", "+30.0", "–", "+20.0"],
        ["CE + Dice", "+10.0", "+20.0", "–", "+10.0"],
    ]
    for row in runs["ce"]:
        row["curve"] = {"epoch": [40], "f1_1": [0.4]}
    assert "cross-entropy" not in "".join(doc_figures.epochs_table())  # only the end is known


def test_ours_against_a_rival_by_seed(results: dict[str, dict[str, list[Row]]]) -> None:
    assert doc_figures.seeds_table("long") == ["| not trained yet |", "|---|"]
    ours, rival = seeds_of("module", 0.60, 0.62, 0.9), seeds_of("dice", 0.50, 0.64, **CONTROL_WITH_DICE)
    results["long"] = {"camvid": [*seeds_of("ce", 0.4, 0.4), *ours, *rival]}
    del ours[0]["metrics"]["f1_any_1"]
    assert doc_figures.seeds_table("long") == [
        "| against | seed | F1 | F1, all | B-IoU | mIoU |",
        "|---|--:|--:|--:|--:|--:|",
        "| cross-entropy | 0 | +20.0 | – | +20.0 | +20.0 |",
        "| cross-entropy | 1 | +22.0 | +22.0 | +22.0 | +22.0 |",
        f"| {doc_figures.WEIGHTED} | 0 | +10.0 | – | +10.0 | +10.0 |",
        f"| {doc_figures.WEIGHTED} | 1 | -2.0 | -2.0 | -2.0 | -2.0 |",
    ]


def test_the_table_of_sets_names_fewer_seeds(results: dict[str, dict[str, list[Row]]]) -> None:
    ours, plain = seeds_of("module", 0.6, 0.7, 0.6), seeds_of("ce", 0.4, 0.5, 0.5)
    results["default"] = {"camvid": [*plain, *ours, *seeds_of("dice", 0.5, 0.6)]}
    assert doc_figures.sets_table()[2].startswith("| CamVid, streets, 11 classes, 2 seeds |")


def test_a_table_without_rows_says_so(results: dict[str, dict[str, list[Row]]]) -> None:
    assert doc_figures.trained_table("converged") == ["| not trained yet |", "|---|"]
    results["converged"] = {"camvid": [*seeds_of("ce", 0.4), *seeds_of("module", 0.5)]}
    lines = doc_figures.trained_table("converged", ["miou", "f1_any_1"])
    assert lines[0] == "| data | loss | seeds | mIoU ↑ | F1 of all borders 1 px ↑ |"
    for row in results["converged"]["camvid"]:
        del row["metrics"]["f1_any_1"]
    assert doc_figures.trained_table("converged", ["miou", "f1_any_1"])[0] == "| data | loss | seeds | mIoU ↑ |"
