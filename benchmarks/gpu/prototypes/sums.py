"""Averages of images → sums of products, and slopes: two columns in a thread, without those of z where there is none.

``products_few_kernel`` and ``product_ends_kernel`` are for products_kernel of edgeloss/_kernels/triton/region.py,
``slopes_few_kernel`` and ``slope_ends_kernel`` for its slopes_kernel. Places at the ends of an axis, two at each, have
kernels of their own: some members of regions are not there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeloss._kernels.triton.region import AHEAD, ENDS, PRODUCTS, kind_of
from edgeloss._kernels.triton.tiles import some

NUMBERS = tl.constexpr(64)  # sums of a program, and zeros


@triton.jit
def end_of(n, count):
    """Return the place of ends n of an axis; those that do not exist are beyond it."""
    return tl.where(n < 2, n, tl.maximum(count - ENDS + n, n))


@triton.jit
def rows_of(n, parts):
    """Return the first and the last row of part n of a map: one of the ends, or a strip."""
    height = parts.size.height
    first = tl.where(n < ENDS, end_of(n, height), 2 + (n - ENDS) * parts.strip)
    last = first + tl.where(n < ENDS, 0, parts.strip - 1)
    return first, tl.minimum(last, height - tl.where(n < ENDS, 1, 3))


@triton.jit
def row_of_six(values, x, width, y, height):
    """Return what is -2 to 3 columns from the first of two columns in row y, and 0 outside."""
    row, there = (), x * 0 + y < height
    for i in tl.static_range(6):
        mask = there & ((x + (i - 2)).to(tl.uint32) < width)
        row += (tl.load(values + (i - 2), mask=mask, other=0),)
    return row


@triton.jit
def wide_six(row):
    """Return values as float64."""
    return (
        row[0].to(tl.float64), row[1].to(tl.float64), row[2].to(tl.float64),
        row[3].to(tl.float64), row[4].to(tl.float64), row[5].to(tl.float64),
    )  # fmt: skip


@triton.jit
def some_of(row):
    """Return whether a row has anything but zeros."""
    return some((row[0] | row[1] | row[2] | row[3] | row[4] | row[5]) != 0)


# ---------------------------------------------------------------------------------------------------------- products


@triton.jit
def add_all(sums, z, r, z_row, r_row):
    """Add products of all kinds; z and r are three rows of the two columns, the latest first."""
    added = ()
    for n in tl.static_range(AHEAD):
        z_0, r_0 = z[(n + 2) // 5 * 2], r[(n + 2) // 5 * 2]
        z_1, r_1 = z[(n + 2) // 5 * 2 + 1], r[(n + 2) // 5 * 2 + 1]
        z_2, r_2 = z_row[(n + 2) % 5], r_row[(n + 2) % 5]
        z_3, r_3 = z_row[(n + 2) % 5 + 1], r_row[(n + 2) % 5 + 1]
        added += (tl.fma(z_1, z_3, tl.fma(z_0, z_2, sums[4 * n])),)
        added += (tl.fma(z_1, r_3, tl.fma(z_0, r_2, sums[4 * n + 1])),)
        added += (tl.fma(r_1, z_3, tl.fma(r_0, z_2, sums[4 * n + 2])),)
        added += (tl.fma(r_1, r_3, tl.fma(r_0, r_2, sums[4 * n + 3])),)
    return added + (sums[52] + (z[0] + z[1]), sums[53] + (r[0] + r[1]))


@triton.jit
def add_r(sums, r, r_row):
    """Add products of r alone, where z is 0."""
    added = ()
    for n in tl.static_range(AHEAD):
        r_0, r_1 = r[(n + 2) // 5 * 2], r[(n + 2) // 5 * 2 + 1]
        added += (sums[4 * n], sums[4 * n + 1], sums[4 * n + 2])
        added += (tl.fma(r_1, r_row[(n + 2) % 5 + 1], tl.fma(r_0, r_row[(n + 2) % 5], sums[4 * n + 3])),)
    return added + (sums[52], sums[53] + (r[0] + r[1]))


@triton.jit
def halved(values, lane, bit: tl.constexpr):
    """Return half as many values: lanes with and without a bit take one of each pair, with what the other has of it."""
    halves = ()
    has = (lane & bit) != 0
    for i in tl.static_range(len(values) // 2):
        kept = tl.where(has, values[2 * i + 1], values[2 * i])
        given = tl.where(has, values[2 * i], values[2 * i + 1])
        halves += (kept + tl.gather(given, lane ^ bit, 0),)
    return halves


@triton.jit
def products_few_kernel(z, r, map_class, sums, parts, blocks, TILE: tl.constexpr):
    """Add up products over parts of the rows of maps, all of their columns but for the ends.

    They are written where the others have those of the first block of columns; those of other blocks are 0.
    """
    size, of_map, n = parts.size, (tl.program_id(0) // parts.number).to(tl.int64), tl.program_id(0) % parts.number
    height, width = size.height, size.width
    first, last = rows_of(n, parts)
    lane, zero = tl.arange(0, TILE), tl.zeros([TILE], tl.float64)
    added = ()
    for _ in tl.static_range(PRODUCTS):
        added += (zero,)
    if tl.load(map_class + of_map) >= 0:
        column = first * 0
        while column < width:
            x = column + 2 * lane
            start = of_map * height * width + first * width + x
            is_own_0, is_own_1 = (x >= 2) & (x < width - 2), (x >= 1) & (x < width - 3)
            z_to, r_to = z + start, r + start
            z_1, r_1, z_2, r_2 = (zero, zero), (zero, zero), (zero, zero), (zero, zero)
            before, n_row = first * 0, first * 0
            z_raw, r_raw = row_of_six(z_to, x, width, first, height), row_of_six(r_to, x, width, first, height)
            while n_row < last - first + 3:
                z_row, r_row = wide_six(z_raw), wide_six(r_raw)
                before = before * 2 + some_of(z_raw).to(tl.int32)
                z_to, r_to, y = z_to + width, r_to + width, first + n_row + 1
                z_raw, r_raw = row_of_six(z_to, x, width, y, height), row_of_six(r_to, x, width, y, height)  # ahead
                is_own = x * 0 + (first + n_row) <= last
                z_0 = (tl.where(is_own & is_own_0, z_row[2], 0.0), tl.where(is_own & is_own_1, z_row[3], 0.0))
                r_0 = (tl.where(is_own & is_own_0, r_row[2], 0.0), tl.where(is_own & is_own_1, r_row[3], 0.0))
                r_all = r_0 + r_1 + r_2
                if before & 7 > 0:
                    added = add_all(added, z_0 + z_1 + z_2, r_all, z_row, r_row)
                else:
                    added = add_r(added, r_all, r_row)
                z_2, r_2, z_1, r_1, n_row = z_1, r_1, z_0, r_0, n_row + 1
            column += 2 * TILE
    for _ in tl.static_range(NUMBERS - PRODUCTS):
        added += (zero,)
    both = halved(halved(halved(halved(halved(added, lane, 1), lane, 2), lane, 4), lane, 8), lane, 16)
    # Of its numbers each step leaves those whose lowest bit is that of the lane.
    to = sums + ((of_map * parts.number + n) * (ENDS + blocks) + ENDS) * PRODUCTS
    tl.store(to + lane, both[0])
    tl.store(to + lane + 32, both[1], mask=lane + 32 < PRODUCTS)
    for block in tl.static_range(1, blocks):
        tl.store(to + block * PRODUCTS + lane, zero)
        tl.store(to + block * PRODUCTS + lane + 32, zero, mask=lane + 32 < PRODUCTS)


@triton.jit
def product_ends_kernel(z, r, map_class, sums, parts, blocks, TILE: tl.constexpr):
    """Add up products over parts of the rows of maps, each of the end columns."""
    size, of_map, n = parts.size, (tl.program_id(0) // parts.number).to(tl.int64), tl.program_id(0) % parts.number
    row, last = rows_of(n, parts)
    end = tl.arange(0, ENDS)[None, :]
    column, phase = end_of(end, size.width), tl.arange(0, TILE)[:, None]
    added, zero = (), tl.zeros([TILE, ENDS], tl.float64)
    for _ in tl.static_range(PRODUCTS):
        added += (zero,)
    if tl.load(map_class + of_map) >= 0:
        while row <= last:
            own, new = (row + phase <= last) & (column < size.width), ()
            start = (of_map * size.height + row + phase) * size.width + column
            z_own = tl.load(z + start, mask=own, other=0).to(tl.float64)
            r_own = tl.load(r + start, mask=own, other=0).to(tl.float64)
            for k in tl.static_range(AHEAD):
                x = column + (k + 2) % 5 - 2
                mask = own & (row + phase + (k + 2) // 5 < size.height) & (x >= 0) & (x < size.width)
                at = start + (k + 2) // 5 * size.width + (k + 2) % 5 - 2
                z_k = tl.load(z + at, mask=mask, other=0).to(tl.float64)
                r_k = tl.load(r + at, mask=mask, other=0).to(tl.float64)
                new += (added[4 * k] + z_own * z_k, added[4 * k + 1] + z_own * r_k)
                new += (added[4 * k + 2] + r_own * z_k, added[4 * k + 3] + r_own * r_k)
            added = new + (added[4 * AHEAD] + z_own, added[4 * AHEAD + 1] + r_own)
            row += TILE
    to = sums + ((of_map * parts.number + n) * (ENDS + blocks) + end) * PRODUCTS
    for k in tl.static_range(PRODUCTS):
        tl.store(to + k, tl.sum(added[k], 0, keep_dims=True))


# ------------------------------------------------------------------------------------------------------------ slopes


@triton.jit
def slopes_few_kernel(z, r, values, terms, stencil, slopes, parts, maps, strips, TILE: tl.constexpr):
    """Write slopes of strips of rows of maps, away from the ends, where all factors are the same."""
    of_map, height, width = (tl.program_id(0) // strips).to(tl.int64), parts.size.height, parts.size.width
    first = 2 + tl.program_id(0) % strips * parts.strip
    last = tl.minimum(first + parts.strip, height - 2) - 1
    lane, scale = tl.arange(0, TILE), 1 / tl.load(terms + of_map // maps)
    stencil += (of_map * ((ENDS + 1) * (ENDS + 1)) + (ENDS + 1) * (ENDS + 1) - 1) * 51
    has_term, factors = tl.load(values + of_map * 2 + 1) > 0, ()
    for k in tl.static_range(50):
        factors += (tl.load(stencil + k),)
    constant = tl.where(has_term, tl.load(stencil + 50), 0.0) + tl.zeros([TILE], tl.float64)
    column = first * 0
    while column < width:
        x = column + 2 * lane
        start = of_map * height * width + (first - 2) * width + x
        z_to, r_to, to, n = z + start, r + start, slopes + start - 2 * width, first * 0
        inside_0, inside_1 = (x >= 2) & (x < width - 2), (x >= 1) & (x < width - 3)
        sums = (constant, constant, constant, constant, constant, constant, constant, constant, constant, constant)
        z_raw, r_raw = row_of_six(z_to, x, width, 0, height), row_of_six(r_to, x, width, 0, height)
        while n < last - first + 5:
            if has_term:
                z_row, r_row = wide_six(z_raw), wide_six(r_raw)
                found = some_of(z_raw)
                z_to, r_to, y = z_to + width, r_to + width, first + n - 1
                z_raw, r_raw = row_of_six(z_to, x, width, y, height), row_of_six(r_to, x, width, y, height)
                sums = add_factors(sums, factors, r_row, 1)
                if found:
                    sums = add_factors(sums, factors, z_row, 0)
            is_whole = x * 0 + n >= 4
            tl.store(to, (sums[0] * scale).to(slopes.dtype.element_ty), mask=inside_0 & is_whole)
            tl.store(to + 1, (sums[1] * scale).to(slopes.dtype.element_ty), mask=inside_1 & is_whole)
            sums = sums[2], sums[3], sums[4], sums[5], sums[6], sums[7], sums[8], sums[9], constant, constant
            to, n = to + width, n + 1
        column += 2 * TILE


@triton.jit
def add_factors(sums, factors, row, KIND: tl.constexpr):
    """Return sums of five rows of two columns, and in addition what a row gives to them."""
    added = ()
    for i in tl.static_range(5):
        for j in tl.static_range(2):
            total = sums[2 * i + j]
            for k in tl.static_range(5):
                total = tl.fma(factors[40 - 10 * i + 2 * k + KIND], row[j + k], total)
            added += (total,)
    return added


@triton.jit
def slope_ends_kernel(z, r, values, terms, stencil, slopes, parts, maps, count, TILE: tl.constexpr):
    """Write slopes of the end rows of maps, and of the end columns of the other rows, ``count`` in all."""
    height, width, blocks = parts.size.height, parts.size.width, tl.cdiv(count, TILE)
    of_map, i = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * TILE + tl.arange(0, TILE)
    in_row = i < ENDS * width
    row = tl.where(in_row, end_of(i // width, height), 2 + (i - ENDS * width) // ENDS)
    column = tl.where(in_row, i % width, end_of((i - ENDS * width) % ENDS, width))
    inside, start = (i < count) & (row < height) & (column < width), of_map * height * width
    kind = kind_of(row, height) * (ENDS + 1) + kind_of(column, width)
    stencil += (of_map * ((ENDS + 1) * (ENDS + 1)) + tl.where(inside, kind, 0)) * 51
    has_term = tl.load(values + of_map * 2 + 1 + i * 0, mask=inside, other=0.0) > 0
    total = tl.load(stencil + 50, mask=has_term, other=0.0)
    for n in range(25):
        y, x = row + n // 5 - 2, column + n % 5 - 2
        there = has_term & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        of_z, of_r = (
            tl.load(stencil + 2 * n, mask=there, other=0.0),
            tl.load(stencil + 2 * n + 1, mask=there, other=0.0),
        )
        total += of_z * tl.load(z + start + y * width + x, mask=there, other=0).to(tl.float64)
        total += of_r * tl.load(r + start + y * width + x, mask=there, other=0).to(tl.float64)
    total /= tl.load(terms + of_map // maps)
    tl.store(slopes + start + row * width + column, total.to(slopes.dtype.element_ty), mask=inside)
