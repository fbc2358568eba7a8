"""Calls of the loss: a row of choices, and what follows from it: logits, labels and options.

The agreement suite takes a few rows in which every pair of choices meets, the fuzzer random ones.
"""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Any, TypeAlias

import numpy as np
import torch
from roundings import Case, laid_out
from torch import Tensor

Rng = np.random.Generator
Row: TypeAlias = dict[str, Any]
SLOW = 150  # pixels, from which on windows are at most of radius 3
# The choices of each property, and how often the fuzzer draws them.
CHOICES: dict[str, dict[Any, float]] = {
    "size": {  # bounds of it along each axis; where all reach 7 there are regions
        ((1, 3), (1, 3)): 15,
        ((1, 9), (1, 9)): 25,
        ((7, 34), (7, 34)): 45,
        ((1, 12), (30, 150)): 8,
        ((30, 150), (1, 12)): 4,
        ((1, 2), (300, 700)): 2,
        ((7, 9), (60, 170)): 3,
        ((0, 0), (1, 9)): 0.3,
        ((1, 2), (1, 3), (1, 3)): 5,
        ((1, 5), (1, 5), (1, 5)): 10,
        ((7, 10), (7, 10), (7, 13)): 15,
    },
    "batch": {1: 60, 2: 40, 0: 1},
    "channels": {1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 9: 1, 20: 1, 150: 0.3},
    "multilabel": {False: 3, True: 1},
    "dtype": {torch.float64: 2, torch.float32: 4, torch.bfloat16: 2, torch.float16: 2},
    "labels": {"areas": 4, "noise": 2, "halves": 2, "rare": 2, "constant": 1},
    "void": {0.0: 5, 0.1: 3, 0.5: 1.5, 1.0: 0.3},  # share of the pixels
    "logits": {"sure": 6, "normal": 3, "small": 1, "large": 1, "huge": 1, "rounded": 1, "constant": 1, "offset": 1},
    # Of those that are sure: the share that is sure of another class, by how much a logit leads, and its noise.
    "wrong": {0.0: 2, 0.05: 2, 0.5: 1, 1.0: 1},
    "gap": {"any": 5, 12.0: 1, 20.0: 1, 60.0: 1, 200.0: 1, "largest": 2},
    "noise": {1.0: 2, 0.1: 1, 0.0: 1},
    "resolution": {"same": 70, "same, upsampled": 10, "lower": 16, "a third of the last": 4},
    "layout": {
        "contiguous": 6,
        "channels last": 2,
        "transposed": 2,
        "padded": 2,
        "reversed": 1,
        "sliced": 1,
        "cropped": 1,
        "unaligned": 1,
        "expanded": 0.5,
        "constant": 0.5,
    },
    "target": {torch.int64: 1, torch.int32: 1, torch.int16: 1, torch.uint8: 1, torch.bool: 1},  # where labels fit
    "target_layout": {"contiguous": 6, "transposed": 2, "padded": 2, "reversed": 1, "sliced": 1, "expanded": 0.5},
    "radius": {"near": 8, "beyond the image": 2},
    "spacing": {1.0: 2, "any": 3},
    "decay": {None: 6, 0.1: 1, 0.7: 1, 2.0: 1, 9.0: 1},
    "distance": {None: 6, 1: 2, 30: 1, 1000: 1},  # in decays
    "weight": {False: 7, True: 3},
    "edge_class_weight": {"balanced": 6, None: 2, "given": 3},
    "pixel_weight": {False: 7, True: 3},
    "upstream": {1.0: 6, 0.25: 1, 65536.0: 2},
    "unread": {0.0: 2, np.nan: 1, np.inf: 1, -np.inf: 1},
    "has_gradient": {True: 95, False: 5},
    "returns": {(): 35, ("terms",): 35, ("maps",): 15, ("maps", "terms"): 15},
    "ignore_index": {255: 5, -100: 2, None: 1, 1: 1},
    "reduction": {"mean": 5, "sum": 2, "none": 2},
    "label_smoothing": {0.0: 7, 0.1: 2, 1.0: 1},
    "ce_weight": {1.0: 3, 0.0: 1, 0.3: 1},
    "edge_weight": {1.0: 5, 0.0: 1, 2.5: 3},
    "other_side_weight": {1.0: 3, 0.0: 1, 0.7: 1},
    "same_side_weight": {1.0: 3, 0.0: 1, 0.4: 1},
    "edge_focus": {3.0: 5, 8.0: 1, 0.0: 2, 1.0: 1, 2.5: 1, 0.3: 1, 32.0: 0.5},
    "region_weight": {3.0: 4, 0.0: 2, 0.7: 1, 10.0: 1},
    "power": {0.0: 6, 1.0: 2, -1.0: 2, 0.5: 1, 3.0: 0.5, -30.0: 0.3, 0.01: 0.5, -1e-5: 0.5},
    "sync_normalizer": {False: 9, True: 1},
    "normalizer": {None: 8, "counts": 1.5, "sums": 0.5},  # (W, n), or (W, E) where the balance does not need n
    "validate": {"async": 2, "sync": 1, "never": 1},
}
OPTIONS = [*CHOICES][[*CHOICES].index("ignore_index") :]  # keywords of the loss
# The kernels of GPUs are for power 0, and return sums.
ON_GPU: dict[str, dict[Any, float]] = {"power": {0.0: 1}, "reduction": {"mean": 5, "sum": 2}}


