"""Metrics with their options, and label maps to score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from edgeloss.metrics import boundary_f1, boundary_iou, trimap_iou

VOID = 255


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], dict[str, Any]]] = {
    "boundary_iou": (boundary_iou, {"ratio": 0.05}),
    "trimap_iou": (trimap_iou, {"radius": 2}),
    "boundary_f1": (boundary_f1, {"radius": 2}),
    "class-agnostic": (boundary_f1, {"radius": 1, "class_agnostic": True}),
    "per image": (boundary_f1, {"radius": 1, "per_image": True}),
}


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
