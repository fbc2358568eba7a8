"""The rows of docs/conventions.md: boundary scores next to those of other tools, which run where they are installed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from slow_metrics import blobs
from torch import Tensor

from edgeloss.metrics import boundary_f1, boundary_iou, hausdorff_distance, surface_dice, trimap_iou

Mask = np.ndarray[Any, np.dtype[np.bool_]]
ONE: dict[str, Any] = {"average": "none"}


def library(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a tool, or skip the test; neither is on the package index, and both are on GitHub."""
    pytest.importorskip(module.partition(".")[0], reason=f"{module} is not installed; only this comparison needs it")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def band(mask: Mask, ratio: float) -> Mask:
    """Return the band of Boundary IoU as the paper of Cheng et al. defines it: what d erosions remove."""
    reach = max(1, round(ratio * math.hypot(*mask.shape)))
    padded = np.pad(mask, 1).astype(np.uint8)  # the outside is of no class
    inner = cv2.erode(
        padded, np.ones((3, 3), np.uint8), iterations=reach, borderType=cv2.BORDER_CONSTANT, borderValue=0
    )
    return mask & ~inner[1:-1, 1:-1].astype(bool)


def band_of_library(mask: Mask, ratio: float) -> Mask:
    found = library("boundary_iou.utils.boundary_utils", "mask_to_boundary")(mask.astype(np.uint8), ratio)
    return np.asarray(found, bool)


def border(mask: Mask) -> Mask:
    """Return the border of DAVIS: pixels that differ from their right, lower or lower-right neighbor."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    right, lower, diagonal = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    found = (mask != right) | (mask != lower) | (mask != diagonal)
    return np.asarray(found)


def davis(target: Mask, pred: Mask, threshold: float = 0.008) -> float:
    """Return the boundary measure F of DAVIS, by its description."""
    radius = math.ceil(threshold * math.hypot(*target.shape))
    steps = np.arange(-radius, radius + 1)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(np.uint8)
    borders = [border(mask) for mask in (pred, target)]
    near = [cv2.dilate(one.astype(np.uint8), disk).astype(bool) for one in borders]
    if not all(one.any() for one in borders):
        return float(not any(one.any() for one in borders))
    precision, recall = (one[other].mean() for one, other in zip(reversed(near), borders, strict=True))
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def davis_of_library(target: Mask, pred: Mask, threshold: float = 0.008) -> float:
    return float(library("davis2017.metrics", "db_eval_boundary")(target, pred, bound_th=threshold))


def masks(seed: int) -> tuple[Tensor, Tensor]:
    """Return a prediction and a target [1, H, W] of labels 0 and 1."""
    size = np.random.default_rng(seed).integers(8, 90, 2).tolist()
    pred, target = blobs(1, *size, 2, seed=seed)
    return (pred == 1).long(), (target == 1).long()


def line(column: int) -> Tensor:
    """Return labels [1, 20, 20] with a line that is one pixel wide, none for column -1."""
    labels = torch.zeros(1, 20, 20, dtype=torch.long)
    if column >= 0:
        labels[:, 5:15, column] = 1
    return labels


# Of the image diagonal: COCO and LVIS, and Cityscapes.
@pytest.mark.parametrize("ratio", [0.02, 0.005])
@pytest.mark.parametrize("theirs", [band, band_of_library])
def test_bands_are_those_of_the_boundary_iou_api(theirs: Callable[[Mask, float], Mask], ratio: float) -> None:
    for seed in range(20):
        pred, target = masks(seed)
        first, second = (theirs(labels[0].numpy() == 1, ratio) for labels in (pred, target))
        union = int((first | second).sum())
        expected = int((first & second).sum()) / union if union else math.nan
        ours = boundary_iou(pred, target, 2, ratio=ratio, **ONE)[1].item()
        assert ours == pytest.approx(expected, rel=1e-6, nan_ok=True), seed


def test_the_boundary_iou_api_reports_the_lower_of_two_scores() -> None:
    """A mask without its middle has all of the band: the API's minimum with the IoU sees what is missing."""
    target, pred = torch.zeros(2, 1, 100, 100, dtype=torch.long)
    target[:, 10:90, 10:90] = 1
    pred[:] = target
    pred[:, 40:60, 40:60] = 0
    whole = int((pred & target).sum()) / int((pred | target).sum())
    outer = boundary_iou(target, target, 2, **ONE)[1].item()
    ours = boundary_iou(pred, target, 2, **ONE)[1].item()
    assert outer == 1
    assert min(whole, ours) == ours < whole < 1  # the hole has a band of its own
    pred[:] = target
    pred[:, 88:90] = 0  # two rows: a tenth of the band, a fortieth of the mask
    whole = int((pred & target).sum()) / int((pred | target).sum())
    ours = boundary_iou(pred, target, 2, **ONE)[1].item()
    assert ours < 0.8 < 0.97 < whole


