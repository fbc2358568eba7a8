"""Averages → the region term of each image and its slopes.

Symbols and formulas are those of :mod:`edgeloss._reference.region`. The scatter matrices are sums of products of z and
r at displacements. Along an axis, the averages that are member k of some region are all but two. So two places at
either end are *parts* of their own, of which some members are not, and between them are strips, of which all are: sums
by parts, added up over the parts of a member, are of the regions inside a map and no others. Slopes by members, added
up the other way, are those by kinds of parts: each end, or any strip.

Sums and slopes are float64, in which products of two float32 are exact: what rounding takes from a sum is divided by
the noise, which is small, and slopes cancel. Nothing waits for the device.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeloss._kernels.triton.plans import Plan
from edgeloss._kernels.triton.tiles import EXACT, INTERPRETED, Size, cdiv, constant, power_of_2, tile, tile_of
from edgeloss._reference.region import LEAST_CONTRAST, LEAST_KNOWN, NOISE, POOL, SIDE

ENDS = tl.constexpr(4)  # parts at the ends of an axis, of a place each
AHEAD = tl.constexpr(13)  # displacements: 0 to 2 columns in the same row, -2 to 2 in each of the next two
PRODUCTS = tl.constexpr(4 * 13 + 2)  # zz, zr, rz, rr at each of them, then z and r
A, LOG_A, LEAST = tl.constexpr(NOISE), tl.constexpr(math.log(NOISE)), tl.constexpr(LEAST_KNOWN)
SURE = tl.constexpr(LEAST_CONTRAST)
ROWS = 2 if INTERPRETED else 14  # of a strip
COLUMNS, PARTS_AT_ONCE = (512, 256) if INTERPRETED else (64, 16)  # of a program that adds up parts
ROWS_OF_VOLUME = 2 if INTERPRETED else 5  # where a program adds up slopes, row by row in its code


class Parts(NamedTuple):
    """How kernels divide maps of averages; what is Any is a constant."""

    size: Size
    rows: int  # parts along the height
    number: int  # along the first two axes
    strip: Any  # rows of a strip
    at_once: Any  # of the parts, in a program: one, or in the interpreter, which takes time by operation, all
    slices: Any  # displacements along the depth: 1, or 5 of volumes

    @classmethod
    def of(cls, size: Size, strip: int) -> Parts:
        """Return parts with strips of so many rows."""
        rows, slices = ENDS.value + cdiv(max(size.height - ENDS.value, 0), strip), 2 * SIDE - 1 if size.depth > 1 else 1
        at_once = power_of_2(size.depth * rows * slices) if INTERPRETED else 1
        return cls(size, rows, size.depth * rows, *map(constant, (strip, at_once, slices)))


@lru_cache(maxsize=64)
def _parts(size: Size, block: int, device: torch.device) -> tuple[Parts, Parts, Tensor, Tensor]:
    """Return parts for products and slopes, and which members averages of each are [d, parts] and [kinds, d]."""

    def members(count: int, first: list[int]) -> Tensor:
        member, place = torch.arange(SIDE), torch.tensor(first)[:, None]
        return ((member >= place - (count - SIDE)) & (member <= place)).double()

    is_volume = size.depth > 1
    parts, of_slopes = Parts.of(size, ROWS), Parts.of(size, ROWS_OF_VOLUME if is_volume else ROWS)
    ends = [[0, 1, max(count - 2, 2), max(count - 1, 3)] for count in size]
    strips = parts.rows - ENDS.value, cdiv(size.width, block)  # ends included
    first = [[*range(size.depth)], *([*ends[a], *[2] * strips[a - 1]] for a in (1, 2))]
    of_parts, of_kinds = (
        reduce(torch.kron, [members(size[a], of_axes[a]) for a in range(not is_volume, 3)])
        for of_axes in (first, [[*places, 2] for places in ends])
    )
    return parts, of_slopes, of_parts.T.contiguous().to(device), of_kinds.to(device)


@triton.jit
def kind_of(place, count):
    """Return which of the ends of an axis places are, or that they are none."""
    from_end = tl.minimum(place - tl.maximum(count - ENDS, 0), ENDS)
    return tl.where(place < 2, place, tl.where(from_end >= 2, from_end, ENDS))


@triton.jit
def part(parts, GROUPS: tl.constexpr, TILE: tl.constexpr):
    """Return the map, groups, parts, slices, first and last rows and columns of a program.

    Columns are which kind they are, where they start in memory, and which there are -2 to 2 columns from them.
    """
    size, chunks = parts.size, tl.cdiv(parts.number * GROUPS, parts.at_once)
    program, x, unused = tile(size.width, TILE)
    x = x[None, :]
    n = program.to(tl.int32) % chunks * parts.at_once + tl.arange(0, parts.at_once)[:, None]
    group, n = n % GROUPS, n // GROUPS
    of_map, row, inside = program.to(tl.int32) // chunks, n % parts.rows, (x < size.width) & (n < parts.number)
    end, strip = tl.where(row < 2, row, tl.maximum(size.height - ENDS + row, row)), 2 + (row - ENDS) * parts.strip
    first = tl.where(row < ENDS, end, strip)
    last = tl.minimum(first + tl.where(row < ENDS, 0, parts.strip - 1), size.height - tl.where(row < ENDS, 1, 3))
    columns = inside & (x >= 2), inside & (x >= 1), inside, inside & (x < size.width - 1), inside & (x < size.width - 2)
    start = of_map.to(tl.int64) * size.depth * size.height * size.width + x
    return of_map, group, n, n // parts.rows, first, last, kind_of(x, size.width), start, columns


@triton.jit
def longest(parts, first, last):
    """Return how many rows the longest of some parts has; the interpreter's loops take constants."""
    return parts.strip if EXACT else tl.max(last - first) + 1


