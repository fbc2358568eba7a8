"""The commands ``metrics`` and ``diagnose``: scores, formats, reports and exit codes."""

from __future__ import annotations

import json
import math
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import C, H, Ran, Run, W, arguments, half_logits, mask_array, wrote
from PIL import Image

from edgeloss import debug
from edgeloss.cli.tables import score_title
from edgeloss.debug import Report
from edgeloss.viz.scores import FIGURES


def measure(run: Run, folders: Path, *options: object) -> Ran:
    return run("metrics", "--pred", folders / "preds", "--mask", folders / "masks", "--classes", C, *options)


def test_metrics_are_those_of_the_library_over_all_images(run: Run, folders: Path) -> None:
    from torchmetrics.classification import MulticlassJaccardIndex

    from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU

    for i, name in enumerate("abc"):
        np.save(folders / "preds" / f"{name}.npy", half_logits(i).numpy())  # of half the masks' resolution
        (folders / "preds" / f"{name}.pt").unlink()
    logits = torch.stack([half_logits(i) for i in range(3)])
    labels = torch.nn.functional.interpolate(logits, (H, W), mode="bilinear").argmax(1)
    target = torch.from_numpy(mask_array()).long().expand(3, H, W)
    scores = json.loads(measure(run, folders, "--json").out)
    assert scores["images"] == 3
    values = [value for row in scores["classes"].values() for value in row.values()]
    assert values == [float(f"{value:.6g}") for value in values]  # no digits of float32's noise
    for name, metric in {
        "iou": MulticlassJaccardIndex(C, average="none", ignore_index=255),
        "boundary_iou": BoundaryIoU(C, average="none", ignore_index=255),
        "boundary_f1_1px": BoundaryF1(C, average="none", ignore_index=255, radius=1),
        "boundary_f1_3px": BoundaryF1(C, average="none", ignore_index=255, radius=3),
        "boundary_f1_5px": BoundaryF1(C, average="none", ignore_index=255, radius=5),
        "trimap_iou_3px": TrimapIoU(C, average="none", ignore_index=255, radius=3),
    }.items():
        expected = metric(labels, target)
        assert [scores["classes"][str(c)][name] for c in range(C)] == pytest.approx(expected.tolist(), rel=1e-5)
        assert scores["mean"][name] == pytest.approx(float(expected.mean()), rel=1e-5)


def test_a_class_that_does_not_occur_has_no_score(run: Run, folders: Path) -> None:
    for path in (folders / "preds").iterdir():
        path.unlink()
    for name in "abc":
        Image.fromarray(mask_array()).save(folders / "preds" / f"{name}.png")  # correct everywhere
    options = ["--classes", folders / "classes.txt", "-o", folders / "metrics"]
    (folders / "classes.txt").write_text("0 ground\n1 box\n2 bar\n3 unicorn\n255 void\n")

    assert measure(run, folders, *options, "--format", "json").code == 0
    scores = json.loads((folders / "metrics").read_text())
    assert set(scores["classes"]["unicorn"].values()) == {None}
    assert set(scores["mean"].values()) == set(scores["classes"]["box"].values()) == {1.0}

    assert measure(run, folders, *options, "-o", folders / "metrics.csv").code == 0
    lines = (folders / "metrics.csv").read_text().splitlines()
    assert lines[0] == "class,iou,boundary_iou,boundary_f1_1px,boundary_f1_3px,boundary_f1_5px,trimap_iou_3px"
    assert lines[2:] == ["box" + 6 * ",1.0", "bar" + 6 * ",1.0", "unicorn" + 6 * ",", "mean" + 6 * ",1.0"]

    ran = measure(run, folders, *options)
    assert re.fullmatch(wrote(folders / "metrics"), ran.err)
    about, table, scores_are = (folders / "metrics").read_text().split("\n\n")
    assert about == "3 images; scores in %, 100 is best"
    assert [re.split("  +", line)[0] for line in scores_are.splitlines()] == [
        "IoU", "boundary IoU", "boundary F1", "trimap IoU", "mean"
    ]  # fmt: skip
    lines = table.splitlines()
    assert lines[-3].split() == ["unicorn", *6 * "-"]
    assert lines[-1].split() == ["mean", *6 * ["100.00"]]
    assert len({len(line) for line in lines}) == 1  # aligned columns
    assert measure(run, folders, *options).code == 0  # its own table may be replaced


