"""Boundary metrics: against erosions, dilations and distance transforms of one class and image at a time."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image
from scipy import ndimage
from torchmetrics import Metric, MetricCollection

from edgeloss.fields import boundary_distance
from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU, boundary_f1, boundary_iou, trimap_iou

VOID = 255
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], dict[str, Any]]] = {
    "boundary_iou": (boundary_iou, {"ratio": 0.05}),
    "trimap_iou": (trimap_iou, {"radius": 2}),
    "boundary_f1": (boundary_f1, {"radius": 2}),
    "class-agnostic": (boundary_f1, {"radius": 1, "class_agnostic": True}),
    "per image": (boundary_f1, {"radius": 1, "per_image": True}),
}
CLASSES = {boundary_iou: BoundaryIoU, trimap_iou: TrimapIoU, boundary_f1: BoundaryF1}


def blobs(batch: int, height: int, width: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A target of regions, void ones among them and specks of void, and a prediction that is near it."""
    random = np.random.default_rng(seed)
    pixels = np.stack(np.indices((height, width)), -1)
    target = np.empty((batch, height, width), dtype=np.int64)
    for y in target:
        seeds = random.random((14, 2)) * (height, width)
        labels = np.append(random.integers(0, classes, 12), [VOID, VOID])
        y[...] = labels[np.linalg.norm(pixels[:, :, None] - seeds, axis=-1).argmin(-1)]
    pred = np.roll(target, (1, -1), (1, 2))
    specks = random.random(pred.shape)
    pred[specks < 0.05] = random.integers(0, classes, pred.shape)[specks < 0.05]
    pred[pred == VOID] = 0
    target[(specks > 0.5) & (specks < 0.53)] = VOID
    return torch.from_numpy(pred), torch.from_numpy(target)


# ------------------------------------------------------------------------------ the same, one class and image at a time


def slow_boundary_iou(pred: np.ndarray, target: np.ndarray, classes: int, ratio: float) -> list[float]:
    counts = np.zeros((2, classes))
    for p, t in zip(pred, target, strict=True):
        void = t == VOID
        d = max(1, round(ratio * math.sqrt(t.shape[0] ** 2 + t.shape[1] ** 2)))
        for c in range(classes):
            bands = []
            for y in (p, t):
                padded = np.pad((y == c) | void, 1)  # void takes nothing away: every class goes on there
                eroded = ndimage.binary_erosion(padded, np.ones((3, 3)), iterations=d)[1:-1, 1:-1]
                bands.append((y == c) & ~void & ~eroded)
            counts[:, c] += (bands[0] & bands[1]).sum(), (bands[0] | bands[1]).sum()
    return ratios(*counts)


def slow_trimap_iou(pred: np.ndarray, target: np.ndarray, classes: int, radius: int) -> list[float]:
    confusion = np.zeros((classes, classes))
    for p, t in zip(pred, target, strict=True):
        near = np.zeros(t.shape, dtype=bool)
        for c in np.unique(t[t != VOID]):
            others = (t != c) & (t != VOID)
            if others.any():
                near |= (t == c) & (ndimage.distance_transform_edt(~others) <= radius)
        np.add.at(confusion, (t[near], p[near]), 1)
    shared = np.diag(confusion)
    return ratios(shared, confusion.sum(0) + confusion.sum(1) - shared)


