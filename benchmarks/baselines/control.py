"""Weights of edge pixels in the cross-entropy: the control that a boundary loss has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeloss._reference.neighborhoods import find_edges


def edge_weights(
    target: Tensor,
    *,
    ignore_index: int,
    k: float,
    edge_class_weight: Tensor | None = None,
    draw: torch.Generator | None = None,
) -> Tensor:
    """Return the pixel weights [B, *S] of the control: 1, 1 + k at edges, and 0 on ignored pixels.

    A pixel is at an edge if one of its neighbors has another label. There is no edge next to ignored pixels.

    Args:
        target: [B, *S].
        ignore_index: the ignored label.
        k: additional weight of edge pixels, ≥ 0.
        edge_class_weight: factor of k per class [C].
        draw: weight random pixels instead, as many per image as there are edge pixels: a negative control, which has
            everything of the control but the place of the edges.
    """
    valid = target != ignore_index
    chosen = find_edges(target, valid, (1,) * (target.dim() - 1))
    if draw is not None:
        chosen = _random_pixels(valid, chosen.flatten(1).sum(1), draw)
    more = k if edge_class_weight is None else k * edge_class_weight[target.where(chosen, 0)]
    return valid + more * chosen


def _random_pixels(valid: Tensor, counts: Tensor, draw: torch.Generator) -> Tensor:
    """Choose this many valid pixels of each image."""
    order = torch.rand(valid.shape, generator=draw).to(valid.device).masked_fill(~valid, 2).flatten(1)
    rank = order.argsort(1).argsort(1)
    return (rank < counts[:, None]).view_as(valid)
