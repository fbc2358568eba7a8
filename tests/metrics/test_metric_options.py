"""The options that all boundary metrics share, the forms of labels that they read, and what they warn of."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as reference
from slow_metrics import CLASSES, VOID, blobs
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from edgeloss.metrics import (
    AverageSurfaceDistance,
    BoundaryF1,
    BoundaryIoU,
    BoundaryScores,
    HausdorffDistance,
    SurfaceDice,
    TrimapIoU,
    average_surface_distance,
    boundary_f1,
    boundary_iou,
    hausdorff_distance,
    trimap_iou,
)

FUNCTIONS = list(CLASSES)
SETS = [function for function in FUNCTIONS if function is not hausdorff_distance]  # whose counts add up
every = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


def equal(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.nan_to_num(-1), second.nan_to_num(-1))


# ---------------------------------------------------------------------------------------------- averages and reductions


@every
@pytest.mark.parametrize("average", ["macro", "weighted", "none", None])
def test_scores_of_images(function: Any, average: Any) -> None:
    pred, target = blobs(5, 20, 24, 4)
    shared: dict[str, Any] = {"ignore_index": VOID, "average": average}
    images = function(pred, target, 4, reduction="none", **shared)
    alone = [function(pred[i : i + 1], target[i : i + 1], 4, **shared) for i in range(5)]
    assert equal(images, torch.stack(alone))
    metric = CLASSES[function](4, reduction="none", **shared)
    mean = CLASSES[function](4, reduction="images", **shared)
    for part in (slice(2), slice(2, 5)):
        metric.update(pred[part], target[part])
        mean.update(pred[part], target[part])
    assert equal(metric.compute(), images)
    expected = function(pred, target, 4, reduction="images", **shared)
    assert equal(mean.compute(), expected)
    if average in ("none", None):  # the mean over images of each class, over the images in which it occurs
        torch.testing.assert_close(expected, images.nanmean(0), rtol=1e-6, atol=0, equal_nan=True)
        macro = function(pred, target, 4, ignore_index=VOID, reduction="images")
        torch.testing.assert_close(macro, images.nanmean(0).nanmean(), rtol=1e-6, atol=0)


@every
def test_the_order_of_images_does_not_matter(function: Any) -> None:
    pred, target = blobs(9, 12, 14, 4)
    order = torch.tensor([4, 2, 8, 0, 1, 7, 3, 6, 5])
    shared: dict[str, Any] = {"ignore_index": VOID, "reduction": "images"}
    assert equal(function(pred, target, 4, **shared), function(pred[order], target[order], 4, **shared))


@pytest.mark.parametrize("function", SETS)
def test_averages_over_classes(function: Any) -> None:
    pred, target = blobs(3, 20, 24, 5)
    target[target == 3], pred[pred == 3] = 2, 2
    shared: dict[str, Any] = {"ignore_index": VOID, "reduction": "set"}
    scores = function(pred, target, 5, average="none", **shared)
    assert scores[3].isnan()
    torch.testing.assert_close(function(pred, target, 5, **shared), scores.nanmean(), rtol=1e-6, atol=0)
    # Weights are what the target has of each class, so the weighted mean is that of the others without class 3.
    weighted = function(pred, target, 5, average="weighted", **shared)
    low, high = scores.nan_to_num(math.inf).min(), scores.nan_to_num(-math.inf).max()
    assert low < weighted < high
    assert weighted != scores.nanmean()
    micro = function(pred, target, 5, average="micro", **shared)
    assert low < micro < high
    # A further class that no pixel has changes nothing.
    for average in ("macro", "micro", "weighted"):
        assert equal(
            function(pred, target, 6, average=average, **shared), function(pred, target, 5, average=average, **shared)
        )


@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "none"])
def test_averages_are_those_of_torchmetrics(average: Any) -> None:
    # All pixels are in the band: Boundary IoU is IoU.
    pred, target = blobs(2, 20, 24, 4)
    own = boundary_iou(pred, target, 4, ignore_index=VOID, ratio=10, average=average)
    theirs = reference.multiclass_jaccard_index(
        pred, target, 4, ignore_index=VOID, average=average, zero_division=math.nan
    )
    torch.testing.assert_close(own, theirs, rtol=1e-6, atol=0)


@every
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "none"])
def test_without_the_background(function: Any, average: Any) -> None:
    if function is hausdorff_distance and average == "micro":
        return  # an error, which another test covers
    pred, target = blobs(2, 20, 24, 4)
    shared: dict[str, Any] = {"ignore_index": VOID, "average": average}
    actual = function(pred, target, 4, include_background=False, **shared)
    scores = function(pred, target, 4, ignore_index=VOID, average="none")
    if average == "none":
        assert math.isnan(actual[0])
        assert torch.equal(actual[1:], scores[1:])
    elif average == "macro":
        torch.testing.assert_close(actual, scores[1:].nanmean(), rtol=1e-6, atol=0)
    else:
        assert actual != function(pred, target, 4, **shared)
    metric = CLASSES[function](4, include_background=False, **shared)
    assert equal(metric(pred, target), actual)
    with pytest.raises(ValueError, match="include_background: expected True with multilabel=True, but got False"):
        CLASSES[function](4, include_background=False, multilabel=True)


@every
def test_several_labels_to_ignore(function: Any) -> None:
    pred, target = blobs(2, 20, 24, 4)
    several = target.clone()
    several[:, ::2][target[:, ::2] == VOID] = -1
    assert (several == -1).any()
    shared: dict[str, Any] = {"average": "none"}
    expected = function(pred, target, 4, ignore_index=VOID, **shared)
    for labels in ((VOID, -1), [-1, VOID], (-1, VOID, 77)):
        assert equal(function(pred, several, 4, ignore_index=labels, **shared), expected)
        assert equal(CLASSES[function](4, ignore_index=labels, **shared)(pred, several), expected)
    with pytest.raises(TypeError, match=r"ignore_index: expected an int, a list of them or None, but got \(255"):
        function(pred, target, 4, ignore_index=(VOID, "a"))


@every
def test_images_without_pixels(function: Any) -> None:
    for size in ((0, 6, 8), (2, 0, 8), (2, 3, 6, 0)):
        labels = torch.zeros(size, dtype=torch.long)
        assert function(labels, labels, 3, ignore_index=VOID).isnan()
        assert CLASSES[function](3, ignore_index=VOID)(labels, labels).isnan()


@every
def test_multilabel_reductions(function: Any) -> None:
    maps = [blobs(3, 12, 14, 2, seed=seed) for seed in range(2)]
    pred, target = (torch.stack(each, 1) for each in zip(*maps, strict=True))
    shared: dict[str, Any] = {"ignore_index": VOID, "average": "none", "reduction": "none"}
    scores = function(pred, target, 2, multilabel=True, **shared)
    for c, own in enumerate(maps):
        assert equal(scores[:, c], function(*own, 2, **shared)[:, 1])


# --------------------------------------------------------------------------------------------------------- what is read


@every
@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint32", "uint64", "int16", "uint8"])
def test_labels_of_any_integer_dtype(function: Any, dtype: str) -> None:
    pred, target = blobs(1, 12, 14, 4)
    target[target == VOID] = 100
    converted = [torch.from_numpy(labels.numpy().astype(dtype)) for labels in (pred, target)]
    assert equal(function(*converted, 4, ignore_index=100), function(pred, target, 4, ignore_index=100))


@every
def test_labels_with_a_channel(function: Any) -> None:
    pred, target = blobs(2, 12, 14, 4)
    logits = torch.nn.functional.one_hot(pred, 4).movedim(-1, 1).float()
    expected = function(pred, target, 4, ignore_index=VOID)
    both = pred[:, None], target[:, None]
    for given in (both, (pred, both[1]), (both[0], target), (logits, both[1]), (logits[:, :, None], both[1])):
        assert equal(function(*given, 4, ignore_index=VOID), expected)
    volume = [labels[None] for labels in (pred, target)]
    expected = function(*volume, 4, ignore_index=VOID)
    assert equal(function(*(labels[:, None] for labels in volume), 4, ignore_index=VOID), expected)


@every
def test_one_hot_labels_are_an_error(function: Any) -> None:
    labels = torch.randint(3, (2, 6, 8))
    one_hot = torch.nn.functional.one_hot(labels, 3).movedim(-1, 1)
    with pytest.raises(
        ValueError, match=r"target: expected labels .* but got one-hot labels \[2, 3, 6, 8\]; pass .*as_labe"
    ):
        function(one_hot, one_hot, 3)
    with pytest.raises(
        ValueError, match=r"pred: expected labels .* one-hot labels \[2, 3, 6, 8\]; pass pred.long\(\).argmax\(1\)"
    ):
        function(one_hot, labels, 3)
    channels_last = one_hot.movedim(1, -1)
    with pytest.raises(
        ValueError, match=r"target: .* one-hot labels \[2, 6, 8, 3\]; pass target.long\(\).argmax\(-1\)"
    ):
        function(channels_last, channels_last, 3)
    of_volumes = torch.nn.functional.one_hot(torch.randint(3, (2, 4, 6, 8)), 3).movedim(-1, 1)
    with pytest.raises(ValueError, match=r"target: expected .* \[2, 3, 4, 6, 8\]; for one-hot labels pass .*as_labels"):
        function(of_volumes, of_volumes, 3)
    volumes = torch.randint(2, (2, 3, 6, 8))  # of depth 3
    function(volumes, volumes, 3)


@every
def test_probabilities_and_nan_are_errors(function: Any) -> None:
    target = torch.randint(2, (2, 6, 8))
    probabilities = torch.rand(2, 1, 6, 8)
    message = (
        "pred: expected logits, label 1 where they are > 0, but got values from .* pass probabilities > 0.5, or logi"
    )
    with pytest.raises(ValueError, match=message):
        function(probabilities, target, 2)
    with pytest.raises(ValueError, match=message):
        function(probabilities, target[:, None], 1, multilabel=True)
    function(probabilities - 0.5, target, 2)
    function(probabilities, target, 2, validate=False)
    for channels in (1, 2):
        logits = torch.randn(2, channels, 6, 8)
        logits[1, 0, 2, 3] = math.nan
        with pytest.raises(
            ValueError, match=r"pred: expected logits without nan on valid pixels, but got nan at \[1, 2, 3"
        ):
            function(logits, target, 2)
        void = target.clone()
        void[1, 2, 3] = VOID
        function(logits, void, 2, ignore_index=VOID)  # not read there


# ---------------------------------------------------------------------------------------------------------- the classes


def updated(metric: Metric, parts: int = 1) -> Metric:
    pred, target = blobs(2, 16, 18, 4)
    for _ in range(parts):
        metric.update(pred, target)
    return metric


ALL: list[Any] = [*CLASSES.values(), BoundaryScores]


@pytest.mark.parametrize("metric_class", [*CLASSES.values(), pytest.param(BoundaryScores, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_set_dtype_changes_no_value(metric_class: Any) -> None:
    options: dict[str, Any] = {"ignore_index": VOID, "average": "none"}
    pred, target = torch.randint(4, (2, 1, 256, 256))
    metric, other = (metric_class(4, **options) for _ in range(2))
    metric = metric.set_dtype(torch.float16)
    for each in (metric, other):
        for _ in range(3):
            each.update(pred, target)
    values, expected = metric.compute(), other.compute()
    if metric_class is BoundaryScores:
        values, expected = (torch.stack(list(each.values())) for each in (values, expected))
    assert equal(values, expected)


@pytest.mark.parametrize("metric_class", ALL)
@pytest.mark.parametrize("average", ["macro", "none"])
@pytest.mark.parametrize("reduction", ["images", "none"])
def test_plot(metric_class: Any, average: Any, reduction: Any) -> None:
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("agg")
    metric = updated(metric_class(4, ignore_index=VOID, average=average, reduction=reduction))
    figure, axes = metric.plot()
    assert figure.axes
    assert axes is not None
    metric.plot([metric.compute()] * 3)
    updated(MetricCollection({name: metric_class(4, ignore_index=VOID) for name in "ab"})).plot(together=True)
    pyplot.close("all")


@pytest.mark.parametrize("metric_class", ALL)
@pytest.mark.parametrize("reduction", ["images", None])
def test_inference_mode(metric_class: Any, reduction: Any) -> None:
    options: dict[str, Any] = {"ignore_index": VOID}
    if reduction:
        options["reduction"] = reduction
    with torch.inference_mode():
        metric = updated(metric_class(4, **options))
        inside = metric.compute()
        loaded = metric_class(4, **options)
        for each in (metric, loaded):
            each.persistent(True)
        loaded.load_state_dict(metric.state_dict())
    updated(metric)
    updated(loaded)
    both, again = metric.compute(), loaded.compute()
    twice = updated(metric_class(4, **options), 2).compute()
    if metric_class is not BoundaryScores:
        inside, both, again, twice = ({"": each} for each in (inside, both, again, twice))
    for name, value in twice.items():
        assert torch.equal(both[name], value)
        assert torch.equal(again[name], value)
        torch.testing.assert_close(inside[name], value)  # the same images once


@pytest.mark.parametrize("metric_class", CLASSES.values())
def test_nothing_was_counted(metric_class: Any) -> None:
    for reduction, shape in (("images", ()), ("none", (0,))):
        metric = metric_class(4, reduction=reduction)
        with pytest.warns(UserWarning, match="before the ``update``"):
            value = metric.compute()
        assert value.shape == shape
        assert value.isnan().all()


# ------------------------------------------------------------------------------------------------------------ void rims


def rims(width: int, size: int = 24) -> Tensor:
    """Return labels of two objects of class 1 in class 0, with a rim of void around them."""
    target = torch.zeros(1, size, size, dtype=torch.long)
    target[:, 5:12, 5:12] = target[:, 13:20, 13:20] = 1
    inside = torch.nn.functional.max_pool2d(target[:, None].float(), 2 * (width // 2) + 1, 1, width // 2)[:, 0] > 0
    outside = torch.nn.functional.max_pool2d(
        1 - target[:, None].float(), 2 * ((width + 1) // 2) - 1, 1, (width + 1) // 2 - 1
    )
    target[inside & (outside[:, 0] > 0)] = VOID
    return target


@pytest.mark.parametrize("function", [boundary_f1, trimap_iou])
def test_a_rim_that_hides_all_borders_warns(function: Any) -> None:
    target = rims(4)
    pred = torch.where(target == VOID, 0, target)
    message = r"no border of the target is next to another class.*pass across_void=k"
    with pytest.warns(UserWarning, match=f"{function.__name__}: {message}"):
        assert function(pred, target, 2, ignore_index=VOID).isnan()
    metric = CLASSES[function](2, ignore_index=VOID)
    for _ in range(2):
        with pytest.warns(UserWarning, match=message):
            metric(pred, target)
    metric.update(0 * pred, 0 * target)
    with pytest.warns(UserWarning, match=message):
        metric.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One image with a border, one class alone and no void: a score, or nothing to score.
        plain = torch.where(target == VOID, 0, target)
        metric.update(plain, plain)
        assert metric.compute() == 1
        function(0 * plain, torch.where(target == 1, 0, target), 2, ignore_index=VOID)
        function(0 * plain, 0 * plain, 2, ignore_index=VOID)


def test_all_scores_warn_once_of_rims() -> None:
    target = rims(4)
    metric = BoundaryScores(2, ignore_index=VOID)
    with pytest.warns(UserWarning, match="^boundary_f1, trimap_iou: no border of the target") as warned:
        metric(torch.where(target == VOID, 0, target), target)
    assert len(warned) == 1


@every
@pytest.mark.parametrize("width", [2, 3, 4])
def test_borders_across_void(function: Any, width: int) -> None:
    target = rims(width)
    assert (target == VOID).any()
    pred = torch.where(target == VOID, 0, target)
    shared: dict[str, Any] = {"ignore_index": VOID, "average": "none"}
    best = 0.0 if function in (hausdorff_distance, average_surface_distance) else 1.0
    perfect = function(pred, target, 2, across_void=width, **shared)
    assert perfect.tolist() == [best, best]
    assert CLASSES[function](2, across_void=width, **shared)(pred, target).tolist() == [best, best]
    moved = pred.roll(3, -1)
    worse = function(moved, target, 2, across_void=width, **shared)
    assert (worse > best if best == 0 else worse < best).all()


def test_what_is_continued_across_void() -> None:
    row = torch.tensor([0, 0, VOID, VOID, VOID, 1, 1, VOID, VOID, VOID, VOID, 2, 2, 2])
    target = row.expand(1, 12, -1).clone()
    pred = torch.where(target == VOID, 0, target)
    pred[..., :2] = 2

    from edgeloss.metrics.maps import continue_labels

    maps = torch.stack([pred, target]).masked_fill(target == VOID, -1)
    across = continue_labels(maps, 3)
    # Three pixels of void become one class and the other; four stay.
    assert across[1, 0, 5].tolist()[:2] == [0, 0]
    assert across[1, 0, 5, 2] == 0
    assert across[1, 0, 5, 3] in (0, 1)
    assert across[1, 0, 5, 4:7].tolist() == [1, 1, 1]
    assert across[1, 0, 5, 7:11].tolist() == [-1] * 4
    swapped = torch.where(across[1] == 0, 2, across[1])
    assert torch.equal(across[0, ..., :5], swapped[..., :5])  # both maps take labels from the same pixels
    assert not (continue_labels(maps, 4) < 0).any()
    # A wide region stays as it is, up to its outline.
    hole = torch.zeros(2, 1, 20, 20, dtype=torch.int16)
    hole[..., 5:15, 5:15] = -1
    assert torch.equal(continue_labels(hole, 9), hole)
    assert (continue_labels(hole, 10) == 0).all()
    nothing = torch.full_like(hole, -1)
    assert torch.equal(continue_labels(nothing, 30), nothing)


def test_across_void_in_volumes_and_multilabel() -> None:
    target = rims(3)[0].expand(1, 6, -1, -1).clone()
    pred = torch.where(target == VOID, 0, target)
    assert boundary_f1(pred, target, 2, ignore_index=VOID, across_void=3) == 1
    flat = target[:, 0]
    labels = torch.stack([flat, torch.where(flat == VOID, VOID, 1 - flat)], 1)
    for c in range(2):
        own = boundary_f1(labels[:, c].where(flat != VOID, 0), labels[:, c], 2, ignore_index=VOID, across_void=3)
        assert own == 1
    guess = torch.where(labels == VOID, 0, labels)
    assert boundary_f1(guess, labels, 2, ignore_index=VOID, across_void=3, multilabel=True) == 1


@every
def test_wrong_shared_options(function: Any) -> None:
    maps = torch.zeros(2, 1, 4, 4, dtype=torch.long)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"across_void": -1}, ValueError, "across_void: expected an int ≥ 0, but got -1"),
        ({"across_void": 1.5}, TypeError, "across_void: expected an int, but got 1.5"),
        ({"reduction": "mean"}, ValueError, "reduction: expected one of"),
        ({"average": "all"}, ValueError, "average: expected one of"),
        ({"include_background": 0}, TypeError, "include_background: expected a bool, but got 0"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            function(*maps, 2, **options)
        with pytest.raises(error, match=message):
            CLASSES[function](2, **options)


# ------------------------------------------------------------------------------------------------------------- one pass


@pytest.mark.parametrize("size", [(20, 24), (6, 9, 8)])
@pytest.mark.parametrize("options", [{}, {"reduction": "images"}, {"average": "none", "convention": "monai"}], ids=str)
def test_all_scores_are_those_of_each(size: tuple[int, ...], options: dict[str, Any]) -> None:
    spacing = None if len(size) == 2 else (2.0, 1.0, 1.0)
    given: dict[str, Any] = {"ignore_index": VOID, "spacing": spacing, **options}
    radii = 1, 5, 21  # windows that are looked at, and a larger one
    scores = BoundaryScores(4, radii=radii, **given)
    convention = given.pop("convention", "surface-distance")
    of_surfaces = {**given, "convention": convention}
    unit = "px" if spacing is None else ""
    alone: dict[str, Metric] = {
        "boundary_iou": BoundaryIoU(4, **given),
        **{f"boundary_f1_{r}{unit}": BoundaryF1(4, radius=r, **given) for r in radii},
        f"trimap_iou_3{unit}": TrimapIoU(4, radius=3, **given),
        **{f"hausdorff_distance_{p}": HausdorffDistance(4, percentile=p, **of_surfaces) for p in (95, 100)},
        "average_surface_distance": AverageSurfaceDistance(4, **of_surfaces),
        **{f"surface_dice_{t}{unit}": SurfaceDice(4, tolerance=t, **of_surfaces) for t in (1, 2)},
    }
    for seed in range(2):
        pred, target = blobs(2, *size, 4, seed=seed)
        step = scores(pred, target)
        for name, metric in alone.items():
            assert equal(metric(pred, target), step[name]), name
    values = scores.compute()
    assert list(values) == list(alone)
    for name, metric in alone.items():
        assert equal(metric.compute(), values[name]), name
    restored = pickle.loads(pickle.dumps(scores)).compute()
    assert all(equal(restored[name], value) for name, value in values.items())
    assert scores.left_out.tolist() == alone["hausdorff_distance_95"].left_out.tolist()
    scores.reset()
    pred, target = np.zeros((2, 1, *size), dtype=np.int64)
    scores.update(torch.from_numpy(pred), torch.from_numpy(target))
    assert scores.compute()["boundary_f1_1" + unit].isnan().all()


def test_wrong_options_of_all_scores() -> None:
    for name in ("radii", "trimap_radii", "percentiles", "tolerances"):
        with pytest.raises(TypeError, match=rf"{name}: expected a list of numbers, but got 3; pass \[3\]"):
            BoundaryScores(4, **{name: 3})
        with pytest.raises(TypeError, match=rf"{name}: expected a list of numbers, .* pass {name}.tolist\(\)"):
            BoundaryScores(4, **{name: torch.tensor([3])})
        with pytest.raises((TypeError, ValueError), match=r"expected a.* but got '3'"):
            BoundaryScores(4, **{name: ["3"]})
    with pytest.raises(ValueError, match=r"reduction: expected one of .* but got 'set'"):
        BoundaryScores(4, reduction="set")
    with pytest.warns(UserWarning, match="ignore_index: 2, 3 are among the 4 classes: .* do not count$"):
        BoundaryScores(4, ignore_index=[2, 3])
    with pytest.warns(UserWarning, match="ignore_index: 0 is one of the 4 classes") as caught:
        BoundaryScores(4, ignore_index=0)
    assert len(caught) == 1
