"""Runs and plans of the benchmark of quality."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from baselines.recipes import make
from doc_figures import FIGURES
from quality.runs import Run, key_of, pick, read_plan, runs_of


def test_keys() -> None:
    run = Run("weighted", {}, 0)
    assert run.key == Run("weighted", {"k": 4}, 0, size=[180, 240]).key  # 4 is the default
    others = [Run("weighted", {"k": 2}, 0), Run("weighted", {}, 1), Run("ce", {}, 0), Run("weighted", {}, 0, epochs=2)]
    others += [
        Run("weighted", {}, 0, **settings) for settings in ({"held_out": True}, {"crops": 2}, {"contiguous": True})
    ]
    assert len({run.key, *(other.key for other in others)}) == 8


def test_rows_of_earlier_versions_are_told_apart_and_not_trained_again() -> None:
    now, earlier = (Run("module", {"version": version}, 0) for version in (0, 0.2))
    assert now == Run("module", {}, 0)
    assert now.title == "EdgeAwareLoss()"
    assert earlier.title == "EdgeAwareLoss() (version 0.2)"
    assert now.key != earlier.key == key_of({"run": asdict(earlier)})
    assert [now.is_earlier, earlier.is_earlier] == [False, True]
    with pytest.raises(ValueError, match=r"module: expected none of an earlier version, but got \['version'\]"):
        make("module", earlier.options, 255)


def test_plans() -> None:
    sets = {"camvid": None, "sstem": {"epochs": 5, "crop": [64, 64]}}
    entries = [{"loss": "ce", "seeds": [0, 1]}, {"loss": "weighted", "seeds": [0], "options": {"k": 2}}]
    several = {"epochs": 2, "width": 16, "data": sets, "runs": entries}
    runs = runs_of([several, {"width": 16, "network": "efficientnet-lite0", "runs": entries[1:]}])
    of_set = [("camvid", 2, None), ("sstem", 5, (64, 64))]
    assert [(run.data, run.epochs, run.crop) for run in runs if run.loss == "ce"] == of_set * 2
    assert [f"{run.loss} {run.seed}" for run in runs] == ["ce 0", "weighted 0"] * 2 + ["weighted 0", "ce 1", "ce 1"]
    assert [run.network for run in runs[-3:]] == ["efficientnet-lite0", "unet", "unet"]
    assert runs[1].options == {"k": 2.0, "class_balance": 0.0}
    assert {run.width for run in runs} == {16}


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "configs").glob("quality*.yaml")), ids=lambda path: path.stem
)
def test_runs_of_a_plan_are_distinct_and_shown_and_can_be_trained(path: Path) -> None:
    pages = [page.read_text() for page in (path.parents[1] / "docs").glob("*.md")]
    assert any(path.name in text for text in (*pages, *(figures.command for figures in FIGURES.values())))
    runs = read_plan(path)
    assert len({run.key for run in runs}) == len(runs)
    for loss, options in {run.title: (run.loss, run.options) for run in runs if not run.is_earlier}.values():
        if not options.get("class_balance") and loss not in ("median_frequency", "logit_adjusted"):  # these read labels
            make(loss, options, 255)


ONE = {"loss": "ce", "seeds": [0]}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"epoch": 3, "runs": []}, r"plan: expected runs, data and some of \['epochs', .*\], but got \['epoch'\]"),
        ({"runs": []}, "plan: expected a list of runs, but got none"),
        (
            {"runs": [{"loss": "ce"}]},
            "plan: expected runs with loss, seeds and optionally options, but got {'loss': 'ce'}",
        ),
        ({"runs": [ONE | {"loss": "focal"}]}, "loss: expected one of .* but got 'focal'"),
        ({"network": "transformer", "runs": [ONE]}, "network: expected one of .* but got 'transformer'"),
        ({"precision": "int8", "runs": [ONE]}, "precision: expected one of .* but got 'int8'"),
        ({"pretrained": True, "runs": [ONE]}, "pretrained: expected false for network unet"),
        ({"crops": 0, "runs": [ONE]}, "crops: expected an int >= 1, but got 0"),
    ],
)
def test_wrong_plans(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runs_of(plan)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cross-entropy", "CE + CPG"], r"expected some of \['cross-entropy', .*\], but got 'CE \+ CPG'"),
        (["cross-entropy", "edge-weighted CE"], "expected some of .*, but got 'edge-weighted CE'"),  # which one?
        (["CE + edge terms"], r"expected two or more, but got \['CE \+ edge terms \(power 1\)'\]"),
    ],
)
def test_wrong_names_of_losses(names: list[str], message: str) -> None:
    runs = [Run("ce", {}, 0), *(Run("weighted", {"k": k}, 0) for k in (1, 2)), Run("ours", {"power": 1}, 0)]
    with pytest.raises(ValueError, match=f"--losses: {message}"):
        pick(runs, names)
    assert list(pick(runs, ["cross-entropy", "CE + edge terms"]).values()) == [runs[0], runs[-1]]
