"""False edges: a candidate third term, for edges that are drawn where there are none."""

from __future__ import annotations

from torch import Tensor

from edgeloss import reference


def false_edges(logits: Tensor, target: Tensor, *, ignore_index: int, power: float) -> Tensor:
    """The same-side term S at the valid pixels off the edge mask E that the prediction has an edge at, over |E|.

    The prediction is the most likely class, detached; a pixel has an edge where one of its 8 valid neighbours has
    another one.

    Args:
        logits: [B, C, H, W].
        target: [B, H, W].
        ignore_index: the label that does not count.
        power: exponent of the mean over the neighbours.
    """
    y, valid = reference.labels(target, logits.shape[1], ignore_index)
    x = reference.readable_logits(logits, valid)
    edges = reference.edge_mask(y, valid, (1, 1))
    drawn = reference.edge_mask(x.detach().argmax(1), valid, (1, 1))
    same_side, _ = reference.edge_terms(x, y, valid, drawn & ~edges, None, (1, 1), power)
    return same_side.sum() / edges.sum().clamp(min=1)
