"""From labels alone to what the edge terms take of them: counts of edge pixels, and weights of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgeloss._checks.inputs import Inputs, widest
from edgeloss._reduction import places_of_labels
from edgeloss._reference.neighborhoods import Grid, clipped


def edge_pixels(y: Tensor, mask: Tensor, inputs: Inputs, classes: int) -> Tensor:
    """Return n = Σ v over the edge pixels of each class, [C], or [2C] of a multilabel call."""
    v, wide = inputs.pixel_weight, widest(y.device)
    n = torch.zeros(classes * inputs.tables, dtype=wide, device=y.device)
    place = torch.where(mask, places_of_labels(y, inputs.tables), 0)
    return n.index_add_(0, place.flatten(), (mask if v is None else torch.where(mask, v, 0.0)).to(wide).flatten())


class EdgeWeights(NamedTuple):
    """How much the edge terms with ``power=0`` look at each pixel, from the labels alone.

    Attributes:
        same_side: A, the weight of -log p_n(y_n) at each pixel n, [B, *S]; of a multilabel target [B, C, *S]. Adds up
            to E, but for edge pixels without a neighbor of their own class.
        pixel: n, the pixels that the other side looks at, once for each class k of the edge pixels around it, as
            indices in the flattened target, [L] int64 in ascending order.
        other_class: k, [L] int64.
        other_side: B, the weight of -log(1 - p_n(k)), > 0, [L]. Adds up to E.
        total: E = Σ_E v · u, 0-d, by which ``reduction="mean"`` divides.
    """

    same_side: Tensor
    pixel: Tensor
    other_class: Tensor
    other_side: Tensor
    total: Tensor


def weigh_neighbors(
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    log_w: Tensor | None,
    v: Tensor | None,
    radius: Sequence[int],
    classes: int,
) -> EdgeWeights:
    """Return A, B and E of maps [B, *S], without u; log w is None for equal weights, v for ones. Labels are < classes.

    Symbols are those of :mod:`edgeloss._reference.terms`, v = ``pixel_weight``. The logarithm of a neighbor n is read
    by the edge pixels i around it, each with its share of a mean. Sorted by n instead of by i,

        Σ_E v S = Σ_n A_n · -log p_n(y_n)               A_n    = w_n · Σ { v_i / D_i  : n ∈ N(i), y_i = y_n }
        Σ_E v O = Σ_n Σ_k B_n(k) · -log(1 - p_n(k))     B_n(k) = w_n · Σ { v_i / D'_i : n ∈ N(i), y_i = k ≠ y_n }

    where i ∈ E, and D_i and D'_i are the sums of w over the neighbors of i on its own side and on the other. The sums
    over the edge pixels of class c alone are those over A_n with y_n = c, and over B_n(c).
    """
    center, label, wide = mask.flatten().nonzero().squeeze(1), y.flatten(), widest(y.device)
    weight = torch.ones_like(center, dtype=wide) if v is None else v.flatten()[center].to(wide)
    same_side, grid = torch.zeros_like(label, dtype=wide), Grid(valid, clipped(radius, y.shape))
    key, other_side = center[:0], weight[:0]  # n · C + k
    for i, of_i in zip(grid.split(center), grid.split(weight), strict=True):
        row, n = grid.pairs(i)
        k = label[i][row]
        is_same = label[n] == k
        share = side_shares(row, is_same, None if log_w is None else log_w.flatten()[n], len(i), wide) * of_i[row]
        same_side.index_add_(0, n[is_same], share[is_same])
        across = ~is_same
        key, place = torch.unique(torch.cat([key, (n * classes + k)[across]]), return_inverse=True)
        other_side = torch.zeros_like(key, dtype=wide).index_add_(0, place, torch.cat([other_side, share[across]]))
    key, other_side = key[other_side > 0], other_side[other_side > 0]
    return EdgeWeights(same_side.view_as(y), key // classes, key % classes, other_side, weight.sum())


def side_shares(row: Tensor, is_same: Tensor, log_w: Tensor | None, count: int, dtype: torch.dtype) -> Tensor:
    """Return w_n over the sum of w on the same side of the edge pixel, of each pair, [P].

    ``row`` is the number of the edge pixel, below ``count``; ``is_same``, whether n is on its own side.
    """
    side = 2 * row + is_same
    sums = torch.zeros(2 * count, dtype=dtype, device=row.device)
    w = torch.ones_like(side, dtype=dtype)
    if log_w is not None:  # relative to the largest of the side: all may be below the smallest number
        largest = torch.full_like(sums, -math.inf).scatter_reduce_(0, side, log_w, "amax")
        w = (log_w - largest[side]).exp()
    return w / sums.index_add_(0, side, w)[side]
