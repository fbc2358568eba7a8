"""Labels → the weights of the edge terms.

With power 0, for the edge pixels i of class c in an image, with the neighbors N(i) and the weights v_i,

    Σ v S = Σ { A_n · -log p_n(c) : y_n = c }      A_n    = w_n · Σ { v_i / D_i  : i ∈ N(n), y_i = y_n }
    Σ v O = Σ_n B_n(c) · -log(1 - p_n(c))          B_n(k) = w_n · Σ { v_i / D'_i : i ∈ N(n), y_i = k ≠ y_n }

where D_i and D'_i are Σ w over the neighbors of i on its own side and across the edge. With decay, w = e^(-d / decay)
counts from the nearest pixel of the side, whose distance is ``least``: no w underflows, however far the side is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeloss._kernels.triton.tiles import EXACT, FAR, IGNORED, of_class, of_pixel, place_of, total
from edgeloss._reduction import SumRow

# The rows of sums that come from labels alone, numbered from the first of them, and whether a tile has weights.
WEIGHT, VALID, EDGES, WRONG = (tl.constexpr(row - SumRow.WEIGHT) for row in [*SumRow][SumRow.WEIGHT :])
NEAR_EDGES, ROWS_OF_SUMS = tl.constexpr(len(SumRow) - SumRow.WEIGHT), tl.constexpr(len(SumRow) - SumRow.WEIGHT + 1)
MANY = tl.constexpr(2**15)  # more than the pixels of a tile
NONE = tl.constexpr(2**16 - 1)  # a number of pixels beyond all others


@triton.jit
def tile_of_rows(n, size, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return the image of tile n, its first pixel, its pixels [ROWS, TILE], in memory and by axis, and which exist.

    A tile is in one slice of a volume. The column in the tile is added last, in 64 bits: the compiler then knows which
    pixels of a thread follow each other.
    """
    parts = tl.cdiv(size.width, TILE)
    blocks = parts * tl.cdiv(size.height, ROWS)
    slices, block = n // blocks, n % blocks
    top, start = block // parts * ROWS, block % parts * TILE
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, TILE)[None, :]
    first = (slices.to(tl.int64) * size.height + top) * size.width + start
    to, place = first + row * size.width + column, (slices % size.depth, top + row, start + column)
    return slices // size.depth, first, to, place, exists(place, 0, 0, 0, size)


@triton.jit
def displaced_from(place, n, size, radius):
    """Return how far displacement n of a window is in memory, whether it is inside the image, and its z and y."""
    rows, columns = 2 * radius.height + 1, 2 * radius.width + 1
    dz, dy, dx = n // (rows * columns) - radius.depth, n // columns % rows - radius.height, n % columns - radius.width
    return (dz * size.height + dy) * size.width + dx, exists(place, dz, dy, dx, size), dz, dy


@triton.jit
def exists(place, dz, dy, dx, size):
    """Return which places are inside the image when they are displaced; without a sign, negative ones are too large."""
    z, y, x = place
    inside = (y + dy).to(tl.uint32) < size.height
    if size.depth > 1:
        inside = inside & ((z + dz).to(tl.uint32) < size.depth)
    return inside & ((x + dx).to(tl.uint32) < size.width)


@triton.jit
def neighbor(label, place, mask, n, grid):
    """Return how far neighbor n of pixels is, and its label, ``IGNORED`` where there is none; ``label`` is theirs."""
    step, there, dz, dy = displaced_from(place, n, grid.size, grid.radius)
    is_other = place[2] * 0 + n != grid.window // 2
    return step, tl.load(label + step, mask=mask & there & is_other, other=IGNORED).to(tl.int32)


