"""The benchmark of quality: that runs repeat, go on and differ in their loss alone, and what its tables say."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import quality
import torch
import torch.nn.functional as F
import yaml
from quality import Place, RoundedConv2d, Run, Training, check_trials, finish, main, pick, runs_of
from quality_crops import Split, choose, summary, windows
from quality_report import METRICS, interval, markdown, summarise, trials

from segkit.checkpoint import load_checkpoint

SHAPES = Path(__file__).parents[2] / "data" / "shapes"
TINY: dict[str, Any] = {"data": "shapes", "epochs": 2, "batch": 4, "size": (16, 16)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the generated shapes: 10 images to train on, in batches of 4, 4 and 2, and 3 to score."""
    root = tmp_path_factory.mktemp("quality") / "shapes"
    for split, count in {"train": 10, "val": 3}.items():
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
            for path in sorted((SHAPES / split / kind).iterdir())[:count]:
                shutil.copy(path, root / split / kind)
    shutil.copy(SHAPES / "classes.txt", root)
    return root


@pytest.fixture
def place(data: Path, tmp_path: Path) -> Place:
    return Place(data, data / "val", tmp_path / "results", tmp_path / "state")


def outcome(run: Run, place: Place) -> dict[str, Any]:
    """A result without the clock's figures."""
    result = json.loads(place.result(run).read_text())
    for row in result["curve"]:
        row.pop("seconds", None)
    return result


def weights(run: Run, place: Place) -> dict[str, torch.Tensor]:
    return load_checkpoint(place.state / f"{run.slug}.pt")["model"]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_run_repeats(place: Place, data: Path, tmp_path: Path) -> None:
    run = Run("ours", {}, 0, **TINY)
    again = Place(data, data / "val", tmp_path / "again", tmp_path / "again")
    finish(run, place)
    finish(run, again)
    assert outcome(run, place) == outcome(run, again)
    assert same(weights(run, place), weights(run, again))
    result = outcome(run, place)
    assert result["images"] == {"train": 10, "evaluated": 3}
    assert [row["epoch"] for row in result["curve"]] == [1, 2]
    assert result["metrics"] == result["curve"][-1]["metrics"]
    assert result["metrics"].keys() == {*METRICS, "iou"}
    present = [value for value in result["metrics"]["iou"] if value is not None]
    assert result["metrics"]["miou"] == pytest.approx(sum(present) / len(present), abs=1e-5)


def test_a_killed_run_goes_on(place: Place, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("affinity", {}, 0, **TINY)  # its weight depends on the step
    finish(run, place)
    other = Place(data, data / "val", tmp_path / "other", tmp_path / "other")
    train_epoch = Training._train_epoch
    trained = []

    def killed_in_the_second(training: Training) -> float:
        trained.append(training.epoch)
        if trained == [0, 1]:
            raise KeyboardInterrupt
        return train_epoch(training)

    monkeypatch.setattr(Training, "_train_epoch", killed_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        finish(run, other)
    assert not other.result(run).exists()
    finish(run, other)
    assert trained == [0, 1, 1]
    assert outcome(run, other) == outcome(run, place)
    assert same(weights(run, other), weights(run, place))


def test_only_the_loss_differs(place: Place) -> None:
    starts = [Training(Run(loss, {}, seed, **TINY), place) for loss, seed in (("ce", 0), ("weighted", 0), ("ce", 1))]
    states = [training.model.state_dict() for training in starts]
    assert same(states[0], states[1])
    assert not same(states[0], states[2])
    seen: list[list[torch.Tensor]] = []
    for training in starts:
        batches: list[torch.Tensor] = []
        training.model.register_forward_pre_hook(lambda _, args, batches=batches: batches.append(args[0]))
        training._train_epoch()
        seen.append(batches)
    assert [len(batch) for batch in seen[0]] == [4, 4, 2]
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))
    assert not torch.equal(seen[0][0], seen[2][0])