def test_a_table_has_the_names_of_pages_and_percent(run: Run, folders: Path) -> None:
    scores = json.loads(measure(run, folders, "--scores", "all", "--json").out)["mean"]
    text = measure(run, folders, "--scores", "all").out
    assert max(map(len, text.splitlines())) <= 80
    about, shares, unit, distances, scores_are = text.split("\n\n")
    assert about == "3 images; scores in %, 100 is best"
    assert unit == "distances in pixels, 0 is best"
    for table, factor, is_distance in ((shares, 100, False), (distances, 1, True)):
        lines = table.splitlines()
        assert len({len(line) for line in lines}) == 1  # aligned columns
        values = [factor * value for key, value in scores.items() if ("distance" in key) == is_distance]
        assert lines[-1].split() == ["mean", *(f"{value:.2f}" for value in values)]
    assert score_title("boundary_f1_1px") == FIGURES["boundary_f1_1px"].name
    names, sizes = shares.splitlines()[:2]
    heads = [part.strip("- ") for part in re.split("  +", names.strip())]
    assert heads == ["boundary", "boundary F1", "trimap IoU", "surface Dice"]
    assert re.split("  +", sizes.strip()) == ["class", "IoU", "IoU", *["1 px", "3 px", "5 px"], "3 px", "1 px", "2 px"]
    assert all(
        re.search(f"^{re.escape(score_title(key).partition(' (')[0])}  ", scores_are, re.MULTILINE) for key in scores
    )


def test_all_scores_and_those_of_images(run: Run, folders: Path) -> None:
    from edgeloss.metrics import BoundaryScores

    ran = measure(run, folders, "--scores", "all", "--spacing", 2, "--per-image", folders / "images.csv", "--json")
    assert ran.code == 0
    assert re.search(wrote(folders / "images.csv"), ran.err)
    scores = json.loads(ran.out)
    metric = BoundaryScores(C, ignore_index=255, average="none", spacing=2)
    target = torch.from_numpy(mask_array()).long()[None]
    lines = [line.split(",") for line in (folders / "images.csv").read_text().splitlines()]
    assert lines[0] == ["image", "class", "score", "value"]
    images = {tuple(line[:3]): float(line[3] or "nan") for line in lines[1:]}
    for name in "abc":
        logits = torch.load(folders / "preds" / f"{name}.pt")
        values = metric(logits.argmax(0)[None], target)
        for score, of_class in values.items():
            actual = [images[name, str(c), score] for c in range(C)]
            assert actual == pytest.approx(of_class.tolist(), rel=1e-5, nan_ok=True)
    for score, of_class in metric.compute().items():
        actual = [scores["classes"][str(c)][score] for c in range(C)]
        assert actual == pytest.approx(of_class.tolist(), rel=1e-5)
    assert len(images) == 3 * C * len(scores["mean"])
    Image.fromarray(np.zeros((H, W), np.uint8)).save(folders / "preds" / "a.png")
    (folders / "preds" / "a.pt").unlink()
    ran = measure(run, folders, "--scores", "all", "--spacing", 2, 2)
    assert "no distance in images where one of the maps lacks a class: 1 in 1, 2 in 2" in ran.err
    assert "\n\ndistances in units of --spacing, 0 is best\n\n" in ran.out

    (folders / "notes.txt").write_text("mine")
    for path, message in (
        (folders / "preds", "expected another path than the inputs and --output, but got one of them"),
        (folders / "out.csv", "expected another path than the inputs and --output, but got one of them"),
        (folders, "expected a file to write to, but got a folder"),
        (folders / "notes.txt", "expected a new file, but got another one; choose another --per-image"),
    ):
        ran = measure(run, folders, "--per-image", path, "-o", folders / "out.csv")
        assert ran.code == 2
        assert f"{path}: {message}" in ran.err
    assert (folders / "notes.txt").read_text() == "mine"
    assert measure(run, folders, "--per-image", folders / "images.csv").code == 0  # its own file again

    ran = measure(run, folders, "--spacing", 0)
    assert ran.code == 2
    assert "--spacing: expected" in ran.err
    ran = measure(run, folders, "--scores", "all", "--spacing", 1, 1, 1)
    assert ran.code == 2
    assert "--spacing: expected one size, or two, height and width, but got 3" in ran.err
    ran = measure(run, folders, "--spacing", 2)
    assert ran.code == 2
    assert "--spacing: expected --scores all too, since the default scores are in pixels" in ran.err


