"""Sums of products of images → R of a map and slopes by members, with a barrier for several pivots.

``solve_few_kernel`` is for solve_kernel of edgeloss/_kernels/triton/region.py, which writes a row and waits for it at
each pivot: that is most of its time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeloss._kernels.triton.region import LEAST, PRODUCTS, A, noisy_matrices, parts_of_work, write_term

PIVOTS = tl.constexpr(3)  # for a barrier; they divide the 9 and 27 members of a region


@triton.jit
def write_rows(a, rows, i, j, n, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Write as many rows of a matrix as there are pivots, which all threads read after a barrier."""
    tl.store(rows + i * STRIDE + j, a, mask=(i >= n) & (i < n + PIVOTS) & (j < LENGTH))


@triton.jit
def swept_block(block, product):
    """Return a small matrix swept on all pivots, and a product with pivots / A, nan where it is not positive."""
    for k in tl.static_range(PIVOTS):
        pivot, swept = block[k * PIVOTS + k], ()
        product *= pivot * (1 / A)
        unit = 1.0 / tl.where(pivot > 0, pivot, float("nan"))
        for row in tl.static_range(PIVOTS):
            for column in tl.static_range(PIVOTS):
                if row == k and column == k:
                    swept += (-unit,)
                elif row == k or column == k:
                    swept += (block[row * PIVOTS + column] * unit,)
                else:
                    other = block[row * PIVOTS + k] * block[k * PIVOTS + column]
                    swept += (block[row * PIVOTS + column] - other * unit,)
        block = swept
    return block, product


@triton.jit
def elements(row, at, n, k: tl.constexpr, LENGTH: tl.constexpr):
    """Return the elements of row n + k of a matrix, in place of the pivots those of -1."""
    is_other = (at < n) | (at >= n + PIVOTS)
    return tl.load(row + at, mask=is_other & (at < LENGTH), other=0.0) - tl.where(at == n + k, 1.0, 0.0)


@triton.jit
def swept_by_rows(a, rows, i, j, n, product, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    """Return a symmetric matrix swept on pivots n and after, whose rows are in memory, and a product with them."""
    block, of_j = (), ()
    for k in tl.static_range(PIVOTS):
        row = rows + (n + k) * STRIDE
        of_j += (elements(row, j, n, k, LENGTH),)
        for m in tl.static_range(PIVOTS):
            block += (tl.load(row + n + m),)
    block, product = swept_block(block, product)
    a = tl.where(((i >= n) & (i < n + PIVOTS)) | ((j >= n) & (j < n + PIVOTS)), 0.0, a)
    for k in tl.static_range(PIVOTS):
        by_j = of_j[0] * block[k * PIVOTS]
        for m in tl.static_range(1, PIVOTS):
            by_j += of_j[m] * block[k * PIVOTS + m]
        a += elements(rows + (n + k) * STRIDE, i, n, k, LENGTH) * by_j
    return a, product


@triton.jit
def entropy_of(product):
    """Return h of a matrix by the product of its pivots over A."""
    return tl.log(tl.where(product > 0, product, float("nan"))) * 0.5


@triton.jit
def solve_few_kernel(
    sums, map_class, values, work, slopes, share: tl.float64, AREA: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write R of maps and whether they have a term, and slopes by members at displacements, with a constant."""
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
        one = share * 0 + 1
        of_known, of_doubled, of_left = one, one, one
        for n in range(0, D, PIVOTS):  # not in the loop below, for which there are too few registers
            write_rows(z, of_z, k, m, n, D, 2 * D)
            write_rows(doubled, minus_w, k, m, n, D, 2 * D)
            tl.debug_barrier()
            z, of_known = swept_by_rows(z, of_z, k, m, n, of_known, D, 2 * D)
            doubled, of_doubled = swept_by_rows(doubled, minus_w, k, m, n, of_doubled, D, 2 * D)
        known = entropy_of(of_known)
        scale = 2 * known - entropy_of(of_doubled)
        if scale > LEAST:
            for n in range(0, 2 * D, PIVOTS):
                if n == D:
                    a, of_left = tl.where((i < D) & (j < D), 0.0, a), one
                write_rows(a, rows, i, j, n, 2 * D, 2 * D)
                tl.debug_barrier()
                a, of_left = swept_by_rows(a, rows, i, j, n, of_left, 2 * D, 2 * D)
            left = 1 + (entropy_of(of_left) - known) / scale
            write_term(a, left, scale, traces, values, minus_w, sums, slopes, i, j, share, AREA, SLICES, D, K)
