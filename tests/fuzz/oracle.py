"""The loss and its gradient in long doubles, from docs/loss.md alone, one image after another.

Every result has a *unit*: by how much it may change if all that adds up in it is rounded once, relative to 1. A unit is
a sum without signs, so that an error over unit and over the rounding of a dtype is the number of its roundings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any
WIDE = np.longdouble
NOISE, LEAST_KNOWN, POOL, SIDE = WIDE(5e-4), 0.1, 3, 3  # of the region term
SUMS = WIDE(2.0**-52)  # the rounding of its sums over regions, which are float64 for every dtype
TRIALS = 6  # roundings of the logits that show how accurate its slopes can be, also where they jump
NARROW, FEW = 49, 16  # neighbors, classes: in sums over more, the roundings of nearly equal ones have the same sign


class Answer(NamedTuple):
    """What a call must return: pairs of a value and its unit, which is 0 where the value is exact."""

    loss: tuple[Array, Array]  # a number, or a map in the shape of the labels
    terms: dict[str, tuple[Array, Array]]
    maps: dict[str, tuple[Array, Array]]
    gradient: tuple[Array, Array]
    by_softmax: Array  # what a derivative p - 1 of the label adds to the unit of the gradient, which kernels don't form
    lost: Array  # the part of the gradient that may be missing: what underflows, or is interpolated to the next pixel
    is_read: Array  # the logits that the loss depends on; the gradient of others is exactly 0
    is_rough: bool  # roundings of the exponents decide which neighbor counts in the gradient
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
        self.log_p = below - np.log1p(odds.sum(1, keepdims=True))
        self.p, self.depth = np.exp(self.log_p), 1 - below + rounding

    def without(self, rows: Array, k: Array) -> tuple[Array, Array]:
        """Return log(1 - p) of the classes k [M] of pixels [M], and the shares in it of the other classes [M, C]."""
        at = np.arange(len(rows)), k
        x, among = self.x[rows, k], self.x[rows]
        among[at] = -np.inf
        most = among.max(1)
        sums = np.exp(among - most[:, None])
        total = sums.sum(1)
        p, log_rest = self.p[rows, k], (most - x) + np.log(total) + self.log_p[rows, k]
        return np.where(p < 0.5, np.log1p(-np.minimum(p, 0.5)), log_rest), sums / total[:, None]


def of_others(values: Array) -> Array:
    """Return the sums over all other classes of values [N, C], none of which is a difference."""
    zeros = np.zeros((len(values), 1), WIDE)
    before, after = (np.cumsum(np.hstack([zeros, v[:, :-1]]), 1) for v in (values, values[:, ::-1]))
    return before + after[:, ::-1]


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


def edge_distance(y: Array, valid: Array, size: Sequence[int], spacing: Sequence[float]) -> Array:
    """Return the distance of each pixel to the nearest valid one of another class, [N]; inf without one."""
    squares = np.zeros((1, 1), WIDE)
    for length, s in zip(size, spacing, strict=True):
        apart = (WIDE(s) * np.subtract.outer(np.arange(length), np.arange(length))) ** 2
        squares = (squares[:, None, :, None] + apart[:, None]).reshape(len(squares) * length, -1)
    is_other = (y[:, None] != y) & valid[:, None] & valid
    return np.sqrt(np.where(is_other, squares, np.inf).min(1, initial=np.inf))


def power_mean(t: Array, log_w: Array, i: Array, q: float) -> tuple[Array, Array, Array]:
    """Return the centers of pairs that are ordered by center i, -log M_q of each, and the shares π of the pairs."""
    is_first = np.diff(i, prepend=-1) != 0
    starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1

    def log_sum_exp(values: Array) -> Array:
        top = np.maximum.reduceat(values, starts)
        return top + np.log(np.add.reduceat(np.exp(values - top[group]), starts))

    exponents = (log_w - np.maximum.reduceat(log_w, starts)[group]) + np.multiply.outer([0, WIDE(q)], t)
    of_weights, of_all = map(log_sum_exp, exponents)
    plain, pi = (np.exp(e - total[group]) for e, total in zip(exponents, (of_weights, of_all), strict=True))
    value = np.add.reduceat(plain * t, starts)
    if q:  # where the exponents are small, 1 / q would magnify the rounding of a logarithm of 1 + something
        off = WIDE(q) * (t - value[group])
        is_near = np.maximum.reduceat(np.abs(off), starts) < 1
        small = np.log1p(np.add.reduceat(plain * np.expm1(np.where(is_near[group], off, 0)), starts))
        value = np.where(is_near, value + small / WIDE(q), (of_all - of_weights) / WIDE(q))
    return i[starts], -value, pi


# ------------------------------------------------------------------------------------------------------ the region term


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
    """Which average each pixel is in, one more for none, and which averages each region has, [d, N]."""

    def __init__(self, size: Sequence[int]) -> None:
        """Compute them for an image."""
        counts = [(n - 1) // POOL + 1 for n in size]
        self.none, self.values = math.prod(counts), POOL ** len(size)
        averages = np.arange(self.none).reshape(counts)
        self.regions = np.lib.stride_tricks.sliding_window_view(averages, (SIDE,) * len(size))
        self.regions = self.regions.reshape(-1, SIDE ** len(size)).T
        averages = np.pad(averages, [(0, 1)] * len(size), constant_values=self.none)
        self.averages = averages[np.ix_(*((np.arange(n) + POOL // 2) // POOL for n in size))].ravel()

    def average(self, pixels: Array) -> Array:
        """Return the averages of pixels [N, K], as [K, A]."""
        result = np.zeros((self.none + 1, pixels.shape[1]), WIDE)
        np.add.at(result, self.averages, pixels / self.values)
        return result.T

    def to_pixels(self, slopes: Array) -> Array:
        """Return slopes by regions [K, d, N] as those by pixels."""
        result = np.zeros((self.none + 1, len(slopes)), WIDE)
        np.add.at(result, self.regions, np.moveaxis(slopes, 0, -1) / self.values)
        result[self.none] = 0
        return result[self.averages]


class Regions:
    """The region terms of the classes of an image, [K], and their slopes by q, [N, K], in the form of docs/loss.md.

    ``rounding`` and ``sizes`` are what adds up for them in sums over regions.
    """

    def __init__(self, places: Places, z: Array, q: Array, rng: Any = None, eps: float = 0) -> None:
        """Compute them from z and q, 0 at ignored pixels; ``rng`` rounds averages of z - q, and sums over regions."""
        z, q, off = map(places.average, (z, q, np.abs(z - q)))
        q = q if rng is None else q + off * rng.uniform(-eps, eps, q.shape)
        zs, qs = ((a := values[:, places.regions]) - a.mean(2, keepdims=True) for values in (z, q))
        zz, qq, zq = (a @ b.swapaxes(1, 2) for a, b in ((zs, zs), (qs, qs), (zs, qs)))
        identity, d = NOISE * np.eye(zz.shape[1], dtype=WIDE), zz.shape[1]
        (_, known), (_, doubled) = inverse(zz + identity), inverse(2 * zz + identity)
        scale = 2 * known - doubled  # H - f
        self.has_term = scale > LEAST_KNOWN
        scale, limit = np.where(self.has_term, scale, np.inf), np.where(self.has_term, np.trace(zz, 0, 1, 2), 1)
        if rng is not None:  # those of q may come from z and r = z - q
            size = np.abs(zz) + np.abs(zz - zq - zq.swapaxes(1, 2) + qq)
            zz, qq, zq = (m + d * SUMS * s * rng.uniform(-1, 1, m.shape) for m, s in ((zz, zz), (qq, size), (zq, size)))
            zz, qq = ((m + m.swapaxes(1, 2)) / 2 for m in (zz, qq))
        contrast = np.trace(qq, 0, 1, 2) / limit
        qq = qq + np.maximum(1, contrast)[:, None, None] * identity
        best = zq @ inverse(qq)[0]  # B
        precision, left = inverse(zz + identity - best @ zq.swapaxes(1, 2))
        back = best.swapaxes(1, 2) @ precision
        noise = (NOISE * np.trace(back @ best, 0, 1, 2) / limit)[:, None, None] * qs
        is_higher = contrast > 1 + WIDE(1e-12 if rng is None else -1e-12)  # roundings decide where it is 1
        of_residual, noise = -back @ (zs - best @ qs), is_higher[:, None, None] * noise
        slopes = of_residual + noise
        self.value = (left + known - doubled) / scale
        summed = np.abs(zz) + np.abs(best) @ np.abs(qq) @ np.abs(best).swapaxes(1, 2)
        self.rounding = ((np.abs(precision) * summed).sum((1, 2)) - d * np.log(NOISE)) / scale
        sizes = np.abs(back) @ (np.abs(zs) + np.abs(best) @ np.abs(qs)) + np.abs(noise)
        sizes = sizes + self.rounding[:, None, None] * (np.abs(of_residual) + np.abs(noise))
        self.slopes, self.sizes = (places.to_pixels(v / scale[:, None, None]) for v in (slopes, sizes))


# ------------------------------------------------------------------------------------------------------------ the image


class Image:
    """An image, or a class of one with labels per class: its terms, and their gradient once their factors are known.

    v, vu and w are the weights of the pixels in the cross-entropy, in the edge terms, and in the first's denominator.
    """

    def __init__(self, x: Array, y: Array, o: dict[str, Any], dtype: Any) -> None:
        """Compute the terms of logits [C, *S'] and labels [*S], with the weights and the distance of this image."""
        self.o, self.kind, self.size = o, np.finfo(dtype), y.shape
        self.classes, self.is_binary = max(2, len(x)), len(x) == 1
        valid = (y != o["ignore_index"]) & (y >= 0) & (y < self.classes)
        self.valid, self.y = valid.ravel(), np.where(valid, y, 0).ravel()
        self.one_hot = np.eye(self.classes, dtype=WIDE)[self.y] * self.valid[:, None]
        self.v = np.where(self.valid, o["pixel_weight"], 0)
        self.w = self.v * o["weight"][self.y]
        self.softmax = Softmax(*self.interpolate(x, valid))
        smoothing, nll = WIDE(o["label_smoothing"]), -self.softmax.log_p
        self.spread = smoothing / self.classes * o["weight"] * self.valid[:, None]
        share = (1 - smoothing) * self.one_hot * o["weight"] + self.spread
        self.many = max(1, self.classes / FEW)
        unit = share * (1 + nll + self.softmax.rounding) * self.many
        self.share, self.maps = share, {"cross_entropy": ((share * nll).sum(1), unit.sum(1))}
        self.of_edges()
        self.vu = self.v * o["edge_class_weight"][self.y] * self.is_edge
        self.of_regions()

    def interpolate(self, x: Array, valid: Array) -> tuple[Array, Array]:
        """Return the logits of all pixels [N, C], 0 where not valid, and by how much they are rounded, [N, 1]."""
        pairs = [*zip(x.shape[1:], self.size, strict=True)] if x.shape[1:] != self.size else []
        self.matrices, moved = ([interpolation(*pair)[k] for pair in pairs] for k in (0, 1))
        self.moved = [m + self.kind.eps * change for m, change in zip(self.matrices, moved, strict=True)]
        self.is_read = along_axes(valid.astype(WIDE), [(change > 0).T.astype(WIDE) for change in moved]) > 0
        x = np.where(self.is_read, x, 0).astype(WIDE)
        sizes, off = (along_axes(np.abs(x), matrices) for matrices in (self.matrices, self.moved))
        rounding = (sizes + (off - sizes) / self.kind.eps).max(0).reshape(-1, 1) * bool(pairs)
        x = along_axes(x, self.matrices)
        x = np.concatenate([0 * x, x]) if self.is_binary else x
        return np.where(valid, x, 0).reshape(self.classes, -1).T, rounding

    def of_edges(self) -> None:
        """Compute the edge terms, and the shares by which their gradient arrives at the neighbors."""
        o, q, valid, y = self.o, self.o["power"], self.valid, self.y
        i, n = window_pairs(self.size, o["radius"])
        i, n = (pixels[(i != n) & valid[i] & valid[n]] for pixels in (i, n))
        self.is_edge = np.zeros(len(valid), bool)
        self.is_edge[i[y[i] != y[n]]] = True
        i, n = (pixels[self.is_edge[i]] for pixels in (i, n))
        log_w = np.zeros(len(valid), WIDE)
        if o["decay"] is not None:
            distance = shown = o["distance"]
            if distance is None:
                distance = edge_distance(y, valid, self.size, o["spacing"])
                ends = [min(r, s - 1) * d for r, s, d in zip(o["radius"], self.size, o["spacing"], strict=True)]
                shown = np.where(distance > 2 * math.hypot(*ends) * (1 + WIDE(1e-12)), np.inf, distance)
            log_w, self.maps["distance"] = -distance / WIDE(o["decay"]), (shown, 1 + np.abs(shown))
        is_other = y[i] != y[n]
        keys, place = np.unique((n * self.classes + y[i])[is_other], return_inverse=True)
        self.across = divmod(keys, self.classes)  # pixels that an edge is next to, and the classes behind it
        log_rest, self.rest = self.softmax.without(*self.across)
        t = self.softmax.log_p[n, y[i]]
        t[is_other] = log_rest[place]
        self.sides = [self.side(i[side], n[side], t[side], log_w) for side in (~is_other, is_other)]
        largest, rounding = np.abs(t).max(initial=0), (self.softmax.rounding[:, 0] * valid).max(initial=0)
        reach = math.prod(min(2 * r + 1, s) for r, s in zip(o["radius"], self.size, strict=True))
        self.condition = 1 + abs(q) * largest + (-log_w[n]).max(initial=0) + rounding
        self.condition *= max(1, reach / NARROW)
        floor = 1 + (1 / abs(q) if abs(q) * largest >= 1 else 0)  # 1 / q magnifies the rounding of a logarithm
        weights = {"same_side": (1, 0), "other_side": (0, 1), "edge": (o["same_side_weight"], o["other_side_weight"])}
        for name, (a, b) in weights.items():
            value = WIDE(a) * self.sides[0][0] + WIDE(b) * self.sides[1][0]
            self.maps[name] = value, ((a + b) * floor + np.abs(value)) * self.condition
        self.maps["edge_mask"] = self.is_edge, 0 * self.v

    def side(self, i: Array, n: Array, t: Array, log_w: Array) -> tuple[Array, ...]:
        """Return a term [N], its pairs i, n, their shares, and which of these may be 0."""
        centers, mean, pi = power_mean(t, log_w[n], i, self.o["power"])
        value = np.zeros(len(log_w), WIDE)
        value[centers] = mean
        # They underflow before a weight multiplies them, or with power 1, the probability does.
        self.least, rounding = WIDE(self.kind.tiny) / self.kind.eps, 2 * self.classes * self.kind.eps
        is_under = (np.minimum(t, log_w[n]) < np.log(self.least)) & (self.o["power"] == 1)
        return value, i, n, pi, (is_under & (pi < rounding)) | (pi < self.least)

    def of_regions(self) -> None:
        """Compute the region terms, their slopes, and by how much these change where probabilities are rounded."""
        self.count, self.region, self.slopes = 0, np.zeros(2, WIDE), np.zeros_like(self.softmax.p)
        self.slope_sizes, counts = self.slopes, self.one_hot.sum(0)
        may_have = (counts > 0) & (counts < self.valid.sum()) & ((np.arange(self.classes) == 1) | (self.classes > 2))
        if not self.o["region_weight"] or min(self.size) <= POOL * (SIDE - 1) or not may_have.any():
            return
        eps, rng, places, sees = self.kind.eps, np.random.default_rng(0), Places(self.size), self.valid[:, None]
        right, moved, spread = Regions(places, self.one_hot, self.softmax.p * sees), 0, 0
        for _ in range(TRIALS):
            noise = rng.uniform(-eps, eps, self.one_hot.shape) * self.softmax.depth
            p = Softmax(self.softmax.x + noise, 0).p * sees
            trial = Regions(places, self.one_hot, p, rng, eps)
            moved = np.maximum(moved, np.abs(trial.value - right.value) / eps)
            spread = np.maximum(spread, np.abs((trial.slopes - right.slopes) * sees).max(0) / eps)
        has_term = right.has_term & may_have
        value, rounding, sums = right.value[has_term], right.rounding[has_term].sum(), SUMS / eps
        self.count, self.slopes = len(value), right.slopes * has_term * sees
        self.slope_sizes = np.abs(self.slopes) + (spread + right.sizes * sums) * has_term * sees
        unit = self.count + np.abs(value).sum() + moved[has_term].sum() + rounding * sums
        parts = (self.softmax.depth, self.softmax.p), (1, self.softmax.p * self.softmax.depth)
        unit += self.sum_by_logits(np.abs(self.slopes), *parts).sum()
        self.region = np.array([value.sum(), unit])

    def by_logits(self, slopes: Array) -> Array:
        """Return p_c Σ_k p_k (s_c - s_k), the slopes by logits for those by p."""
        p = self.softmax.p
        return p * (slopes * of_others(p) - of_others(p * slopes))

    def sum_by_logits(self, sizes: Array, *parts: tuple[Array, Array]) -> Array:
        """Return p_c Σ_k w_k (|s_c| + |s_k|) for sizes |s| and weights w of the classes, times a factor each."""
        return self.softmax.p * sum(f * (sizes * of_others(w) + of_others(w * sizes)) for f, w in parts)

    def arrive(self, name: str, factor: Array) -> tuple[Array, Array]:
        """Return what arrives at each neighbor for the class of the center, and what of it may be 0.

        The first is a value, what adds up in it without signs, and its unit, [3, N, C].
        """
        _, i, n, pi, may_be_0 = self.sides[name == "other_side"]
        values = factor[i] * WIDE(self.o[f"{name}_weight"]) * pi
        result, size = np.zeros((4, *self.softmax.p.shape), WIDE), np.abs(values)
        np.add.at(result, (slice(None), n, self.y[i]), [values, size, size * self.condition, size * may_be_0])
        return result[:3], result[3]

    def gradient(self, ce: Array, edge: Array, region: Array) -> list[Array]:
        """Return the gradient [C, *S'], its unit, what p - 1 adds to it, what may be lost, and whether logits are read.

        ``ce`` and ``edge`` are the factors of these terms of each pixel, ``region`` that of the sum over classes.
        """
        p, depth, size = self.softmax.p, self.softmax.depth, np.abs(region)
        (toward, same_0), (away, other_0) = (self.arrive(name, edge) for name in ("same_side", "other_side"))
        toward += self.share * np.stack([ce, np.abs(ce), np.abs(ce) * self.many])[..., None]  # weights of -log p
        away, other_0 = away * p, other_0 * p  # of -log(1 - p)
        rest = np.zeros((4, *p.shape), WIDE)  # what passes to the other classes, by their shares of 1 - p
        passing = np.stack([*away, away[2] * depth])[(slice(None), *self.across)]
        rows, starts = np.unique(self.across[0], return_index=True)
        rest[:, rows] = np.add.reduceat(passing[..., None] * self.rest, starts, 1) if len(rows) else 0
        others = of_others(p)
        through, kept = p * np.stack([*map(of_others, toward)]), toward * others
        result = through[0] - kept[0] + away[0] - rest[0] + region * self.by_logits(self.slopes)
        slopes = np.abs(self.slopes) + self.kind.eps * self.slope_sizes
        of_p = through[1] + kept[1] + away[1] + rest[1] + size * self.sum_by_logits(slopes, (1, p))
        # 1 - p of the label passes through a sum, a logarithm and an exponential, which are rounded too.
        unit = 4 * toward[2] * of_others(p * depth) + (through[2] + away[2] + rest[2]) * depth + rest[3]
        unit += size * self.sum_by_logits(self.slope_sizes, (depth, p), (1, p * depth))
        unit += np.abs(ce)[:, None] * self.many * self.spread * (1 + depth)  # of smoothing, it is p - 1
        lost = np.where(p < self.least, of_p, 0) + np.where(others < self.least, kept[1], 0)
        lost += (same_0 + other_0).sum(1, keepdims=True)
        lost += size * self.sum_by_logits(np.abs(self.slopes), (1, np.where(p < self.least, p, 0)))
        result, unit, by_softmax, lost, mass = (
            np.where(self.valid, values.T, 0).reshape(-1, *self.size)[int(self.is_binary) :]
            for values in (result, unit, toward[2] * (1 + depth), lost, toward[1] + of_p)
        )
        back, moved = ([m.T for m in matrices] for matrices in (self.matrices, self.moved))
        result, unit, by_softmax, lost = (along_axes(values, back) for values in (result, unit, by_softmax, lost))
        lost += along_axes(mass, moved) - along_axes(mass, back)  # what is interpolated to the next pixel
        return [result, unit, by_softmax, lost, np.broadcast_to(self.is_read, lost.shape)]


# ------------------------------------------------------------------------------------------------------------- the call


def solve(x: Array, y: Array, o: dict[str, Any], upstream: Array, dtype: Any) -> Answer:
    """Return what a call must return.

    ``o`` are all options of ``edge_aware_loss``, with arrays for tensors, and a radius and a spacing per axis;
    ``upstream`` is the gradient that arrives at the loss, and ``dtype`` the float type that computes what is compared.
    """
    batch = make_images(x, y, o, dtype)
    images = [*itertools.chain(*batch)]
    upstream = np.broadcast_to(upstream, y.shape).reshape(max(1, len(images)), -1)
    totals = sum(i.w.sum() for i in images), sum(i.vu.sum() for i in images)
    totals = (1, 1) if o["reduction"] == "sum" else o["normalizer"] or totals
    per_w, per_e = (1 / WIDE(total) if total else WIDE(0) for total in totals)
    per = {"cross_entropy": per_w, "same_side": per_e, "other_side": per_e, "edge": per_e, "region": per_w}
    terms, losses, gradients = {name: np.zeros(2, WIDE) for name in per}, [], []
    factors = {"cross_entropy": WIDE(o["ce_weight"])} | {k: WIDE(o[f"{k}_weight"]) for k in ("edge", "region")}
    factors = {name: f * (1 if o["reduction"] == "none" else per[name]) for name, f in factors.items()}
    for row in batch:
        count, arriving = max(1, sum(i.count for i in row)), upstream[len(losses) :][: len(row)]
        region = sum(i.region for i in row) / count
        of_region = factors["region"] * sum((i.w * up).sum() for i, up in zip(row, arriving, strict=True)) / count
        for i, up in zip(row, arriving, strict=True):
            parts = {k: np.array(i.maps[k]) * (i.v if k == "cross_entropy" else i.vu) for k in per if k in i.maps}
            parts["region"] = np.outer(region, i.w)
            terms = {name: total + per[name] * parts[name].sum(1) for name, total in terms.items()}
            losses.append(sum(factor * parts[name] for name, factor in factors.items()))
            gradients.append(i.gradient(factors["cross_entropy"] * up * i.v, factors["edge"] * up * i.vu, of_region))
    loss, (gradient, unit, by_softmax, lost, is_read) = joined(losses, y.shape)[:2], joined(gradients, x.shape)
    edges, valid = sum(i.is_edge.sum() for i in images), sum(i.valid.sum() for i in images)
    terms["edge_fraction"] = np.full(2, edges / max(1, valid))
    maps = {name: joined([i.maps[name] for i in images], y.shape) for name in (images[0].maps if images else ())}
    return Answer(
        loss=tuple(loss if o["reduction"] == "none" else loss.reshape(2, -1).sum(1)),
        terms={name: tuple(value) for name, value in terms.items()},
        maps={name: tuple(values) for name, values in maps.items()},
        gradient=(gradient, unit),
        by_softmax=by_softmax,
        lost=lost,
        is_read=is_read > 0,
        is_rough=any(i.condition * np.finfo(dtype).eps > 1e-3 for i in images),
        has_regions=any(i.count for i in images),
    )


def joined(parts: list[Any], shape: Sequence[int]) -> Array:
    """Return several arrays of each image as those of the call; zeros without images."""
    return np.moveaxis(np.array(parts), 1, 0).reshape(-1, *shape) if parts else np.zeros((5, *shape), WIDE)


def make_images(x: Array, y: Array, o: dict[str, Any], dtype: Any) -> list[list[Image]]:
    """Return the images of a call, those of the classes of one image in a row; none without pixels."""
    multilabel, classes = o["multilabel"], 2 if o["multilabel"] else max(2, x.shape[1])

    def image(*place: int) -> Image:
        parts = {}
        for name in ("pixel_weight", "distance"):  # with multilabel, of each class or of all
            values = np.ones(y.shape) if o[name] is None and name == "pixel_weight" else o[name]
            if values is not None:
                parts[name] = values[place if values.ndim == y.ndim else place[0]].ravel().astype(WIDE)
        for name in ("weight", "edge_class_weight"):
            values = 1 if o[name] is None else o[name][place[1]] if multilabel else o[name]
            parts[name] = np.broadcast_to(values, classes).astype(WIDE)
        return Image(x[place][None] if multilabel else x[place], y[place], o | parts, dtype)

    batch = range(len(x) if y.size else 0)
    return [[image(b, c) for c in range(x.shape[1])] if multilabel else [image(b)] for b in batch]