@pytest.mark.parametrize("theirs", [davis, davis_of_library])
def test_f1_per_image_is_the_measure_of_davis(theirs: Callable[..., float]) -> None:
    for seed in range(20):
        pred, target = masks(seed)
        radius = math.ceil(0.008 * math.hypot(*target.shape[1:]))
        ours = boundary_f1(pred, target, 2, radius=radius, per_image=True, **ONE)[1].item()
        assert ours == pytest.approx(theirs(target[0].numpy() == 1, pred[0].numpy() == 1), rel=1e-6), seed


@pytest.mark.filterwarnings("ignore::FutureWarning")  # MONAI passes an argument that it has deprecated
@pytest.mark.parametrize("theirs", [davis, davis_of_library])
def test_tolerances_include_the_distance_itself(theirs: Callable[..., float]) -> None:
    from monai.metrics.surface_dice import compute_surface_dice

    first, second = line(10), line(12)
    arrays = [labels[0].numpy() == 1 for labels in (first, second)]
    assert boundary_f1(second, first, 2, radius=2, **ONE)[1] == theirs(*arrays, 2 / math.hypot(20, 20)) == 1
    assert boundary_f1(second, first, 2, radius=1, **ONE)[1] < 1
    for tolerance, score in ((2.0, 1), (1.99, 0)):
        ours = surface_dice(second, first, 2, tolerance=tolerance, convention="monai", **ONE)[1]
        given = (labels[:, None].float() for labels in (second, first))
        assert ours == score == compute_surface_dice(*given, [tolerance], include_background=True)


@pytest.mark.parametrize("theirs", [davis, davis_of_library])
def test_a_line_of_one_pixel_has_a_border_of_two(theirs: Callable[..., float]) -> None:
    """The border is the line and the pixels to its left, so that half of it is within 1 px after a shift by 2."""
    first, second = line(10), line(12)
    assert border(first[0].numpy() == 1).any(0).nonzero()[0].tolist() == [9, 10]
    assert boundary_f1(second, first, 2, radius=1, **ONE)[1] == pytest.approx(0.5)
    assert theirs(first[0].numpy() == 1, second[0].numpy() == 1, 1 / math.hypot(20, 20)) == pytest.approx(0.5)
    assert surface_dice(second, first, 2, tolerance=1, convention="monai", **ONE)[1] == 0
    assert boundary_iou(second, first, 2, **ONE)[1] == 0


def test_only_borders_between_pixels_have_an_orientation() -> None:
    """Flips change boundary F1 of DAVIS and ours a little, and no other score."""
    differences: dict[str, float] = dict.fromkeys(("boundary_f1", "davis", "boundary_iou", "trimap", "nsd", "monai"), 0)
    for seed in range(40):
        pred, target = blobs(1, 61, 82, 2, seed=seed)
        pair = pred, target.where(target != 255, 0)
        scores = []
        for first, second in (pair, [labels.flip(2) for labels in pair]):
            scores.append(
                {
                    "boundary_f1": boundary_f1(first, second, 2, radius=1, **ONE)[1].item(),
                    "davis": davis(second[0].numpy() == 1, first[0].numpy() == 1, 0.009),
                    "boundary_iou": boundary_iou(first, second, 2, **ONE)[1].item(),
                    "trimap": trimap_iou(first, second, 2, radius=1, **ONE)[1].item(),
                    "nsd": surface_dice(first, second, 2, tolerance=1, **ONE)[1].item(),
                    "monai": surface_dice(first, second, 2, tolerance=1, convention="monai", **ONE)[1].item(),
                }
            )
        for name in differences:
            differences[name] = max(differences[name], abs(scores[0][name] - scores[1][name]))
    assert 0.002 < differences.pop("boundary_f1") < 0.006
    assert 0.002 < differences.pop("davis") < 0.006
    assert max(differences.values()) < 1e-6