def test_another_split_is_scored_without_training(place: Place, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("ce", {}, 0, **TINY)
    finish(run, place)
    elsewhere = Place(data, data / "train", place.results, place.state)
    monkeypatch.setattr(Training, "_train_epoch", lambda training: pytest.fail("trained again"))
    finish(run, elsewhere)
    assert elsewhere.result(run) != place.result(run)
    result = outcome(run, elsewhere)
    assert result["split"] == "train"
    assert result["images"]["evaluated"] == 10
    assert [row["epoch"] for row in result["curve"]] == [2]
    assert result["metrics"] != outcome(run, place)["metrics"]


def test_held_out_images_are_not_trained_on(place: Place) -> None:
    trainings = [Training(Run(loss, {}, seed, held_out=True, **TINY), place) for loss, seed in (("ce", 0), ("cpg", 1))]
    assert [len(training.chosen) for training in trainings] == [8, 8]
    assert (trainings[0].chosen == trainings[1].chosen).all()  # the same ones, whatever the seed
    held_out = [index for index in range(10) if index not in trainings[0].chosen]
    plain = quality.SegmentationFolder(place.data / "train", num_classes=10, size=(16, 16))
    scored = torch.cat([labels for _, labels in trainings[0].evaluated])
    assert torch.equal(scored, torch.stack([plain[index][1] for index in held_out]))


def test_a_diverged_run_is_a_result(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = {"nan": lambda logits, target, progress, *, ignore_index: logits.sum() * math.nan}
    monkeypatch.setattr("baselines.recipes.RECIPES", nan)
    run = Run("nan", {}, 0, **TINY)
    finish(run, place)
    result = outcome(run, place)
    assert result["failed"] == "the loss is nan in step 1 of 6, epoch 1"
    assert "metrics" not in result


def test_rounded_convolution() -> None:
    convolution = RoundedConv2d(8, 16, 3, padding=1)
    image, push = torch.randn(2, 8, 12, 10, requires_grad=True), torch.randn(2, 16, 12, 10).bfloat16()
    plain = F.conv2d(image, convolution.weight, convolution.bias, padding=1)
    torch.testing.assert_close(convolution(image), plain, rtol=0, atol=0)

    inputs = [image, convolution.weight, convolution.bias]
    exact = [x.detach().bfloat16().double().requires_grad_() for x in inputs]
    expected = F.conv2d(*exact, padding=1)
    with torch.autocast("cpu", torch.bfloat16):
        found = convolution(image)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.bfloat16(), rtol=2**-7, atol=1e-5)
    for x, y in zip(
        torch.autograd.grad(found, inputs, push), torch.autograd.grad(expected, exact, push.double()), strict=True
    ):
        assert torch.equal(x, x.bfloat16().float())
        torch.testing.assert_close(x, y.float(), rtol=2**-7, atol=1e-5)


def test_slugs() -> None:
    run = Run("weighted", {}, 0)
    assert run.slug == Run("weighted", {"k": 4}, 0, size=[180, 240]).slug  # what is written out is the default
    others = [Run("weighted", {"k": 2}, 0), Run("weighted", {}, 1), Run("ce", {}, 0), Run("weighted", {}, 0, epochs=2)]
    others.append(Run("weighted", {}, 0, held_out=True))
    assert len({run.slug, *(other.slug for other in others)}) == 6


def test_plan() -> None:
    entries = [{"loss": "ce", "seeds": [0, 1]}, {"loss": "weighted", "seeds": [0], "options": {"k": 2}}]
    runs = runs_of({"epochs": 3, "runs": entries}, data="camvid")
    assert [(run.loss, run.seed, run.epochs) for run in runs] == [("ce", 0, 3), ("weighted", 0, 3), ("ce", 1, 3)]
    assert runs[1].options == {"k": 2.0, "class_balance": 0.0}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"epoch": 3, "runs": []}, r"plan: expected runs and some of \['epochs', .*\], but got \['epoch'\]"),
        ({"runs": []}, "plan: expected a list of runs but got none"),
        (
            {"runs": [{"loss": "ce"}]},
            "plan: expected runs with loss, seeds and, maybe, options, but got {'loss': 'ce'}",
        ),
        ({"runs": [{"loss": "focal", "seeds": [0]}]}, "loss: expected one of .* but got 'focal'"),
    ],
)
def test_wrong_plans(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runs_of(plan, data="camvid")


def test_every_loss_has_as_many_trials() -> None:
    runs = [Run("ce", {}, 0), Run("weighted", {"k": 2}, 0), Run("weighted", {"k": 4}, 0), Run("cpg", {}, 0)]
    with pytest.raises(ValueError, match=r"as many trials of every loss, but got {'weighted': 2, 'cpg': 1}"):
        check_trials(runs)
    check_trials([*runs, Run("cpg", {"weight": 2}, 0)])  # cross-entropy has nothing to try


def result_of(loss: str, seed: int, score: float | None, **options: float) -> dict[str, Any]:
    """A made-up result in which all metrics are the same; None has diverged."""
    run = Run(loss, options, seed)
    common = {"run": quality.asdict(run), "split": "val", "images": {"train": 367, "evaluated": 101}}
    if score is None:
        return {**common, "failed": "the loss is nan", "curve": []}
    metrics = dict.fromkeys(METRICS, score)
    return {**common, "metrics": metrics, "curve": [{"epoch": e, "metrics": metrics} for e in (1, 2)]}


RESULTS = [
    result_of("ours", 2, 0.46),
    result_of("ours", 0, 0.43),
    result_of("ours", 1, 0.46),
    *(result_of("ce", seed, score) for seed, score in enumerate((0.40, 0.42, 0.44))),
    result_of("weighted", 0, 0.41, k=2),
    result_of("cpg", 0, 0.45),
    result_of("cpg", 3, 0.47),  # a seed that cross-entropy does not have
    result_of("cpg", 1, None),
    result_of("abl", 0, None),
]


def test_interval() -> None:
    # 0.03, 0.04, 0.02: deviation 0.01, and t of two degrees of freedom is 4.302653.
    low, high = interval([0.03, 0.04, 0.02])
    assert low == pytest.approx(0.03 - 4.302653 * 0.01 / math.sqrt(3))
    assert high == pytest.approx(0.03 + 4.302653 * 0.01 / math.sqrt(3))
    assert interval([0.03]) is None


def test_table() -> None:
    rows = summarise(RESULTS)
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
    rows = {row["loss"]: row for row in summarise(RESULTS, "edgeloss")}
    assert rows["edge-weighted CE (k 2)"]["differences"]["miou"]["mean"] == pytest.approx(-0.02)
    assert rows["edgeloss"]["differences"] == {}


def test_trials_are_sorted_by_the_criterion() -> None:
    results = [result_of("weighted", 0, score, k=k) for k, score in ((1, 0.4), (2, 0.6), (8, 0.5))]
    lines = trials(summarise(results), ["miou", "f1_1"]).splitlines()
    assert "mean of miou, f1_1" in lines[0]
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| **edge-weighted CE (k 2)**",
        "| edge-weighted CE (k 8)",
        "| edge-weighted CE (k 1)",
    ]


