"""The surface metrics: values against all pairs of elements, by hand and of other libraries; empty maps and options."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from slow_metrics import CLASSES, VOID, blobs
from surface_libraries import LIBRARIES, compare, meshmetrics, ours
from torch import Tensor

from edgeloss.metrics import (
    average_surface_distance,
    hausdorff_distance,
    surface_dice,
    surfaces,
)
from edgeloss.metrics.measure import LabelMaps
from edgeloss.metrics.surfaces import element_areas

FUNCTIONS: list[Any] = [hausdorff_distance, average_surface_distance, surface_dice]
CONVENTIONS = ("surface-distance", "monai", "medpy")
SIZES: list[tuple[tuple[int, ...], tuple[float, ...]]] = [
    ((13, 17), (1.0, 1.0)),
    ((1, 9), (1.0, 1.0)),
    ((20, 12), (0.5, 2.0)),
    ((5, 8, 7), (3.0, 1.0, 0.7)),
]


def slow_elements(labels: Any, c: int, convention: str, spacing: tuple[float, ...]) -> tuple[Any, Any]:
    """Return places and areas of the surface elements of a class, pixel by pixel."""
    dims, areas, points, weights = labels.ndim, element_areas(spacing), [], []
    framed = np.pad(labels, 1, constant_values=-1)
    for at in itertools.product(*(range(n + 1) for n in labels.shape)):
        if convention == "surface-distance":
            around = framed[tuple(slice(a, a + 2) for a in at)].ravel()
            code = int("".join(str(int(label == c)) for label in around), 2)
            if VOID not in around and 0 < code < 2**2**dims - 1:
                points.append(at)
                weights.append(areas[code])
            continue
        center = tuple(a + 1 for a in at)
        steps = itertools.product(range(dims), (-1, 1))
        beside = [tuple(a + step * (axis == i) for i, a in enumerate(center)) for axis, step in steps]
        is_inside = all(a < n for a, n in zip(at, labels.shape, strict=True)) and framed[center] == c
        if is_inside and any(framed[place] not in (c, VOID) for place in beside):
            points.append(at)
            weights.append(1.0)
    return np.array(points, dtype=float).reshape(-1, dims) * spacing, np.array(weights)


def slow_surface(pred: Any, target: Any, c: int, convention: str, spacing: tuple[float, ...]) -> dict[str, float]:
    """Return the scores of a class by the distances of all pairs of elements."""
    (p, pa), (t, ta) = (slow_elements(labels, c, convention, spacing) for labels in (pred, target))
    if not len(p) or not len(t):
        return {"hd": math.nan, "asd": math.nan, "assd": math.nan, "nsd": 0.0 if len(p) + len(t) else math.nan}
    pairs = np.linalg.norm(p[:, None] - t, axis=-1)
    sides = [(pairs.min(1), pa), (pairs.min(0), ta)]
    (pd, _), (td, _) = sides
    if convention == "medpy":
        hd = np.percentile([*pd, *td], 70)
    elif convention == "monai":
        hd = max(np.percentile(d, 70) for d in (pd, td))
    else:
        shares = [[(a[d <= each].sum() / a.sum(), each) for each in sorted(set(d))] for d, a in sides]
        hd = max(min(each for share, each in side if share >= 0.7 - 1e-12) for side in shares)
    assd = (pd @ pa + td @ ta) / (pa.sum() + ta.sum())
    nsd = (pa[pd <= 1.5].sum() + ta[td <= 1.5].sum()) / (pa.sum() + ta.sum())
    return {"hd": hd, "asd": pd @ pa / pa.sum(), "assd": assd, "nsd": nsd}


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("size", "spacing"), SIZES, ids=str)
def test_equals_all_pairs_of_elements(size: tuple[int, ...], spacing: tuple[float, ...], convention: Any) -> None:
    pred, target = blobs(3, *size, 4)
    masked = torch.where(target == VOID, VOID, pred)
    slow = [
        [slow_surface(p, t, c, convention, spacing) for c in range(4)]
        for p, t in zip(masked.numpy(), target.numpy(), strict=True)
    ]
    shared: dict[str, Any] = {"ignore_index": VOID, "convention": convention, "spacing": spacing}
    shared |= {"average": "none", "reduction": "none"}
    actual = {
        "hd": hausdorff_distance(pred, target, 4, percentile=70, **shared),
        "asd": average_surface_distance(pred, target, 4, symmetric=False, **shared),
        "assd": average_surface_distance(pred, target, 4, **shared),
        "nsd": surface_dice(pred, target, 4, tolerance=1.5, **shared),
    }
    for name, scores in actual.items():
        expected = torch.tensor([[of_class[name] for of_class in image] for image in slow], dtype=torch.float32)
        assert not expected.isnan().all()
        torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("size", "spacing"), SIZES, ids=str)
def test_transforms_of_cucim_give_the_same_distances(
    size: tuple[int, ...], spacing: tuple[float, ...], convention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stand-ins with the signatures of cuCIM and CuPy, which need a GPU: this covers all but their kernels.
    calls = []

    def distance_transform_edt(
        image: Any,
        sampling: Any = None,
        return_distances: bool = True,
        return_indices: bool = False,
        distances: Any = None,
        indices: Any = None,
        *,
        block_params: Any = None,
        float64_distances: bool = False,
    ) -> Any:
        calls.append(image.shape)
        assert float64_distances
        return ndimage.distance_transform_edt(image, sampling, return_distances, return_indices, distances, indices)

    cuda = types.SimpleNamespace(Device=contextlib.nullcontext)
    cupy = types.SimpleNamespace(ones=np.ones, asarray=np.asarray, asnumpy=np.asarray, cuda=cuda)
    for name in ("cucim", "cucim.core", "cucim.core.operations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    morphology = types.SimpleNamespace(distance_transform_edt=distance_transform_edt)
    monkeypatch.setitem(sys.modules, "cucim.core.operations.morphology", morphology)

    pred, target = blobs(3, *size, 4)
    maps = LabelMaps(torch.stack([pred, target]).masked_fill(target == VOID, -1), 4)
    expected = surfaces.surface_pairs(maps, convention, spacing)
    choose = surfaces.distances_on
    monkeypatch.setattr(surfaces, "distances_on", lambda device: choose(torch.device("cuda", 1)))
    assert choose(torch.device("cpu")) is choose(torch.device("cuda"))  # without CuPy
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert choose(torch.device("cpu")) is not choose(torch.device("cuda"))
    actual = surfaces.surface_pairs(LabelMaps(maps.y, 4), convention, spacing)
    assert set(calls) == {tuple(n + (convention == "surface-distance") for n in size)}
    for image, other in zip(actual, expected, strict=True):
        assert image.keys() == other.keys()
        for surface, of_tree in zip(itertools.chain(*image.values()), itertools.chain(*other.values()), strict=True):
            np.testing.assert_allclose(surface.distances, of_tree.distances, rtol=1e-12)
            assert surface.areas.sum() == pytest.approx(of_tree.areas.sum())


def test_by_hand() -> None:
    # A square of 2 × 2 pixels, and the same square one pixel to the right.
    target = torch.zeros(1, 6, 6, dtype=torch.long)
    target[0, 2:4, 2:4] = 1
    pred = target.roll(1, -1)
    own: dict[str, Any] = {"include_background": False}
    # Corners of either surface: 4 cut ones of length √2 / 2, and 4 along the sides of length 1. Of the prediction's,
    # the three on its right side and the middle of its left side are one pixel away.
    length, far = 4 * math.sqrt(0.5) + 4, 2 * math.sqrt(0.5) + 1 + 1
    assert average_surface_distance(pred, target, 2, **own).item() == pytest.approx(far / length)
    assert surface_dice(pred, target, 2, tolerance=0, **own).item() == pytest.approx(1 - far / length)
    assert hausdorff_distance(pred, target, 2, percentile=100, spacing=(1, 3), **own) == 3
    assert hausdorff_distance(pred, target, 2, percentile=45, spacing=(1, 3), **own) == 0  # half of it is at 0
    # Pixels: all 4 are on the surface; 2 of them are one pixel away.
    own["convention"] = "monai"
    assert average_surface_distance(pred, target, 2, **own) == 0.5
    assert surface_dice(pred, target, 2, tolerance=0.5, **own) == 0.5
    assert hausdorff_distance(pred, target, 2, percentile=75, **own) == 1
    assert hausdorff_distance(pred, target, 2, percentile=100, spacing=(1, 3), **own) == 3


def test_areas_of_elements() -> None:
    square = element_areas((2.0, 5.0))
    assert square[[0, 0b1100, 0b1010, 0b1111]].tolist() == [0, 5, 2, 0]
    assert square[0b0001] == math.hypot(2, 5) / 2
    cube = element_areas((2.0, 3.0, 5.0))
    assert (cube == cube[::-1]).all()
    assert cube[[0, 0b11110000, 0b11001100, 0b10101010]].tolist() == [0, 15, 10, 6]  # walls across the three axes
    triangle = math.hypot(15, 10, 6) / 8  # its corners are in the middles of three edges
    assert cube[0b00000001] == pytest.approx(triangle)
    assert cube[0b10000001] == pytest.approx(2 * triangle)
    assert (cube[1:-1] > 0).all()


def random_masks(seed: int) -> tuple[Any, Any, tuple[float, ...]]:
    """Return two bool masks that are not empty, and a spacing."""
    random = np.random.default_rng(seed)
    dims = 2 + seed % 2
    size = random.integers(4, 40 if dims == 2 else 16, dims).tolist()
    spacing = tuple(random.uniform(0.3, 3, dims).round(2).tolist()) if seed % 3 else (1.0,) * dims
    pred, target = blobs(1, *size, 3, seed=seed)
    masks = (pred == 1)[0].numpy(), (target == 1)[0].numpy()
    return (*masks, spacing) if masks[0].any() and masks[1].any() else random_masks(seed + 100_000)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("cases", [range(25), pytest.param(range(500), marks=pytest.mark.slow)], ids=len)
@pytest.mark.slow
def test_agrees_with_other_libraries(cases: range, library: str) -> None:
    if importlib.util.find_spec(module := library.replace("-", "_")) is None:
        pytest.skip(f"{module} is not installed; only this comparison needs it")
    for seed in cases:
        pred, target, spacing = random_masks(seed)
        assert compare(pred, target, spacing, library)[1] == [], seed


@pytest.mark.parametrize("cases", [range(40), pytest.param(range(200), marks=pytest.mark.slow)], ids=len)
def test_differs_from_meshes_as_documented(cases: range) -> None:
    """MeshMetrics measures from the middles of contour segments or triangles to anywhere on the other mesh."""
    pytest.importorskip("meshmetrics", reason="meshmetrics is not installed; pip install pymeshmetrics, for this alone")
    pairs = []
    for seed in cases:
        pred, target, spacing = random_masks(seed)
        scores = meshmetrics(pred, target, spacing), ours(pred, target, spacing, "surface-distance")
        pairs.append([[of[name] / (max(spacing) if name != "nsd2.5" else 1) for name in scores[0]] for of in scores])
    theirs, own = np.array(pairs).transpose(1, 2, 0)
    low, high = (own - theirs).min(1), (own - theirs).max(1)
    # HD95, HD and ASSD in the largest side of a pixel, and NSD: the figures of docs/conventions.md.
    assert (low > [-0.62, -0.36, -0.22, -0.09]).all()
    assert (high < [0.40, 0.34, -0.02, 0.21]).all()
    assert own.mean(1) / theirs.mean(1) == pytest.approx([0.97, 1.01, 0.88, 1.0], abs=0.01)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # MONAI passes an argument that it has deprecated
def test_areas_agree_with_monai() -> None:
    from monai.metrics.surface_dice import compute_surface_dice

    for seed in range(20):
        pred, target, spacing = random_masks(seed)
        masks = [torch.from_numpy(mask)[None] for mask in (pred, target)]
        theirs = compute_surface_dice(
            *(mask[:, None].float() for mask in masks), [1.5], include_background=True, spacing=list(spacing),
            use_subvoxels=True,
        )  # fmt: skip
        own = surface_dice(*masks, 2, tolerance=1.5, spacing=spacing, average="none")
        assert own[1].item() == pytest.approx(theirs.item(), rel=1e-6), seed


# ----------------------------------------------------------------------------------------------------------- empty maps


def with_empty() -> tuple[Tensor, Tensor]:
    """Return maps of three images: class 1 in both, in one and in none of the maps; class 2 never."""
    target = torch.zeros(3, 6, 8, dtype=torch.long)
    target[:2, 2:4, 2:6] = 1
    pred = target.clone()
    pred[1] = 0
    return pred, target


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_empty_maps(convention: Any) -> None:
    pred, target = with_empty()
    shared: dict[str, Any] = {"average": "none", "convention": convention}
    for function in (hausdorff_distance, average_surface_distance):
        scores = function(pred, target, 3, reduction="none", **shared)
        assert scores[:, 1].tolist() == pytest.approx([0, math.nan, math.nan], nan_ok=True)
        assert scores[:, 2].isnan().all()
        assert function(pred, target, 3, **shared)[1] == 0
        diagonal = function(pred, target, 3, reduction="none", empty="diagonal", spacing=(1.5, 2), **shared)
        expected = [0, math.hypot(9, 16), math.nan]
        assert diagonal[:, 1].tolist() == pytest.approx(expected, nan_ok=True)
        assert function(pred, target, 3, empty="diagonal", spacing=(1.5, 2), **shared)[1] == pytest.approx(
            expected[1] / 2
        )
        swapped = function(target, pred, 3, reduction="none", empty="diagonal", spacing=(1.5, 2), **shared)
        assert torch.equal(swapped[:, 1:], diagonal[:, 1:]) or swapped[:, 1:].isnan().any()
        assert swapped[1, 1] == diagonal[1, 1]
        metric = CLASSES[function](3, **shared)
        for i in range(3):
            metric.update(pred[i : i + 1], target[i : i + 1])
        assert metric.left_out.tolist() == [0, 1, 0]
        assert metric.compute()[1] == 0
        metric.reset()
        assert metric.left_out.tolist() == [0, 0, 0]
    scores = surface_dice(pred, target, 3, reduction="none", **shared)
    assert scores[:, 1].tolist() == pytest.approx([1, 0, math.nan], nan_ok=True)
    asd = average_surface_distance(pred, target, 3, symmetric=False, empty="diagonal", reduction="none", **shared)
    assert asd[:, 1].tolist() == pytest.approx([0, 10, math.nan], nan_ok=True)  # nothing predicted, so from the target


def test_the_set_leaves_out_images_without_a_distance() -> None:
    pred, target = with_empty()
    target[0] = target[0].roll(1, -1)
    shared: dict[str, Any] = {"reduction": "set", "average": "none"}
    alone = average_surface_distance(pred[:1], target[:1], 3, **shared)
    assert average_surface_distance(pred, target, 3, **shared)[1] == alone[1] > 0
    # Areas add up: the missed surface counts as far.
    whole = [surface_dice(pred[i : i + 1], target[i : i + 1], 3, average="none")[1].item() for i in range(2)]
    areas = [2, 1]  # surfaces of the same length
    expected = sum(score * area for score, area in zip(whole, areas, strict=True)) / sum(areas)
    assert surface_dice(pred, target, 3, **shared)[1].item() == pytest.approx(expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_there_is_no_surface_next_to_void(function: Any) -> None:
    target = torch.zeros(1, 8, 12, dtype=torch.long)
    target[:, :, 6:] = 1
    void = target.clone()
    void[:, :, 5:7] = VOID
    perfect = 1.0 if function is surface_dice else 0.0
    for convention in CONVENTIONS:
        shared: dict[str, Any] = {"ignore_index": VOID, "convention": convention}
        # Borders are anywhere in the void, and the outside of the image matches.
        for shift in (-1, 0, 1):
            assert function(target.roll(shift, -1), void, 2, **shared) == perfect or shift
        assert function(torch.where(void == VOID, 1 - target, target), void, 2, **shared) == perfect


# ---------------------------------------------------------------------------------------------------------- the options


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (hausdorff_distance, {"percentile": 101}, ValueError, r"percentile: expected a number in \[0, 100\], but got 101"),
    (
        hausdorff_distance,
        {"percentile": "95"},
        ValueError,
        r"percentile: expected a number in \[0, 100\], but got '95'",
    ),
    (hausdorff_distance, {"average": "micro"}, ValueError, r"average: expected one of \('macro', 'weighted', 'none'\)"),
    (hausdorff_distance, {"reduction": "set"}, ValueError, r"reduction: expected one of \('images', 'none'\), but got"),
    (average_surface_distance, {"symmetric": 1}, TypeError, "symmetric: expected a bool, but got 1"),
    *(
        (surface_dice, {"tolerance": value}, ValueError, "tolerance: expected a finite number ≥ 0, but got")
        for value in (-0.5, math.nan, math.inf, "1", True)
    ),
    *(
        (function, options, ValueError, message)
        for function in FUNCTIONS
        for options, message in (
            ({"spacing": 0}, "spacing: expected a number > 0"),
            ({"spacing": (1.0, -1.0)}, "spacing: expected a number > 0"),
            ({"spacing": (1.0, 1.0, 1.0)}, "spacing: expected a number > 0, or 2 of them"),
            ({"convention": "exacta"}, "convention: expected one of"),
            ({"num_classes": 1}, "num_classes: expected an int ≥ 2, but got 1"),
        )
    ),
    *(
        (function, {"empty": 0}, ValueError, "empty: expected one of .*'nan', 'diagonal'")
        for function in (hausdorff_distance, average_surface_distance)
    ),
]


@pytest.mark.parametrize(("function", "options", "error", "message"), WRONG)
def test_wrong_options(function: Any, options: Any, error: type[Exception], message: str) -> None:
    options = {"num_classes": 3, **options}
    maps = torch.zeros(2, 1, 4, 4, dtype=torch.long)
    with pytest.raises(error, match=message):
        function(*maps, **options)
    with pytest.raises(error, match=message):
        CLASSES[function](**options).update(*maps)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_wrong_labels_and_devices(function: Any) -> None:
    maps = torch.zeros(1, 4, 4, dtype=torch.long)
    with pytest.raises(
        ValueError, match="target: expected labels 0 to 2, or ignore_index=-100, but got 7 at 16 pixels"
    ):
        function(maps, maps + 7, 3)
    with pytest.raises(ValueError, match="pred: expected device cpu, that of the target, but got meta"):
        function(maps.to("meta"), maps, 3)
    with pytest.raises(ValueError, match=r"pred: expected \[1, 4, 4\], the shape of the target, but got \[1, 3, 4\]"):
        function(maps[:, 1:], maps, 3)
    with pytest.raises(TypeError, match="target: expected class indices of dtype"):
        function(maps, maps.float(), 3)
