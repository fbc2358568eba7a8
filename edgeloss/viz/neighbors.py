"""The neighbors that the edge terms of a pixel come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import neighborhoods, reference
from edgeloss.functional import loss_maps
from edgeloss.loss import EdgeAwareLoss
from edgeloss.options import radius_per_axis
from edgeloss.viz.arrays import prepare

_MOST_PAIRS = 2**22  # of an edge pixel and a neighbor at a time
_MOST_PAIRS_PER_PIXEL = 2  # and class: with more of them, all pixels take less time, class by class


class Neighbors(NamedTuple):
    """The neighbors of the M edge pixels that contribute most to their two edge terms, T for each.

    Edge pixels i are in the order of the flattened batch.

    Attributes:
        step: [2, T, M] int64, rows down and columns right from the edge pixel; (0, 0) if it has fewer neighbors.
        probability: [T, M] float, p_n(y_i), the neighbor's probability of the class of the edge pixel.
        nll: [T, M] float, the neighbor's loss: -log p_n(y_i) on the same side, -log(1 - p_n(y_i)) on the other.
        share: [T, M] float, π_n, the neighbor's share of the gradient of the term.
    """

    step: npt.NDArray[np.int64]
    probability: npt.NDArray[Any]
    nll: npt.NDArray[Any]
    share: npt.NDArray[Any]


def compute_neighbors(
    logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None, count: int = 8
) -> Neighbors:
    """Compute which neighbors the edge terms come from; arguments as in :func:`~edgeloss.viz.arrays.compute_arrays`.

    Neighbors are in falling order of weight times ``nll``, which for ``power=0`` is their part of the term.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating.
        target: [B, H, W] or [H, W] integer.
        criterion: the loss; its radius, power and decay are used.
        count: T, the number of neighbors per edge pixel.

    Returns:
        The neighbors, on the CPU.
    """
    criterion, logits, target = prepare(logits, target, criterion)
    batch = _Batch.of(logits, target, criterion)
    pixels, classes = batch.y.numel(), len(torch.unique(batch.y[batch.mask]))
    window = math.prod(min(2 * r + 1, n) for r, n in zip(batch.radius, batch.y.shape[1:], strict=True))
    is_wide = int(batch.mask.sum()) * window > _MOST_PAIRS_PER_PIXEL * classes * pixels
    parts = _wide_windows(batch, count) if is_wide else _windows_one_by_one(batch, window, count)
    step = torch.zeros(2, count, int(batch.mask.sum()), dtype=torch.int64, device=logits.device)
    table = batch.x.new_full((3, *step.shape[1:]), torch.nan)
    width = target.shape[-1]
    for found in parts:
        place, rank = found.place, found.rank
        center, n = batch.centers[place], found.n
        # Both pixels are in one image: the difference of their rows is that of their rows in the flattened batch.
        step[:, rank, place] = torch.stack([n // width - center // width, n % width - center % width])
        p = torch.where(found.is_same, found.t.exp(), -found.t.expm1())
        table[:, rank, place] = torch.stack([p, -found.t, found.share.to(p.dtype)])
    return Neighbors(step.cpu().numpy(), *table.cpu().numpy())


class _Batch(NamedTuple):
    """What the edge terms are computed from, with the names of :mod:`edgeloss.reference`."""

    x: Tensor
    y: Tensor
    valid: Tensor
    mask: Tensor
    centers: Tensor  # the pixels of the mask
    log_w: Tensor | None
    radius: tuple[int, ...]
    power: float

    @classmethod
    def of(cls, logits: Tensor, target: Tensor, criterion: EdgeAwareLoss) -> _Batch:
        """Find edges and weights of a batch."""
        y, valid = reference.labels(target, logits.shape[1], criterion.ignore_index)
        x = reference.readable_logits(logits.detach(), valid)
        names = ("ignore_index", "radius", "decay", "spacing", "validate", "backend")
        maps = loss_maps(x, target, **{name: getattr(criterion, name) for name in names})
        mask, log_w = maps.edge_mask, neighborhoods.log_weights(maps.distance, criterion.decay)
        radius = neighborhoods.clipped(radius_per_axis(criterion.radius, 2), y.shape)
        power = 0.0 if abs(criterion.power) <= reference.NO_POWER else criterion.power
        return cls(x, y, valid, mask, mask.flatten().nonzero().squeeze(1), log_w, tuple(radius), power)


class _Found(NamedTuple):
    """Some neighbors of some edge pixels, [P] each."""

    place: Tensor  # of the edge pixel among all
    rank: Tensor
    n: Tensor
    is_same: Tensor
    t: Tensor
    share: Tensor


def _log_weighted(t: Tensor, log_w: Tensor) -> Tensor:
    """Return the logarithm of weight times loss, by which neighbors are ordered; non-finite losses come first."""
    return (log_w + (-t).log()).nan_to_num(torch.inf)


# ----------------------------------------------------------------------------------------- by pairs, in narrow windows


def _windows_one_by_one(batch: _Batch, window: int, count: int) -> Iterator[_Found]:
    """Find the neighbors of some edge pixels at a time, from all their pairs."""
    size = max(1, _MOST_PAIRS // window)
    for first in range(0, len(batch.centers), size):
        mask = torch.zeros_like(batch.mask)
        mask.view(-1)[batch.centers[first : first + size]] = True
        pairs = reference.neighbor_pairs(batch.x, batch.y, batch.valid, mask, batch.log_w, batch.radius)
        with torch.inference_mode(False), torch.enable_grad():
            leaf = pairs.t.clone().requires_grad_()
            terms = torch.cat(reference.side_terms(pairs, leaf, batch.power)).sum()
            share = -torch.autograd.grad(terms, leaf)[0]
        order, rank = _largest(pairs, count)
        chosen = (values[order] for values in (pairs.n, pairs.is_same, pairs.t, share))
        yield _Found(first + pairs.row[order], rank, *chosen)


def _largest(pairs: reference.Pairs, count: int) -> tuple[Tensor, Tensor]:
    """Return indices of the ``count`` pairs of largest weighted loss of each edge pixel, and their ranks."""
    # The stable sort groups the pairs by edge pixel and keeps the falling order within each group.
    order = _log_weighted(pairs.t, pairs.log_w).argsort(descending=True)
    order = order[pairs.row[order].argsort(stable=True)]
    row = pairs.row[order]
    rank = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    return order[rank < count], rank[rank < count]


# ------------------------------------------------------------------------------------------ by classes, in wide windows
# t depends on the neighbor and on the class of the edge pixel alone. Class by class, the largest values of windows, and
# the sums that shares are parts of, are merged along the columns of the windows and then along their rows.


def _wide_windows(batch: _Batch, count: int) -> Iterator[_Found]:
    """Find the neighbors of the edge pixels of one image and class at a time, from all pixels of the image."""
    pixels = batch.y[0].numel()
    label = batch.y.flatten()[batch.centers]
    for image in range(len(batch.y)):
        at = slice(image * pixels, (image + 1) * pixels)
        valid = at.start + batch.valid[image].flatten().nonzero().squeeze(1)
        own = batch.centers // pixels == image
        for k in torch.unique(label[own]).tolist():
            yield _neighbors_of_class(batch, at, valid, k, (own & (label == k)).nonzero().squeeze(1), count)


def _neighbors_of_class(batch: _Batch, at: slice, valid: Tensor, k: int, place: Tensor, count: int) -> _Found:
    """Find the neighbors of the edge pixels at ``place`` in their list, which are of class k and in one image.

    Args:
        batch: the images.
        at: the pixels of the image.
        valid: those that are valid.
        k: the class.
        place: of the edge pixels in ``batch.centers``.
        count: of neighbors per edge pixel.
    """
    size, centers = batch.y.shape[1:], batch.centers[place] - at.start
    is_same = batch.y.flatten()[valid] == k
    t = reference.log_terms(batch.x, valid, torch.full_like(valid, k), is_same)
    log_w = t.new_zeros(t.shape) if batch.log_w is None else batch.log_w.flatten()[valid]
    row, column = centers // size[1], centers % size[1]
    seen = [
        slice(max(int(c.min()) - r, 0), int(c.max()) + r + 1) for c, r in zip((row, column), batch.radius, strict=True)
    ]

    def merged(values: Tensor, merge: _Merge, nothing: float) -> Tensor:
        windows = _merge_neighbors(values.view(-1, *size)[:, seen[0], seen[1]], batch.radius, merge, nothing)
        return windows[:, row - seen[0].start, column - seen[1].start]

    # The sums, of both sides: shares are relative to them.
    exponent = (log_w + batch.power * t if batch.power else log_w).double()
    exponents = exponent.new_full((2, at.stop - at.start), -math.inf)
    exponents[(~is_same).long(), valid - at.start] = exponent
    log_sum = merged(exponents, torch.logaddexp, -math.inf)

    # The largest values, by their ranks among all, -1 for none: where in rising order the pixels are.
    order = _log_weighted(t, log_w).argsort()
    ranks = torch.full((2 ** math.ceil(math.log2(count)), at.stop - at.start), -1, dtype=torch.int32, device=t.device)
    ranks[0, valid[order] - at.start] = torch.arange(len(order), dtype=torch.int32, device=t.device)
    largest = merged(ranks, _merge_falling, -1)[:count]

    rank, i = (largest >= 0).nonzero().unbind(1)
    chosen = order[largest[rank, i].long()]
    share = (exponent[chosen] - log_sum[(~is_same[chosen]).long(), i]).exp()
    return _Found(place[i], rank, valid[chosen], is_same[chosen], t[chosen], share)


_Merge = Callable[[Tensor, Tensor], Tensor]


def _merge_falling(one: Tensor, other: Tensor) -> Tensor:
    """Return the T largest numbers of two lists [T, ...] in falling order, in this order; T is a power of two."""
    merged, half = torch.maximum(one, other.flip(0)), len(one) // 2  # rising and then falling, or part of it
    while half:
        first, second = merged.view(-1, 2, half, *merged.shape[1:]).unbind(1)
        merged = torch.stack([torch.maximum(first, second), torch.minimum(first, second)], 1).view_as(merged)
        half //= 2
    return merged


def _merge_neighbors(values: Tensor, radius: Sequence[int], merge: _Merge, nothing: float) -> Tensor:
    """Merge the values [..., H, W] of the pixels in the window of each pixel but its own; ``nothing`` outside."""
    down, right = radius
    columns = _merge_sides(values, -2, down, merge, nothing)
    rows = functools.reduce(merge, [values, *columns])
    return functools.reduce(merge, [*columns, *_merge_sides(rows, -1, right, merge, nothing)])


def _merge_sides(values: Tensor, axis: int, reach: int, merge: _Merge, nothing: float) -> list[Tensor]:
    """Merge the values of as many places before each along an axis, and of as many after it; none for no reach."""
    if not reach:
        return []
    around = [0, 0] * (-1 - axis) + [reach, reach]
    span, length = F.pad(values, around, value=nothing), 1  # from each place on
    merged, merged_length = span[..., :0, :0], 0
    while True:  # by the binary digits of reach
        if reach & length:
            merged = span if not merged_length else _merge_shifted(merged, span, merged_length, axis, merge)
            merged_length += length
        if merged_length == reach:
            break
        span, length = _merge_shifted(span, span, length, axis, merge), 2 * length
    n = values.shape[axis]
    return [merged.narrow(axis, first, n) for first in (0, reach + 1)]


def _merge_shifted(one: Tensor, other: Tensor, shift: int, axis: int, merge: _Merge) -> Tensor:
    """Merge values with those of another tensor that are further along an axis, as far as both go."""
    n = min(one.shape[axis], other.shape[axis] - shift)
    return merge(one.narrow(axis, 0, n), other.narrow(axis, shift, n))
