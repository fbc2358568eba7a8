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
SUMS = WIDE(2.0**-53)  # the rounding of sums over regions, which are float64 for every dtype
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

    def __init__(self, x: Array, interpolated: Array) -> None:
        """Compute them; ``interpolated`` is the size of what added up in the logits."""
        rows, top = np.arange(len(x)), x.argmax(1)
        self.x, self.below = x, x - x[rows, top, None]
        odds = np.exp(self.below)
        odds[rows, top] = 0
        rest = odds.sum(1, keepdims=True)
        self.log_p = self.below - np.log1p(rest)
        self.p, self.depth = np.exp(self.log_p), 1 - self.below + interpolated

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

    def __init__(self, z: Array, q: Array, rng: np.random.Generator | None = None, eps: float = 0.0) -> None:
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
        self.has_term = scale > LEAST_KNOWN
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
        """Compute the terms from logits [C, *S'], labels [*S] and options, with the class weights of this image."""
        self.y, self.o, self.kind, self.size = y.ravel(), o, np.finfo(dtype), y.shape
        self.classes, self.is_binary = max(2, len(x)), len(x) == 1
        valid = (y != o["ignore_index"]) & (y >= 0) & (y < self.classes)
        self.valid, self.y = valid.ravel(), np.where(valid, y, 0).ravel()
        self.upsampled = x.shape[1:] != y.shape
        self.matrices, moved = zip(*map(interpolation, x.shape[1:], y.shape), strict=True)
        self.moved = [m + self.kind.eps * change for m, change in zip(self.matrices, moved, strict=True)]
        reached = [(change > 0).astype(WIDE).T for change in moved] if self.upsampled else []
        self.is_read = along_axes(valid.astype(WIDE), reached) > 0
        x = np.where(self.is_read, x, 0).astype(WIDE)
        self.interpolated = np.zeros((len(self.y), 1), WIDE)  # how much is rounded in the logits: themselves and places
        if self.upsampled:
            sizes, moved = (along_axes(np.abs(x), matrices) for matrices in (self.matrices, self.moved))
            self.interpolated = (sizes + (moved - sizes) / self.kind.eps).max(0).reshape(-1, 1)
            x = along_axes(x, self.matrices)
        x = np.concatenate([0 * x, x]) if self.is_binary else x
        self.softmax = Softmax(np.where(valid, x, 0).reshape(self.classes, -1).T, self.interpolated)
        self.one_hot = np.eye(self.classes, dtype=WIDE)[self.y] * self.valid[:, None]
        self.v, self.a = np.where(self.valid, 1 if o["pixel_weight"] is None else o["pixel_weight"], 0), o["weight"]
        self.u = o["edge_class_weight"][self.y]
        self.v = self.v.astype(WIDE)
        self.of_pixels()
        self.of_edges()
        self.of_regions()

    def of_pixels(self) -> None:
        """Compute the cross-entropy of each pixel: its own class and, by smoothing, all."""
        smoothing, nll = WIDE(self.o["label_smoothing"]), -self.softmax.log_p
        self.own, self.all = (1 - smoothing) * self.a[self.y], smoothing / self.classes * self.a
        share = np.where(self.valid[:, None], self.own[:, None] * self.one_hot + self.all, 0)
        self.ce, self.ce_unit = (share * nll).sum(1), (share * (1 + nll + self.interpolated)).sum(1)

    def of_edges(self) -> None:
        """Compute the two edge terms, and the shares by which their gradient arrives at the neighbors."""
        o, q, count = self.o, self.o["power"], len(self.y)
        i, n = window_pairs(self.size, o["radius"])
        keep = (i != n) & self.valid[i] & self.valid[n]
        i, n = i[keep], n[keep]
        self.is_edge = np.zeros(count, bool)
        self.is_edge[i[self.y[i] != self.y[n]]] = True
        i, n = i[self.is_edge[i]], n[self.is_edge[i]]
        differ = self.y[i] != self.y[n]
        distance = o["distance"]
        if o["decay"] is not None and distance is None:
            valid = self.valid.reshape(self.size)
            distance = edge_distance(self.y.reshape(self.size), valid, o["spacing"])
        log_w = np.zeros(count, WIDE) if o["decay"] is None else -distance / WIDE(o["decay"])
        self.distance = distance
        self.rows, place = np.unique(n[differ], return_inverse=True)
        self.log_rest, self.shares = self.softmax.others(self.rows)
        self.sides, largest = [], 0.0
        for is_other in (False, True):
            a, b = i[differ == is_other], n[differ == is_other]
            t = self.log_rest[place, self.y[a]] if is_other else self.softmax.log_p[b, self.y[a]]
            centers, mean, pi = power_mean(t, log_w[b], a, q)
            value = np.zeros(count, WIDE)
            value[centers] = mean
            largest = max(largest, float(np.abs(t).max(initial=0)))
            self.sides.append((value, a, b, pi, self.may_underflow(t, log_w[b], pi)))
        reach = min(float(np.prod([min(2 * r + 1, s) for r, s in zip(o["radius"], self.size, strict=True)])), count)
        self.condition = (
            1 + abs(q) * largest + float(-log_w[n].min(initial=0)) + float(self.interpolated[self.valid].max(initial=0))
        )
        self.condition *= max(1.0, reach / NARROW)
        self.floor = 1 + (1 / abs(q) if abs(q) * largest >= 1 else 0.0)  # 1 / q magnifies a logarithm

    def may_underflow(self, t: Array, log_w: Array, pi: Array) -> Array:
        """Return which shares may be 0: they underflow before a weight multiplies them, or with power 1, p does."""
        self.least, rounding = 2 * self.classes * WIDE(self.kind.tiny), 2 * self.classes * self.kind.eps
        is_under = (t < np.log(self.least)) | (log_w < np.log(self.least))
        return (is_under & (pi < rounding) & (self.o["power"] == 1)) | (pi < self.least)

    def of_regions(self) -> None:
        """Compute the sum of the region terms of the classes, their number, and the unit of their slopes."""
        self.count, self.region, self.region_unit = 0, WIDE(0), WIDE(0)
        if not self.o["region_weight"] or min(self.size) < POOL * (SIDE - 1) + 1:
            return
        taken = np.arange(self.classes) if self.classes > 2 else np.array([1])
        counts = self.one_hot.sum(0)[taken]
        taken = taken[(counts > 0) & (counts < self.valid.sum())]
        if not len(taken):
            return

        def maps(values: Array) -> Array:
            return np.where(self.valid[:, None], values, 0)[:, taken].T.reshape(-1, *self.size)

        def of_pixels(values: Array) -> Array:
            result = np.zeros((len(self.y), self.classes), WIDE)
            result[:, taken] = values.reshape(len(taken), -1).T * self.valid[:, None]
            return result

        regions, rng = Regions(maps(self.one_hot), maps(self.softmax.p)), np.random.default_rng(len(self.y))
        self.count, self.region = regions.has_term.sum(), regions.value.sum()
        self.slopes, spread = of_pixels(regions.slopes), np.zeros(len(taken), WIDE)
        for _ in range(TRIALS):
            noise = rng.uniform(-1, 1, self.softmax.x.shape) * self.softmax.depth * self.kind.eps
            p = Softmax(self.softmax.x + noise, 0).p
            off = np.abs(Regions(maps(self.one_hot), maps(p), rng, self.kind.eps).slopes - regions.slopes)
            spread = np.maximum(spread, off.max(tuple(range(1, off.ndim))) / self.kind.eps)
        spread = np.broadcast_to(spread.reshape(-1, *[1] * len(self.size)), regions.slopes.shape)
        sums = SUMS / self.kind.eps  # in roundings of the dtype
        self.slope_sizes = np.abs(self.slopes) + of_pixels(spread + regions.sizes * sums)
        self.region_unit = self.count + np.abs(self.region) + regions.rounding.sum() * sums
        self.region_unit += self.by_logits(np.abs(self.slopes), self.softmax.depth).sum()

    def by_logits(self, slopes: Array, depth: Array | None = None) -> Array:
        """Return p_c Σ_k p_k (s_c - s_k), the slopes by logits for those by p; with ``depth`` the unit of size |s|."""
        p, others = self.softmax.p, 1 - np.eye(self.classes, dtype=WIDE)
        if depth is None:
            return p * (slopes * (p @ others) - (p * slopes) @ others)
        weights = (depth, p), (1, p * depth)
        return p * sum(factor * (slopes * (w @ others) + (w * slopes) @ others) for factor, w in weights)

    def gradient(self, ce: Array, edge: Array, region: Array) -> tuple[Array, Array, Array]:
        """Return the gradient [C, *S'], its unit and what may be lost.

        Args:
            ce: the factor of the cross-entropy of each pixel, [N].
            edge: that of the edge terms, before class weights, [N].
            region: that of the sum of the region terms.
        """
        o, p, depth = self.o, self.softmax.p, self.softmax.depth
        ce, edge = np.where(self.valid, ce, 0)[:, None], np.where(self.valid, edge * self.u, 0)
        own, whole = self.own[:, None] * self.one_hot, (self.own + self.all.sum())[:, None]
        result = ce * (whole * p - own - self.all)
        of_p, fixed = np.abs(ce) * whole * p, np.abs(ce) * (own + self.all)  # what adds up: as much as p is, and not
        mass, unit, lost = of_p + fixed, of_p * depth + fixed, np.zeros_like(p)
        for is_other, name in enumerate(("same_side_weight", "other_side_weight")):
            _, i, n, pi, may_be_0 = self.sides[is_other]
            arrives = edge[i] * WIDE(o[name]) * pi
            total, size, missing = (np.zeros_like(p) for _ in range(3))  # by neighbor and class of the center
            for sums, values in ((total, arrives), (size, np.abs(arrives)), (missing, np.abs(arrives) * may_be_0)):
                np.add.at(sums, (n, self.y[i]), values)
            if is_other:
                total, size, missing = total * p, size * p, missing * p
                to_rest = self.to_rest(np.stack([total, size, size * depth]))
                result += total - to_rest[0]
                of_edges, deep = size + to_rest[1], (size + to_rest[1]) * depth + to_rest[2]
            else:
                result += total.sum(1, keepdims=True) * p - total
                of_edges = size.sum(1, keepdims=True) * p
                mass, deep = mass + size, of_edges * depth + size
            mass, of_p, unit = mass + of_edges, of_p + of_edges, unit + self.condition * deep
            lost += missing.sum(1, keepdims=True)
        if self.count:
            of_regions = np.abs(region) * self.by_logits(np.abs(self.slopes), WIDE(0.5))
            result += region * self.by_logits(self.slopes)
            unit = unit + np.abs(region) * self.by_logits(self.slope_sizes, depth)
            mass, of_p = mass + of_regions, of_p + of_regions
        lost += np.where(p < self.least, of_p, 0)
        result, unit, mass, lost = map(self.of_logits, (result, unit, mass, lost))
        if self.upsampled:
            result, unit, lost = (along_axes(values, [m.T for m in self.matrices]) for values in (result, unit, lost))
            moved = [along_axes(mass, [m.T for m in matrices]) for matrices in (self.moved, self.matrices)]
            lost = lost + moved[0] - moved[1]
        return result, unit, lost

    def to_rest(self, values: Array) -> Array:
        """Return what passes from each class k [.., N, k] to the others, by their shares of 1 - p_k."""
        result = np.zeros_like(values)
        result[:, self.rows] = np.einsum("ank,nkc->anc", values[:, self.rows], self.shares)
        return result

    def of_logits(self, values: Array) -> Array:
        """Return values of pixels [N, C] as [C, *S], of one logit those of class 1."""
        values = np.where(self.valid[:, None], values, 0).T.reshape(-1, *self.size)
        return values[1:] if self.is_binary else values

    def weighted(self, name: str) -> Array:
        """Return a map of a term and its unit, times the weights of the pixels in its sum, [2, N]."""
        return self.v * (1 if name == "cross_entropy" else self.u * self.is_edge) * np.array(self.maps()[name])

    def maps(self) -> dict[str, tuple[Array, Array]]:
        """Return the maps of ``return_maps``, [N], with their units."""
        o, (same, *_), (other, *_) = self.o, *self.sides
        result = {"cross_entropy": (self.ce, self.ce_unit), "edge_mask": (self.is_edge, 0 * self.ce)}
        edge = WIDE(o["other_side_weight"]) * other + WIDE(o["same_side_weight"]) * same
        for name, mean in (("same_side", same), ("other_side", other), ("edge", edge)):
            most = max(1.0, o["other_side_weight"] + o["same_side_weight"])
            result[name] = mean, (most * self.floor + np.abs(mean)) * self.condition
        if o["decay"] is not None:
            ends = [min(r, s - 1) * d for r, s, d in zip(o["radius"], self.size, o["spacing"], strict=True)]
            limit = np.inf if self.o["distance"] is not None else 2 * math.hypot(*ends) * (1 + WIDE(1e-12))
            result["distance"] = np.where(self.distance > limit, np.inf, self.distance), 1 + np.abs(self.distance)
        return result


