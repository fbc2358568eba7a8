"""Affinity field loss of the 3 × 3 neighborhood."""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.common import compare, one_hot, pairs

NEIGHBORS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
MARGIN = 3.0


def affinity(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Ask for similar probabilities within a label and different ones across.

    For a pixel's probability p and its neighbor's q of each class, KL = q ln(q/p) + (1-q) ln((1-q)/(1-p)), with p, q,
    1-p and 1-q clipped to [1e-4, 1]. The term is max(0, 3 - KL) where the one-hot labels differ, and KL elsewhere; the
    loss is the sum of both means. Pairs with an ignored pixel or one outside the image do not count.

    Source: Ke et al., "Adaptive Affinity Fields for Semantic Segmentation", ECCV 2018, without the adaptive sizes.
    """
    p = logits.softmax(1)
    clipped = [x.clamp(1e-4, 1) for x in (p, 1 - p)]
    logs = [x.log() for x in clipped]
    labels = one_hot(target, logits.shape[1], ignore_index)
    valid = (target != ignore_index)[:, None]
    sums, counts = p.new_zeros(2), p.new_zeros(2, dtype=torch.int64)
    for offset in NEIGHBORS:
        kl = p.new_zeros(())
        for x, log in zip(clipped, logs, strict=True):
            log_center, log_neighbor = pairs(log, *offset)
            kl = kl + pairs(x, *offset)[1] * (log_neighbor - log_center)
        edge, same = compare(labels, valid, offset)
        sums = sums + torch.stack(
            [torch.where(edge, (MARGIN - kl).clamp(min=0), 0).sum(), torch.where(same, kl, 0).sum()]
        )
        counts += torch.stack([edge.sum(), same.sum()])
    return (sums / counts.clamp(min=1)).sum()
