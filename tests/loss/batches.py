"""Batches of a short training, and what the module must keep of them from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgeloss.functional import loss_maps, normalizers

C, IGNORE = 4, 255
KEPT: list[dict[str, Any]] = [
    {"edge_class_weight": "running"},
    {"edge_focus": 0.7},
    {"edge_class_weight": "running", "edge_focus": 0.7},
]


def steps(
    count: int, size: tuple[int, ...] = (9, 11), classes: int = C, *, multilabel: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Return batches of logits and labels with rare classes; the second one has no edge, if there are as many.

    The logits are better than those of a uniform prediction.
    """
    found = []
    for _ in range(count):
        x, y = torch.randn(3, max(1, classes), *size, dtype=torch.float64), torch.randint(max(2, classes), (3, *size))
        y[torch.rand(y.shape) < 0.6] = 0
        y[torch.rand(y.shape) < 0.1] = IGNORE
        label = y.where(y != IGNORE, 0)[:, None]
        x = 0.5 * x + (2.0 * label - 1 if classes == 1 else torch.zeros_like(x).scatter_(1, label, 2.0))
        if multilabel:
            is_class = y[:, None] == torch.arange(classes).view(-1, *[1] * len(size))
            y = is_class.long().where(y[:, None] != IGNORE, IGNORE)
        found.append((x.requires_grad_(), y))
    found[1:2] = [(x, torch.ones_like(y)) for x, y in found[1:2]]
    return found


def run(criterion: Callable[..., Any], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    loss = criterion(x, y)
    return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]


def edge_pixels(y: Tensor, shape: torch.Size) -> Tensor:
    """Return n [C], or [C, 2] of a multilabel loss, by one-hot weights."""
    rows = torch.eye(shape.numel(), dtype=torch.float64).view(-1, *shape)
    given: dict[str, Any] = {"ignore_index": IGNORE, "multilabel": len(shape) == 2}
    return torch.stack([normalizers(y, edge_class_weight=row, **given)[1] for row in rows]).view(shape)


def balance(n: Tensor, steps: int) -> Tensor:
    """Return u of the edge pixels of some steps, as docs/loss.md defines it."""
    share = torch.where(n > 0, 1 / (n + n.sum() / (steps * n.numel())), 0)
    return torch.where(n > 0, share * n.sum() / (n * share).sum(), 1.0).float()


def error_sums(x: Tensor, y: Tensor, vu: Tensor, **options: Any) -> list[float]:
    """Return the edge term over all edge pixels, that of a uniform prediction, and its weight, from the maps."""
    maps, uniform = (loss_maps(values, y, ignore_index=IGNORE, **options) for values in (x, torch.zeros_like(x)))
    sides = options.get("other_side_weight", 1.0) + options.get("same_side_weight", 1.0)
    # There is no same-side term where all neighbors are across the edge: its weight is that of both sides anyway.
    sums = maps.edge, uniform.edge.amax() * maps.edge_mask, sides * maps.edge_mask
    return [float((vu * values).sum()) for values in sums]


def average(steps: list[list[float]]) -> float:
    """Return the average error of steps, from the sums of each."""
    mean, found = 1.0, [sums for sums in steps if sums[2]]
    for t, (error, uniform, weight) in enumerate(found, start=1):
        ratio = (1 - math.exp(-error / weight)) / (1 - math.exp(-uniform / weight))
        mean += max(1 / t, 0.01) * (min(1.0, ratio) - mean)
    return mean
