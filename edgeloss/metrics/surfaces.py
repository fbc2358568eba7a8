"""Distances between the surfaces of each class in prediction and target, and the scores that follow from them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss._checks import inputs
from edgeloss._checks.options import spacing_per_axis
from edgeloss.metrics.measure import Convention, Empty, Kind, LabelMaps, Spacing
from edgeloss.metrics.nearest import NEAR, distances_on, nearest

Array = npt.NDArray[Any]

# ----------------------------------------------------------------------------------------------------- surface elements

# Surfaces between the 8 voxels at a corner, as marching cubes draws them: 8 · |normal| of their triangles, whose length
# is the area, for one code of each case; the others are mirrored, rotated or inverted. Bit 7 is voxel (0, 0, 0), bit 6
# is (0, 0, 1). After the table of DeepMind's surface-distance (Apache 2.0).
_CASES: dict[int, list[tuple[int, int, int]]] = {
    1: [(1, 1, 1)],
    3: [(2, 2, 0)] * 2,
    6: [(1, 1, 1)] * 2,
    7: [(1, 1, 1), (2, 2, 2), (4, 0, 0)],
    15: [(4, 0, 0)] * 2,
    22: [(1, 1, 1)] * 3,
    23: [(1, 1, 1), (2, 2, 2)] * 2,
    24: [(1, 1, 1)] * 2,
    25: [(0, 2, 2), (0, 2, 2), (1, 1, 1)],
    27: [(0, 2, 2), (1, 1, 1), (2, 0, 2), (3, 3, 3)],
    30: [(1, 1, 1), (1, 1, 1), (2, 2, 2), (4, 0, 0)],
    60: [(2, 2, 0)] * 4,
    105: [(1, 1, 1)] * 4,
}


def element_areas(spacing: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the length or area of the surface at a corner of pixels by which of its pixels are inside: [2^(2^dims)].

    The first pixel is the highest bit. The surface runs through the middles of the sides whose ends differ.
    """
    if len(spacing) == 2:
        vertical, horizontal = spacing
        diagonal = math.sqrt(vertical**2 + horizontal**2) / 2  # rounded as in surface-distance: half of an area is half
        half = [0, diagonal, diagonal, horizontal, diagonal, vertical, 2 * diagonal, diagonal]
        return np.array([*half, *half[::-1]])
    areas = np.zeros(256)
    corners = list(itertools.product((0, 1), repeat=3))
    face = [spacing[1] * spacing[2], spacing[0] * spacing[2], spacing[0] * spacing[1]]
    for code, normals in _CASES.items():
        inside = [corner for bit, corner in enumerate(corners) if code >> (7 - bit) & 1]
        for axes, flip in itertools.product(itertools.permutations(range(3)), corners):
            moved = [tuple(corner[a] ^ f for a, f in zip(axes, flip, strict=True)) for corner in inside]
            image = sum(128 >> corners.index(corner) for corner in moved)
            area = sum(math.hypot(*(n[a] * f for a, f in zip(axes, face, strict=True))) for n in normals) / 8
            areas[image] = areas[255 - image] = area
    return areas


class _Elements(NamedTuple):
    """Surface elements of all classes of a map: places on a grid, their classes, and their areas; [N] each."""

    place: Array
    label: Array
    area: Array