def test_volumes_are_scored_in_three_dimensions(run: Run, tmp_path: Path) -> None:
    from edgeloss.metrics import BoundaryScores

    for folder in ("preds", "masks"):
        (tmp_path / folder).mkdir()
    spacing, options = (3.0, 1.0, 0.5), {"ignore_index": 255, "average": "none"}
    metric, slab = (BoundaryScores(C, spacing=spacing, **options) for _ in range(2))  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    for name, depth in (("a", 5), ("b", 7)):
        mask = np.stack([np.roll(mask_array(), d, 1) for d in range(depth)])
        logits = random.normal(size=(C, depth, H, W)).astype(np.float32) + 2 * np.eye(C)[mask % 255].transpose(
            3, 0, 1, 2
        )
        np.save(tmp_path / "preds" / f"{name}.npy", logits)
        np.savez(tmp_path / "masks" / f"{name}.npz", image=mask, label=mask)
        labels, target = torch.from_numpy(logits.argmax(0))[None], torch.from_numpy(mask)[None]
        metric.update(labels, target)
        slab.update(labels[:, 1:4], target[:, 1:4])
    words = ["--scores", "all", "--volumes", "--spacing", *spacing, "--json", "--per-image", tmp_path / "images.csv"]
    for part, expected in (([], metric), (["--slice", "1-3"], slab)):
        scores = json.loads(measure(run, tmp_path, *words, *part).out)
        for score, of_class in expected.compute().items():
            actual = [scores["classes"][str(c)][score] for c in range(C)]
            assert actual == pytest.approx(of_class.tolist(), rel=1e-5), score
    assert len((tmp_path / "images.csv").read_text().splitlines()) == 1 + 2 * C * len(scores["mean"])

    ran = measure(run, tmp_path, "--scores", "all", "--volumes", "--spacing", 1, 1)
    assert ran.code == 2
    assert "--spacing: expected one size, or three, depth, height and width, but got 2" in ran.err
    np.save(tmp_path / "preds" / "a.npy", logits)
    Image.fromarray(mask_array()).save(tmp_path / "preds" / "b.png")
    (tmp_path / "preds" / "b.npy").unlink()
    ran = measure(run, tmp_path, "--volumes")
    assert ran.code == 2
    assert f"a.npy: expected 5 slices as in {tmp_path / 'masks' / 'a.npz'}, but got 7" in ran.err
    assert "b.png: expected a volume [..., D, H, W] in one of .npy, .npz, .pt, .pth" in ran.err
    np.savez(tmp_path / "masks" / "a.npz", label=mask_array())
    assert "a.npz: expected a volume [..., D, H, W], but got [24, 32]" in measure(run, tmp_path, "--volumes").err


