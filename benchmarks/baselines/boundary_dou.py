"""Boundary difference over union."""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.common import one_hot

LARGEST_ALPHA = 0.8
SMOOTH = 1e-5


def boundary_dou(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute the mean over classes of (P + T - 2 I) / (P + T - (1 + α) I).

    P = Σ p², T = Σ t² and I = Σ p t are sums over the batch, and α = min(0.8, 1 - 2 · border / area) of the labels. A
    pixel is on the border if one of its 4 neighbors, 6 in 3-D, is of another class or outside the image. Ignored pixels
    have p = t = 0, and there is no border next to them. A class without labels adds 0 instead of the constant 1.

    Source: Sun et al., "Boundary Difference Over Union Loss for Medical Image Segmentation", MICCAI 2023, and the
    authors' code. They train with this term alone.
    """
    void = (target == ignore_index)[:, None]
    masks = one_hot(target, logits.shape[1], ignore_index)
    labels, p = masks.to(logits.dtype), logits.softmax(1).masked_fill(void, 0)
    inside = masks.clone()
    for axis in range(2, masks.dim()):
        padded = torch.nn.functional.pad((masks | void).movedim(axis, -1), (1, 1)).movedim(-1, axis)
        for start in (0, 2):
            inside &= padded.narrow(axis, start, masks.shape[axis])

    def sums(x: Tensor) -> Tensor:  # per class
        return x.transpose(0, 1).flatten(1).sum(1)

    area, border = sums(labels), sums((masks & ~inside).to(logits.dtype))
    alpha = (1 - 2 * (border + SMOOTH) / (area + SMOOTH)).clamp(max=LARGEST_ALPHA)
    both, shared = sums(p.square()) + area, sums(p * labels)
    loss = (both - 2 * shared + SMOOTH) / (both - (1 + alpha) * shared + SMOOTH)
    return torch.where(area > 0, loss, 0).mean()
