r"""The edge-aware loss in plain PyTorch: the specification, the fallback on any device, and the oracle of the tests.

Symbols, used alike in every docstring here: logits x [B, C, *S] (C ≥ 2, float32 or float64), labels y [B, *S] int64
with S = (H, W) or (D, H, W), log p_i(c) = x_i(c) - logsumexp_c x_i; a pixel is *valid* when its label counts, and y is
read on valid pixels only. For a pixel i:

* N(i): the valid pixels n ≠ i inside the image with |n - i| ≤ radius along every axis; empty where i is not valid.
* E: the edge mask, the pixels i with some n in N(i) of another label, y_n ≠ y_i.
* F: the false edges, the valid pixels i off E with some n in N(i) whose most likely class is not that of i.
* d_n: the distance from n to the nearest valid pixel of another label; log w_n = -d_n / decay, or 0 without decay.
* M_q{e^t; w}: the weighted power mean of exponent q.

For i in E, with k = y_i, a_n = log p_n(k) and b_n = log(1 - p_n(k)):

    same side   S_i = -log M_q{ p_n(k)     : n ∈ N(i), y_n = k ; w_n }      consistency
    other side  O_i = -log M_q{ 1 - p_n(k) : n ∈ N(i), y_n ≠ k ; w_n }      no leak across the edge

    edge_i = other_side_weight · O_i + same_side_weight · S_i
    loss = ce_weight · Σ CE / W + edge_weight · (Σ_E u edge + false_edge_weight · Σ_F S) / Σ_E u
    W = Σ_valid weight[y_i],   u_i = edge_class_weight[y_i]

where S_i of a false edge is that of an edge with w = 1: all its neighbours are on its own side, and no edge is near
to measure distances from. F itself has no derivative.

Nothing is computed outside its own set and masked away afterwards, since 0 · inf is nan in the backward pass. There is
no epsilon either: each logarithm is formed in the way that is exact where it is needed. Everything is differentiable
twice and reproducible bit by bit on the CPU, hence ``index_select`` and not advanced indexing, whose backward pass is
not. A list of pixels holds their numbers in the flattened batch, 0 ... B·|S| - 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

NO_POWER = 1e-30  # a smaller exponent is 0, to float32


class LossMaps(NamedTuple):
    """Where the loss comes from: one value a pixel, before any reduction, ``ce_weight`` or ``edge_weight``.

    Attributes:
        cross_entropy: [B, *S] float, class weights and label smoothing included; 0 on ignored pixels.
        same_side: [B, *S] float, ≥ 0; 0 off the edge mask and where an edge pixel has no neighbour of its own class.
        other_side: [B, *S] float, ≥ 0; 0 off the edge mask.
        false_edge: [B, *S] float, ≥ 0, the same side's term where the prediction has an edge and the labels have none;
            0 elsewhere, and everywhere with ``false_edge_weight=0``.
        edge: [B, *S] float, ``other_side_weight * other_side + same_side_weight * same_side``.
        edge_mask: [B, *S] bool, the pixels with a valid neighbour of another class.
        distance: [B, *S] float, distance to the nearest valid pixel of another class, in pixels or units of
            ``spacing``; inf beyond the search window, 2 ‖radius · spacing‖, and on ignored pixels. The caller's own
            field where one was given; None without ``decay``.
    """

    cross_entropy: Tensor
    same_side: Tensor
    other_side: Tensor
    false_edge: Tensor
    edge: Tensor
    edge_mask: Tensor
    distance: Tensor | None

    def detach(self) -> LossMaps:
        """The same values without a graph."""
        return LossMaps(*(value if value is None else value.detach() for value in self))  # type: ignore[arg-type]


class Evaluation(NamedTuple):
    """What a backend finds, and all that a reduction needs, in float64 where the device has it.

    Attributes:
        sums: Σ v · CE, Σ_E v · u · S, Σ_E v · u · O and Σ_F v · S over the batch, [4], differentiable.
        normalizer: the denominators W and Σ_E v · u, 0-d each.
        counts: |E| and the number of valid pixels, 0-d each.
        maps: differentiable; None where nobody asked for them.
    """

    sums: Tensor
    normalizer: tuple[Tensor, Tensor]
    counts: tuple[Tensor, Tensor]
    maps: LossMaps | None


def evaluate(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None,
    edge_class_weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    other_side_weight: float,
    same_side_weight: float,
    radius: Sequence[int],
    power: float,
    decay: float | None,
    spacing: Sequence[float],
    pixel_weight: Tensor | None,
    distance: Tensor | None,
    edges: bool,
    false_edges: bool,
    maps: bool,
) -> Evaluation:
    """Everything of the loss but its reduction; the arguments are checked.

    Args:
        logits: [B, C, *S'] of any floating dtype, C ≥ 1; S' may be of lower resolution than S.
        target: [B, *S] of any dtype of labels.
        weight: class weights [max(2, C)].
        edge_class_weight: u of each class [max(2, C)].
        ignore_index: the label that does not count; labels that are no class don't either.
        label_smoothing: in [0, 1].
        other_side_weight: factor of O in the edge map.
        same_side_weight: factor of S in the edge map.
        radius: of the neighbourhood, one an axis.
        power: exponent q of the power mean.
        decay: length over which a neighbour's weight falls by e; None for equal weights.
        spacing: size of a pixel, one an axis.
        pixel_weight: v [B, *S], 0 on ignored pixels.
        distance: the caller's own field d [B, *S].
        edges: compute the edge terms; else they are 0.
        false_edges: look for false edges too; else there are none.
        maps: somebody wants the maps; that of d is then filled beyond the pixels that the loss reads.
    """
    y, valid = labels(target, logits.shape[1], ignore_index)
    x = readable_logits(logits, valid)
    mask = edge_mask(y, valid, radius) if edges else torch.zeros_like(valid)
    wide = _widest(y.device)
    if decay is not None and distance is None:
        # The loss reads d at neighbours of edge pixels only; someone who looks at it wants it wherever it is defined.
        wanted = (valid if maps else valid & within_reach(mask, radius)).flatten().nonzero().squeeze(1)
        distance = torch.full((y.numel(),), math.inf, dtype=wide, device=y.device)
        distance[wanted] = local_distance(y, valid, wanted, radius, spacing)
        distance = distance.view_as(y)
    log_w = log_weights(distance, decay)
    same_side, other_side = edge_terms(x, y, valid, mask, log_w, radius, power)
    false_edge = torch.zeros_like(same_side)
    if false_edges:
        false_edge, _ = edge_terms(x, y, valid, false_edge_mask(x, mask, valid, radius), None, radius, power)
    found = LossMaps(
        cross_entropy_map(x, y, valid, weight, label_smoothing),
        same_side,
        other_side,
        false_edge,
        edge(other_side, same_side, other_side_weight, same_side_weight),
        mask,
        None if distance is None else distance.to(x.dtype, copy=True),
    )
    of_edges = edge_pixel_weight(y, mask, pixel_weight, edge_class_weight)
    return Evaluation(
        sums(found, pixel_weight, of_edges),
        normalizers(y, valid, mask, weight, pixel_weight, of_edges),
        (mask.sum(), valid.sum()),
        found if maps else None,
    )


def labels(target: Tensor, classes: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The labels as int64, and the mask of valid pixels; [B, *S] each."""
    y = target.long()
    return y, (y != ignore_index) & (y >= 0) & (y < max(2, classes))


# ------------------------------------------------------------------------------------------------------------- the maps


def readable_logits(logits: Tensor, valid: Tensor) -> Tensor:
    """The logits as everything below reads them: float32 or float64, at the labels' resolution, of two classes or more.

    Args:
        logits: [B, C, *S'] of any floating dtype; S' may be of lower resolution than S.
        valid: [B, *S] bool.
    """
    x = logits if logits.dtype == torch.float64 else logits.float()
    size = valid.shape[1:]
    if not valid.numel():
        x = x.flatten(2)[..., :0].reshape(*x.shape[:2], *size)
    elif x.shape[2:] != size:
        mode = "bilinear" if len(size) == 2 else "trilinear"

        def interpolated(low: Tensor) -> Tensor:
            return F.interpolate(low, size, mode=mode, align_corners=False)

        # Interpolation multiplies a cell that it doesn't need by 0, and 0 · nan is nan: cells that support no valid
        # pixel are emptied first. A cell's support is the adjoint of the interpolation, at the valid pixels.
        adjoint = torch.func.vjp(interpolated, torch.zeros_like(x[:, :1]))[1]
        (support,) = adjoint(valid[:, None].to(x.dtype))
        x = interpolated(torch.where(support > 0, x, 0.0))
    if x.shape[1] == 1:  # one logit x is the two-class logits (0, x)
        x = torch.cat([torch.zeros_like(x), x], 1)
    return x


def cross_entropy_map(x: Tensor, y: Tensor, valid: Tensor, weight: Tensor | None, label_smoothing: float) -> Tensor:
    """CE_i as ``torch.nn.functional.cross_entropy(reduction="none")`` defines it; 0 on pixels that are not valid."""
    # Select before any arithmetic: nan or inf logits under an ignored pixel must reach neither value nor gradient.
    shifted, log_sum = _shifted(torch.where(valid[:, None], x, 0.0))
    label = torch.where(valid, y, 0)
    ce = log_sum - shifted.gather(1, label[:, None]).squeeze(1)
    if weight is not None:
        ce = ce * weight[label]
    if label_smoothing:
        nll = log_sum[:, None] - shifted
        if weight is not None:
            nll = nll * weight.view(-1, *[1] * (y.dim() - 1))
        ce = (1 - label_smoothing) * ce + label_smoothing * nll.sum(1) / x.shape[1]
    return torch.where(valid, ce, 0.0)


def edge_mask(y: Tensor, valid: Tensor, radius: Sequence[int]) -> Tensor:
    """E as a bool mask [B, *S]."""
    # Some label in the window differs from the centre's if and only if the window's largest or smallest one does.
    label = y.to(_widest(y.device))
    largest = _window_max(torch.where(valid, label, -math.inf), radius)
    smallest = -_window_max(torch.where(valid, -label, -math.inf), radius)
    return valid & ((largest > label) | (smallest < label))


def false_edge_mask(x: Tensor, mask: Tensor, valid: Tensor, radius: Sequence[int]) -> Tensor:
    """F as a bool mask [B, *S], from logits and the edge mask."""
    return edge_mask(x.detach().argmax(1), valid, radius) & ~mask


def log_weights(distance: Tensor | None, decay: float | None) -> Tensor | None:
    """log w = -d / decay [B, *S], finite also where d is not; None for equal weights."""
    if distance is None or decay is None:
        return None
    wide = _widest(distance.device)
    return -(distance.to(wide) / decay).clamp(max=torch.finfo(wide).max)


def within_reach(mask: Tensor, radius: Sequence[int]) -> Tensor:
    """The pixels within radius of a pixel of the mask, itself included: bool [B, *S]."""
    return _window_max(mask.to(torch.float32), radius) > 0


def edge_terms(
    x: Tensor,
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    log_w: Tensor | None,
    radius: Sequence[int],
    power: float,
) -> tuple[Tensor, Tensor]:
    """The maps S and O [B, *S], 0 off the edge mask; log_w [B, *S], None for equal weights."""
    found = pairs(x, y, valid, mask, log_w, radius)
    same_side, other_side = side_terms(found, found.t, power)
    empty = x.new_zeros(y.numel())
    return (
        empty.index_copy(0, found.centre, same_side).view_as(y),
        empty.index_copy(0, found.centre, other_side).view_as(y),
    )


class Pairs(NamedTuple):
    """Every pair (i, n) of an edge pixel i and a neighbour n, and what the edge terms of i read of n.

    Attributes:
        centre: the edge pixels, [M].
        row: i = centre[row], [P].
        n: the neighbour, [P].
        is_same: y_n = y_i, so that n belongs to S_i and else to O_i; bool [P].
        t: a_n = log p_n(y_i) on the same side, b_n = log(1 - p_n(y_i)) on the other; [P], differentiable.
        log_w: [P].
    """

    centre: Tensor
    row: Tensor
    n: Tensor
    is_same: Tensor
    t: Tensor
    log_w: Tensor


def pairs(x: Tensor, y: Tensor, valid: Tensor, mask: Tensor, log_w: Tensor | None, radius: Sequence[int]) -> Pairs:
    """The pairs of the edge mask's pixels; log_w [B, *S], None for equal weights."""
    centre = mask.flatten().nonzero().squeeze(1)
    y_flat = y.flatten()
    reach = _clipped(radius, y.shape)
    grid = Grid(valid, reach)
    place = grid.place(centre)
    found = [grid.pairs(place, offset) for offset in offsets(reach)] or [(centre[:0], centre[:0])]
    row, n = (torch.cat(side) for side in zip(*found, strict=True))

    k = y_flat[centre][row]
    shifted, log_sum, at = _gathered(x, n)
    a = _take(shifted.flatten(), at * x.shape[1] + k) - _take(log_sum, at)
    w = a.new_zeros(a.shape) if log_w is None else log_w.flatten()[n]
    is_same = y_flat[n] == k
    other = (~is_same).nonzero().squeeze(1)
    b = _log_one_minus_p(_take(a, other), k[other], at[other], shifted, log_sum)
    return Pairs(centre, row, n, is_same, a.index_copy(0, other, b), w)


def side_terms(found: Pairs, t: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """S and O of the edge pixels, [M] each, of pairs whose t may be another tensor, such as a leaf."""

    def term(chosen: Tensor) -> Tensor:
        at = chosen.nonzero().squeeze(1)
        return _negative_log_mean(_take(t, at), found.log_w[at], found.row[at], len(found.centre), power)

    return term(found.is_same), term(~found.is_same)


def local_distance(y: Tensor, valid: Tensor, at: Tensor, radius: Sequence[int], spacing: Sequence[float]) -> Tensor:
    """d at the listed valid pixels, [len(at)], by a search in the labels; inf beyond 2 ‖radius · spacing‖.

    A neighbour n of an edge pixel i is never that far away: n is within ‖radius · spacing‖ of i, and so is a pixel of
    another label than i's; one of the two differs from n.
    """

    def length(offset: Sequence[int]) -> float:
        return math.hypot(*(o * s for o, s in zip(offset, spacing, strict=True)))

    limit = 2 * length(radius)
    reach = _clipped([math.ceil(limit / s) for s in spacing], y.shape)
    window = sorted((o for o in offsets(reach) if length(o) <= limit), key=length)
    grid, y_flat = Grid(valid, reach), y.flatten()
    d = torch.full(at.shape, math.inf, dtype=_widest(y.device), device=y.device)
    left, place, label = torch.arange(len(at), device=y.device), grid.place(at), y_flat[at]
    for distance, ring in itertools.groupby(window, key=length):  # from near to far
        for offset in ring:
            row, n = grid.pairs(place, offset)
            d[left[row[y_flat[n] != label[row]]]] = distance
        still = d[left].isinf()
        left, place, label = left[still], place[still], label[still]
        if not len(left):
            break
    return d


# ------------------------------------------------------------------------------------------------------------ the total


def edge_pixel_weight(
    y: Tensor, mask: Tensor, pixel_weight: Tensor | None, edge_class_weight: Tensor | None
) -> Tensor | None:
    """v · u of the edge pixels [B, *S]; None where both are 1."""
    if edge_class_weight is None:
        return pixel_weight
    u = edge_class_weight[torch.where(mask, y, 0)]
    return u if pixel_weight is None else u * pixel_weight


def normalizers(
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    weight: Tensor | None,
    pixel_weight: Tensor | None,
    of_edges: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The denominators W = Σ_valid v · weight[y_i] and Σ_E v · u, 0-d; they depend on the labels alone."""

    def wide(weight: Tensor | None) -> Tensor:
        return (torch.ones_like(y) if weight is None else weight).to(_widest(y.device))

    v = wide(pixel_weight)
    w = v if weight is None else v * weight.to(v)[torch.where(valid, y, 0)]
    return torch.where(valid, w, 0.0).sum(), torch.where(mask, wide(of_edges), 0.0).sum()


def sums(maps: LossMaps, pixel_weight: Tensor | None, of_edges: Tensor | None) -> Tensor:
    """The sums of an :class:`Evaluation`, in float64: float32 fails beyond some 10^8 pixels."""
    parts = zip(maps[:4], (pixel_weight, of_edges, of_edges, pixel_weight), strict=True)
    return torch.stack(
        [(part if weight is None else part * weight).sum(dtype=_widest(part.device)) for part, weight in parts]
    )


def total(
    sums: Tensor,
    normalizer: tuple[Tensor, Tensor],
    *,
    ce_weight: float,
    edge_weight: float,
    other_side_weight: float,
    same_side_weight: float,
    false_edge_weight: float,
) -> Tensor:
    """The loss, 0-d: Σ over the normalizer (W, |E|), each by its weight. Over nothing it is 0, with gradient 0."""
    w, e = normalizer
    of_edges = (same_side_weight, other_side_weight, false_edge_weight)
    scale = torch.stack([ce_weight / w, *(edge_weight * of / e for of in of_edges)])
    return (sums * torch.nan_to_num(scale, 0.0, 0.0, 0.0)).sum()


def terms(
    found: Evaluation, normalizer: tuple[Tensor, Tensor], *, other_side_weight: float, same_side_weight: float
) -> dict[str, Tensor]:
    """What the loss is made of, before ``ce_weight`` and ``edge_weight``, 0-d and detached."""
    w, e = normalizer
    counts = torch.stack([w, e, e, e])
    cross_entropy, same_side, other_side, false_edge = torch.where(counts > 0, found.sums.detach() / counts, 0.0)
    edges, valid = found.counts
    return {
        "cross_entropy": cross_entropy,
        "same_side": same_side,
        "other_side": other_side,
        "edge": edge(other_side, same_side, other_side_weight, same_side_weight),
        "false_edge": false_edge,
        "edge_fraction": edges.to(w.dtype) / valid.clamp(min=1),
    }


def total_map(
    maps: LossMaps,
    pixel_weight: Tensor | None,
    of_edges: Tensor | None,
    *,
    ce_weight: float,
    edge_weight: float,
    false_edge_weight: float,
) -> Tensor:
    """The loss without reduction, v · (ce_weight · CE + edge_weight · (u · edge + false_edge_weight · F)) [B, *S]."""
    plain = ce_weight * maps.cross_entropy + edge_weight * false_edge_weight * maps.false_edge
    edge = edge_weight * maps.edge
    if pixel_weight is not None:
        plain = plain * pixel_weight
    return plain + (edge if of_edges is None else edge * of_edges)


def edge(other_side: Tensor, same_side: Tensor, other_side_weight: float, same_side_weight: float) -> Tensor:
    """The edge terms as one, map or number."""
    return other_side_weight * other_side + same_side_weight * same_side


# -------------------------------------------------------------------------------------------------- the write-up's line


def neighbor_nll(x: Tensor, index: Tensor, weight: Tensor, mask: Tensor, radius: Sequence[int]) -> Tensor:
    """-log(Σ_n w_in P_in / Σ_n w_in) over the neighbours n of i inside the image, [B, *S]; 0 off the mask.

    P_in is p_n(index_i), or Σ_c indicator_i(c) p_n(c). As -log M_1{P_in; w_in} it is formed from logarithms.

    Args:
        x: logits [B, C, *S].
        index: [B, *S] int64, or an indicator [B, C, *S] bool.
        weight: [B, K, *S], ≥ 0; K in the order of ``offsets``.
        mask: [B, *S] bool.
        radius: of the neighbourhood, one an axis.
    """
    centre = mask.flatten().nonzero().squeeze(1)
    row, n, w = weighted_pairs(weight, centre, radius)
    shifted, log_sum, at = _gathered(x, n)
    if index.dim() < x.dim():
        a = _take(shifted.flatten(), at * x.shape[1] + index.flatten()[centre][row]) - _take(log_sum, at)
    else:
        chosen = index.movedim(1, -1).reshape(-1, x.shape[1])[centre]

        def log_chosen(row: Tensor, at: Tensor) -> Tensor:
            return torch.where(chosen[row], _take(shifted, at), -math.inf).logsumexp(1) - _take(log_sum, at)

        # Formed anew in the backward pass: [P, C] numbers would be K times the logits.
        size = max(1, len(centre))
        a = torch.cat(
            [
                checkpoint(log_chosen, *part, use_reentrant=False, preserve_rng_state=False)
                for part in zip(torch.split(row, size), torch.split(at, size), strict=True)
            ]
            or [log_sum[:0]]
        )
    value = _negative_log_mean(a, w.log(), row, len(centre), power=1.0)
    return x.new_zeros(mask.numel()).index_copy(0, centre, value).view_as(mask)


def weighted_pairs(weight: Tensor, centre: Tensor, radius: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs (i, n) of a neighbour n inside the image and a weight > 0.

    Args:
        weight: [B, K, *S].
        centre: the pixels i.
        radius: of the neighbourhood, one an axis.

    Returns:
        Row of centre, neighbour and weight of each pair, [P] each.
    """
    grid = Grid(torch.ones_like(weight[:, 0], dtype=torch.bool), radius)
    place = grid.place(centre)
    found = []
    for k, offset in enumerate(offsets(radius)):
        row, n = grid.pairs(place, offset)
        w = weight[:, k].flatten()[centre[row]]
        found.append((row[w > 0], n[w > 0], w[w > 0]))
    rows, neighbours, weights = zip(*found, strict=True)
    return torch.cat(rows), torch.cat(neighbours), torch.cat(weights)


# ------------------------------------------------------------------------------------------------------- neighbourhoods


def offsets(radius: Sequence[int]) -> list[tuple[int, ...]]:
    """The K = ∏(2 · radius_a + 1) - 1 offsets of a neighbourhood, row-major, without the centre."""
    window = itertools.product(*(range(-r, r + 1) for r in radius))
    return [offset for offset in window if any(offset)]


class Grid:
    """Finds the neighbours of pixels that exist.

    One lookup table holds the number of each pixel, or -1 where it does not exist, with a margin of -1 around each
    image: a neighbour is then one step away in the table.

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
        """Where the listed pixels stand in the table, [M] int64."""
        places = torch.unravel_index(pixels, self._shape)
        shifts = (0, *self._reach)
        return torch.stack([(p + r) * s for p, r, s in zip(places, shifts, self._strides, strict=True)]).sum(0)

    def pairs(self, place: Tensor, offset: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The pixels n at the offset from those that stand at place, as pairs (row of place, n): [P] int64 each."""
        n = self._table[place + sum(o * s for o, s in zip(offset, self._strides[1:], strict=True))]
        row = (n >= 0).nonzero().squeeze(1)
        return row, n[row]


def _window_max(values: Tensor, radius: Sequence[int]) -> Tensor:
    """The largest of values [B, *S] in the window of each pixel, pixels outside left out."""
    if not values.numel():
        return values
    pool = F.max_pool2d if len(radius) == 2 else F.max_pool3d
    reach = _clipped(radius, values.shape)
    return pool(values[:, None], [2 * r + 1 for r in reach], stride=1, padding=reach)[:, 0]


def _clipped(radius: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The radius as far as it stays inside an image of shape (B, *S)."""
    return [min(r, max(length - 1, 0)) for r, length in zip(radius, shape[1:], strict=True)]


# ----------------------------------------------------------------------------------------------------------- logarithms


def _shifted(x: Tensor) -> tuple[Tensor, Tensor]:
    """x - max and log Σ exp(x - max) over dim 1, kept apart so that log p = shifted - log_sum is exact at any offset.

    log p does not depend on the shift, so leaving the max out of the graph changes no derivative.
    """
    shifted = x - x.amax(1, keepdim=True).detach()
    return shifted, shifted.exp().sum(1).log()


def _gathered(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``_shifted`` of the pixels that occur in n: [M, C], [M], and where each of n is found there, [P].

    A pixel is the neighbour of many, so it is worked out once and looked up; others are not read at all.
    """
    pixels, at = torch.unique(n, return_inverse=True)
    return *_shifted(_take(x.movedim(1, -1).reshape(-1, x.shape[1]), pixels)), at


def _log_one_minus_p(log_p: Tensor, k: Tensor, at: Tensor, shifted: Tensor, log_sum: Tensor) -> Tensor:
    """b = log(1 - p(k)) of each pair, [P], exact for every p.

    Args:
        log_p: a = log p(k), [P].
        k: the class, [P].
        at: the pair's pixel in shifted and log_sum, [P].
        shifted: [M, C].
        log_sum: [M].
    """
    likely = log_p > -math.log(2)
    # Below p = 1/2. Where it is above, this branch gets a harmless -1: what it never sees can't poison its gradient.
    b = torch.log1p(-torch.where(likely, -1.0, log_p).exp())
    # Above it 1 - p would cancel: take the sum of the other classes, once for all pairs of the same pixel and class.
    classes = shifted.shape[1]
    pairs = likely.nonzero().squeeze(1)
    keys, back = torch.unique(at[pairs] * classes + k[pairs], return_inverse=True)
    at, k = keys // classes, keys % classes
    rest = _take(shifted, at).scatter(1, k[:, None], -math.inf).logsumexp(1) - _take(log_sum, at)
    return b.index_copy(0, pairs, _take(rest, back))


def _negative_log_mean(t: Tensor, log_w: Tensor, row: Tensor, count: int, power: float) -> Tensor:
    """-log M_q{e^t; w} of each row's terms, q = power, [count]; 0 for a row without any.

        -(1/q) · [logsumexp(log w + q t) - logsumexp(log w)],   q ≠ 0
        -Σ w t / Σ w,                                           q = 0

    Args:
        t: [P], the logarithms of what is averaged, ≤ 0.
        log_w: [P], log weights, float64 or as t.
        row: [P] int64, the row that each term belongs to.
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

    # A common factor of the weights cancels: it is taken out before it costs t its digits.
    log_w = (log_w - largest(log_w)[row]).to(t.dtype)
    pi = log_w.exp()
    pi = pi / add(pi)[row]
    mean = add(pi * t)
    if abs(power) > NO_POWER:
        # log M = c + log(Σ π e^{q (t - c)}) / q for any constant c. With the mean of t for c, and where the exponents
        # are small, the sum is 1 + Σ π expm1(...), and no digits are lost for 1/q to magnify. Else c is the t that
        # counts most.
        centre = mean.detach()
        exponent = power * (t - centre[row])
        near = largest(exponent.abs()) <= 1
        small = torch.where(near[row], exponent, 0.0)
        first = largest(t) if power > 0 else -largest(-t)
        far = first + (logsumexp(log_w + power * (t - first[row])) - logsumexp(log_w)) / power
        mean = torch.where(near, centre + add(pi * torch.expm1(small)).log1p() / power, far)
    mean = mean - mean.detach().clamp(min=0)  # M ≤ 1: rounding may not make the loss negative
    return t.new_zeros(count).index_copy(0, present, -mean)


# ---------------------------------------------------------------------------------------------------------------- tools


def _take(values: Tensor, index: Tensor) -> Tensor:
    return values.index_select(0, index)


def _widest(device: torch.device) -> torch.dtype:
    """float64, but float32 where the device has none."""
    return torch.float32 if device.type == "mps" else torch.float64
