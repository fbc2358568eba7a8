"""Softmax of pixels and weights of labels → the sums over the edge pixels of each class in an image.

They are Σ v, Σ v S and Σ v O, the rows of :class:`edgeloss._reduction.EdgeRow`. A program has some tiles of an image
and a table of the classes, to which it adds the sums of a tile one class after another: near edges it has two or three
of them, and elsewhere it is skipped. The tables are added in order, so that the bits are the same on every run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeloss._kernels.triton.label_weights import EDGES, NEAR_EDGES, ROWS_OF_SUMS, further_weight, tile_of_rows
from edgeloss._kernels.triton.terms import load, other_term, see_all, seen_pixel
from edgeloss._kernels.triton.tiles import EXACT, IGNORED, log1p, of_pixel, some, total
from edgeloss._reduction import EdgeRow

EDGE_ROWS = tl.constexpr(len(EdgeRow))
WEIGHT, SAME_SIDE, OTHER_SIDE = map(tl.constexpr, EdgeRow)


@triton.jit
def add_to(table, value):
    """Add a number to one of a table that no other program has."""
    tl.store(table, tl.load(table) + value)


@triton.jit
def add_by_class(table, step, y, v, same, k, other):
    """Add v and S of pixels to the sums of class y, and O to those of class k, whose rows are a step apart."""
    c = tl.max(tl.maximum(y, k))
    while c >= 0:
        add_to(table + WEIGHT * step + c, total(tl.where(y == c, v, 0.0)))
        add_to(table + SAME_SIDE * step + c, total(tl.where(y == c, same, 0.0)))
        add_to(table + OTHER_SIDE * step + c, total(tl.where(k == c, other, 0.0)))
        tl.debug_barrier()  # all threads read what one has written
        c = tl.max(tl.maximum(tl.where(y < c, y, IGNORED), tl.where(k < c, k, IGNORED)))


@triton.jit
def add_further(table, k, other):
    """Add O of pixels to the sums of class k, a row of a table."""
    c = tl.max(k)
    while c >= 0:
        add_to(table + c, total(tl.where(k == c, other, 0.0)))
        tl.debug_barrier()
        c = tl.max(tl.where(k < c, k, IGNORED))


@triton.jit
def other_sides(x, maps, pixel, b, start, log_s, table, step, grid):
    """Return the first class across an edge of pixels and what it gives to O, and add up what further ones give."""
    first = tl.load(maps.other_class + start + pixel.p, mask=pixel.ok, other=IGNORED).to(tl.int32)
    other, unused, of_likely = other_term(x, pixel, first, tl.abs(b))
    likely, is_several = tl.where(of_likely > 0, first, IGNORED), some(b < 0)
    if is_several:  # rare
        for n in range(grid.window if EXACT else tl.minimum(grid.window, 8 * grid.pixels)):
            k, weight = further_weight(n, maps, start + pixel.p, pixel.p, pixel.y, first, grid)
            more, unused, sure = other_term(x, pixel, k, weight)
            of_likely, likely = of_likely + sure, tl.where(sure > 0, k, likely)
            add_further(table + OTHER_SIDE * step, k, more)
    if some(of_likely > 0):
        rest = see_all(x, pixel, likely)
        of_likely = tl.where(of_likely > 0, of_likely * (log_s - ((rest.m - pixel.m) + log1p(rest.r))), 0.0)
        other += tl.where(likely == first, of_likely, 0.0)
        if is_several:
            add_further(table + OTHER_SIDE * step, tl.where(likely == first, IGNORED, likely), of_likely)
    return first, other


@triton.jit
def add_tile(x, maps, of_labels, table, step, n, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Add what tile n of the labels has to a table of its image."""
    of_tile = of_labels + n.to(tl.int64) * ROWS_OF_SUMS
    if tl.load(of_tile + NEAR_EDGES) > 0:
        image, unused, to, place, inside = tile_of_rows(n, grid.size, ROWS, TILE)
        start = image.to(tl.int64) * grid.pixels
        pixel = seen_pixel(x, maps, image.to(tl.int64), (to - start).to(tl.int32), inside, grid)
        b, log_s = tl.load(maps.other_side + to, mask=pixel.ok, other=0.0), log1p(pixel.r)
        k, other = 1 - pixel.y, b * 0
        if x.classes > 2:
            k, other = other_sides(x, maps, pixel, b, start, log_s, table, step, grid)
        # What is loaded later takes no registers before. ``other_scale`` is not 0 of edge pixels in tiles with some.
        nll = (pixel.m - load(x, pixel.at, pixel.y, pixel.ok)) + log_s
        if x.classes == 2:
            other = tl.where(b == 0, 0.0, b * nll)
        a = tl.load(maps.same_side + start + pixel.p, mask=pixel.ok, other=0.0)
        has_edges = pixel.ok & (pixel.y * 0 + tl.load(of_tile + EDGES) > 0)
        is_edge = tl.load(maps.other_scale + start + pixel.p, mask=has_edges, other=0.0) != 0
        y, k = tl.where(is_edge | (a != 0), pixel.y, IGNORED), tl.where(b != 0, k, IGNORED)
        v = of_pixel(image.to(tl.int64), pixel.p, is_edge, grid)
        add_by_class(table, step, y, v, tl.where(a == 0, 0.0, a * nll), k, other)


@triton.jit
def edge_sums_kernel(
    x, maps, of_labels, tables, tiles, programs, grid, ROWS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write tables [3, B · programs, C]; the programs of an image have its tiles in turn."""
    image, n = tl.program_id(0) // programs, tl.program_id(0) % programs
    table, c = tables + tl.program_id(0).to(tl.int64) * grid.classes, tl.arange(0, ROWS * TILE)
    step = tl.num_programs(0).to(tl.int64) * grid.classes
    for start in range(0, grid.classes, ROWS * TILE):
        for row in tl.static_range(EDGE_ROWS):
            zeros = tl.zeros([ROWS * TILE], tl.float64)
            tl.store(table + row * step + start + c, zeros, mask=start + c < grid.classes)
    tl.debug_barrier()
    while n < tiles:
        add_tile(x, maps, of_labels, table, step, image * tiles + n, grid, ROWS, TILE)
        n += programs