def pick(rng: Rng, choices: dict[Any, float]) -> Any:
    """Return one of the keys, with probabilities in proportion to the values."""
    bounds = [*itertools.accumulate(choices.values())]
    return [*choices][bisect.bisect(bounds, bounds[-1] * rng.random())]


def random_case(number: int, **fixed: dict[Any, float]) -> Case:
    """Return the call of a number, of which some properties have other choices."""
    rng = np.random.default_rng(number)
    return make_case({name: pick(rng, choices) for name, choices in (CHOICES | fixed).items()}, rng)


def make_case(row: Row, rng: Rng | None = None) -> Case:
    """Return the call of a row, by default always the same."""
    rng = rng or np.random.default_rng(0)
    dtype, multilabel, options = row["dtype"], row["multilabel"], {name: row[name] for name in OPTIONS}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    batch, size = row["batch"], [int(rng.integers(a, b + 1)) for a, b in row["size"]]
    pixels = max(1, math.prod(size))  # the oracle is slow with many classes
    most = 4000 // pixels if multilabel else math.isqrt(row.get("logits_by_classes", 200_000) // pixels)
    channels = min(row["channels"], max(1, most))
    low = size
    if row["resolution"] == "lower":
        low = [int(rng.integers(min(1, n), n + 1)) for n in size]
    elif row["resolution"] == "a third of the last":
        low = [*size[:-1], -(-size[-1] // 3)]
    options |= {"multilabel": multilabel, "upsample": row["resolution"] != "same"}
    classes = 2 if multilabel else max(2, channels)
    y = make_labels(rng, row, [batch * channels if multilabel else batch, *size], classes)
    void = [] if row["ignore_index"] is None else [row["ignore_index"]]
    if row["validate"] == "never":  # labels out of range count as ignored, and raise no error
        void += [77, classes, *([-5, -1] if row["target"].is_signed else [])]
    y = torch.from_numpy(np.where(y < 0, np.resize(void or [0], size[-1]), y))
    y = y.reshape(batch, channels, *size) if multilabel else y
    x = make_logits(rng, row, [batch, channels, *low], y, 6e4 if dtype == torch.float16 else 1e30)
    options |= make_windows(rng, row, size)

    def tensor(shape: list[int], most: float) -> Tensor:
        values = torch.from_numpy(most * rng.random(shape) * (rng.random(shape) > 0.1)).to(wide)
        return laid_out(values, pick(rng, {"contiguous": 4, "transposed": 1, "padded": 1}))

    for name in ("weight", "edge_class_weight"):
        table = [channels, 2] if multilabel and rng.random() < 0.5 else [channels if multilabel else classes]
        given = tensor(table, 10.0 ** rng.uniform(-2, 2))
        options[name] = given if row[name] in (True, "given") else row[name] or None
    if row["normalizer"]:  # n of a step has edges of each class
        n = torch.from_numpy(10.0 ** rng.uniform(0, 3, [channels, 2] if multilabel else classes))
        is_sum = row["normalizer"] == "sums" and row["edge_class_weight"] != "balanced"
        options["normalizer"] = 20.0, 7.5 if is_sum else n
    of_images = [batch, *size] if rng.random() < 0.5 else [*y.shape]
    options["pixel_weight"] = tensor(of_images, 10.0 ** rng.uniform(-2, 2)) if row["pixel_weight"] else None
    has_field = row["decay"] and row["distance"]
    options["decay"] = row["decay"]
    options["spacing"] = options["spacing"] if row["decay"] else None  # only decay reads it
    options["distance"] = tensor([*y.shape], row["decay"] * row["distance"]) if has_field else None
    least, most = (int(y.min()), int(y.max())) if y.numel() else (0, 0)
    fits = {torch.uint8: least >= 0, torch.bool: least >= 0 and most <= 1}.get(row["target"], True)
    is_map = row["reduction"] == "none"
    upstream = torch.from_numpy(rng.standard_normal(y.shape)) if is_map else torch.tensor(row["upstream"])
    return Case(
        x=laid_out(x.to(dtype), row["layout"]),
        y=laid_out(y.to(row["target"] if fits else torch.int64), row["target_layout"]),
        options=options,
        upstream=upstream.to(wide),
        **{name: row[name] for name in ("unread", "has_gradient", "returns")},
    )


def make_labels(rng: Rng, row: Row, shape: list[int], classes: int) -> np.ndarray:
    """Return labels [B, *S] with areas, thin lines or noise; -1 is ignored."""
    style, noise, y = row["labels"], rng.integers(0, classes, shape), np.full(shape, rng.integers(0, classes))
    if style == "halves":
        y[..., shape[-1] // 2 :] = rng.integers(0, classes)
    elif style in ("rare", "noise"):
        y = np.where(rng.random(shape) < (0.2 if style == "rare" else 1.0), noise, y)
    for image in np.repeat(np.arange(shape[0]), 6 if style == "areas" else 0):
        ends = [sorted(rng.integers(0, n + 1, 2)) for n in shape[1:]]
        y[(image, *(slice(*pair) for pair in ends))] = rng.integers(-1, classes)
    return np.where(rng.random(shape) < row["void"], -1, y)


def make_logits(rng: Rng, row: Row, shape: list[int], y: Tensor, top: float) -> Tensor:
    """Return logits [B, C, *S] in float64, for labels per pixel or per class."""
    style, x = row["logits"], rng.standard_normal(shape)
    factors = {"small": 1e-3, "large": 30.0, "huge": 10.0 ** rng.uniform(2, np.log10(top)), "constant": 0.0}
    x *= factors.get(style, 1.0)
    if style == "rounded":
        x = np.round(2 * x) / 2
    elif style == "offset":
        x += 10.0 ** rng.integers(3, 7) * rng.standard_normal((shape[0], 1, *shape[2:]))
    elif style == "sure":  # of the label, or for a share of the pixels of another class
        gap = {"any": 10.0 ** rng.uniform(0.5, 2.5), "largest": top}.get(row["gap"], row["gap"])
        classes = y.numpy() if y.dim() == x.ndim else y.numpy()[:, None]
        for axis, length in enumerate(shape[2:], start=2):
            classes = classes.take(np.arange(length) * classes.shape[axis] // max(1, length), axis)
        classes = classes + (rng.random(classes.shape) < row["wrong"])
        index = np.arange(shape[1]).reshape(1, -1, *[1] * (x.ndim - 2))
        is_right = 2 * (classes % 2) - 1 if y.dim() == x.ndim or shape[1] == 1 else index == classes % shape[1]
        x = x * row["noise"] + gap * is_right
    return torch.from_numpy(np.clip(x, -top, top))


def make_windows(rng: Rng, row: Row, size: list[int]) -> dict[str, Any]:
    """Return radius and spacing."""
    radius = [pick(rng, {0: 1, 1: 6, 2: 2, 3: 1}) for _ in size]
    if isinstance(row["radius"], int):
        radius = [row["radius"]] * len(size)
    elif math.prod(size) <= SLOW and row["radius"] == "beyond the image":
        radius = [pick(rng, {int(rng.integers(0, 3 * n // 2 + 2)): 9, 2**62: 0.5}) for n in size]
    spacing = [1.0] * len(size) if row["spacing"] == 1.0 else 10.0 ** rng.uniform(-0.5, 0.5, len(size))
    return {"radius": radius if any(radius) else [1] * len(size), "spacing": [float(s) for s in spacing]}
