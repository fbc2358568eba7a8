"""A term on the probability of an edge between two pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.common import compare, pairs

HALF = ((0, 1), (1, 0), (1, 1), (1, -1))  # each pair of neighbors once
LARGEST = -1e-7  # of log q, so that log(1 - q) is finite


def relational(logits: Tensor, target: Tensor, *, ignore_index: int, agree: float = 0.1) -> Tensor:
    """Ask for an edge where the labels of neighbors differ, and for none where they agree.

    With q = Σ_c p_i(c) p_n(c) for the 8 neighbors n of i: (Σ -log(1 - q) over pairs of different labels + agree ·
    Σ -log q over pairs of equal labels) / number of pairs of different labels. Pairs with an ignored pixel do not
    count. It is no weighting of the cross-entropy, not even with two classes.

    Args:
        logits: [B, C, H, W].
        target: [B, H, W].
        ignore_index: the ignored label.
        agree: weight of the pairs of equal labels.
    """
    log_p = logits.log_softmax(1)
    total, count = log_p.new_zeros(()), 0
    for offset in HALF:
        log_q = torch.logsumexp(sum(pairs(log_p, *offset)), 1).clamp(max=LARGEST)
        different, equal = compare(target, target != ignore_index, offset)
        total = total - torch.log(-torch.expm1(log_q[different])).sum() - agree * log_q[equal].sum()
        count = count + different.sum()
    return total / torch.as_tensor(count).clamp(min=1)