@triton.jit
def row_of(values, columns):
    """Return what is -2 to 2 columns from places of a row, and 0 outside."""
    return [tl.load(values + (n - 2), mask=columns[n], other=0) for n in (0, 1, 2, 3, 4)]


@triton.jit
def wide(row):
    """Return values in float64."""
    return [value.to(tl.float64) for value in row]


@triton.jit
def add_products(sums, z, r, z_there, r_there):
    """Return sums, and in addition products of rows z and r, the latest first, and what is around the latest."""
    added = ()
    for n in tl.static_range(AHEAD):
        z_n, r_n = z[(n + 2) // 5], r[(n + 2) // 5]
        z_to, r_to = z_there[(n + 2) % 5], r_there[(n + 2) % 5]
        added += (sums[4 * n] + z_n * z_to, sums[4 * n + 1] + z_n * r_to)
        added += (sums[4 * n + 2] + r_n * z_to, sums[4 * n + 3] + r_n * r_to)
    return added + (sums[4 * AHEAD] + z[0], sums[4 * AHEAD + 1] + r[0])  # noqa: RUF005


@triton.jit
def products_kernel(z, r, map_class, sums, parts, TILE: tl.constexpr):
    """Add up over parts of maps the products of z and r with those in the same and later rows, then z and r.

    A program walks down its columns; the displacement along the depth, of volumes, is that of its group.
    """
    of_map, group, n, here, first, last, kind, start, columns = part(parts, parts.slices, TILE)
    size, zero, added = parts.size, tl.zeros([parts.at_once, TILE], tl.float64), ()
    for _ in tl.static_range(PRODUCTS):
        added += (zero,)  # type: ignore[assignment]
    if tl.load(map_class + of_map) >= 0:
        # Outside, it does not matter what is there: it is in no sum that has members.
        there = tl.minimum(tl.maximum(here + group - parts.slices // 2, 0), size.depth - 1)
        above = zero, zero, zero, zero  # a tuple, as Triton does not see that a name takes another one's initial value
        step, row = there * (size.height * size.width), tl.minimum(first, size.height - 1) * size.width + start
        coming = row_of(z + row + step, columns), row_of(r + row + step, columns)  # loaded while another one is added
        for n_row in range(longest(parts, first, last) + 2):
            row = tl.minimum(first + n_row, size.height - 1) * size.width + start
            further = tl.minimum(first + n_row + 1, size.height - 1) * size.width + start
            z_there, r_there = wide(coming[0]), wide(coming[1])
            coming = row_of(z + further + step, columns), row_of(r + further + step, columns)
            z_0, r_0 = z_there[2], r_there[2]
            if parts.slices > 1:
                own = here * (size.height * size.width) + row
                z_0 = tl.load(z + own, mask=columns[2], other=0).to(tl.float64)
                r_0 = tl.load(r + own, mask=columns[2], other=0).to(tl.float64)
            z_0, r_0 = tl.where(first + n_row <= last, z_0, 0.0), tl.where(first + n_row <= last, r_0, 0.0)
            added = add_products(added, (z_0, above[0], above[1]), (r_0, above[2], above[3]), z_there, r_there)
            above = z_0, above[0], r_0, above[2]
        blocks, of_part, exists = tl.cdiv(size.width, TILE), parts.slices * PRODUCTS, n < parts.number
        to = sums + (of_map.to(tl.int64) * parts.number + n) * ((ENDS + blocks) * of_part) + group * PRODUCTS
        of_strip, of_end = to + (ENDS + tl.program_id(0) % blocks) * of_part, to + kind * of_part
        for k in tl.static_range(PRODUCTS):
            tl.store(of_strip + k, tl.sum(tl.where(kind < ENDS, 0.0, added[k]), 1, keep_dims=True), mask=exists)
            tl.store(of_end + k, added[k], mask=exists & (kind < ENDS))


@triton.jit
def member_of(k):
    """Return where members k of regions are along each axis."""
    return k // 9, k // 3 % 3, k % 3


@triton.jit
def matrices_of(sums, i, j, share, AREA: tl.constexpr, SLICES: tl.constexpr, D: tl.constexpr):
    """Return the scatter matrices that the term is made of, without noise; ``share`` is 1 over the number of regions.

    Rows are those of q, of r and of z: the joint matrix of q and r [2d, 2d], and ZZᵀ [d, d] below it.
    """
    kind, k, other, is_r = i // D, i % D, j % D, j >= D
    depth_k, row_k, column_k = member_of(k)
    depth_l, row_l, column_l = member_of(other)
    ahead, a = (row_l - row_k) * 5 + (column_l - column_k), tl.zeros((i * j).shape, tl.float64)
    is_back = ahead < 0  # the products are those of other with k
    slices = tl.where(is_back, depth_k - depth_l, depth_l - depth_k) + SLICES // 2
    at = sums + (tl.where(is_back, other, k) * SLICES + slices) * PRODUCTS + tl.abs(ahead) * 4
    of_z = sums + 4 * AHEAD  # the sums of z, before those of r
    of_k, of_other = of_z + k * (SLICES * PRODUCTS), of_z + other * (SLICES * PRODUCTS)
    for n in tl.static_range(4):  # ZZᵀ, ZRᵀ, RZᵀ and RRᵀ: q is z - r
        of_row = tl.where(kind == 0, 1 - n // 2 * 2, tl.where(kind == 1, n // 2, 1 - n // 2))
        of_column = tl.where(is_r, n % 2, tl.where(kind < 2, 1 - n % 2 * 2, 1 - n % 2))
        mask = (kind < 3) & (j < 2 * D) & (of_row * of_column != 0)  # what is not used may be nan
        product = tl.load(at + tl.where(is_back, n % 2 * 2 + n // 2, n), mask=mask, other=0)
        sum_k, sum_l = tl.load(of_k + n // 2, mask=mask, other=0), tl.load(of_other + n % 2, mask=mask, other=0)
        a += (of_row * of_column) * ((product - sum_k * share * sum_l) * (1 / AREA))
    return a


@triton.jit
def through_memory(a, rows, i, j, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Return a matrix as threads load its rows, so that they need not exchange it to write them; 0 outside."""
    to, inside = rows + i * STRIDE + j, (i < LENGTH) & (j < LENGTH)
    tl.store(to, a, mask=inside)
    tl.debug_barrier()
    return tl.load(to, mask=inside, other=0.0)


@triton.jit
def write_pivot(a, rows, i, j, n, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Write row n of a matrix, which all threads read after a barrier."""
    tl.store(rows + n * STRIDE + (i * 0 + j), a, mask=(i == n) & (j < LENGTH))


@triton.jit
def swept(a, rows, i, j, n, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Return a symmetric matrix swept on pivot n, which is that of a Cholesky factor, nan where there is none.

    A sweep on all pivots turns a matrix into minus its inverse.
    """
    row = rows + n * STRIDE
    pivot = tl.load(row + n)
    unit = 1.0 / tl.where(pivot > 0, pivot, float("nan"))  # one division: those of float64 take long
    of_row = tl.where(i == n, -1.0, tl.load(row + i, mask=i < LENGTH, other=0.0)) * unit
    of_column = tl.where(j == n, -1.0, tl.load(row + j, mask=j < LENGTH, other=0.0))
    return tl.where((i == n) | (j == n), 0.0, a) - of_row * of_column


@triton.jit
def entropy(rows, FIRST: tl.constexpr, D: tl.constexpr, K: tl.constexpr):
    """Return h of a matrix that was swept on d pivots, from the rows of these."""
    n = tl.arange(0, K)
    pivots = tl.load(rows + (FIRST + n) * (2 * D + 1), mask=n < D, other=1.0)
    return (tl.sum(tl.log(tl.where(pivots > 0, pivots, float("nan")))) - D * LOG_A) * 0.5


@triton.jit
def noisy_matrices(sums, work, i, j, k, m, share, AREA: tl.constexpr, SLICES: tl.constexpr, D: tl.constexpr):
    """Return the joint matrix, ZZᵀ and twice ZZᵀ, all with noise, and then traces.

    These are tr ZZᵀ, and in proportion to it tr QQᵀ - tr ZZᵀ, and σ before its bounds.
    """
    a, z = matrices_of(sums, i, j, share, AREA, SLICES, D), matrices_of(sums, k + 2 * D, m, share, AREA, SLICES, D)
    contrast = tl.sum(tl.where((k == m) & (k < D), z, 0.0))
    # Differences of traces have no digits where R is small.
    inside, of_contrast = (i < 2 * D) & (j < 2 * D), tl.where(contrast > 0, contrast, 1.0)
    of_trace = inside & (i % D == j % D) & (j >= D)
    excess = -tl.sum(tl.where(of_trace, tl.where(i < D, 2 * a, a), 0.0)) / of_contrast
    sign = (1 - tl.sum(tl.where(of_trace, a, 0.0)) / of_contrast) / SURE
    of_q = A * (1 + tl.maximum(excess, 0.0))
    noise = tl.where((i < D) == (j < D), tl.where(i < D, of_q, of_q + A), -of_q)
    a = tl.where(inside & (i % D == j % D), a + noise, a)
    z, doubled = tl.where(k == m, z + A, z), tl.where(k == m, 2 * z + A, 2 * z)
    of_z, rows, minus_w = parts_of_work(work, D)
    a, z = through_memory(a, rows, i, j, 2 * D, 2 * D), through_memory(z, of_z, k, m, D, 2 * D)
    doubled = through_memory(doubled, minus_w, k, m, D, 2 * D)
    tl.debug_barrier()
    return a, z, doubled, (contrast, excess, sign)


@triton.jit
def parts_of_work(work, D: tl.constexpr):
    """Return where rows of ZZᵀ are, those of the joint matrix, and those of twice ZZᵀ, and of -W after them."""
    return work, work + 2 * D * D, work + 6 * D * D


@triton.jit
def write_term(
    a, left, scale, traces, values, minus_w, sums, slopes, i, j, share, AREA: tl.constexpr, SLICES: tl.constexpr,
    D: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Write R of a map and slopes by members, of a joint matrix that was swept; ``left`` is ν before its bound."""
    contrast, excess, sign = traces
    explained = tl.where(left < 0, 1.0, 1 - left)
    of_sign = tl.where(tl.abs(sign) < 1, explained / (SURE * contrast), 0.0)
    sign = tl.where(sign > 1, 1.0, tl.where(sign < -1, -1.0, sign))
    tl.store(values, 1 - sign * explained)
    tl.store(values + 1, 1.0)
    tl.store(minus_w + i * (2 * D) + j, a, mask=(i < 2 * D) & (j < 2 * D))
    tl.debug_barrier()  # others read it
    of_noise = tl.where(excess > 0, A / contrast, 0.0)
    units = tl.where(left < 0, 0.0, sign / (scale * AREA)), of_sign / AREA
    write_slopes(minus_w, sums, slopes, of_noise, units, share, SLICES, D, K)


@triton.jit
def solve_kernel(
    sums, map_class, values, work, slopes, share: tl.float64, AREA: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write R of maps and whether they have a term, and slopes by members at displacements, with a constant.

    The joint matrix, swept on all pivots but for what its first block was after the first d, is -W, the inverse less
    that of this block: nothing cancels, and dU = ½ tr(W dJ).
    """
    SLICES: tl.constexpr = 5 if D == 27 else 1
    K: tl.constexpr = TILE // 2
    of_map, i, j = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    sums, work = sums + of_map * (D * SLICES * PRODUCTS), work + of_map * (10 * D * D)
    slopes, values = slopes + of_map * (D * (50 * SLICES + 1)), values + of_map * 2
    tl.store(values, 0.0)
    tl.store(values + 1, 0.0)
    if tl.load(map_class + of_map) >= 0:
        k, m = tl.arange(0, K)[:, None], tl.arange(0, K)[None, :]
        a, z, doubled, traces = noisy_matrices(sums, work, i, j, k, m, share, AREA, SLICES, D)
        of_z, rows, minus_w = parts_of_work(work, D)
        for n in range(D):
            write_pivot(a, rows, i, j, n, 2 * D, 2 * D)
            write_pivot(z, of_z, k, m, n, D, 2 * D)
            write_pivot(doubled, minus_w, k, m, n, D, 2 * D)
            tl.debug_barrier()
            a, z = swept(a, rows, i, j, n, 2 * D, 2 * D), swept(z, of_z, k, m, n, D, 2 * D)
            doubled = swept(doubled, minus_w, k, m, n, D, 2 * D)
        known = entropy(of_z, 0, D, K)
        scale = 2 * known - entropy(minus_w, 0, D, K)
        if scale > LEAST:
            a = tl.where((i < D) & (j < D), 0.0, a)
            for n in range(D, 2 * D):
                write_pivot(a, rows, i, j, n, 2 * D, 2 * D)
                tl.debug_barrier()
                a = swept(a, rows, i, j, n, 2 * D, 2 * D)
            left = 1 + (entropy(rows, D, D, K) - known) / scale
            write_term(a, left, scale, traces, values, minus_w, sums, slopes, i, j, share, AREA, SLICES, D, K)


@triton.jit
def write_slopes(minus_w, sums, slopes, of_noise, units, share, SLICES: tl.constexpr, D: tl.constexpr, K: tl.constexpr):
    """Write the slopes by members k: of z and r at each displacement, and a constant.

    The units are the factor of the slopes of U, and what the sign takes from that of a member by itself.
    """
    of_left, of_sign = units
    LENGTH: tl.constexpr = 50 * SLICES
    k, other, n = tl.arange(0, K)[:, None], tl.arange(0, K)[None, :], tl.arange(0, 256 if D == 27 else 64)[None, :]
    to, inside = slopes + k * (LENGTH + 1), (k < D) & (other < D)
    tl.store(to + n, (k * n) * 0.0, mask=(k < D) & (n < LENGTH))  # most displacements are those of no other member
    of_q = minus_w + k * (2 * D) + other
    of_r = of_q + 2 * D * D
    of_z = tl.load(of_r, mask=inside, other=0.0) - tl.load(of_q, mask=inside, other=0.0)
    of_r = tl.load(of_r + D, mask=inside, other=0.0) - tl.load(of_q + D, mask=inside, other=0.0) - of_z
    of_noise = tl.where(k == other, of_noise * -tl.sum(tl.where(k == other, of_r, 0.0)), 0.0)
    of_z = tl.where(of_left == 0, 0.0, (of_z + of_noise) * of_left) - tl.where(k == other, of_sign, 0.0)
    of_r = tl.where(of_left == 0, 0.0, (of_r - of_noise) * of_left)
    of_other = sums + other * (SLICES * PRODUCTS) + 4 * AHEAD
    z_l, r_l = tl.load(of_other, mask=other < D, other=0), tl.load(of_other + 1, mask=other < D, other=0)
    depth_k, row_k, column_k = member_of(k)
    depth_l, row_l, column_l = member_of(other)
    shift = ((depth_l - depth_k + SLICES // 2) * 5 + row_l - row_k + 2) * 5 + column_l - column_k + 2
    tl.debug_barrier()  # zeros are written by others
    tl.store(to + 2 * shift, of_z, mask=inside)
    tl.store(to + 2 * shift + 1, of_r, mask=inside)
    tl.store(to + LENGTH, -share * tl.sum(of_z * z_l + of_r * r_l, 1, keep_dims=True), mask=k < D)


@triton.jit
def means_kernel(values, means, terms, maps, TILE: tl.constexpr):
    """Write the mean R of the maps of each image that have a term, and by how many it was divided: 0 and 1 of none."""
    image, k = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    of_map = values + (image * maps + k) * 2
    total, count = tl.load(of_map, mask=k < maps, other=0.0), tl.load(of_map + 1, mask=k < maps, other=0.0)
    number = tl.maximum(tl.sum(count), 1.0)
    tl.store(means + image, tl.sum(total) / number)
    tl.store(terms + image, number)


@triton.jit
def factors_of(stencil, mask):
    """Return the factors of z and r at the displacements of a slice."""
    factors = ()
    for n in tl.static_range(50):
        factors += (tl.load(stencil + n, mask=mask, other=0.0),)
    return factors


@triton.jit
def add_slopes(sums, factors, z, r):
    """Return slopes of five rows, and in addition what the row in their middle gives them."""
    added = ()
    for row in tl.static_range(5):
        of_row = sums[row]
        for column in tl.static_range(5):
            of_row += factors[40 - 10 * row + 2 * column] * z[column]
            of_row += factors[41 - 10 * row + 2 * column] * r[column]
        added += (of_row,)
    return added


@triton.jit
def add_slices(sums, z, r, stencil, here, first, start, columns, parts):
    """Return slopes of the rows of a part, and in addition what the slices around it give them."""
    size = parts.size
    for group in range(parts.slices):
        factors = factors_of(stencil + group * 50, columns[2])
        # Outside, it does not matter what is there: the factors are 0.
        there = tl.minimum(tl.maximum(here + group - parts.slices // 2, 0), size.depth - 1)
        for n in tl.static_range(parts.strip + 4):
            row = tl.minimum(tl.maximum(first + n - 2, 0), size.height - 1)
            at = (there * size.height + row) * size.width + start
            z_row, r_row, added = wide(row_of(z + at, columns)), wide(row_of(r + at, columns)), ()
            for to in tl.static_range(parts.strip):
                of_row = sums[to]
                if to <= n and n <= to + 4:
                    for column in tl.static_range(5):
                        of_row += factors[10 * (n - to) + 2 * column] * z_row[column]
                        of_row += factors[10 * (n - to) + 2 * column + 1] * r_row[column]
                added += (of_row,)
            sums = added
    return sums


@triton.jit
def slopes_kernel(z, r, values, terms, stencil, slopes, parts, maps, TILE: tl.constexpr):
    """Write slopes by averages: sums of z and r around them, with factors that depend on the part, and a constant.

    A program walks down its columns; ``maps`` are those of an image.
    """
    of_map, unused, n, here, first, last, kind, start, columns = part(parts, 1, TILE)
    size, SHIFTS, inside = parts.size, 25 * parts.slices, columns[2]
    kind += (kind_of(here, size.depth) * (ENDS + 1) + tl.minimum(n % parts.rows, ENDS)) * (ENDS + 1)
    kinds = (ENDS + 1) * (ENDS + 1) * (1 if parts.slices == 1 else ENDS + 1)
    stencil += (of_map.to(tl.int64) * kinds + tl.where(inside, kind, 0)) * (2 * SHIFTS + 1)
    has_term, constant = tl.load(values + of_map * 2 + 1) > 0, tl.load(stencil + 2 * SHIFTS, mask=inside, other=0.0)
    constant = tl.where(has_term, constant, 0.0)
    scale = 1 / tl.load(terms + of_map // maps)
    if parts.slices > 1:
        rows = ()
        for _ in tl.static_range(parts.strip):
            rows += (constant,)  # type: ignore[assignment]
        if has_term:
            rows = add_slices(rows, z, r, stencil, here, first, start, columns, parts)
        for n_row in tl.static_range(parts.strip):
            to = slopes + (here * size.height + first + n_row) * size.width + start
            tl.store(to, (rows[n_row] * scale).to(slopes.dtype.element_ty), mask=inside & (first + n_row <= last))
    else:
        factors, sums = factors_of(stencil, inside), (constant, constant, constant, constant, constant)
        row = tl.minimum(tl.maximum(first - 2, 0), size.height - 1) * size.width + start
        coming = row_of(z + row, columns), row_of(r + row, columns)  # loaded while another one is added
        for n_row in range(longest(parts, first, last) + 4):
            if has_term:
                z_row, r_row = wide(coming[0]), wide(coming[1])
                row = tl.minimum(tl.maximum(first + n_row - 1, 0), size.height - 1) * size.width + start
                coming = row_of(z + row, columns), row_of(r + row, columns)
                sums = add_slopes(sums, factors, z_row, r_row)
            to = first + n_row - 4
            mask, to = inside & (to >= first) & (to <= last), slopes + (here * size.height + to) * size.width + start
            tl.store(to, (sums[0] * scale).to(slopes.dtype.element_ty), mask=mask)
            sums = sums[1], sums[2], sums[3], sums[4], constant


@triton.jit
def add_parts_kernel(values, members, map_class, sums, rows, parts, columns, AT_ONCE: tl.constexpr, TILE: tl.constexpr):
    """Write sums over the parts of a map, [maps, rows, columns], that ``members`` [rows, parts] are 1 of."""
    line, c, inside = tile(columns, TILE)
    of_map, row, n = line // rows, (line % rows).to(tl.int32), tl.arange(0, AT_ONCE)[:, None]
    added, start, c, inside = tl.zeros([AT_ONCE, TILE], tl.float64), row * 0, c[None, :], inside[None, :]
    if tl.load(map_class + of_map) >= 0:
        while start < parts:
            is_member = tl.load(members + row * parts + start + n, mask=start + n < parts, other=0.0) > 0
            at = values + (of_map * parts + start + n) * columns + c
            added += tl.load(at, mask=is_member & inside, other=0.0)
            start += AT_ONCE
        tl.store(sums + line * columns + c, tl.sum(added, 0, keep_dims=True), mask=inside)


def region_terms(
    plan: Plan, z: Tensor, r: Tensor, map_class: Tensor, means: Tensor, slopes: Tensor | None
) -> None:  # fmt: skip
    """Write R of each image, float64, and its derivatives by the shares under averages, if asked to."""
    size, maps, images = Size(*z.shape[2:]), map_class.numel(), means.numel()
    block = tile_of(size.width, 32)
    parts, of_slopes, members, kinds = _parts(size, block, z.device)
    d, slices = len(members), parts.slices.value

    def empty(*size: int) -> Tensor:
        return plan.empty(means.new_empty(size))

    def add_parts(values: Tensor, members: Tensor) -> Tensor:
        """Return sums over the parts of each map, by members."""
        rows, number, columns = len(members), *values.shape[1:]
        sums, columns_at_once = empty(maps, rows, columns), min(power_of_2(columns), COLUMNS)
        given = values, members, map_class, sums, rows, number, columns, constant(PARTS_AT_ONCE)
        plan.launch(add_parts_kernel, maps * rows, columns, columns_at_once, *given)
        return sums

    products = empty(maps, members.shape[1], slices * PRODUCTS.value)
    programs = maps * cdiv(parts.number * slices, parts.at_once.value)
    plan.launch(products_kernel, programs, size.width, block, z, r, map_class, products, parts, warps=1)
    sums, values, work = add_parts(products, members), empty(maps, 2), empty(maps, 10 * d * d)
    of_members, rows = empty(maps, d, 50 * slices + 1), power_of_2(2 * d)
    share = 1 / math.prod(n - SIDE + 1 if n > 1 else 1 for n in size)
    area = constant(POOL ** (4 if slices == 1 else 6))  # from products of sums to those of averages
    given = sums, map_class, values, work, of_members, share, area, constant(d)
    plan.launch(solve_kernel, maps, rows, rows, *given, warps=8)
    of_image, terms = maps // images, empty(images)
    plan.launch(means_kernel, images, 1, power_of_2(of_image), values, means, terms, of_image, warps=1)
    if slopes is not None:
        stencil = add_parts(of_members, kinds)
        of_terms = z, r, values, terms, stencil, slopes, of_slopes, of_image
        programs = maps * cdiv(of_slopes.number, of_slopes.at_once.value)
        plan.launch(slopes_kernel, programs, size.width, block, *of_terms, warps=1)
