"""The loss and its gradient in long doubles, from docs/loss.md alone: dense matrices over all pairs of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = Any
WIDE = np.longdouble


@dataclass
class Problem:
    """A call of the loss; arrays are of NumPy, in any dtype.

    Attributes:
        x: logits [B, C, *S'].
        y: labels [B, *S], of a multilabel call [B, C, *S].
        options: scalar options of ``edge_aware_loss``; radius and spacing per axis.
        tensors: weight [C], edge_class_weight [C], pixel_weight [B, *S], distance [B, *S], where given; of a multilabel
            call as it takes them.
        normalizer: (W, E), where given.
        upstream: the gradient of the map with ``reduction="none"``, in the shape of the labels.
        dtype: float32 or float64, in which the loss is computed that is compared.
    """

    x: Array
    y: Array
    options: dict[str, Any]
    tensors: dict[str, Array] = field(default_factory=dict)
    normalizer: tuple[float, float] | None = None
    upstream: Array = None
    dtype: Any = np.float64


@dataclass
class Answer:
    """What the loss must be.

    Attributes:
        loss: a number, or a map in the shape of the labels.
        gradient: [B, C, *S'].
        maps: by name, in the shape of the labels.
        scale: per pixel the sum of what adds up in the gradient of its logits, without signs, [B, 1, *S'], of a
            multilabel call [B, C, *S'].
        slack: the part of it that may be lost, or arrive at the next pixel, in the arithmetic of the problem's dtype.
        condition: by how much rounding of an input may grow: 1 + |q| max |t| + max d / decay.
        floor: 1 / |q| where exponents q t reach 1, and a mean is computed by its logarithm, else 0: rounding of the
            logarithm grows by as much.
        top_gap: the least distance between the two largest logits of a pixel.
    """

    loss: Array
    gradient: Array
    maps: dict[str, Array]
    scale: Array
    slack: Array
    condition: float
    floor: float
    top_gap: float


def log_sum_exp(values: Array, where: Array) -> Array:
    """Return log Σ e^v over the last axis where the mask is set; -inf for an empty sum."""
    top = values.max(-1, keepdims=True, initial=-np.inf, where=where)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return top[..., 0] + np.log(of_pairs(np.exp, values - top, where).sum(-1))


def of_pairs(function: Any, values: Array, where: Array) -> Array:
    """Return a function of the values where the mask is set, 0 elsewhere: few pixels are neighbors."""
    return function(values, out=np.zeros_like(values), where=where)


class Softmax:
    """log p, log(1 - p) and the shares of the other classes, of pixels [N, C]."""

    def __init__(self, x: Array) -> None:
        """Compute them."""
        n, classes = x.shape
        top = x.argmax(1)
        m = x[np.arange(n), top]
        others = ~np.eye(classes, dtype=bool)
        rest = np.where(others[top], np.exp(x - m[:, None]), 0).sum(1)  # Σ e^(x - m) but for the top itself
        self.log_p = (x - m[:, None]) - np.log1p(rest)[:, None]
        self.p = np.exp(self.log_p)
        among = np.where(others[None], x[:, None, :], -np.inf)  # [N, k, c]
        most = among.max(2)
        sums = np.exp(among - most[..., None])
        total = sums.sum(2)
        self.shares = sums / total[..., None]
        large = (most - m[:, None]) + np.log(total) - np.log1p(rest)[:, None]
        self.log_other = np.where(self.p < 0.5, np.log1p(-np.minimum(self.p, 0.5)), large)


def power_mean(t: Array, log_w: Array, side: Array, q: float) -> tuple[Array, Array]:
    """Return -log M_q and π of the pairs [R, N] on a side; both 0 where it is empty."""
    nearest = log_w.max(1, keepdims=True, initial=-np.inf, where=side)
    log_w = log_w - np.where(np.isfinite(nearest), nearest, 0)
    t = np.where(side, t, 0)
    exponent = log_w + WIDE(q) * t
    log_sum = log_sum_exp(exponent, side)
    empty = ~side.any(1)
    pi = of_pairs(np.exp, exponent - np.where(empty, 0, log_sum)[:, None], side)
    plain = of_pairs(np.exp, log_w, side)
    plain = plain / np.where(empty, 1, plain.sum(1))[:, None]
    mean = (plain * t).sum(1)
    if q == 0:
        return np.where(empty, 0, -mean), pi
    # Where the exponents are small, 1 / q would magnify the rounding of a logarithm of 1 + something.
    off = np.where(side, WIDE(q) * (t - mean[:, None]), 0)
    near = np.abs(off).max(1) < 1
    small = np.log1p((plain * of_pairs(np.expm1, off, side & near[:, None])).sum(1))
    large = np.where(empty, 0, log_sum) - np.where(empty, 0, log_sum_exp(log_w, side))
    value = -np.where(near, mean + small / WIDE(q), large / WIDE(q))
    return np.where(empty, 0, value), pi


def interpolation(low: int, high: int) -> Array:
    """Return the matrix [high, low] of linear interpolation with align_corners=False."""
    matrix = np.zeros((high, low), dtype=WIDE)
    for i in range(high):
        at = max((WIDE(i) + WIDE(0.5)) * low / high - WIDE(0.5), WIDE(0))
        first = min(int(at), low - 1)
        matrix[i, first] += 1 - (at - first)
        matrix[i, min(first + 1, low - 1)] += at - first
    return matrix


def position_rounding(low: int, high: int, eps: float) -> Array:
    """Return by how much the elements of ``interpolation`` change where positions are rounded, [high, low].

    A position is (i + 1/2) · low / high - 1/2, and at most two roundings of its first part move it. Beyond an integer,
    which no rounding knows from its neighbors, it belongs to another pair of pixels.
    """
    at = np.maximum((np.arange(high, dtype=WIDE) + WIDE(0.5)) * low / high - WIDE(0.5), 0)[:, None]
    return np.where(np.abs(np.arange(low) - at) < 1 + WIDE(1e-9), 2 * eps * (at + WIDE(0.5)), 0)


def along_axes(x: Array, matrices: list[Array]) -> Array:
    """Multiply the spatial axes of [B, C, *S] by a matrix each."""
    for axis, matrix in enumerate(matrices, start=2):
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


class Pairs:
    """Which pixels are neighbors, and how far they are from the nearest one of another class."""

    def __init__(self, y: Array, valid: Array, radius: list[int], spacing: list[float]) -> None:
        """Compute them, flat over the batch."""
        size = y.shape[1:]
        place = np.stack(np.meshgrid(*map(np.arange, y.shape), indexing="ij"), -1).reshape(-1, y.ndim)
        apart = np.abs(place[:, None] - place[None])
        flat, ok = y.ravel(), valid.ravel()
        both = (apart[..., 0] == 0) & ok[:, None] & ok[None]
        self.differ = flat[:, None] != flat[None]
        within = (apart[..., 1:] <= np.array([min(r, 2**31) for r in radius])).all(-1)
        self.neighbor = both & within & ~np.eye(len(flat), dtype=bool)
        lengths = np.sqrt((apart[..., 1:].astype(WIDE) * np.array(spacing, dtype=WIDE)) ** 2 @ np.ones(len(size), WIDE))
        self.distance = np.where(both & self.differ, lengths, np.inf).min(1, initial=np.inf)
        ends = [min(r, s - 1) for r, s in zip(radius, size, strict=True)]
        self.limit = 2 * math.hypot(*(e * s for e, s in zip(ends, spacing, strict=True)))


def solve(problems: Sequence[Problem]) -> list[Answer]:
    """Return the loss, its maps and its gradient, of calls with the same logits, labels and neighbors.

    They differ in weights, smoothing, reduction and normalizer alone. A multilabel call is one binary call per class,
    which share their denominators.
    """
    first, parts = problems[0], [problems]
    if first.options["multilabel"]:
        parts = [[of_class(problem, c) for problem in problems] for c in range(first.x.shape[1])]
    images = [_Images(part[0]) for part in parts]

    def answer(index: int) -> Answer:
        calls = [_Call(part[index], image.terms) for part, image in zip(parts, images, strict=True)]
        totals = problems[index].normalizer
        if totals is None:
            totals = tuple(np.sum([call.totals() for call in calls], 0))
        answers = [image.answer(call, totals) for image, call in zip(images, calls, strict=True)]
        return together(answers) if first.options["multilabel"] else answers[0]

    return [answer(index) for index in range(len(problems))]


def of_class(problem: Problem, c: int) -> Problem:
    """Return the binary problem of a class of a multilabel one; its labels have weights of their own."""
    tensors = {}
    for name, values in problem.tensors.items():
        if name in ("weight", "edge_class_weight"):
            tensors[name] = np.array([values[c], values[c]]) if values.ndim == 1 else values[c]
        else:
            tensors[name] = values[:, c] if values.ndim == problem.y.ndim else values
    parts = {"x": problem.x[:, c : c + 1], "y": problem.y[:, c], "upstream": problem.upstream[:, c], "tensors": tensors}
    return replace(problem, **parts)


def together(answers: Sequence[Answer]) -> Answer:
    """Return the answer to a multilabel problem, from those of its classes."""
    losses = [answer.loss for answer in answers]
    joined = {
        name: np.concatenate([getattr(answer, name) for answer in answers], 1)
        for name in ("gradient", "scale", "slack")
    }
    return Answer(
        loss=np.stack(losses, 1) if losses[0].ndim else np.sum(losses),
        maps={name: np.stack([answer.maps[name] for answer in answers], 1) for name in answers[0].maps},
        condition=max(answer.condition for answer in answers),
        floor=max(answer.floor for answer in answers),
        top_gap=min(answer.top_gap for answer in answers),
        **joined,
    )


class _Images:
    """Logits, which may be of lower resolution than the labels, and what is equal in all calls with them."""

    def __init__(self, problem: Problem) -> None:
        o, self.y, self.dtype = problem.options, problem.y.astype(np.int64), problem.dtype
        x = problem.x.astype(WIDE)
        classes = max(2, x.shape[1])
        self.binary, self.sizes = x.shape[1] == 1, list(zip(x.shape[2:], self.y.shape[1:], strict=True))
        valid = (self.y != o["ignore_index"]) & (self.y >= 0) & (self.y < classes)
        self.matrices = [interpolation(*size) for size in self.sizes]
        self.upsampled = x.shape[2:] != self.y.shape[1:]
        high = along_axes(x, self.matrices) if self.upsampled else x
        if self.binary:
            high = np.concatenate([np.zeros_like(high), high], 1)
        flat = np.where(valid.ravel()[:, None], np.moveaxis(high, 1, -1).reshape(-1, classes), 0)
        self.terms = _Terms(problem, Softmax(flat), np.where(valid, self.y, 0).ravel(), valid)
        ordered = np.sort(flat, 1)
        self.top_gap = float((ordered[:, -1] - ordered[:, -2])[valid.ravel()].min(initial=np.inf))

    def image(self, values: Array, matrices: list[Array] | None = None) -> Array:
        """Return values of pixels [N] or [N, C] in the shape of the logits; interpolation adds them up."""
        first = 1 if self.binary and values.ndim == 2 else 0
        values = np.moveaxis(values.reshape(*self.y.shape, -1), -1, 1)[:, first:]
        return along_axes(values, [m.T for m in matrices or self.matrices]) if self.upsampled else values

    def answer(self, call: _Call, totals: Sequence[Any]) -> Answer:
        """Return the answer to a call with the given denominators."""
        loss, factors = call.loss(*map(WIDE, totals))
        gradient, scale, lost = call.gradient(factors)
        slack = self.image(lost)
        if self.upsampled:
            eps = np.finfo(self.dtype).eps
            moved = [m + position_rounding(*s, eps) for m, s in zip(self.matrices, self.sizes, strict=True)]
            slack = slack + self.image(scale, moved) - self.image(scale)
        maps = {name: values.reshape(self.y.shape) for name, values in call.maps.items()}
        conditions = self.terms.condition, self.terms.floor, self.top_gap
        return Answer(loss, self.image(gradient), maps, self.image(scale), slack, *conditions)


class _Terms:
    """What does not depend on weights: the power means of the pixels that have any."""

    def __init__(self, problem: Problem, softmax: Softmax, y: Array, valid: Array) -> None:
        self.softmax, self.y, self.valid = softmax, y, valid.ravel()
        o, self.shape, self.classes = problem.options, problem.y.shape, softmax.log_p.shape[1]
        self.one_hot = np.eye(self.classes, dtype=WIDE)[y]
        pairs = Pairs(y.reshape(self.shape), valid, o["radius"], o["spacing"])
        self.edge = (pairs.neighbor & pairs.differ).any(1)
        given = problem.tensors.get("distance")
        distance = pairs.distance if given is None else given.ravel().astype(WIDE)
        log_w, read = np.zeros_like(distance), pairs.neighbor[self.edge].any(0)
        if o["decay"] is not None:
            log_w = np.where(read, -np.where(read, distance, 0) / WIDE(o["decay"]), 0)
        self.values, self.maps = [], {"edge_mask": self.edge}
        self.pi, self.lost = [], []  # of each edge pixel, the shares of its neighbors [R, N]
        # An arithmetic mean needs no probabilities that underflow: their shares, of less than a rounding for each
        # class that adds up in them, may be 0. With any power, so may a share that underflows before a weight
        # multiplies it.
        kind, q, used = np.finfo(problem.dtype), o["power"], 0.0
        self.least, rounding = 2 * self.classes * WIDE(kind.tiny), 2 * self.classes * kind.eps
        rows = np.flatnonzero(self.edge)
        for differ, name in enumerate(("same_side", "other_side")):
            side = pairs.neighbor[rows] & (pairs.differ[rows] == differ)
            t = (softmax.log_other if differ else softmax.log_p)[:, y[rows]].T
            weights = np.broadcast_to(log_w, side.shape)
            mean, pi = power_mean(t, weights, side, q)
            value = np.zeros(len(y), WIDE)
            value[rows] = mean
            under = (t < np.log(self.least)) | (weights < np.log(self.least))
            used = max(used, float(np.abs(t[side]).max(initial=0)))
            self.values.append(value)
            self.pi.append(pi)
            self.lost.append(np.where((under & (pi < rounding) & (q == 1)) | (pi < self.least), pi, 0))
            self.maps[name] = value
        self.condition = 1 + abs(q) * used + float(-log_w.min(initial=0))
        self.floor = 1 / abs(q) if abs(q) * used >= 1 else 0.0
        if o["decay"] is not None and given is None:
            self.maps["distance"] = np.where(pairs.distance <= pairs.limit * (1 + WIDE(1e-12)), pairs.distance, np.inf)


class _Call:
    """The loss and its gradient, with weights."""

    def __init__(self, problem: Problem, terms: _Terms) -> None:
        self.problem, self.softmax, self.y, self.valid = problem, terms.softmax, terms.y, terms.valid
        self.terms, self.edge, self.values, self.classes = terms, terms.edge, terms.values, terms.classes
        given = {k: v.astype(WIDE) for k, v in problem.tensors.items()}
        one = np.ones(self.classes, WIDE)
        self.a, self.u = given.get("weight", one), given.get("edge_class_weight", one)[self.y]
        self.v = given["pixel_weight"].ravel() if "pixel_weight" in given else np.ones(len(self.y), WIDE)
        self.maps = terms.maps | {"cross_entropy": self.cross_entropy()}

    def cross_entropy(self) -> Array:
        smoothing, nll = WIDE(self.problem.options["label_smoothing"]), -self.softmax.log_p
        own = self.a[self.y] * nll[np.arange(len(self.y)), self.y]
        ce = (1 - smoothing) * own
        if smoothing:
            ce = ce + smoothing / self.classes * (nll * self.a).sum(1)
        return np.where(self.valid, ce, 0)

    def totals(self) -> tuple[Array, Array]:
        """Return the denominators of the cross-entropy and of the edge terms."""
        return (self.v * self.a[self.y])[self.valid].sum(), (self.v * self.u)[self.edge].sum()

    def loss(self, total_w: Array, total_e: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the loss, and the factors of cross-entropy and edge terms of each pixel in what is differentiated."""
        o, ce_factor, edge_factor = self.problem.options, self.valid * self.v, self.valid * self.v
        if o["reduction"] == "mean":
            ce_factor = ce_factor / total_w if total_w else 0 * ce_factor
            edge_factor = edge_factor / total_e if total_e else 0 * edge_factor
        ce_factor, edge_factor = WIDE(o["ce_weight"]) * ce_factor, WIDE(o["edge_weight"]) * edge_factor
        same, other = self.values
        edge = WIDE(o["other_side_weight"]) * other + WIDE(o["same_side_weight"]) * same
        value = ce_factor * self.maps["cross_entropy"] + edge_factor * self.u * edge
        if o["reduction"] != "none":
            return value.sum(), (ce_factor, edge_factor)
        upstream = self.problem.upstream.astype(WIDE).ravel()
        return value.reshape(self.terms.shape), (ce_factor * upstream, edge_factor * upstream)

    def gradient(self, factors: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """Return the gradient [N, C], the sum of what adds up in it without signs, and what may be lost of it, [N]."""
        o, p, (ce, edge) = self.problem.options, self.softmax.p, factors
        one_hot, smoothing, terms = self.terms.one_hot, WIDE(o["label_smoothing"]), self.terms
        own, uniform = (1 - smoothing) * self.a[self.y], smoothing / self.classes * self.a
        result = ce[:, None] * ((own + uniform.sum())[:, None] * p - own[:, None] * one_hot - uniform)
        scale = np.abs(ce) * (own + uniform.sum())
        lost = np.zeros_like(scale)
        rows = np.flatnonzero(self.edge)
        for side, name in enumerate(("same_side_weight", "other_side_weight")):
            upstream = (edge * WIDE(1) * o[name] * self.u)[rows, None]
            arrives = terms.pi[side] * upstream  # [i, n]
            lost += np.abs(terms.lost[side] * upstream).sum(0)
            if side == 0:
                share = arrives.sum(0)
                result += share[:, None] * (p - one_hot)
                scale += np.abs(arrives).sum(0)
                continue
            leak = (arrives.T @ one_hot[rows]) * p  # [n, k]
            result += leak - np.einsum("nk,nkc->nc", leak, self.softmax.shares)
            lost += np.where(p < terms.least, np.abs(leak), 0).sum(1)  # p may be 0 before a weight multiplies it
            scale += (np.abs(arrives).T @ one_hot[rows] * p * (1 - self.softmax.log_p)).sum(1)  # x - max is rounded
        return np.where(self.valid[:, None], result, 0), np.where(self.valid, scale, 0), np.where(self.valid, lost, 0)