@pytest.mark.parametrize("theirs", [davis, davis_of_library])
@pytest.mark.parametrize(
    ("pred", "target", "of_davis", "of_monai", "score", "per_image"),
    [(-1, -1, 1, math.nan, math.nan, 1), (-1, 10, 0, 0, 0, 0), (10, -1, 0, 0, 0, 0)],
    ids=["in neither map", "missed", "invented"],
)
@pytest.mark.filterwarnings("ignore")  # MONAI warns about empty maps
def test_absent_classes(
    theirs: Callable[..., float],
    pred: int,
    target: int,
    of_davis: float,
    of_monai: float,
    score: float,
    per_image: float,
) -> None:
    from monai.metrics.hausdorff_distance import compute_hausdorff_distance
    from monai.metrics.surface_dice import compute_surface_dice

    maps = line(pred), line(target)
    assert theirs(maps[1][0].numpy() == 1, maps[0][0].numpy() == 1) == of_davis
    first, second = (labels[:, None].float() for labels in maps)
    dice = compute_surface_dice(first, second, [1.0], include_background=True).item()
    assert dice == pytest.approx(of_monai, nan_ok=True)
    distances = [compute_hausdorff_distance(first, second, True, percentile=p).item() for p in (None, 95)]
    assert not any(map(math.isfinite, distances))  # inf or nan
    for function in (boundary_f1, boundary_iou, surface_dice):
        assert function(*maps, 2, **ONE)[1].item() == pytest.approx(score, nan_ok=True), function.__name__
    assert boundary_f1(*maps, 2, per_image=True, **ONE)[1] == per_image
    assert hausdorff_distance(*maps, 2, **ONE)[1].isnan()


@pytest.mark.parametrize("source", ["description", "library"])
def test_davis_has_a_border_around_void_pixels(source: str) -> None:
    """Void pixels become background there, in both maps: a border that every prediction has right."""
    truth, void = line(-1), torch.zeros(1, 20, 20, dtype=torch.bool)
    truth[:, 5:15, 5:15] = 1
    void[:, 8:12, 7:10] = True
    pred = truth.clone()
    pred[:, :, 11:] = 0
    arrays = [labels[0].numpy() == 1 for labels in (truth, pred)]
    hidden = [one & ~void[0].numpy() for one in arrays]
    theirs = davis(hidden[0], hidden[1], 1 / math.hypot(20, 20))
    if source == "library":
        theirs = library("davis2017.metrics", "db_eval_boundary")(*arrays, void[0].numpy(), 1)
    ours = boundary_f1(pred, truth.masked_fill(void, 255), 2, ignore_index=255, radius=1, **ONE)[1].item()
    assert ours == boundary_f1(pred, truth, 2, radius=1, **ONE)[1]  # the border of the truth is elsewhere
    assert ours + 0.05 < theirs < 1


@pytest.mark.parametrize("theirs", [davis, davis_of_library])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # MONAI passes an argument that it has deprecated
def test_where_an_object_is_cut_off_by_the_image(theirs: Callable[..., float]) -> None:
    """A map of one class alone has no border between pixels, and one around it."""
    from monai.metrics.surface_dice import compute_surface_dice

    whole = torch.ones(1, 12, 16, dtype=torch.long)
    part = whole.clone()
    part[:, :, 12:] = 0
    assert boundary_f1(whole, whole, 2, radius=1, **ONE)[1].isnan()
    assert trimap_iou(whole, whole, 2, radius=1, **ONE)[1].isnan()
    assert theirs(part[0].numpy() == 1, whole[0].numpy() == 1) == 0  # one has a border, the other has none
    pair = [labels[:, None].float() for labels in (whole, part)]
    dice = compute_surface_dice(pair[0], pair[1], [1.0], include_background=True).item()
    own = surface_dice(whole, part, 2, tolerance=1, convention="monai", **ONE)[1].item()
    assert own == pytest.approx(dice)
    assert 0 < own < 1
    assert 0 < boundary_iou(whole, part, 2, **ONE)[1] < 1
    np.testing.assert_array_equal(band(np.ones((5, 6), bool), 0.005).sum(), 5 * 6 - 3 * 4)


def test_monai_averages_over_classes_first() -> None:
    from monai.metrics.utils import do_metric_reduction

    pred, target = blobs(2, 40, 50, 3)
    pred[0], target[0] = (labels[0].where(labels[0] != 2, 0) for labels in (pred, target))  # it has no class 2
    options: dict[str, Any] = {"tolerance": 1, "convention": "monai", "ignore_index": 255}
    scores = surface_dice(pred, target, 3, reduction="none", **options, **ONE)
    of_images, of_classes = scores.nanmean(1).mean(), scores.nanmean(0).mean()
    assert abs(of_images - of_classes) > 0.001
    assert do_metric_reduction(scores.clone(), "mean")[0].item() == pytest.approx(of_images.item())
    assert surface_dice(pred, target, 3, **options).item() == pytest.approx(of_classes.item())