def _corner_elements(framed: Array, classes: int, spacing: Sequence[float]) -> _Elements:
    """Find the corners of pixels at which classes meet, from labels framed by ``classes``, -1 for void."""
    window = list(itertools.product((0, 1), repeat=framed.ndim))
    views = [framed[tuple(slice(o, n - 1 + o) for o, n in zip(at, framed.shape, strict=True))] for at in window]
    mixed = np.zeros(views[0].shape, dtype=bool)
    for view in views[1:]:
        mixed |= view != views[0]
    for view in views:
        mixed &= view >= 0
    place, labels = np.flatnonzero(mixed), np.stack([view[mixed] for view in views])
    areas, parts = element_areas(spacing), []
    for k, label in enumerate(labels):
        first = label < classes
        for earlier in labels[:k]:
            first &= earlier != label
        code = np.zeros(int(first.sum()), dtype=np.int64)
        for other in labels:
            code = 2 * code + (other[first] == label[first])
        parts.append((place[first], label[first], areas[code]))
    return _Elements(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _pixel_elements(framed: Array, classes: int, spacing: Sequence[float]) -> _Elements:
    """Find the pixels next to another class or the outside along an axis, from labels framed by ``classes``."""
    inner = (slice(1, -1),) * framed.ndim
    here, differs = framed[inner], np.zeros([n - 2 for n in framed.shape], dtype=bool)
    for axis, step in itertools.product(range(framed.ndim), (slice(2, None), slice(None, -2))):
        shifted = (*inner[:axis], step, *inner[axis + 1 :])
        neighbor = framed[shifted]
        differs |= (neighbor != here) & (neighbor >= 0)
    differs &= here >= 0
    place = np.flatnonzero(differs)
    return _Elements(place, here[differs], np.ones(len(place)))


# ---------------------------------------------------------------------------------------------------------- conventions


class _Convention(NamedTuple):
    """What tools disagree about.

    Attributes:
        elements: how surface elements are found.
        grid: how much longer the grid of their places is than the image.
        percentile: distances and areas of a surface, and a share in [0, 1] → the distance.
        is_pooled: whether a percentile is that of both surfaces together, and not the larger of two.
    """

    elements: Callable[[Array, int, Sequence[float]], _Elements]
    grid: int
    percentile: Callable[[Array, Array, float], float]
    is_pooled: bool = False


def _percentile_by_area(distances: Array, areas: Array, share: float) -> float:
    """Return the least distance within which at least a share of the area is, from sorted distances."""
    reached = np.cumsum(areas) / areas.sum()
    return float(distances[min(int(np.searchsorted(reached, share)), len(reached) - 1)])


def _percentile_by_count(distances: Array, areas: Array, share: float) -> float:
    """Return the percentile of the distances, linear between them."""
    return float(np.quantile(distances, share))


_CONVENTIONS: dict[Convention, _Convention] = {
    "surface-distance": _Convention(_corner_elements, 1, _percentile_by_area),
    "monai": _Convention(_pixel_elements, 0, _percentile_by_count),
    "medpy": _Convention(_pixel_elements, 0, _percentile_by_count, is_pooled=True),
}


# ------------------------------------------------------------------------------------------------------------ distances


class Surface(NamedTuple):
    """The elements of a surface: distances to the other surface, from near to far, and areas; [N] each.

    Distances to an empty surface are inf.
    """

    distances: Array
    areas: Array


Pair = tuple[Surface, Surface]  # of prediction and target


def surface_pairs(maps: LabelMaps, convention: Convention, spacing: Sequence[float]) -> list[dict[int, Pair]]:
    """Return the surfaces of the classes that an image has in either map, per image, by class."""
    rules = _CONVENTIONS[convention]
    key = "surfaces", rules.elements, *spacing
    pairs: list[dict[int, Pair]] = maps.share(key, lambda: list(_find_pairs(maps, rules, spacing)))
    return pairs


def _find_pairs(maps: LabelMaps, rules: _Convention, spacing: Sequence[float]) -> Iterator[dict[int, Pair]]:
    """Yield the surfaces of each image."""
    classes, y, distances_of = maps.num_classes, maps.y.cpu().numpy(), distances_on(maps.y.device)
    grid = [n + rules.grid for n in y.shape[2:]]
    for labels in y.swapaxes(0, 1):
        sides = []
        for each in labels:
            # The outside of the image is of no class.
            elements = rules.elements(np.pad(each, 1, constant_values=classes), classes, spacing)
            order = np.argsort(elements.label, kind="stable")
            cuts = np.searchsorted(elements.label[order], np.arange(1, classes))
            sides += [np.split(part[order], cuts) for part in (elements.place, elements.area)]
        pairs = {}
        for c, (place, area, other_place, other_area) in enumerate(zip(*sides, strict=True)):
            if len(place) or len(other_place):
                pairs[c] = (
                    _surface(nearest(place, other_place, grid, spacing, distances_of), area),
                    _surface(nearest(other_place, place, grid, spacing, distances_of), other_area),
                )
        yield pairs


def _surface(distances: Array, areas: Array) -> Surface:
    """Return the surface with its elements sorted, by distance and area so that sums round as in surface-distance."""
    order = np.lexsort((areas, distances))
    return Surface(distances[order], areas[order])


# ---------------------------------------------------------------------------------------------------- counts and scores


def hausdorff_counts(
    maps: LabelMaps, percentile: float, convention: Convention, spacing: Spacing = None, empty: Empty = "nan"
) -> Tensor:
    """Compute the percentile of the distances of both surfaces, and their areas: [B, 4, C]."""
    rules, share = _CONVENTIONS[convention], percentile / 100

    def value(surface: Surface) -> float:
        return rules.percentile(*surface, share) if len(surface.areas) else 0.0

    def values(pair: Pair) -> tuple[float, float]:
        if rules.is_pooled:
            pooled = value(Surface(*(np.concatenate(part) for part in zip(*pair, strict=True))))
            return pooled, pooled
        return value(pair[0]), value(pair[1])

    return _counts(maps, convention, spacing, values, empty)


def average_distance_counts(
    maps: LabelMaps, convention: Convention, spacing: Spacing = None, empty: Empty = "nan"
) -> Tensor:
    """Compute the integral of the distances over both surfaces, and their areas: [B, 4, C]."""

    def value(surface: Surface) -> float:
        return float(surface.distances @ surface.areas)

    return _counts(maps, convention, spacing, lambda pair: (value(pair[0]), value(pair[1])), empty)


def surface_dice_counts(maps: LabelMaps, tolerance: float, convention: Convention, spacing: Spacing = None) -> Tensor:
    """Compute the area of both surfaces within the tolerance of the other one, and their areas: [B, 4, C]."""
    near = tolerance * NEAR

    def value(surface: Surface) -> float:
        return float(surface.areas[surface.distances <= near].sum())

    return _counts(maps, convention, spacing, lambda pair: (value(pair[0]), value(pair[1])), "nan")


def _counts(
    maps: LabelMaps,
    convention: Convention,
    spacing: Spacing,
    values: Callable[[Pair], tuple[float, float]],
    empty: Empty,
) -> Tensor:
    """Measure both surfaces of each image and class: [B, 4, C] with a value and the area, of prediction and target.

    Distances to an empty surface are nan, or the diagonal of the image.
    """
    size, device = maps.y.shape[2:], maps.y.device
    sizes = spacing_per_axis(spacing, len(size))
    missing = math.hypot(*map(operator.mul, size, sizes)) if empty == "diagonal" else math.nan
    pairs = surface_pairs(maps, convention, sizes)
    counts = np.zeros((len(pairs), 4, maps.num_classes))
    for image, by_class in zip(counts, pairs, strict=True):
        for c, (pred, target) in by_class.items():
            if not len(pred.areas) or not len(target.areas):
                pred, target = (Surface(np.full_like(areas, missing), areas) for _, areas in (pred, target))
            image[::2, c], image[1::2, c] = values((pred, target)), (pred.areas.sum(), target.areas.sum())
    return torch.from_numpy(counts).to(device=device, dtype=inputs.widest(device))


def score_hausdorff(counts: Tensor) -> Tensor:
    """Return the larger of the distances [..., C] of counts [..., 4, C], nan for a class in neither map."""
    pred, pred_area, target, target_area = counts.unbind(-2)
    return torch.maximum(pred, target).where(pred_area + target_area > 0, math.nan)


def score_average_distance(counts: Tensor, *, symmetric: bool) -> Tensor:
    """Compute the average distance [..., C] from counts [..., 4, C], nan for a class in neither map."""
    pred, pred_area, target, target_area = counts.unbind(-2)
    both = (pred + target) / (pred_area + target_area)
    # An empty surface has no average of its own.
    return both if symmetric else (pred / pred_area).where(pred_area > 0, both)


def score_surface_dice(counts: Tensor) -> Tensor:
    """Compute the share of both surfaces [..., C] that counts [..., 4, C] have near the other one; nan without any."""
    pred, pred_area, target, target_area = counts.unbind(-2)
    return (pred + target) / (pred_area + target_area)


def count_left_out(counts: Tensor) -> Tensor:
    """Return how many images have a surface of each class in one map only, from counts [B, 4, C]: [C] int64."""
    return ((counts[:, 1] > 0) ^ (counts[:, 3] > 0)).sum(0)


_OF_SURFACES: dict[str, Any] = {"rows": 4, "counts_areas": True}
HAUSDORFF = Kind("hausdorff_distance", hausdorff_counts, score_hausdorff, **_OF_SURFACES, adds_up=False)
AVERAGE_DISTANCE = Kind("average_surface_distance", average_distance_counts, score_average_distance, **_OF_SURFACES)
SURFACE_DICE = Kind("surface_dice", surface_dice_counts, score_surface_dice, **_OF_SURFACES)
