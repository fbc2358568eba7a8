"""Building blocks that several losses share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return Σ weight · values / Σ weight, the mean over a mask; 0 if there is no weight."""
    total = weight.sum()
    return (weight * values).sum() / torch.where(total > 0, total, 1)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    class_weight: Tensor | None = None,
    pixel_weight: Tensor | None = None,
) -> Tensor:
    """Return the mean over valid pixels, with class weights [C], pixel weights [B, *S], both or neither.

    It is 0 if there is no valid pixel, where torch returns nan. The pixel weights of ignored pixels are 0.
    """
    valid = target != ignore_index
    if pixel_weight is not None:
        ce = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="none")
        if class_weight is not None:
            pixel_weight = pixel_weight * class_weight[target.where(valid, 0)]
        return weighted_mean(ce, pixel_weight)
    total = F.cross_entropy(logits, target, class_weight, ignore_index=ignore_index, reduction="sum")
    weight = (valid if class_weight is None else class_weight[target[valid]]).sum()
    return total / torch.where(weight > 0, weight, 1)


def at_size(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Return logits [B, C, *s] interpolated to a size *S as EdgeAwareLoss does with ``upsample=True``."""
    if logits.shape[2:] == tuple(size):
        return logits
    mode = "trilinear" if logits.dim() == 5 else "bilinear"
    return F.interpolate(logits.float(), tuple(size), mode=mode, align_corners=False)


def one_hot(target: Tensor, num_classes: int, ignore_index: int) -> Tensor:
    """Return a mask per class [B, C, *S]; ignored pixels are in none."""
    classes = torch.arange(num_classes, device=target.device).view(-1, *[1] * (target.dim() - 1))
    return (target[:, None] == classes) & (target != ignore_index)[:, None]


def triples(x: Tensor, axis: int) -> list[Tensor]:
    """Return the pixels before, at and after each pixel along an axis, whose ends are repeated."""
    length = x.shape[axis]
    longer = torch.cat([x.narrow(axis, 0, 1), x, x.narrow(axis, length - 1, 1)], axis)
    return [longer.narrow(axis, start, length) for start in range(3)]


def pairs(x: Tensor, dy: int, dx: int) -> tuple[Tensor, Tensor]:
    """Return pixels of maps [..., H, W] that have a neighbor (dy, dx), and these."""
    height, width = x.shape[-2:]

    def shifted(y: int, x_: int) -> Tensor:
        return x[..., max(y, 0) : height + min(y, 0), max(x_, 0) : width + min(x_, 0)]

    return shifted(-dy, -dx), shifted(dy, dx)


def compare(labels: Tensor, valid: Tensor, offset: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return which valid pixels with a valid neighbor at the offset have another label than it, and which the same."""
    here, there = pairs(labels, *offset)
    exist = torch.logical_and(*pairs(valid, *offset))
    return exist & (here != there), exist & (here == there)