@triton.jit
def read_labels_kernel(target, label, present, sums, ignore, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Write which labels count, and which classes are in an image; add up their weights."""
    image, first, to, place, inside = tile_of_rows(tl.program_id(0), grid.size, ROWS, TILE)
    given = tl.load(target + to, mask=inside, other=0).to(tl.int64)
    is_read = inside & (given != ignore)
    ok = is_read & (given >= 0) & (given < grid.classes)
    y = tl.where(ok, given, IGNORED).to(tl.int32)
    tl.store(label + to, y.to(tl.int16), mask=inside)
    if present is not None:
        k = tl.max(y)
        while k >= 0:  # once for each class, not for each pixel: all stores are to a few addresses
            tl.store(present + image * grid.classes + k, 1)
            k = tl.max(tl.where(y < k, y, IGNORED))
    both = tl.sum(ok.to(tl.int32) * MANY + is_read.to(tl.int32))
    valid = both // MANY
    of_program = sums + tl.program_id(0).to(tl.int64) * ROWS_OF_SUMS
    if grid.weight is None and grid.pixel_weight is None:
        tl.store(of_program + WEIGHT, valid.to(tl.float64))
    else:
        w = of_pixel(0, to, ok, grid) * of_class(grid.weight, image, y, ok, grid)
        tl.store(of_program + WEIGHT, total(w))
    tl.store(of_program + VALID, valid.to(tl.float64))
    tl.store(of_program + WRONG, (both % MANY - valid).to(tl.float64))
    tl.store(of_program + EDGES, 0.0)  # unless there are edges
    tl.store(of_program + NEAR_EDGES, 0.0)


@triton.jit
def find_in_rows_kernel(label, nearest, reach, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Write the nearest class in the row of each pixel, and how far it is, and the nearest of the other classes.

    That is (class · 2¹⁶ + distance) · 2¹⁶ + distance of the others, ``NONE`` beyond ``reach``: 0 and its own class,
    unless a pixel does not count.
    """
    image, first, to, place, inside = tile_of_rows(tl.program_id(0), grid.size, ROWS, TILE)
    # A loop that began with a constant class would have one class for all pixels of a thread, with Triton 3.6.
    one, d_others = tl.load(label + to, mask=inside, other=IGNORED).to(tl.int32), tl.full(to.shape, NONE, tl.int32)
    d = tl.where(one >= 0, 0, NONE)
    for step in tl.range(1, reach + 1):
        for side in tl.static_range(2):
            dx = step * (2 * side - 1)
            k = tl.load(label + to + dx, mask=inside & exists(place, 0, 0, dx, grid.size), other=IGNORED).to(tl.int32)
            d_others = tl.where((one >= 0) & (k >= 0) & (k != one), tl.minimum(d_others, step), d_others)
            d = tl.where((one < 0) & (k >= 0), step, d)
            one = tl.where(one < 0, k, one)
    tl.store(nearest + to, (one.to(tl.int64) * 65536 + d) * 65536 + d_others, mask=inside)


@triton.jit
def find_distances_kernel(
    label, nearest, field, reach, rows, spacing, grid, ROWS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write distances to the nearest pixel of another class in a window, from those in the rows around a pixel."""
    image, first, to, place, inside = tile_of_rows(tl.program_id(0), grid.size, ROWS, TILE)
    y = tl.load(label + to, mask=inside, other=IGNORED).to(tl.int32)
    least, zeros = tl.full(to.shape, FAR, grid.real), tl.zeros(to.shape, grid.real)
    for n in tl.range(rows):
        step, there, z, row = displaced_from(place, n, grid.size, reach)
        both = tl.load(nearest + to + step, mask=there & (y >= 0), other=-1)  # in which all distances are NONE
        d = (both.to(tl.int32) >> tl.where((both >> 32).to(tl.int32) == y, 0, 16)) & NONE
        dz, dy, dx = (zeros + z) * spacing.depth, (zeros + row) * spacing.height, d.to(grid.real) * spacing.width
        least = tl.where(d < NONE, tl.minimum(least, dz * dz + dy * dy + dx * dx), least)
    tl.store(field + to, tl.where(least < FAR, tl.sqrt(least), FAR), mask=inside)


@triton.jit
def differ(label, first, to, place, grid, TIMES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return whether labels within so many times the radius of a tile differ; True also of wide windows.

    In each slice the tile covers all of them when it is displaced to the four corners, unless these are too far from
    each other. Most of an image is far from edges, and what this skips takes longer.
    """
    size, depth = grid.size, TIMES * grid.radius.depth
    down, right = TIMES * grid.radius.height, TIMES * grid.radius.width
    found = 2 * down > ROWS or 2 * right > TILE
    if not found:
        one, others = tl.load(label + first), tl.zeros(to.shape, tl.int16)
        for dz in range(-depth, depth + 1):
            for corner in tl.static_range(4):
                dy, dx = (corner // 2 * 2 - 1) * down, (corner % 2 * 2 - 1) * right
                step, there = (dz * size.height + dy) * size.width + dx, exists(place, dz, dy, dx, size)
                others |= one ^ tl.load(label + to + step, mask=there, other=one)
        found = tl.max(others.to(tl.uint16).to(tl.int32)) > 0
    return found


@triton.jit
def find_sides_kernel(maps, sums, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Write what edge pixels give to their neighbors, and count them; ``other_scale`` only in tiles that have some."""
    image, first, to, place, inside = tile_of_rows(tl.program_id(0), grid.size, ROWS, TILE)
    of_same = tl.zeros(to.shape, grid.real)
    same_least, other_least = tl.full(to.shape, FAR, grid.real), tl.full(to.shape, FAR, grid.real)
    if differ(maps.label, first, to, place, grid, 1, ROWS, TILE):
        label = maps.label + to
        y = tl.load(label, mask=inside, other=IGNORED).to(tl.int32)
        if grid.decay > 0:
            for n in tl.range(grid.window, loop_unroll_factor=9):
                step, k = neighbor(label, place, inside, n, grid)
                d = tl.load(maps.field + to + step, mask=k >= 0, other=FAR)
                same_least = tl.where(k == y, tl.minimum(same_least, d), same_least)
                other_least = tl.where(k == y, other_least, tl.minimum(other_least, d))
        same, other = tl.zeros(to.shape, grid.real), tl.zeros(to.shape, grid.real)
        for n in tl.range(grid.window, loop_unroll_factor=9 if grid.decay > 0 else 3):
            step, k = neighbor(label, place, inside, n, grid)
            w = tl.full(to.shape, 1.0, grid.real)
            if grid.decay > 0:
                d = tl.load(maps.field + to + step, mask=k >= 0, other=FAR)
                w = tl.exp((tl.where(k == y, same_least, other_least) - d) / grid.decay)
            same += tl.where(k == y, w, 0.0)
            other += tl.where((k >= 0) & (k != y), w, 0.0)
        is_edge = (other != 0) & (y >= 0)  # also with distances of nan: others read what it gives them
        v = of_pixel(0, to, is_edge, grid)
        of_same = tl.where(same != 0, v / tl.where(same != 0, same, 1.0), 0.0)
        tl.store(maps.other_scale + to, v / tl.where(is_edge, other, 1.0), mask=inside)
        edges = tl.sum(is_edge.to(tl.int32)).to(tl.float64)
        tl.store(sums + tl.program_id(0).to(tl.int64) * ROWS_OF_SUMS + EDGES, edges)
    tl.store(maps.same_scale + to, of_same, mask=inside)
    if grid.decay > 0:
        tl.store(maps.same_least + to, same_least, mask=inside)
        tl.store(maps.other_least + to, other_least, mask=inside)


@triton.jit
def given(share, least, field, to, step, mask, grid):
    """Return what edge pixels a step from others give to these."""
    value = tl.load(share + to + step, mask=mask, other=0.0)
    if grid.decay > 0:
        further = tl.load(least + to + step, mask=mask, other=0.0) - tl.load(field + to, mask=mask, other=0.0)
        value *= tl.exp(tl.minimum(further, 0.0) / grid.decay)
    return value


@triton.jit
def weigh_pixels_kernel(maps, sums, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Write the weights of the edge terms, and in ``sums`` whether a tile may have any."""
    image, origin, to, place, inside = tile_of_rows(tl.program_id(0), grid.size, ROWS, TILE)
    same_side, other_side = tl.zeros(to.shape, grid.real), tl.zeros(to.shape, grid.real)
    first, more = tl.full(to.shape, IGNORED, tl.int32), tl.zeros(to.shape, tl.int1)
    if differ(maps.label, origin, to, place, grid, 2, ROWS, TILE):
        tl.store(sums + tl.program_id(0).to(tl.int64) * ROWS_OF_SUMS + NEAR_EDGES, 1.0)
        label = maps.label + to
        y = tl.load(label, mask=inside, other=IGNORED).to(tl.int32)
        ok = y >= 0
        for n in tl.range(grid.window, loop_unroll_factor=1 if grid.decay > 0 else 3):
            step, k = neighbor(label, place, inside, n, grid)
            same_side += given(maps.same_scale, maps.same_least, maps.field, to, step, (k == y) & ok, grid)
            value = given(maps.other_scale, maps.other_least, maps.field, to, step, (k >= 0) & (k != y) & ok, grid)
            if grid.classes > 2:
                first = tl.where((first < 0) & (value > 0), k, first)
                more = more | ((value > 0) & (k != first))
                value = tl.where(k == first, value, 0.0)
            other_side += value
    tl.store(maps.same_side + to, same_side, mask=inside)
    if grid.classes > 2:
        tl.store(maps.other_class + to, first.to(tl.int16), mask=inside)
        other_side = tl.where(more, -other_side, other_side)
    tl.store(maps.other_side + to, other_side, mask=inside)


@triton.jit
def further_weight(n, maps, to, p, y, first, grid):
    """Return the class of neighbor n of pixels and what it adds to B of it; IGNORED and 0 where that is the first."""
    step, k = neighbor(maps.label + to, place_of(p, grid.size), y >= 0, n, grid)
    k = tl.where((k != y) & (k != first), k, IGNORED)
    weight = given(maps.other_scale, maps.other_least, maps.field, to, step, k >= 0, grid)
    return tl.where(weight > 0, k, IGNORED), weight


@triton.jit
def further_class(last, maps, to, p, y, first, grid):
    """Return the least class above ``last`` of those that B has after the first, and B of it; IGNORED and 0 of none."""
    # The window is no constant, or the compiler would unroll the loop and take registers for it.
    least, window = last * 0 + grid.classes, grid.window if EXACT else tl.minimum(grid.window, 8 * grid.pixels)
    sum_of_least = tl.zeros(p.shape, grid.real)
    for n in range(window):
        k, weight = further_weight(n, maps, to, p, y, first, grid)
        k = tl.where(k > last, k, grid.classes)
        sum_of_least = tl.where(k > least, sum_of_least, tl.where(k < least, weight, sum_of_least + weight))
        least = tl.minimum(least, k)
    return tl.where(least < grid.classes, least, IGNORED), tl.where(least < grid.classes, sum_of_least, 0.0)
