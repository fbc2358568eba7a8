"""The boundary metrics: values against slow versions and by hand, what they accept, and errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from slow_metrics import CLASSES, FUNCTIONS, VOID, blobs, slow_scores
from torch import Tensor

from edgeloss.metrics import BoundaryF1, BoundaryIoU, boundary_f1, boundary_iou, counts, trimap_iou


def assert_equals_slow_version(function: Any, pred: Tensor, target: Tensor, classes: int, options: Any) -> None:
    expected = torch.tensor(slow_scores(function, pred, target, classes, **options), dtype=torch.float32)
    options, pred = {"ignore_index": VOID, **options}, torch.where(target == VOID, 77, pred)  # not read there
    actual = function(pred, target, classes, average="none", **options)
    torch.testing.assert_close(actual, expected.squeeze(), rtol=1e-6, atol=1e-7, equal_nan=True)
    macro = function(pred, target, classes, **options)
    torch.testing.assert_close(macro, expected.nanmean(), rtol=1e-6, atol=1e-7, equal_nan=True)


# One pixel, lines, images smaller than their windows, odd sizes; classes in one, two and three words of bits.
SIZES = [(1, 1, 2), (1, 17, 3), (13, 1, 3), (2, 9, 2), (6, 50, 11), (31, 26, 3), (33, 40, 11), (16, 18, 70)]
SIZES += [(12, 14, 150), (2, 9, 12, 3), (5, 7, 6, 2), (9, 14, 11, 4)]
OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *((boundary_iou, {"ratio": ratio}) for ratio in (0.005, 0.02, 0.15)),
    *((trimap_iou, {"radius": radius}) for radius in (1, 3, 10, 10**9)),
    *((boundary_f1, {"radius": radius}) for radius in (1, 5, 21, 10**9)),
    *((boundary_f1, {"radius": 2, "score": score}) for score in ("precision", "recall")),
    *((boundary_f1, {"radius": 1, option: True}) for option in ("class_agnostic", "per_image")),
    (boundary_f1, {"radius": 3, "class_agnostic": True, "per_image": True, "score": "precision"}),
]


# A third of their pairs at every change, in which each size and each of the options is.
PAIRS = [
    pytest.param(*call, size, marks=[] if (s + o) % 3 == 0 else pytest.mark.slow)
    for s, size in enumerate(SIZES)
    for o, call in enumerate(OPTIONS)
]


@pytest.mark.parametrize(
    ("function", "options", "size"), PAIRS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_equals_slow_version(function: Any, options: Any, size: tuple[int, ...]) -> None:
    assert_equals_slow_version(function, *blobs(3, *size), size[-1], options)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        *((boundary_iou, {"ratio": ratio}) for ratio in (0.005, 0.1)),
        *((trimap_iou, {"radius": radius}) for radius in (0.75, 3)),
        (boundary_f1, {"radius": 1}),
        (boundary_f1, {"radius": 3.5, "per_image": True}),
        (boundary_f1, {"radius": 7}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_spacing_equals_slow_version(function: Any, options: Any) -> None:
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


def test_boundary_f1_of_single_pixels_by_hand() -> None:
    # The border of a single pixel is that pixel and its left, upper and upper-left neighbors: (2, 2), (2, 1), (1, 2)
    # and (1, 1) in the target. A pixel in the lower-right corner has no lower neighbors: (3, 3), (3, 4) and (4, 3).
    target, pred = torch.zeros(2, 1, 5, 5, dtype=torch.long)
    target[0, 2, 2] = pred[0, 4, 4] = 1
    # (3, 3) and (2, 2) are √2 apart; (3, 4) and (2, 2), as (3, 3) and (1, 2), √5; (3, 3) and (1, 1) √8.
    for radius, precision, recall in ((1, 0, 0), (2, 1 / 3, 1 / 4), (3, 1, 1)):
        for score, value in (("precision", precision), ("recall", recall)):
            actual = boundary_f1(pred, target, 2, radius=radius, score=score, average="none")
            assert actual.tolist() == pytest.approx([value, value])
    assert boundary_f1(pred, target, 2, radius=2).item() == pytest.approx(2 / 7)


def test_per_image_counts_an_absent_class_as_found() -> None:
    target, pred = torch.zeros(2, 2, 4, 8, dtype=torch.long)
    target[0, :, 4:] = 1
    # The border of the first image is missed, the second has none; class 2 is absent.
    assert boundary_f1(pred, target, 3, average="none").tolist() == pytest.approx([0, 0, math.nan], nan_ok=True)
    assert boundary_f1(pred, target, 3, average="none", per_image=True).tolist() == [1 / 2, 1 / 2, 1]
    assert boundary_f1(pred, target, 3, score="precision", per_image=True) == 1  # nothing that it draws is wrong


@pytest.mark.parametrize("name", ["boundary_iou", "trimap_iou", "boundary_f1", "per image"])
def test_an_ignored_class_does_not_occur(name: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(2, 20, 24, 4)
    target[target == 0] = VOID
    with pytest.warns(UserWarning, match="ignore_index: 0 is one of the 4 classes: .* pass include_background=False"):
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


# ----------------------------------------------------------------------------------------------------------- the inputs


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [(9, 11), (4, 5, 6)])
def test_logits_and_dtypes(name: str, size: tuple[int, ...]) -> None:
    function, options = FUNCTIONS[name]
    logits = torch.randn(2, 3, *size, requires_grad=True)
    target = torch.randint(3, (2, *size))
    expected = function(logits.argmax(1), target, 3, average="none", **options)
    assert not expected.requires_grad
    assert torch.equal(function(logits.argmax(1), target, 3, average="none", ignore_index=None, **options), expected)
    for pred in (logits, logits.half(), logits.softmax(1), logits.argmax(1).to(torch.uint8)):
        for dtype in (torch.uint8, torch.int16, torch.int32):
            assert torch.equal(function(pred, target.to(dtype), 3, average="none", **options), expected)
    assert torch.equal(
        function(logits[:, :1], target > 0, 2, **options), function(logits[:, 0] > 0, target > 0, 2, **options)
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_slice_is_scored_as_an_image(name: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(2, 24, 31, 3)
    slices = (
        pred,
        pred[:, None],
        pred[:, None, None],
        torch.nn.functional.one_hot(pred, 3).movedim(-1, 1).float()[:, :, None],
    )
    expected = function(pred, target, 3, ignore_index=VOID, **options)
    for labels in (target, target[:, None], target[:, None, None]):
        for of_slice in slices:
            assert function(of_slice, labels, 3, ignore_index=VOID, **options) == expected


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "class-agnostic"])
@pytest.mark.parametrize("size", [(9, 11), (4, 5, 6)])
def test_multilabel_scores_are_those_of_each_class_by_itself(name: str, size: tuple[int, ...]) -> None:
    function, options = FUNCTIONS[name]
    maps = [blobs(2, *size, 2, seed=seed) for seed in range(3)]
    pred, target = (torch.stack(each, 1) for each in zip(*maps, strict=True))
    given: dict[str, Any] = {"ignore_index": VOID, "multilabel": True, **options}
    scores = function(pred, target, 3, average="none", **given)
    for c, (own_pred, own_target) in enumerate(maps):
        expected = function(own_pred, own_target, 2, average="none", ignore_index=VOID, **options)[1]
        torch.testing.assert_close(scores[c], expected, rtol=0, atol=0, equal_nan=True)
    logits = torch.where(pred > 0, 0.5, -3.0)
    assert torch.equal(function(logits, target, 3, **given), scores.nanmean())
    assert torch.equal(function(pred > 0, target, 3, **given), scores.nanmean())
    metric = CLASSES[function](3, average="none", **given)
    for i in range(2):
        metric.update(pred[i : i + 1], target[i : i + 1])
    torch.testing.assert_close(metric.compute(), scores, equal_nan=True)


def test_counting_of_gpus_is_that_of_cpus() -> None:
    labels = torch.randint(-1, 5, (3, 40), dtype=torch.int16)
    scattered = torch.zeros(3, 6, dtype=torch.int64)
    counts._add_ones(scattered, labels.long() + 1)
    assert torch.equal(scattered[:, 1:], counts._count(labels, 5))
    assert counts._count(labels[:0], 5).shape == (0, 5)


def test_many_classes() -> None:
    # Labels beyond 16 bits, and hundreds of words with few bits set.
    pred, target = blobs(1, 12, 12, 3)
    spread = torch.where(target == VOID, -1, target * 19_000)
    for name in ("boundary_iou", "trimap_iou", "boundary_f1"):
        function, options = FUNCTIONS[name]
        actual = function(pred * 19_000, spread, 40_000, ignore_index=-1, average="none", **options)
        expected = function(pred, target, 3, ignore_index=VOID, average="none", **options)
        assert torch.equal(actual[::19_000], expected)


ZEROS, LOGITS = torch.zeros(1, 4, 4, dtype=torch.long), torch.rand(1, 3, 4, 4)
# Prediction, target, options, and the error.
WRONG: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (ZEROS, ZEROS[0], {}, ValueError, r"target: expected \[B, H, W\] or \[B, D, H, W\].* target.unsqueeze\(0"),
    (ZEROS, ZEROS[None, [0, 0]], {}, ValueError, r"pred: expected \[1, 2, 4, 4\], the shape of the target"),
    (
        ZEROS,
        ZEROS[None, None][:, [0, 0]],
        {},
        ValueError,
        r"got \[1, 2, 1, 4, 4\].*as_labels.*, or multilabel",
    ),
    (LOGITS, ZEROS[:, None].expand(-1, 2, -1, -1), {}, ValueError, r"pred: expected logits \[B, 3, D, H, W\] for num"),
    (ZEROS, ZEROS.float(), {}, TypeError, "target: expected class indices of dtype"),
    (ZEROS.tolist(), ZEROS, {}, TypeError, "pred: expected a tensor of class indices, but got list"),
    (ZEROS[:, :2], ZEROS, {}, ValueError, r"pred: expected \[1, 4, 4\], the shape of the target, but got \[1, 2, 4"),
    (LOGITS[..., :2, :2], ZEROS, {}, ValueError, r"but got \[1, 2, 2\]; resize logits .* with F.interpolate"),
    (LOGITS[:, :2], ZEROS, {}, ValueError, r"pred: expected logits \[B, 3, H, W\] for num_classes=3"),
    (LOGITS[0, :1], ZEROS, {}, ValueError, r"but got float32 \[1, 4, 4\]; pass .* pred.long\(\)"),
    (LOGITS, ZEROS, {"num_classes": 2}, ValueError, r"expected logits \[B, 1 or 2, H, W\] for num_classes=2, but got"),
    (ZEROS.to("meta"), ZEROS, {}, ValueError, "pred: expected device cpu, that of the target, but got meta"),
    (ZEROS, ZEROS + 7, {}, ValueError, "target: expected labels 0 to 2, or ignore_index=-100, but got 7 at 16 pixels"),
    (ZEROS - 1, ZEROS, {}, ValueError, r"pred: expected labels 0 to 2, but got -1 at 16 pixels, first at \[0, 0, 0"),
    (ZEROS, ZEROS, {"num_classes": 1}, ValueError, "num_classes: expected an int ≥ 2, but got 1"),
    (ZEROS, ZEROS, {"num_classes": 2.0}, TypeError, "num_classes: expected an int, but got 2.0"),
    (
        ZEROS,
        ZEROS,
        {"ignore_index": "a"},
        TypeError,
        "ignore_index: expected an int, a list of them or None, but got 'a'",
    ),
    (ZEROS, ZEROS + 255, {"ignore_index": None}, ValueError, "target: expected labels 0 to 2, but got 255 at 16 pix"),
    (ZEROS, ZEROS, {"multilabel": True}, ValueError, r"target: expected \[B, 3, H, W\] or .* got \[1, 4, 4"),
    (
        LOGITS > 0,
        LOGITS.long() + 2,
        {"multilabel": True},
        ValueError,
        "expected labels 0 to 1, or .* got 2 at 48 pixels",
    ),
    (ZEROS, ZEROS, {"multilabel": True, "class_agnostic": True}, ValueError, "expected False with multilabel=True"),
    (
        ZEROS,
        ZEROS,
        {"include_background": False, "class_agnostic": True},
        ValueError,
        "class_agnostic: expected False with include_background=False, but got True; the borders",
    ),
    (ZEROS, ZEROS, {"multilabel": True, "num_classes": 0}, ValueError, "num_classes: expected an int ≥ 1, but got 0"),
    (
        ZEROS,
        ZEROS,
        {"average": "all"},
        ValueError,
        r"average: expected one of \('macro', 'micro', 'weighted', 'none'\), but",
    ),
    (ZEROS, ZEROS, {"radius": 0}, ValueError, "radius: expected an int ≥ 1, but got 0"),
    (ZEROS, ZEROS, {"radius": 1.5}, TypeError, "radius: expected an int, but got 1.5"),
    (
        ZEROS,
        ZEROS,
        {"radius": 1.5, "spacing": (3.0, 1.0, 1.0)},
        ValueError,
        "spacing: .*, or 2 of them, one per spatial",
    ),
    *(
        (ZEROS, ZEROS, {"spacing": spacing}, ValueError, "spacing: expected a number > 0, or")
        for spacing in (0, (1.0, -1.0), (1.0, math.nan), "1", ())
    ),
    (ZEROS, ZEROS, {"score": "f2"}, ValueError, "score: expected one of"),
    (ZEROS, ZEROS, {"per_image": 1}, TypeError, "per_image: expected a bool, but got 1"),
    (ZEROS, ZEROS, {"validate": "never"}, TypeError, "validate: expected a bool or None, but got 'never'"),
]


@pytest.mark.parametrize(("pred", "target", "options", "error", "message"), WRONG)
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
def test_unchecked_labels_out_of_range_are_void(name: str) -> None:
    function, options = FUNCTIONS[name]
    pred, target = blobs(2, 20, 24, 4)
    wrong_pred, wrong_target, void = pred.clone(), target.clone(), target.clone()
    wrong_pred[0, 3:6, 4:9], wrong_target[1, 9:12, 2:7] = -3, 9
    void[0, 3:6, 4:9] = void[1, 9:12, 2:7] = VOID
    options = {"ignore_index": VOID, "average": "none", **options}
    actual = function(wrong_pred, wrong_target, 4, validate=False, **options)
    assert torch.equal(actual, function(pred, void, 4, **options))
