"""The loss and its gradient in long doubles, from docs/loss.md alone.

Every result has a *unit*: by how much it may change if all that adds up in it is rounded once, relative to 1. A unit is
a sum without signs, so that an error over unit and over the rounding of a dtype is the number of its roundings. Units
and other sizes are float64: nothing of them cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any
WIDE = np.longdouble
NOISE, LEAST_KNOWN, POOL, SIDE = WIDE(5e-4), 0.1, 3, 3  # of the region term
SUMS = WIDE(2.0**-52)  # the rounding of its sums over regions, which are float64 for every dtype
HUGE, LEAST = WIDE("1e4000"), WIDE(-745)  # processors compute slowly with inf, and with what float64 cannot hold
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


def exp(x: Array) -> Array:
    """Return e^x, and 0 where it is less than the smallest number of float64."""
    return np.where(x < LEAST, 0, np.exp(np.maximum(x, LEAST)))


class Softmax:
    """Probabilities of pixels [P, C]; ``depth`` is 1 + the logit below the largest, which is what is rounded."""

    def __init__(self, x: Array, rounding: Array) -> None:
        """Compute them from logits, and by how much these are rounded already."""
        top = np.arange(len(x)), x.argmax(1)
        self.x, self.rounding, below = x, rounding, x - x[top][:, None]
        odds = exp(below)
        odds[top] = 0
        rest = odds.sum(1, keepdims=True)
        odds[top] = 1
        self.log_p, self.p = below - np.log1p(rest), odds / (1 + rest)
        self.depth = (1 - below + rounding).astype(float)

    def without(self, rows: Array, k: Array) -> tuple[Array, Array]:
        """Return log(1 - p) of the classes k [M] of pixels [M], and the shares in it of the other classes [M, C]."""
        at = np.arange(len(rows)), k
        x, among = self.x[rows, k], self.x[rows]
        among[at] = -HUGE
        most = among.max(1)
        sums = exp(among - most[:, None])
        total = sums.sum(1)
        p, log_rest = self.p[rows, k], (most - x) + np.log(total) + self.log_p[rows, k]
        return np.where(p < 0.5, np.log1p(-np.minimum(p, 0.5)), log_rest), sums / total[:, None]


def rough(values: Array) -> Array:
    """Return the sizes of values, in float64."""
    return np.abs(values).astype(float)


def of_others(values: Array) -> Array:
    """Return the sums over all other classes of values [..., C], none of which is a difference."""
    before, after = np.zeros_like(values), np.zeros_like(values)
    np.cumsum(values[..., :-1], -1, out=before[..., 1:])
    np.cumsum(values[..., :0:-1], -1, out=after[..., -2::-1])
    return before + after


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
    """Return the distance of pixels [I, *S] to the nearest valid one of another class; inf without one."""
    result = np.full(y.shape, HUGE)
    for k in np.unique(y):
        squares = np.where(valid & (y != k), 0, HUGE)
        for axis, s in enumerate(spacing, start=1):
            place = np.arange(y.shape[axis])
            moved = np.moveaxis(squares, axis, -1)[..., None, :] + (WIDE(s) * np.subtract.outer(place, place)) ** 2
            squares = np.moveaxis(moved.min(-1, initial=HUGE), -1, axis)
        np.copyto(result, squares, where=valid & (y == k))
    return np.where(result < HUGE, np.sqrt(result), np.inf)


def power_mean(t: Array, log_w: Array, i: Array, q: float) -> tuple[Array, Array, Array]:
    """Return the centers of pairs that are ordered by center i, -log M_q of each, and the shares π of the pairs."""
    is_first = np.diff(i, prepend=-1) != 0
    starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1

    def log_sum_and_shares(values: Array) -> tuple[Array, Array]:
        top = np.maximum.reduceat(values, starts)
        parts = exp(values - top[group])
        total = np.add.reduceat(parts, starts)
        return top + np.log(total), parts / total[group]

    log_w = log_w - np.maximum.reduceat(log_w, starts)[group]
    of_weights, plain = log_sum_and_shares(log_w)
    of_all, pi = log_sum_and_shares(log_w + WIDE(q) * t) if q else (of_weights, plain)
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
    """The averages of the pixels of an image, and its regions of averages."""

    def __init__(self, size: Sequence[int]) -> None:
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
    """The region terms of classes of images, [K], and their slopes by q, [K, N], in the form of docs/loss.md.

    ``rounding`` and ``sizes`` are what adds up for them in sums over regions.
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
        contrast = np.trace(qq, 0, 1, 2) / limit
        qq = qq + np.maximum(1, contrast)[:, None, None] * identity
        best = zq @ inverse(qq)[0]  # B
        precision, left = inverse(zz + identity - best @ zq.swapaxes(1, 2))
        back = best.swapaxes(1, 2) @ precision
        noise = (NOISE * np.trace(back @ best, 0, 1, 2) / limit)[:, None, None] * qs
        is_higher = contrast > 1 + WIDE(1e-12 if rng is None else -1e-12)  # roundings decide where it is 1
        of_residual, noise = -back @ (zs - best @ qs), is_higher[:, None, None] * noise
        self.value = (left + known - doubled) / scale
        slopes = of_residual + noise
        self.slopes = places.to_pixels(slopes / scale[:, None, None])
        parts = zs, qs, zz, qq, best, precision, back, of_residual, noise, scale
        zs, qs, zz, qq, best, precision, back, of_residual, noise, scale = map(rough, parts)
        summed = zz + best @ qq @ best.swapaxes(1, 2)
        self.rounding = ((precision * summed).sum((1, 2)) - d * float(np.log(NOISE))) / scale
        sizes = back @ (zs + best @ qs) + noise + self.rounding[:, None, None] * (of_residual + noise)
        self.sizes = places.to_pixels(sizes / scale[:, None, None])


