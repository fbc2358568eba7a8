"""The boundary metrics, some by all pairs of pixels, their options, and label maps to score."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgeloss.metrics import (
    AverageSurfaceDistance,
    BoundaryF1,
    BoundaryIoU,
    HausdorffDistance,
    SurfaceDice,
    TrimapIoU,
    average_surface_distance,
    boundary_f1,
    boundary_iou,
    hausdorff_distance,
    surface_dice,
    trimap_iou,
)

VOID = 255
CLASSES: dict[Any, Any] = {
    boundary_iou: BoundaryIoU,
    trimap_iou: TrimapIoU,
    boundary_f1: BoundaryF1,
    hausdorff_distance: HausdorffDistance,
    average_surface_distance: AverageSurfaceDistance,
    surface_dice: SurfaceDice,
}
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "boundary_iou": (boundary_iou, {"ratio": 0.05}),
    "trimap_iou": (trimap_iou, {"radius": 2}),
    "boundary_f1": (boundary_f1, {"radius": 2}),
    "class-agnostic": (boundary_f1, {"radius": 1, "class_agnostic": True}),
    "per image": (boundary_f1, {"radius": 1, "per_image": True}),
}


def slow_scores(function: Any, pred: Tensor, target: Tensor, classes: int, **options: Any) -> list[float]:
    """Return the score of each class, with ``VOID`` as the label to ignore."""
    count = slow_f1_counts if function is boundary_f1 else slow_iou_counts
    size, dims = target.shape[1:], target.dim() - 1
    at = torch.stack(torch.meshgrid(*map(torch.arange, size), indexing="ij"), -1).view(-1, dims)
    pixel = torch.tensor(options.pop("spacing", (1.0,) * dims))
    score, per_image = options.pop("score", "f1"), options.pop("per_image", False)
    images = torch.stack([
        count(torch.stack(maps), torch.arange(classes), at, torch.tensor(size), pixel, **options)
        for maps in zip(pred.flatten(1), target.flatten(1), strict=True)
    ])  # fmt: skip
    if function is not boundary_f1:
        return [part / whole if whole else math.nan for part, whole in images.sum(0).T.tolist()]
    if per_image:
        return list(np.mean([[f1(*row, score, 1.0, 1.0) for row in counts.T.tolist()] for counts in images], 0))
    return [f1(*row, score, 0.0, math.nan) for row in images.sum(0).T.tolist()]


def slow_iou_counts(
    maps: Tensor, classes: Tensor, at: Tensor, size: Tensor, pixel: Tensor, *, ratio: float = 0.0, radius: float = 0.0
) -> Tensor:
    step, valid = at - at[:, None], maps[1] != VOID
    differs = (maps[:, None] != maps[:, :, None]) & valid
    if ratio:
        reach = (ratio * math.hypot(*(size * pixel)) / pixel).round().clamp(min=1)
        outside = ((at < reach) | (at >= size - reach)).any(-1)
        band = valid & (outside | (differs & (step.abs() <= reach).all(-1)).any(-1))
    else:
        band = (valid & (differs[1] & ((step * pixel).square().sum(-1) <= radius**2)).any(-1)).expand(2, -1)
    pred, target = (maps[:, None] == classes[:, None]) & band[:, None]
    return torch.stack([(pred & target).sum(-1), (pred | target).sum(-1)])


def slow_f1_counts(
    maps: Tensor,
    classes: Tensor,
    at: Tensor,
    size: Tensor,
    pixel: Tensor,
    *,
    radius: float,
    class_agnostic: bool = False,
) -> Tensor:
    step, valid = at - at[:, None], maps[1] != VOID
    near = ((step * pixel).square().sum(-1) <= radius**2).float()
    neighbors = ((step == 0) | (step == 1)).all(-1) & valid & valid[:, None]
    marks = maps[:, None] if class_agnostic else maps[:, None] == classes[:, None]  # [2, C, N]
    pred, target = ((marks[..., None, :] != marks[..., None]) & neighbors).any(-1)
    near_pred, near_target = (border.float() @ near > 0 for border in (pred, target))
    return torch.stack([(pred & near_target).sum(-1), pred.sum(-1), (target & near_pred).sum(-1), target.sum(-1)])


def f1(hit_p: int, n_p: int, hit_t: int, n_t: int, score: str, empty: float, absent: float) -> float:
    precision, recall = hit_p / n_p if n_p else empty, hit_t / n_t if n_t else empty
    harmonic = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"f1": harmonic, "precision": precision, "recall": recall}[score] if n_p + n_t else absent


def blobs(batch: int, *size_and_classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
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
