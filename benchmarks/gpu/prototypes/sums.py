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
    """Return what is -2 to 3 columns from the first of two columns in row y, and 0 outside the slice."""
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
def part_of(program, parts):
    """Return the map, part and group of a program, where its slice starts and how far that of its group is.

    Beyond the first and the last slice it does not matter what is there: it is in no sum that has members.
    """
    size, group, of_part = parts.size, program % parts.slices, program // parts.slices
    of_map, n = (of_part // parts.number).to(tl.int64), of_part % parts.number
    area, displaced = size.height * size.width, 0
    own = of_map * area
    if parts.slices > 1:
        here = n // parts.rows
        displaced = (tl.minimum(tl.maximum(here + group - parts.slices // 2, 0), size.depth - 1) - here) * area
        own = (of_map * size.depth + here) * area
    return of_map, n, group, own, displaced


@triton.jit
def products_few_kernel(z, r, map_class, sums, parts, blocks, TILE: tl.constexpr):
    """Add up products over parts of the rows of maps, all of their columns but for the ends.

    They are written where the others have those of the first block of columns; those of other blocks are 0.
    """
    of_map, n, group, own, displaced = part_of(tl.program_id(0), parts)
    height, width = parts.size.height, parts.size.width
    first, last = rows_of(n if parts.slices == 1 else n % parts.rows, parts)
    lane, zero = tl.arange(0, TILE), tl.zeros([TILE], tl.float64)
    added = ()
    for _ in tl.static_range(PRODUCTS):
        added += (zero,)
    if tl.load(map_class + of_map) >= 0:
        column = first * 0
        while column < width:
            x = column + 2 * lane
            to = own + first * width + x
            is_own_0, is_own_1 = (x >= 2) & (x < width - 2), (x >= 1) & (x < width - 3)
            z_to, r_to = z + displaced + to, r + displaced + to
            z_1, r_1, z_2, r_2 = (zero, zero), (zero, zero), (zero, zero), (zero, zero)
            before, n_row = first * 0, first * 0
            z_raw, r_raw = row_of_six(z_to, x, width, first, height), row_of_six(r_to, x, width, first, height)
            while n_row < last - first + 3:
                z_row, r_row, found = wide_six(z_raw), wide_six(r_raw), some_of(z_raw)
                z_to, r_to, y = z_to + width, r_to + width, first + n_row + 1
                z_raw, r_raw = row_of_six(z_to, x, width, y, height), row_of_six(r_to, x, width, y, height)  # ahead
                is_row = x * 0 + (first + n_row) <= last
                is_0, is_1 = is_row & is_own_0, is_row & is_own_1
                if parts.slices > 1:
                    at, at_r = z + to + n_row * width, r + to + n_row * width
                    z_0, z_0_next = tl.load(at, mask=is_0, other=0), tl.load(at + 1, mask=is_1, other=0)
                    found, z_0 = found | some((z_0 | z_0_next) != 0), (z_0.to(tl.float64), z_0_next.to(tl.float64))
                    r_0 = tl.load(at_r, mask=is_0, other=0.0), tl.load(at_r + 1, mask=is_1, other=0.0)
                    r_0 = r_0[0].to(tl.float64), r_0[1].to(tl.float64)
                else:
                    z_0 = (tl.where(is_0, z_row[2], 0.0), tl.where(is_1, z_row[3], 0.0))
                    r_0 = (tl.where(is_0, r_row[2], 0.0), tl.where(is_1, r_row[3], 0.0))
                before = before * 2 + found.to(tl.int32)
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
    to = sums + ((of_map * parts.number + n) * (ENDS + blocks) + ENDS) * (parts.slices * PRODUCTS) + group * PRODUCTS
    tl.store(to + lane, both[0])
    tl.store(to + lane + 32, both[1], mask=lane + 32 < PRODUCTS)
    for _ in tl.static_range(1, blocks):
        to += parts.slices * PRODUCTS
        tl.store(to + lane, zero)
        tl.store(to + lane + 32, zero, mask=lane + 32 < PRODUCTS)


@triton.jit
def product_ends_kernel(z, r, map_class, sums, parts, blocks, TILE: tl.constexpr):
    """Add up products over parts of the rows of maps, each of the end columns."""
    of_map, n, group, of_slice, displaced = part_of(tl.program_id(0), parts)
    size = parts.size
    row, last = rows_of(n if parts.slices == 1 else n % parts.rows, parts)
    end = tl.arange(0, ENDS)[None, :]
    column, phase = end_of(end, size.width), tl.arange(0, TILE)[:, None]
    added, zero = (), tl.zeros([TILE, ENDS], tl.float64)
    for _ in tl.static_range(PRODUCTS):
        added += (zero,)
    if tl.load(map_class + of_map) >= 0:
        while row <= last:
            own, new = (row + phase <= last) & (column < size.width), ()
            start = of_slice + (row + phase) * size.width + column
            z_own = tl.load(z + start, mask=own, other=0).to(tl.float64)
            r_own = tl.load(r + start, mask=own, other=0).to(tl.float64)
            for k in tl.static_range(AHEAD):
                x = column + (k + 2) % 5 - 2
                mask = own & (row + phase + (k + 2) // 5 < size.height) & (x >= 0) & (x < size.width)
                at = start + displaced + (k + 2) // 5 * size.width + (k + 2) % 5 - 2
                z_k = tl.load(z + at, mask=mask, other=0).to(tl.float64)
                r_k = tl.load(r + at, mask=mask, other=0).to(tl.float64)
                new += (added[4 * k] + z_own * z_k, added[4 * k + 1] + z_own * r_k)
                new += (added[4 * k + 2] + r_own * z_k, added[4 * k + 3] + r_own * r_k)
            added = new + (added[4 * AHEAD] + z_own, added[4 * AHEAD + 1] + r_own)
            row += TILE
    to = sums + ((of_map * parts.number + n) * (ENDS + blocks) + end) * (parts.slices * PRODUCTS) + group * PRODUCTS
    for k in tl.static_range(PRODUCTS):
        tl.store(to + k, tl.sum(added[k], 0, keep_dims=True))


# ------------------------------------------------------------------------------------------------------------ slopes


@triton.jit
def factors_of(stencil):
    """Return the factors of z and r at the displacements of a slice, one for all columns."""
    factors = ()
    for k in tl.static_range(50):
        factors += (tl.load(stencil + k),)
    return factors


@triton.jit
def add_factors(sums, factors, row, KIND: tl.constexpr):
    """Return sums of five rows of two columns, and in addition what the row in their middle gives to them."""
    added = ()
    for i in tl.static_range(5):
        added += sums_of(sums[2 * i], sums[2 * i + 1], factors, row, 4 - i, KIND)
    return added


@triton.jit
def sums_of(sum_0, sum_1, factors, row, i: tl.constexpr, KIND: tl.constexpr):
    """Return sums of two columns, and in addition what a row gives to them that is row i of those around them."""
    for k in tl.static_range(5):
        factor = factors[10 * i + 2 * k + KIND]
        sum_0, sum_1 = tl.fma(factor, row[k], sum_0), tl.fma(factor, row[1 + k], sum_1)
    return sum_0, sum_1


@triton.jit
def write_two(to, sum_0, sum_1, scale, is_0, is_1):
    """Write slopes of two columns."""
    tl.store(to, (sum_0 * scale).to(to.dtype.element_ty), mask=is_0)
    tl.store(to + 1, (sum_1 * scale).to(to.dtype.element_ty), mask=is_1)


@triton.jit
def slopes_few_kernel(z, r, values, terms, stencil, slopes, parts, maps, strips, TILE: tl.constexpr):
    """Write slopes of strips of rows of maps, away from the ends, where all factors of a slice are the same."""
    size, shifts, slices = parts.size, 25 * parts.slices, tl.program_id(0) // strips
    of_map, here, height, width = (slices // size.depth).to(tl.int64), slices % size.depth, size.height, size.width
    first = 2 + tl.program_id(0) % strips * parts.strip
    last = tl.minimum(first + parts.strip, height - 2) - 1
    lane, scale, area = tl.arange(0, TILE), 1 / tl.load(terms + of_map // maps), height * width
    kinds, kind = (ENDS + 1) * (ENDS + 1), (ENDS + 1) * (ENDS + 1) - 1
    if parts.slices > 1:
        kind += kind_of(here, size.depth) * kinds
        kinds *= ENDS + 1
    stencil += (of_map * kinds + kind) * (2 * shifts + 1)
    has_term = tl.load(values + of_map * 2 + 1) > 0
    constant = tl.where(has_term, tl.load(stencil + 2 * shifts), 0.0) + tl.zeros([TILE], tl.float64)
    if parts.slices == 1:
        factors = factors_of(stencil)
    column = first * 0
    while column < width:
        x = column + 2 * lane
        start = (of_map * size.depth + here) * area + (first - 2) * width + x
        inside_0, inside_1 = (x >= 2) & (x < width - 2), (x >= 1) & (x < width - 3)
        if parts.slices > 1:
            sums, to = (), slopes + start + 2 * width
            for _ in tl.static_range(2 * parts.strip):
                sums += (constant,)
            if has_term:
                for group in range(parts.slices):
                    factors = factors_of(stencil + group * 50)
                    # Outside, it does not matter what is there: the factors are 0.
                    there = tl.minimum(tl.maximum(here + group - parts.slices // 2, 0), size.depth - 1)
                    at = start + (there - here) * area
                    sums = add_slice(sums, factors, z + at, r + at, x, width, first, height, parts.strip)
            for n_row in tl.static_range(parts.strip):
                is_0, is_1 = inside_0 & (first + n_row <= last), inside_1 & (first + n_row <= last)
                write_two(to + n_row * width, sums[2 * n_row], sums[2 * n_row + 1], scale, is_0, is_1)
        else:
            z_to, r_to, to, n = z + start, r + start, slopes + start - 2 * width, first * 0
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
                write_two(to, sums[0], sums[1], scale, inside_0 & is_whole, inside_1 & is_whole)
                sums = sums[2], sums[3], sums[4], sums[5], sums[6], sums[7], sums[8], sums[9], constant, constant
                to, n = to + width, n + 1
        column += 2 * TILE


@triton.jit
def add_slice(sums, factors, z, r, x, width, first, height, STRIP: tl.constexpr):
    """Return sums of a strip of rows, and in addition what the rows of a slice around them give to them."""
    for n in tl.static_range(STRIP + 4):
        z_raw = row_of_six(z + n * width, x, width, first - 2 + n, height)
        r_raw = row_of_six(r + n * width, x, width, first - 2 + n, height)
        sums = add_row(sums, factors, wide_six(r_raw), n, STRIP, 1)
        if some_of(z_raw):
            sums = add_row(sums, factors, wide_six(z_raw), n, STRIP, 0)
    return sums


@triton.jit
def add_row(sums, factors, row, n: tl.constexpr, STRIP: tl.constexpr, KIND: tl.constexpr):
    """Return sums of a strip of rows, and in addition what row n of those around them gives to them."""
    added = ()
    for to in tl.static_range(STRIP):
        if to <= n and n <= to + 4:
            added += sums_of(sums[2 * to], sums[2 * to + 1], factors, row, n - to, KIND)
        else:
            added += (sums[2 * to], sums[2 * to + 1])
    return added


@triton.jit
def slope_ends_kernel(z, r, values, terms, stencil, slopes, parts, maps, count, TILE: tl.constexpr):
    """Write slopes of the end rows of slices, and of the end columns of the other rows, ``count`` of a slice."""
    size, shifts, blocks = parts.size, 25 * parts.slices, tl.cdiv(count, TILE)
    height, width, slices = size.height, size.width, tl.program_id(0) // blocks
    of_map, here = (slices // size.depth).to(tl.int64), slices % size.depth
    i, area = tl.program_id(0) % blocks * TILE + tl.arange(0, TILE), height * width
    in_row = i < ENDS * width
    row = tl.where(in_row, end_of(i // width, height), 2 + (i - ENDS * width) // ENDS)
    column = tl.where(in_row, i % width, end_of((i - ENDS * width) % ENDS, width))
    inside, start = (i < count) & (row < height) & (column < width), (of_map * size.depth + here) * area
    kinds, kind = (ENDS + 1) * (ENDS + 1), kind_of(row, height) * (ENDS + 1) + kind_of(column, width)
    if parts.slices > 1:
        kind += kind_of(here, size.depth) * kinds
        kinds *= ENDS + 1
    stencil += (of_map * kinds + tl.where(inside, kind, 0)) * (2 * shifts + 1)
    has_term = tl.load(values + of_map * 2 + 1 + i * 0, mask=inside, other=0.0) > 0
    total = tl.load(stencil + 2 * shifts, mask=has_term, other=0.0)
    for n in range(shifts):
        y, x, step = row + n // 5 % 5 - 2, column + n % 5 - 2, n // 25 - parts.slices // 2
        there = has_term & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        there = there & (here + step >= 0) & (here + step < size.depth)
        of_z, of_r = (
            tl.load(stencil + 2 * n, mask=there, other=0.0),
            tl.load(stencil + 2 * n + 1, mask=there, other=0.0),
        )
        at = start + step * area + y * width + x
        total += of_z * tl.load(z + at, mask=there, other=0).to(tl.float64)
        total += of_r * tl.load(r + at, mask=there, other=0).to(tl.float64)
    total /= tl.load(terms + of_map // maps)
    tl.store(slopes + start + row * width + column, total.to(slopes.dtype.element_ty), mask=inside)