# ----------------------------------------------------------------------------------------------------------- the images


class Images:
    """The images of a call, or of all their classes with labels per class: their terms and gradient.

    The pixels of all images are one axis [P], I times N. v, vu and w are their weights in the cross-entropy, in the
    edge terms, and in the first's denominator.
    """

    def __init__(self, x: Array, y: Array, o: dict[str, Any], dtype: Any, trials: int) -> None:
        """Compute the terms of logits [I, C, *S'] and labels [I, *S], with class weights [I, C] and values [P]."""
        self.o, self.kind, self.size = o, np.finfo(dtype), y.shape[1:]
        self.classes, self.is_binary = max(2, x.shape[1]), x.shape[1] == 1
        self.shape = len(y), math.prod(self.size)
        valid = (y != o["ignore_index"]) & (y >= 0) & (y < self.classes)
        self.valid, self.y = valid.ravel(), np.where(valid, y, 0).ravel()
        self.one_hot = np.eye(self.classes, dtype=WIDE)[self.y] * self.valid[:, None]
        self.image = np.repeat(np.arange(len(y)), self.shape[1])
        weight = o["weight"][self.image]
        self.v = np.where(self.valid, o["pixel_weight"], 0)
        self.w = self.v * o["weight"][self.image, self.y]
        self.softmax = Softmax(*self.interpolate(x, valid))
        smoothing, nll = WIDE(o["label_smoothing"]), -self.softmax.log_p
        self.spread = smoothing / self.classes * weight * self.valid[:, None]
        share = (1 - smoothing) * self.one_hot * weight + self.spread
        self.many = max(1, self.classes / FEW)
        unit = rough(share) * (1 + rough(nll) + self.softmax.rounding) * self.many
        self.share, self.maps = share, {"cross_entropy": ((share * nll).sum(1), unit.sum(1))}
        self.of_edges()
        self.vu = self.v * o["edge_class_weight"][self.image, self.y] * self.is_edge
        self.of_regions(trials)

    def interpolate(self, x: Array, valid: Array) -> tuple[Array, Array]:
        """Return the logits of all pixels [P, C], 0 where not valid, and by how much they are rounded, [P, 1]."""
        pairs = [*zip(x.shape[2:], self.size, strict=True)] if x.shape[2:] != self.size else []
        self.matrices, moved = ([interpolation(*pair)[k] for pair in pairs] for k in (0, 1))
        self.moved = [m + self.kind.eps * change for m, change in zip(self.matrices, moved, strict=True)]
        self.is_read = along_axes(valid.astype(WIDE), [(change > 0).T.astype(WIDE) for change in moved]) > 0
        x, rounding = np.where(self.is_read[:, None], x, 0).astype(WIDE), np.zeros((self.valid.size, 1))
        if pairs:
            sizes, off = (along_axes(np.abs(x), matrices) for matrices in (self.matrices, self.moved))
            rounding[:, 0] = (sizes + (off - sizes) / self.kind.eps).max(1).ravel()
        x = along_axes(x, self.matrices)
        x = np.concatenate([0 * x, x], 1) if self.is_binary else x
        return np.moveaxis(np.where(valid[:, None], x, 0), 1, -1).reshape(-1, self.classes), rounding

    def most(self, values: Array, image: Array) -> Array:
        """Return the largest size of some values of each image, for each of its pixels."""
        result = np.zeros(self.shape[0])
        np.maximum.at(result, image, rough(values))
        return result[self.image]

    def of_edges(self) -> None:
        """Compute the edge terms, and the shares by which their gradient arrives at the neighbors."""
        o, q, valid, y, first = self.o, self.o["power"], self.valid, self.y, np.arange(self.shape[0])[:, None]
        i, n = (np.ravel(self.shape[1] * first + pixels) for pixels in window_pairs(self.size, o["radius"]))
        i, n = (pixels[(i != n) & valid[i] & valid[n]] for pixels in (i, n))
        self.is_edge = np.zeros(len(valid), bool)
        self.is_edge[i[y[i] != y[n]]] = True
        i, n = (pixels[self.is_edge[i]] for pixels in (i, n))
        log_w = np.zeros(len(valid), WIDE)
        if o["decay"] is not None:
            distance = shown = o["distance"]
            if distance is None:
                shape = self.shape[0], *self.size
                distance = edge_distance(y.reshape(shape), valid.reshape(shape), o["spacing"]).ravel()
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
        largest, rounding = (
            self.most(t, self.image[i]),
            self.most(self.softmax.rounding[:, 0] * valid, self.image),
        )
        reach = math.prod(min(2 * r + 1, s) for r, s in zip(o["radius"], self.size, strict=True))
        self.condition = 1 + abs(q) * largest + self.most(log_w[n], self.image[n]) + rounding
        self.condition *= max(1, reach / NARROW)
        floor = 1 + (abs(q) * largest >= 1) / (abs(q) or 1)  # 1 / q magnifies the rounding of a logarithm
        weights = {"same_side": (1, 0), "other_side": (0, 1), "edge": (o["same_side_weight"], o["other_side_weight"])}
        for name, (a, b) in weights.items():
            value = WIDE(a) * self.sides[0][0] + WIDE(b) * self.sides[1][0]
            self.maps[name] = value, ((a + b) * floor + rough(value)) * self.condition
        self.maps["edge_mask"] = self.is_edge.astype(WIDE), 0 * self.v

    def side(self, i: Array, n: Array, t: Array, log_w: Array) -> tuple[Array, ...]:
        """Return a term [P], its pairs i, n, their shares, and which of these may be 0."""
        centers, mean, pi = power_mean(t, log_w[n], i, self.o["power"])
        value = np.zeros(len(log_w), WIDE)
        value[centers] = mean
        # They underflow before a weight multiplies them, or with power 1, the probability does.
        self.least, rounding = WIDE(self.kind.tiny) / self.kind.eps, 2 * self.classes * self.kind.eps
        is_under = (np.minimum(t, log_w[n]) < np.log(self.least)) & (self.o["power"] == 1)
        return value, i, n, pi, (is_under & (pi < rounding)) | (pi < self.least)

    def of_regions(self, trials: int) -> None:
        """Compute the region terms, their slopes, and by how much these change where probabilities are rounded."""
        shape = *self.shape, self.classes
        self.slopes, self.slope_sizes = np.zeros(self.softmax.p.shape, WIDE), np.zeros(self.softmax.p.shape)
        self.terms, self.region = np.zeros(shape[0], int), np.zeros((2, shape[0]), WIDE)
        counts = self.one_hot.reshape(shape).sum(1)
        may_have = (counts > 0) & (counts < counts.sum(1, keepdims=True))
        may_have[:, 0] &= self.classes > 2
        image, c = np.nonzero(may_have)
        if not self.o["region_weight"] or min(self.size) <= POOL * (SIDE - 1) or not len(c):
            return
        sees, eps, places = self.valid.reshape(self.shape)[image], self.kind.eps, Places(self.size)

        def regions(p: Array, rng: Any = None) -> Regions:
            z, q = (values.reshape(shape)[image, :, c] * sees for values in (self.one_hot, p))
            return Regions(places, z, q, rng, eps)

        right, moved, spread, rng = regions(self.softmax.p), 0, 0, np.random.default_rng(0)
        for _ in range(trials):
            noise = rng.uniform(-eps, eps, self.one_hot.shape) * self.softmax.depth
            trial = regions(Softmax(self.softmax.x + noise, 0).p, rng)
            moved = np.maximum(moved, np.abs(trial.value - right.value) / eps)
            spread = np.maximum(spread, np.abs((trial.slopes - right.slopes) * sees).max(1, keepdims=True) / eps)
        sums, slopes = float(SUMS / eps), right.slopes * sees
        self.slopes.reshape(shape)[image, :, c] = slopes
        self.slope_sizes.reshape(shape)[image, :, c] = np.abs(slopes) + (spread + right.sizes * sums) * sees
        np.add.at(self.terms, image, right.has_term)
        unit = right.has_term + np.abs(right.value) + moved + right.rounding * sums
        np.add.at(self.region, (slice(None), image), [right.value, unit])
        self.region[1] += self.unit_of_slopes(self.slopes).sum(1).reshape(self.shape).sum(1)

    def sum_by_logits(self, sizes: Array, *parts: tuple[Array, Array]) -> Array:
        """Return p_c Σ_k w_k (|s_c| + |s_k|) for slopes s by p and weights w of the classes, times a factor each."""
        sizes, p = rough(sizes), rough(self.softmax.p)
        return p * sum(f * (sizes * of_others(w) + of_others(w * sizes)) for f, w in parts)

    def unit_of_slopes(self, sizes: Array) -> Array:
        """Return by how much the slopes by logits change when p is rounded, for the sizes of slopes by p."""
        p, depth = rough(self.softmax.p), self.softmax.depth
        return self.sum_by_logits(sizes, (depth, p), (1, p * depth))

    def gradient_of_regions(self, factor: Array, size: Array) -> tuple[Array, Array]:
        """Return the gradient of the region terms [P, C], and what adds up in it, its unit, and what may be lost.

        The factor is a sum over pixels, of numbers with these sizes.
        """
        p, slopes, sizes = self.softmax.p, self.slopes, np.zeros((3, *self.softmax.p.shape))
        if self.terms.any():
            rounded = np.abs(slopes) + self.kind.eps * self.slope_sizes
            sizes[0] = self.sum_by_logits(rounded, (1, rough(p)))
            sizes[1] = self.unit_of_slopes(self.slope_sizes)
            sizes[2] = self.sum_by_logits(slopes, (1, rough(np.where(p < self.least, p, 0))))
            slopes = p * (slopes * of_others(p) - of_others(p * slopes))  # by logits: p_c Σ_k p_k (s_c - s_k)
        sizes = rough(factor) * sizes
        sizes[1] += size * rough(slopes)
        return factor * slopes, sizes

    def arrive(self, name: str, factor: Array) -> tuple[Array, Array]:
        """Return what arrives at neighbors for the class of the center, and its size, its unit, and what may be 0."""
        _, i, n, pi, may_be_0 = self.sides[name == "other_side"]
        result, place = np.zeros(self.softmax.p.shape, WIDE), n * self.classes + self.y[i]
        values = factor[i] * WIDE(self.o[f"{name}_weight"]) * pi
        np.add.at(result.reshape(-1), place, values)
        parts = np.stack([np.ones(len(i)), self.condition[i], may_be_0]) * rough(values)
        sizes = np.array([np.bincount(place, part, result.size) for part in parts], float)
        return result, sizes.reshape(3, *result.shape)

    def passed_on(self, values: Array, shares: Array) -> Array:
        """Return what passes from the classes behind edges to the other ones, by their shares of 1 - p, [P, C]."""
        result, (rows, starts) = np.zeros_like(values), np.unique(self.across[0], return_index=True)
        result[rows] = np.add.reduceat(values[self.across][:, None] * shares, starts)
        return result

    def gradient(self, ce: Array, edge: Array, region: Array, region_size: Array) -> list[Array]:
        """Return the gradient [I, C, *S'], its unit, what p - 1 adds to it, what may be lost, and what is read.

        The arguments are the factors of these terms of each pixel, the last that of the sum over classes, and the size
        of what adds up in it.
        """
        p, depth = self.softmax.p, self.softmax.depth
        of_region, region_sizes = self.gradient_of_regions(region[:, None], region_size[:, None])
        (toward, same), (away, other) = (self.arrive(name, edge) for name in ("same_side", "other_side"))
        toward, away = toward + ce[:, None] * self.share, away * p  # the weights of -log p, and what -log(1 - p) gives
        result = p * of_others(toward) - toward * of_others(p) + away - self.passed_on(away, self.rest) + of_region

        ce, p, shares = rough(ce)[:, None], rough(p), rough(self.rest)
        others, other = of_others(p), other * p
        same[:2] += ce * rough(self.share) * np.array([1, self.many])[:, None, None]
        size, unit = p * of_others(same[:2]) + other[:2] + [self.passed_on(part, shares) for part in other[:2]]
        kept = same[0] * others
        size += kept + region_sizes[0]
        # 1 - p of the label passes through a sum, a logarithm and an exponential, which are rounded too.
        unit = 4 * same[1] * of_others(p * depth) + unit * depth + self.passed_on(other[1] * depth, shares)
        unit += region_sizes[1] + ce * self.many * rough(self.spread) * (1 + depth)  # of smoothing, it is p - 1
        lost = np.where(self.softmax.p < self.least, size, 0) + np.where(others < self.least, kept, 0)
        lost += (same[2] + other[2]).sum(1, keepdims=True) + region_sizes[2]
        shape = self.shape[0], *self.size, self.classes
        result, unit, by_softmax, lost, mass = (
            np.moveaxis(np.where(self.valid[:, None], values, 0).reshape(shape), -1, 1)[:, int(self.is_binary) :]
            for values in (result, unit, same[1] * (1 + depth), lost, same[0] + size)
        )
        back, moved = ([m.T for m in matrices] for matrices in (self.matrices, self.moved))
        result, unit, by_softmax, lost = (along_axes(values, back) for values in (result, unit, by_softmax, lost))
        lost = lost + (along_axes(mass, moved) - along_axes(mass, back))  # what is interpolated to the next pixel
        return [result, unit, by_softmax, lost, np.broadcast_to(self.is_read[:, None], lost.shape)]


