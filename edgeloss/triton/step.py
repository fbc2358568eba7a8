"""Sums of programs → those of a call; these → the loss and its factors; what steps keep → what the next one takes.

A kernel for each, with the formulas of :mod:`edgeloss.reduction`, where every operation on a number is a kernel of its
own: a hundred of them take as long as all the others.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeloss.options import Options
from edgeloss.reduction import LONGEST_MEAN, EdgeSum, Regions, Scalars, SumRow
from edgeloss.triton.labels import ROWS_OF_SUMS, WEIGHT, WRONG
from edgeloss.triton.loss import TERMS
from edgeloss.triton.tiles import IGNORED, area_of, launcher, power_of_2

SAME_SIDE, OTHER_SIDE, EDGE_WEIGHT = map(tl.constexpr, (SumRow.SAME_SIDE, SumRow.OTHER_SIDE, SumRow.EDGE_WEIGHT))
ERROR, UNIFORM, OF_STEP, MEAN, STEPS = map(tl.constexpr, EdgeSum)
LONGEST, ROWS = tl.constexpr(LONGEST_MEAN), tl.constexpr(len(SumRow))
AT_ONCE = 4096  # sums of programs


def run(kernel: Any, of: Tensor | None, count: int, *args: Any) -> None:  # noqa: ANN401
    """Run a kernel as one program over a number of values, which may be none, on the device of a tensor."""
    flat = (part for x in args for part in (x if isinstance(x, tuple) else (x,)))
    launch = launcher(*(x for x in flat if type(x) is not float))  # of which kernels take any
    with torch.cuda.device_of(of):
        launch(kernel, 1, 1, power_of_2(count), *args, warps=1, fuses=False)


# ---------------------------------------------------------------------------------------------------- sums of programs


@triton.jit
def column_sum(values, first, end, STEP: tl.constexpr, TILE: tl.constexpr):
    """Return the sum of elements from the first one to before the end, which are ``STEP`` apart in memory."""
    sums, start = tl.zeros([TILE], tl.float64), first + tl.program_id(0) * 0  # which is no constant
    while start < end:
        n = start + tl.arange(0, TILE)
        sums += tl.load(values + n.to(tl.int64) * STEP, mask=n < end, other=0.0)
        start += TILE
    return tl.sum(sums)


@triton.jit
def collect_kernel(
    of_terms, terms, of_labels, programs, of_image, sums, weights, wrong, present, maps, grid,
    WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the sums of a call, the weight of each image, and which classes of it have maps of averages.

    These are the classes of images that have others too, but the first one of two. A program for each row of the sums,
    and for each image of labels: ``terms`` programs added up terms, ``programs`` labels, and ``of_image`` those of one.
    """
    row = tl.program_id(0)
    image = row - ROWS
    if row < TERMS:
        tl.store(sums + row, column_sum(of_terms + row, 0, terms, TERMS, TILE))
    elif row < ROWS:
        value = column_sum(of_labels + (row - TERMS), 0, programs, ROWS_OF_SUMS, TILE)
        tl.store(sums + row, value)
        if wrong is not None:
            if row == TERMS + WRONG:
                tl.store(wrong, tl.load(wrong) + value)
    else:
        if weights is not None:
            if image % grid.tables == 0:
                end = (image + grid.tables) * of_image
                value = column_sum(of_labels + WEIGHT, image * of_image, end, ROWS_OF_SUMS, TILE)
                tl.store(weights + image // grid.tables, value)
        if present is not None:
            k = tl.arange(0, WIDE)
            is_there = tl.load(present + image * grid.classes + k, mask=k < grid.classes, other=0).to(tl.int32)
            is_there = tl.where((tl.sum(is_there) > 1) & (k >= grid.classes - grid.maps), is_there, 0)
            place = tl.where(is_there > 0, tl.cumsum(is_there, 0) - 1, IGNORED)
            start = tl.where(is_there > 0, place * area_of(grid.averages), IGNORED)
            tl.store(maps.class_map + image * grid.classes + k, start, mask=k < grid.classes)
            map_class = maps.map_class + image * grid.maps
            tl.store(map_class + place, k.to(tl.int16), mask=is_there > 0)
            tl.store(map_class + k, (k * 0 + IGNORED).to(tl.int16), mask=(k >= tl.sum(is_there)) & (k < grid.maps))


# ---------------------------------------------------------------------------------------------------------- the loss


@triton.jit
def ratio(part, whole):
    """Return a part of a whole, 0 of nothing."""
    return tl.where(whole > 0, part / tl.where(whole > 0, whole, 1.0), 0.0)


@triton.jit
def weighted(total, factor):
    """Return a total times its factor; 0 with a factor of 0, where the total may be infinite."""
    return tl.where(factor == 0, 0.0, total * factor)


@triton.jit
def weigh_kernel(
    sums, regions, w, e, scale, loss, factors, images,
    cross_entropy: tl.float64, same_side: tl.float64, other_side: tl.float64, region: tl.float64, TILE: tl.constexpr,
):  # fmt: skip
    """Write the loss and the factor of each term in it, the weights of the terms over their denominators."""
    per_w, per_e, of_regions = ratio(1.0, tl.load(w)), ratio(1.0, tl.load(e)), 0.0
    if scale is not None:
        per_e *= tl.load(scale)
    if regions is not None:
        i = tl.arange(0, TILE)
        values = tl.load(regions.value + i, mask=i < images, other=0.0)
        of_regions = tl.sum(values * tl.load(regions.weight + i, mask=i < images, other=0.0))
    of_terms = cross_entropy * per_w, same_side * per_e, other_side * per_e, region * per_w
    value = weighted(of_regions, of_terms[3])
    tl.store(factors + 3, of_terms[3])
    for n in tl.static_range(TERMS):
        tl.store(factors + n, of_terms[n])
        value += weighted(tl.load(sums + n), of_terms[n])
    tl.store(loss, value.to(loss.dtype.element_ty))


def weigh(
    sums: Tensor, regions: Regions | None, denominators: Scalars, options: Options, scale: Any, dtype: torch.dtype  # noqa: ANN401
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what ``weighted_sum`` and ``term_factors`` do, the loss 0-d and the factors [4]."""
    loss, factors = sums.new_empty((), dtype=dtype), sums.new_empty(4)
    images = 1 if regions is None else len(regions.value)
    # Those of a user, and the scale of a module's first call, are at hand.
    numbers = (x if x is None or isinstance(x, Tensor) else sums.new_full((), x) for x in (*denominators, scale))
    given = sums, regions, *numbers, loss, factors, images
    run(weigh_kernel, sums, images, *given, *map(float, options.term_weights().values()))
    return loss, factors


@triton.jit
def spread_kernel(grad, factors, weight, of_terms, of_region, images, TILE: tl.constexpr):
    """Write the gradients by the sums of the terms, and by R of each image, from the one by the loss."""
    slope, i = tl.load(grad).to(tl.float64), tl.arange(0, TILE)
    for n in tl.static_range(TERMS):
        tl.store(of_terms + n, slope * tl.load(factors + n))
    if of_region is not None:
        of_image = tl.load(weight + i, mask=i < images, other=0.0)
        tl.store(of_region + i, of_image * (slope * tl.load(factors + TERMS)), mask=i < images)


def spread(grad: Tensor, factors: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the gradients by the sums of the terms [3] and by R of each image, None without regions."""
    images = weight.numel()
    of_terms, of_region = factors.new_empty(TERMS.value), torch.empty_like(weight) if images else None
    run(spread_kernel, grad, max(1, images), grad, factors, weight, of_terms, of_region, images)
    return of_terms, of_region


# ---------------------------------------------------------------------------------------------------------- the state


@triton.jit
def fold(kept):
    """Return the mean error after the step under way, and the number of steps."""
    error, uniform, weight = tl.load(kept + ERROR), tl.load(kept + UNIFORM), tl.load(kept + OF_STEP)
    mean, steps = tl.load(kept + MEAN), tl.load(kept + STEPS)
    is_found = (error < float("inf")) & (weight > 0)  # not for nan
    steps = tl.where(is_found, steps + 1, steps)
    rate = tl.where(is_found, tl.maximum(ratio(1.0, steps), 1 / LONGEST), 0.0)
    share = ratio(1 - tl.exp(-ratio(error, weight)), 1 - tl.exp(-ratio(uniform, weight)))
    share = tl.where(is_found, tl.minimum(tl.maximum(share, 0.0), 1.0), 0.0)
    return (1 - rate) * mean + rate * share, steps


@triton.jit
def begin_kernel(counts, counted, kept, u, scale, folded, number, focus: tl.float64, TILE: tl.constexpr):
    """Write the class weights of a step, the factor of its edge weight, and the sums that this comes from."""
    if counts is not None:
        c = tl.arange(0, TILE)
        n = tl.load(counts + c, mask=c < number, other=0).to(tl.float64)
        every = tl.sum(n)
        prior = every / (tl.maximum(tl.load(counted), 1) * number).to(tl.float64)
        balanced = tl.where(n > 0, ratio(1.0, n + prior), 0.0)
        balanced *= ratio(every, tl.sum(n * balanced))
        tl.store(u + c, tl.where(n > 0, balanced, 1.0).to(tl.float32), mask=c < number)
    if kept is not None:
        mean, steps = fold(kept)
        tl.store(scale, tl.where(mean > 0, tl.exp(focus * tl.log(tl.where(mean > 0, mean, 1.0))), 0.0))
        tl.store(folded, mean)
        tl.store(folded + 1, steps)


def begin(
    counts: Tensor | None, counted: Tensor | None, kept: Tensor | None, focus: float
) -> tuple[Tensor | None, Tensor | None, Scalars]:
    """Return what ``balanced_weight``, ``edge_focus_scale`` and ``fold_step`` do, of what there is."""
    u = None if counts is None else torch.empty_like(counts, dtype=torch.float32)
    scale, *folded = (None,) * 3 if kept is None else kept.new_empty(3).unbind()
    number = 1 if counts is None else counts.numel()
    given = counts, counted, kept, u, scale, folded[0] if folded else None, number, float(focus)
    run(begin_kernel, counts if kept is None else kept, number, *given)
    return u, scale, folded


@triton.jit
def end_kernel(
    sums, counts, of_call, counted, kept, mean, steps, number,
    other_side: tl.float64, same_side: tl.float64, uniform: tl.float64, TILE: tl.constexpr,
):  # fmt: skip
    """Add what a step found to what is kept."""
    if counts is not None:
        c = tl.arange(0, TILE)
        found = tl.load(counts + c, mask=c < number) + tl.load(of_call + c, mask=c < number)
        tl.store(counts + c, found, mask=c < number)
    if counted is not None:
        tl.store(counted, tl.load(counted) + 1)
    if kept is not None:
        e = tl.load(sums + EDGE_WEIGHT)
        error = weighted(tl.load(sums + OTHER_SIDE), other_side) + weighted(tl.load(sums + SAME_SIDE), same_side)
        tl.store(kept + ERROR, error)
        tl.store(kept + UNIFORM, e * uniform)
        tl.store(kept + OF_STEP, e * (other_side + same_side))
        tl.store(kept + MEAN, tl.load(mean))
        tl.store(kept + STEPS, tl.load(steps))


def end(
    sums: Tensor, counts: Tensor | None, of_call: Tensor | None, counted: Tensor | None, kept: Tensor | None,
    folded: Scalars, options: Options, uniform: float,
) -> None:  # fmt: skip
    """Do what steps of one call do at their end; ``uniform`` is the edge term of a uniform prediction."""
    number = 1 if counts is None else counts.numel()
    of_terms = map(float, (options.other_side_weight, options.same_side_weight, uniform))
    run(end_kernel, sums, number, sums, counts, of_call, counted, kept, *(folded or (None, None)), number, *of_terms)