@pytest.mark.filterwarnings("default:.*no border of the target")
@pytest.mark.parametrize("scores", ["default", "all"])
def test_a_void_rim_is_one_warning_that_names_an_option(run: Run, folder: Path, scores: str) -> None:
    mask = np.zeros((H, W), np.uint8)
    mask[:, W // 2 :] = 1
    np.save(folder / "pred.npy", mask)
    mask[:, W // 2 - 1 : W // 2 + 1] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    command = ["metrics", *arguments(folder), "--classes", 2, "--scores", scores, "--json"]
    ran = run(*command)
    (warning,) = [line for line in ran.err.splitlines() if line.startswith("edgeloss: warning: ")]
    assert "boundary_f1" in warning
    assert "pass across_void=k (edgeloss metrics --across-void k)" in warning
    assert json.loads(ran.out)["mean"]["boundary_f1_1px"] is None
    ran = run(*command, "--across-void", 2)
    assert "edgeloss: warning: " not in ran.err
    assert json.loads(ran.out)["mean"]["boundary_f1_1px"] == 1


def test_diagnose_succeeds_on_finite_values(run: Run, folder: Path) -> None:
    np.save(folder / "pred.npy", torch.randn(C, H, W).numpy())
    ran = run("diagnose", *arguments(folder))
    assert ran.code == 0
    verdict, numbers, terms, _ = ran.out.split("\n\n")
    checked = "all values finite, labels in range, gradient not 0, same in float64"
    assert verdict == f"diagnose(EdgeAwareLoss): the loss is healthy: {checked}"
    assert re.match(r"prediction  logits; [0-9]+\.[0-9] % of the labeled pixels are wrong\n", numbers)
    names = [line.split()[0] for line in numbers.splitlines()]
    assert names == ["prediction", "logits", "labels", "gradient", "loss"]
    assert [line.split()[0] for line in terms.splitlines()[2:5]] == ["cross-entropy", "focused", "region"]
    every = run("diagnose", *arguments(folder), "--verbose").out
    assert every.startswith(verdict)
    assert "├── gradient" in every
    ran = run("diagnose", *arguments(folder), "--json", "--power", 0)
    assert ran.code == 0
    assert json.loads(ran.out)["ok"] is True


@pytest.mark.parametrize("weights", [{}, {"same-side-weight": 0.5, "ce-weight": 0.25}, {"edge-weight": 0}])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_terms_times_their_weights_add_up_to_the_loss(
    run: Run, folder: Path, weights: dict[str, float], scale: float
) -> None:
    np.save(folder / "pred.npy", torch.randn(C, H, W, generator=torch.Generator().manual_seed(0)).numpy())
    given = {"region-weight": 2 * scale} | {name: scale * weight for name, weight in weights.items()}
    words = [word for name, weight in given.items() for word in (f"--{name}", weight)]
    text = run("diagnose", *arguments(folder), *words).out
    head, _, *rows = text.split("\n\n")[2].splitlines()
    *terms, _, total = (row.rsplit(maxsplit=7) if "×" in row else row.split() for row in rows)
    assert len({len(row) for row in [head, *rows]}) == 1  # aligned columns
    for _, mean, _, weight, _, part, _, _ in terms:
        assert float(mean) * float(weight) == pytest.approx(float(part), abs=1e-4 * max(float(weight), 1))
    assert sum(float(part) for *_, part, _, _ in terms) == pytest.approx(float(total[1]), abs=2e-4)
    assert sum(int(share) for *_, share, _ in terms) == pytest.approx(100, abs=1)  # each is rounded
    assert total[2:] == ["100", "%"]
    loss = float(re.findall(r"\nloss +([0-9.]+) in float32", text)[0])
    assert loss == pytest.approx(float(total[1]), rel=1e-3)
    if given.get("edge-weight") == 0:
        assert [name for name, *_ in terms] == ["cross-entropy", "region term"]
        assert "edges: " not in text
        return
    same, other, before = (
        float(word) for word in re.findall(r"edges: same side ([0-9.]+).*other side ([0-9.]+) = ([0-9.]+)", text)[0]
    )
    assert given.get("same-side-weight", 1) * same + other == pytest.approx(before, abs=2e-4)


def test_diagnose_fails_on_non_finite_values(run: Run, folder: Path) -> None:
    logits = torch.randn(C, H, W)
    logits[1, 3, 4] = float("nan")
    np.save(folder / "pred.npy", logits.numpy())
    ran = run("diagnose", *arguments(folder), "--figure", folder / "figure.png")
    assert ran.code == 1
    assert "first at [0, 1, 3, 4]" in ran.out
    assert "\nloss        not finite in float32, not finite in float64\n" in ran.out
    assert ran.err.startswith(f"edgeloss: note: {folder / 'pred.npy'}: 1 of {C * H * W} values are not finite\n")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    ran = run("diagnose", *arguments(folder), "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["ok"] is False


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["logits", "probabilities", "foreground"])
def test_the_note_and_the_finding_count_the_same_values(run: Run, folder: Path, kind: str, value: float) -> None:
    logits = half_logits()
    values = logits if kind == "logits" else logits.softmax(0) if kind == "probabilities" else logits[:1].sigmoid()
    values[0, 3, 4] = values[0, 5, 6] = value
    np.save(folder / "pred.npy", values.numpy())
    Image.fromarray(np.minimum(mask_array(), 1)).save(folder / "mask.png")
    ran = run("diagnose", *arguments(folder), "--json")
    assert ran.code == 1
    assert ran.err == f"edgeloss: note: {folder / 'pred.npy'}: 2 of {values.numel()} values are not finite\n"
    found = json.loads(ran.out)
    assert found["findings"][0]["message"].startswith(f"logits: 2 of {values.numel()} values ")
    assert found["summary"]["logits"]["not_finite"] == 2


def test_labels_with_a_nan_are_refused_and_the_mask_is_not_blamed(run: Run, folder: Path) -> None:
    labels = np.minimum(mask_array(), C - 1).astype(np.float32)
    labels[2, 2] = math.nan
    np.save(folder / "pred.npy", labels)
    ran = run("diagnose", *arguments(folder))
    got = f"float32 [{H}, {W}] with values that are not finite"
    assert ran.err == f"edgeloss: error: {folder / 'pred.npy'}: expected integer labels [H, W], but got {got}\n"


def test_a_pixel_whose_logits_are_nan_is_wrong(run: Run, folder: Path) -> None:
    np.save(folder / "pred.npy", np.full((C, H, W), math.nan, np.float32))
    ran = run("diagnose", *arguments(folder))
    assert "\nprediction  logits; 100.0 % of the labeled pixels are wrong\nlogits      none is finite\n" in ran.out


def numbers_in(part: Any) -> list[float]:
    """Return the numbers of JSON, those within its texts too."""
    if isinstance(part, (dict, list)):
        return [number for one in (part.values() if isinstance(part, dict) else part) for number in numbers_in(one)]
    if isinstance(part, str):
        return [float(number) for number in re.findall(NUMBER, part)]
    return [] if part is None else [float(part)]


NUMBER = r"(?<![a-z\d.])-?\d+(?:\.\d+)?(?:e-\d+)?"


@pytest.mark.parametrize("as_labels", [False, True])
def test_the_summary_has_every_number_of_the_text(run: Run, folder: Path, as_labels: bool) -> None:
    logits = half_logits()
    np.save(folder / "pred.npy", logits.argmax(0).numpy() if as_labels else logits.numpy())
    words = ["diagnose", *arguments(folder), "--same-side-weight", 0.5]
    text, summary = run(*words).out, json.loads(run(*words, "--json").out)["summary"]
    assert text.startswith(f"diagnose(EdgeAwareLoss): {summary['verdict']}\n")
    assert f"\nprediction  {summary['prediction']['read_as']}; " in text
    known = [*numbers_in(summary), 0.5]  # an option of the call
    for shown, unit in re.findall(rf"({NUMBER})(?![\d.])( %)?", text.partition("\nprediction")[2]):
        step = 10.0 ** -len(shown.partition(".")[2])
        value = [100 * number if unit else number for number in known]
        assert min(abs(number - float(shown)) for number in value) <= 0.51 * step or (unit and shown == "100"), shown
    assert set(summary) == {
        *("verdict", "prediction", "logits", "labels", "gradient", "loss", "terms", "edges")
    }  # fmt: skip
    wrong, valid = logits.argmax(0).repeat_interleave(2, 0).repeat_interleave(2, 1).numpy(), mask_array() != 255
    if as_labels:
        assert summary["prediction"]["wrong"] == pytest.approx((wrong != mask_array())[valid].mean(), abs=0.02)
    assert summary["labels"] == {"values": [0, 1, 2], "ignored": pytest.approx(1 - valid.mean(), abs=1e-5)}
    terms = summary["terms"].values()
    assert sum(term["gradient"] for term in terms) == pytest.approx(1, abs=1e-5)
    assert sum(term["in_the_loss"] for term in terms) == pytest.approx(summary["loss"]["float32"], rel=1e-4)


def test_diagnose_keeps_no_gradient_of_the_images_before(
    run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnose, reports, alive = debug.diagnose, list[weakref.ref[Report]](), []

    def counted(*given: Any) -> Report:
        alive.append(sum(report() is not None for report in reports))
        reports.append(weakref.ref(report := diagnose(*given)))
        return report

    monkeypatch.setattr(debug, "diagnose", counted)
    assert run("diagnose", "--pred", folders / "preds", "--mask", folders / "masks").code == 0
    assert alive == [0, 1, 1]


def test_diagnose_takes_folders(run: Run, folders: Path) -> None:
    source = ["diagnose", "--pred", folders / "preds", "--mask", folders / "masks"]
    ran = run(*source)
    assert ran.code == 0
    head, _, *rows, empty, last = ran.out.splitlines()
    assert head.split() == ["image", "loss", "max", "|gradient|", "wrong"]
    assert [row.split()[0] for row in rows] == ["c", "a", "b"]  # the highest loss first
    assert [row.split()[3:] for row in rows] == [[share, "%", "healthy"] for share in ("100.0", "0.0", "0.0")]
    losses = [float(row.split()[1]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert (empty, last) == ("", "3 images; not finite: none; warnings: none")
    assert run(*source, "--verbose").out.count("diagnose(EdgeAwareLoss)") == 3
    torch.save(torch.full((C, H, W), float("nan")), folders / "preds" / "b.pt")
    ran = run(*source)
    assert ran.code == 1
    assert ran.out.startswith("b: diagnose(EdgeAwareLoss): NOT OK")
    assert ran.out.count("diagnose(EdgeAwareLoss)") == 1
    assert ran.out.splitlines()[-5].split() == ["b", *["not", "finite"] * 2, "100.0", "%", "NOT", "OK"]
    ran = run(*source, "--json", "--figure", folders / "figures")
    assert ran.code == 1
    diagnoses = json.loads(ran.out)
    assert diagnoses["ok"] is False
    assert (diagnoses["not_finite"], diagnoses["warnings"]) == (["b"], [])
    assert {name: one["ok"] for name, one in diagnoses["images"].items()} == {"a": True, "b": False, "c": True}
    assert sorted(path.name for path in (folders / "figures").iterdir()) == ["a.png", "b.png", "c.png"]


def test_the_figure_shows_where_a_column_is_nan(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole image, over which the region term and the focus spread it."""
    logits = torch.randn(C, H, W)
    logits[:, :, 7] = float("nan")
    np.save(folder / "pred.npy", logits.numpy())
    drawn = []
    figure = Report.figure
    monkeypatch.setattr(Report, "figure", lambda self: drawn.append(self) or figure(self))
    assert run("diagnose", *arguments(folder), "--figure", folder / "figure.png").code == 1
    (shown,) = drawn
    assert shown.gradient is not None
    assert "without region term and focus" in shown.name
    assert (~shown.gradient.isfinite()).any(1)[0].any(0).nonzero().flatten().tolist() == [7]
