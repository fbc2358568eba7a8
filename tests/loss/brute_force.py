"""The loss by loops over pixels, pairs and regions: slow and simple."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from typing import Any

import numpy as np


def logsumexp(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def negative_log_mean(t: list[float], log_w: list[float], q: float) -> float:
    if not t:
        return 0.0
    total = logsumexp(log_w)
    if q == 0:
        return -sum(math.exp(w - total) * ti for w, ti in zip(log_w, t, strict=True))
    return -(logsumexp([w + q * ti for w, ti in zip(log_w, t, strict=True)]) - total) / q


def maps(
    x: Any,
    y: Any,
    *,
    ignore_index: int | None = -100,
    radius: tuple[int, ...],
    power: float = 0.0,
    decay: float | None = None,
    spacing: tuple[float, ...] | None = None,
    weight: list[float],
    label_smoothing: float = 0.0,
    distance: Any = None,
) -> dict[str, Any]:
    """Return the maps of one image, from arrays x [C, *S] and y [*S]."""
    x = np.concatenate([0 * x, x]) if len(x) == 1 else x
    classes, size = x.shape[0], y.shape
    spacing = spacing or (1.0,) * len(size)
    pixels = [p for p in np.ndindex(size) if y[p] != ignore_index]
    place = {p: np.multiply(p, spacing).tolist() for p in pixels}
    log_p = {p: [x[(c, *p)] - logsumexp([x[(d, *p)] for d in range(classes)]) for c in range(classes)] for p in pixels}

    @functools.cache
    def d(n: tuple[int, ...]) -> float:
        if distance is not None:
            return float(distance[n])
        lengths = [math.dist(place[n], place[m]) for m in pixels if y[m] != y[n]]
        return min(lengths, default=math.inf)

    out: dict[str, Any] = {name: np.zeros(size) for name in ("cross_entropy", "same_side", "other_side")}
    out["edge_mask"] = np.zeros(size, dtype=bool)
    for i in pixels:
        k = y[i]
        smooth = sum(weight[c] * -log_p[i][c] for c in range(classes)) / classes
        out["cross_entropy"][i] = (1 - label_smoothing) * weight[k] * -log_p[i][k] + label_smoothing * smooth
        window = itertools.product(*(range(a - r, a + r + 1) for a, r in zip(i, radius, strict=True)))
        neighbors = [n for n in window if n != i and n in log_p]
        if all(y[n] == k for n in neighbors):
            continue
        out["edge_mask"][i] = True
        log_w = {n: 0.0 if decay is None else -d(n) / decay for n in neighbors}
        same = [n for n in neighbors if y[n] == k]
        other = [n for n in neighbors if y[n] != k]
        a = [log_p[n][k] for n in same]
        b = [logsumexp([log_p[n][c] for c in range(classes) if c != k]) for n in other]
        out["same_side"][i] = negative_log_mean(a, [log_w[n] for n in same], power)
        out["other_side"][i] = negative_log_mean(b, [log_w[n] for n in other], power)
    return out


def region(x: Any, y: Any, *, ignore_index: int | None = -100, multilabel: bool = False) -> float:
    """Return the region term of one image, from arrays x [C, *S] and y [*S], or [C, *S] of a multilabel loss."""
    if multilabel:
        terms = [region_of_class(logit[None], labels, 1, ignore_index) for logit, labels in zip(x, y, strict=True)]
    else:
        terms = [region_of_class(x, y, label, ignore_index) for label in (range(len(x)) if len(x) > 2 else [1])]
    known = [term for term in terms if term is not None]
    return sum(known) / len(known) if known else 0.0


def region_of_class(x: Any, y: Any, label: int, ignore_index: int | None) -> float | None:
    """Return 1 - σ (1 - ν) of one class of an image; None without a term."""
    dims, noise = y.ndim, 5e-4
    averages = [range((size - 1) // 3 + 1) for size in y.shape]
    corners = [range(len(places) - 2) for places in averages]

    def regions(values: Any) -> Any:
        mean = np.zeros([len(places) for places in averages])
        for place in itertools.product(*averages):
            pixels = itertools.product(*(range(3 * i - 1, 3 * i + 2) for i in place))
            inside = [p for p in pixels if all(0 <= i < size for i, size in zip(p, y.shape, strict=True))]
            mean[place] = sum(values[p] for p in inside) / 3**dims
        rows = [
            [mean[tuple(np.add(corner, step))] for step in np.ndindex((3,) * dims)]
            for corner in itertools.product(*corners)
        ]
        return np.array(rows) - np.mean(rows, 0)

    def entropy(matrix: Any) -> float:
        return float(np.linalg.slogdet(matrix)[1] - d * math.log(noise)) / 2

    q, z, d = np.zeros(y.shape), np.zeros(y.shape), 3**dims
    for p in np.ndindex(y.shape):
        if y[p] != ignore_index:
            logits = [float(logit) for logit in x[(slice(None), *p)]]
            logits = [0.0, *logits] if len(logits) == 1 else logits
            q[p], z[p] = math.exp(logits[label] - logsumexp(logits)), y[p] == label
    if not all(corners) or z.sum() in (0, (y != ignore_index).sum()):
        return None
    of_q, of_z = regions(q), regions(z)
    if not of_z.any():
        return None
    eye = noise * np.eye(d)
    qq, zz, zq = of_q.T @ of_q, of_z.T @ of_z + eye, of_z.T @ of_q
    of_noise = eye * max(1.0, np.trace(qq) / np.trace(zz - eye))
    known, left = entropy(zz), entropy(zz - zq @ np.linalg.inv(qq + of_noise) @ zq.T)
    floor = entropy(2 * eye - noise**2 * np.linalg.inv(zz))
    share, along = (left - floor) / (known - floor), np.trace(zq) / (0.05 * np.trace(zz - eye))
    return float(1 - min(max(along, -1.0), 1.0) * (1 - max(share, 0.0)))


# ------------------------------------------------------------------------------------------------------------ the loss


def balance(n: list[float]) -> list[float]:
    """Return u of classes with n edge pixels."""
    if not sum(n):
        return [0.0] * len(n)
    share = [1 / (k + 0.05 * sum(n) / len(n)) for k in n]
    scale = sum(n) / sum(map(operator.mul, share, n))
    return [scale * value for value in share]


def focused(t: float, classes: int, same: float, other: float, gamma: float) -> float:
    """Return Φ(t), by the series of the integral of x^γ / (1 - x)."""
    uniform, scale = other * math.log(classes / (classes - 1)) + same * math.log(classes), same + other
    if gamma == 0 or t == 0:
        return t
    inside = min(t, uniform)
    error, most = (-math.expm1(-value / scale) for value in (inside, uniform))
    count = 40 if error < 0.3 else math.ceil(40 / -math.log(error))
    series = math.fsum(error**j / (gamma + 1 + j) for j in range(count))
    return scale * error * (error / most) ** gamma * series + t - inside


def loss(
    maps: dict[str, Any],
    regions: list[float],
    y: Any,
    *,
    v: Any,
    weight: Any,
    edge_class_weight: Any,
    options: dict[str, Any],
) -> Any:
    """Return the loss, or a map, from maps and labels [B, T, *S], with T the classes of a multilabel loss, else 1.

    Both class weights are [T, K], the second may also be "balanced"; ``regions`` has R of each image.
    """
    tables, classes = weight.shape
    sides = options["same_side_weight"], options["other_side_weight"]
    edge = sides[0] * maps["same_side"] + sides[1] * maps["other_side"]
    n: Counter[tuple[int, ...]] = Counter()
    sums: Counter[tuple[int, ...]] = Counter()
    pixels = [p for p in np.ndindex(y.shape) if 0 <= y[p] < classes and y[p] != options["ignore_index"]]
    for p in pixels:
        if maps["edge_mask"][p]:
            n[p[0], p[1], y[p]] += v[p]
            sums[p[0], p[1], y[p]] += v[p] * edge[p]
    of_batch = [[sum(n[b, t, k] for b in range(len(y))) for k in range(classes)] for t in range(tables)]
    normalizer = options["normalizer"]
    given = normalizer[1] if normalizer else 0.0
    counts = np.reshape(given if np.ndim(given) else of_batch, (tables, classes))
    u = edge_class_weight
    if isinstance(u, str):
        u = np.reshape(balance(counts.ravel().tolist()), (tables, classes))
    per_w = per_e = 1.0
    if options["reduction"] == "mean":
        total_w = normalizer[0] if normalizer else sum(v[p] * weight[p[1], y[p]] for p in pixels)
        total_e = given if normalizer and np.ndim(given) == 0 else (u * counts).sum()
        per_w, per_e = (1 / total if total else 0.0 for total in (total_w, total_e))
    result = np.zeros(y.shape)
    for p in pixels:
        key, ratio = (p[0], p[1], y[p]), 0.0
        if sums[key]:
            t = sums[key] / n[key]
            ratio = focused(t, classes, *sides, options["edge_focus"]) / t
        of_weight = options["ce_weight"] * maps["cross_entropy"][p]
        of_weight += options["region_weight"] * weight[p[1], y[p]] * regions[p[0]]
        of_edge = options["edge_weight"] * u[p[1], y[p]] * edge[p] * ratio
        result[p] = v[p] * (per_w * of_weight + per_e * of_edge)
    return result if options["reduction"] == "none" else result.sum()
