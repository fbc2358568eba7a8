"""The region term in long doubles, from docs/loss.md alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from oracle_pixels import SUMS, WIDE, Array, along_axes, rough

NOISE, LEAST_KNOWN, LEAST_ALONG, POOL, SIDE = WIDE(5e-4), 0.1, WIDE("0.05"), 3, 3


def inverse(matrix: Array) -> tuple[Array, Array]:
    """Return the inverse of positive matrices [K, d, d] by elimination, and h of each."""
    result, h = matrix.copy(), np.zeros(len(matrix), WIDE)
    for j in range(matrix.shape[1]):
        column, row, pivot = result[:, :, j].copy(), result[:, j].copy(), result[:, j, j, None].copy()
        h += np.log(pivot[:, 0] / NOISE) / 2
        result -= column[:, :, None] * (row / pivot)[:, None]
        result[:, :, j], result[:, j] = -column / pivot, row / pivot
        result[:, j, j] = 1 / pivot[:, 0]
    return result, h


class Places:
    """The averages of the pixels of an image, and its regions of averages."""

    def __init__(self, size: tuple[int, ...]) -> None:
        """Compute what pixels are in each average, one matrix [A, N] per axis."""
        self.size, self.side, self.values = size, (SIDE,) * len(size), POOL ** len(size)
        places = [(np.arange((n - 1) // POOL + 1), (np.arange(n) + POOL // 2) // POOL) for n in size]
        self.matrices = [np.equal.outer(*pair).astype(WIDE) for pair in places]

    def average(self, pixels: Array) -> Array:
        """Return the averages of pixels [K, N]."""
        return along_axes(pixels.reshape(-1, *self.size), self.matrices) / self.values

    def windows(self, averages: Array) -> Array:
        """Return a view of averages [K, *A] by regions, [K, *R, *side]."""
        axes = tuple(range(1, averages.ndim))
        return np.lib.stride_tricks.sliding_window_view(averages, self.side, axes, writeable=True)

    def regions(self, averages: Array) -> Array:
        """Return the centered regions [K, d, R]."""
        regions = self.windows(averages).reshape(len(averages), -1, math.prod(self.side)).swapaxes(1, 2)
        return regions - regions.mean(2, keepdims=True)

    def to_pixels(self, slopes: Array) -> Array:
        """Return slopes by regions [K, d, R] as those by pixels."""
        averages = np.zeros((len(slopes), *map(len, self.matrices)), WIDE)
        windows = self.windows(averages)
        for values, place in zip(slopes.swapaxes(0, 1), np.ndindex(self.side), strict=True):
            of_place = windows[(..., *place)]
            of_place += values.reshape(of_place.shape)
        return along_axes(averages / self.values, [m.T for m in self.matrices]).reshape(len(slopes), -1)


class Regions:
    """The region terms R of classes of images, [K], and their slopes by q, [K, N], in the form of docs/loss.md.

    Attributes:
        value: R, 0 where there is no term.
        share: ν before it is clamped, and along: the same of σ.
        parts: the slopes [2, K, N] by ν and by σ, which are 0 where these are clamped.
        free: the slopes by ν and σ before they are clamped.
        rounding: what adds up for R in sums over regions, and sizes: the same of slopes.
        unit: the unit of σ by averages that are rounded.
    """

    def __init__(self, places: Places, z: Array, q: Array, rng: Any = None, eps: float = 0) -> None:
        """Compute them from z and q, 0 at ignored pixels; ``rng`` rounds averages of z - q, and sums over regions."""
        off, q, z = places.average(np.abs(z - q)), places.average(q), places.average(z)
        q = q if rng is None else q + off * rng.uniform(-eps, eps, q.shape)
        zs, qs = places.regions(z), places.regions(q)
        zz, qq, zq = (a @ b.swapaxes(1, 2) for a, b in ((zs, zs), (qs, qs), (zs, qs)))
        identity, d = NOISE * np.eye(zz.shape[1], dtype=WIDE), zz.shape[1]
        known, doubled = np.split(inverse(np.concatenate([zz, 2 * zz]) + identity)[1], 2)
        scale = 2 * known - doubled  # H - f
        self.has_term = scale > LEAST_KNOWN
        scale, limit = np.where(self.has_term, scale, np.inf), np.where(self.has_term, np.trace(zz, 0, 1, 2), 1)
        if rng is not None:  # those of q may come from z and r = z - q
            size = np.abs(zz) + np.abs(zz - zq - zq.swapaxes(1, 2) + qq)
            zz, qq, zq = (m + d * SUMS * s * rng.uniform(-1, 1, m.shape) for m, s in ((zz, zz), (qq, size), (zq, size)))
            zz, qq = ((m + m.swapaxes(1, 2)) / 2 for m in (zz, qq))
        contrast, self.along = np.trace(qq, 0, 1, 2) / limit, np.trace(zq, 0, 1, 2) / (LEAST_ALONG * limit)
        qq = qq + np.maximum(1, contrast)[:, None, None] * identity
        best = zq @ inverse(qq)[0]  # B
        precision, left = inverse(zz + identity - best @ zq.swapaxes(1, 2))
        back = best.swapaxes(1, 2) @ precision
        noise = (NOISE * np.trace(back @ best, 0, 1, 2) / limit)[:, None, None] * qs
        is_higher = contrast > 1 + WIDE(1e-12 if rng is None else -1e-12)  # roundings decide where it is 1
        of_residual, noise = -back @ (zs - best @ qs), is_higher[:, None, None] * noise
        self.share = (left + known - doubled) / scale
        sigma, explained = np.clip(self.along, -1, 1), 1 - np.maximum(self.share, 0)
        self.value = np.where(self.has_term, 1 - sigma * explained, 0)
        by_share, by_along = (of_residual + noise) / scale[:, None, None], zs / (LEAST_ALONG * limit)[:, None, None]
        by_along = by_along * self.has_term[:, None, None]
        slopes = sigma[:, None, None] * by_share, -explained[:, None, None] * by_along
        self.free = np.array([places.to_pixels(part) for part in slopes])
        is_free = np.array([self.share > 0, np.abs(self.along) < 1])
        self.parts = self.free * is_free[:, :, None]
        self.unit = (rough(places.windows(off).reshape(zs.swapaxes(1, 2).shape).swapaxes(1, 2) * by_along)).sum((1, 2))
        parts = zs, qs, zz, qq, best, precision, back, of_residual, noise, scale
        zs, qs, zz, qq, best, precision, back, of_residual, noise, scale = map(rough, parts)
        summed = zz + best @ qq @ best.swapaxes(1, 2)
        self.rounding = ((precision * summed).sum((1, 2)) - d * float(np.log(NOISE))) / scale
        sizes = back @ (zs + best @ qs) + noise + self.rounding[:, None, None] * (of_residual + noise)
        sizes = sizes / scale[:, None, None] + (1 + self.rounding[:, None, None]) * rough(by_along)
        self.sizes = places.to_pixels(sizes)
