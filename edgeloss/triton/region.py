"""Averages → the region term of each image and its slopes; symbols and formulas are those of :mod:`edgeloss.region`.

The scatter matrices are sums of products of z and r at displacements, of the averages of whole maps, less those of
regions that are partly outside. The linear algebra is batched over maps, in float64, and nothing waits for the device.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeloss.region import LEAST_KNOWN, NOISE, POOL, SIDE, entropy, trace
from edgeloss.triton.tiles import Size, displaced, launch, place_of, tile, tile_of

PRODUCTS = tl.constexpr(4)  # of z and r: zz, zr, rz, rr


class _Regions(NamedTuple):
    """What regions of a map of averages are; d is the number of their members, n that of the places."""

    reach: Size  # displacements from a member to another one
    number: int  # of regions
    partial: tuple[Tensor, Tensor]  # the averages of regions that are partly outside [d, n], and whether each exists
    pair: Tensor  # where the sums of products of members k and l are, [2d, 2d]
    other: tuple[Tensor, Tensor]  # the member at each displacement from a member [d, shifts], and whether there is one
    members: Tensor  # which members the averages of a zone are, [zones, d]


@lru_cache(maxsize=64)
def _regions(size: Size, device: torch.device) -> _Regions:
    sides = (1 if size.depth == 1 else SIDE, SIDE, SIDE)
    reach = Size.constant([side - 1 for side in sides])
    member = torch.tensor([*itertools.product(*map(range, sides))])
    shifts = torch.tensor([2 * side - 1 for side in sides])

    def number(places: Tensor, sizes: Tensor) -> Tensor:
        return (places[..., 0] * sizes[1] + places[..., 1]) * sizes[2] + places[..., 2]

    lengths, extent = torch.tensor(size), torch.tensor(sides)
    corner = torch.tensor([*itertools.product(*(range(1 - side, n) for n, side in zip(size, sides, strict=True)))])
    partial = corner[((corner < 0) | (corner + extent > lengths)).any(1)]
    average = member[:, None] + partial
    exists = ((average >= 0) & (average < lengths)).all(-1)
    half = math.prod(2 * side - 1 for side in sides) // 2
    ahead = number(member - member[:, None] + extent - 1, shifts) - half  # from member k to l, in numbers of shifts
    zz, zr = ahead.abs() * 4, torch.where(ahead >= 0, ahead * 4 + 1, -ahead * 4 + 2)
    pair = torch.cat([torch.cat([zz, zr], 1), torch.cat([zr.T, zz + 3], 1)])
    displaced_by = torch.tensor([*itertools.product(*(range(1 - side, side) for side in sides))])
    other = member[:, None] + displaced_by
    is_member = ((other >= 0) & (other < extent)).all(-1)
    # Along an axis an average is the members from the first to the last of one of 6 zones.
    ends = [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]
    zone = torch.tensor([*itertools.product(*(ends if side > 1 else ends[:1] for side in sides))])
    members = ((member >= zone[:, None, :, 0]) & (member <= zone[:, None, :, 1])).all(-1).double()
    return _Regions(
        reach,
        math.prod(n - side + 1 for n, side in zip(size, sides, strict=True)),
        (torch.where(exists, number(average, lengths), 0).to(device), exists.to(device)),
        pair.to(device),
        (torch.where(is_member, number(other, extent), 0).to(device), is_member.to(device)),
        members.to(device),
    )


@triton.jit
def wide(values, mask):
    """Return values in float64: what rounding takes from a sum of products is divided by the noise, which is small."""
    return tl.load(values, mask=mask, other=0).to(tl.float64)


@triton.jit
def products_kernel(z, r, is_candidate, sums, size, reach, count, HALF: tl.constexpr, TILE: tl.constexpr):
    """Add up over a map the products of z and r at displacements, then z and r."""
    of_map, p, inside = tile(count, TILE)
    to = sums + tl.program_id(0).to(tl.int64) * (PRODUCTS * (HALF + 1) + 2)
    z, r = z + of_map * count + p, r + of_map * count + p
    if tl.load(is_candidate + of_map) > 0:
        z_here, r_here = wide(z, inside), wide(r, inside)
        for n in range(HALF, 2 * HALF + 1):
            step, there = displaced(p, inside, n, size, reach)
            z_there, r_there = wide(z + step, there), wide(r + step, there)
            tl.store(to, tl.sum(z_here * z_there))
            tl.store(to + 1, tl.sum(z_here * r_there))
            tl.store(to + 2, tl.sum(r_here * z_there))
            tl.store(to + 3, tl.sum(r_here * r_there))
            to += PRODUCTS
        tl.store(to, tl.sum(z_here))
        tl.store(to + 1, tl.sum(r_here))


@triton.jit
def zone_of(p, count):
    """Return the zone along an axis of averages p: from the first to the last member of regions that they are."""
    least, most = tl.maximum(p - (count - 3), 0), tl.minimum(p, 2)
    return least + most * (most + 1) // 2


@triton.jit
def slopes_kernel(
    z, r, has_term, stencil, slopes, size, reach, count,
    SHIFTS: tl.constexpr, ZONES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write slopes by averages: sums of z and r around them, with factors that depend on the zone, and a constant."""
    of_map, p, inside = tile(count, TILE)
    z, r, sums = z + of_map * count + p, r + of_map * count + p, tl.zeros(p.shape, tl.float64)
    if tl.load(has_term + of_map) > 0:
        depth, row, column = place_of(p, size)
        zone = zone_of(row, size.height) * 6 + zone_of(column, size.width)
        if ZONES > 36:
            zone += zone_of(depth, size.depth) * 36
        factor = stencil + (of_map * ZONES + tl.where(inside, zone, 0)) * (2 * SHIFTS + 1)
        sums = tl.load(factor + 2 * SHIFTS)
        for n in range(SHIFTS):
            step, there = displaced(p, inside, n, size, reach)
            of_z, of_r = tl.load(factor + 2 * n), tl.load(factor + 2 * n + 1)
            sums += of_z * wide(z + step, there) + of_r * wide(r + step, there)
    tl.store(slopes + of_map * count + p, sums.to(slopes.dtype.element_ty), mask=inside)


