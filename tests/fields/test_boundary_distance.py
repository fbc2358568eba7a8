"""Distances to the nearest pixel of another class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import distance_transform_edt

from edgeloss.fields import boundary_distance
from edgeloss.functional import edge_aware_loss, loss_maps

by_backend = pytest.mark.usefixtures("each_backend")


def regions(*size: int, classes: int, ignore: float = 0.1) -> np.ndarray:
    """Return blobs of classes with large distances; the last image has one class."""
    random = np.random.default_rng(0)
    seeds = random.random((3, 6, len(size))) * size
    pixels = np.stack(np.indices(size), -1)
    nearest = np.linalg.norm(pixels[None, ..., None, :] - seeds.reshape(3, *[1] * len(size), 6, len(size)), axis=-1)
    y = nearest.argmin(-1) % classes
    y[2] = 1
    y[random.random(y.shape) < ignore] = 255
    return y


def by_scipy(y: np.ndarray, spacing: Any) -> np.ndarray:
    field = np.full(y.shape, np.inf)
    for b in range(len(y)):
        for p in np.argwhere(y[b] != 255):
            others = (y[b] != 255) & (y[b] != y[b][tuple(p)])
            if others.any():
                field[(b, *p)] = distance_transform_edt(~others, sampling=spacing)[tuple(p)]
    return field


# 2-D images of square pixels use OpenCV, the others SciPy.
@pytest.mark.parametrize(
    ("size", "spacing"),
    [((17, 23), None), ((17, 23), 0.3), ((17, 23), (1.0, 2.5)), ((5, 7, 6), None), ((4, 6, 6), (3.0, 1.0, 1.0))],
)
def test_exact(size: tuple[int, ...], spacing: Any) -> None:
    y = regions(*size, classes=3)
    field = boundary_distance(y, ignore_index=255, spacing=spacing)
    assert field.dtype == np.float32
    np.testing.assert_allclose(field, by_scipy(y, spacing or 1.0), rtol=1e-6)


# Among them the largest and narrow images, for which the rounding of OpenCV is worst; the last one uses SciPy.
@pytest.mark.parametrize("size", [(60, 90), (700, 700), (8, 700), (700, 3), (1, 700), (8, 1400)])
@pytest.mark.parametrize("sites", [1, 3, 40])
def test_rounded_squares_are_exact(size: tuple[int, int], sites: int) -> None:
    random = np.random.default_rng(sites)
    y = np.zeros((1, *size), dtype=np.uint8)
    y[0, random.integers(0, size[0], sites), random.integers(0, size[1], sites)] = 1
    expected = np.where(y == 1, 0, distance_transform_edt(y[0] == 0)[None]).astype(np.float32)
    field = boundary_distance(y, ignore_index=255)
    assert np.array_equal(field[y == 0], expected[y == 0])


@pytest.mark.parametrize(("reach", "spacing"), [(1.0, 0.5), (30.5, None), (400, 0.5)])  # the last one has no tiles
@pytest.mark.slow
def test_tiles_of_a_large_image_are_exact_up_to_the_limit(reach: float, spacing: float | None) -> None:
    random = np.random.default_rng(0)
    y = np.kron(random.integers(0, 3, (5, 9)), np.ones((161, 173), dtype=np.int64))[None]
    y[random.random(y.shape) < 0.1] = 255
    far = boundary_distance(y, ignore_index=255, spacing=spacing)
    far[far > reach] = np.inf
    np.testing.assert_array_equal(boundary_distance(y, ignore_index=255, spacing=spacing, max_distance=reach), far)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64, np.uint16])
def test_numpy_and_torch_agree(dtype: Any) -> None:
    y = regions(9, 11, classes=4).astype(dtype)
    field = boundary_distance(y, ignore_index=255)
    if dtype != np.uint16:  # not a dtype of labels in torch
        tensor = boundary_distance(torch.from_numpy(y), ignore_index=255)
        assert tensor.dtype == torch.float32
        assert np.array_equal(tensor.numpy(), field)
    assert (field[y == 255] == np.inf).all()
    assert (field[2] == np.inf).all()  # an image of one class
    assert np.isfinite(field[:2][y[:2] != 255]).all()
    assert field.min() == 1


def test_bool_masks_and_no_ignored_label() -> None:
    y = np.zeros((1, 5, 5), dtype=bool)
    y[0, 2, 2] = True
    assert boundary_distance(y, ignore_index=-100)[0, 0, 0] == pytest.approx(math.sqrt(8))
    assert boundary_distance(np.array([[[-1, -1, -1, 255]]]), ignore_index=None).tolist() == [[[3, 2, 1, 1]]]


@by_backend
@pytest.mark.parametrize(
    ("size", "radius", "spacing"),
    [
        ((17, 23), (1, 1), (1.0, 1.0)),
        ((17, 23), (2, 3), (0.7, 1.3)),
        ((5, 7, 6), (1, 1, 1), (1.0, 1.0, 1.0)),
        ((4, 6, 6), (0, 2, 1), (5.0, 1.0, 0.4)),
    ],
)
def test_the_loss_computes_the_same_distances(size: Any, radius: Any, spacing: Any) -> None:
    y = torch.from_numpy(regions(*size, classes=3))
    x = torch.randn(3, 3, *size)
    options: dict[str, Any] = {"ignore_index": 255, "radius": radius, "spacing": spacing, "decay": 1.5}
    limit = 2 * math.hypot(*(r * s for r, s in zip(radius, spacing, strict=True)))
    actual = loss_maps(x, y, **options).distance
    assert actual is not None
    field = boundary_distance(y, ignore_index=255, spacing=spacing)
    torch.testing.assert_close(actual, torch.where(field <= limit * (1 + 1e-6), field, torch.inf))
    torch.testing.assert_close(edge_aware_loss(x, y, **options, distance=field), edge_aware_loss(x, y, **options))


# 2 · radius · spacing / spacing is 5.999... for many of these; the search must still reach six pixels.
@by_backend
@pytest.mark.parametrize("spacing", [0.35, 0.37, 0.39, 0.5, 0.7, 0.74, 0.78, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("radius", [(0, 3), (3, 0), (0, 7), (2, 1)])
def test_every_neighbor_of_an_edge_has_a_distance(radius: tuple[int, int], spacing: float) -> None:
    y = torch.from_numpy(regions(17, 23, classes=3, ignore=0.6))
    x = torch.randn(3, 3, 17, 23)
    options: dict[str, Any] = {"ignore_index": 255, "radius": radius, "decay": 2 * spacing, "spacing": spacing}
    loss = edge_aware_loss(x, y, **options)
    field = boundary_distance(y, ignore_index=255, spacing=spacing)
    torch.testing.assert_close(loss, edge_aware_loss(x, y, **options, distance=field))


FLAT = np.zeros((1, 4, 4), int)


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        (FLAT.astype(float), {}, TypeError, "array of integral labels, but got float64; pass target.astype"),
        ([[[0]]], {}, TypeError, "array of integral labels, but got list; pass torch.as_tensor"),
        (torch.zeros(1, 4, 4), {}, TypeError, "expected class indices of dtype"),
        (FLAT[0], {}, ValueError, r"expected \[B, H, W\] or .*\[4, 4\]; for a single image pass target\[None\]"),
        (FLAT, {"max_distance": 0.0}, ValueError, "max_distance: expected a number > 0"),
        (FLAT, {"spacing": (1.0, 1.0, 1.0)}, ValueError, "spacing: expected a number > 0, or 2 of"),
    ],
)
def test_wrong_input(target: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        boundary_distance(target, ignore_index=255, **options)