def slow_boundary_f1(
    pred: np.ndarray,
    target: np.ndarray,
    classes: int,
    radius: int,
    score: str = "f1",
    class_agnostic: bool = False,
    per_image: bool = False,
) -> list[float]:
    dy, dx = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    disk = dy**2 + dx**2 <= radius**2

    def border(y: np.ndarray, void: np.ndarray, c: int) -> np.ndarray:
        found = np.zeros(y.shape, dtype=bool)
        height, width = y.shape
        for down, right in ((0, 1), (1, 0), (1, 1)):
            here, there = np.s_[: height - down, : width - right], np.s_[down:, right:]
            differs = y[here] != y[there] if class_agnostic else (y[here] == c) != (y[there] == c)
            found[here] |= differs & ~void[here] & ~void[there]
        return found

    images = []  # one [4, C] each
    for p, t in zip(pred, target, strict=True):
        rows = []
        for c in range(1 if class_agnostic else classes):
            b_p, b_t = (border(y, t == VOID, c) for y in (p, t))
            near_p, near_t = (ndimage.binary_dilation(b, disk) for b in (b_p, b_t))
            rows.append([(b_p & near_t).sum(), b_p.sum(), (b_t & near_p).sum(), b_t.sum()])
        images.append(np.array(rows).T)

    def by_class(counts: np.ndarray, nothing: tuple[float, float]) -> list[float]:
        found = []
        for hit_p, n_p, hit_t, n_t in counts.T.tolist():
            precision, recall = hit_p / n_p if n_p else nothing[0], hit_t / n_t if n_t else nothing[0]
            f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
            found.append({"f1": f1, "precision": precision, "recall": recall}[score] if n_p + n_t else nothing[1])
        return found

    if per_image:
        return list(np.mean([by_class(counts, (1.0, 1.0)) for counts in images], 0))
    return by_class(sum(images), (0.0, math.nan))


def ratios(numerator: np.ndarray, denominator: np.ndarray) -> list[float]:
    return [n / d if d else math.nan for n, d in zip(numerator, denominator, strict=True)]


SLOW = {boundary_iou: slow_boundary_iou, trimap_iou: slow_trimap_iou, boundary_f1: slow_boundary_f1}


def assert_as_slow(
    function: Callable[..., torch.Tensor], pred: torch.Tensor, target: torch.Tensor, classes: int, options: Any
) -> None:
    expected = torch.tensor(SLOW[function](pred.numpy(), target.numpy(), classes, **options), dtype=torch.float32)
    options = {"ignore_index": VOID, **options}
    found = function(pred, target, classes, average="none", **options)
    torch.testing.assert_close(found, expected.squeeze(), rtol=1e-6, atol=1e-7, equal_nan=True)
    macro = function(pred, target, classes, **options)
    torch.testing.assert_close(macro, expected.nanmean(), rtol=1e-6, atol=1e-7, equal_nan=True)


# One pixel, lines, images smaller than their windows, odd ones; classes in one word of bits, two and three.
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
def test_as_slow(function: Callable[..., torch.Tensor], options: Any, size: tuple[int, int], classes: int) -> None:
    pred, target = blobs(3, *size, classes)
    assert_as_slow(function, pred, target, classes, options)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_slow_on_noise(name: str) -> None:  # every pixel on a border, its four labels all different
    function, options = FUNCTIONS[name]
    target = torch.randint(6, (2, 15, 16))
    target[torch.rand(target.shape) < 0.2] = VOID
    assert_as_slow(function, torch.randint(6, (2, 15, 16)), target, 6, options)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_slow_on_real_scenes(camvid: Path, name: str) -> None:
    function, options = FUNCTIONS[name]
    files = sorted((camvid / "val" / "masks").glob("*.png"))[::34]
    target = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])
    pred = target.roll((2, 1), (1, 2))
    assert_as_slow(function, torch.where(pred == VOID, 0, pred), target, 11, options)


# ---------------------------------------------------------------------------------------------------------- by hand

# Two halves of a 4 × 8 image; the border of the prediction is one column too far right.
HALVES = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
SHIFTED = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])


def nearly(*values: float) -> Any:
    return pytest.approx(values, nan_ok=True)


