"""Affinity field loss of the 3 × 3 neighbourhood."""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.common import one_hot, pairs

NEIGHBOURS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
MARGIN = 3.0


def affinity(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Neighbours of one label should have equal probabilities, those of different labels different ones.

    For a pixel's probability p and its neighbour's q of each class, KL = q ln(q/p) + (1-q) ln((1-q)/(1-p)), with p, q,
    1-p and 1-q clipped to [1e-4, 1]. Where the one-hot labels differ the term is max(0, 3 - KL), elsewhere KL; either
    has a mean of its own. Pairs with an ignored or outside pixel do not count.

    Source: Ke et al., "Adaptive Affinity Fields for Semantic Segmentation", ECCV 2018, without the adaptive sizes.
    """
    p = logits.softmax(1)
    clipped = [x.clamp(1e-4, 1) for x in (p, 1 - p)]
    logs = [x.log() for x in clipped]
    labels = one_hot(target, logits.shape[1], ignore_index)
    valid = (target != ignore_index)[:, None]
    sums, counts = p.new_zeros(2), p.new_zeros(2, dtype=torch.int64)
    for offset in NEIGHBOURS:
        kl = p.new_zeros(())
        for x, log in zip(clipped, logs, strict=True):
            log_centre, log_neighbour = pairs(log, *offset)
            kl = kl + pairs(x, *offset)[1] * (log_neighbour - log_centre)
        here, there = pairs(labels, *offset)
        exists = torch.logical_and(*pairs(valid, *offset))
        edge, same = (here != there) & exists, (here == there) & exists
        sums = sums + torch.stack(
            [torch.where(edge, (MARGIN - kl).clamp(min=0), 0).sum(), torch.where(same, kl, 0).sum()]
        )
        counts += torch.stack([edge.sum(), same.sum()])
    return (sums / counts.clamp(min=1)).sum()
