r"""The edge-aware loss in plain PyTorch: the specification, the fallback on any device, and the oracle of the tests.

Symbols, the same in every docstring here: logits x [B, C, *S] (C ≥ 2, float32 or float64), labels y [B, *S] int64
with S = (H, W) or (D, H, W), log p_i(c) = x_i(c) - logsumexp_c x_i; a pixel is *valid* when its label counts, and y is
read on valid pixels only. For a pixel i:

* N(i): the valid pixels n ≠ i inside the image with |n - i| ≤ radius along every axis; empty where i is not valid.
* E: the edge mask, the pixels i with some n in N(i) of another label, y_n ≠ y_i.
* d_n: the distance from n to the nearest valid pixel of another label; log w_n = -d_n / decay, or 0 without decay.
* M_q{e^t; w}: the weighted power mean with exponent q.

For i in E, with k = y_i, a_n = log p_n(k) and b_n = log(1 - p_n(k)):

    same side   S_i = -log M_q{ p_n(k)     : n ∈ N(i), y_n = k ; w_n }      consistency
    other side  O_i = -log M_q{ 1 - p_n(k) : n ∈ N(i), y_n ≠ k ; w_n }      no leak across the edge

    edge_i = other_side_weight · O_i + same_side_weight · S_i
    loss = ce_weight · Σ CE / W + edge_weight · Σ_E u edge / Σ_E u + region_weight · R
    W = Σ_valid weight[y_i],   u_i = edge_class_weight[y_i]

where R is the mean of the region terms of the images, weighted as their pixels are in W. The terms are computed here, R
in :mod:`edgeloss.region`; :mod:`edgeloss.reduction` sums them.

Nothing is computed outside its own set and masked afterwards, since 0 · inf is nan in the backward pass. There is no
epsilon: each logarithm is computed in the form that is exact where it is read. Everything is twice differentiable and
reproducible bit by bit on the CPU, hence ``index_select``: the backward pass of advanced indexing is not reproducible.
Lists of pixels hold their indices in the flattened batch, 0 ... B·|S| - 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss.inputs import Inputs, widest
from edgeloss.inputs import labels as labels
from edgeloss.opaque import opaque_to_compilers
from edgeloss.options import Options, radius_per_axis, spacing_per_axis
from edgeloss.reduction import Evaluation, TermMaps, count_edge_pixels, places_of_labels, sum_rows
from edgeloss.reduction import LossMaps as LossMaps

NO_POWER = 1e-30  # smaller exponents are treated as 0
FAR = 1e38  # all distances beyond so many decays are as far: no difference of two may overflow float32


def evaluate(inputs: Inputs, options: Options, *, edges: bool, maps: bool, count_edges: bool = False) -> Evaluation:
    """Return everything of the loss but its reduction.

    Args:
        inputs: the checked tensors; labels that are no class count as ignored.
        options: of the call.
        edges: compute the edge terms; else they are 0.
        maps: return the maps; d is then filled beyond the pixels that the loss reads.
        count_edges: return the number of edge pixels of each class too.
    """
    y, valid = labels(inputs.target, inputs.logits.shape[1], options.ignore_index)
    x = readable_logits(inputs.logits, valid)
    radius, power = clipped(radius_per_axis(options.radius, y.dim() - 1), y.shape), options.power
    mask = find_edges(y, valid, radius) if edges else torch.zeros_like(valid)
    distance = inputs.distance
    if options.decay is not None and distance is None:
        # The loss reads d at neighbors of edge pixels only; the map shows it wherever it is defined.
        read = valid if maps else valid & within_reach(mask, radius)
        distance = distance_map(y, valid, read, radius, spacing_per_axis(options.spacing, y.dim() - 1))
    same_side, other_side = edge_terms(x, y, valid, mask, log_weights(distance, options.decay), radius, power)
    terms = TermMaps(
        cross_entropy=cross_entropy_map(x, y, valid, inputs.weight, options.label_smoothing, inputs.tables),
        same_side=same_side,
        other_side=other_side,
        edge_mask=mask,
        distance=None if distance is None else distance.to(x.dtype, copy=True),
    )
    counts = count_edge_pixels(y, mask, x.shape[1], inputs.multilabel_classes) if count_edges else None
    return Evaluation(sum_rows(terms, y, valid, inputs), terms if maps else None, counts)


# ------------------------------------------------------------------------------------------------------------- the maps


def readable_logits(logits: Tensor, valid: Tensor) -> Tensor:
    """Return the logits in float32 or float64, at the resolution of the labels, of at least two classes.

    Args:
        logits: [B, C, *S'] of any floating dtype; S' may be of lower resolution than S.
        valid: [B, *S] bool.
    """
    x = at_label_resolution(logits, valid)
    if x.shape[1] == 1:  # one logit x is the two-class logits (0, x)
        x = torch.cat([torch.zeros_like(x), x], 1)
    return x


def at_label_resolution(logits: Tensor, valid: Tensor) -> Tensor:
    """Return the logits in float32 or float64 at the resolution of the labels; arguments as :func:`readable_logits`."""
    x = logits if logits.dtype == torch.float64 else logits.float()
    size = valid.shape[1:]
    if not valid.numel():
        x = x.flatten(2)[..., :0].reshape(*x.shape[:2], *size)
    elif x.shape[2:] != size:
        mode = "bilinear" if len(size) == 2 else "trilinear"
        # Interpolation multiplies cells that it does not need by 0, and 0 · nan is nan: cells without support among the
        # valid pixels are set to 0 first. The support is the adjoint of the interpolation, applied to the valid pixels.
        adjoint = getattr(torch.ops.aten, f"upsample_{mode}{len(size)}d_backward").default
        support = adjoint(valid[:, None].to(x.dtype), size, [x.shape[0], 1, *x.shape[2:]], False)
        x = F.interpolate(torch.where(support > 0, x, 0.0), size, mode=mode, align_corners=False)
    return x


def cross_entropy_map(
    x: Tensor, y: Tensor, valid: Tensor, weight: Tensor | None, label_smoothing: float, tables: int = 1
) -> Tensor:
    """Return CE [B, *S] like ``torch.nn.functional.cross_entropy(reduction="none")``; 0 on pixels not valid.

    Of several ``tables`` of class weights, image b has the one of b % tables.
    """
    # Select before any arithmetic: nan or inf logits of ignored pixels must not reach the value or the gradient.
    shifted, log_sum = _shifted(torch.where(valid[:, None], x, 0.0))
    label = torch.where(valid, y, 0)
    ce = log_sum - shifted.gather(1, label[:, None]).squeeze(1)
    if weight is not None:
        ce = ce * weight[places_of_labels(label, tables)]
    if label_smoothing:
        nll = log_sum[:, None] - shifted
        if weight is not None:
            nll = nll * weight.view(tables, -1).repeat(len(x) // tables, 1).view(*x.shape[:2], *[1] * (y.dim() - 1))
        ce = (1 - label_smoothing) * ce + label_smoothing * nll.sum(1) / x.shape[1]
    return torch.where(valid, ce, 0.0)


def find_edges(y: Tensor, valid: Tensor, radius: Sequence[int]) -> Tensor:
    """Return E as a bool mask [B, *S]."""
    # Some label in the window differs from that of the center if and only if the largest or the smallest one does.
    label = y.to(widest(y.device))
    largest = _window_max(torch.where(valid, label, -math.inf), radius)
    smallest = -_window_max(torch.where(valid, -label, -math.inf), radius)
    return valid & ((largest > label) | (smallest < label))


def log_weights(distance: Tensor | None, decay: float | None) -> Tensor | None:
    """Return log w = -d / decay [B, *S], finite also where d is not; None for equal weights."""
    if distance is None or decay is None:
        return None
    return -(distance.to(widest(distance.device)) / decay).clamp(max=FAR)


def within_reach(mask: Tensor, radius: Sequence[int]) -> Tensor:
    """Return the pixels within radius of a pixel of the mask, itself included: bool [B, *S]."""
    return _window_max(mask.to(torch.float32), radius) > 0


@opaque_to_compilers(lambda x, y, *_: (x.new_empty(y.shape), x.new_empty(y.shape)))
def edge_terms(
    x: Tensor,
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    log_w: Tensor | None,
    radius: Sequence[int],
    power: float,
) -> tuple[Tensor, Tensor]:
    """Return the maps S and O [B, *S], 0 outside the mask; log_w is [B, *S], or None for equal weights."""
    pairs = neighbor_pairs(x, y, valid, mask, log_w, radius)
    same_side, other_side = side_terms(pairs, pairs.t, power)
    empty = x.new_zeros(y.numel())
    return (
        empty.index_copy(0, pairs.center, same_side).view_as(y),
        empty.index_copy(0, pairs.center, other_side).view_as(y),
    )


class Pairs(NamedTuple):
    """All pairs (i, n) of an edge pixel i and a neighbor n, with what the edge terms of i read of n.

    Attributes:
        center: the edge pixels, [M].
        row: i = center[row], [P].
        n: the neighbor, [P].
        is_same: y_n = y_i: n belongs to S_i, otherwise to O_i; bool [P].
        t: a_n = log p_n(y_i) on the same side, b_n = log(1 - p_n(y_i)) on the other; [P], differentiable.
        log_w: [P].
    """

    center: Tensor
    row: Tensor
    n: Tensor
    is_same: Tensor
    t: Tensor
    log_w: Tensor


def neighbor_pairs(
    x: Tensor, y: Tensor, valid: Tensor, mask: Tensor, log_w: Tensor | None, radius: Sequence[int]
) -> Pairs:
    """Return the pairs of the pixels of the mask; log_w is [B, *S], or None for equal weights."""
    center = mask.flatten().nonzero().squeeze(1)
    y_flat = y.flatten()
    reach = clipped(radius, y.shape)
    grid = Grid(valid, reach)
    place = grid.place(center)
    parts = [grid.neighbors(place, offset) for offset in offsets(reach)] or [(center[:0], center[:0])]
    row, n = (torch.cat(part) for part in zip(*parts, strict=True))

    k = y_flat[center][row]
    is_same = y_flat[n] == k
    t = log_terms(x, n, k, is_same)
    w = t.new_zeros(t.shape) if log_w is None else log_w.flatten()[n]
    return Pairs(center, row, n, is_same, t, w)


def log_terms(x: Tensor, n: Tensor, k: Tensor, is_same: Tensor) -> Tensor:
    """Return log p_n(k) of pairs of a pixel n and a class k that are on the same side, log(1 - p_n(k)) of others."""
    logits, shifted, log_sum, at = gathered(x, n)
    a = take(shifted.flatten(), at * x.shape[1] + k) - take(log_sum, at)
    other = (~is_same).nonzero().squeeze(1)
    b = _log_one_minus_p(take(a, other), k[other], at[other], logits, log_sum)
    return a.index_copy(0, other, b)


def side_terms(pairs: Pairs, t: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """Return S and O of the edge pixels, [M] each; t is ``pairs.t``, or a leaf with its values."""

    def term(chosen: Tensor) -> Tensor:
        at = chosen.nonzero().squeeze(1)
        return negative_log_mean(take(t, at), pairs.log_w[at], pairs.row[at], len(pairs.center), power)

    return term(pairs.is_same), term(~pairs.is_same)


@opaque_to_compilers(lambda y, *_: y.new_empty(y.shape, dtype=widest(y.device)))
def distance_map(y: Tensor, valid: Tensor, read: Tensor, radius: Sequence[int], spacing: Sequence[float]) -> Tensor:
    """Return d [B, *S] at the pixels of the bool mask ``read``, inf elsewhere; see :func:`local_distance`."""
    at = read.flatten().nonzero().squeeze(1)
    distance = torch.full((y.numel(),), math.inf, dtype=widest(y.device), device=y.device)
    distance[at] = local_distance(y, valid, at, radius, spacing)
    return distance.view_as(y)


def local_distance(y: Tensor, valid: Tensor, at: Tensor, radius: Sequence[int], spacing: Sequence[float]) -> Tensor:
    """Return d at the valid pixels ``at``, [len(at)], by a search in the labels; inf beyond 2 ‖radius · spacing‖.

    A neighbor n of an edge pixel i is never beyond: n is within ‖radius · spacing‖ of i, and so is some pixel j with
    y_j ≠ y_i; y_i or y_j differs from y_n.
    """

    def length(offset: Sequence[int]) -> float:
        return math.hypot(*(o * s for o, s in zip(offset, spacing, strict=True)))

    limit = 2 * length(radius)
    reach = clipped([math.ceil(limit / s) for s in spacing], y.shape)
    window = sorted((o for o in offsets(reach) if length(o) <= limit), key=length)
    grid, y_flat = Grid(valid, reach), y.flatten()
    d = torch.full(at.shape, math.inf, dtype=widest(y.device), device=y.device)
    left, place, label = torch.arange(len(at), device=y.device), grid.place(at), y_flat[at]
    for distance, ring in itertools.groupby(window, key=length):  # from near to far
        for offset in ring:
            row, n = grid.neighbors(place, offset)
            d[left[row[y_flat[n] != label[row]]]] = distance
        still = d[left].isinf()
        left, place, label = left[still], place[still], label[still]
        if not len(left):
            break
    return d


# ------------------------------------------------------------------------------------------------------- neighborhoods


def offsets(radius: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the K = ∏(2 · radius_a + 1) - 1 offsets of a neighborhood, row-major, without the center."""
    window = itertools.product(*(range(-r, r + 1) for r in radius))
    return [offset for offset in window if any(offset)]


class Grid:
    """Look up the neighbors of pixels.

    A table holds the index of each pixel, or -1 where it does not exist, with a margin of -1 around each image: every
    neighbor is then at a constant step in the table.

    Args:
        exists: [B, *S] bool.
        reach: the largest offset along each axis.
    """

    def __init__(self, exists: Tensor, reach: Sequence[int]) -> None:
        """Build the table."""
        self._shape, self._reach = exists.shape, reach
        numbers = torch.arange(exists.numel(), device=exists.device).view_as(exists)
        table = F.pad(torch.where(exists, numbers, -1), [r for r in reversed(reach) for _ in range(2)], value=-1)
        self._strides, self._table = table.stride(), table.flatten()

    def place(self, pixels: Tensor) -> Tensor:
        """Return the positions of pixels [M] in the table, [M] int64."""
        places = torch.unravel_index(pixels, self._shape)
        shifts = (0, *self._reach)
        return torch.stack([(p + r) * s for p, r, s in zip(places, shifts, self._strides, strict=True)]).sum(0)

    def neighbors(self, place: Tensor, offset: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the pixels n at the offset from those at ``place``, as (row of place, n): [P] int64 each."""
        n = self._table[place + sum(o * s for o, s in zip(offset, self._strides[1:], strict=True))]
        row = (n >= 0).nonzero().squeeze(1)
        return row, n[row]


def _window_max(values: Tensor, radius: Sequence[int]) -> Tensor:
    """Return the largest of values [B, *S] in the window of each pixel, without pixels outside."""
    if not values.numel():
        return values
    pool = F.max_pool2d if len(radius) == 2 else F.max_pool3d
    windows = values[:, None]
    for axis, reach in enumerate(clipped(radius, values.shape)):  # one after another: a wide window takes no square
        padding = [reach if a == axis else 0 for a in range(len(radius))]
        windows = pool(windows, [2 * r + 1 for r in padding], stride=1, padding=padding)
    return windows[:, 0]


def clipped(radius: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the radius, clipped to what an image of shape (B, *S) needs."""
    return [min(r, max(length - 1, 0)) for r, length in zip(radius, shape[1:], strict=True)]


# ----------------------------------------------------------------------------------------------------------- logarithms


def _shifted(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x - max and log Σ exp(x - max) over dim 1; log p is their difference, exact at any offset of x.

    log p does not depend on the shift, so max is detached without a change of any derivative.
    """
    shifted = x - x.amax(1, keepdim=True).detach()
    return shifted, shifted.exp().sum(1).log()


def gathered(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logits and ``_shifted`` of the pixels in n, [M, C] twice and [M], and the row of each of n in them, [P].

    A pixel is the neighbor of many: it is computed once. Other pixels are not read.
    """
    pixels, at = torch.unique(n, return_inverse=True)
    logits = take(x.movedim(1, -1).reshape(-1, x.shape[1]), pixels)
    return logits, *_shifted(logits), at


def log_sum_of_chosen(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return log Σ exp(x - max) [N] over the chosen classes alone, the max being that of all; both are [N, C].

    The max of the chosen ones is kept apart from the rest: far below that of all, one number has no digits for both,
    and the derivatives, the softmax over the chosen ones, would not add up to 1.
    """
    x = logits.masked_fill(~chosen, -math.inf)
    top = x.amax(1, keepdim=True).detach().clamp(min=torch.finfo(x.dtype).min)
    return (top[:, 0] - logits.amax(1).detach()) + (x - top).exp().sum(1).log()


def _log_one_minus_p(log_p: Tensor, k: Tensor, at: Tensor, logits: Tensor, log_sum: Tensor) -> Tensor:
    """Return b = log(1 - p(k)) of each pair, [P], exact for every p.

    Args:
        log_p: a = log p(k), [P].
        k: the class, [P].
        at: the row of the pixel of the pair in logits and log_sum, [P].
        logits: [M, C].
        log_sum: [M].
    """
    likely = log_p > -math.log(2)
    # For p ≤ 1/2. Elsewhere this branch reads a harmless -1, so that its gradient is finite.
    b = torch.log1p(-torch.where(likely, -1.0, log_p).exp())
    # For p > 1/2, 1 - p would cancel: sum the other classes instead, once for all pairs of the same pixel and class.
    classes = logits.shape[1]
    rows = likely.nonzero().squeeze(1)
    keys, back = torch.unique(at[rows] * classes + k[rows], return_inverse=True)
    at, k = keys // classes, keys % classes
    others = torch.ones(len(at), classes, dtype=torch.bool, device=k.device).scatter(1, k[:, None], False)
    rest = log_sum_of_chosen(take(logits, at), others) - take(log_sum, at)
    return b.index_copy(0, rows, take(rest, back))


def negative_log_mean(t: Tensor, log_w: Tensor, row: Tensor, count: int, power: float) -> Tensor:
    """Return -log M_q{e^t; w} of the terms of each row, q = power, [count]; 0 for a row without terms.

        -(1/q) · [logsumexp(log w + q t) - logsumexp(log w)],   q ≠ 0
        -Σ w t / Σ w,                                           q = 0

    Args:
        t: [P], logarithms of the values to average, ≤ 0.
        log_w: [P], logarithms of the weights, float64 or the dtype of t.
        row: [P] int64, the row of each term.
        count: number of rows.
        power: the exponent q.
    """
    present, row = torch.unique(row, return_inverse=True)

    def largest(values: Tensor) -> Tensor:
        return values.new_full((len(present),), -math.inf).scatter_reduce(0, row, values.detach(), "amax")

    def add(values: Tensor) -> Tensor:
        return values.new_zeros(len(present)).index_add(0, row, values)

    def logsumexp(values: Tensor) -> Tensor:
        top = largest(values)
        return top + add((values - top[row]).exp()).log()

    # A common factor of the weights cancels; it is removed first, since it would cost t digits.
    log_w = (log_w - largest(log_w)[row]).to(t.dtype)
    pi = log_w.exp()
    pi = pi / add(pi)[row]
    mean = add(pi * t)
    if abs(power) > NO_POWER:
        # log M = c + log(Σ π e^{q (t - c)}) / q for any constant c. Where the exponents are small, c is the mean of t:
        # the sum is then 1 + Σ π expm1(...), without rounding errors for 1/q to amplify. Elsewhere c is the dominant t.
        center = mean.detach()
        exponent = power * (t - center[row])
        near = largest(exponent.abs()) <= 1
        small = torch.where(near[row], exponent, 0.0)
        first = largest(t) if power > 0 else -largest(-t)
        far = first + (logsumexp(log_w + power * (t - first[row])) - logsumexp(log_w)) / power
        mean = torch.where(near, center + add(pi * torch.expm1(small)).log1p() / power, far)
    mean = mean - mean.detach().clamp(min=0)  # M ≤ 1: rounding must not make the loss negative
    return t.new_zeros(count).index_copy(0, present, -mean)


# ---------------------------------------------------------------------------------------------------------------- tools


def take(values: Tensor, index: Tensor) -> Tensor:
    """Return values[index] along dim 0, with a reproducible backward pass."""
    return values.index_select(0, index)
