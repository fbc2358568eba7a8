"""Sums of products of images → R of a map and slopes by members, with matrices in the registers of a warp.

``solve_few_kernel`` is for solve_kernel of edgeloss/_kernels/triton/region.py, whose pivots go through memory and
barriers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgeloss._kernels.triton.region import AHEAD, LEAST, PRODUCTS, SURE, A

D = tl.constexpr(9)  # members of a region


@triton.jit
def at_lane(values, lane: tl.constexpr, all_lanes):
    """Return what one lane has, for all."""
    return tl.gather(values, all_lanes * 0 + lane, 0)


@triton.jit
def log_of(pivot):
    """Return the logarithm of a product of pivots, nan where a matrix is not positive."""
    return tl.log(tl.where(pivot > 0, pivot, float("nan")))


@triton.jit
def sweep(rows, n: tl.constexpr, lane):
    """Return a symmetric matrix, a row in each tensor, swept on pivot n, and the pivot."""
    row = rows[n]
    pivot = at_lane(row, n, lane)
    unit = 1.0 / tl.where(pivot > 0, pivot, float("nan"))
    scaled = tl.where(lane == n, -1.0, row) * unit
    swept = ()
    for i in tl.static_range(len(rows)):
        if i == n:
            swept += (scaled,)
        else:
            swept += (tl.where(lane == n, 0.0, rows[i]) - at_lane(row, i, lane) * scaled,)
    return swept, pivot


@triton.jit
def entropy_of(rows, lane):
    """Return h of a matrix of d rows."""
    product = rows[0] * 0 + 1
    for n in tl.static_range(D):
        rows, pivot = sweep(rows, n, lane)
        product *= pivot * (1 / A)
    return log_of(product) * 0.5


@triton.jit
def solve_few_kernel(sums, map_class, values, slopes, share: tl.float64, AREA: tl.constexpr, TILE: tl.constexpr):
    """Write R of maps and whether they have a term, and slopes by members at displacements, with a constant.

    Lanes are q of members, then r of them; symbols are those of solve_kernel.
    """
    of_map, j = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    sums, slopes, values = sums + of_map * (D * PRODUCTS), slopes + of_map * (D * 51), values + of_map * 2
    tl.store(values + j, tl.zeros([TILE], tl.float64), mask=j < 2)
    if tl.load(map_class + of_map) >= 0:
        k_l, is_r, inside = j % D, j >= D, j < 2 * D
        z_l = tl.load(sums + k_l * PRODUCTS + 4 * AHEAD, mask=inside, other=0.0)
        r_l = tl.load(sums + k_l * PRODUCTS + 4 * AHEAD + 1, mask=inside, other=0.0)
        of_q, of_r, of_z, doubled = (), (), (), ()
        zero = tl.zeros([TILE], tl.float64)
        contrast, excess, explained = zero, zero, zero
        for k in tl.static_range(9):
            ahead = (k_l // 3 - k // 3) * 5 + (k_l % 3 - k % 3)
            is_back = ahead < 0
            at = sums + tl.where(is_back, k_l, k) * PRODUCTS + tl.abs(ahead) * 4
            z_k, r_k = tl.load(sums + k * PRODUCTS + 4 * AHEAD), tl.load(sums + k * PRODUCTS + 4 * AHEAD + 1)
            zz, rr = tl.load(at, mask=inside, other=0.0), tl.load(at + 3, mask=inside, other=0.0)
            zr = tl.load(at + tl.where(is_back, 2, 1), mask=inside, other=0.0)
            rz = tl.load(at + tl.where(is_back, 1, 2), mask=inside, other=0.0)
            zz, zr = (zz - z_k * share * z_l) * (1 / AREA), (zr - z_k * share * r_l) * (1 / AREA)
            rz, rr = (rz - r_k * share * z_l) * (1 / AREA), (rr - r_k * share * r_l) * (1 / AREA)
            of_q += (tl.where(inside, tl.where(is_r, zr - rr, zz - zr - rz + rr), 0.0),)
            of_r += (tl.where(inside, tl.where(is_r, rr, rz - rr), 0.0),)
            contrast += tl.where(j == k, zz, 0.0)
            excess -= tl.where(j == k + D, 2 * (zr - rr) + rr, 0.0)
            explained += tl.where(j == k + D, zr, 0.0)
            of_z += (tl.where(j < D, tl.where(j == k, zz + A, zz), 0.0),)
            doubled += (tl.where(j < D, tl.where(j == k, 2 * zz + A, 2 * zz), 0.0),)
        contrast = tl.sum(contrast)
        of_contrast = tl.where(contrast > 0, contrast, 1.0)
        excess, sign = tl.sum(excess) / of_contrast, (1 - tl.sum(explained) / of_contrast) / SURE
        a_q, joint = A * (1 + tl.maximum(excess, 0.0)), ()
        for k in tl.static_range(9):
            joint += (of_q[k] + tl.where(j == k, a_q, tl.where(j == k + D, -a_q, 0.0)),)
        for k in tl.static_range(9):
            joint += (of_r[k] + tl.where(j == k, -a_q, tl.where(j == k + D, a_q + A, 0.0)),)
        known = entropy_of(of_z, j)
        scale = 2 * known - entropy_of(doubled, j)
        for n in tl.static_range(9):
            joint, unused = sweep(joint, n, j)
        zeroed = ()
        for i in tl.static_range(18):
            zeroed += (tl.where(j < D, 0.0, joint[i]) if i < 9 else joint[i],)
        joint, product = zeroed, zero + 1
        for n in tl.static_range(9, 18):
            joint, pivot = sweep(joint, n, j)
            product *= pivot * (1 / A)
        has_term = scale > LEAST
        of_scale = tl.where(has_term, scale, 1.0)
        left = 1 + (log_of(product) * 0.5 - known) / of_scale
        explained = tl.where(left < 0, 1.0, 1 - left)
        of_sign = tl.where(tl.abs(sign) < 1, explained / (SURE * of_contrast), 0.0) * (1 / AREA)
        sign = tl.where(sign > 1, 1.0, tl.where(sign < -1, -1.0, sign))
        value = tl.where(j == 0, 1 - sign * explained, 1.0)
        tl.store(values + j, tl.where(has_term, value, 0.0), mask=j < 2)
        of_left, of_noise = (
            tl.where(left < 0, 0.0, sign / (of_scale * AREA)),
            tl.where(excess > 0, A / of_contrast, 0.0),
        )
        trace, by_z, by_r = zero, (), ()
        for k in tl.static_range(9):
            # minus_w of r by q less that of q by q; of r by r less that of q by r, less the former, in lanes of q.
            z_k = joint[k + 9] - joint[k]
            r_k = tl.gather(z_k, (j + D) % TILE, 0) - z_k
            by_z, by_r, trace = by_z + (z_k,), by_r + (r_k,), trace + tl.where(j == k, r_k, 0.0)
        noise = -of_noise * tl.sum(trace)
        for k in tl.static_range(9):
            of_own = tl.where(j == k, noise, 0.0)
            z_k = tl.where(of_left == 0, 0.0, (by_z[k] + of_own) * of_left) - tl.where(j == k, of_sign, 0.0)
            r_k = tl.where(of_left == 0, 0.0, (by_r[k] - of_own) * of_left)
            to, dy, dx = slopes + k * 51, j // 5 - 2 + k // 3, j % 5 - 2 + k % 3
            exists = (j < 25) & (dy >= 0) & (dy < 3) & (dx >= 0) & (dx < 3)  # others are those of no member
            source = tl.where(exists, dy * 3 + dx, 0)
            tl.store(to + 2 * j, tl.where(exists, tl.gather(z_k, source, 0), 0.0), mask=j < 25)
            tl.store(to + 2 * j + 1, tl.where(exists, tl.gather(r_k, source, 0), 0.0), mask=j < 25)
            constant = -share * tl.sum(tl.where(j < D, z_k * z_l + r_k * r_l, 0.0))
            tl.store(to + 50 + j, zero + constant, mask=j == 0)
