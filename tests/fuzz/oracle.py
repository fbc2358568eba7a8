"""The loss and its gradient in long doubles, from docs/loss.md alone, one image after another.

Every result has a *unit*: by how much it may change if all that adds up in it is rounded once, relative to 1. A unit is
a sum without signs, so that an error over unit and over the rounding of a dtype is the number of its roundings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
WIDE = np.longdouble
NOISE, LEAST_KNOWN, POOL, SIDE = WIDE(5e-4), 0.1, 3, 3  # of the region term
NARROW = 49  # neighbors; in sums over more, the roundings of nearly equal ones have the same sign
SUMS = WIDE(2.0**-52)  # the rounding of sums over regions, which are float64 for every dtype
TRIALS = 2  # roundings of the logits that show how accurate the slopes of the region term can be


@dataclass
class Answer:
    """What a call must return, as pairs of a value and its unit.

    Attributes:
        loss: a number, or a map in the shape of the labels.
        terms: numbers, by name.
        maps: in the shape of the labels, by name; of exact ones the unit is 0.
        gradient: in the shape of the logits.
        lost: the part of the gradient that may be missing: what underflows, or is interpolated to the next pixel.
        is_read: the logits that the loss depends on; the gradient of others is exactly 0.
        is_rough: whether the roundings of the exponents decide which neighbor counts in the gradient.
        has_regions: whether the region term takes part.
    """

    loss: tuple[Array, Array]
    terms: dict[str, tuple[Array, Array]]
    maps: dict[str, tuple[Array, Array]]
    gradient: tuple[Array, Array]
    lost: Array
    is_read: Array
    is_rough: bool
    has_regions: bool


# ----------------------------------------------------------------------------------------------------------- the pixels


class Softmax:
    """Probabilities of pixels [N, C]; ``depth`` is 1 + the logit below the largest, which is what is rounded."""

    def __init__(self, x: Array, rounding: Array) -> None:
        """Compute them from logits, and by how much these are rounded already."""
        rows, top = np.arange(len(x)), x.argmax(1)
        self.x, self.rounding, below = x, rounding, x - x[rows, top, None]
        odds = np.exp(below)
        odds[rows, top] = 0
        rest = odds.sum(1, keepdims=True)
        self.log_p = below - np.log1p(rest)
        self.p, self.depth = np.exp(self.log_p), 1 - below + rounding

    def others(self, rows: Array) -> tuple[Array, Array]:
        """Return log(1 - p) of every class k of some pixels [M, k], and the shares of the other classes c, [M, k, c]."""
        x, p = self.x[rows], self.p[rows]
        among = np.where(np.eye(x.shape[1], dtype=bool), -np.inf, x[:, None])
        most = among.max(2, keepdims=True)
        sums = np.exp(among - most)
        total = sums.sum(2, keepdims=True)
        log_rest = (most[..., 0] - x) + np.log(total[..., 0]) + self.log_p[rows]
        return np.where(p < 0.5, np.log1p(-np.minimum(p, 0.5)), log_rest), sums / total


def interpolation(low: int, high: int) -> tuple[Array, Array]:
    """Return the matrix [high, low] of linear interpolation, and by how much its elements change with a position.

    A position is (i + 1/2) · low / high - 1/2, and at most two roundings of its first part move it. Beyond an integer,
    which no rounding knows from its neighbors, it belongs to another pair of pixels.
    """
    at = np.maximum((np.arange(high, dtype=WIDE) + WIDE(0.5)) * low / high - WIDE(0.5), 0)[:, None]
    apart = np.abs(np.minimum(at, low - 1) - np.arange(low))
    return np.maximum(1 - apart, 0), np.where(apart < 1 + WIDE(1e-6), 2 * (at + WIDE(0.5)), 0)


def along_axes(x: Array, matrices: Sequence[Array]) -> Array:
    """Multiply the last axes of an array by a matrix each."""
    for axis, matrix in enumerate(matrices, start=x.ndim - len(matrices)):
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


# ------------------------------------------------------------------------------------------------------- the edge terms


def window_pairs(size: Sequence[int], radius: Sequence[int]) -> tuple[Array, Array]:
    """Return all pairs of pixels i, n within a window of each other, ordered by i."""
    i = n = np.zeros(1, np.int64)
    for length, r in zip(size, radius, strict=True):
        place = np.arange(length)
        a, b = np.nonzero(np.abs(place[:, None] - place) <= r)
        i, n = (np.add.outer(length * whole, part).ravel() for whole, part in ((i, a), (n, b)))
    order = np.argsort(i, kind="stable")
    return i[order], n[order]


def edge_distance(y: Array, valid: Array, spacing: Sequence[float]) -> Array:
    """Return the distance of each pixel to the nearest valid one of another class, [N]; inf without one."""
    squares = np.zeros((1, 1), WIDE)
    for length, s in zip(y.shape, spacing, strict=True):
        apart = (WIDE(s) * np.subtract.outer(np.arange(length), np.arange(length))) ** 2
        squares = squares[:, None, :, None] + apart[None, :, None, :]
        squares = squares.reshape(squares.shape[0] * length, -1)
    is_other = (y.reshape(-1, 1) != y.ravel()) & valid.reshape(-1, 1) & valid.ravel()
    return np.sqrt(np.where(is_other, squares, np.inf).min(1, initial=np.inf))


def power_mean(t: Array, log_w: Array, i: Array, q: float) -> tuple[Array, Array, Array]:
    """Return the centers of pairs that are ordered by center i, -log M_q of each, and the shares π of the pairs."""
    is_first = np.diff(i, prepend=-1) != 0
    starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1

    def total(values: Array) -> Array:
        return np.add.reduceat(values, starts)

    def log_sum_exp(values: Array) -> Array:
        top = np.maximum.reduceat(values, starts)
        return top + np.log(total(np.exp(values - top[group])))

    log_w = log_w - np.maximum.reduceat(log_w, starts)[group]
    of_weights, of_all = log_sum_exp(log_w), log_sum_exp(log_w + WIDE(q) * t)
    pi = np.exp(log_w + WIDE(q) * t - of_all[group])
    plain = np.exp(log_w - of_weights[group])
    value = total(plain * t)
    if q:  # where the exponents are small, 1 / q would magnify the rounding of a logarithm of 1 + something
        off = WIDE(q) * (t - value[group])
        is_near = np.maximum.reduceat(np.abs(off), starts) < 1
        small = np.log1p(total(plain * np.expm1(np.where(is_near[group], off, 0))))
        value = np.where(is_near, value + small / WIDE(q), (of_all - of_weights) / WIDE(q))
    return i[starts], -value, pi


# ------------------------------------------------------------------------------------------------------ the region term


def inverse(matrix: Array) -> tuple[Array, Array]:
    """Return the inverse of positive matrices [K, d, d] by elimination, and half the logarithm of the determinant."""
    result, half_log = matrix.copy(), np.zeros(len(matrix), WIDE)
    for j in range(matrix.shape[1]):
        column, row, pivot = result[:, :, j].copy(), result[:, j].copy(), result[:, j, j].copy()
        half_log += np.log(pivot) / 2
        result -= column[:, :, None] * (row / pivot[:, None])[:, None]
        result[:, :, j], result[:, j] = -column / pivot[:, None], row / pivot[:, None]
        result[:, j, j] = 1 / pivot
    return result, half_log


class Regions:
    """The region terms of classes from z and q [K, *S], which are 0 at ignored pixels, in the form of docs/loss.md."""

    def __init__(
        self, z: Array, q: Array, may_have: Array, rng: np.random.Generator | None = None, eps: float = 0
    ) -> None:
        """Compute value [K] and slopes [K, *S] by q; ``rng`` rounds averages of z - q by eps, and sums to float64."""
        self.axes = tuple(range(1, z.ndim))
        self.pool = [self.averages(length) for length in z.shape[1:]]
        z, q, off = (along_axes(values, self.pool) for values in (z, q, np.abs(z - q)))
        if rng is not None:
            q = q + off * rng.uniform(-eps, eps, q.shape)
        zs, qs = self.regions(z), self.regions(q)
        zz, qq, zq = (self.scatter(a, b, rng) for a, b in ((zs, zs), (qs, qs), (zs, qs)))
        identity, d = np.eye(zz.shape[1], dtype=WIDE), zz.shape[1]
        known, doubled = (inverse(k * zz + NOISE * identity)[1] - d * np.log(NOISE) / 2 for k in (1, 2))
        scale = 2 * known - doubled  # H - f
        self.has_term = may_have & (scale > LEAST_KNOWN)
        contrast, limit = np.trace(qq, 0, 1, 2), np.where(self.has_term, np.trace(zz, 0, 1, 2), 1)
        qq = qq + (NOISE * np.maximum(1, contrast / limit))[:, None, None] * identity
        best = zq @ inverse(qq)[0]  # B
        left = zz + NOISE * identity - best @ zq.swapaxes(1, 2)
        precision, half_log = inverse(left)
        back = best.swapaxes(1, 2) @ precision  # BᵀΣ⁻¹
        slopes = -back @ (zs - best @ qs)
        more_noise = NOISE * np.trace(back @ best, 0, 1, 2) / limit
        is_higher = contrast > limit * (1 + WIDE(1e-12 if rng is None else -1e-12))  # roundings decide where equal
        slopes += np.where(is_higher, more_noise, 0)[:, None, None] * qs
        sizes = np.abs(back) @ (np.abs(zs) + np.abs(best) @ np.abs(qs)) + more_noise[:, None, None] * np.abs(qs)
        scale = np.where(self.has_term, scale, np.inf)
        self.value = np.where(self.has_term, (half_log - d * np.log(NOISE) / 2 - doubled + known) / scale, 0)
        summed = np.abs(zz) + np.abs(best) @ np.abs(qq) @ np.abs(best).swapaxes(1, 2)
        self.rounding = (np.abs(precision) * summed).sum((1, 2)) / scale  # of the value, in float64 sums
        sizes += self.rounding[:, None, None] * np.abs(slopes)
        self.slopes, self.sizes = (self.to_pixels(values / scale[:, None, None]) for values in (slopes, sizes))

    @staticmethod
    def averages(length: int) -> Array:
        """Return the matrix of averages of 3 pixels, with one more before the first."""
        start = POOL * np.arange((length - 1) // POOL + 1)[:, None] - POOL // 2
        place = np.arange(length)
        return ((place >= start) & (place < start + POOL)) / WIDE(POOL)

    def regions(self, values: Array) -> Array:
        """Return the centered regions [K, d, N] of averages."""
        windows = np.lib.stride_tricks.sliding_window_view(values, (SIDE,) * len(self.axes), self.axes)
        regions = windows.reshape(len(values), -1, SIDE ** len(self.axes)).swapaxes(1, 2)
        return regions - regions.mean(2, keepdims=True)

    def to_pixels(self, slopes: Array) -> Array:
        """Return slopes of regions [K, d, N] as those of pixels."""
        count = [len(matrix) - SIDE + 1 for matrix in self.pool]
        averages = np.zeros((len(slopes), *map(len, self.pool)), WIDE)
        for place, corner in enumerate(itertools.product(range(SIDE), repeat=len(count))):
            window = (slice(c, c + n) for c, n in zip(corner, count, strict=True))
            averages[(slice(None), *window)] += slopes[:, place].reshape(-1, *count)
        return along_axes(averages, [matrix.T for matrix in self.pool])

    @staticmethod
    def scatter(a: Array, b: Array, rng: np.random.Generator | None) -> Array:
        """Return a bᵀ, which ``rng`` rounds as often as it has rows, in float64."""
        result = a @ b.swapaxes(1, 2)
        noise = 0 if rng is None else rng.uniform(-1, 1, result.shape) * result.shape[1] * SUMS
        return result * (1 + (noise + np.swapaxes(noise, 1, 2) if rng is not None and a is b else noise))


# ------------------------------------------------------------------------------------------------------------ the image


class Image:
    """An image, or a class of one with labels per class: its terms, and their gradient once their factors are known."""

    def __init__(self, x: Array, y: Array, o: dict[str, Any], dtype: Any) -> None:
        """Compute the terms of logits [C, *S'] and labels [*S], with the weights and the distance of this image."""
        self.o, self.kind, self.size = o, np.finfo(dtype), y.shape
        self.classes, self.is_binary = max(2, len(x)), len(x) == 1
        valid = (y != o["ignore_index"]) & (y >= 0) & (y < self.classes)
        self.valid, self.y = valid.ravel(), np.where(valid, y, 0).ravel()
        self.one_hot = np.eye(self.classes, dtype=WIDE)[self.y] * self.valid[:, None]
        self.v = np.where(self.valid, o["pixel_weight"], 0)
        self.w = self.v * o["weight"][self.y]  # what adds up in the denominator
        self.softmax = Softmax(*self.interpolate(x, valid))
        self.of_pixels()
        self.of_edges()
        self.vu = self.v * o["edge_class_weight"][self.y] * self.is_edge
        self.of_regions()

    def interpolate(self, x: Array, valid: Array) -> tuple[Array, Array]:
        """Return the logits of all pixels [N, C], 0 where not valid, and by how much interpolation rounds them [N, 1]."""
        pairs = zip(x.shape[1:], self.size, strict=True) if x.shape[1:] != self.size else ()
        self.matrices, moved = zip(*itertools.starmap(interpolation, pairs), strict=True) if pairs else ((), ())
        self.moved = [m + self.kind.eps * change for m, change in zip(self.matrices, moved, strict=True)]
        self.is_read = along_axes(valid.astype(WIDE), [(change > 0).T.astype(WIDE) for change in moved]) > 0
        x = np.where(self.is_read, x, 0).astype(WIDE)
        sizes, off = (along_axes(np.abs(x), matrices) for matrices in (self.matrices, self.moved))
        rounding = (sizes + (off - sizes) / self.kind.eps).max(0).reshape(-1, 1) * bool(self.matrices)
        x = along_axes(x, self.matrices)
        x = np.concatenate([0 * x, x]) if self.is_binary else x
        return np.where(valid, x, 0).reshape(self.classes, -1).T, rounding

    def of_pixels(self) -> None:
        """Compute the cross-entropy of each pixel, from the share of each class in it."""
        smoothing, nll = WIDE(self.o["label_smoothing"]), -self.softmax.log_p
        share = (1 - smoothing) * self.one_hot * self.o["weight"] + smoothing / self.classes * self.o["weight"]
        self.share = np.where(self.valid[:, None], share, 0)
        unit = self.share * (1 + nll + self.softmax.rounding)
        self.maps = {"cross_entropy": ((self.share * nll).sum(1), unit.sum(1))}

    def of_edges(self) -> None:
        """Compute the edge terms, and the shares by which their gradient arrives at the neighbors."""
        o, q, valid = self.o, self.o["power"], self.valid
        i, n = window_pairs(self.size, o["radius"])
        i, n = (pixels[(i != n) & valid[i] & valid[n]] for pixels in (i, n))
        self.is_edge = np.zeros(len(valid), bool)
        self.is_edge[i[self.y[i] != self.y[n]]] = True
        i, n = (pixels[self.is_edge[i]] for pixels in (i, n))
        log_w = np.zeros(len(valid), WIDE)
        if o["decay"] is not None:
            distance = shown = o["distance"]
            if distance is None:
                distance = edge_distance(self.y.reshape(self.size), valid.reshape(self.size), o["spacing"])
                ends = [min(r, s - 1) * d for r, s, d in zip(o["radius"], self.size, o["spacing"], strict=True)]
                shown = np.where(distance > 2 * math.hypot(*ends) * (1 + WIDE(1e-12)), np.inf, distance)
            log_w, self.maps["distance"] = -distance / WIDE(o["decay"]), (shown, 1 + np.abs(shown))
        is_other = self.y[i] != self.y[n]
        self.rows, place = np.unique(n[is_other], return_inverse=True)
        log_rest, self.rest = self.softmax.others(self.rows)
        same = self.side(i[~is_other], n[~is_other], self.softmax.log_p[n, self.y[i]][~is_other], log_w)
        other = self.side(i[is_other], n[is_other], log_rest[place, self.y[i][is_other]], log_w)
        self.arrivals, largest = (same[1:], other[1:]), max(same[0][1], other[0][1])
        reach = math.prod(min(2 * r + 1, s) for r, s in zip(o["radius"], self.size, strict=True))
        rounding = (self.softmax.rounding[:, 0] * valid).max(initial=0)
        self.condition = max(1, reach / NARROW) * (1 + abs(q) * largest + (-log_w[n]).max(initial=0) + rounding)
        floor = 1 + (1 / abs(q) if abs(q) * largest >= 1 else 0.0)  # 1 / q magnifies a logarithm
        weights = {"same_side": (1, 0), "other_side": (0, 1), "edge": (o["same_side_weight"], o["other_side_weight"])}
        for name, (a, b) in weights.items():
            value = WIDE(a) * same[0][0] + WIDE(b) * other[0][0]
            self.maps[name] = value, ((a + b) * floor + np.abs(value)) * self.condition
        self.maps["edge_mask"] = self.is_edge, 0 * self.v

    def side(self, i: Array, n: Array, t: Array, log_w: Array) -> tuple[tuple[Array, Any], Array, Array, Array, Array]:
        """Return a term [N] with its largest |t|, and of its pairs i, n, the shares, and which of these may be 0."""
        centers, mean, pi = power_mean(t, log_w[n], i, self.o["power"])
        value = np.zeros(len(log_w), WIDE)
        value[centers] = mean
        # They underflow before a weight multiplies them, or with power 1, the probability does.
        self.least, rounding = 2 * self.classes * WIDE(self.kind.tiny), 2 * self.classes * self.kind.eps
        is_under = np.minimum(t, log_w[n]) < np.log(self.least)
        may_be_0 = (is_under & (pi < rounding) & (self.o["power"] == 1)) | (pi < self.least)
        return (value, np.abs(t).max(initial=0)), i, n, pi, may_be_0

    def of_regions(self) -> None:
        """Compute the sum of the region terms of the classes with its unit, their number, and the unit of the slopes."""
        self.count, self.region, self.slopes = 0, np.zeros(2, WIDE), np.zeros_like(self.softmax.p)
        self.slope_sizes, counts = self.slopes, self.one_hot.sum(0)
        may_have = (counts > 0) & (counts < self.valid.sum()) & ((np.arange(self.classes) == 1) | (self.classes > 2))
        if not self.o["region_weight"] or min(self.size) <= POOL * (SIDE - 1) or not may_have.any():
            return
        eps, softmax, rng = self.kind.eps, self.softmax, np.random.default_rng(len(self.y))

        def maps(values: Array) -> Array:
            return np.where(self.valid[:, None], values, 0).T.reshape(-1, *self.size)

        def of_pixels(values: Array) -> Array:
            return values.reshape(self.classes, -1).T * self.valid[:, None]

        exact = Regions(maps(self.one_hot), maps(softmax.p), may_have)
        spread = np.zeros(self.classes, WIDE)
        for _ in range(TRIALS):
            rounded = Softmax(softmax.x + rng.uniform(-eps, eps, softmax.x.shape) * softmax.depth, 0).p
            off = Regions(maps(self.one_hot), maps(rounded), may_have, rng, eps).slopes - exact.slopes
            spread = np.maximum(spread, np.abs(of_pixels(off)).max(0) / eps)
        self.count, self.slopes = exact.has_term.sum(), of_pixels(exact.slopes)
        self.slope_sizes = np.abs(self.slopes) + (spread + of_pixels(exact.sizes) * SUMS / eps) * self.valid[:, None]
        unit = self.by_logits(np.abs(self.slopes), softmax.depth).sum() + exact.rounding.sum() * SUMS / eps
        self.region = np.array([exact.value.sum(), self.count + np.abs(exact.value).sum() + unit])

    def by_logits(self, slopes: Array, depth: Array | None = None) -> Array:
        """Return p_c Σ_k p_k (s_c - s_k), the slopes by logits for those by p; with ``depth`` the unit of size |s|."""
        p, others = self.softmax.p, 1 - np.eye(self.classes, dtype=WIDE)
        if depth is None:
            return p * (slopes * (p @ others) - (p * slopes) @ others)
        weights = (depth, p), (1, p * depth)
        return p * sum(factor * (slopes * (w @ others) + (w * slopes) @ others) for factor, w in weights)

    def arrive(self, is_other: bool, factor: Array) -> Array:
        """Return what arrives at each neighbor for the class of the center: its sum, size and what may be 0, [3, N, C]."""
        i, n, pi, may_be_0 = self.arrivals[is_other]
        values = factor[i] * WIDE(self.o["other_side_weight" if is_other else "same_side_weight"]) * pi
        result = np.zeros((3, *self.softmax.p.shape), WIDE)
        np.add.at(result, (slice(None), n, self.y[i]), np.stack([values, np.abs(values), np.abs(values) * may_be_0]))
        return result

    def gradient(self, ce: Array, edge: Array, region: Array) -> tuple[Array, Array, Array]:
        """Return the gradient [C, *S'], its unit and what may be lost.

        Args:
            ce: the factor of the cross-entropy of each pixel, [N].
            edge: that of the edge terms, [N].
            region: that of the sum of the region terms.
        """
        p, depth, condition = self.softmax.p, self.softmax.depth, np.array([1, 1, self.condition]).reshape(3, 1, 1)
        (same, same_size, same_0), (other, other_size, other_0) = (self.arrive(k, edge) for k in (False, True))
        # Each a value, what adds up in it without signs, and the unit of this: of -log p, and of -log(1 - p).
        toward = (
            np.stack([same, same_size, same_size]) * condition
            + self.share * np.stack([ce, *[np.abs(ce)] * 2])[..., None]
        )
        away = np.stack([other, other_size, other_size]) * condition * p
        rest = np.zeros((4, *p.shape), WIDE)  # what passes to the other classes, by their shares of 1 - p
        deep = np.stack([*away, away[2] * depth])
        rest[:, self.rows] = np.einsum("ank,nkc->anc", deep[:, self.rows], self.rest)
        through = toward.sum(2, keepdims=True) * p
        slopes, size = self.by_logits(self.slopes), np.abs(region)
        result = through[0] - toward[0] + away[0] - rest[0] + region * slopes
        of_p = through[1] + away[1] + rest[1] + size * self.by_logits(np.abs(self.slopes), WIDE(0.5))
        unit = toward[2] + (through[2] + away[2] + rest[2]) * depth + rest[3]
        unit += size * self.by_logits(self.slope_sizes, depth)
        lost = np.where(p < self.least, of_p, 0) + (same_0 + other_0 * p).sum(1, keepdims=True)
        mass = toward[1] + of_p
        result, unit, lost, mass = map(self.of_logits, (result, unit, lost, mass))
        back, moved = ([m.T for m in matrices] for matrices in (self.matrices, self.moved))
        lost = along_axes(lost - mass, back) + along_axes(mass, moved)  # interpolated to the next pixel
        return (
            along_axes(result, back),
            along_axes(unit, back),
            lost,
            np.broadcast_to(self.is_read, (len(result), *self.is_read.shape)),
        )

    def of_logits(self, values: Array) -> Array:
        """Return values of pixels [N, C] as [C, *S], of one logit those of class 1."""
        return np.where(self.valid, values.T, 0).reshape(-1, *self.size)[int(self.is_binary) :]


# -------------------------------------------------------------------------------------------------------------- the call


def solve(x: Array, y: Array, o: dict[str, Any], upstream: Array, dtype: Any) -> Answer:
    """Return what a call must return.

    Args:
        x: logits [B, C, *S'], in any dtype.
        y: labels [B, *S], with ``multilabel`` [B, C, *S].
        o: the options of ``edge_aware_loss``, arrays for tensors, None for absent ones, radius and spacing per axis.
        upstream: the gradient that arrives at the loss.
        dtype: float32 or float64, in which the loss is computed that is compared.
    """
    batch = make_images(x, y, o, dtype)
    images = [*itertools.chain(*batch)]
    upstream = np.broadcast_to(upstream, y.shape).reshape(len(images), -1) if images else upstream
    totals = sum(i.w.sum() for i in images), sum(i.vu.sum() for i in images)
    totals = (1, 1) if o["reduction"] == "sum" else o["normalizer"] or totals
    per_w, per_e = (1 / WIDE(total) if total else WIDE(0) for total in totals)
    per = {"cross_entropy": per_w, "region": per_w} | dict.fromkeys(("same_side", "other_side", "edge"), per_e)
    terms, losses, gradients = {name: np.zeros(2, WIDE) for name in per}, [], []
    weights = [WIDE(o[f"{name}_weight"]) for name in ("ce", "edge", "region")]
    factors = weights if o["reduction"] == "none" else np.multiply(weights, (per_w, per_e, per_w))
    for row in batch:
        count, arriving = max(1, sum(i.count for i in row)), upstream[len(losses) :][: len(row)]
        region = sum(i.region for i in row) / count
        of_region = factors[2] * sum((i.w * up).sum() for i, up in zip(row, arriving, strict=True)) / count
        for image, up in zip(row, arriving, strict=True):
            parts = {name: np.array(image.maps[name]) * image.vu for name in ("same_side", "other_side", "edge")}
            parts |= {
                "cross_entropy": np.array(image.maps["cross_entropy"]) * image.v,
                "region": np.outer(region, image.w),
            }
            terms = {name: total + per[name] * parts[name].sum(1) for name, total in terms.items()}
            losses.append(
                sum(f * parts[name] for f, name in zip(factors, ("cross_entropy", "edge", "region"), strict=True))
            )
            gradients.append(image.gradient(factors[0] * up * image.v, factors[1] * up * image.vu, of_region))
    loss, (gradient, unit, lost, is_read) = joined(losses, y.shape), joined(gradients, x.shape)
    edges, valid = (sum(getattr(i, name).sum() for i in images) for name in ("is_edge", "valid"))
    maps = {
        name: joined([image.maps[name] for image in images], y.shape) for name in (images[0].maps if images else ())
    }
    return Answer(
        loss=tuple(loss[:2] if o["reduction"] == "none" else loss[:2].reshape(2, -1).sum(1)),
        terms={name: tuple(value) for name, value in terms.items()} | {"edge_fraction": (edges / max(1, valid),) * 2},
        maps={name: tuple(values) for name, values in maps.items()},
        gradient=(gradient, unit),
        lost=lost,
        is_read=is_read > 0,
        is_rough=any(image.condition * np.finfo(dtype).eps > 1e-3 for image in images),
        has_regions=any(image.count for image in images),
    )


def joined(parts: list[Any], shape: Sequence[int]) -> Array:
    """Return several arrays of each image, as arrays of the whole call; zeros without images."""
    return np.moveaxis(np.array(parts), 1, 0).reshape(-1, *shape) if parts else np.zeros((4, *shape), WIDE)


def make_images(x: Array, y: Array, o: dict[str, Any], dtype: Any) -> list[list[Image]]:
    """Return the images of a call, those of the classes of one image in a row; none without pixels."""
    tables, size, given = x.shape[1] if o["multilabel"] else 1, y.shape[2 - x.ndim :], {}
    y, x = y.reshape(len(x), tables, *size), x.reshape(len(x), tables, x.shape[1] // tables, *x.shape[2:])
    for name in ("weight", "edge_class_weight", "pixel_weight", "distance"):
        of_classes = name in ("weight", "edge_class_weight")
        shape, count = (
            ((1, tables, -1), max(2, x.shape[2])) if of_classes else ((len(x), -1, math.prod(size)), math.prod(size))
        )
        if y.size and (o[name] is not None or name != "distance"):
            values = np.ones((1, 1, 1)) if o[name] is None else o[name].reshape(shape)
            given[name] = np.broadcast_to(values, (len(x), tables, count)).astype(WIDE)
    return [
        [
            Image(x[b, c], y[b, c], o | {name: values[b, c] for name, values in given.items()}, dtype)
            for c in range(tables)
        ]
        for b in range(len(x) if y.size else 0)
    ]