def test_plots_and_table_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n, result in enumerate(RESULTS):
        (tmp_path / f"{n}.json").write_text(json.dumps(result))
    assert main(["plot", "--results", str(tmp_path), "--output", str(tmp_path / "images")]) == 0
    assert {path.name for path in (tmp_path / "images").iterdir()} == {"quality-bars.png", "quality-curves.png"}
    figures = tmp_path / "images" / "figures.json"
    assert main(["table", "--results", str(tmp_path), "--cost", str(tmp_path / "none"), "--json", str(figures)]) == 0
    assert (
        "camvid, val: 367 images at 240 × 180 for training, 101 for these scores; 15 epochs" in capsys.readouterr().out
    )
    ((common, rows),) = json.loads(figures.read_text()).items()
    assert common.startswith("camvid, val")
    assert len(rows) == 5
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump({"runs": [{"loss": "ce", "seeds": [0]}, {"loss": "cpg", "seeds": [0]}]}))
    narrow = ["table", "--results", str(tmp_path), "--split", "val", "--plan", str(plan), "--metrics", "miou"]
    capsys.readouterr()
    assert main(narrow) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith(("| C", "| e"))] == ["| CE + CPG"] * 2
    assert main(["table", "--results", str(tmp_path), "--split", "test"]) == 1
    assert "files of `run` or `plan` of split test but got none" in capsys.readouterr().err


def test_commands(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--data", str(data), "--results", str(tmp_path / "results"), "--state", str(tmp_path / "state")]
    settings = ["--epochs", "1", "--size", "16", "16"]
    assert main(["run", *places, *settings, "--loss", "weighted", "--option", "k=2", "--seeds", "0", "1"]) == 0
    assert "2 runs, 2 of them to do" in capsys.readouterr().out
    plan = {"epochs": 1, "size": [16, 16], "runs": [{"loss": "weighted", "seeds": [0], "options": {"k": 2}}]}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    assert main(["plan", *places, str(path)]) == 0
    assert "1 runs, 0 of them to do" in capsys.readouterr().out  # `run` has done it
    assert main(["tune", *places, str(path)]) == 0
    assert "| **edge-weighted CE (k 2)** | 1 |" in capsys.readouterr().out
    assert len(list((tmp_path / "results").iterdir())) == 3
    assert main(["run", *places, "--loss", "ce", "--option", "k=2"]) == 1
    assert "quality.py: options of ce: expected some of [], but got 'k'" in capsys.readouterr().err


def test_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "--results", str(tmp_path)]) == 1
    assert f"--results: expected files of `run` or `plan` but got none in {tmp_path}" in capsys.readouterr().err


@pytest.fixture
def split() -> Split:
    """Four images of 32 × 32 with a border behind column 7, and predictions that are 3 px off in one place each."""
    target = (torch.arange(32) >= 8).long().expand(4, 32, 32).clone()
    target[3, 4:] = 1  # a corner of 4 × 8 pixels: less border than a window of 16 is wide
    baseline, between, ours = target.clone(), target.clone(), target.clone()
    baseline[0, :16, 8:11] = 0
    between[:] = 0
    ours[2, 16:, 8:11] = 0
    predictions = {"baseline": baseline, "between": between, "ours": ours}
    return Split([*"abcd"], torch.rand(4, 3, 32, 32), target, predictions, ["left", "right", "other"], 255)


