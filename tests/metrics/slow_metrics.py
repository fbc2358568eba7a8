"""The boundary metrics, one class and image at a time, with SciPy, their options, and label maps to score."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import ndimage

from edgeloss.metrics import boundary_f1, boundary_iou, trimap_iou

Spacing = tuple[float, ...]
VOID = 255
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], dict[str, Any]]] = {
    "boundary_iou": (boundary_iou, {"ratio": 0.05}),
    "trimap_iou": (trimap_iou, {"radius": 2}),
    "boundary_f1": (boundary_f1, {"radius": 2}),
    "class-agnostic": (boundary_f1, {"radius": 1, "class_agnostic": True}),
    "per image": (boundary_f1, {"radius": 1, "per_image": True}),
}


def slow_boundary_iou(
    pred: np.ndarray, target: np.ndarray, classes: int, ratio: float, spacing: Spacing = ()
) -> list[float]:
    counts = np.zeros((2, classes))
    for p, t in zip(pred, target, strict=True):
        void = t == VOID
        sizes = spacing or (1.0,) * t.ndim
        width = ratio * math.hypot(*np.multiply(t.shape, sizes))
        box = np.ones([2 * max(1, round(width / size)) + 1 for size in sizes])
        for c in range(classes):
            bands = []
            for y in (p, t):
                eroded = ndimage.binary_erosion((y == c) | void, box)  # void takes nothing away: classes go on there
                bands.append((y == c) & ~void & ~eroded)
            counts[:, c] += (bands[0] & bands[1]).sum(), (bands[0] | bands[1]).sum()
    return ratios(*counts)


def slow_trimap_iou(
    pred: np.ndarray, target: np.ndarray, classes: int, radius: float, spacing: Spacing = ()
) -> list[float]:
    confusion = np.zeros((classes, classes))
    for p, t in zip(pred, target, strict=True):
        near = np.zeros(t.shape, dtype=bool)
        for c in np.unique(t[t != VOID]):
            others = (t != c) & (t != VOID)
            if others.any():
                near |= (t == c) & (ndimage.distance_transform_edt(~others, spacing or None) <= radius)
        np.add.at(confusion, (t[near], p[near]), 1)
    shared = np.diag(confusion)
    return ratios(shared, confusion.sum(0) + confusion.sum(1) - shared)


def slow_boundary_f1(
    pred: np.ndarray,
    target: np.ndarray,
    classes: int,
    radius: float,
    score: str = "f1",
    class_agnostic: bool = False,
    per_image: bool = False,
    spacing: Spacing = (),
) -> list[float]:
    dims = target.ndim - 1
    sizes = np.array(spacing or (1.0,) * dims).reshape(-1, *(1,) * dims)
    reach = math.ceil(radius / sizes.min())
    disk = np.square((np.indices((2 * reach + 1,) * dims) - reach) * sizes).sum(0) <= radius**2

    def border(y: np.ndarray, void: np.ndarray, c: int) -> np.ndarray:
        is_border = np.zeros(y.shape, dtype=bool)
        for steps in [*product((0, 1), repeat=dims)][1:]:
            here = tuple(slice(length - step) for length, step in zip(y.shape, steps, strict=True))
            there = tuple(slice(step, None) for step in steps)
            differs = y[here] != y[there] if class_agnostic else (y[here] == c) != (y[there] == c)
            is_border[here] |= differs & ~void[here] & ~void[there]
        return is_border

    images = []  # one [4, C] each
    for p, t in zip(pred, target, strict=True):
        rows = []
        for c in range(1 if class_agnostic else classes):
            b_p, b_t = (border(y, t == VOID, c) for y in (p, t))
            near_p, near_t = (ndimage.binary_dilation(b, disk) for b in (b_p, b_t))
            rows.append([(b_p & near_t).sum(), b_p.sum(), (b_t & near_p).sum(), b_t.sum()])
        images.append(np.array(rows).T)

    def by_class(counts: np.ndarray, nothing: tuple[float, float]) -> list[float]:
        scores = []
        for hit_p, n_p, hit_t, n_t in counts.T.tolist():
            precision, recall = hit_p / n_p if n_p else nothing[0], hit_t / n_t if n_t else nothing[0]
            f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
            scores.append({"f1": f1, "precision": precision, "recall": recall}[score] if n_p + n_t else nothing[1])
        return scores

    if per_image:
        return list(np.mean([by_class(counts, (1.0, 1.0)) for counts in images], 0))
    return by_class(sum(images), (0.0, math.nan))


def ratios(numerator: np.ndarray, denominator: np.ndarray) -> list[float]:
    return [n / d if d else math.nan for n, d in zip(numerator, denominator, strict=True)]


SLOW = {boundary_iou: slow_boundary_iou, trimap_iou: slow_trimap_iou, boundary_f1: slow_boundary_f1}


def blobs(batch: int, *size_and_classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a prediction near a target of regions, some of them void."""
    *size, classes = size_and_classes
    random = np.random.default_rng(seed)
    pixels = np.stack(np.indices(size), -1)
    target = np.empty((batch, *size), dtype=np.int64)
    for y in target:
        seeds = random.random((14, len(size))) * size
        labels = np.append(random.integers(0, classes, 12), [VOID, VOID])
        y[...] = labels[np.linalg.norm(pixels[..., None, :] - seeds, axis=-1).argmin(-1)]
    pred = np.roll(target, (1, -1), (-2, -1))
    specks = random.random(pred.shape)
    pred[specks < 0.05] = random.integers(0, classes, pred.shape)[specks < 0.05]
    pred[pred == VOID] = 0
    target[(specks > 0.5) & (specks < 0.53)] = VOID
    return torch.from_numpy(pred), torch.from_numpy(target)
