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

The terms and their sums over the pixels of an image and a class are computed here, the region term in
:mod:`edgeloss._reference.region`; :mod:`edgeloss._reduction` makes the loss of the sums.

Nothing is computed outside its own set and masked afterwards, since 0 · inf is nan in the backward pass. There is no
epsilon: each logarithm is computed in the form that is exact where it is read. Everything is twice differentiable and
reproducible bit by bit on the CPU, hence ``index_select``: the backward pass of advanced indexing is not reproducible.
Lists of pixels hold their indices in the flattened batch, 0 ... B·|S| - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss._checks.inputs import Call, check_labels_of, check_values, result_dtype, widest
from edgeloss._checks.options import NO_POWER, Options
from edgeloss._reduction import LossMaps, Places, Sums, edge_term, places_of_labels, weigh, weights_of_pixels
from edgeloss._reference import region
from edgeloss._reference.custom_ops import opaque_to_compilers
from edgeloss._reference.interpolate import readable_logits
from edgeloss._reference.label_weights import weigh_neighbors
from edgeloss._reference.neighborhoods import PART, Grid, clipped, find_edges, neighbor_weights
from edgeloss._reference.parts import by_parts, of_rows


def evaluate(call: Call, by_kernels: Callable[..., tuple[Tensor, Tensor]] | None = None) -> Sums:
    """Return the sums of a call, and its maps if it has some. Labels that are no class count as ignored.

    Without ``edges`` the edge terms are 0. With ``power`` ≠ 0 ``by_kernels``, if given, computes the edge terms instead
    of :func:`edge_terms`.

    Raises:
        ValueError: if labels are out of range, unless ``validate`` says otherwise.
    """
    inputs, options, edges, maps, _ = call
    check_values("logits", inputs.logits)
    if options.validate != "never":
        check_labels_of(inputs, options)
    regions = None
    if options.region_weight > 0:
        # Of half precision, the gradients of all terms are rounded as one sum.
        inputs = inputs._replace(logits=inputs.logits.to(result_dtype(inputs.logits)))
        inputs, regions = region.evaluate(inputs)
    y, valid = inputs.labels()
    x, v = readable_logits(inputs.logits, valid), inputs.pixel_weight
    radius, power, classes = clipped(inputs.radius, y.shape), options.power, max(2, inputs.logits.shape[1])
    mask = find_edges(y, valid, radius) if edges else torch.zeros_like(valid)
    places = Places(y, mask, classes)
    distance, log_w = neighbor_weights(inputs, y, valid, mask, options.decay, everywhere=maps)
    x, cross_entropy = cross_entropy_map(x, y, valid, inputs.weight, options.label_smoothing, inputs.tables)
    if maps or abs(power) > NO_POWER:
        sides = (by_kernels or edge_terms)(x, y, valid, mask, log_w, radius, power)
        of_edges = torch.stack([places.sum(weigh(side, v)) for side in sides])
    else:
        of_edges = edge_sums(x, y, valid, mask, log_w, v, radius)
    n = places.sum(mask if v is None else v)
    w = weights_of_pixels(inputs, y, valid).sum(dtype=n.dtype)
    counted = [w, *(pixels.sum(dtype=n.dtype) for pixels in (valid, mask))]
    of_batch = torch.stack([weighted_total(cross_entropy, v), *counted])
    by_class = torch.cat([n[None], of_edges]).reshape(3, y.shape[0] // inputs.tables, inputs.tables * classes)
    of_pixels = loss_maps(cross_entropy, *sides, mask, distance, options) if maps else None
    return Sums(of_batch, by_class, of_pixels, regions)


def evaluate_maps(
    call: Call, rows: slice, take: Callable[[Pairs], tuple[tuple[Tensor, Tensor], Any]], size: int = PART
) -> tuple[Tensor, LossMaps, list[Any]]:
    """Return the logits [B, C, *S] and the maps of some rows of a call, d on all pixels, without a gradient.

    Labels are not checked: those that are no class count as ignored. Memory is that of ``size`` pairs, and of the call,
    which has the rows around these that their terms read.

    Args:
        call: of a part of the images along the first axis of space.
        rows: those to return.
        take: returns S and O of the edge pixels of some pairs, as :func:`side_terms`, and anything.
        size: pairs at once.
    """
    inputs, options = call.inputs, call.options
    y, valid = inputs.labels()
    x, radius = readable_logits(inputs.logits, valid), clipped(inputs.radius, y.shape)
    mask = torch.zeros_like(valid)
    mask[:, rows] = find_edges(y, valid, radius)[:, rows]
    distance, log_w = neighbor_weights(inputs, y, valid, mask, options.decay, everywhere=True)
    grid, center = Grid(valid, radius), mask.flatten().nonzero().squeeze(1)
    taken = [take(pairs_of(x, y, grid, part, log_w)) for part in grid.split(center, size)]
    sides = [torch.cat(side) for side in zip(*(terms for terms, _ in taken), strict=True)]
    x, y, valid, mask = x[:, :, rows], y[:, rows], valid[:, rows], mask[:, rows]
    _, cross_entropy = cross_entropy_map(x, y, valid, inputs.weight, options.label_smoothing, inputs.tables)
    same_side, other_side = (x.new_zeros(y.shape).masked_scatter_(mask, side) for side in sides)
    distance = None if distance is None else distance[:, rows]
    return x, loss_maps(cross_entropy, same_side, other_side, mask, distance, options), [other for _, other in taken]


def loss_maps(
    cross_entropy: Tensor,
    same_side: Tensor,
    other_side: Tensor,
    mask: Tensor,
    distance: Tensor | None,
    options: Options,
) -> LossMaps:
    """Return the maps of the terms."""
    shown = None if distance is None else distance.to(cross_entropy.dtype, copy=True)
    edge = edge_term(other_side, same_side, options)
    return LossMaps(cross_entropy, same_side, other_side, edge, mask, shown)


def weighted_total(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the sum of a map, times a weight of each pixel, 0-d; float32 is not enough beyond some 10^8 pixels."""
    return weigh(values, weight).sum(dtype=widest(values.device))


# ------------------------------------------------------------------------------------------------------------- the maps


def cross_entropy_map(
    x: Tensor, y: Tensor, valid: Tensor, weight: Tensor | None, label_smoothing: float, tables: int = 1
) -> tuple[Tensor, Tensor]:
    """Return x, or a view of it that other terms are to read, and CE [B, *S]; 0 on pixels not valid.

    CE is that of ``torch.nn.functional.cross_entropy(reduction="none")``. It is computed part by part. Of several
    ``tables`` of class weights, image b has the one of b % tables.
    """
    label = torch.where(valid, y, 0)
    others = [label, valid]
    if weight is not None:
        of_classes = weight.view(tables, 1, -1).repeat(y.shape[0] // tables, 1, 1)
        others += [weight[places_of_labels(label, tables)], of_classes.expand(-1, y.shape[1], -1)]
    function = partial(_cross_entropy, label_smoothing=label_smoothing)
    if torch.compiler.is_compiling():
        return x, function(x, *others).view_as(y)
    x, ce = by_parts(function, of_rows(y.shape, x[:1, :, :1].numel()), x, *others)
    return x, ce.view_as(y)


def _cross_entropy(
    x: Tensor,
    label: Tensor,
    valid: Tensor,
    of_labels: Tensor | None = None,
    of_classes: Tensor | None = None,
    *,
    label_smoothing: float,
) -> Tensor:
    """Return CE of a part, flattened.

    ``of_labels`` are the class weights of the labels, [B, *S], and ``of_classes`` all of them, for each place along the
    first spatial axis, [B, S, C].
    """
    # Select before any arithmetic: nan or inf logits of ignored pixels must not reach the value or the gradient.
    log_p = torch.where(valid[:, None], x, 0.0).log_softmax(1)
    ce = -log_p.gather(1, label[:, None]).squeeze(1)
    if of_labels is not None:
        ce = ce * of_labels
    if label_smoothing:
        if of_classes is not None:
            log_p = log_p * of_classes.movedim(-1, 1).view(*log_p.shape[:3], *[1] * (label.dim() - 2))
        ce = (1 - label_smoothing) * ce - label_smoothing * log_p.sum(1) / x.shape[1]
    return torch.where(valid, ce, 0.0).flatten()


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
    center, grid = mask.flatten().nonzero().squeeze(1), Grid(valid, clipped(radius, y.shape))
    # With a gradient all at once: each part would have one of the size of x.
    of_parts = (center,) if torch.is_grad_enabled() and x.requires_grad else grid.split(center)
    parts = (pairs_of(x, y, grid, part, log_w) for part in of_parts)
    terms = zip(*(side_terms(pairs, pairs.t, power) for pairs in parts), strict=True)
    empty = x.new_zeros(y.numel())
    same_side, other_side = (empty.index_copy(0, center, torch.cat(term)).view_as(y) for term in terms)
    return same_side, other_side


@opaque_to_compilers(lambda x, y, *_: x.new_empty((2, *x.shape[:2]), dtype=widest(y.device)))
def edge_sums(
    x: Tensor,
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    log_w: Tensor | None,
    v: Tensor | None,
    radius: Sequence[int],
) -> Tensor:
    """Return Σ v S and Σ v O with power 0, by image and class of the edge pixels, [2, B, C]; v is None for ones."""
    classes, pixels = x.shape[1], y[0].numel() if len(y) else 1
    weights = weigh_neighbors(y, valid, mask, log_w, v, radius, classes)
    same_side = weights.same_side.flatten()
    own = same_side.nonzero().squeeze(1)
    of_classes = y.flatten()[own], weights.other_class
    margin = margins(x, torch.cat([own, weights.pixel]), torch.cat(of_classes))
    of_own, of_other = torch.split(margin, [len(own), len(weights.pixel)])
    sums = []
    sides = (own, of_own, same_side[own]), (weights.pixel, -of_other, weights.other_side)
    for (pixel, m, weight), k in zip(sides, of_classes, strict=True):
        table = weight.new_zeros(len(y) * classes)
        sums.append(table.index_add(0, pixel // pixels * classes + k, weight * -F.logsigmoid(m).to(weight.dtype)))
    return torch.stack(sums).view(2, len(y), classes)


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
    return pairs_of(x, y, Grid(valid, clipped(radius, y.shape)), mask.flatten().nonzero().squeeze(1), log_w)


def pairs_of(x: Tensor, y: Tensor, grid: Grid, center: Tensor, log_w: Tensor | None) -> Pairs:
    """Return the pairs of some edge pixels."""
    y_flat, (row, n) = y.flatten(), grid.pairs(center)
    k = y_flat[center][row]
    is_same = y_flat[n] == k
    keys, at = torch.unique(n * x.shape[1] + k, return_inverse=True)  # a pixel is the neighbor of many
    pixel, of_class = keys // x.shape[1], keys % x.shape[1]
    margin = margins(x, pixel, of_class)
    t = F.logsigmoid(torch.where(y_flat[pixel] == of_class, margin, -margin)).index_select(0, at)
    w = t.new_zeros(t.shape) if log_w is None else log_w.flatten()[n]
    return Pairs(center, row, n, is_same, t, w)


def side_terms(pairs: Pairs, t: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """Return S and O of the edge pixels, [M] each; t is ``pairs.t``, or a leaf with its values."""

    def term(chosen: Tensor) -> Tensor:
        at = chosen.nonzero().squeeze(1)
        return negative_log_mean(t.index_select(0, at), pairs.log_w[at], pairs.row[at], len(pairs.center), power)

    return term(pairs.is_same), term(~pairs.is_same)


# ----------------------------------------------------------------------------------------------------------- logarithms


def margins(x: Tensor, n: Tensor, k: Tensor) -> Tensor:
    """Return x_n(k) - log Σ_{c ≠ k} exp x_n(c) of pixels n and a class k of each, [M].

    log p_n(k) is its log-sigmoid, and log(1 - p_n(k)) that of its negative: no digit of the values or of the gradient
    is lost for any p, as 1 - p would lose for p near 1.
    """
    classes, pixels = x.shape[1], math.prod(x.shape[2:])
    first = n + n // pixels * (classes - 1) * pixels
    place = first[:, None] + pixels * torch.arange(classes, device=n.device)
    logits = x.flatten().index_select(0, place.flatten()).view(-1, classes)
    others = logits.scatter(1, k[:, None], -math.inf)
    top = others.detach().amax(1, keepdim=True)
    shift = top.clamp(min=torch.finfo(x.dtype).min)
    rest = (others - shift).exp().sum(1).clamp(min=1)  # at least 1, or 0 where all others are -inf
    return (logits.gather(1, k[:, None]) - shift + (shift - top)).squeeze(1) - rest.log()


def negative_log_mean(t: Tensor, log_w: Tensor, row: Tensor, count: int, power: float) -> Tensor:
    """Return -log M_q{e^t; w} of the terms of each row, q = power, [count]; 0 for a row without terms.

        -(1/q) · [logsumexp(log w + q t) - logsumexp(log w)],   q ≠ 0
        -Σ w t / Σ w,                                           q = 0

    The terms are in lists [P]: t ≤ 0, log w in float64 or the dtype of t, and the row of each, below ``count``.
    """
    has_terms = torch.zeros(count, dtype=torch.bool, device=row.device).index_fill_(0, row, True)
    present, row = has_terms.nonzero().squeeze(1), (has_terms.cumsum(0) - 1)[row]

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
