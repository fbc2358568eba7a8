"""Batches of a short training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

C, IGNORE = 4, 255


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
    """Return the loss and its gradient."""
    loss = criterion(x, y)
    return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]
