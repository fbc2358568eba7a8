"""Runs and plans of the benchmark of quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baselines.recipes import loss_title, make
from quality.runs import Run, key_of, pick, read_plan, run_of, runs_of


def test_slugs() -> None:
    run = Run("weighted", {}, 0)
    assert run.slug == Run("weighted", {"k": 4}, 0, size=[180, 240]).slug  # 4 is the default
    others = [Run("weighted", {"k": 2}, 0), Run("weighted", {}, 1), Run("ce", {}, 0), Run("weighted", {}, 0, epochs=2)]
    others += [
        Run("weighted", {}, 0, **settings) for settings in ({"held_out": True}, {"crops": 2}, {"contiguous": True})
    ]
    assert len({run.slug, *(other.slug for other in others)}) == 8


def test_names_of_earlier_checkpoints_stay() -> None:
    old = {"epochs": 80, "size": (120, 160)}
    assert Run("ce", {}, 0, **old).slug == "ce-seed0-a6341fc5"
    assert Run("weighted", {"k": 12, "class_balance": 1}, 0, **old).slug == "weighted-seed0-f65d2168"
    assert Run("ours", {"class_balance": 1}, 0, **old).slug == "ours-seed0-c5dd4b37"


def test_rows_of_earlier_versions_have_options_and_settings_that_were_removed() -> None:
    plain, penalized = (Run("module", {"false_edge_weight": weight}, 0) for weight in (0, 0.2))
    assert plain == Run("module", {}, 0)
    assert plain.title == loss_title("module", {"false_edge_weight": 0.0}) == "EdgeAwareLoss()"
    assert plain.slug != penalized.slug
    assert penalized.title == "EdgeAwareLoss() (false_edge_weight 0.2)"
    with pytest.raises(ValueError, match=r"module: expected none that was removed, but got \['false_edge_weight'\]"):
        make("module", penalized.options, 255)
    row = {"run": {"loss": "ce", "options": {}, "seed": 0, "masks": "masks"}}
    assert run_of(row) == Run("ce", {}, 0)
    assert key_of(row) == f"{Run('ce', {}, 0).slug}-val"


def test_plan() -> None:
    entries = [{"loss": "ce", "seeds": [0, 1]}, {"loss": "weighted", "seeds": [0], "options": {"k": 2}}]
    runs = runs_of({"epochs": 3, "runs": entries})
    assert [(run.loss, run.seed, run.epochs) for run in runs] == [("ce", 0, 3), ("weighted", 0, 3), ("ce", 1, 3)]
    assert runs[1].options == {"k": 2.0, "class_balance": 0.0}
    assert {run.data for run in runs} == {"camvid"}


def test_plan_of_several_data_sets() -> None:
    sets = {"camvid": None, "sstem": {"epochs": 5, "crop": [64, 64]}}
    runs = runs_of({"epochs": 2, "width": 16, "data": sets, "runs": [{"loss": "ce", "seeds": [0, 1]}]})
    assert [(run.data, run.epochs, run.crop) for run in runs] == [("camvid", 2, None), ("sstem", 5, (64, 64))] * 2
    assert {run.width for run in runs} == {16}


def test_list_of_plans() -> None:
    own = {"network": "efficientnet-lite0", "pretrained": True, "runs": [{"loss": "ce", "seeds": [0, 1]}]}
    runs = runs_of([own, {**own, "pretrained": False}])
    assert [(run.seed, run.pretrained) for run in runs] == [(0, True), (0, False), (1, True), (1, False)]


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "configs").glob("quality*.yaml")), ids=lambda path: path.stem
)
def test_runs_of_a_plan_are_distinct_and_can_be_trained(path: Path) -> None:
    runs = read_plan(path)
    assert len({run.slug for run in runs}) == len(runs)
    for loss, options in {run.title: (run.loss, run.options) for run in runs}.values():
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
        (["edgeloss"], r"expected two or more, but got \['edgeloss \(power 1\)'\]"),
    ],
)
def test_wrong_names_of_losses(names: list[str], message: str) -> None:
    runs = [Run("ce", {}, 0), *(Run("weighted", {"k": k}, 0) for k in (1, 2)), Run("ours", {"power": 1}, 0)]
    with pytest.raises(ValueError, match=f"--losses: {message}"):
        pick(runs, names)
    assert list(pick(runs, ["cross-entropy", "edgeloss"]).values()) == [runs[0], runs[-1]]
