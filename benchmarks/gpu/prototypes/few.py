"""Few classes, up to 32: all logits of a pixel are in registers, and are read once; and the gradient of more classes.

``forward_few_kernel`` is for forward_kernel and averages_kernel of edgeloss/_kernels/triton/terms.py,
``backward_few_kernel`` and ``backward_many_kernel`` for its backward_kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from edgeloss._kernels.triton.terms import (
    Factors,
    Pixel,
    Slopes,
    add_edges,
    average_at,
    cross_entropy_slopes,
    factor_of,
    load,
    load_slopes,
    mean_slope,
    of_class_map,
    places,
    seen_pixel,
    share,
    write_gradient,
)
from edgeloss._kernels.triton.tiles import EXACT, IGNORED, area_of, exp, of_class, of_pixel, place_of, some, tile, total


@triton.jit
def load_all(x, at, classes):
    """Return the logits of all classes of pixels, whose first ones are at given places, all of which exist."""
    values, here = (), x.data + at
    for i in tl.static_range(len(classes)):
        if classes[i] < x.one:
            values += (tl.zeros(at.shape, x.real),)
        else:
            values += (tl.load(here).to(x.real),)
            here += x.channel
    return values


@triton.jit
def reciprocal(x):
    """Return 1 / x of numbers that are neither tiny nor huge."""
    return 1 / x if EXACT or x.dtype == tl.float64 else libdevice.fast_dividef(1.0, x)


@triton.jit
def softmax(values, like):
    """Return the largest of some logits, e^(x - m) of all, the sum of them without the largest, and which one it is."""
    m, top = values[0], like.to(tl.int32) * 0
    for i in tl.static_range(1, len(values)):
        top = tl.where(values[i] > m, i, top)
        m = tl.maximum(m, values[i])
    e = [exp(v - m) for v in values]
    r, smaller = like * 0, like * 0
    for i in tl.static_range(len(values)):
        is_smaller = tl.where(e[i] < 1, 1.0, 0.0).to(like.dtype)
        r += is_smaller * e[i]
        smaller += is_smaller
    return m, e, r + (len(values) - 1 - smaller), top


# ------------------------------------------------------------------------------------------------- forward and averages


@triton.jit
def smoothed(values, m, log_s, image, grid):
    """Return the sum of weight · -log p over all classes."""
    every = log_s * 0
    for c in tl.static_range(len(values)):
        every += (log_s - (values[c] - m)) * of_class(grid.weight, image, c, True, grid)
    return every


@triton.jit
def clamped(place, length):
    """Return the nearest places that exist."""
    return tl.minimum(tl.maximum(place, 0), length - 1)


@triton.jit
def forward_few_kernel(
    x, maps, z_map, r_map, present, sums, count, STEPS: tl.constexpr, classes, words, grid, TILE: tl.constexpr
):  # fmt: skip
    """Add up the cross-entropy of pixels, write the statistics of their softmax, and the averages of present classes.

    A thread has a cell of STEPS pixels, one at a time; ``words`` are one for four classes each, which count their
    pixels in a byte each. Classes are present as in labels, and have a map if the image has others too.
    """
    image, t, exists = tile(count, TILE)
    cell_z, cell_y, cell_x = place_of(t, grid.cells)
    start, zeros, nothing = image * grid.pixels, tl.zeros([TILE], x.real), tl.zeros([TILE], tl.int32)
    entropy, r_sums, z_sums = zeros, (), ()
    for _ in tl.static_range(len(classes)):
        r_sums += (zeros,)
    for _ in tl.static_range(len(words)):
        z_sums += (nothing,)
    for n in range(STEPS):
        row, column = 3 * cell_y - 1 + n // 3 % 3, 3 * cell_x - 1 + n % 3
        inside = exists & (row >= 0) & (row < grid.size.height) & (column >= 0) & (column < grid.size.width)
        p = clamped(row, grid.size.height) * grid.size.width + clamped(column, grid.size.width)
        if STEPS == 27:
            z = 3 * cell_z - 1 + n // 9
            inside = inside & (z >= 0) & (z < grid.size.depth)
            p += clamped(z, grid.size.depth) * grid.size.height * grid.size.width
        y = tl.load(maps.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
        ok = y >= 0
        at = places(x, image, p, inside, grid.size)
        values = load_all(x, at[0], classes)
        m, e, r, top = softmax(values, zeros)
        m, r = tl.where(ok, m, 0.0), tl.where(ok, r, 0.0)
        if maps.m is not None:
            tl.store(maps.m + start + p, m, mask=inside)
            tl.store(maps.r + start + p, r, mask=inside)
            tl.store(maps.top + start + p, top.to(tl.int16), mask=inside)
        u = 1.0 + r
        whole = reciprocal(u)
        log_s = tl.log(u) + (r - (u - 1.0)) * whole
        v_y = load(x, at, y, ok)
        v = of_pixel(image, p, ok, grid)
        w = v * (1 - grid.smoothing) * of_class(grid.weight, image, y, ok, grid)
        entropy += tl.where(w == 0, 0.0, w * ((m - v_y) + log_s))
        if grid.smoothing > 0:
            every = grid.smoothing / x.classes * smoothed(values, m, log_s, image, grid)
            entropy += tl.where(v == 0, 0.0, v * every)
        if r_map is not None:
            whole = tl.where(ok, whole, 0.0)
            left = tl.where((v_y == m) & (r < 1), r * whole, 1 - exp(v_y - m) * whole)
            added = ()
            for c in tl.static_range(len(classes)):
                added += (r_sums[c] + tl.where(y == c, left, tl.where(ok, -e[c] * whole, 0.0)),)
            r_sums, added, unit = added, (), tl.where(ok, 1, 0) << ((y & 3) * 8)
            for k in tl.static_range(len(words)):
                added += (z_sums[k] + tl.where(y >> 2 == k, unit, 0),)
            z_sums = added
    tl.store(sums + tl.program_id(0), total(entropy))
    if r_map is not None:
        average, has = average_at(cell_z, cell_y, cell_x, exists, grid.averages)
        area, of_image = area_of(grid.averages), present + image * grid.classes
        offset, number = image * grid.maps * area + average, 0
        for c in tl.static_range(len(classes)):
            number += tl.load(of_image + c).to(tl.int32)
        for c in tl.static_range(len(classes)):
            if x.classes > 2 or c == 1:
                if (number > 1) & (tl.load(of_image + c) > 0):
                    tl.store(r_map + offset, r_sums[c], mask=has)
                    tl.store(z_map + offset, ((z_sums[c // 4] >> (c % 4 * 8)) & 255).to(tl.int8), mask=has)
                    offset += area


# ---------------------------------------------------------------------------------------------------------- backward


@triton.jit
def factors(grad, slopes, number):
    """Return what arrives at the sums of the terms."""
    to = Factors(1.0, slopes, number)
    if grad is not None:
        to = Factors(tl.load(grad).to(tl.float64), slopes, number)
    return to


@triton.jit
def region_of(x, p, ok, to, image, grid):
    """Return the averages of pixels, and what arrives at their slopes."""
    z, row, column = place_of(p, grid.size)
    average, ok_there = average_at((z + 1) // 3, (row + 1) // 3, (column + 1) // 3, ok, grid.averages)
    of_image = factor_of(to, 1 + 2 * to.places + image // grid.tables, True).to(x.real)
    return tl.where(ok_there, average, 0), tl.where(ok_there, of_image, 0.0)


@triton.jit
def write_rare(x, g, maps, in_part, image, inside, grid, pixel, whole, first, of_first, further, of_others):
    """Write the gradient of pixels across an edge from several classes, or from a likely one."""
    rest, own, spread, to_region, average, base = of_others
    of_label = -own * share(load(x, pixel.at, pixel.y, pixel.ok), pixel)[1]
    state = Slopes(pixel, whole, own, of_label, rest, spread, first, of_first, average, base, to_region)
    write_gradient(x, g, maps, in_part, image, inside, grid, state, further)


@triton.jit(do_not_specialize=["first_image"])
def backward_few_kernel(
    x, g, maps, grad, slopes, number, first_image, WIDE: tl.constexpr, classes, grid, TILE: tl.constexpr
):  # fmt: skip
    """Write the gradient; elements of the label and of the class across an edge are written again."""
    in_part, p, inside = tile(grid.pixels, TILE)
    image, start = in_part + first_image, (in_part + first_image) * grid.pixels
    y = tl.load(maps.label + start + p, mask=inside, other=IGNORED).to(tl.int32)
    ok, zeros = y >= 0, tl.zeros(p.shape, x.real)
    at = places(x, image, tl.minimum(p, grid.pixels - 1), inside, grid.size)
    values = load_all(x, at[0], classes)
    m, e, r, top = softmax(values, zeros)
    m, r = tl.where(ok, m, 0.0), tl.where(ok, r, 0.0)
    pixel, whole = Pixel(at, p, inside, ok, y, m, r, top), reciprocal(1 + r)
    to = factors(grad, slopes, number)
    own, rest, spread = cross_entropy_slopes(x, to, image, p, y, ok, grid, WIDE)
    own, rest, b, first, of_first, further = add_edges(x, pixel, own, rest, maps, to, image, grid)
    average, to_region, base, d = p, zeros, zeros, e
    if maps.region_slopes is not None:
        average, to_region = region_of(x, p, ok, to, image, grid)
        of_classes = ()
        for c in tl.static_range(len(classes)):
            if x.classes == 2 and c == 0:
                of_classes += (zeros,)
            else:
                map_of_class = of_class_map(maps, image, c, True, grid)
                of_classes += (load_slopes(maps, image, map_of_class, average, grid),)
        for c in tl.static_range(len(classes)):
            base = tl.where(top == c, of_classes[c], base)
        d = [slope - base for slope in of_classes]
        mean = zeros
        for c in tl.static_range(len(classes)):
            mean += e[c] * d[c]
        rest -= to_region * mean * whole
    of_others = rest, own, spread, to_region, average, base
    if maps.other_class is None:
        write_common(
            x, g, maps, in_part, image, inside, grid, pixel, classes, e, d, whole, first, of_first, b, of_others
        )
    elif some((b < 0) | (further[3] != 0)):  # rare
        write_rare(x, g, maps, in_part, image, inside, grid, pixel, whole, first, of_first, further, of_others)
    else:
        write_common(
            x, g, maps, in_part, image, inside, grid, pixel, classes, e, d, whole, first, of_first, b, of_others
        )


@triton.jit
def write_common(
    x, g, maps, in_part, image, inside, grid, pixel, classes, e, d, whole, first, of_first, b, of_others
):  # fmt: skip
    """Write the gradient of pixels that have one class across an edge at most, which is not likely."""
    rest, own, spread, to_region, average, base = of_others
    every, of_slope = tl.where(pixel.ok, (rest + own) * whole, 0.0), to_region * whole
    here = g.data + in_part * g.image + pixel.p.to(tl.int64) * g.pixel
    for c in tl.static_range(len(classes)):
        if classes[c] >= x.one:
            others = every
            if maps.region_slopes is not None:
                others += of_slope * d[c]
            gradient = e[c] * others
            if grid.smoothing > 0:
                gradient -= spread * of_class(grid.weight, image, c, True, grid)
            tl.store(here, tl.where(pixel.ok, gradient, 0.0).to(g.data.dtype.element_ty), mask=inside)
            here += g.channel
    write_others(x, g, maps, in_part, image, grid, pixel, first, of_first, b, of_others)


@triton.jit
def write_others(x, g, maps, in_part, image, grid, pixel, first, of_first, b, of_others):
    """Write the elements of the label and of the class across an edge, which have more than the others."""
    tl.debug_barrier()  # another thread may have written the elements that one writes again
    write_again(x, g, maps, in_part, image, grid, pixel, pixel.y, pixel.m * 0, of_others, True)
    if maps.other_class is not None:
        if some(b > 0):
            k = tl.where(b > 0, first, IGNORED)
            write_again(x, g, maps, in_part, image, grid, pixel, k, of_first, of_others, False)


@triton.jit
def write_again(x, g, maps, in_part, image, grid, pixel, k, more, of_others, IS_LABEL: tl.constexpr):
    """Write elements of classes k, one for each pixel."""
    rest, own, spread, to_region, average, base = of_others
    p, left, is_likely = share(load(x, pixel.at, k, pixel.ok & (k >= 0)), pixel)
    others = rest
    if maps.region_slopes is not None:
        of_map = of_class_map(maps, image, k, k >= 0, grid)
        others += to_region * (load_slopes(maps, image, of_map, average, grid) - base)
    gradient = p * others + (-own * left if IS_LABEL else p * own + more)
    if grid.smoothing > 0:
        gradient -= spread * of_class(grid.weight, image, k, k >= 0, grid)
    to = g.data + in_part * g.image + tl.cast(k - x.one, tl.int64) * g.channel + pixel.p.to(tl.int64) * g.pixel
    tl.store(to, gradient.to(g.data.dtype.element_ty), mask=k >= x.one)


@triton.jit(do_not_specialize=["first_image"])
def backward_many_kernel(
    x, g, maps, grad, slopes, number, first_image, WIDE: tl.constexpr, numbers, rest_of_numbers, grid,
    TILE: tl.constexpr,
):  # fmt: skip
    """Write the gradient, of as many classes at a time as ``numbers``; as above, elements are written again."""
    in_part, p, inside = tile(grid.pixels, TILE)
    image = in_part + first_image
    pixel = seen_pixel(x, maps, image, p, inside, grid)
    to, whole = factors(grad, slopes, number), reciprocal(1 + pixel.r)
    own, rest, spread = cross_entropy_slopes(x, to, image, p, pixel.y, pixel.ok, grid, WIDE)
    own, rest, b, first, of_first, further = add_edges(x, pixel, own, rest, maps, to, image, grid)
    average, to_region, base = p, rest * 0, rest * 0
    if maps.region_slopes is not None:
        average, to_region = region_of(x, p, pixel.ok, to, image, grid)
        base = load_slopes(maps, image, of_class_map(maps, image, pixel.top, pixel.ok, grid), average, grid)
        rest -= to_region * (mean_slope(x, maps, grid, pixel, image, average) - base * pixel.r) * whole
    of_others = rest, own, spread, to_region, average, base
    if some((b < 0) | (further[3] != 0)):  # rare
        write_rare(x, g, maps, in_part, image, inside, grid, pixel, whole, first, of_first, further, of_others)
    else:
        every, of_slope = (rest + own) * whole, to_region * whole
        common = every, of_slope, spread, average, base
        following, place = tl.program_id(0) * 0 + x.classes, image * grid.maps
        if maps.region_slopes is not None:
            following = next_class(maps, place, image, grid)
        c = following * 0
        while c + len(numbers) <= x.classes:
            following, place = write_some(
                x, g, maps, in_part, image, inside, grid, pixel, c, following, place, common, numbers
            )
            c += len(numbers)
        if len(rest_of_numbers) > 0:
            write_some(x, g, maps, in_part, image, inside, grid, pixel, c, following, place, common, rest_of_numbers)
        write_others(x, g, maps, in_part, image, grid, pixel, first, of_first, b, of_others)


@triton.jit
def next_class(maps, place, image, grid):
    """Return the class of a map of averages of an image, a number beyond all classes after the last one."""
    mask = place < (image + 1) * grid.maps
    c = tl.load(maps.average_class + place, mask=mask, other=IGNORED).to(tl.int32)
    return tl.where(c < 0, grid.classes, c)


@triton.jit
def write_some(x, g, maps, in_part, image, inside, grid, pixel, c, following, place, common, numbers):
    """Write the gradient by classes c and those after it; return which class has a map of averages next, and where."""
    every, of_slope, spread, average, base = common
    values, d = (), ()
    # Addresses of tiles that step would be exchanged between threads in each turn.
    here = x.data + c.to(tl.int64) * x.channel
    there = g.data + in_part * g.image + c.to(tl.int64) * g.channel
    for i in tl.static_range(len(numbers)):
        values += (tl.load(here + i * x.channel + pixel.at[0], mask=pixel.read, other=0.0).to(x.real),)
        d += (-base,)
    if maps.region_slopes is not None:
        if following < c + len(numbers):
            d = ()
            for i in tl.static_range(len(numbers)):
                start = of_class_map(maps, image, c + i, True, grid)
                d += (load_slopes(maps, image, start, average, grid) - base,)
                place += tl.where(start >= 0, 1, 0)
            following = next_class(maps, place, image, grid)
    for i in tl.static_range(len(numbers)):
        others = every
        if maps.region_slopes is not None:
            others += of_slope * d[i]
        gradient = exp(values[i] - pixel.m) * others
        if grid.smoothing > 0:
            gradient -= spread * of_class(grid.weight, image, c + i, True, grid)
        gradient = tl.where(pixel.ok, gradient, 0.0).to(g.data.dtype.element_ty)
        tl.store(there + i * g.channel + pixel.p.to(tl.int64) * g.pixel, gradient, mask=inside)
    return following, place
