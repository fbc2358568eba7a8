"""Cases of the loss: logits, labels and options, in rows of which every pair of values meets in some."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
import torch.nn.functional as F
from pairwise import pairwise
from roundings import Case, laid_out
from torch import Tensor

IGNORED = 255
PARTS: dict[str, dict[str, float]] = {
    "defaults": {},
    "region": {"region_weight": 3.0},
    "no cross-entropy": {"region_weight": 3.0, "ce_weight": 0.0},
    "no edges": {"region_weight": 3.0, "edge_weight": 0.0},
    "cross-entropy": {"edge_weight": 0.0, "ce_weight": 0.7},
    "all": {"other_side_weight": 0.7, "same_side_weight": 1.3, "ce_weight": 0.9, "edge_weight": 0.4},
    "same side": {"other_side_weight": 0.0, "edge_weight": 0.4},
    "other side": {"same_side_weight": 0.0, "ce_weight": 0.0},
}


LAYOUTS = ["channels last", "transposed", "reversed", "expanded", "constant", "sliced", "cropped", "unaligned"]
# Of each property of a case; the first value is the default.
VALUES: dict[str, list[Any]] = {
    "size": [(12, 15), (1, 1), (1, 9), (9, 1), (7, 7), (3, 5, 6), (7, 8, 10), (34, 65), (3, 300)],
    "classes": [3, 1, 2, 4, 5, 19, 150, "multilabel"],
    "dtype": [torch.float64, torch.float32, torch.bfloat16, torch.float16],
    "labels": ["blocks", "noise", "line", "one class", "all ignored"],
    "logits": ["normal", "right", "large", "offset", "extreme", "extremely wrong"],
    "layout": ["contiguous", *LAYOUTS],
    "target": [torch.int64, torch.int32, torch.int16, torch.uint8],
    "target_layout": ["contiguous", "transposed", "reversed", "expanded", "sliced"],
    "ignore_index": [IGNORED, -100, None, 1],
    "radius": ["1", "2", "3", "per axis", "beyond the image"],
    "power": [0.0, 1.0, -1.0, 1e-5],
    "field": ["none", "decay", "spacing", "distance"],
    "weights": ["none", "weight", "edge_class_weight", "both"],
    "pixels": ["none", "pixel_weight", "normalizer", "both"],
    "label_smoothing": [0.0, 0.1],
    "reduction": ["mean", "sum", "none"],
    "resolution": ["same", "integer ratio", "any ratio", "one axis"],
    "parts": [*PARTS],
}
Row = namedtuple("Row", VALUES, defaults=[values[0] for values in VALUES.values()])


def rows(**lists: Any) -> list[Row]:
    """Return rows of these values, and of those above for all other properties."""
    return [Row(*row) for row in pairwise(*(VALUES | lists).values(), exhaustive=False)]


# Many classes around a pixel; windows wider than a row of pixels that is computed at once; more classes than pixels.
_MANY = Row(classes=150, dtype=torch.float32, labels="noise", radius="15", field="decay")
_WIDE = Row(size=(3, 300), dtype=torch.float32, labels="line", radius="150")
ROWS = [
    *rows(),
    *(row._replace(power=power) for row in (_MANY, _WIDE) for power in (0.0, -1.0)),
    Row(classes=1000, labels="noise", field="decay"),
    Row(size=(34, 65), classes=19, dtype=torch.float32, labels="noise", radius="9"),
]
# Pixels that are sure of a class, of a wrong one for a share of them: which share, and by how much a logit leads.
ROWS += rows(
    size=[(7, 8), (10, 13), (2, 3, 4)],
    classes=[1, 2, 3, 19, 150, "multilabel"],
    dtype=[torch.float64, torch.float32, torch.bfloat16],
    labels=["blocks", "noise", "line"],
    logits=[(share, gap) for share in (0.0, 0.3) for gap in (12.0, 20.0, 60.0, 200.0, 1e30)],
    layout=["contiguous"],
    target=[torch.int64],
    target_layout=["contiguous"],
    resolution=["same"],
    parts=["defaults", "region", "no cross-entropy", "no edges", "all"],
)
# Where loops over pixels take little time.
SMALL_ROWS = rows(
    size=[(1, 7), (6, 1), (5, 6), (7, 22), (12, 15), (2, 3, 4)],
    classes=[1, 2, 3, 5, "multilabel"],
    dtype=[torch.float64],
    power=[0.0, 1.0, -1.0, 0.3],
    logits=["normal", "right", "large"],
)
# Volumes, and images that end behind or with their last region, of which some lack a class.
SMALL_ROWS += [
    Row(size=(7, 8, 10), labels="line", logits="right", parts="region"),
    Row(size=(9, 7, 11), classes=1, parts="region"),
    Row(size=(16, 11), classes=4, logits="right", pixels="pixel_weight", parts="region"),
    Row(size=(7, 9), classes=2, labels="noise", logits="right", parts="region"),
]
# The kernels of GPUs in Triton's interpreter, which takes seconds for each: a few of what they serve.
TRITON_ROWS = [
    *rows(
        size=[(7, 8), (12, 14)],
        classes=[1, 2, 4, "multilabel"],
        dtype=[torch.float32, torch.bfloat16, torch.float64],
        labels=["noise", "blocks"],
        logits=["normal", (0.0, 20.0), (0.3, 200.0), "extremely wrong"],
        layout=["contiguous", "channels last", "transposed"],
        target=[torch.int64, torch.uint8],
        target_layout=["contiguous"],
        ignore_index=[IGNORED, None],
        radius=["1", "per axis"],
        power=[0.0],
        reduction=["mean", "sum"],
        resolution=["same", "any ratio"],
        parts=["region", "all"],
    ),
    _MANY._replace(size=(7, 9), classes=19, radius="2"),
    Row(
        size=(7, 8, 10), classes=2, dtype=torch.float32, logits="right", layout="reversed", target=torch.int32,
        target_layout="transposed", ignore_index=-100, parts="region",
    ),
    Row(size=(2, 3, 4), labels="noise", layout="sliced", target=torch.int16, target_layout="expanded", ignore_index=1,
        resolution="any ratio"),
]  # fmt: skip


def make_case(row: Row) -> Case:
    """Return the case of a row, always the same."""
    torch.manual_seed(0)
    multilabel = row.classes == "multilabel"
    channels = 3 if multilabel else int(row.classes)
    low, size = _sizes(row)
    lead = (2, channels) if multilabel else (2,)
    count = 2 if multilabel else max(2, channels)
    y = _labels(row, (*lead, *size), count)
    x = _logits(row, y, (2, channels, *low), count).to(row.dtype)
    ignore_index = IGNORED if row.ignore_index == -100 and row.target == torch.uint8 else row.ignore_index
    if ignore_index is None:
        y[y == IGNORED] = 0
    elif ignore_index != IGNORED:
        y[y == IGNORED] = ignore_index
    x = laid_out(x, row.layout)
    y = laid_out(y.to(row.target), row.target_layout)
    valid = torch.ones_like(y, dtype=torch.bool) if ignore_index is None else y != ignore_index
    options: dict[str, Any] = {
        "ignore_index": ignore_index,
        "multilabel": multilabel,
        "reduction": row.reduction,
        "label_smoothing": row.label_smoothing,
        "radius": _radius(row.radius, size),
        "power": row.power,
        "upsample": low != size,
        **PARTS[row.parts],
        **_tensors(row, valid, channels),
    }
    if row.field != "none":
        options["decay"] = 1.3
    if row.field == "spacing":
        options["spacing"] = [0.7, 1.5, 0.4][: len(size)]
    upstream = torch.rand(y.shape if row.reduction == "none" else (), dtype=torch.float64) + 0.5
    return Case(x, y, options, upstream if row.dtype == torch.float64 else upstream.float())


def interpolated(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return logits at the resolution of the labels."""
    mode = "bilinear" if len(size) == 2 else "trilinear"
    return F.interpolate(x, size, mode=mode, align_corners=False)


