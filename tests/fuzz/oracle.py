"""The loss and its gradient in long doubles, from docs/loss.md alone.

Every result has a *unit*: by how much it may change if all that adds up in it is rounded once, relative to 1. A unit is
a sum without signs, so that an error over unit and over the rounding of a dtype is the number of its roundings. Units
and other sizes are float64: nothing of them cancels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from oracle_focus import Focus, balance
from oracle_pixels import (
    LIMITS,
    SUMS,
    WIDE,
    Array,
    Softmax,
    along_axes,
    edge_distance,
    interpolation,
    of_others,
    power_mean,
    rough,
    window_pairs,
)
from oracle_regions import POOL, SIDE, Places, Regions

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


# ----------------------------------------------------------------------------------------------------------- the images


class Images:
    """The images of a call, or of all their classes with labels per class: their terms and gradient.

    The pixels of all images are one axis [P], I times N. v, vu and w are their weights in the cross-entropy, in the
    edge terms, and in the first's denominator; ``place`` is the place of an image and a class in [I · C].
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
        self.place = self.image * self.classes + self.y
        self.of_edges()
        self.of_classes()
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

    def by_class(self, values: Array) -> Array:
        """Return the sums of values [P] over the pixels of each image and class, [I, C]."""
        result = np.zeros(self.shape[0] * self.classes, values.dtype)
        np.add.at(result, self.place, values)
        return result.reshape(-1, self.classes)

    def of_classes(self) -> None:
        """Compute the weights of the edge pixels of each image and class, and what the focus makes of their terms."""
        on_edge, tables = self.v * self.is_edge, self.o["tables"]
        self.n, counts = self.by_class(on_edge), self.o["normalizer"] and self.o["normalizer"][1]
        if counts is None or np.ndim(counts) == 0:
            counts = self.n.reshape(self.shape[0] // tables, tables, self.classes).sum(0)
        counts = np.reshape(counts, (tables, self.classes)).astype(WIDE)
        u = self.o["edge_class_weight"]
        u = np.broadcast_to(balance(counts) if isinstance(u, str) else u, counts.shape)
        self.total = (u * counts).sum()  # E of the step
        self.u = np.tile(u, (self.shape[0] // tables, 1))
        self.vu = on_edge * self.u.ravel()[self.place]
        value, unit = (self.by_class(on_edge * part) for part in self.maps["edge"])
        some = np.where(self.n > 0, self.n, 1)
        self.mean, self.mean_unit = np.maximum(value, 0) / some, rough(unit / some)  # t
        self.focus = Focus(self.mean, self.mean_unit, self.o, self.classes, self.kind)

    def to_pixels(self, values: Array) -> Array:
        """Return values of images and classes [I, C] as those of their edge pixels [P], 0 elsewhere."""
        return values.ravel()[self.place] * self.is_edge

    def focused(self) -> tuple[Array, Array]:
        """Return the edge terms of pixels [P] as the loss adds them up, with v and u, and their unit."""
        (value, unit), focus = self.maps["edge"], self.focus
        ratio, change, most = map(self.to_pixels, (focus.ratio, focus.ratio_unit, focus.most))
        return self.vu * value * ratio, self.vu * (unit * most + rough(value) * change)

    def edge_factors(self, incoming: Array) -> tuple[Array, Array]:
        """Return the factors [P] of the gradients of the edge terms, for what arrives at these, and their units."""
        focus, (value, unit) = self.focus, self.maps["edge"]
        slope, change = focus.slope, focus.slope_unit
        if self.o["reduction"] != "none":
            return self.vu * incoming * self.to_pixels(slope), self.vu * rough(incoming) * self.to_pixels(change)
        total = np.where(self.n * self.mean > 0, self.n * self.mean, 1)
        mean = self.by_class(incoming * self.v * self.is_edge * value) / total
        size = rough(self.by_class(np.abs(incoming) * self.v * self.is_edge * unit) / total)
        rest, change = slope - focus.ratio, change + focus.ratio_unit
        # The mean of what arrives, weighted by the edge terms, is a sum over n t, which are rounded both.
        size += rough(mean) * (1 + self.mean_unit / np.where(self.mean > 0, self.mean, 1))
        unit = rough(incoming) * self.to_pixels(focus.ratio_unit)
        unit += self.to_pixels(rough(mean) * change + rough(rest) * rough(size))
        factor = incoming * self.to_pixels(focus.ratio) + self.to_pixels(rest * mean)
        return self.vu * factor, self.vu * unit

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
        slopes = right.parts.sum(0)
        for _ in range(trials):
            noise = rng.uniform(-eps, eps, self.one_hot.shape) * self.softmax.depth
            trial = regions(Softmax(self.softmax.x + noise, 0).p, rng)
            moved = np.maximum(moved, np.abs(trial.value - right.value) / eps)
            spread = np.maximum(spread, np.abs((trial.parts.sum(0) - slopes) * sees).max(1, keepdims=True) / eps)
        sums = float(SUMS / eps)
        unit = right.has_term * (1 + right.unit) + np.abs(right.value) + moved + right.rounding * sums
        # Where roundings decide whether a part of it is clamped, its slope may be 0, or not.
        off = np.abs([right.share, np.abs(right.along) - 1])
        is_open = off <= LIMITS[self.kind.bits] * eps * np.array([unit, unit + right.unit * self.softmax.depth.max()])
        sizes = np.abs(right.parts) + np.abs(right.free) * is_open[:, :, None] / eps
        self.slopes.reshape(shape)[image, :, c] = slopes * sees
        self.slope_sizes.reshape(shape)[image, :, c] = (sizes.sum(0) + spread + right.sizes * sums) * sees
        np.add.at(self.terms, image, right.has_term)
        np.add.at(self.region, (slice(None), image), [right.value, unit])
        parts = self.slopes.copy()
        parts.reshape(shape)[image, :, c] = np.abs(right.parts).sum(0) * sees
        self.region[1] += self.unit_of_slopes(parts).sum(1).reshape(self.shape).sum(1)

    def sum_by_logits(self, sizes: Array, *parts: tuple[Array, Array]) -> Array:
        """Return p_c Σ_k w_k (|s_c| + |s_k|) for slopes s by p and weights w of the classes, times a factor each."""
        sizes, p = rough(sizes), rough(self.softmax.p)
        return p * sum(f * (sizes * of_others(w) + of_others(w * sizes)) for f, w in parts)

    def unit_of_slopes(self, sizes: Array) -> Array:
        """Return by how much the slopes by logits change when p is rounded, for the sizes of slopes by p."""
        p, depth = rough(self.softmax.p), self.softmax.depth
        return self.sum_by_logits(sizes, (depth, p), (1, p * depth))

    def gradient_of_regions(self, factor: Array, size: Array) -> tuple[Array, Array]:
        """Return the gradient of the region terms [P, C], and what adds up in it, its unit, and what may be lost."""
        p, slopes, sizes = self.softmax.p, self.slopes, np.zeros((3, *self.softmax.p.shape))
        if self.terms.any():
            rounded = np.abs(slopes) + self.kind.eps * self.slope_sizes
            sizes[0] = self.sum_by_logits(rounded, (1, rough(p)))
            sizes[1] = self.unit_of_slopes(self.slope_sizes)
            sizes[2] = self.sum_by_logits(slopes, (1, rough(np.where(p < self.least, p, 0))))
            slopes = p * (slopes * of_others(p) - of_others(p * slopes))  # by logits: p_c Σ_k p_k (s_c - s_k)
        return factor * slopes, rough(size) * sizes

    def arrive(self, name: str, factor: Array, unit: Array) -> tuple[Array, Array]:
        """Return what arrives at neighbors for the class of the center, and its size, its unit, and what may be 0."""
        _, i, n, pi, may_be_0 = self.sides[name == "other_side"]
        result, place = np.zeros(self.softmax.p.shape, WIDE), n * self.classes + self.y[i]
        shares = WIDE(self.o[f"{name}_weight"]) * pi
        np.add.at(result.reshape(-1), place, factor[i] * shares)
        size, unit = rough(factor[i] * shares), rough(unit[i] * shares)
        parts = size, size * self.condition[i] + unit, size * may_be_0
        sizes = np.array([np.bincount(place, part, result.size) for part in parts], float)
        return result, sizes.reshape(3, *result.shape)

    def passed_on(self, values: Array, shares: Array) -> Array:
        """Return what passes from the classes behind edges to the other ones, by their shares of 1 - p, [P, C]."""
        result, (rows, starts) = np.zeros_like(values), np.unique(self.across[0], return_index=True)
        result[rows] = np.add.reduceat(values[self.across][:, None] * shares, starts)
        return result

    def gradient(self, ce: Array, edge: tuple[Array, Array], region: tuple[Array, Array]) -> list[Array]:
        """Return the gradient [I, C, *S'], its unit, what p - 1 adds to it, what may be lost, and what is read.

        The arguments are the factors of these terms of each pixel, and the units of those of the edge terms and the
        sizes of what adds up in those of the region term.
        """
        p, depth = self.softmax.p, self.softmax.depth
        of_region, region_sizes = self.gradient_of_regions(*(each[:, None] for each in region))
        (toward, same), (away, other) = (self.arrive(name, *edge) for name in ("same_side", "other_side"))
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
        lost = self.passed_on(np.where(p < self.least, other[0], 0), shares) + np.where(others < self.least, kept, 0)
        lost = np.where(p < self.least, size, lost) + (same[2] + other[2]).sum(1, keepdims=True) + region_sizes[2]
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
    given = o["normalizer"] or (i.w.sum(), i.total)
    mean_w, mean_e = (
        1 / WIDE(total) if total else WIDE(0) for total in (given[0], given[1] if np.ndim(given[1]) == 0 else i.total)
    )
    per_w, per_e = (1, 1) if o["reduction"] == "sum" else (mean_w, mean_e)
    per = {"cross_entropy": per_w, "region": per_w}
    per |= dict.fromkeys(("same_side", "other_side", "edge", "edge_focused"), per_e)
    factors = {"cross_entropy": o["ce_weight"], "edge_focused": o["edge_weight"], "region": o["region_weight"]}
    factors = {name: WIDE(f) * (1 if o["reduction"] == "none" else per[name]) for name, f in factors.items()}
    factor_ce = factors["cross_entropy"] * upstream * i.v
    many = i.shape[0] // max(1, len(x))

    def per_image(values: Array) -> Array:
        """Return the sums of values [..., I] over the classes of an image, for each pixel."""
        return values.reshape(*values.shape[:-1], len(x), many).sum(-1).repeat(many * i.shape[1], -1)

    count = np.maximum(1, per_image(i.terms))
    given = i.w * upstream
    of_region = tuple(factors["region"] * per_image(g.reshape(i.shape).sum(1)) / count for g in (given, np.abs(given)))
    parts = {k: np.array(i.maps[k]) * (i.v if k == "cross_entropy" else i.vu) for k in per if k in i.maps}
    parts["edge_focused"] = np.array(i.focused())
    parts["region"] = per_image(i.region) / count * i.w
    loss = sum(factor * parts[name] for name, factor in factors.items())
    terms = {name: tuple(per[name] * values.sum(1)) for name, values in parts.items()}
    un = i.u * i.n * mean_e  # a mean with any reduction
    terms["edge_focus"] = (un * i.focus.slope).sum(), (un * i.focus.slope_unit).sum()
    gradient, unit, *others = i.gradient(factor_ce, i.edge_factors(factors["edge_focused"] * upstream), of_region)
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
    classes, tables = 2 if o["multilabel"] else max(2, x.shape[1]), math.prod(images[1:])
    parts: dict[str, Any] = {"tables": tables}
    for name in ("weight", "edge_class_weight"):
        values = 1 if o[name] is None else o[name]
        if isinstance(values, str):
            continue
        values = values[:, None] if o["multilabel"] and np.ndim(values) == 1 else values  # of both labels of a class
        parts[name] = np.broadcast_to(values, (tables, classes)).astype(WIDE)
    parts["weight"] = np.tile(parts["weight"], (len(y), 1))
    for name in ("pixel_weight", "distance"):
        values = np.ones(y.shape) if o[name] is None and name == "pixel_weight" else o[name]
        if values is not None:
            values = values if values.ndim == y.ndim else values[:, None]  # of all classes
            parts[name] = np.broadcast_to(values, y.shape).ravel().astype(WIDE)
    if o["multilabel"]:
        x, y = x.reshape(math.prod(images), 1, *x.shape[2:]), y.reshape(math.prod(images), *y.shape[2:])
    return Images(x, y, o | parts, dtype, trials)
