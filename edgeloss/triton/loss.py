"""Logits → the sums of the terms and the averages of the regions; logits and what arrives → the gradient.

The loss of a pixel is a · -log p(y) + Σ_k b_k · -log(1 - p(k)) + Σ_c s_c · -log p(c) + the region term, with a from the
cross-entropy and A, b from B, s from label smoothing. With t_k = b_k p(k) / (1 - p(k)) and the slope g of the region
term by each share its gradient is

    (a + Σ s - Σ t) p(c) - s_c - a [c = y] + t_c + p(c) (g_c - Σ p g)

where element y has -a (1 - p(y)) for a p(y) - a, and a class k with p(k) > 1/2 takes t_k e^(x_c - log Σ_{j≠k} e^x_j)
from each other class c: 1 - p is the sum of the others, and never a difference. The softmax is kept as m, the largest
logit, and r = Σ e^(x - m) over the other classes.

A kernel goes over the classes of its pixels more than once, a chunk of them at a time, when their logits are in cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from edgeloss.triton.labels import further_weights
from edgeloss.triton.tiles import IGNORED, exp, log1p, of_class, of_pixel, place_of, some, tile, total

LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32
TERMS = tl.constexpr(3)  # the cross-entropy, the same and the other side


class Logits(NamedTuple):
    """Logits in memory, [B, C, *S']; what is Any is a constant."""

    data: Tensor
    image: int  # the step from an image to the next
    channel: int  # from a class to the next
    pixel: int  # from a pixel to the next
    classes: Any  # C ≥ 2
    one: Any  # 1 of one logit, which is that of class 1, where class 0 has 0; else 0
    chunk: Any  # how many classes are looked at together
    real: Any  # the type that kernels compute in
    axes: Any  # along how many they are interpolated
    taps: Any  # from where: upsampled.Taps of each axis


# ------------------------------------------------------------------------------------------------------------ logits


@triton.jit
def places(x, image, p, mask, size):
    """Return where the first logits of pixels are; with taps, also the second one's distance and weight by axis."""
    at = image * x.image
    if x.axes == 0:
        found = (at + p.to(tl.int64) * x.pixel,)
    else:
        where, others = place_of(p, size), ()
        for i in tl.static_range(x.axes):
            axis, place = x.taps[2 - i], where[2 - i]
            at += tl.load(axis.first + place, mask=mask, other=0).to(tl.int64) * axis.step
            weight = tl.load(axis.weight + place, mask=mask, other=0.0)
            others += (tl.where(weight == 0, 0, axis.step), weight)
        found = (at,) + others  # noqa: RUF005
    return found


@triton.jit
def load_mixed(x, to, at, mask, AXES: tl.constexpr):
    """Return logits interpolated along the last axes; where the second one has weight 0 it may be nan."""
    if AXES == 0:
        logits = tl.load(to, mask=mask, other=0.0).to(x.real)
    else:
        weight = at[2 * AXES]
        logits = load_mixed(x, to, at, mask, AXES - 1)
        second = load_mixed(x, to + at[2 * AXES - 1], at, mask, AXES - 1)
        logits = tl.where(weight == 0, logits, logits * (1 - weight) + second * weight)
    return logits


@triton.jit
def load(x, at, k, mask):
    """Return the logits of classes k of pixels, interpolated where there are taps."""
    mask = mask & (k < x.classes)
    if x.one > 0:
        mask = mask & (k >= x.one)
    return load_mixed(x, x.data + (k - x.one).to(tl.int64) * x.channel + at[0], at, mask, x.axes)


@triton.jit
def chunk_of(x, start):
    """Return a chunk of classes, and which of them there are."""
    c = (start + tl.arange(0, x.chunk))[:, None]
    return c, c < x.classes


# ----------------------------------------------------------------------------------------------------------- softmax


@triton.jit
def statistics(x, at, mask, without):
    """Return m, r and the likeliest class of pixels, of all classes but ``without``, which may be None; 0 outside."""
    zeros = tl.zeros(mask.shape, x.real)
    m, s, n, top = zeros + float("-inf"), zeros, zeros, tl.zeros(mask.shape, tl.int32)
    for start in range(0, x.classes, x.chunk):
        c, exists = chunk_of(x, start)
        counts = mask & exists
        if without is not None:
            counts = counts & (c != without)
        v = tl.where(counts, load(x, at, c, mask), float("-inf"))
        highest = tl.max(v, 0, keep_dims=True)
        grows = highest > m
        base = tl.maximum(tl.maximum(m, highest), LOWEST)
        s = tl.where(grows, (s + n) * exp(m - base), s)
        n = tl.where(grows, 0.0, n)
        m = tl.where(grows, highest, m)
        is_top = counts & (v == m)
        s += tl.sum(tl.where(is_top, 0.0, exp(v - base)), 0, keep_dims=True)
        n += tl.sum(is_top.to(x.real), 0, keep_dims=True)
        top = tl.where(grows, tl.min(tl.where(is_top, c, x.classes), 0, keep_dims=True), top)
    return tl.where(mask, m, 0.0), tl.where(mask, s + (n - 1), 0.0), top


@triton.jit
def share(x, m, r):
    """Return p and 1 - p of a class from its logit, and whether it is its pixel's only likely one, then of r."""
    whole = 1 / (1 + r)  # a division for each pixel, not for each logit
    p, is_likely = exp(x - m) * whole, (x == m) & (r < 1)
    return p, tl.where(is_likely, r * whole, 1 - p), is_likely


@triton.jit
def across(x, at, m, r, b, y, start, p, maps, grid):
    """Return what classes k across an edge give to pixels.

    That is Σ b · -log(1 - p(k)) and Σ t of those that are not likely, b of the likely one, which one that is, m and r
    without it, and the first class and its t.
    """
    first = tl.load(maps.first + start + p, mask=y >= 0, other=IGNORED).to(tl.int32)
    weight = tl.abs(b)
    q, left, is_likely = share(load(x, at, first, first >= 0), m, r)
    is_likely = is_likely & (first >= 0)
    weight_here = tl.where(is_likely, 0.0, weight)
    q = tl.where(weight_here > 0, q, 0.0)
    loss, of_first = -weight_here * log1p(-q), weight_here * q / (1 - q)
    sum_t = of_first
    likely, of_likely = tl.where(is_likely, first, IGNORED), tl.where(is_likely, weight, 0.0)
    if some(b < 0):  # rare
        for from_class in range(0, x.classes, x.chunk):
            c, exists = chunk_of(x, from_class)
            further = further_weights(c, maps, start + p, p, y, first, grid)
            share_c, left_c, sure = share(load(x, at, c, y >= 0), m, r)
            sure = sure & (further > 0)
            of_likely += tl.sum(tl.where(sure, further, 0.0), 0, keep_dims=True)
            likely = tl.maximum(likely, tl.max(tl.where(sure, c, IGNORED), 0, keep_dims=True))
            further = tl.where(sure, 0.0, further)
            share_c = tl.where(further > 0, share_c, 0.0)
            loss += tl.sum(-further * log1p(-share_c), 0, keep_dims=True)
            sum_t += tl.sum(further * share_c / (1 - share_c), 0, keep_dims=True)
    rest_m, rest_r = m, r
    if some(of_likely > 0):  # the others may lie so far below that r is 0
        rest_m, rest_r, second = statistics(x, at, of_likely > 0, likely)
    return loss, sum_t, of_likely, likely, rest_m, rest_r, first, of_first


# ----------------------------------------------------------------------------------------------------------- forward


@triton.jit
def pixel_of(t, exists, n, grid, STEPS: tl.constexpr):
    """Return pixel n of cells of 3 pixels per axis, STEPS in all, and whether it exists; of 1 the place itself."""
    p, inside = t, exists
    if STEPS > 1:
        z, row, column = place_of(t, grid.cells)
        row, column = row * 3 - 1 + n // 3 % 3, column * 3 - 1 + n % 3
        inside = inside & (row >= 0) & (row < grid.size.height) & (column >= 0) & (column < grid.size.width)
        if STEPS == 27:
            z = z * 3 - 1 + n // 9
            inside = inside & (z >= 0) & (z < grid.size.depth)
        p = (z * grid.size.height + row) * grid.size.width + column
    return tl.where(inside, p, 0), inside  # not in vectors, which would spread the classes of a pixel over threads


@triton.jit
def weigh_classes(x, at, m, r, mask, image, grid):
    """Return Σ weight(c) · -log p(c) over all classes."""
    sums = tl.zeros(mask.shape, x.real)
    for start in range(0, x.classes, x.chunk):
        c, exists = chunk_of(x, start)
        terms = (log1p(r) - (load(x, at, c, mask) - m)) * of_class(grid.weight, image, c, exists, grid)
        sums += tl.sum(tl.where(exists & mask, terms, 0.0), 0, keep_dims=True)
    return sums


@triton.jit
def forward_kernel(x, maps, averages, sums, count, STEPS: tl.constexpr, grid, TILE: tl.constexpr):
    """Add up the terms of pixels; with averages, of the pixels of cells one after another, and fill the averages.

    These are maps of sums, [B, M, *A], with M = 1 of two classes, the second, else C: z of the labels' indicators,
    int8, and r of what the shares leave of them; and which classes may have a term, int8 [B, M].
    """
    image, t, exists = tile(count, TILE)
    start = image * grid.pixels
    entropy, same, other = tl.zeros(t.shape, x.real), tl.zeros(t.shape, x.real), tl.zeros(t.shape, x.real)
    for n in range(STEPS):
        p, inside = pixel_of(t, exists, n, grid, STEPS)
        y = tl.load(maps.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
        ok = y >= 0
        at = places(x, image, p, inside, grid.size)
        m, r, top = statistics(x, at, ok, None)
        if maps.m is not None:
            tl.store(maps.m + start + p, m, mask=inside)
            tl.store(maps.r + start + p, r, mask=inside)
            tl.store(maps.top + start + p, top.to(tl.int16), mask=inside)
        nll = (m - load(x, at, y, ok)) + log1p(r)
        v = of_pixel(image, p, ok, grid)
        w = v * (1 - grid.smoothing) * of_class(grid.weight, image, y, ok, grid)
        entropy += tl.where(w == 0, 0.0, w * nll)
        if grid.smoothing > 0:
            every = weigh_classes(x, at, m, r, ok, image, grid)
            entropy += tl.where(v == 0, 0.0, v * (grid.smoothing / x.classes * every))
        if maps.toward is not None:
            a = tl.load(maps.toward + start + p, mask=ok, other=0.0)
            b = tl.load(maps.against + start + p, mask=ok, other=0.0)
            same += tl.where(a == 0, 0.0, a * nll)
            if x.classes == 2:
                other += tl.where(b == 0, 0.0, b * nll)
            elif some(b != 0):
                loss, sum_t, of_likely, likely, rest_m, rest_r, first, of_first = across(
                    x, at, m, r, b, y, start, p, maps, grid
                )
                rest = log1p(r) - ((rest_m - m) + log1p(rest_r))
                other += loss + tl.where(of_likely > 0, of_likely * rest, 0.0)
    to = sums + tl.program_id(0).to(tl.int64) * TERMS
    tl.store(to, total(entropy))
    tl.store(to + 1, total(same))
    tl.store(to + 2, total(other))
    if STEPS > 1:
        tl.debug_barrier()  # m and r are read by others than they were written by
        add_averages(x, maps, averages, grid, image, t, exists, STEPS)


@triton.jit
def add_averages(x, maps, averages, grid, image, t, exists, STEPS: tl.constexpr):
    """Write the sums of z and r under averages, of classes that may have a term."""
    start, area = image * grid.pixels, grid.averages
    z_map, r_map, candidates = averages
    FIRST: tl.constexpr = 1 if x.classes == 2 else 0
    cell_z, cell_y, cell_x = place_of(t, grid.cells)
    to, has = average_at(cell_z, cell_y, cell_x, exists, area)
    for from_class in range(FIRST, x.classes, x.chunk):
        c, is_class = chunk_of(x, from_class)
        of_map = image * (x.classes - FIRST) + c - FIRST
        is_candidate = tl.load(candidates + of_map, mask=is_class, other=0) > 0
        if some(is_candidate):
            z, left = tl.zeros(c.shape, tl.int32) + to * 0, tl.zeros(c.shape, x.real) + to * 0.0
            for n in range(STEPS):
                p, inside = pixel_of(t, has, n, grid, STEPS)
                y = tl.load(maps.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
                m = tl.load(maps.m + start + p, mask=y >= 0, other=0.0)
                r = tl.load(maps.r + start + p, mask=y >= 0, other=0.0)
                v = load(x, places(x, image, p, inside, grid.size), c, y >= 0)
                share_c, complement, likely_c = share(v, m, r)
                z += (c == y).to(tl.int32)
                left += tl.where(y >= 0, tl.where(c == y, complement, -share_c), 0.0)
            offset = of_map * area.depth * area.height * area.width + to
            tl.store(z_map + offset, z.to(tl.int8), mask=is_candidate & has)
            tl.store(r_map + offset, left, mask=is_candidate & has)


# ---------------------------------------------------------------------------------------------------------- backward


@triton.jit
def load_slopes(x, slopes, grid, image, k, a, mask):
    """Return the slopes by the shares of classes k at averages a."""
    FIRST: tl.constexpr = 1 if x.classes == 2 else 0
    of_map = image * (x.classes - FIRST) + k - FIRST
    to = slopes + of_map * grid.averages.depth * grid.averages.height * grid.averages.width + a
    return tl.load(to, mask=mask & (k >= FIRST) & (k < x.classes), other=0.0)


@triton.jit
def average_at(z, y, x, mask, averages):
    """Return the averages of cells, and which of them there are."""
    exists = mask & (z < averages.depth) & (y < averages.height) & (x < averages.width)
    return (z * averages.height + y) * averages.width + x, exists


@triton.jit
def mean_slope(x, at, m, r, mask, slopes, base, image, average, in_average, grid):
    """Return Σ p g of pixels, with g less the slope of the likeliest class: nothing cancels where it is nearly sure."""
    inner = tl.zeros(mask.shape, x.real)
    for from_class in range(0, x.classes, x.chunk):
        c, exists = chunk_of(x, from_class)
        share_c, complement, is_likely = share(load(x, at, c, mask), m, r)
        slope = load_slopes(x, slopes, grid, image, c, average, in_average) - base
        inner += tl.sum(tl.where(exists, share_c * slope, 0.0), 0, keep_dims=True)
    return inner


@triton.jit
def of_likely_class(v, is_likely, m, r, t):
    """Return what a likely class across an edge gives to classes: t to itself, which comes from the others.

    Their shares are those without it, from the m and r of the others.
    """
    below = tl.where(is_likely, 0.0, tl.minimum(v - m, 0.0))
    return tl.where(t != 0, tl.where(is_likely, 1.0, -exp(below) / (1 + r)) * t, 0.0)


@triton.jit
def backward_kernel(x, g, maps, total_of_labels, factors, of_region, first_image, grid, TILE: tl.constexpr):
    """Write the gradient at the resolution of the labels; it is 0 where a pixel does not count, for any logits."""
    in_part, p, inside = tile(grid.pixels, TILE)
    p = tl.where(inside, p, 0)  # not in vectors, which would spread the classes of a pixel over threads
    image, start = in_part + first_image, (in_part + first_image) * grid.pixels
    y = tl.load(maps.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
    ok, at = y >= 0, places(x, image, p, inside, grid.size)
    if maps.m is not None:
        m = tl.load(maps.m + start + p, mask=ok, other=0.0)
        r = tl.load(maps.r + start + p, mask=ok, other=0.0)
        top = tl.load(maps.top + start + p, mask=ok, other=0).to(tl.int32)
    else:
        m, r, top = statistics(x, at, ok, None)
    rest = tl.zeros(p.shape, x.real)
    spread = tl.load(factors).to(x.real) * of_pixel(image, p, ok, grid)
    own = spread * (1 - grid.smoothing) * of_class(grid.weight, image, y, ok, grid)
    if grid.smoothing > 0:
        spread *= grid.smoothing / x.classes
        of_all = x.classes
        if grid.weight is not None:
            of_all = tl.load(total_of_labels + image % grid.tables)
        rest += spread * of_all
    b, t_likely, to_other = rest * 0, rest * 0, tl.load(factors + 2).to(x.real)
    first, likely, rest_m, rest_r, of_first = y * 0 + IGNORED, y * 0 + IGNORED, m, r, rest * 0
    if maps.toward is not None:
        own += tl.load(factors + 1).to(x.real) * tl.load(maps.toward + start + p, mask=ok, other=0.0)
        b = tl.load(maps.against + start + p, mask=ok, other=0.0)
        if x.classes == 2:
            own += to_other * b
        elif some(b != 0):
            unused, sum_t, of_likely, likely, rest_m, rest_r, first, of_first = across(
                x, at, m, r, b, y, start, p, maps, grid
            )
            rest -= to_other * sum_t
            t_likely = to_other * of_likely / (1 + r)
    if of_region is not None:
        z, row, column = place_of(p, grid.size)
        average, in_average = average_at((z + 1) // 3, (row + 1) // 3, (column + 1) // 3, ok, grid.averages)
        to_region = tl.load(of_region + image // grid.tables).to(x.real)
        base = load_slopes(x, maps.slopes, grid, image, top, average, in_average)
        rest -= to_region * mean_slope(x, at, m, r, ok, maps.slopes, base, image, average, in_average, grid)
    for from_class in range(0, x.classes, x.chunk):
        c, exists = chunk_of(x, from_class)
        v = load(x, at, c, ok)
        share_c, complement, is_likely = share(v, m, r)
        others = rest
        if of_region is not None:
            others += to_region * (load_slopes(x, maps.slopes, grid, image, c, average, in_average) - base)
        gradient = tl.where(c == y, share_c * others - own * complement, share_c * (own + others))
        if grid.smoothing > 0:
            gradient -= spread * of_class(grid.weight, image, c, exists, grid)
        if x.classes > 2 and maps.toward is not None:
            if some(b != 0):
                gradient += tl.where(c == first, to_other * of_first, 0.0)
                if some((b < 0) | (t_likely != 0)):  # rare
                    further = tl.where(is_likely, 0.0, further_weights(c, maps, start + p, p, y, first, grid))
                    gradient += to_other * further * share_c / tl.where(further > 0, complement, 1.0)
                    gradient += of_likely_class(v, c == likely, rest_m, rest_r, t_likely)
        to = g.data + in_part * g.image + (c - x.one).to(tl.int64) * g.channel + p.to(tl.int64) * g.pixel
        value = tl.where(ok, gradient, 0.0).to(g.data.dtype.element_ty)
        tl.store(to, value, mask=inside & exists & (c >= x.one))