def test_boundary_iou_by_hand() -> None:
    # The diagonal is 8.94: d = 1 up to a ratio of 0.16. Class 0 is 4 × 4 in the target, 12 of it not inside, and 4 × 5
    # in the prediction, 14 of it not inside; they share 10, all of the 12 but the middle of column 3. Class 1: 12, of
    # 4 × 3 all but two = 10, shared the 6 of rows 0 and 3 and the 2 of column 7.
    assert boundary_iou(SHIFTED, HALVES, 2, average="none").tolist() == nearly(10 / 16, 8 / 14)
    assert boundary_iou(SHIFTED, HALVES, 2, ratio=0.16, average="none").tolist() == nearly(10 / 16, 8 / 14)
    # d = round(0.17 · 8.94) = 2 leaves nothing inside: plain IoU.
    assert boundary_iou(SHIFTED, HALVES, 2, ratio=0.17, average="none").tolist() == nearly(16 / 20, 12 / 16)


def test_trimap_iou_by_hand() -> None:
    # Within 1 pixel of another label are the columns 3 and 4, the latter all wrong; within 3 the columns 1 to 6.
    assert trimap_iou(SHIFTED, HALVES, 2, average="none").tolist() == nearly(4 / 8, 0)
    assert trimap_iou(SHIFTED, HALVES, 2, radius=3, average="none").tolist() == nearly(12 / 16, 8 / 12)
    # The square's 8 neighbours: those at the corners are √2 off, not within 1.
    square = torch.zeros(1, 5, 5, dtype=torch.long)
    square[0, 2, 2] = 1
    none = torch.zeros_like(square)
    assert trimap_iou(none, square, 2, average="none").tolist() == nearly(4 / 5, 0)
    assert trimap_iou(none, square, 2, radius=2, average="none").tolist() == nearly(12 / 13, 0)


def test_boundary_f1_by_hand() -> None:
    # The target's border is column 3, for both classes: its right neighbours differ.
    assert boundary_f1(SHIFTED, HALVES, 2) == 1  # at column 4
    # A third class at columns 0 and 1 of the prediction has a border at column 1, which class 0 shares. Class 0 has 8
    # border pixels in the prediction, of which the 4 at column 4 are near column 3: P = 1/2, R = 1, F = 2/3.
    pred = SHIFTED.clone()
    pred[..., :2] = 2
    for score, values in {"f1": (2 / 3, 1, 0), "precision": (1 / 2, 1, 0), "recall": (1, 1, 0)}.items():
        options: dict[str, Any] = {"score": score, "average": "none"}
        assert boundary_f1(pred, HALVES, 4, **options).tolist() == nearly(*values, math.nan)
        assert boundary_f1(pred, HALVES, 4, score=score) == pytest.approx(sum(values) / 3)
    # Whatever the classes: 8 border pixels against 4. Two pixels from column 1 to column 3 make all of them near.
    assert boundary_f1(pred, HALVES, 4, class_agnostic=True).item() == pytest.approx(2 / 3)
    assert boundary_f1(pred, HALVES, 4, class_agnostic=True, radius=2) == 1


def test_boundary_f1_of_single_pixels_by_hand() -> None:
    # A pixel of its own is on its border with those that look at it, its left, upper and upper left neighbours: (2, 2),
    # (2, 1), (1, 2) and (1, 1) in the target. The one in the corner looks at nothing: (3, 3), (3, 4) and (4, 3).
    target, pred = torch.zeros(2, 1, 5, 5, dtype=torch.long)
    target[0, 2, 2] = pred[0, 4, 4] = 1
    # (3, 3) and (2, 2) are √2 apart; (3, 4) and (2, 2), as (3, 3) and (1, 2), √5; (3, 3) and (1, 1) √8.
    for radius, precision, recall in ((1, 0, 0), (2, 1 / 3, 1 / 4), (3, 1, 1)):
        for score, value in (("precision", precision), ("recall", recall)):
            found = boundary_f1(pred, target, 2, radius=radius, score=score, average="none")
            assert found.tolist() == nearly(value, value)
    assert boundary_f1(pred, target, 2, radius=2).item() == pytest.approx(2 / 7)


