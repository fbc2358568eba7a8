"""Softmax, interpolation, neighbors and edge terms of pixels in long doubles, from docs/loss.md alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
WIDE = np.longdouble
SUMS = WIDE(2.0**-52)  # the rounding of sums over regions and pixels, which are float64 for every dtype
LIMITS = {32: 16, 64: 64}  # roundings allowed, by the bits of a float type: sums of float64 are not wider than it is
HUGE, LEAST = WIDE("1e4000"), WIDE(-745)  # processors compute slowly with inf, and with what float64 cannot hold


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
    """Return the sizes of values, in float64 and finite: a factor may be 0."""
    return np.minimum(np.abs(values), np.finfo(float).max).astype(float)


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


def along_axes(x: Array, matrices: list[Array]) -> Array:
    """Multiply the last axes of an array by a matrix each."""
    for axis, matrix in enumerate(matrices, start=x.ndim - len(matrices)):
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


# ------------------------------------------------------------------------------------------------------- the edge terms


def window_pairs(size: tuple[int, ...], radius: list[int]) -> tuple[Array, Array]:
    """Return all pairs of pixels i, n within a window of each other, ordered by i."""
    i = n = np.zeros(1, np.int64)
    for length, r in zip(size, radius, strict=True):
        place = np.arange(length)
        a, b = np.nonzero(np.abs(place[:, None] - place) <= r)
        i, n = (np.add.outer(length * whole, part).ravel() for whole, part in ((i, a), (n, b)))
    order = np.argsort(i, kind="stable")
    return i[order], n[order]


def edge_distance(y: Array, valid: Array, spacing: list[float]) -> Array:
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
