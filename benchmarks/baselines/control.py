"""Edge-weighted cross-entropy: the control that a boundary loss has to beat."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from edgeloss.reference import find_edges


def edge_weighted_cross_entropy(
    logits: Tensor, target: Tensor, *, ignore_index: int, k: float, edge_class_weight: Tensor | None = None
) -> Tensor:
    """Compute cross-entropy with the weight 1 + k on edge pixels.

    With M = 1 on pixels of which one of the 8 neighbors has another label: Σ (1 + kM) CE / Σ (1 + kM) over valid
    pixels. There is no edge next to ignored pixels.

    Args:
        logits: [B, C, H, W].
        target: [B, H, W].
        ignore_index: the ignored label.
        k: additional weight of edge pixels, ≥ 0.
        edge_class_weight: factor of k per class [C].
    """
    valid = target != ignore_index
    edges = find_edges(target, valid, (1,) * (target.dim() - 1))
    more = k if edge_class_weight is None else k * edge_class_weight[target.where(edges, 0)]
    weight = valid + more * edges
    ce = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="none")
    return (weight * ce).sum() / weight.sum().clamp(min=1)
