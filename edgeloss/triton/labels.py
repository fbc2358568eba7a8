"""Labels → the weights of the edge terms.

With power 0, for the edge pixels i with the neighbors N(i), and with u_i the product of the pixel's weight and its
class's,

    Σ_E u S = Σ_n A_n · -log p_n(y_n)              A_n    = w_n · Σ { u_i / D_i  : i ∈ N(n), y_i = y_n }
    Σ_E u O = Σ_n Σ_k B_n(k) · -log(1 - p_n(k))    B_n(k) = w_n · Σ { u_i / D'_i : i ∈ N(n), y_i = k ≠ y_n }

where D_i and D'_i are Σ w over the neighbors of i on its own side and across the edge. With decay, w = e^(-d / decay)
counts from the nearest pixel of the side, whose distance is ``least``: no w underflows, however far the side is.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from edgeloss.reduction import SumRow
from edgeloss.triton.tiles import (
    FAR,
    IGNORED,
    displaced,
    displacement,
    neighbor,
    some,
    tile,
    total,
    weight_of,
)

# The rows of sums that come from labels alone.
FIRST_ROW = SumRow.WEIGHT
ROWS = tl.constexpr(len(SumRow) - FIRST_ROW)
WEIGHT = tl.constexpr(SumRow.WEIGHT - FIRST_ROW)
EDGE_WEIGHT = tl.constexpr(SumRow.EDGE_WEIGHT - FIRST_ROW)
VALID = tl.constexpr(SumRow.VALID - FIRST_ROW)
EDGES = tl.constexpr(SumRow.EDGES - FIRST_ROW)
WRONG = tl.constexpr(SumRow.WRONG - FIRST_ROW)


class Sides(NamedTuple):
    """What edge pixels give to their neighbors, maps [B, P] of 0 off the edges.

    Attributes:
        label: the classes, ``IGNORED`` where a pixel does not count, int16.
        same: u / D.
        across: u / D'.
        least_same: the least distance on the own side; None without decay.
        least_across: the least distance across the edge; None without decay.
        field: d; None without decay.
    """

    label: Tensor
    same: Tensor | None
    across: Tensor
    least_same: Tensor | None
    least_across: Tensor | None
    field: Tensor | None


class Near(NamedTuple):
    """The weights of the edge terms, maps [B, P].

    Attributes:
        same: A.
        first: one of the classes k with B(k) > 0, ``IGNORED`` where there is none, int16; None of two classes.
        against: B of the other class of two, or of the first one, and then negative where there are more.
    """

    same: Tensor
    first: Tensor | None
    against: Tensor


@triton.jit
def read_labels_kernel(target, weights, label, present, sums, grid, ignore, TILE: tl.constexpr):
    """Write which labels count, and which classes are in an image; add up their weights."""
    image, p, inside = tile(grid.pixels, TILE)
    y = tl.load(target + image * grid.pixels + p, mask=inside, other=0).to(tl.int64)
    is_read = inside & (y != ignore)
    ok = is_read & (y >= 0) & (y < grid.classes)
    tl.store(label + image * grid.pixels + p, tl.where(ok, y, IGNORED).to(tl.int16), mask=inside)
    if present is not None:
        tl.store(present + image * grid.classes + y, 1, mask=ok)
    to = sums + tl.program_id(0).to(tl.int64) * ROWS
    tl.store(to + WEIGHT, total(weight_of(weights, image, p, y, ok, grid)))
    tl.store(to + VALID, total(ok))
    tl.store(to + WRONG, total(is_read & (y != tl.where(ok, y, -1 - y))))


@triton.jit
def find_distances_kernel(
    label, field, grid, reach, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr
):
    """Write distances to the nearest pixel of another class in a window; DEPTH, HEIGHT and WIDTH are of a pixel."""
    image, p, inside = tile(grid.pixels, TILE)
    label += image * grid.pixels
    y = tl.load(label + p, mask=inside, other=IGNORED).to(tl.int32)
    least = tl.full([TILE], FAR, grid.real)
    zeros = tl.zeros([TILE], grid.real)
    for n in range(reach.length):
        q, there = displaced(p, y >= 0, n, grid.size, reach)
        k = tl.load(label + q, mask=there, other=IGNORED).to(tl.int32)
        z, row, column = displacement(n, reach)
        dz, dy, dx = (zeros + z) * DEPTH, (zeros + row) * HEIGHT, (zeros + column) * WIDTH
        squares = dz * dz + dy * dy + dx * dx
        least = tl.where((k >= 0) & (k != y), tl.minimum(least, squares), least)
    tl.store(field + image * grid.pixels + p, tl.where(least < FAR, tl.sqrt(least), FAR), mask=inside)


@triton.jit
def find_sides_kernel(sides, weights, counts, sums, grid, TILE: tl.constexpr):
    """Write what edge pixels give to their neighbors; count them and add up their weights."""
    image, p, inside = tile(grid.pixels, TILE)
    start = image * grid.pixels
    label = sides.label + start
    y = tl.load(label + p, mask=inside, other=IGNORED).to(tl.int32)
    ok = y >= 0
    least_same, least_across = tl.full([TILE], FAR, grid.real), tl.full([TILE], FAR, grid.real)
    if grid.decay > 0:
        for n in range(grid.window.length):
            q, k = neighbor(label, p, ok, n, grid)
            d = tl.load(sides.field + start + q, mask=k >= 0, other=FAR)
            least_same = tl.where(k == y, tl.minimum(least_same, d), least_same)
            least_across = tl.where(k == y, least_across, tl.minimum(least_across, d))
    same, across = tl.zeros([TILE], grid.real), tl.zeros([TILE], grid.real)
    for n in range(grid.window.length):
        q, k = neighbor(label, p, ok, n, grid)
        w = tl.full([TILE], 1.0, grid.real)
        if grid.decay > 0:
            d = tl.load(sides.field + start + q, mask=k >= 0, other=FAR)
            w = tl.exp((tl.where(k == y, least_same, least_across) - d) / grid.decay)
        same += tl.where((k >= 0) & (k == y), w, 0.0)
        across += tl.where((k >= 0) & (k != y), w, 0.0)
    is_edge = across > 0
    u = weight_of(weights, image, p, y, is_edge, grid)
    tl.store(sides.same + start + p, tl.where(same > 0, u / tl.where(same > 0, same, 1.0), 0.0), mask=inside)
    tl.store(sides.across + start + p, u / tl.where(is_edge, across, 1.0), mask=inside)
    if grid.decay > 0:
        tl.store(sides.least_same + start + p, least_same, mask=inside)
        tl.store(sides.least_across + start + p, least_across, mask=inside)
    if counts is not None:  # integers: their sum does not depend on the order of the programs
        tl.atomic_add(
            counts + image % grid.tables * grid.classes + y, is_edge.to(tl.int64), mask=is_edge, sem="relaxed"
        )
    to = sums + tl.program_id(0).to(tl.int64) * ROWS
    tl.store(to + EDGE_WEIGHT, total(u))
    tl.store(to + EDGES, total(is_edge))


@triton.jit
def given(share, least, q, mask, d, grid):
    """Return what edge pixels q give to a pixel at distance d."""
    value = tl.load(share + q, mask=mask, other=0.0)
    if grid.decay > 0:
        value *= tl.exp(tl.minimum(tl.load(least + q, mask=mask, other=0.0) - d, 0.0) / grid.decay)
    return value


@triton.jit
def weigh_pixels_kernel(sides, near, grid, TILE: tl.constexpr):
    """Write the weights of the edge terms."""
    image, p, inside = tile(grid.pixels, TILE)
    start = image * grid.pixels
    label = sides.label + start
    y = tl.load(label + p, mask=inside, other=IGNORED).to(tl.int32)
    d = tl.zeros([TILE], grid.real)
    if grid.decay > 0:
        d = tl.load(sides.field + start + p, mask=y >= 0, other=0.0)
    same, against = tl.zeros([TILE], grid.real), tl.zeros([TILE], grid.real)
    first, more = tl.full([TILE], IGNORED, tl.int32), tl.zeros([TILE], tl.int1)
    for n in range(grid.window.length):
        q, k = neighbor(label, p, y >= 0, n, grid)
        same += given(sides.same, sides.least_same, start + q, (k >= 0) & (k == y), d, grid)
        value = given(sides.across, sides.least_across, start + q, (k >= 0) & (k != y), d, grid)
        if grid.classes > 2:
            first = tl.where((first < 0) & (value > 0), k, first)
            more = more | ((value > 0) & (k != first))
            value = tl.where(k == first, value, 0.0)
        against += value
    tl.store(near.same + start + p, same, mask=inside)
    if grid.classes > 2:
        tl.store(near.first + start + p, first.to(tl.int16), mask=inside)
        against = tl.where(more, -against, against)
    tl.store(near.against + start + p, against, mask=inside)


@triton.jit
def further_weights(c, sides, start, p, y, first, d, grid):
    """Return B(c) of pixels for classes c [chunk, 1] but the first."""
    weights = tl.zeros(c.shape, grid.real) + tl.zeros(p.shape, grid.real)[None, :]
    for n in range(grid.window.length):
        q, k = neighbor(sides.label + start, p, y >= 0, n, grid)
        mask = (k >= 0) & (k != y) & (k != first)
        value = given(sides.across, sides.least_across, start + q, mask, d, grid)
        if some(value > 0):
            weights += tl.where(c == k[None, :], value[None, :], 0.0)
    return weights
