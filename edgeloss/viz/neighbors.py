"""The neighbors that the edge terms of a pixel come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss import neighborhoods, reference
from edgeloss.loss import EdgeAwareLoss
from edgeloss.options import radius_per_axis

_MOST_PAIRS = 2**22  # of an edge pixel and a neighbor at a time


class Neighbors(NamedTuple):
    """The neighbors of the M edge pixels that contribute most to their two edge terms, T for each.

    Edge pixels i are in the order of the flattened batch.

    Attributes:
        step: [2, T, M] int16, rows down and columns right from the edge pixel; (0, 0) if it has fewer neighbors.
        nll: [T, M] float, the neighbor's loss: -log p_n(y_i) on the same side, -log(1 - p_n(y_i)) on the other, of its
            probability of the class of the edge pixel.
        share: [T, M] float, π_n, the neighbor's share of the gradient of the term.
    """

    step: npt.NDArray[np.int16]
    nll: npt.NDArray[Any]
    share: npt.NDArray[Any]


def join_neighbors(parts: Sequence[Neighbors]) -> Neighbors:
    """Return the neighbors in bands of an image, in their order."""
    return Neighbors(*(np.concatenate(values, -1) for values in zip(*parts, strict=True)))


def find_neighbors(
    x: Tensor, y: Tensor, valid: Tensor, edges: Tensor, distance: Tensor | None, loss: EdgeAwareLoss, count: int
) -> Neighbors:
    """Find out which neighbors the edge terms come from.

    Neighbors are in falling order of weight times ``nll``, which for ``power=0`` is their part of the term.

    Args:
        x: [B, C, H, W], logits of at least two classes, of a band of rows.
        y: [B, H, W] int64, the labels; anything at ignored pixels.
        valid: [B, H, W] bool.
        edges: [B, H, W] bool, the edge pixels whose neighbors to find.
        distance: the map of that name; None without a decay.
        loss: whose radius, power and decay are used.
        count: T, the number of neighbors per edge pixel.

    Returns:
        The neighbors, on the CPU.
    """
    log_w = neighborhoods.log_weights(distance, loss.decay)
    radius = neighborhoods.clipped(radius_per_axis(loss.radius, 2), y.shape)
    power = 0.0 if abs(loss.power) <= reference.NO_POWER else loss.power
    centers = edges.flatten().nonzero().squeeze(1)
    step = torch.zeros(2, count, len(centers), dtype=torch.int16, device=y.device)
    table = x.new_full((2, *step.shape[1:]), torch.nan)
    width, size = y.shape[-1], max(1, _MOST_PAIRS // math.prod(2 * r + 1 for r in radius))
    for first in range(0, len(centers), size):
        mask = torch.zeros_like(edges)
        mask.view(-1)[centers[first : first + size]] = True
        pairs = reference.neighbor_pairs(x, y, valid, mask, log_w, radius)
        with torch.inference_mode(False), torch.enable_grad():
            leaf = pairs.t.clone().requires_grad_()
            share = -torch.autograd.grad(torch.cat(reference.side_terms(pairs, leaf, power)).sum(), leaf)[0]
        order, rank = _largest(pairs, count)
        center, n, t = pairs.center[pairs.row[order]], pairs.n[order], pairs.t[order]
        place = first + pairs.row[order]
        step[:, rank, place] = torch.stack([n // width - center // width, n % width - center % width]).short()
        table[:, rank, place] = torch.stack([-t, share[order].to(t.dtype)])
    return Neighbors(step.cpu().numpy(), *table.cpu().numpy())


def _largest(pairs: reference.Pairs, count: int) -> tuple[Tensor, Tensor]:
    """Return indices of the ``count`` pairs of largest weighted loss of each edge pixel, and their ranks."""
    # By the logarithm of weight times loss; losses that are not finite come first. The stable sort groups the pairs by
    # edge pixel and keeps the falling order within each group.
    order = (pairs.log_w + (-pairs.t).log()).nan_to_num(torch.inf).argsort(descending=True)
    order = order[pairs.row[order].argsort(stable=True)]
    row = pairs.row[order]
    rank = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    return order[rank < count], rank[rank < count]
