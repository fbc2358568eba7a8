"""Logits → the sums of the terms and the averages of the regions; logits and what arrives → the gradient.

The loss of a pixel is a · -log p(y) + Σ_k b_k · -log(1 - p(k)) + Σ_c s_c · -log p(c) + the region term, with a from the
cross-entropy and A, b from B, s from label smoothing. With t_k = b_k p(k) / (1 - p(k)) and the slope g of the region
term by each share its gradient is

    (a + Σ s - Σ t) p(c) - s_c - a [c = y] + t_c + p(c) (g_c - Σ p g)

where element y has -a (1 - p(y)) for a p(y) - a, and a class k with p(k) > 1/2 takes t_k e^(x_c - log Σ_{j≠k} e^x_j)
from each other class c: 1 - p is the sum of the others, and never a difference. The softmax is kept as m, the largest
logit, and r = Σ e^(x - m) over the other classes.

A pixel belongs to a thread, which goes over its classes one after another, more than once: the second time their logits
are in cache. A thread that forms averages has nine pixels at a time, in tuples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from edgeloss._kernels.triton.label_weights import further_class, further_weight
from edgeloss._kernels.triton.tiles import (
    EXACT,
    FAR,
    IGNORED,
    area_of,
    exp,
    log1p,
    of_class,
    of_pixel,
    place_of,
    some,
    tile,
    total,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32
UNROLLED = tl.constexpr(4)  # classes of a pixel whose loads do not wait for each other
MANY = tl.constexpr(32)  # more classes than most images have


class Logits(NamedTuple):
    """Logits in memory, [B, C, *S']; what is Any is a constant."""

    data: Tensor
    image: int  # the step from an image to the next
    channel: int  # from a class to the next
    pixel: int  # from a pixel to the next
    classes: Any  # C ≥ 2
    one: Any  # 1 of one logit, which is that of class 1, where class 0 has 0; else 0
    real: Any  # the type that kernels compute in
    axes: Any  # along how many they are interpolated
    taps: Any  # from where: upsampled.Taps of each axis


class Pixel(NamedTuple):
    """A tile of pixels, of which some count, and what is known of their softmax."""

    at: Any  # where their logits are: places()
    p: Any  # number in the image
    read: Any  # whether their logits are loaded, those of a thread at once; if interpolated, where they count
    ok: Any  # whether they count
    y: Any  # label
    m: Any  # the largest logit
    r: Any  # Σ e^(x - m) over the others
    top: Any  # the likeliest class


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
        logits = tl.where(weight == 0, logits, tl.fma(second, weight, logits * (1 - weight)))
    return logits


@triton.jit
def load(x, at, k, mask):
    """Return the logits of class k of pixels, one for all or one for each, interpolated where there are taps."""
    if x.one > 0:
        mask = mask & (k >= x.one)
    return load_mixed(x, x.data + tl.cast(k - x.one, tl.int64) * x.channel + at[0], at, mask, x.axes)


@triton.jit
def pixel_of(x, image, p, inside, y, m, r, top, grid):
    """Return pixels of an image with labels y."""
    read, ok = y >= 0 if x.axes > 0 else inside, y >= 0
    return Pixel(places(x, image, p, inside, grid.size), p, read, ok, y, m, r, top)


@triton.jit
def seen_pixel(x, maps, image, p, inside, grid):
    """Return pixels of an image with the softmax that has been stored; where they do not count, shares are 0."""
    to = image * grid.pixels + p
    y = tl.load(maps.label + to, mask=inside, other=IGNORED).to(tl.int32)
    m, r = tl.load(maps.m + to, mask=y >= 0, other=FAR), tl.load(maps.r + to, mask=y >= 0, other=0.0)
    top = tl.load(maps.top + to, mask=y >= 0, other=0).to(tl.int32)
    return pixel_of(x, image, p, inside, y, m, r, top, grid)


# ----------------------------------------------------------------------------------------------------------- softmax


@triton.jit
def see_all(x, pixel, without):
    """Return pixels with the softmax of all classes but ``without``, which may be None."""
    m, r, top = pixel.m * 0 + LOWEST, pixel.r * 0 - 1, pixel.top
    for c in tl.range(x.classes, loop_unroll_factor=UNROLLED if without is None else 2):  # which is seldom looked for
        v = load(x, pixel.at, c, pixel.read)
        if without is not None:
            v = tl.where(without == c, float("-inf"), v)
        grows, e = v > m, exp(-tl.abs(v - m))
        r, top = tl.where(grows, (r + 1) * e, r + e), tl.where(grows, c, top)
        m = tl.maximum(m, v)
    m, r = tl.where(pixel.ok, m, 0.0), tl.where(pixel.ok, r, 0.0)  # the logits of others may be anything
    return Pixel(pixel.at, pixel.p, pixel.read, pixel.ok, pixel.y, m, r, top)


@triton.jit
def share(v, pixel):
    """Return p and 1 - p of a class from its logit, and whether it is its pixel's only likely one, then of r."""
    whole = 1 / (1 + pixel.r)
    p, is_likely = exp(v - pixel.m) * whole, (v == pixel.m) & (pixel.r < 1)
    return p, tl.where(is_likely, pixel.r * whole, 1 - p), is_likely


@triton.jit
def load_class(x, pixel, k):
    """Return the logits of class k of pixels, one for each, and m where there is none: e^(0 - m) may overflow."""
    return tl.where(k >= 0, load(x, pixel.at, k, k >= 0), pixel.m)


@triton.jit
def other_term(x, pixel, k, weight):
    """Return weight · -log(1 - p(k)) and weight · p(k) / (1 - p(k)) unless k is likely, else the weight."""
    q, left, is_likely = share(load_class(x, pixel, k), pixel)
    is_likely = is_likely & (k >= 0)
    here = tl.where(is_likely, 0.0, weight)
    q = tl.where(here != 0, q, 0.0)
    return -here * log1p(-q), here * q / (1 - q), tl.where(is_likely, weight, 0.0)


class Factors(NamedTuple):
    """What arrives at the sums of the terms, and at those by image and class of the edge terms."""

    grad: Any  # what arrives at the loss
    slopes: Tensor  # its derivatives by the cross-entropy, S and O of each image and class, and R of each image
    places: int  # images times classes


@triton.jit
def factor_of(to, place, mask):
    """Return what arrives at places of the slopes, 0 outside of the mask."""
    return to.grad * tl.load(to.slopes + place, mask=mask, other=0.0)


@triton.jit
def other_side_factor(x, to, image, k, mask):
    """Return what arrives at O of classes k of an image."""
    return factor_of(to, 1 + to.places + image * x.classes + k, mask).to(x.real)


@triton.jit
def other_side_slopes(x, pixel, b, image, maps, to, grid):
    """Return what classes k across an edge give to the gradient of pixels; b is of the first of them.

    That is Σ t of those that are not likely, b of the likely one, which one that is, m and r without it, and the first
    class and its t; b and t times what arrives at O of their class.
    """
    start = image * grid.pixels
    first = tl.load(maps.other_class + start + pixel.p, mask=pixel.ok, other=IGNORED).to(tl.int32)
    of_b = tl.abs(b) * other_side_factor(x, to, image, first, first >= 0)
    unused, of_first, of_likely = other_term(x, pixel, first, of_b)
    sum_t, likely = of_first, tl.where(of_likely != 0, first, IGNORED)
    if some(b < 0):  # rare
        for n in range(grid.window if EXACT else tl.minimum(grid.window, 8 * grid.pixels)):
            k, weight = further_weight(n, maps, start + pixel.p, pixel.p, pixel.y, first, grid)
            weight *= other_side_factor(x, to, image, k, k >= 0)
            unused, t, sure = other_term(x, pixel, k, weight)
            sum_t, of_likely = sum_t + t, of_likely + sure
            likely = tl.where(sure != 0, k, likely)
    rest_m, rest_r = pixel.m, pixel.r
    if some(of_likely != 0):  # the others may lie so far below that r is 0
        rest = see_all(x, pixel, likely)
        rest_m, rest_r = rest.m, rest.r
    return sum_t, of_likely, likely, rest_m, rest_r, first, of_first


# ----------------------------------------------------------------------------------------------------------- forward


@triton.jit
def forward_kernel(x, maps, sums, count, grid, TILE: tl.constexpr):
    """Add up the cross-entropy of pixels, and write the statistics of their softmax where others read them."""
    image, p, inside = tile(count, TILE)
    y = tl.load(maps.label + image * grid.pixels + p, mask=inside, other=IGNORED).to(tl.int32)
    zeros = tl.zeros(p.shape, x.real)
    pixel = see_all(x, pixel_of(x, image, p, inside, y, zeros, zeros, y * 0, grid), None)
    if maps.m is not None:
        to = image * grid.pixels + p
        tl.store(maps.m + to, pixel.m, mask=inside)
        tl.store(maps.r + to, pixel.r, mask=inside)
        tl.store(maps.top + to, pixel.top.to(tl.int16), mask=inside)
    log_s = log1p(pixel.r)
    nll = (pixel.m - load(x, pixel.at, pixel.y, pixel.ok)) + log_s
    v = of_pixel(image, pixel.p, pixel.ok, grid)
    w = v * (1 - grid.smoothing) * of_class(grid.weight, image, pixel.y, pixel.ok, grid)
    entropy = tl.where(w == 0, 0.0, w * nll)
    if grid.smoothing > 0:
        every = entropy * 0
        for c in tl.range(x.classes, loop_unroll_factor=UNROLLED):
            of_c = log_s - (load(x, pixel.at, c, pixel.ok) - pixel.m)
            every += of_c * of_class(grid.weight, image, c, True, grid)
        entropy += tl.where(v == 0, 0.0, v * (grid.smoothing / x.classes * every))
    tl.store(sums + tl.program_id(0), total(entropy))


# ---------------------------------------------------------------------------------------------------------- averages


@triton.jit
def cell_pixel(x, maps, image, z, row, column, exists, n, grid, STEPS: tl.constexpr):
    """Return pixel n of cells of 3 pixels per axis, STEPS in all, whose first pixels are given."""
    row, column = row + n // 3 % 3, column + n % 3
    inside = exists & (row >= 0) & (row < grid.size.height) & (column >= 0) & (column < grid.size.width)
    if STEPS == 27:
        z += n // 9
        inside = inside & (z >= 0) & (z < grid.size.depth)
    return seen_pixel(x, maps, image, (z * grid.size.height + row) * grid.size.width + column, inside, grid)


@triton.jit
def averages_kernel(x, maps, z_map, r_map, count, STEPS: tl.constexpr, numbers, grid, TILE: tl.constexpr):
    """Write the sums of z and r under averages, of as many pixels of cells at a time as ``numbers``.

    Averages are [B, M, *A], with M = ``grid.maps``, for the classes of ``map_class``: z of the
    labels' indicators, int8, and r of what the shares leave of them.
    """
    image, t, exists = tile(count, TILE)
    area = grid.averages
    cell_z, cell_y, cell_x = place_of(t, grid.cells)
    to, has = average_at(cell_z, cell_y, cell_x, exists, area)
    z, row, column = cell_z * (STEPS // 9), cell_y * 3 - 1, cell_x * 3 - 1
    if STEPS == 27:
        z = z - 1
    of_maps = area_of(area)
    for group in range(STEPS // len(numbers)):
        n = group * len(numbers)
        pixels = [cell_pixel(x, maps, image, z, row, column, exists, n + i, grid, STEPS) for i in numbers]
        of_map, last = image * grid.maps, (image + 1) * grid.maps
        c = tl.load(maps.average_class + of_map).to(tl.int32)
        values = [load(x, pixel.at, c, pixel.ok & (c >= 0)) for pixel in pixels]
        while c >= 0:
            following = tl.load(maps.average_class + of_map + 1, mask=of_map + 1 < last, other=IGNORED).to(tl.int32)
            coming = [load(x, pixel.at, following, pixel.ok & (following >= 0)) for pixel in pixels]
            offset = of_map * of_maps + to
            z_sum = tl.load(z_map + offset, mask=has & (group > 0), other=0).to(tl.int32)
            r_sum = tl.load(r_map + offset, mask=has & (group > 0), other=0.0)
            for i in tl.static_range(len(pixels)):
                q, left, is_likely = share(values[i], pixels[i])
                z_sum += (pixels[i].y == c).to(tl.int32)
                r_sum += tl.where(pixels[i].y == c, left, -q)
            tl.store(z_map + offset, z_sum.to(tl.int8), mask=has)
            tl.store(r_map + offset, r_sum, mask=has)
            of_map, c, values = of_map + 1, following, coming


# ---------------------------------------------------------------------------------------------------------- backward


@triton.jit
def load_slopes(maps, image, start, a, grid):
    """Return the slopes of maps of an image at averages a, one for all pixels or one for each, 0 without a map."""
    of_image = image * grid.maps * area_of(grid.averages)
    return tl.load(maps.region_slopes + of_image + start + a, mask=start >= 0, other=0.0)


@triton.jit
def of_class_map(maps, image, c, mask, grid):
    """Return where the maps of averages of classes c start in those of an image, -1 where there is none."""
    return tl.load(maps.average_start + image * grid.classes + c, mask=mask, other=IGNORED)


@triton.jit
def average_at(z, y, x, mask, averages):
    """Return the averages of cells, and which of them there are."""
    exists = mask & (z < averages.depth) & (y < averages.height) & (x < averages.width)
    return (z * averages.height + y) * averages.width + x, exists


@triton.jit
def of_maps(x, maps, image, grid, pixel, place, average, numbers):
    """Return the classes of as many maps of averages of an image as ``numbers``, -1 of none, and logits and slopes."""
    of_class, area = maps.average_class + image * grid.maps, area_of(grid.averages)
    classes = [tl.load(of_class + place + i, mask=place + i < grid.maps, other=IGNORED).to(tl.int32) for i in numbers]
    values = [load(x, pixel.at, c, pixel.read & (c >= 0)) for c in classes]
    # Maps that no class has may hold anything: their slopes are not used.
    starts = [tl.where(place + i < grid.maps, (place + i) * area, IGNORED) for i in numbers]
    slopes = [load_slopes(maps, image, start, average, grid) for start in starts]
    return classes, values, slopes


@triton.jit
def mean_slope(x, maps, grid, pixel, image, average):
    """Return Σ e^(x_c - m) g_c of pixels, without the likeliest class; g is 0 of classes without a map."""
    mean, place = tl.zeros(average.shape, x.real), 0
    numbers = (0,) if x.classes == 2 else (0, 1) if x.classes <= MANY else (0, 1, 2, 3)  # as in write_gradient
    while place < grid.maps:
        classes, values, slopes = of_maps(x, maps, image, grid, pixel, place, average, numbers)
        for i in tl.static_range(len(numbers)):
            counts = (classes[i] >= 0) & (classes[i] != pixel.top)
            mean += tl.where(counts, exp(values[i] - pixel.m) * slopes[i], 0.0)
        place = tl.where(classes[len(numbers) - 1] >= 0, place + len(numbers), grid.maps)
    return mean


@triton.jit
def cross_entropy_slopes(x, to, image, p, y, ok, grid, WIDE: tl.constexpr):
    """Return what the cross-entropy gives to ``own``, ``rest`` and ``spread`` of :class:`Slopes`."""
    spread = factor_of(to, 0, True).to(x.real) * of_pixel(image, p, ok, grid)
    own = spread * (1 - grid.smoothing) * of_class(grid.weight, image, y, ok, grid)
    rest = tl.zeros(p.shape, x.real)
    if grid.smoothing > 0:
        spread *= grid.smoothing / x.classes
        of_all = x.classes
        if grid.weight is not None:
            k = tl.arange(0, WIDE)
            of_all = tl.sum(of_class(grid.weight, image, k, k < grid.classes, grid))
        rest += spread * of_all
    return own, rest, spread


@triton.jit
def add_edges(x, pixel, own, rest, maps, to, image, grid):
    """Return ``own`` and ``rest`` with what the edge terms give to them, B, the first class across an edge, and its t.

    After them comes what :func:`write_class` takes of a likely class across an edge.
    """
    start, p, y, ok = image * grid.pixels, pixel.p, pixel.y, pixel.ok
    b, of_likely = rest * 0, rest * 0
    first, likely, rest_m, rest_r, of_first = y * 0 + IGNORED, y * 0 + IGNORED, pixel.m, pixel.r, rest * 0
    if maps.same_side is not None:
        b = tl.load(maps.other_side + start + p, mask=ok, other=0.0)
        if some(b != 0):
            if x.classes == 2:
                own += other_side_factor(x, to, image, 1 - y, b != 0) * b
            else:
                sum_t, of_likely, likely, rest_m, rest_r, first, of_first = other_side_slopes(
                    x, pixel, b, image, maps, to, grid
                )
                rest -= sum_t
        a = tl.load(maps.same_side + start + p, mask=ok, other=0.0)
        if some(a != 0):
            own += factor_of(to, 1 + image * x.classes + y, a != 0).to(x.real) * a
    return own, rest, b, first, of_first, (likely, rest_m, rest_r, of_likely, to)


@triton.jit(do_not_specialize=["first_image"])
def backward_kernel(
    x, g, maps, grad, slopes, places, first_image, WIDE: tl.constexpr, grid, TILE: tl.constexpr
):  # fmt: skip
    """Write the gradient at the resolution of the labels; it is 0 where a pixel does not count, for any logits."""
    in_part, p, inside = tile(grid.pixels, TILE)
    image = in_part + first_image
    pixel = seen_pixel(x, maps, image, p, inside, grid)
    at, y, ok = pixel.at, pixel.y, pixel.ok
    to = Factors(1.0, slopes, places)
    if grad is not None:
        to = Factors(tl.load(grad).to(tl.float64), slopes, places)
    own, rest, spread = cross_entropy_slopes(x, to, image, p, y, ok, grid, WIDE)
    own, rest, b, first, of_first, further = add_edges(x, pixel, own, rest, maps, to, image, grid)
    average, base, to_region = p, rest * 0, rest * 0
    if maps.region_slopes is not None:
        z, row, column = place_of(p, grid.size)
        average, ok_there = average_at((z + 1) // 3, (row + 1) // 3, (column + 1) // 3, ok, grid.averages)
        average = tl.where(ok_there, average, 0)
        of_image = factor_of(to, 1 + 2 * to.places + image // grid.tables, True).to(x.real)
        to_region = tl.where(ok_there, of_image, 0.0)
        # Less the slope of the likeliest class nothing cancels where it is nearly sure: Σ_c e^(x_c - m) (g_c - base),
        # where the other classes add up to r.
        base = load_slopes(maps, image, of_class_map(maps, image, pixel.top, ok, grid), average, grid)
        mean = mean_slope(x, maps, grid, pixel, image, average) - base * pixel.r
        rest -= to_region * mean / (1 + pixel.r)
    of_label = -own * share(load(x, at, y, ok), pixel)[1]
    state = Slopes(pixel, 1 / (1 + pixel.r), own, of_label, rest, spread, first, of_first, average, base, to_region)
    if maps.other_class is None:
        write_gradient(x, g, maps, in_part, image, inside, grid, state, None)
    elif some((b < 0) | (further[3] != 0)):  # rare: a likely class
        write_gradient(x, g, maps, in_part, image, inside, grid, state, further)
    else:
        write_gradient(x, g, maps, in_part, image, inside, grid, state, None)


class Slopes(NamedTuple):
    """What the gradient of a tile of pixels by the logits of any class is made of."""

    pixel: Pixel
    whole: Any  # 1 / (1 + r)
    own: Any  # a
    of_label: Any  # the element of the label, but for what all classes have
    rest: Any  # what the shares are multiplied by, but for ``own`` and the region term
    spread: Any  # of label smoothing
    first: Any  # the first class across an edge
    of_first: Any  # its t
    average: Any  # where the slopes of the region term are
    base: Any  # that of the likeliest class
    to_region: Any  # the factor of the slopes


@triton.jit
def write_class(x, g, in_part, image, inside, v, c, slope, state, further, more, grid):
    """Write the gradient by logits v of class c, one for all pixels or one for each; the slope may be None."""
    pixel, p, others = state.pixel, exp(v - state.pixel.m) * state.whole, state.rest
    if slope is not None:
        others += state.to_region * (slope - state.base)
    gradient = p * others + tl.where(pixel.y == c, state.of_label, state.own * p)
    gradient += tl.where(state.first == c, state.of_first, 0.0) + more
    there = inside & (c >= x.one) & (c < x.classes)
    if grid.smoothing > 0:
        gradient -= state.spread * of_class(grid.weight, image, c, (c < x.classes) & (c >= 0), grid)
    if further is not None:
        likely, rest_m, rest_r, of_likely, of_terms = further
        t_likely = of_likely * state.whole
        # A likely class gives t to itself, which comes from the others, by their shares without it.
        below = tl.where(likely == c, 0.0, tl.minimum(v - rest_m, 0.0))
        gradient += tl.where(t_likely != 0, tl.where(likely == c, 1.0, -exp(below) / (1 + rest_r)) * t_likely, 0.0)
    to = g.data + in_part * g.image + tl.cast(c - x.one, tl.int64) * g.channel + pixel.p.to(tl.int64) * g.pixel
    tl.store(to, tl.where(pixel.ok, gradient, 0.0).to(g.data.dtype.element_ty), mask=there)


@triton.jit
def write_gradient(x, g, maps, in_part, image, inside, grid, state, further):
    """Write the gradient by each class.

    Of many classes most have no map of averages: those that have are written again, with their slopes. So are those
    around pixels next to more than one.
    """
    SPARSE: tl.constexpr = maps.region_slopes is not None and x.classes > MANY
    pixel, average = state.pixel, state.average
    # Of loads before a store: with slopes, more of them take longer.
    PAIRS: tl.constexpr = x.classes == 2 or (maps.region_slopes is not None and not SPARSE)
    numbers = (0,) if further is not None else (0, 1) if PAIRS else (0, 1, 2, 3)
    for start in range(0, x.classes, len(numbers)):
        values = [load(x, pixel.at, start + i, pixel.read & (start + i < x.classes)) for i in numbers]
        slopes = state.rest
        if maps.region_slopes is not None and not SPARSE:
            starts = [of_class_map(maps, image, start + i, start + i < x.classes, grid) for i in numbers]
            slopes = [load_slopes(maps, image, of_map, average, grid) for of_map in starts]
        for i in tl.static_range(len(numbers)):
            slope = None if maps.region_slopes is None else 0.0 if SPARSE else slopes[i]
            write_class(x, g, in_part, image, inside, values[i], start + i, slope, state, further, 0.0, grid)
    if SPARSE:
        place = 0
        while place < grid.maps:
            classes, values, slopes = of_maps(x, maps, image, grid, pixel, place, average, numbers)
            for i in tl.static_range(len(numbers)):
                write_class(x, g, in_part, image, inside, values[i], classes[i], slopes[i], state, further, 0.0, grid)
            place = tl.where(classes[len(numbers) - 1] >= 0, place + len(numbers), grid.maps)
    if further is not None:
        tl.debug_barrier()  # another thread may have written the elements that one writes again
        start, y = image * grid.pixels + pixel.p, pixel.y
        k, weight = further_class(y * 0 + IGNORED, maps, start, pixel.p, y, state.first, grid)
        while some(k >= 0):
            v, of_average = load_class(x, pixel, k), None
            if maps.region_slopes is not None:
                of_average = load_slopes(maps, image, of_class_map(maps, image, k, k >= 0, grid), average, grid)
            p, left, is_likely = share(v, pixel)
            weight = tl.where(is_likely | (k < 0), 0.0, weight * other_side_factor(x, further[4], image, k, k >= 0))
            more = weight * p / tl.where(weight != 0, left, 1.0)
            write_class(x, g, in_part, image, inside, v, k, of_average, state, further, more, grid)
            seen = tl.where(k >= 0, k, grid.classes)
            k, weight = further_class(seen, maps, start, pixel.p, y, state.first, grid)
