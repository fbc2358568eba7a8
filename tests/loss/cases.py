"""Cases of the loss: logits, labels and options, in rows of which every pair of values meets in some."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pairwise import pairwise
from torch import Tensor

IGNORED = 255

SIZES = [(1, 1), (1, 9), (9, 1), (7, 7), (12, 15), (3, 5, 6), (7, 8, 10), (34, 65), (3, 300)]
SMALL = [(1, 7), (6, 1), (5, 6), (7, 22), (12, 15), (2, 3, 4)]
CLASSES = [1, 2, 3, 4, 5, 19, 150, "multilabel"]
LAYOUTS = ["channels last", "transposed", "reversed", "expanded", "constant", "sliced", "cropped", "unaligned"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
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


VALUES: dict[str, list[Any]] = {
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


class Row(NamedTuple):
    """What a case is made of, a value of each of the lists above."""

    size: tuple[int, ...]
    classes: int | str
    dtype: torch.dtype
    labels: str
    logits: str
    layout: str
    target: torch.dtype
    target_layout: str
    ignore_index: int | None
    radius: str = "1"
    power: float = 0.0
    field: str = "none"
    weights: str = "none"
    pixels: str = "none"
    label_smoothing: float = 0.0
    reduction: str = "mean"
    resolution: str = "same"
    parts: str = "defaults"


class Case(NamedTuple):
    """The arguments of a call.

    Attributes:
        logits: of the dtype and layout of the case.
        target: as logits.
        options: keywords of ``edge_aware_loss``; the tensors among them are of float64.
        unread: the logits that nothing may read, a bool mask of them.
    """

    logits: Tensor
    target: Tensor
    options: dict[str, Any]
    unread: Tensor


def rows(sizes: list[tuple[int, ...]], classes: list[int | str], dtypes: list[torch.dtype], **lists: Any) -> list[Row]:
    """Return rows of these values, and of those of all other fields unless ``lists`` has them."""
    names = [name for name in Row._fields[3:] if name not in lists]
    axes = {"size": sizes, "classes": classes, "dtype": dtypes, **{name: VALUES[name] for name in names}, **lists}
    return [Row(**dict(zip(axes, row, strict=True))) for row in pairwise(*axes.values(), exhaustive=False)]


# Many classes around a pixel; windows wider than a row of pixels that is computed at once; more classes than pixels.
_MANY = Row((12, 15), 150, torch.float32, "noise", "normal", "contiguous", torch.int64, "contiguous", IGNORED, "15")
_MANY = _MANY._replace(field="decay")
_WIDE = _MANY._replace(size=(3, 300), classes=3, labels="line", radius="150", field="none")
ROWS = [
    *rows(SIZES, CLASSES, DTYPES),
    *(row._replace(power=power) for row in (_MANY, _WIDE) for power in (0.0, -1.0)),
    _MANY._replace(classes=1000, radius="1", dtype=torch.float64),
    _MANY._replace(size=(34, 65), classes=19, radius="9", field="none"),
]
# Where loops over pixels take little time, and where their differences have digits.
SMALL_ROWS = rows(
    SMALL, [1, 2, 3, 5, "multilabel"], [torch.float64], power=[0.0, 1.0, -1.0, 0.3], logits=["normal", "right", "large"]
)
# Volumes, and images that end behind or with their last region, of which some lack a class.
_REGIONS = Row((7, 8, 10), 3, torch.float64, "line", "right", "contiguous", torch.int64, "contiguous", IGNORED)
_REGIONS = _REGIONS._replace(parts="region")
SMALL_ROWS += [
    _REGIONS,
    _REGIONS._replace(size=(9, 7, 11), classes=1, labels="blocks", logits="normal"),
    _REGIONS._replace(size=(16, 11), classes=4, labels="blocks", pixels="pixel_weight"),
    _REGIONS._replace(size=(7, 9), classes=2, labels="noise"),
]
# The kernels of GPUs in Triton's interpreter, which takes seconds for each: a few of what they serve.
TRITON_ROWS = [
    *rows(
        [(7, 8), (12, 14)],
        [1, 2, 4, "multilabel"],
        [torch.float32, torch.bfloat16, torch.float64],
        labels=["noise", "blocks"],
        logits=["normal", "right", "extremely wrong"],
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
    Row((7, 8, 10), 2, torch.float32, "blocks", "right", "reversed", torch.int32, "transposed", -100, parts="region"),
    Row((2, 3, 4), 3, torch.float64, "noise", "normal", "sliced", torch.int16, "expanded", 1, resolution="any ratio"),
]


def make_case(row: Row) -> Case:
    """Return the case of a row, always the same."""
    torch.manual_seed(0)
    multilabel = row.classes == "multilabel"
    channels = 3 if multilabel else int(row.classes)
    low, size = _sizes(row)
    lead = (2, channels) if multilabel else (2,)
    y = _labels(row, (*lead, *size), 2 if multilabel else max(2, channels))
    x = _logits(row, y, (2, channels, *low)).to(row.dtype)
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
    return Case(x, y, options, unread_logits(x, valid if multilabel else valid[:, None]))


def unread_logits(x: Tensor, valid: Tensor) -> Tensor:
    """Return the logits that no valid pixel needs, also by interpolation; valid is [B, C, *S] or [B, 1, *S].

    A position on a low-resolution pixel may be rounded to one beside it, which reads the next pixel too.
    """
    read = valid.double()
    for axis, (low, high) in enumerate(zip(x.shape[2:], valid.shape[2:], strict=True), start=2):
        place = ((torch.arange(high) + 0.5).double() * low / high - 0.5).clamp(0, low - 1)
        apart = (place[:, None] - torch.arange(low)).abs()
        read = ((read.movedim(axis, -1) @ (apart < 1 + 1e-6 * (low != high)).double()) > 0).double().movedim(-1, axis)
    return (read == 0).expand(x.shape)


def with_unread(case: Case, value: float) -> Case:
    """Return the case with a value at all logits that nothing may read, in the same layout unless elements overlap."""
    logits = case.logits.masked_fill(case.unread, value)
    if 0 not in case.logits.stride():
        logits = torch.empty_strided(logits.shape, case.logits.stride(), dtype=logits.dtype).copy_(logits)
    return case._replace(logits=logits)


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


def _logits(row: Row, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64)
    if row.logits == "large":
        x *= 30
    if row.resolution != "same":
        return x * 3
    label = torch.where(y == IGNORED, 0, y)
    if y.dim() == x.dim():
        is_label = label
    elif shape[1] == 1:
        is_label = label[:, None]
    else:
        is_label = torch.zeros_like(x).scatter_(1, label[:, None], 1.0)
    right = 2 * is_label - 1
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


def laid_out(values: Tensor, layout: str) -> Tensor:
    """Return values [B, ..., *S] in another memory layout; an expanded one repeats some of them."""
    if layout == "channels last":
        return values.to(memory_format=torch.channels_last if values.dim() == 4 else torch.channels_last_3d)
    if layout == "transposed":
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "reversed":  # the first axis is the nearest in memory, as in Fortran
        return values.permute(*reversed(range(values.dim()))).contiguous().permute(*reversed(range(values.dim())))
    if layout == "expanded":
        return values[:1].expand(values.shape)
    if layout == "constant":
        return values[..., :1].expand(values.shape)
    if layout == "cropped":
        channels = values.shape[1]
        return F.pad(torch.cat([values] * 3, 1), [1, 1])[:, channels : 2 * channels, ..., 1:-1]
    if layout == "unaligned":  # to the length of a vector
        return values.new_empty(values.numel() + 3)[3:].view(values.shape).copy_(values)
    if layout == "sliced":
        return torch.stack([values, values], -1).flatten(-2)[..., ::2]
    return values
