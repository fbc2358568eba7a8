"""Runs and plans of the benchmark of quality."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baselines.recipes import make
from quality.command import read_plan
from quality.runs import Place, Run, loss_title, pick, runs_of


def test_slugs() -> None:
    run = Run("weighted", {}, 0)
    assert run.slug == Run("weighted", {"k": 4}, 0, size=[180, 240]).slug  # 4 is the default
    others = [Run("weighted", {"k": 2}, 0), Run("weighted", {}, 1), Run("ce", {}, 0), Run("weighted", {}, 0, epochs=2)]
    others.append(Run("weighted", {}, 0, held_out=True))
    assert len({run.slug, *(other.slug for other in others)}) == 6


def test_names_of_earlier_checkpoints_stay() -> None:
    old = {"epochs": 80, "size": (120, 160)}
    assert Run("ce", {}, 0, **old).slug == "ce-seed0-a6341fc5"
    assert Run("weighted", {"k": 12, "class_balance": 1}, 0, **old).slug == "weighted-seed0-f65d2168"
    assert Run("ours", {"class_balance": 1}, 0, **old).slug == "ours-seed0-c5dd4b37"
    new = [{"crop": (64, 64)}, {"crops": 2}, {"masks": "masks_noisy"}, {"contiguous": True}]
    assert len({Run("ce", {}, 0, **settings).slug for settings in (old, *({**old, **added} for added in new))}) == 5


def test_rows_of_earlier_versions_have_options_that_were_removed() -> None:
    plain, penalized = (Run("module", {"false_edge_weight": weight}, 0) for weight in (0, 0.2))
    assert plain == Run("module", {}, 0)
    assert plain.title == loss_title("module", {"false_edge_weight": 0.0}) == "EdgeAwareLoss()"
    assert plain.slug != penalized.slug
    assert penalized.title == "EdgeAwareLoss() (false_edge_weight 0.2)"
    with pytest.raises(ValueError, match=r"module: expected none that was removed, but got \['false_edge_weight'\]"):
        make("module", penalized.options, 255)


def test_plan() -> None:
    entries = [{"loss": "ce", "seeds": [0, 1]}, {"loss": "weighted", "seeds": [0], "options": {"k": 2}}]
    runs = runs_of({"epochs": 3, "runs": entries}, data="camvid")
    assert [(run.loss, run.seed, run.epochs) for run in runs] == [("ce", 0, 3), ("weighted", 0, 3), ("ce", 1, 3)]
    assert runs[1].options == {"k": 2.0, "class_balance": 0.0}


def test_plan_of_several_data_sets() -> None:
    plan = {
        "epochs": [2, 8],
        "width": 16,
        "data": {"camvid": None, "sstem": {"epochs": 5, "crop": [64, 64]}},
        "runs": [{"loss": "ce", "seeds": [0, 1]}],
    }
    runs = runs_of(plan)
    expected = [("camvid", 2, None), ("camvid", 8, None), ("sstem", 5, (64, 64))]
    assert [(run.data, run.epochs, run.crop) for run in runs] == expected * 2
    assert {run.width for run in runs} == {16}
    assert runs_of(plan, data="sstem") == [run for run in runs if run.data == "sstem"]
    assert {run.data for run in runs_of(plan, data="elsewhere")} == {"elsewhere"}


def test_list_of_plans() -> None:
    own = {"network": "efficientnet-lite0", "pretrained": True, "runs": [{"loss": "ce", "seeds": [0, 1]}]}
    runs = runs_of([own, {**own, "pretrained": False}])
    assert [(run.seed, run.pretrained) for run in runs] == [(0, True), (0, False), (1, True), (1, False)]
    assert len({run.slug for run in runs}) == 4


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "configs").glob("quality*.yaml")), ids=lambda path: path.stem
)
def test_runs_of_a_plan_are_distinct(path: Path) -> None:
    runs = read_plan(path)
    assert len({run.slug for run in runs}) == len(runs)


def test_place_of_several_data_sets() -> None:
    place = Place(Path("/sets"), None, Path("results"), Path("state"))
    run = Run("ce", {}, 0, data="sstem")
    assert place.split_of(run) == Path("/sets/sstem/val")
    assert replace(place, split=Path("/tests/{data}/test")).split_of(run) == Path("/tests/sstem/test")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"epoch": 3, "runs": []}, r"plan: expected runs, data and some of \['epochs', .*\], but got \['epoch'\]"),
        ({"runs": []}, "plan: expected a list of runs, but got none"),
        (
            {"runs": [{"loss": "ce"}]},
            "plan: expected runs with loss, seeds and optionally options, but got {'loss': 'ce'}",
        ),
        ({"runs": [{"loss": "focal", "seeds": [0]}]}, "loss: expected one of .* but got 'focal'"),
        ({"pretrained": True, "runs": [{"loss": "ce", "seeds": [0]}]}, "pretrained: expected false for network unet"),
        ({"crops": 0, "runs": [{"loss": "ce", "seeds": [0]}]}, "crops: expected an int >= 1, but got 0"),
    ],
)
def test_wrong_plans(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runs_of(plan, data="camvid")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cross-entropy", "CE + CPG"], r"expected some of \['cross-entropy', .*\], but got 'CE \+ CPG'"),
        (["cross-entropy", "edge-weighted CE"], "expected some of .*, but got 'edge-weighted CE'"),  # which one?
        (["edgeloss"], r"expected two or more, but got \['edgeloss \(power 1\)'\]"),
    ],
)
def test_wrong_names_of_losses(names: list[str], message: str) -> None:
    runs = [Run("ce", {}, 0), *(Run("weighted", {"k": k}, 0) for k in (1, 2)), Run("ours", {"power": 1}, 0)]
    with pytest.raises(ValueError, match=f"--losses: {message}"):
        pick(runs, names)
    assert list(pick(runs, ["cross-entropy", "edgeloss"]).values()) == [runs[0], runs[-1]]