def _sizes(row: Row) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of logits and labels."""
    if row.resolution == "integer ratio":
        low = tuple(-(-n // 4) for n in row.size)
        return low, tuple(4 * n for n in low)
    if row.resolution == "any ratio":
        return tuple(-(-2 * n // 5) for n in row.size), row.size
    if row.resolution == "one axis":
        return (*row.size[:-1], -(-row.size[-1] // 3)), row.size
    return row.size, row.size


def _labels(row: Row, shape: tuple[int, ...], count: int) -> Tensor:
    y = torch.randint(count, shape)
    if row.labels == "blocks":
        for axis in (-1, -2):
            y = y.index_select(axis, torch.arange(shape[axis]) // 3)
    elif row.labels == "line":
        y.zero_()
        y[..., shape[-1] // 2] = count - 1
    elif row.labels == "one class":
        y.fill_(count - 1)
    y[torch.rand(shape) < (1.0 if row.labels == "all ignored" else 0.15)] = IGNORED
    return y


def _logits(row: Row, y: Tensor, shape: tuple[int, ...], count: int) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64)
    if row.logits == "large":
        x *= 30
    if row.resolution != "same":
        return x * 3
    share, gap = row.logits if isinstance(row.logits, tuple) else (0.0, 0.0)
    label = (torch.where(y == IGNORED, 0, y) + (torch.rand(y.shape) < share)) % count
    is_binary = y.dim() == x.dim() or shape[1] == 1
    is_label = label.view(shape) if is_binary else torch.zeros_like(x).scatter_(1, label[:, None], 1.0)
    right = 2 * is_label - 1
    if gap:
        return x + gap * (right if is_binary else is_label) * (torch.rand(is_label[:, :1].shape) > share / 2)
    if row.logits.startswith("extreme"):
        top = torch.finfo(row.dtype).max if row.dtype == torch.float16 else 1e30
        return right * (top if row.logits == "extreme" else -top)
    x += right * (20 * (torch.rand(is_label.shape) < 0.9) if row.logits == "right" else 1)
    # The constants of half precision would leave nothing of the logits.
    return x + 1e6 * (row.logits == "offset" and shape[1] > 1 and row.dtype.itemsize > 2 and y.dim() < x.dim())


def _radius(name: str, size: tuple[int, ...]) -> int | list[int]:
    if name == "per axis":
        return [0, 2, 1][: len(size)]
    if name == "beyond the image":  # along a long axis, the reference would take too long
        return [2**40 if n < 20 else 3 for n in size]
    return int(name)


def _tensors(row: Row, valid: Tensor, channels: int) -> dict[str, Any]:
    """Return the tensors among the options; pixel weights are nan where they are not read."""
    multilabel, given = row.classes == "multilabel", {}
    shape = (channels, 2) if multilabel else (max(2, channels),)
    for name in ("weight", "edge_class_weight"):
        if row.weights in (name, "both"):
            given[name] = torch.rand(shape, dtype=torch.float64) + 0.1
            given[name].view(-1)[0] = 0.0
    if row.pixels in ("pixel_weight", "both"):
        given["pixel_weight"] = torch.rand(valid.shape, dtype=torch.float64).masked_fill(~valid, torch.nan)
    if row.pixels in ("normalizer", "both"):
        given["normalizer"] = (77.0, 5.0)
    if row.field == "distance":
        given["distance"] = 3 * torch.rand(valid.shape, dtype=torch.float64)
    return given
