"""Sums of programs → those of a call; these → the loss, its figures and its derivatives by the sums of each term.

The formulas are those of :mod:`edgeloss._reduction`, where every operation on a number is a kernel of its own: a
hundred of them take as long as all the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeloss._checks.inputs import LEAST_NORMALIZER
from edgeloss._kernels.triton import plans
from edgeloss._kernels.triton.edges import OTHER_SIDE, SAME_SIDE, WEIGHT
from edgeloss._kernels.triton.label_weights import ROWS_OF_SUMS
from edgeloss._kernels.triton.label_weights import WEIGHT as WEIGHT_OF_LABELS
from edgeloss._kernels.triton.label_weights import WRONG as WRONG_OF_LABELS
from edgeloss._kernels.triton.tiles import IGNORED, area_of, cdiv, constant, power_of_2, some
from edgeloss._reduction import NODES, PRIOR, VALUES, SumRow, Value, focus_nodes

ROWS, OF_LABELS = tl.constexpr(len(SumRow)), tl.constexpr(SumRow.WEIGHT)
AT_ONCE = 4096  # sums of programs
TABLES, CLASSES = tl.constexpr(64), tl.constexpr(32)  # of the tables of an image, at once
CROSS_ENTROPY, W, VALID, EDGES = map(tl.constexpr, [*SumRow][: SumRow.WRONG])
PRIOR_SHARE, QUADRATURE, LEAST = tl.constexpr(PRIOR), tl.constexpr(NODES), tl.constexpr(LEAST_NORMALIZER)
# The sums over the images of a class: Σ v, n Φ(t), n φ(t), Σ v S and Σ v O.
NUMBER, FOCUSED, SLOPE, SAME, OTHER, COLUMNS = map(tl.constexpr, range(6))
PLACES = tl.constexpr(256)  # images and classes at once
# Terms of the series of 1 - e^(-s) after the first, and up to which s they are exact; up to which γ it is a product.
SERIES_TERMS, LONGEST_SERIES, MOST_SQUARED = tl.constexpr(14), tl.constexpr(0.5), tl.constexpr(64)
PARTS = 8  # of the images at most, each with sums of the classes
SMALL = 2048  # images and classes that one program has
LOSSES = 256  # programs that write derivatives, each of which computes the class weights
(
    VALUE_CROSS_ENTROPY,
    VALUE_SAME_SIDE,
    VALUE_OTHER_SIDE,
    VALUE_EDGE,
    VALUE_REGION,
    VALUE_EDGE_FRACTION,
    VALUE_EDGE_FOCUSED,
    VALUE_EDGE_FOCUS,
) = map(tl.constexpr, Value)


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
def add_tables(tables, edge_sums, n, programs, images, classes):
    """Add up some classes of the tables of an image; n counts the rows, their images, and parts of their classes."""
    parts = tl.cdiv(classes, CLASSES)
    row, c = (n // parts).to(tl.int64), n % parts * CLASSES + tl.arange(0, CLASSES)[None, :]
    sums, start, n = tl.zeros([TABLES, CLASSES], tl.float64), row * 0, tl.arange(0, TABLES)[:, None]
    while start < programs:
        mask = (start + n < programs) & (c < classes)
        sums += tl.load(tables + (row * programs + start + n) * classes + c, mask=mask, other=0.0)
        start += TABLES
    tl.store(edge_sums + row * classes + c, tl.sum(sums, 0, keep_dims=True), mask=c < classes)


@triton.jit
def collect_kernel(
    of_terms, terms, of_labels, programs, of_image, tables, of_tables, images,
    sums, edge_sums, weights, wrong, present, maps, grid, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the sums of a call, the weight of each image, and which classes of it have maps of averages.

    These are the classes of images that have others too, but the first one of two. A program for each row of the sums,
    for each image of labels, and for parts of the tables: ``terms`` programs added up the cross-entropy, ``programs``
    labels, ``of_image`` those of one, and ``of_tables`` edge pixels of one.
    """
    row = tl.program_id(0)
    image = row - ROWS
    if row < OF_LABELS:
        tl.store(sums + row, column_sum(of_terms, 0, terms, 1, TILE))
    elif row < ROWS:
        value = column_sum(of_labels + (row - OF_LABELS), 0, programs, ROWS_OF_SUMS, TILE)
        tl.store(sums + row, value)
        if wrong is not None:
            if row == OF_LABELS + WRONG_OF_LABELS:
                tl.store(wrong, tl.load(wrong) + value)
    elif image < images:
        if weights is not None:
            if image % grid.tables == 0:
                end = (image + grid.tables) * of_image
                value = column_sum(of_labels + WEIGHT_OF_LABELS, image * of_image, end, ROWS_OF_SUMS, TILE)
                tl.store(weights + image // grid.tables, value)
        if present is not None:
            k = tl.arange(0, WIDE)
            is_there = tl.load(present + image * grid.classes + k, mask=k < grid.classes, other=0).to(tl.int32)
            is_there = tl.where((tl.sum(is_there) > 1) & (k >= grid.classes - grid.maps), is_there, 0)
            place = tl.where(is_there > 0, tl.cumsum(is_there, 0) - 1, IGNORED)
            start = tl.where(is_there > 0, place * area_of(grid.averages), IGNORED)
            tl.store(maps.average_start + image * grid.classes + k, start, mask=k < grid.classes)
            map_class = maps.average_class + image * grid.maps
            tl.store(map_class + place, k.to(tl.int16), mask=is_there > 0)
            tl.store(map_class + k, (k * 0 + IGNORED).to(tl.int16), mask=(k >= tl.sum(is_there)) & (k < grid.maps))
    elif tables is not None:
        add_tables(tables, edge_sums, image - images, of_tables, images, grid.classes)


# ---------------------------------------------------------------------------------------------------------- the focus


@triton.jit
def ratio(part, whole):
    """Return a part of a whole, 0 of nothing."""
    return tl.where(whole > 0, part / tl.where(whole > 0, whole, 1.0), 0.0)


@triton.jit
def weighted(total, factor):
    """Return a total times its factor; 0 with a factor of 0, where the total may be infinite."""
    return tl.where(factor == 0, 0.0, total * factor)


class Focus(NamedTuple):
    """The weights of O and S, and the constants of Φ."""

    other_side: Any
    same_side: Any
    uniform: Any  # t_0
    per_scale: Any  # 1 / λ
    per_error: Any  # 1 / ε_0
    gamma: Any
    nodes: Any  # of the quadrature, then their weights; None where γ or λ is 0


@triton.jit
def error_of(s):
    """Return 1 - e^(-s) with all digits: by its series where e^(-s) is near 1."""
    is_small = s < LONGEST_SERIES
    x, series = tl.where(is_small, s, 0.0), tl.full(s.shape, 1.0, tl.float64)
    for n in tl.static_range(SERIES_TERMS):
        series = 1.0 - x * (1.0 / (SERIES_TERMS + 1 - n)) * series
    return tl.where(is_small, x * series, 1.0 - tl.exp(-s))


@triton.jit
def power_of(share, gamma):
    """Return share^γ; of an integer by products, since logarithms of float64 take several times as long."""
    n, value = tl.cast(gamma, tl.int32), tl.full(share.shape, 1.0, tl.float64)
    if (n == gamma) & (n < MOST_SQUARED):
        while n > 0:
            value = tl.where(n % 2 == 1, value * share, value)
            share, n = share * share, n // 2
    else:
        positive = tl.where(share > 0, share, 1.0)
        value = tl.where(share > 0, tl.exp(gamma * tl.log(positive)), share)
    return value


@triton.jit
def slope_of(s, focus):
    """Return φ = min(1, ε(s)/ε_0)^γ for s up to t_0; nan of nan."""
    share = error_of(s * focus.per_scale) * focus.per_error
    return power_of(tl.where(share > 1, 1.0, share), focus.gamma)


@triton.jit
def focused_of(t, focus):
    """Return Φ(t) and φ(t); without nodes, of γ = 0, t and 1."""
    value, slope = t, tl.full(t.shape, 1.0, tl.float64)
    if focus.nodes is not None:
        is_linear, is_zero, value = t > focus.uniform, t <= 0, tl.zeros(t.shape, tl.float64)
        if some(t != 0):
            inner = tl.where(is_linear | is_zero, focus.uniform, t)
            for n in tl.range(QUADRATURE):
                value += slope_of(inner * tl.load(focus.nodes + n), focus) * tl.load(focus.nodes + QUADRATURE + n)
            value = tl.where(is_zero, 0.0, inner * value + tl.where(is_linear, t - focus.uniform, 0.0))
        slope = slope_of(tl.where(is_zero, 0.0, tl.where(is_linear, focus.uniform, t)), focus)
    return value, slope


class Classes(NamedTuple):
    """The sums of each class, and where its weight u comes from; what is Any is a constant."""

    sums: Tensor  # [parts, COLUMNS, C] float64
    parts: Any  # of the images
    number: int  # C
    u: Tensor | None  # [C]
    normalizer: Tensor | None  # W and n, or W and E
    is_balanced: Any
    is_scalar: Any  # whether the normalizer has E


@triton.jit
def add_images(edge_sums, of, slopes, images, of_part, focus, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Add up some classes over a part of the images, and write φ of each image and class, 0 of those without edges."""
    blocks, row = tl.cdiv(of.number, TILE), tl.cast(images, tl.int64) * of.number
    c, part = tl.program_id(0) % blocks * TILE + tl.arange(0, TILE)[None, :], tl.program_id(0) // blocks
    zeros = tl.zeros([ROWS, TILE], tl.float64)
    number, focused_sum, slope_sum, same_sum, other_sum = zeros, zeros + 0, zeros + 0, zeros + 0, zeros + 0
    first, end = part * of_part, tl.minimum((part + 1) * of_part, images)
    while first < end:
        image = first + tl.arange(0, ROWS)[:, None]
        place, mask = image.to(tl.int64) * of.number + c, (image < end) & (c < of.number)
        n = tl.load(edge_sums + WEIGHT * row + place, mask=mask, other=0.0)
        same = tl.load(edge_sums + SAME_SIDE * row + place, mask=mask, other=0.0)
        other = tl.load(edge_sums + OTHER_SIDE * row + place, mask=mask, other=0.0)
        t = ratio(weighted(other, focus.other_side) + weighted(same, focus.same_side), n)
        focused, slope = focused_of(t, focus)
        tl.store(slopes + 1 + place, tl.where(n > 0, slope, 0.0), mask=mask)
        number, same_sum, other_sum = number + n, same_sum + same, other_sum + other
        focused_sum, slope_sum = focused_sum + weighted(focused, n), slope_sum + weighted(slope, n)
        first += ROWS
    to = of.sums + part.to(tl.int64) * (COLUMNS * of.number) + c
    tl.store(to + NUMBER * of.number, tl.sum(number, 0, keep_dims=True), mask=c < of.number)
    tl.store(to + FOCUSED * of.number, tl.sum(focused_sum, 0, keep_dims=True), mask=c < of.number)
    tl.store(to + SLOPE * of.number, tl.sum(slope_sum, 0, keep_dims=True), mask=c < of.number)
    tl.store(to + SAME * of.number, tl.sum(same_sum, 0, keep_dims=True), mask=c < of.number)
    tl.store(to + OTHER * of.number, tl.sum(other_sum, 0, keep_dims=True), mask=c < of.number)


# ---------------------------------------------------------------------------------------------------------- the loss


@triton.jit
def of_classes(of, row, k, mask):
    """Return a sum of classes k over all images."""
    values = tl.zeros(k.shape, tl.float64)
    for part in range(of.parts):
        values += tl.load(of.sums + (part * COLUMNS + row) * of.number + k, mask=mask, other=0.0)
    return values


@triton.jit
def number_of(of, k, mask):
    """Return n of classes k, that of the normalizer where it has one."""
    if of.normalizer is None or of.is_scalar:
        n = of_classes(of, NUMBER, k, mask)
    else:
        n = tl.load(of.normalizer + 1 + k, mask=mask, other=0.0)
    return n


@triton.jit
def class_weight(of, k, mask, prior, unit):
    """Return u of classes k, and n."""
    n = number_of(of, k, mask)
    u = tl.where(mask, 1.0, 0.0).to(tl.float64)
    if of.is_balanced:
        u = tl.where(mask, ratio(unit, n + prior), 0.0)
    elif of.u is not None:
        u = tl.load(of.u + k, mask=mask, other=0.0).to(tl.float64)
    return u, n


@triton.jit
def balance(of, TILE: tl.constexpr):
    """Return the prior of the balance, and the factor by which u has a mean of 1; 0 and 1 where there is none."""
    found = 0.0, 1.0
    if of.is_balanced:
        start, every, dot = tl.program_id(0) * 0, tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
        while start < of.number:
            k = start + tl.arange(0, TILE)
            every += number_of(of, k, k < of.number)
            start += TILE
        total, start = tl.sum(every), start * 0
        prior = PRIOR_SHARE * total / of.number
        while start < of.number:
            k = start + tl.arange(0, TILE)
            n = number_of(of, k, k < of.number)
            dot += tl.where(k < of.number, ratio(1.0, n + prior) * n, 0.0)
            start += TILE
        found = prior, ratio(total, tl.sum(dot))
    return found


@triton.jit
def add_classes(of, prior, unit, TILE: tl.constexpr):
    """Return Σ u n, Σ u n Φ, Σ u n φ, Σ u S and Σ u O over the classes."""
    zeros, start = tl.zeros([TILE], tl.float64), tl.program_id(0) * 0
    e, focused, slope, same, other = zeros, zeros + 0, zeros + 0, zeros + 0, zeros + 0
    while start < of.number:
        k = start + tl.arange(0, TILE)
        mask = k < of.number
        u, n = class_weight(of, k, mask, prior, unit)
        e += weighted(n, u)
        focused += weighted(of_classes(of, FOCUSED, k, mask), u)
        slope += weighted(of_classes(of, SLOPE, k, mask), u)
        same += weighted(of_classes(of, SAME, k, mask), u)
        other += weighted(of_classes(of, OTHER, k, mask), u)
        start += TILE
    return tl.sum(e), tl.sum(focused), tl.sum(slope), tl.sum(same), tl.sum(other)


@triton.jit
def write_regions(regions, slopes, factor, TILE: tl.constexpr):
    """Return Σ R · weight of the images, and write the derivatives by R, which are the factor times the weight."""
    found, start = tl.zeros([TILE], tl.float64), tl.program_id(0) * 0
    while start < regions.images:
        image = start + tl.arange(0, TILE)
        mask = image < regions.images
        weight = tl.load(regions.weight + image, mask=mask, other=0.0)
        found += tl.load(regions.value + image, mask=mask, other=0.0) * weight
        tl.store(slopes + image, weighted(weight, factor), mask=mask)
        start += TILE
    return tl.sum(found)


class Regions(NamedTuple):
    """The region term: its value and weight of each image."""

    value: Tensor
    weight: Tensor
    images: int


@triton.jit
def write_loss(
    sums, of, regions, loss, slopes, values, images, focus, weights, MEAN: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write the loss, its derivatives by the sums of each term, and its figures; φ of each image and class is there.

    Each program has some of the images and classes, and the first one all else.
    """
    ce_weight, edge_weight, region_weight = weights
    prior, unit = balance(of, TILE)
    e, focused, focus_slope, same, other = add_classes(of, prior, unit, TILE)
    w = tl.load(sums + W)
    if of.normalizer is not None:
        w = tl.load(of.normalizer)
        if of.is_scalar:
            e = tl.load(of.normalizer + 1)
    per_w, per_e = ratio(1.0, tl.where(w < LEAST, 0.0, w)), ratio(1.0, tl.where(e < LEAST, 0.0, e))
    mean_slope = weighted(focus_slope, per_e)
    if not MEAN:
        per_w, per_e = per_w * 0 + 1, per_e * 0 + 1
    places, start = tl.cast(images, tl.int64) * of.number, tl.program_id(0).to(tl.int64) * TILE
    while start < places:
        place = start + tl.arange(0, TILE)
        mask = place < places
        u, unused = class_weight(of, place % of.number, mask, prior, unit)
        slope = weighted(weighted(tl.load(slopes + 1 + place, mask=mask, other=0.0), u), edge_weight * per_e)
        tl.store(slopes + 1 + place, slope * focus.same_side, mask=mask)
        tl.store(slopes + 1 + places + place, slope * focus.other_side, mask=mask)
        start += tl.num_programs(0) * TILE
    if tl.program_id(0) == 0:
        cross_entropy, of_regions = weighted(tl.load(sums + CROSS_ENTROPY), per_w), 0.0
        if regions is not None:
            of_regions = write_regions(regions, slopes + 1 + 2 * places, region_weight * per_w, TILE) * per_w
        edge = weighted(other, focus.other_side) + weighted(same, focus.same_side)
        of_terms = weighted(cross_entropy, ce_weight) + weighted(focused * per_e, edge_weight)
        tl.store(loss, (of_terms + weighted(of_regions, region_weight)).to(loss.dtype.element_ty))
        tl.store(slopes, ce_weight * per_w)
        tl.store(values + VALUE_CROSS_ENTROPY, cross_entropy)
        tl.store(values + VALUE_SAME_SIDE, weighted(same, per_e))
        tl.store(values + VALUE_OTHER_SIDE, weighted(other, per_e))
        tl.store(values + VALUE_EDGE, weighted(edge, per_e))
        tl.store(values + VALUE_REGION, of_regions)
        tl.store(values + VALUE_EDGE_FRACTION, ratio(tl.load(sums + EDGES), tl.load(sums + VALID)))
        tl.store(values + VALUE_EDGE_FOCUSED, weighted(focused, per_e))
        tl.store(values + VALUE_EDGE_FOCUS, mean_slope)


@triton.jit
def focus_kernel(
    edge_sums, of, slopes, nodes, images, of_part,
    other_side: tl.float64, same_side: tl.float64, uniform: tl.float64, per_scale: tl.float64, per_error: tl.float64,
    gamma: tl.float64, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the sums of the classes by parts of the images, and φ of each image and class."""
    focus = Focus(other_side, same_side, uniform, per_scale, per_error, gamma, nodes)
    add_images(edge_sums, of, slopes, images, of_part, focus, ROWS, TILE)


@triton.jit
def loss_kernel(
    sums, of, regions, loss, slopes, values, images,
    other_side: tl.float64, same_side: tl.float64,
    ce_weight: tl.float64, edge_weight: tl.float64, region_weight: tl.float64, MEAN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the loss and what comes from the sums of the classes."""
    focus, of_terms = (
        Focus(other_side, same_side, None, None, None, None, None),
        (ce_weight, edge_weight, region_weight),
    )
    write_loss(sums, of, regions, loss, slopes, values, images, focus, of_terms, MEAN, TILE)


@triton.jit
def reduce_kernel(
    sums, edge_sums, of, regions, loss, slopes, values, nodes, images,
    other_side: tl.float64, same_side: tl.float64, uniform: tl.float64, per_scale: tl.float64, per_error: tl.float64,
    gamma: tl.float64, ce_weight: tl.float64, edge_weight: tl.float64, region_weight: tl.float64,
    MEAN: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write what both of the others do, in one program."""
    focus = Focus(other_side, same_side, uniform, per_scale, per_error, gamma, nodes)
    add_images(edge_sums, of, slopes, images, images, focus, ROWS, TILE)
    tl.debug_barrier()  # others read it
    of_terms = ce_weight, edge_weight, region_weight
    write_loss(sums, of, regions, loss, slopes, values, images, focus, of_terms, MEAN, PLACES)


@lru_cache(maxsize=64)
def _quadrature(gamma: float, device: torch.device) -> Tensor:
    nodes, weights = focus_nodes(gamma)
    return torch.tensor([*nodes, *weights], dtype=torch.float64, device=device)


def _parts(images: int, number: int) -> tuple[bool, int, int, int]:
    """Return whether one program has all images and classes, how many of these are at once, and images of a part."""
    classes, images = power_of_2(number), max(images, 1)
    is_small = classes * images <= SMALL
    classes = classes if is_small else min(classes, CLASSES.value)
    rows = min(max(1, PLACES.value // classes), power_of_2(images))
    return is_small, rows, classes, rows * cdiv(cdiv(images, rows), 1 if is_small else PARTS)


def reduce(
    sums: Tensor,
    edge_sums: Tensor,
    region: Tensor,
    region_weight: Tensor,
    edge_class_weight: Tensor | None,
    normalizer: Tensor | None,
    *numbers: Any,  # noqa: ANN401
) -> tuple[Tensor, ...]:
    """Return the loss, its derivatives and its figures; the arguments are those of the operator."""
    given = sums, edge_sums, region, region_weight, edge_class_weight, normalizer
    return tuple(plans.run(_reduce, given, *numbers))


def _reduce(
    plan: plans.Plan,
    given: Sequence[Any],
    tables: int,
    is_balanced: bool,
    mean: bool,
    wide: bool,
    ce_weight: float,
    edge_weight: float,
    other_side: float,
    same_side: float,
    of_regions: float,
    gamma: float,
) -> list[Tensor]:
    sums, edge_sums, region, region_weight, edge_class_weight, normalizer = given
    classes, number, images = edge_sums.shape[2], edge_sums.shape[2] * tables, edge_sums.shape[1] // tables
    is_small, rows, columns, of_part = _parts(images, number)
    parts, is_scalar = max(1, cdiv(images, of_part)), normalizer is not None and len(normalizer) == 2
    returned = [
        sums.new_empty((), dtype=torch.float64 if wide else torch.float32),
        sums.new_empty(1 + 2 * edge_sums[0].numel() + len(region)),
        sums.new_empty(len(VALUES)),
    ]
    loss, slopes, values = map(plan.result, returned)
    scale = other_side + same_side
    uniform = same_side * math.log(classes) - other_side * math.log1p(-1 / classes)  # of multilabel, 2 classes
    quadrature = _quadrature(gamma, sums.device) if gamma and scale else None
    flags = constant(is_balanced), constant(is_scalar)
    of_classes = plan.empty(sums.new_empty(parts * COLUMNS.value * number))
    of = Classes(of_classes, constant(parts), number, edge_class_weight, normalizer, *flags)
    results = Regions(region, region_weight, len(region)) if len(region) else None, loss, slopes, values
    rates = (1 / scale, -1 / math.expm1(-uniform / scale)) if scale else (1.0, 1.0)
    of_focus = float(other_side), float(same_side), uniform, *rates, float(gamma)
    of_terms = float(ce_weight), float(edge_weight), float(of_regions)
    launch = partial(plan.launch, warps=8, fuses=False)
    if is_small:
        of_all = sums, edge_sums, of, *results, quadrature, images, *of_focus, *of_terms, constant(mean)
        launch(reduce_kernel, 1, 1, columns, *of_all, constant(rows))
    else:
        of_images = edge_sums, of, slopes, quadrature, images, of_part, *of_focus
        launch(focus_kernel, parts, number, columns, *of_images, constant(rows))
        to, block = (sums, of, *results, images, *of_focus[:2], *of_terms, constant(mean)), PLACES.value
        launch(loss_kernel, min(LOSSES, cdiv(images * number, block)), 1, block, *to)
    return returned
