"""Edge-weighted cross-entropy: the control that every boundary loss has to beat."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from edgeloss.reference import find_edges


def edge_weighted_cross_entropy(
    logits: Tensor, target: Tensor, *, ignore_index: int, k: float, edge_class_weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy in which a pixel counts 1 + k times if one of its 8 neighbours has another label.

    With M = 1 on those pixels: Σ (1 + kM) CE / Σ (1 + kM) over valid pixels. Beside ignored pixels there is no edge.

    Args:
        logits: [B, C, H, W].
        target: [B, H, W].
        ignore_index: the label that does not count.
        k: how much more an edge pixel counts, ≥ 0.
        edge_class_weight: factor of k for the pixels of each class [C].
    """
    valid = target != ignore_index
    edges = find_edges(target, valid, (1, 1))
    more = k if edge_class_weight is None else k * edge_class_weight[target.where(edges, 0)]
    weight = valid + more * edges
    ce = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="none")
    return (weight * ce).sum() / weight.sum().clamp(min=1)