def test_crops_are_found_by_rule(split: Split) -> None:
    found = windows(split, 16)
    # Rows 0, 8 and 16 of the images a, b and c; the windows from columns 8 and 16 show no border.
    assert [window[:3] for window in found] == [(image, top, 0) for image in range(3) for top in (0, 8, 16)]
    assert found[0].scores == [0, 0, 1]
    # Of the 19 border pixels those of the 8 right rows are near a true one, and 2 where the others begin; of the
    # 16 true ones those of the right rows, and 2 more.
    assert found[1].scores[0] == pytest.approx(2 * 10 / (19 + 16))
    assert found[-1].difference == -1
    ahead, middle, behind = choose(found, 1).values()
    assert [window[:3] for window in (*ahead, *behind)] == [(0, 0, 0), (2, 16, 0)]
    assert middle[0].difference == 0
    assert all([window.image for window in rows] == [0, 1, 2] for rows in choose(found, 3).values())
    # Differences of 1, 3/7, five times 0, -17/35 and -1.
    expected = "ahead in 22 % of 9 windows and behind in 22 %; median difference +0.0 points, mean -0.6"
    assert summary(found) == expected


def test_a_border_of_a_wrong_class_is_no_border(split: Split) -> None:
    split.predictions["ours"][1][split.target[1] == 1] = 2
    assert windows(split, 16)[3].scores == [1, 0, 0.5]  # of two classes' borders the left one's


def test_void_has_no_border(split: Split) -> None:
    split.target[:2, :, 6] = split.void
    split.target[:2, :, 7] = split.void
    assert {window.image for window in windows(split, 16)} == {2}


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


def test_crops(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    place = Place(data, data / "val", tmp_path / "results", state)
    plan = {"epochs": 1, "size": [16, 16], "runs": [{"loss": loss, "seeds": [0]} for loss in ("ce", "ours")]}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    command = ["crops", str(path), "--data", str(data), "--state", str(state), "--output", str(tmp_path / "images")]
    command += ["--losses", "cross-entropy", "edgeloss", "--window", "8", "--count", "2"]
    ce, ours = runs_of(plan, data="shapes")
    finish(ce, place)
    assert main(command) == 1
    assert capsys.readouterr().err == f"quality.py: no checkpoint at {state / ours.slug}.pt\n"
    finish(ours, place)
    assert main(command) == 0
    assert "edgeloss against cross-entropy; shapes, val, seed 0: ahead in" in capsys.readouterr().out
    found = sorted((tmp_path / "images").iterdir())
    assert [file.name for file in found] == [f"quality-crops-{kind}.png" for kind in ("better", "median", "worse")]
    assert all(file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size < 700_000 for file in found)

    assert main([*command, "--seed", "3"]) == 1
    assert "--seed: expected one of [0], as the plan has, but got 3" in capsys.readouterr().err
    assert main([*command, "--window", "17"]) == 1
    assert "--window: expected 2 to 16 for images of this size, but got 17" in capsys.readouterr().err
    assert main([*command, "--count", "4"]) == 1
    assert "--count: expected 1 to 3, the images with border enough, but got 4" in capsys.readouterr().err
    checkpoint = load_checkpoint(state / f"{ours.slug}.pt")
    torch.save({**checkpoint, "epoch": 0}, state / f"{ours.slug}.pt")
    assert main(command) == 1
    assert f"{ours.slug}.pt: expected 1 epochs, but got 0; `plan` goes on with it" in capsys.readouterr().err


def test_cost() -> None:
    # 64 × 64 pixels: large enough for a peak of megabytes, small enough to be quick.
    labels = quality.regions(2, (64, 64), 5, 1)
    seconds = quality.measure_time([("ce", {}), ("weighted", {"k": 2.0})], labels, 5, 2)
    assert list(seconds) == ["cross-entropy", "edge-weighted CE (k 2)"]
    assert all(value > 0 for value in seconds.values())


@pytest.mark.slow
def test_cost_in_processes_of_their_own() -> None:
    labels = quality.regions(4, (128, 128), 11, 1)
    found = quality.costs_of([("ce", {}), ("affinity", {})], labels, 11, 2)
    assert found["cross-entropy"]["ratio"] == 1
    # Eight neighbours of all pixels and classes against a handful of maps of the logits' size.
    assert found["CE + affinity 3×3"]["megabytes"] > 3 * found["cross-entropy"]["megabytes"] > 0


@pytest.mark.slow
def test_workers(data: Path, tmp_path: Path) -> None:
    place = Place(data, data / "val", tmp_path / "results", tmp_path / "state")
    runs = [Run("ce", {}, seed, **{**TINY, "epochs": 1}) for seed in (0, 1)]
    quality.execute(runs, place, workers=2, threads=1)
    assert all(place.result(run).exists() for run in runs)