def test_per_image_counts_an_absent_class_as_found() -> None:
    target = torch.cat([HALVES, torch.zeros_like(HALVES)])
    pred = torch.cat([torch.zeros_like(HALVES), torch.zeros_like(HALVES)])
    # The border of the first image is missed, and there is none in the second; class 2 is nowhere.
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
    found = function(pred, torch.where(target == VOID, 0, target), 4, ignore_index=0, average="none", **options)
    expected = function(pred, target, 4, ignore_index=VOID, average="none", **options)
    assert math.isnan(found[0])
    assert torch.equal(found[1:], expected[1:])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_to_score(name: str) -> None:
    function, options = FUNCTIONS[name]
    for shape in ((0, 5, 5), (2, 5, 5)):
        target = torch.full(shape, VOID)
        found = function(torch.zeros_like(target), target, 3, ignore_index=VOID, **options)
        # Images in which there is nothing to find count as right where images are scored one by one.
        assert found == 1 if name == "per image" and shape[0] else found.isnan()


@pytest.mark.parametrize("radius", [1, 3, 5, 10])
def test_trimap_is_where_boundary_distance_says(radius: int) -> None:
    _, target = blobs(2, 120, 120, 5)
    near = boundary_distance(target, ignore_index=VOID) <= radius
    valid = target != VOID
    assert (valid & ~near).any()
    wrong = (target + 1) % 5
    for pred, score in ((torch.where(near, target, wrong), 1), (torch.where(near, wrong, target), 0)):
        assert trimap_iou(torch.where(valid, pred, 0), target, 5, ignore_index=VOID, radius=radius) == score


# --------------------------------------------------------------------------------------------------------- what goes in


@pytest.mark.parametrize("name", FUNCTIONS)
def test_logits_and_dtypes(name: str) -> None:
    function, options = FUNCTIONS[name]
    logits = torch.randn(2, 3, 9, 11, requires_grad=True)
    target = torch.randint(3, (2, 9, 11))
    expected = function(logits.argmax(1), target, 3, average="none", **options)
    assert not expected.requires_grad
    for pred in (logits, logits.half(), logits.softmax(1), logits.argmax(1).to(torch.uint8)):
        for dtype in (torch.uint8, torch.int16, torch.int32):
            assert torch.equal(function(pred, target.to(dtype), 3, average="none", **options), expected)
    assert torch.equal(
        function(logits[:, :1], target > 0, 2, **options), function(logits[:, 0] > 0, target > 0, 2, **options)
    )


def test_many_classes() -> None:
    # Labels beyond 16 bits, and hundreds of words of which few are used.
    pred, target = blobs(1, 12, 12, 3)
    spread = torch.where(target == VOID, VOID, target * 19_000)
    for name in ("boundary_iou", "trimap_iou", "boundary_f1"):
        function, options = FUNCTIONS[name]
        found = function(pred * 19_000, spread, 40_000, ignore_index=VOID, average="none", **options)
        expected = function(pred, target, 3, ignore_index=VOID, average="none", **options)
        assert torch.equal(found[::19_000], expected)


ZEROS = torch.zeros(1, 4, 4, dtype=torch.long)


