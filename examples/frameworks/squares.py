"""Images of squares, which the examples draw, so that they run anywhere."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset


def squares(count: int, size: int = 32) -> TensorDataset:
    """Return noisy images [3, size, size] of one bright square each, and their labels [size, size] of 0 and 1."""
    labels = torch.zeros(count, size, size, dtype=torch.int64)
    side = size // 4
    for label, (top, left) in zip(labels, torch.randint(side // 2, size - 3 * side // 2, (count, 2)), strict=True):
        label[top : top + side, left : left + side] = 1
    return TensorDataset(labels[:, None] + 0.3 * torch.randn(count, 3, size, size), labels)
