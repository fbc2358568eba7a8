"""The HTML report: the numbers that it holds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from report_page import carried, codes, decoded
from scenes import large_image, patches

from edgeloss.metrics import boundary_f1
from edgeloss.viz import compute_arrays, report
from edgeloss.viz.packing import Code
from edgeloss.viz.scores import compute_scores, mistakes, shown, shown_figures, worst_places

HEADLINES = ["boundary F1 (1 px)", "mean IoU", "pixel accuracy", "edge loss"]


def test_the_page_holds_the_maps() -> None:
    logits, target = patches(batch=2)
    logits *= 10  # losses from nearly 0 to dozens
    computed = compute_arrays(logits, target)
    images = carried(report(logits, target))["images"]
    for index, image in enumerate(images):
        for name in ("cross_entropy", "same_side", "other_side", "edge"):
            stored = decoded(image["arrays"][name])
            np.testing.assert_allclose(stored, computed.maps[name][index], rtol=2**-9, atol=2**-14, err_msg=name)
        alone = compute_arrays(logits[index], target[index])
        assert alone.region is not None
        for name, size in (("gradient", alone.gradient), ("region", alone.region)):
            np.testing.assert_allclose(decoded(image["arrays"][name]), size[0], rtol=2**-9, atol=1e-37, err_msg=name)
        stored = codes(image["arrays"]["edge"])
        np.testing.assert_array_equal(stored == Code.IGNORED, computed.target[index] < 0)
        np.testing.assert_array_equal(stored >= Code.FIRST, computed.maps["edge_mask"][index])


def test_non_finite_values_are_stored() -> None:
    logits, target = patches()
    logits[0, 1, 10, 10], logits[0, 0, 20, 30] = torch.nan, torch.inf
    arrays = carried(report(logits, target))["images"][0]["arrays"]
    assert np.isnan(decoded(arrays["cross_entropy"])[10, 10])
    assert not np.isfinite(decoded(arrays["gradient"])[20, 30])
    assert codes(arrays["prediction"])[10, 10] == Code.IGNORED
    stored = decoded(arrays["pixel_distance"])
    assert np.isfinite(stored[target[0] >= 0]).all()


def test_an_image_without_an_edge() -> None:
    page = report(torch.randn(3, 8, 8), torch.zeros(8, 8, dtype=torch.int64))
    arrays = carried(page)["images"][0]["arrays"]
    assert (codes(arrays["edge"]) == Code.NOTHING).all()
    assert (codes(arrays["pixel_distance"]) == Code.NOTHING).all()
    report(torch.randn(3, 8, 8), torch.full((8, 8), -100))  # all ignored


def test_histograms_count_the_pixels_that_have_a_value() -> None:
    logits, target = patches()
    computed = compute_arrays(logits, target)
    arrays = carried(report(logits, target))["images"][0]["arrays"]
    valid, edges = computed.target[0] >= 0, computed.maps["edge_mask"][0]
    expected = {"cross_entropy": valid, "edge": edges, "gradient": computed.gradient[0] > 0}
    for name, counted in expected.items():
        assert sum(arrays[name]["histogram"]["counts"]) == counted.sum()
    values = computed.maps["cross_entropy"][0][valid].astype(float)
    counts, _ = np.histogram(values, 60, (0, values.max()))
    assert (
        np.abs(np.cumsum(counts) - np.cumsum(arrays["cross_entropy"]["histogram"]["counts"])).max() <= 8
    )  # rounded values


def test_the_worst_places_do_not_touch() -> None:
    losses = np.zeros((96, 120))
    losses[40:48, 72:80] = 1  # a block of 8 x 8, and parts of its neighbors
    losses[40:48, 80:84] = 0.5
    losses[0, 0] = 3
    losses[95, 119] = np.inf
    target = np.zeros(losses.shape, np.int64)
    prediction = target.copy()
    prediction[44, 70:90], prediction[40:50, 76] = 2, 1
    places = worst_places(losses, target, prediction)
    assert [(place["row"], place["column"]) for place in places] == [(92, 116), (44, 76), (4, 4)]
    assert [place["sum"] for place in places] == [None, 64, 3]
    assert [place["labels"] for place in places] == [[0], [0, 1], [0]]  # the most frequent mistake
    assert all(0 <= place["top"] <= place["row"] < place["top"] + place["across"] <= 96 for place in places)
    assert worst_places(np.zeros((5, 5)), target, prediction) == []


def test_mistakes_are_counted() -> None:
    logits, target = patches(classes=5)
    logits[0, 0, 20, 30] = torch.nan
    image = carried(report(logits, target))["images"][0]
    prediction = logits.argmax(1).numpy()[0]
    prediction[20, 30] = -1
    valid = (target[0] >= 0).numpy()
    wrong = (prediction != target[0].numpy()) & valid
    assert image["pixels"] == {"valid": valid.sum(), "wrong": wrong.sum()}
    assert image["occurs"] == [[k, int((target == k).sum())] for k in range(5)]
    assert image["mistakes"] == mistakes(np.where(valid, target[0], -1), prediction)
    for true, found, count in image["mistakes"]:
        assert count == ((target[0].numpy() == true) & (prediction == found)).sum()
    counts = [count for *_, count in image["mistakes"]]
    assert len(counts) == 6
    assert counts == sorted(counts, reverse=True)


def test_tiles_and_tables_are_those_of_each_image() -> None:
    """Not of the images together, which may be one picture as two networks see it."""
    logits, target = patches(batch=2)
    logits[1] *= -1
    page = report(logits, target, names=["one", "<two>"])
    assert [image["name"] for image in carried(page)["images"]] == ["one", "<two>"]
    for at, image in enumerate(carried(page)["images"]):
        alone = compute_arrays(logits[at], target[at])
        scores = compute_scores(alone.target, alone.prediction, 3)
        tiles = image["tiles"]
        figures = {name: value for name, value, _ in (*tiles["values"], *tiles["more"])}
        assert figures == shown_figures(alone.terms | scores.means)
        assert [name for name, *_ in tiles["values"]] == HEADLINES
        assert "region term" in [name for name, *_ in tiles["more"]]
        assert all(about for *_, about in (*tiles["values"], *tiles["more"]))
        most = {key: alone.maps[key][alone.maps["edge_mask"]].max() for key in ("same_side", "other_side", "edge")}
        stats = {layer["key"]: layer["stats"] for layer in image["layers"]}
        # No mean, which is that of the tile only without class weights.
        assert {key: stats[key] for key in most} == {key: f"max {value:#.3g}" for key, value in most.items()}
        explained = {name for name, _ in image["tables"]["tables"][1]["notes"]}
        assert {"share", "edge loss"} <= explained <= set(image["tables"]["tables"][1]["head"])
        labels = logits[at : at + 1].argmax(1)
        f1 = boundary_f1(labels, target[at : at + 1], 3, ignore_index=-100, radius=1, average="none")
        np.testing.assert_allclose(scores.boundary_f1, f1)
        assert image["tables"]["tables"][0]["rows"][0][1:4:2] == [str(scores.pixels[0]), shown(scores.iou[0], ".1%")]


def test_stray_pixels_are_far_from_their_class() -> None:
    target, prediction = np.zeros((2, 1, 12, 12), np.int64)
    target[0, :, 0] = 1  # the class is in the first column, and another one nowhere
    prediction[0, 5, 3:6], prediction[0, 0, 11], target[0, 0, 11] = 1, 2, -1
    prediction[0, 9, 9] = 2
    assert compute_scores(target, prediction, classes=3).stray.tolist() == [0, 2, 1]


def test_a_class_that_is_never_right_has_an_iou_of_zero() -> None:
    target = np.array([[[0, 0, 1, -1]]])
    scores = compute_scores(target, np.array([[[0, -1, 0, 0]]]), classes=3)
    np.testing.assert_allclose(scores.iou, [1 / 3, 0, np.nan])
    assert scores.means["pixel_accuracy"] == pytest.approx(1 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "smooth"])
def test_a_large_image_stays_small(kind: str, tmp_path: Path) -> None:
    """Noise, which hardly compresses, and logits that vary slowly, as those of networks do."""
    page = report(**large_image(kind))
    assert len(page.encode()) < 15_000_000
    rounded = float(re.search(r"rounded to ([0-9.]+)\\u00a0%", page)[1])  # type: ignore[index]
    assert rounded <= (25 if kind == "noise" else 2)