@pytest.mark.parametrize(
    ("pred", "target", "options", "error", "message"),
    [
        (ZEROS, ZEROS[0], {}, ValueError, r"target: expected labels \[B, H, W\] of 2-D images.* target.unsqueeze\(0\)"),
        (ZEROS, ZEROS[None], {}, ValueError, r"but got int64 \[1, 1, 4, 4\].*target.squeeze\(1\)"),
        (ZEROS, ZEROS.float(), {}, TypeError, "target: expected class indices of dtype"),
        (ZEROS.tolist(), ZEROS, {}, TypeError, "pred: expected a tensor of class indices, but got list"),
        (
            ZEROS[:, :2],
            ZEROS,
            {},
            ValueError,
            r"pred: expected \[1, 4, 4\], the shape of the target, but got \[1, 2, 4\]",
        ),
        (torch.rand(1, 3, 2, 2), ZEROS, {}, ValueError, r"but got \[1, 2, 2\]; resize logits .* with F.interpolate"),
        (torch.rand(1, 2, 4, 4), ZEROS, {}, ValueError, r"pred: expected logits \[B, 3, H, W\] for num_classes=3"),
        (torch.rand(1, 4, 4), ZEROS, {}, ValueError, r"but got float32 \[1, 4, 4\]; pass .* pred.long\(\)"),
        (
            torch.rand(1, 3, 4, 4),
            ZEROS,
            {"num_classes": 2},
            ValueError,
            r"expected logits \[B, 1 or 2, H, W\] for num_classes=2, but got float32 \[1, 3, 4, 4\]",
        ),
        (ZEROS.to("meta"), ZEROS, {}, ValueError, "pred: expected device cpu, that of the target, but got meta"),
        (
            ZEROS,
            ZEROS + 7,
            {},
            ValueError,
            r"target: expected labels 0 to 2, or ignore_index=-100, but got 7 at 16 pix",
        ),
        (
            ZEROS - 1,
            ZEROS,
            {},
            ValueError,
            r"pred: expected labels 0 to 2, but got -1 at 16 pixels, first at \[0, 0, 0\]",
        ),
        (ZEROS, ZEROS, {"num_classes": 1}, ValueError, "num_classes: expected an int ≥ 2, but got 1"),
        (ZEROS, ZEROS, {"num_classes": 2.0}, TypeError, "num_classes: expected an int, but got 2.0"),
        (ZEROS, ZEROS, {"ignore_index": None}, TypeError, "ignore_index: expected an int, but got None"),
        (
            ZEROS,
            ZEROS,
            {"average": "micro"},
            ValueError,
            r"average: expected one of \('macro', 'none'\), but got 'micro'",
        ),
        (ZEROS, ZEROS, {"radius": 0}, ValueError, "radius: expected an int ≥ 1, but got 0"),
        (ZEROS, ZEROS, {"radius": 1.5}, TypeError, "radius: expected an int, but got 1.5"),
        (ZEROS, ZEROS, {"score": "f2"}, ValueError, "score: expected one of"),
        (ZEROS, ZEROS, {"per_image": 1}, TypeError, "per_image: expected a bool, but got 1"),
        (ZEROS, ZEROS, {"validate": "never"}, TypeError, "validate: expected a bool or None, but got 'never'"),
    ],
)
def test_wrong_input(pred: Any, target: Any, options: Any, error: type[Exception], message: str) -> None:
    options = {"num_classes": 3, **options}
    with pytest.raises(error, match=message):
        boundary_f1(pred, target, **options)
    with pytest.raises(error, match=message):
        BoundaryF1(**options).update(pred, target)


