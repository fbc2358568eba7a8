"""The maps and the region term of an image by loops over pixels, pairs and regions: slow and simple."""

from __future__ import annotations

import functools
import itertools
import math
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
    """Return (U - f) / (H - f) of one class of an image; None without a term."""
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
    return (left - floor) / (known - floor)