def region_terms(z: Tensor, r: Tensor, is_candidate: Tensor, images: int, slopes: Tensor | None) -> Tensor:
    """Return R of each image [images] float64, and write its derivatives by the shares under each average."""
    size, is_candidate = Size(*z.shape[2:]), is_candidate.flatten()
    maps, count, regions = len(is_candidate), math.prod(size), _regions(size, z.device)
    half, block, given = regions.other[0].shape[1] // 2, tile_of(count, 512), (size, regions.reach)
    area = float(POOL ** (2 if size.depth == 1 else 3)) ** 2  # from products of sums to those of averages
    z_flat, r_flat = z.view(maps, count), r.view(maps, count)
    products = r.new_zeros(maps, triton.cdiv(count, block), 4 * (half + 1) + 2, dtype=torch.float64)
    sized = *given, count, tl.constexpr(half)
    launch(products_kernel, maps, count, block, z, r, is_candidate, products, *sized)
    joint, mean = _scatter(products.sum(1), z_flat, r_flat, regions)
    value, has_term, of_members = _terms(joint / area, is_candidate > 0)
    terms = has_term.view(images, -1).sum(1).clamp(min=1)
    if slopes is not None:
        of_members /= area * terms.repeat_interleave(maps // images, output_size=maps).view(-1, 1, 1)
        of_maps = has_term.to(torch.int8), _stencil(of_members, mean, regions), slopes
        zoned = *given, count, tl.constexpr(2 * half + 1), tl.constexpr(len(regions.members))
        launch(slopes_kernel, maps, count, block, z, r, *of_maps, *zoned)
    return value.view(images, -1).sum(1) / terms


def _scatter(products: Tensor, z: Tensor, r: Tensor, regions: _Regions) -> tuple[Tensor, Tensor]:
    """Return the scatter matrix of the regions of z and r [M, 2d, 2d], and the mean of each member [M, 2d]."""
    average, exists = regions.partial
    outside = torch.cat([torch.where(exists, values[:, average], 0) for values in (z, r)], 1)
    outside = torch.where((products != 0).any(1)[:, None, None], outside, 0.0).double()  # nothing is in other maps
    of_all, sums = products[:, :-2], products[:, -2:].repeat_interleave(len(average), 1, output_size=2 * len(average))
    mean = (sums - outside.sum(-1)) / regions.number
    joint = of_all[:, regions.pair] - outside @ outside.mT - regions.number * mean[:, :, None] * mean[:, None]
    return joint, mean


def _terms(joint: Tensor, is_candidate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return R of each map, 0 without a term, whether it has one, and the slopes by members: those of z, and of r."""
    d = joint.shape[-1] // 2
    unit = torch.eye(2 * d, dtype=joint.dtype, device=joint.device)
    noise, last = NOISE * unit[:d, :d], unit[d:].expand(len(joint), d, 2 * d)
    zz, zr, rr = joint[:, :d, :d], joint[:, :d, d:], joint[:, d:, d:]
    known, doubled = (entropy(k * zz + noise, d) for k in (1, 2))
    scale = 2 * known - doubled
    has_term = is_candidate & (scale > LEAST_KNOWN)
    scale, contrast = torch.where(has_term, scale, 1.0), torch.where(has_term, trace(zz), 1.0)
    excess = trace(rr) - 2 * trace(zr)
    of_q = (1 + (excess / contrast).relu()).view(-1, 1, 1) * noise
    qr = zr - rr - of_q
    matrix = torch.cat([torch.cat([zz - zr - zr.mT + rr + of_q, qr], 2), torch.cat([qr.mT, rr + noise + of_q], 2)], 1)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    failed, left = has_term & (failed > 0), factor.diagonal(dim1=-2, dim2=-1)[:, d:].log().sum(-1)
    value = torch.where(has_term, 1 + (left - d / 2 * math.log(NOISE) - known) / scale, 0.0)
    # With V the last rows of the inverse factor, dU = ½ tr(VᵀV dJ).
    v = torch.linalg.solve_triangular(factor, last, upper=False, left=False)
    difference = v[..., :d] - v[..., d:]
    of_noise = (torch.where(excess > 0, 1 / contrast, 0.0) * difference.square().sum((1, 2))).view(-1, 1, 1) * noise
    of_z, of_r = difference.mT @ v[..., :d] + of_noise, -difference.mT @ difference - of_noise
    of_members = torch.where(has_term.view(-1, 1, 1), torch.cat([of_z, of_r], 2) / scale.view(-1, 1, 1), 0.0)
    return value.masked_fill(failed, math.nan), has_term, of_members.masked_fill(failed.view(-1, 1, 1), math.nan)


def _stencil(of_members: Tensor, mean: Tensor, regions: _Regions) -> Tensor:
    """Return the factors of the slopes [M, zones, 2 · shifts + 1]: of z and r at each displacement, and a constant."""
    d = of_members.shape[1]
    other, exists = regions.other
    rows = torch.arange(d, device=other.device)[:, None]
    at_shifts = [torch.where(exists, each[:, rows, other], 0.0) for each in of_members.split(d, 2)]
    constant = -(of_members @ mean[..., None])
    return (regions.members @ torch.cat([torch.stack(at_shifts, -1).flatten(2), constant], 2)).contiguous()
