"""Logits → the sums of the terms and the averages of the regions; logits and what arrives → the gradient.

The loss of a pixel is a · -log p(y) + Σ_k b_k · -log(1 - p(k)) + Σ_c s_c · -log p(c) + the region term, with a from the
cross-entropy and A, b from B, s from label smoothing. With t_k = b_k p(k) / (1 - p(k)) and the slope g of the region
term by each share its gradient is

    (a + Σ s - Σ t) p(c) - s_c - a [c = y] + t_c + p(c) (g_c - Σ p g)

where element y has -a (1 - p(y)) for a p(y) - a, and a class k with p(k) > 1/2 takes t_k e^(x_c - log Σ_{j≠k} e^x_j)
from each other class c: 1 - p is the sum of the others, and never a difference. The softmax is kept as m, the largest
logit, and r = Σ e^(x - m) over the other classes.

Classes are an axis of tiles, a chunk of them at a time; a kernel goes over the classes of its pixels more than once,
when their logits are in cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from edgeloss.triton.labels import further_weights
from edgeloss.triton.tiles import IGNORED, log1p, of_class, place_of, some, tile, total, weight_of

LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32
TERMS = tl.constexpr(3)  # the cross-entropy, the same and the other side


class Taps(NamedTuple):
    """Where interpolated logits come from along an axis: the first of two neighbors, and the weight of the second.

    With weight 0 the second one is not read. ``step`` is how far apart they are in memory.
    """

    first: Tensor
    weight: Tensor
    step: int


class Logits(NamedTuple):
    """Logits in memory.

    Attributes:
        data: [B, C, *S'].
        image: the step from an image to the next.
        channel: from a class to the next.
        pixel: from a pixel to the next; with taps those of each axis are theirs.
        classes: C ≥ 2, a constant.
        one: 1 of one logit, which is that of class 1, where class 0 has 0; else 0; a constant.
        chunk: how many classes are looked at together, a constant.
        real: the type that kernels compute in, a constant.
        axes: how many have taps, a constant.
        depth: of an axis with taps, like height and width.
    """

    data: Tensor
    image: int
    channel: int
    pixel: int
    classes: Any
    one: Any
    chunk: Any
    real: Any
    axes: Any
    depth: Taps | None = None
    height: Taps | None = None
    width: Taps | None = None


class Kept(NamedTuple):
    """The softmax of pixels, maps [B, P]: m, r, and the likeliest class, int16."""

    m: Tensor
    r: Tensor
    top: Tensor


class Averages(NamedTuple):
    """Maps of sums under averages, [B, M, *A], with M = 1 of two classes, the second, else C.

    Attributes:
        z: of the labels' indicators, int8.
        r: of what the shares leave of them.
        size: A.
        cells: the numbers of cells that cover all pixels; the last along an axis may be in no average.
        is_candidate: int8 [B, M], the classes that may have a term.
    """

    z: Tensor
    r: Tensor
    size: Any
    cells: Any
    is_candidate: Tensor


class Slopes(NamedTuple):
    """The derivative of the region term by the shares under each average [B, M, *A], and a factor of each image."""

    by_share: Tensor
    size: Any
    factor: Tensor


# ------------------------------------------------------------------------------------------------------------ logits


@triton.jit
def places(x, image, p, mask, size):
    """Return what locates the logits of pixels: the first of them, and the second one's distance and weight by axis."""
    at = image * x.image
    if x.width is None:
        found = (at + p.to(tl.int64) * x.pixel,)
    else:
        z, row, column = place_of(p, size)
        at += tl.load(x.height.first + row, mask=mask, other=0).to(tl.int64) * x.height.step
        at += tl.load(x.width.first + column, mask=mask, other=0).to(tl.int64) * x.width.step
        of_height = tl.load(x.height.weight + row, mask=mask, other=0.0)
        of_width = tl.load(x.width.weight + column, mask=mask, other=0.0)
        to_height = tl.where(of_height == 0, 0, x.height.step)
        to_width = tl.where(of_width == 0, 0, x.width.step)
        found = (at, to_width, of_width, to_height, of_height)
        if x.depth is not None:
            at += tl.load(x.depth.first + z, mask=mask, other=0).to(tl.int64) * x.depth.step
            of_depth = tl.load(x.depth.weight + z, mask=mask, other=0.0)
            to_depth = tl.where(of_depth == 0, 0, x.depth.step)
            found = (at, to_width, of_width, to_height, of_height, to_depth, of_depth)
    return found


@triton.jit
def mix(first, second, weight):
    """Return (1 - weight) · first + weight · second; with weight 0 the second one may be nan."""
    return tl.where(weight == 0, first, first * (1 - weight) + second * weight)


@triton.jit
def load_line(x, to, at, mask):
    """Return logits interpolated along the last axis."""
    first = tl.load(to, mask=mask, other=0.0).to(x.real)
    return mix(first, tl.load(to + at[1], mask=mask, other=0.0).to(x.real), at[2])


@triton.jit
def load_plane(x, to, at, mask):
    """Return logits interpolated along the last two axes."""
    return mix(load_line(x, to, at, mask), load_line(x, to + at[3], at, mask), at[4])


@triton.jit
def load(x, to, at, mask):
    """Return the logits from pointers on, interpolated where there are taps."""
    if x.axes == 0:
        logits = tl.load(to, mask=mask, other=0.0).to(x.real)
    else:
        logits = load_plane(x, to, at, mask)
        if x.axes == 3:
            logits = mix(logits, load_plane(x, to + at[5], at, mask), at[6])
    return logits


@triton.jit
def load_class(x, at, k, mask):
    """Return the logit of a class of each pixel."""
    to = x.data + (k - x.one).to(tl.int64) * x.channel + at[0]
    return load(x, to, at, mask & (k >= x.one))


@triton.jit
def load_classes(x, at, c, mask):
    """Return the logits of classes [chunk, 1] of pixels."""
    to = x.data + (c - x.one).to(tl.int64) * x.channel + at[0][None, :]
    wide = ()
    for i in tl.static_range(1 + 2 * x.axes):
        wide += (at[i][None, :],)
    return load(x, to, wide, mask[None, :] & (c >= x.one) & (c < x.classes))


# ----------------------------------------------------------------------------------------------------------- softmax


@triton.jit
def statistics(x, at, mask, without):
    """Return m, r and the likeliest class of pixels, of all classes but ``without``, which may be None; 0 outside."""
    zeros = tl.zeros(mask.shape, x.real)
    m, s, n, top = zeros + float("-inf"), zeros, zeros, tl.zeros(mask.shape, tl.int32)
    for start in range(0, x.classes, x.chunk):
        c = (start + tl.arange(0, x.chunk))[:, None]
        counts = mask[None, :] & (c < x.classes)
        if without is not None:
            counts = counts & (c != without[None, :])
        v = tl.where(counts, load_classes(x, at, c, mask), float("-inf"))
        highest = tl.max(v, 0)
        grows = highest > m
        base = tl.maximum(tl.maximum(m, highest), LOWEST)
        s = tl.where(grows, (s + n) * tl.exp(m - base), s)
        n = tl.where(grows, 0.0, n)
        m = tl.where(grows, highest, m)
        is_top = counts & (v == m[None, :])
        s += tl.sum(tl.where(is_top, 0.0, tl.exp(v - base[None, :])), 0)
        n += tl.sum(is_top.to(x.real), 0)
        top = tl.where(grows, tl.min(tl.where(is_top, c, x.classes), 0), top)
    return tl.where(mask, m, 0.0), tl.where(mask, s + (n - 1), 0.0), top


@triton.jit
def share(x, m, r):
    """Return p and 1 - p of a class from its logit, and whether it is its pixel's only likely one, then of r."""
    p, is_likely = tl.exp(x - m) / (1 + r), (x == m) & (r < 1)
    return p, tl.where(is_likely, r / (1 + r), 1 - p), is_likely


@triton.jit
def across(x, at, m, r, b, y, p, start, near, sides, grid):
    """Return what classes k across an edge give to pixels.

    That is Σ b · -log(1 - p(k)) and Σ t of those that are not likely, b of the likely one, which one that is, m and r
    without it, the first class, and the distance of the pixel.
    """
    first = tl.load(near.first + start + p, mask=y >= 0, other=IGNORED).to(tl.int32)
    d, weight = tl.zeros(p.shape, grid.real), tl.abs(b)
    q, left, is_likely = share(load_class(x, at, first, first >= 0), m, r)
    is_likely = is_likely & (first >= 0)
    weight_here = tl.where(is_likely, 0.0, weight)
    q = tl.where(weight_here > 0, q, 0.0)
    loss, sum_t = -weight_here * log1p(-q), weight_here * q / (1 - q)
    likely, of_likely = tl.where(is_likely, first, IGNORED), tl.where(is_likely, weight, 0.0)
    if some(b < 0):  # rare
        if grid.decay > 0:
            d = tl.load(sides.field + start + p, mask=y >= 0, other=0.0)
        for at_class in range(0, x.classes, x.chunk):
            c = (at_class + tl.arange(0, x.chunk))[:, None]
            further = further_weights(c, sides, start, p, y, first, d, grid)
            v = load_classes(x, at, c, y >= 0)
            share_c, left_c, sure = share(v, m[None, :], r[None, :])
            sure = sure & (further > 0)
            of_likely += tl.sum(tl.where(sure, further, 0.0), 0)
            likely = tl.maximum(likely, tl.max(tl.where(sure, c, IGNORED), 0))
            further = tl.where(sure, 0.0, further)
            share_c = tl.where(further > 0, share_c, 0.0)
            loss += tl.sum(-further * log1p(-share_c), 0)
            sum_t += tl.sum(further * share_c / (1 - share_c), 0)
    rest_m, rest_r = m, r
    if some(of_likely > 0):  # the others may lie so far below that r is 0
        rest_m, rest_r, second = statistics(x, at, of_likely > 0, likely)
    return loss, sum_t, of_likely, likely, rest_m, rest_r, first, d


# ----------------------------------------------------------------------------------------------------------- forward


@triton.jit
def pixel_of_cell(p, n, averages, size, STEPS: tl.constexpr):
    """Return pixel n of cells of 3 pixels per axis, STEPS in all, and whether it is inside the image."""
    z, cell_y, cell_x = place_of(p, averages.cells)
    row, column = cell_y * 3 - 1 + n // 3 % 3, cell_x * 3 - 1 + n % 3
    if STEPS == 27:
        z = z * 3 - 1 + n // 9
    inside = (z >= 0) & (z < size.depth) & (row >= 0) & (row < size.height) & (column >= 0) & (column < size.width)
    return tl.where(inside, (z * size.height + row) * size.width + column, 0), inside


@triton.jit
def weigh_classes(x, at, m, r, mask, of_labels, image, grid):
    """Return Σ weight(c) · -log p(c) over all classes."""
    sums = tl.zeros(mask.shape, x.real)
    for start in range(0, x.classes, x.chunk):
        c = (start + tl.arange(0, x.chunk))[:, None]
        terms = log1p(r)[None, :] - (load_classes(x, at, c, mask) - m[None, :])
        if of_labels is not None:
            terms *= of_class(of_labels, image, c, c < x.classes, grid)
        sums += tl.sum(tl.where((c < x.classes) & mask[None, :], terms, 0.0), 0)
    return sums


@triton.jit
def forward_kernel(
    x, near, sides, weights, of_labels, kept, averages, sums, grid,
    SMOOTHING: tl.constexpr, EDGES: tl.constexpr, KEEPS: tl.constexpr, STEPS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Add up the terms of pixels; with averages, of the pixels of cells one after another, and z and r of cells."""
    if STEPS == 1:
        image, t, exists = tile(grid.pixels, TILE)
    else:
        cells = averages.cells.depth * averages.cells.height * averages.cells.width
        image, t, exists = tile(cells, TILE)
    start = image * grid.pixels
    entropy, same, other = tl.zeros([TILE], x.real), tl.zeros([TILE], x.real), tl.zeros([TILE], x.real)
    for n in range(STEPS):
        if STEPS == 1:
            p, inside = t, exists
        else:
            p, inside = pixel_of_cell(t, n, averages, grid.size, STEPS)
            inside = inside & exists
        y = tl.load(sides.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
        ok = y >= 0
        at = places(x, image, p, inside, grid.size)
        m, r, top = statistics(x, at, ok, None)
        if KEEPS:
            tl.store(kept.m + start + p, m, mask=inside)
            tl.store(kept.r + start + p, r, mask=inside)
            tl.store(kept.top + start + p, top.to(tl.int16), mask=inside)
        nll = (m - load_class(x, at, y, ok)) + log1p(r)
        v = weight_of(weights, image, p, y, ok, grid)
        w = v * (1 - SMOOTHING)
        if of_labels is not None:
            w *= of_class(of_labels, image, y, ok, grid)
        entropy += tl.where(w == 0, 0.0, w * nll)
        if SMOOTHING > 0:
            every = weigh_classes(x, at, m, r, ok, of_labels, image, grid)
            entropy += tl.where(v == 0, 0.0, v * (SMOOTHING / x.classes * every))
        if EDGES:
            a = tl.load(near.same + start + p, mask=ok, other=0.0)
            b = tl.load(near.against + start + p, mask=ok, other=0.0)
            same += tl.where(a == 0, 0.0, a * nll)
            if x.classes == 2:
                other += tl.where(b == 0, 0.0, b * nll)
            elif some(b != 0):
                loss, sum_t, of_likely, likely, rest_m, rest_r, first, d = across(
                    x, at, m, r, b, y, p, start, near, sides, grid
                )
                rest = log1p(r) - ((rest_m - m) + log1p(rest_r))
                other += loss + tl.where(of_likely > 0, of_likely * rest, 0.0)
    to = sums + tl.program_id(0).to(tl.int64) * TERMS
    tl.store(to, total(entropy))
    tl.store(to + 1, total(same))
    tl.store(to + 2, total(other))
    if STEPS > 1:
        tl.debug_barrier()  # m and r are read by others than they were written by
        add_averages(x, sides, kept, averages, grid, image, t, exists, STEPS, TILE)


@triton.jit
def add_averages(x, sides, kept, averages, grid, image, t, exists, STEPS: tl.constexpr, TILE: tl.constexpr):
    """Write the sums of z and r under averages, of classes that may have a term."""
    start = image * grid.pixels
    FIRST: tl.constexpr = 1 if x.classes == 2 else 0
    cell_z, cell_y, cell_x = place_of(t, averages.cells)
    area = averages.size
    has = exists & (cell_z < area.depth) & (cell_y < area.height) & (cell_x < area.width)
    to = (cell_z * area.height + cell_y) * area.width + cell_x
    for first in range(FIRST, x.classes, x.chunk):
        c = (first + tl.arange(0, x.chunk))[:, None]
        of_map = image * (x.classes - FIRST) + c - FIRST
        is_candidate = tl.load(averages.is_candidate + of_map, mask=c < x.classes, other=0) > 0
        if tl.max(is_candidate.to(tl.int32)) > 0:
            z, left = tl.zeros([x.chunk, TILE], tl.int32), tl.zeros([x.chunk, TILE], x.real)
            for n in range(STEPS):
                p, inside = pixel_of_cell(t, n, averages, grid.size, STEPS)
                inside = inside & has
                y = tl.load(sides.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
                ok = y >= 0
                m = tl.load(kept.m + start + p, mask=ok, other=0.0)
                r = tl.load(kept.r + start + p, mask=ok, other=0.0)
                v = load_classes(x, places(x, image, p, inside, grid.size), c, ok)
                share_c, complement, likely_c = share(v, m[None, :], r[None, :])
                is_label = c == y[None, :]
                z += is_label.to(tl.int32)
                left += tl.where(ok[None, :], tl.where(is_label, complement, -share_c), 0.0)
            offset = of_map * area.depth * area.height * area.width + to[None, :]
            mask = is_candidate & has[None, :]
            tl.store(averages.z + offset, z.to(tl.int8), mask=mask)
            tl.store(averages.r + offset, left, mask=mask)


# ---------------------------------------------------------------------------------------------------------- backward


@triton.jit
def load_slopes(x, slopes, image, k, a, mask):
    """Return the slopes by the shares of classes k at averages a."""
    FIRST: tl.constexpr = 1 if x.classes == 2 else 0
    of_map = image * (x.classes - FIRST) + k - FIRST
    to = slopes.by_share + of_map * slopes.size.depth * slopes.size.height * slopes.size.width + a
    return tl.load(to, mask=mask & (k >= FIRST) & (k < x.classes), other=0.0)


@triton.jit
def average_of(p, mask, size, averages):
    """Return the averages that pixels are under, and which of them are under one."""
    z, row, column = place_of(p, size)
    i, j = (row + 1) // 3, (column + 1) // 3
    average, exists = i * averages.width + j, mask & (i < averages.height) & (j < averages.width)
    if size.depth > 1:
        z = (z + 1) // 3
        average, exists = average + z * averages.height * averages.width, exists & (z < averages.depth)
    return average, exists


@triton.jit
def of_likely_class(v, is_likely, m, r, t):
    """Return what a likely class across an edge gives to classes: t to itself, which comes from the others.

    Their shares are those without it, from the m and r of the others.
    """
    below = tl.where(is_likely, 0.0, tl.minimum(v - m, 0.0))
    return tl.where(t != 0, tl.where(is_likely, 1.0, -tl.exp(below) / (1 + r)) * t, 0.0)


@triton.jit
def backward_kernel(
    x, g, near, sides, weights, of_labels, total_of_labels, kept, slopes, factors, first_image, grid,
    SMOOTHING: tl.constexpr, EDGES: tl.constexpr, KEPT: tl.constexpr, REGIONS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the gradient at the resolution of the labels; it is 0 where a pixel does not count, for any logits."""
    in_part, p, inside = tile(grid.pixels, TILE)
    image = in_part + first_image
    start = image * grid.pixels
    y = tl.load(sides.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
    ok = y >= 0
    at = places(x, image, p, inside, grid.size)
    if KEPT:
        m = tl.load(kept.m + start + p, mask=ok, other=0.0)
        r = tl.load(kept.r + start + p, mask=ok, other=0.0)
        top = tl.load(kept.top + start + p, mask=ok, other=0).to(tl.int32)
    else:
        m, r, top = statistics(x, at, ok, None)
    spread = tl.load(factors).to(x.real) * weight_of(weights, image, p, y, ok, grid)
    own, rest = spread * (1 - SMOOTHING), tl.zeros([TILE], x.real)
    if of_labels is not None:
        own *= of_class(of_labels, image, y, ok, grid)
    if SMOOTHING > 0:
        spread *= SMOOTHING / x.classes
        rest += spread * tl.load(total_of_labels + image % grid.tables)
    b, t_likely = tl.zeros([TILE], x.real), tl.zeros([TILE], x.real)
    first, likely = tl.full([TILE], IGNORED, tl.int32), tl.full([TILE], IGNORED, tl.int32)
    rest_m, rest_r, d, to_other = m, r, tl.zeros([TILE], x.real), tl.load(factors + 2).to(x.real)
    if EDGES:
        own += tl.load(factors + 1).to(x.real) * tl.load(near.same + start + p, mask=ok, other=0.0)
        b = tl.load(near.against + start + p, mask=ok, other=0.0)
        if x.classes == 2:
            own += to_other * b
        elif some(b != 0):
            unused, sum_t, of_likely, likely, rest_m, rest_r, first, d = across(
                x, at, m, r, b, y, p, start, near, sides, grid
            )
            rest -= to_other * sum_t
            t_likely = to_other * of_likely / (1 + r)
    if REGIONS:
        average, in_average = average_of(p, ok, grid.size, slopes.size)
        to_region = tl.load(slopes.factor + image // grid.tables).to(x.real)
        # Less the slope of the likeliest class, which then is 0: nothing cancels where a pixel is nearly sure.
        base = load_slopes(x, slopes, image, top, average, in_average)
        inner = tl.zeros([TILE], x.real)
        for from_class in range(0, x.classes, x.chunk):
            c = (from_class + tl.arange(0, x.chunk))[:, None]
            share_c, left_c, likely_c = share(load_classes(x, at, c, ok), m[None, :], r[None, :])
            slope = load_slopes(x, slopes, image, c, average[None, :], in_average[None, :]) - base[None, :]
            inner += tl.sum(tl.where(c < x.classes, share_c * slope, 0.0), 0)
        rest -= to_region * inner
    for from_class in range(0, x.classes, x.chunk):
        c = (from_class + tl.arange(0, x.chunk))[:, None]
        v = load_classes(x, at, c, ok)
        share_c, complement, is_likely = share(v, m[None, :], r[None, :])
        others = tl.zeros([x.chunk, TILE], x.real) + rest[None, :]
        if REGIONS:
            slope = load_slopes(x, slopes, image, c, average[None, :], in_average[None, :]) - base[None, :]
            others += to_region * slope
        of_y = share_c * others - own[None, :] * complement
        gradient = tl.where(c == y[None, :], of_y, share_c * (own[None, :] + others))
        if SMOOTHING > 0:
            to_class = spread[None, :]
            if of_labels is not None:
                to_class *= of_class(of_labels, image, c, c < x.classes, grid)
            gradient -= to_class
        if EDGES and x.classes > 2:
            if some(b != 0):
                weight = tl.where(c == first[None, :], tl.abs(b)[None, :], 0.0)
                if some(b < 0):
                    weight += further_weights(c, sides, start, p, y, first, d, grid)
                weight = tl.where(is_likely, 0.0, weight)
                gradient += to_other * weight * share_c / tl.where(weight > 0, complement, 1.0)
                gradient += of_likely_class(
                    v, c == likely[None, :], rest_m[None, :], rest_r[None, :], t_likely[None, :]
                )
        to = g.data + in_part * g.image + (c - x.one).to(tl.int64) * g.channel + (p.to(tl.int64) * g.pixel)[None, :]
        mask = inside[None, :] & (c >= x.one) & (c < x.classes)
        tl.store(to, tl.where(ok[None, :], gradient, 0.0).to(g.data.dtype.element_ty), mask=mask)
