"""Values of the boundary metrics: against slow versions, and computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from metric_cases import FUNCTIONS, VOID, blobs
from slow_metrics import SLOW

from edgeloss.metrics import boundary_f1, boundary_iou, trimap_iou


def assert_equals_slow_version(
    function: Callable[..., torch.Tensor], pred: torch.Tensor, target: torch.Tensor, classes: int, options: Any
) -> None:
    expected = torch.tensor(SLOW[function](pred.numpy(), target.numpy(), classes, **options), dtype=torch.float32)
    options = {"ignore_index": VOID, **options}
    actual = function(pred, target, classes, average="none", **options)
    torch.testing.assert_close(actual, expected.squeeze(), rtol=1e-6, atol=1e-7, equal_nan=True)
    macro = function(pred, target, classes, **options)
    torch.testing.assert_close(macro, expected.nanmean(), rtol=1e-6, atol=1e-7, equal_nan=True)


# One pixel, lines, images smaller than their windows, odd sizes; classes in one, two and three words of bits.
@pytest.mark.parametrize(
    ("size", "classes"),
    [
        ((1, 1), 2),
        ((1, 17), 3),
        ((13, 1), 3),
        ((2, 9), 2),
        ((6, 50), 11),
        ((31, 26), 3),
        ((33, 40), 11),
        ((16, 18), 70),
        ((12, 14), 150),
        ((1, 9, 12), 3),
        ((5, 7, 6), 2),
        ((9, 14, 11), 4),
    ],
)
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (boundary_iou, {"ratio": 0.005}),
        (boundary_iou, {"ratio": 0.02}),
        (boundary_iou, {"ratio": 0.15}),
        (trimap_iou, {"radius": 1}),
        (trimap_iou, {"radius": 3}),
        (trimap_iou, {"radius": 10}),
        (boundary_f1, {"radius": 1}),
        (boundary_f1, {"radius": 2, "score": "precision"}),
        (boundary_f1, {"radius": 2, "score": "recall"}),
        (boundary_f1, {"radius": 5}),
        (boundary_f1, {"radius": 1, "class_agnostic": True}),
        (boundary_f1, {"radius": 1, "per_image": True}),
        (boundary_f1, {"radius": 3, "class_agnostic": True, "per_image": True, "score": "precision"}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_equals_slow_version(
    function: Callable[..., torch.Tensor], options: Any, size: tuple[int, ...], classes: int
) -> None:
    pred, target = blobs(3, *size, classes)
    assert_equals_slow_version(function, pred, target, classes, options)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (boundary_iou, {"ratio": 0.005}),
        (boundary_iou, {"ratio": 0.1}),
        (trimap_iou, {"radius": 0.75}),
        (trimap_iou, {"radius": 3}),
        (boundary_f1, {"radius": 1}),
        (boundary_f1, {"radius": 3.5, "per_image": True}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_spacing_equals_slow_version(function: Callable[..., torch.Tensor], options: Any) -> None:
    for size, spacing in (((5, 14, 16), (3.0, 1.0, 0.5)), ((22, 20), (0.5, 2.0))):
        pred, target = blobs(2, *size, 3)
        assert_equals_slow_version(function, pred, target, 3, {**options, "spacing": spacing})
    pred, target = blobs(2, 9, 14, 11, 4)
    scaled = {name: value * 0.1 if name == "radius" else value for name, value in options.items()}
    if options.get("radius", 1) % 1 == 0:  # another unit changes nothing
        actual = function(pred, target, 4, ignore_index=VOID, spacing=0.1, **scaled)
        assert torch.equal(actual, function(pred, target, 4, ignore_index=VOID, **options))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_slow_version_on_noise(name: str) -> None:  # every pixel on a border, its four labels all different
    function, options = FUNCTIONS[name]
    for size in ((15, 16), (4, 6, 5)):
        target = torch.randint(6, (2, *size))
        target[torch.rand(target.shape) < 0.2] = VOID
        assert_equals_slow_version(function, torch.randint(6, target.shape), target, 6, options)


# Two halves of a 4 × 8 image; the border of the prediction is one column too far right.
HALVES = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
SHIFTED = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])


def nearly(*values: float) -> Any:
    return pytest.approx(values, nan_ok=True)


def test_boundary_iou_by_hand() -> None:
    # The diagonal is 8.94: d = 1 up to a ratio of 0.16. Class 0 is 4 × 4 pixels in the target with a band of 12, and
    # 4 × 5 in the prediction with a band of 14; 10 are shared, all 12 but the middle of column 3. Class 1 has bands of
    # 12 and, of 4 × 3 pixels, 10; 8 are shared, the 6 of rows 0 and 3 and the 2 of column 7.
    assert boundary_iou(SHIFTED, HALVES, 2, average="none").tolist() == nearly(10 / 16, 8 / 14)
    assert boundary_iou(SHIFTED, HALVES, 2, ratio=0.16, average="none").tolist() == nearly(10 / 16, 8 / 14)
    # d = round(0.17 · 8.94) = 2 leaves no interior: the plain IoU.
    assert boundary_iou(SHIFTED, HALVES, 2, ratio=0.17, average="none").tolist() == nearly(16 / 20, 12 / 16)


def test_trimap_iou_by_hand() -> None:
    # Columns 3 and 4 are within 1 pixel of another label, and column 4 is wrong; within 3 pixels are columns 1 to 6.
    assert trimap_iou(SHIFTED, HALVES, 2, average="none").tolist() == nearly(4 / 8, 0)
    assert trimap_iou(SHIFTED, HALVES, 2, radius=3, average="none").tolist() == nearly(12 / 16, 8 / 12)
    # Of the 8 neighbors of the square those at the corners are √2 away, not within 1.
    square = torch.zeros(1, 5, 5, dtype=torch.long)
    square[0, 2, 2] = 1
    none = torch.zeros_like(square)
    assert trimap_iou(none, square, 2, average="none").tolist() == nearly(4 / 5, 0)
    assert trimap_iou(none, square, 2, radius=2, average="none").tolist() == nearly(12 / 13, 0)


def test_boundary_f1_by_hand() -> None:
    # The target's border is column 3, for both classes: its right neighbors differ.
    assert boundary_f1(SHIFTED, HALVES, 2) == 1  # at column 4
    # A third class at columns 0 and 1 of the prediction has a border at column 1, which class 0 shares. Class 0 has 8
    # border pixels in the prediction, of which the 4 at column 4 are near column 3: P = 1/2, R = 1, F = 2/3.
    pred = SHIFTED.clone()
    pred[..., :2] = 2
    for score, values in {"f1": (2 / 3, 1, 0), "precision": (1 / 2, 1, 0), "recall": (1, 1, 0)}.items():
        options: dict[str, Any] = {"score": score, "average": "none"}
        assert boundary_f1(pred, HALVES, 4, **options).tolist() == nearly(*values, math.nan)
        assert boundary_f1(pred, HALVES, 4, score=score) == pytest.approx(sum(values) / 3)
    # For merged classes 8 border pixels against 4. A radius of 2 from column 3 to column 1 makes all of them match.
    assert boundary_f1(pred, HALVES, 4, class_agnostic=True).item() == pytest.approx(2 / 3)
    assert boundary_f1(pred, HALVES, 4, class_agnostic=True, radius=2) == 1


def test_boundary_f1_of_single_pixels_by_hand() -> None:
    # The border of a single pixel is that pixel and its left, upper and upper-left neighbors: (2, 2), (2, 1), (1, 2)
    # and (1, 1) in the target. A pixel in the lower-right corner has no lower neighbors: (3, 3), (3, 4) and (4, 3).
    target, pred = torch.zeros(2, 1, 5, 5, dtype=torch.long)
    target[0, 2, 2] = pred[0, 4, 4] = 1
    # (3, 3) and (2, 2) are √2 apart; (3, 4) and (2, 2), as (3, 3) and (1, 2), √5; (3, 3) and (1, 1) √8.
    for radius, precision, recall in ((1, 0, 0), (2, 1 / 3, 1 / 4), (3, 1, 1)):
        for score, value in (("precision", precision), ("recall", recall)):
            actual = boundary_f1(pred, target, 2, radius=radius, score=score, average="none")
            assert actual.tolist() == nearly(value, value)
    assert boundary_f1(pred, target, 2, radius=2).item() == pytest.approx(2 / 7)


def test_per_image_counts_an_absent_class_as_found() -> None:
    target = torch.cat([HALVES, torch.zeros_like(HALVES)])
    pred = torch.cat([torch.zeros_like(HALVES), torch.zeros_like(HALVES)])
    # The border of the first image is missed, the second has none; class 2 is absent.
    assert boundary_f1(pred, target, 3, average="none").tolist() == nearly(0, 0, math.nan)
    assert boundary_f1(pred, target, 3, average="none", per_image=True).tolist() == nearly(1 / 2, 1 / 2, 1)
    assert boundary_f1(pred, target, 3, score="precision", per_image=True) == 1  # nothing that it draws is wrong


def test_void_has_no_border() -> None:
    target = torch.full((1, 12, 12), VOID)
    target[:, 4:8, 4:8] = 1  # one class amid void, off the frame
    for function in (boundary_iou, trimap_iou, boundary_f1):
        assert function(target, target, 2, ignore_index=VOID).isnan()
    pred = torch.randint(2, target.shape)
    pred[:, 4:8, 4:8] = 1
    for function in (boundary_iou, trimap_iou, boundary_f1):
        assert function(pred, target, 2, ignore_index=VOID).isnan()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_predictions_on_void_are_not_read(name: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(2, 20, 24, 4)
    changed = torch.where(target == VOID, 77, pred)
    options = {"ignore_index": VOID, "average": "none", **options}
    assert torch.equal(function(changed, target, 4, **options), function(pred, target, 4, **options))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_perfect_prediction_scores_one(name: str) -> None:
    function, options = FUNCTIONS[name]
    _, target = blobs(2, 20, 24, 4)
    assert function(torch.where(target == VOID, 0, target), target, 4, ignore_index=VOID, **options) == 1


@pytest.mark.parametrize("name", ["boundary_iou", "trimap_iou", "boundary_f1", "per image"])
def test_an_ignored_class_does_not_occur(name: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(2, 20, 24, 4)
    target[target == 0] = VOID
    actual = function(pred, torch.where(target == VOID, 0, target), 4, ignore_index=0, average="none", **options)
    expected = function(pred, target, 4, ignore_index=VOID, average="none", **options)
    assert math.isnan(actual[0])
    assert torch.equal(actual[1:], expected[1:])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_to_score(name: str) -> None:
    function, options = FUNCTIONS[name]
    for shape in ((0, 5, 5), (2, 5, 5)):
        target = torch.full(shape, VOID)
        actual = function(torch.zeros_like(target), target, 3, ignore_index=VOID, **options)
        # An image without a border scores 1 if images are scored separately.
        assert actual == 1 if name == "per image" and shape[0] else actual.isnan()