@pytest.mark.parametrize("ratio", [0.0, -0.1, math.inf, math.nan, "0.02", True])
def test_wrong_ratio(ratio: Any) -> None:
    with pytest.raises(ValueError, match="ratio: expected a finite number > 0, but got"):
        BoundaryIoU(3, ratio=ratio)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_labels_out_of_range_are_void_where_nobody_looks(name: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(2, 20, 24, 4)
    wrong_pred, wrong_target, void = pred.clone(), target.clone(), target.clone()
    wrong_pred[0, 3:6, 4:9], wrong_target[1, 9:12, 2:7] = -3, 9
    void[0, 3:6, 4:9] = void[1, 9:12, 2:7] = VOID
    options = {"ignore_index": VOID, "average": "none", **options}
    found = function(wrong_pred, wrong_target, 4, validate=False, **options)
    assert torch.equal(found, function(pred, void, 4, **options))


# --------------------------------------------------------------------------------------------------------- torchmetrics


def metric_of(name: str, classes: int = 4, **more: Any) -> Metric:
    function, options = FUNCTIONS[name]
    return CLASSES[function](classes, ignore_index=VOID, **options, **more)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of several lengths and sizes."""
    sizes = [(2, 20, 24), (1, 15, 30), (3, 20, 24), (1, 9, 9)]
    return [blobs(*size, 4, seed=seed) for seed, size in enumerate(sizes)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("average", ["macro", "none"])
def test_batch_by_batch_is_the_whole(name: str, average: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(7, 20, 24, 4)
    metric = metric_of(name, average=average)
    steps = [metric(pred[i : i + 3], target[i : i + 3]) for i in range(0, 7, 3)]
    whole = function(pred, target, 4, ignore_index=VOID, average=average, **options)
    assert torch.equal(metric.compute(), whole)
    assert torch.equal(steps[1], function(pred[3:6], target[3:6], 4, ignore_index=VOID, average=average, **options))
    metric.reset()
    metric.update(pred[:1], target[:1])
    assert torch.equal(
        metric.compute(), function(pred[:1], target[:1], 4, ignore_index=VOID, average=average, **options)
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_copies_keep_the_counts(name: str) -> None:
    first, second = batches()[:2]
    whole, metric, loaded = metric_of(name), metric_of(name), metric_of(name)
    for batch in (first, second):
        whole.update(*batch)
    metric.update(*first)
    for each in (metric, loaded):
        each.persistent(True)
    loaded.load_state_dict(metric.state_dict())
    for copied in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.to("cpu"), loaded):
        copied.update(*second)
        assert torch.equal(copied.compute(), whole.compute())


def test_a_collection_shares_counts_only_where_they_are_the_same() -> None:
    scores = {score: BoundaryF1(4, ignore_index=VOID, score=score) for score in ("f1", "precision", "recall")}
    radii = {f"f1_{r}": BoundaryF1(4, ignore_index=VOID, radius=r) for r in (3, 5)}
    trimaps = {f"trimap_{r}": TrimapIoU(4, ignore_index=VOID, radius=r) for r in (1, 3)}
    collection = MetricCollection({**scores, **radii, **trimaps, "iou": BoundaryIoU(4, ignore_index=VOID)})
    # The first batch has nothing that could tell them apart.
    flat = torch.zeros(1, 12, 12, dtype=torch.long)
    collection.update(flat, flat)
    assert sorted(map(len, collection.compute_groups.values())) == [1, 1, 1, 1, 1, 3]
    for batch in batches():
        collection.update(*batch)
    for name, value in collection.compute().items():
        alone = collection[name].clone()
        alone.reset()
        alone.update(flat, flat)
        for batch in batches():
            alone.update(*batch)
        assert torch.equal(alone.compute(), value), name


def one_rank(rank: int, world: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    collection = MetricCollection({name.replace(" ", "_"): metric_of(name) for name in FUNCTIONS})
    for batch in batches()[rank::world]:
        collection.update(*batch)
    torch.save(collection.compute(), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_ranks_compute_the_metrics_of_all_images(tmp_path: Path) -> None:
    mp.spawn(one_rank, (2, str(tmp_path)), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name in FUNCTIONS:
        metric = metric_of(name)
        for batch in batches():
            metric.update(*batch)
        for values in ranks:
            assert torch.equal(values[name.replace(" ", "_")], metric.compute()), name


def test_functions_do_without_torchmetrics() -> None:
    code = (
        "import sys; sys.modules['torchmetrics'] = None;"
        "import torch; from edgeloss import metrics;"
        "y = torch.arange(4).view(1, 2, 2); print(metrics.boundary_f1(y, y, 4).item())\n"
        "try: metrics.BoundaryF1\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "1.0",
        'edgeloss.metrics.BoundaryF1 needs torchmetrics: pip install "edgeloss[metrics]"',
    ]
