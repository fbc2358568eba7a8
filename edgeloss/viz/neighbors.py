"""The neighbors that the edge terms of a pixel come from."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeloss._reference.terms import Pairs, side_terms


def find_neighbors(
    pairs: Pairs, *, power: float, count: int, width: int
) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Return the two edge terms of edge pixels, and the neighbors that contribute most to them.

    Neighbors are in falling order of weight times ``nll``, which for ``power=0`` is their part of the term.

    Args:
        pairs: the M edge pixels, each with all its neighbors.
        power: of the means.
        count: T, the number of neighbors per edge pixel; none are returned for 0.
        width: of the image.

    Returns:
        The terms on the same side and the other side, [M] each, and ``step``, ``nll`` and ``share`` of the neighbors,
        which :class:`edgeloss.viz.arrays.Details` describes.
    """
    if not count:
        return side_terms(pairs, pairs.t, power), {}
    with torch.inference_mode(False), torch.enable_grad():
        leaf = pairs.t.clone().requires_grad_()
        sides = side_terms(pairs, leaf, power)
        share = -torch.autograd.grad(torch.cat(sides).sum(), leaf)[0]
    order, rank = _largest(pairs, count)
    row, t = pairs.row[order], pairs.t[order]
    center, n = pairs.center[row], pairs.n[order]
    step = torch.zeros(2, count, len(pairs.center), dtype=torch.int16, device=t.device)
    step[:, rank, row] = torch.stack([n // width - center // width, n % width - center % width]).short()
    nll, share_of = t.new_full((2, *step.shape[1:]), torch.nan)
    nll[rank, row], share_of[rank, row] = -t, share[order].to(t.dtype)
    same_side, other_side = (side.detach() for side in sides)
    return (same_side, other_side), {"step": step, "nll": nll, "share": share_of}


def _largest(pairs: Pairs, count: int) -> tuple[Tensor, Tensor]:
    """Return indices of the ``count`` pairs of largest weighted loss of each edge pixel, and their ranks."""
    # By the logarithm of weight times loss; losses that are not finite come first. The stable sort groups the pairs by
    # edge pixel and keeps the falling order within each group.
    order = (pairs.log_w + (-pairs.t).log()).nan_to_num(torch.inf).argsort(descending=True)
    order = order[pairs.row[order].argsort(stable=True)]
    row = pairs.row[order]
    rank = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    return order[rank < count], rank[rank < count]