# -------------------------------------------------------------------------------------------------------------- the call


def solve(x: Array, y: Array, options: dict[str, Any], upstream: Array, dtype: Any) -> Answer:
    """Return what a call must return.

    Args:
        x: logits [B, C, *S'], in any dtype.
        y: labels [B, *S], with ``multilabel`` [B, C, *S].
        options: those of ``edge_aware_loss``, arrays for tensors, None for absent ones, radius and spacing per axis.
        upstream: the gradient that arrives at the loss.
        dtype: float32 or float64, in which the loss is computed that is compared.
    """
    tables = x.shape[1] if options["multilabel"] else 1
    many_x, many_y = (
        x.reshape(x.shape[0] * tables, x.shape[1] // tables, *x.shape[2:]),
        y.reshape(x.shape[0] * tables, *y.shape[2 - x.ndim :]),
    )
    images = [
        Image(
            many_x[k],
            many_y[k],
            options_of(options, k, tables, *(len(many_y), many_y[0].size), max(2, many_x.shape[1])),
            dtype,
        )
        for k in range(len(many_y) if y.size else 0)
    ]
    call = _Call(images, options, tables)
    gradient, is_read = np.zeros((3, *many_x.shape), WIDE), np.zeros(many_x.shape, bool)
    for k, image in enumerate(images):
        gradient[:, k], is_read[k] = image.gradient(*call.factors(k, upstream)), image.is_read
    result, unit, lost = gradient.reshape(3, *x.shape)
    maps = [image.maps() for image in images]
    of_pixels = (
        {name: tuple(np.reshape([m[name][j] for m in maps], y.shape) for j in (0, 1)) for name in maps[0]}
        if maps
        else {}
    )
    return Answer(
        loss=tuple(call.loss(y.shape)),
        terms={name: tuple(value) for name, value in call.terms.items()},
        maps=of_pixels,
        gradient=(result, unit),
        lost=lost,
        is_read=is_read.reshape(x.shape),
        is_rough=any(image.condition * np.finfo(dtype).eps > 1e-3 for image in images),
        has_regions=any(image.count for image in images),
    )


def options_of(options: dict[str, Any], k: int, tables: int, images: int, pixels: int, classes: int) -> dict[str, Any]:
    """Return the options of image k of B, or with labels per class of B · C, for which class weights are [C] or [C, 2]."""
    o = dict(options)
    for name in ("weight", "edge_class_weight"):
        if o[name] is not None and o["multilabel"]:
            o[name] = o[name][k % tables]
        o[name] = np.broadcast_to(1 if o[name] is None else o[name], classes).astype(WIDE)
    for name in ("pixel_weight", "distance"):
        if o[name] is not None:
            values = o[name].reshape(-1, pixels)
            o[name] = values[k if len(values) == images else k // tables].astype(WIDE)
    return o


class _Call:
    """The images of a call together: their sums [.., 2], values with their units, and what divides them."""

    def __init__(self, images: Sequence[Image], options: dict[str, Any], tables: int) -> None:
        self.images, self.o, self.tables = images, options, tables
        self.weights = np.array([(i.v * i.a[i.y]).sum() for i in images], WIDE).reshape(-1, tables).sum(1)  # W_b
        totals = self.weights.sum(), sum(((i.v * i.u)[i.is_edge].sum() for i in images), WIDE(0))
        totals = (1, 1) if options["reduction"] == "sum" else options["normalizer"] or totals
        self.per_w, self.per_e = (WIDE(1) / WIDE(total) if total else WIDE(0) for total in totals)
        regions = np.array([(i.region, i.region_unit, i.count) for i in images], WIDE).reshape(-1, tables, 3).sum(1)
        self.count = np.maximum(regions[:, 2], 1)
        self.regions = regions[:, :2] / self.count[:, None]  # R_b
        self.terms = {"region": (self.regions * self.weights[:, None]).sum(0) * self.per_w}
        for name in ("cross_entropy", "same_side", "other_side", "edge"):
            factor = self.per_w if name == "cross_entropy" else self.per_e
            self.terms[name] = factor * sum((i.weighted(name).sum(1) for i in images), np.zeros(2, WIDE))
        edges, valid = (sum(getattr(i, name).sum() for i in images) for name in ("is_edge", "valid"))
        self.terms["edge_fraction"] = np.full(2, edges / max(1, valid))

    def loss(self, shape: Sequence[int]) -> Array:
        """Return the loss and its unit, with reduction "none" as a map in the shape of the labels."""
        weights = {name: WIDE(self.o[f"{name}_weight"]) for name in ("edge", "region")}
        o, terms = self.o, self.terms
        if o["reduction"] != "none":
            return WIDE(o["ce_weight"]) * terms["cross_entropy"] + sum(w * terms[name] for name, w in weights.items())
        maps = []
        for k, image in enumerate(self.images):
            region = np.outer(self.regions[k // self.tables], image.v * image.a[image.y])
            off_edges = WIDE(o["ce_weight"]) * image.weighted("cross_entropy") + weights["region"] * region
            maps.append(off_edges + weights["edge"] * image.weighted("edge"))
        return np.reshape(np.moveaxis(maps, 1, 0), (2, *shape)) if maps else np.zeros((2, *shape))

    def factors(self, k: int, upstream: Array) -> tuple[Array, Array, Array]:
        """Return the factors of the terms of image k in what is differentiated."""
        o, image, b = self.o, self.images[k], k // self.tables
        if o["reduction"] == "none":
            arrives = upstream.reshape(len(self.images), -1).astype(WIDE)
            of_image = range(b * self.tables, (b + 1) * self.tables)
            region = sum((arrives[j] * i.v * i.a[i.y]).sum() for j, i in ((j, self.images[j]) for j in of_image))
            ce = edge = arrives[k] * image.v
        else:
            arrives = WIDE(upstream)
            ce, edge, region = (
                arrives * f for f in (image.v * self.per_w, image.v * self.per_e, self.weights[b] * self.per_w)
            )
        weights = o["ce_weight"], o["edge_weight"], o["region_weight"]
        ce, edge, region = (WIDE(w) * f for w, f in zip(weights, (ce, edge, region), strict=True))
        return ce, edge, region / self.count[b]