# ------------------------------------------------------------------------------------------------------------- the call


def solve(x: Array, y: Array, o: dict[str, Any], upstream: Array, trials: int) -> Answer:
    """Return what a call must return.

    ``o`` are all options of ``edge_aware_loss``, with arrays for tensors, and a radius and a spacing per axis;
    ``upstream`` is the gradient that arrives at the loss, in the float type that computes what is compared. Without
    ``trials``, which are slow, units of the region term are too small where its slopes change fast or jump.
    """
    i = make_images(x, y, o, upstream.dtype, trials)
    upstream = np.broadcast_to(upstream, y.shape).ravel()
    totals = (1, 1) if o["reduction"] == "sum" else o["normalizer"] or (i.w.sum(), i.vu.sum())
    per_w, per_e = (1 / WIDE(total) if total else WIDE(0) for total in totals)
    per = {"cross_entropy": per_w, "same_side": per_e, "other_side": per_e, "edge": per_e, "region": per_w}
    factors = {"cross_entropy": o["ce_weight"], "edge": o["edge_weight"], "region": o["region_weight"]}
    factors = {name: WIDE(f) * (1 if o["reduction"] == "none" else per[name]) for name, f in factors.items()}
    factor_ce, factor_edge = factors["cross_entropy"] * upstream * i.v, factors["edge"] * upstream * i.vu
    many = i.shape[0] // max(1, len(x))

    def per_image(values: Array) -> Array:
        """Return the sums of values [..., I] over the classes of an image, for each pixel."""
        return values.reshape(*values.shape[:-1], len(x), many).sum(-1).repeat(many * i.shape[1], -1)

    count = np.maximum(1, per_image(i.terms))
    of_images = [values.reshape(i.shape).sum(1) for values in (i.w * upstream, rough(i.w * upstream))]
    factor_region, region_size = (factors["region"] * per_image(values) / count for values in of_images)
    parts = {k: np.array(i.maps[k]) * (i.v if k == "cross_entropy" else i.vu) for k in per if k in i.maps}
    parts["region"] = per_image(i.region) / count * i.w
    loss = sum(factor * parts[name] for name, factor in factors.items())
    terms = {name: tuple(per[name] * values.sum(1)) for name, values in parts.items()}
    gradient, unit, *others = i.gradient(factor_ce, factor_edge, factor_region, rough(region_size))
    return Answer(
        tuple(loss.reshape(2, *y.shape) if o["reduction"] == "none" else loss.sum(1)),
        terms | {"edge_fraction": (i.is_edge.sum() / max(1, i.valid.sum()),) * 2},
        {name: (value.reshape(y.shape), unit.reshape(y.shape)) for name, (value, unit) in i.maps.items()},
        (gradient.reshape(x.shape), unit.reshape(x.shape)),
        *(values.reshape(x.shape) for values in others),
        is_rough=bool((i.condition * i.kind.eps > 1e-3).any()),
        has_regions=bool(i.terms.any()),
    )


def make_images(x: Array, y: Array, o: dict[str, Any], dtype: Any, trials: int) -> Images:
    """Return the images of a call; with labels per class, each class is one."""
    images = y.shape[: 1 + o["multilabel"]]
    classes, parts = 2 if o["multilabel"] else max(2, x.shape[1]), {}
    for name in ("weight", "edge_class_weight"):
        values = 1 if o[name] is None else o[name]
        values = values[:, None] if o["multilabel"] and np.ndim(values) == 1 else values  # of both labels of a class
        parts[name] = np.broadcast_to(values, (*images, classes)).reshape(-1, classes).astype(WIDE)
    for name in ("pixel_weight", "distance"):
        values = np.ones(y.shape) if o[name] is None and name == "pixel_weight" else o[name]
        if values is not None:
            values = values if values.ndim == y.ndim else values[:, None]  # of all classes
            parts[name] = np.broadcast_to(values, y.shape).ravel().astype(WIDE)
    if o["multilabel"]:
        x, y = x.reshape(math.prod(images), 1, *x.shape[2:]), y.reshape(math.prod(images), *y.shape[2:])
    return Images(x, y, o | parts, dtype, trials)
