"""Labels → the weights of the edge terms.

With power 0, for the edge pixels i with the neighbors N(i), and with u_i the product of the pixel's weight and its
class's,

    Σ_E u S = Σ_n A_n · -log p_n(y_n)              A_n    = w_n · Σ { u_i / D_i  : i ∈ N(n), y_i = y_n }
    Σ_E u O = Σ_n Σ_k B_n(k) · -log(1 - p_n(k))    B_n(k) = w_n · Σ { u_i / D'_i : i ∈ N(n), y_i = k ≠ y_n }

where D_i and D'_i are Σ w over the neighbors of i on its own side and across the edge. With decay, w = e^(-d / decay)
counts from the nearest pixel of the side, whose distance is ``least``: no w underflows, however far the side is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeloss.reduction import SumRow
from edgeloss.triton.tiles import FAR, IGNORED, displaced, displacement, neighbor, of_class, of_pixel, tile, total

# The rows of sums that come from labels alone, numbered from the first of them.
ROWS = tl.constexpr(len(SumRow) - SumRow.WEIGHT)
WEIGHT, EDGE_WEIGHT, VALID, EDGES, WRONG = map(tl.constexpr, range(ROWS.value))


@triton.jit
def read_labels_kernel(target, label, present, sums, ignore, grid, TILE: tl.constexpr):
    """Write which labels count, and which classes are in an image; add up their weights."""
    image, p, inside = tile(grid.pixels, TILE)
    y = tl.load(target + image * grid.pixels + p, mask=inside, other=0).to(tl.int64)
    is_read = inside & (y != ignore)
    ok = is_read & (y >= 0) & (y < grid.classes)
    tl.store(label + image * grid.pixels + p, tl.where(ok, y, IGNORED).to(tl.int16), mask=inside)
    if present is not None:
        tl.store(present + image * grid.classes + y, 1, mask=ok)
    to = sums + tl.program_id(0).to(tl.int64) * ROWS
    tl.store(to + WEIGHT, total(of_pixel(image, p, ok, grid) * of_class(grid.weight, image, y, ok, grid)))
    tl.store(to + VALID, total(ok))
    tl.store(to + WRONG, total(is_read & (y != tl.where(ok, y, -1 - y))))


@triton.jit
def find_distances_kernel(label, field, reach, steps, spacing, grid, TILE: tl.constexpr):
    """Write distances to the nearest pixel of another class in a window."""
    image, p, inside = tile(grid.pixels, TILE)
    label += image * grid.pixels + p
    y = tl.load(label, mask=inside, other=IGNORED).to(tl.int32)
    least = tl.full(p.shape, FAR, grid.real)
    zeros = tl.zeros(p.shape, grid.real)
    for n in tl.range(steps):
        step, there = displaced(p, y >= 0, n, grid.size, reach)
        k = tl.load(label + step, mask=there, other=IGNORED).to(tl.int32)
        z, row, column = displacement(n, reach)
        dz, dy, dx = (zeros + z) * spacing.depth, (zeros + row) * spacing.height, (zeros + column) * spacing.width
        least = tl.where((k >= 0) & (k != y), tl.minimum(least, dz * dz + dy * dy + dx * dx), least)
    tl.store(field + image * grid.pixels + p, tl.where(least < FAR, tl.sqrt(least), FAR), mask=inside)


@triton.jit
def find_sides_kernel(maps, class_weight, counts, sums, grid, TILE: tl.constexpr):
    """Write what edge pixels give to their neighbors; count them and add up their weights."""
    image, p, inside = tile(grid.pixels, TILE)
    to = image * grid.pixels + p
    label = maps.label + to
    y = tl.load(label, mask=inside, other=IGNORED).to(tl.int32)
    least_same, least_across = tl.full(p.shape, FAR, grid.real), tl.full(p.shape, FAR, grid.real)
    if grid.decay > 0:
        for n in tl.range(grid.window, loop_unroll_factor=9):
            step, k = neighbor(label, p, y >= 0, n, grid)
            d = tl.load(maps.field + to + step, mask=k >= 0, other=FAR)
            least_same = tl.where(k == y, tl.minimum(least_same, d), least_same)
            least_across = tl.where(k == y, least_across, tl.minimum(least_across, d))
        tl.store(maps.least_same + to, least_same, mask=inside)
        tl.store(maps.least_across + to, least_across, mask=inside)
    same, across = tl.zeros(p.shape, grid.real), tl.zeros(p.shape, grid.real)
    for n in tl.range(grid.window, loop_unroll_factor=9):
        step, k = neighbor(label, p, y >= 0, n, grid)
        w = tl.full(p.shape, 1.0, grid.real)
        if grid.decay > 0:
            d = tl.load(maps.field + to + step, mask=k >= 0, other=FAR)
            w = tl.exp((tl.where(k == y, least_same, least_across) - d) / grid.decay)
        same += tl.where(k == y, w, 0.0)  # where y is ignored u is 0
        across += tl.where((k >= 0) & (k != y), w, 0.0)
    is_edge = across > 0
    u = of_pixel(image, p, is_edge, grid) * of_class(class_weight, image, y, is_edge, grid)
    tl.store(maps.same + to, tl.where(same > 0, u / tl.where(same > 0, same, 1.0), 0.0), mask=inside)
    tl.store(maps.across + to, u / tl.where(is_edge, across, 1.0), mask=inside)
    if counts is not None:  # integers: their sum does not depend on the order of the programs
        at = counts + image % grid.tables * grid.classes + y
        tl.atomic_add(at, is_edge.to(tl.int64), mask=is_edge, sem="relaxed")
    of_program = sums + tl.program_id(0).to(tl.int64) * ROWS
    tl.store(of_program + EDGE_WEIGHT, total(u))
    tl.store(of_program + EDGES, total(is_edge))


@triton.jit
def given(share, least, field, to, step, mask, grid):
    """Return what edge pixels a step from others give to these."""
    value = tl.load(share + to + step, mask=mask, other=0.0)
    if grid.decay > 0:
        further = tl.load(least + to + step, mask=mask, other=0.0) - tl.load(field + to, mask=mask, other=0.0)
        value *= tl.exp(tl.minimum(further, 0.0) / grid.decay)
    return value


@triton.jit
def weigh_pixels_kernel(maps, grid, TILE: tl.constexpr):
    """Write the weights of the edge terms."""
    image, p, inside = tile(grid.pixels, TILE)
    to = image * grid.pixels + p
    label = maps.label + to
    y = tl.load(label, mask=inside, other=IGNORED).to(tl.int32)
    toward, against = tl.zeros(p.shape, grid.real), tl.zeros(p.shape, grid.real)
    first, more = tl.full(p.shape, IGNORED, tl.int32), tl.zeros(p.shape, tl.int1)
    for n in tl.range(grid.window, loop_unroll_factor=9):
        step, k = neighbor(label, p, y >= 0, n, grid)
        toward += given(maps.same, maps.least_same, maps.field, to, step, (k >= 0) & (k == y), grid)
        value = given(maps.across, maps.least_across, maps.field, to, step, (k >= 0) & (k != y), grid)
        if grid.classes > 2:
            first = tl.where((first < 0) & (value > 0), k, first)
            more = more | ((value > 0) & (k != first))
            value = tl.where(k == first, value, 0.0)
        against += value
    tl.store(maps.toward + to, toward, mask=inside)
    if grid.classes > 2:
        tl.store(maps.first + to, first.to(tl.int16), mask=inside)
        against = tl.where(more, -against, against)
    tl.store(maps.against + to, against, mask=inside)


@triton.jit
def further_weight(n, maps, to, p, y, first, grid):
    """Return the class of neighbor n of pixels and what it adds to B of it; IGNORED and 0 where that is the first."""
    step, k = neighbor(maps.label + to, p, y >= 0, n, grid)
    k = tl.where((k != y) & (k != first), k, IGNORED)
    weight = given(maps.across, maps.least_across, maps.field, to, step, k >= 0, grid)
    return tl.where(weight > 0, k, IGNORED), weight


@triton.jit
def further_weights(c, maps, to, p, y, first, grid):
    """Return B(c) of pixels unless c is the first."""
    weights = tl.zeros(p.shape, grid.real)
    for n in range(grid.window):
        k, weight = further_weight(n, maps, to, p, y, first, grid)
        weights += tl.where(k == c, weight, 0.0)
    return weights
