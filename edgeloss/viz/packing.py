"""The arrays of a report → text for its page: rounded to 16-bit codes, in bands, compressed, with their histograms."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeloss.viz.arrays import LARGE, Arrays
from edgeloss.viz.coloring import ColoredMap

_Array = npt.NDArray[Any]
MAX_BYTES = 14_000_000
REACH = 2**15  # added to the steps to a neighbor, which makes them ≥ 0
_EDGE_LAYERS = ("same_side", "other_side", "edge")
_EXACT_LAYERS = ("gradient", "region", "distance")  # whose small values matter: they have no smallest step
_LEVELS = 6, 3  # of zlib; of large pictures
_BAND = 2**19  # pixels of the image
_BINS = 60

# Codes that are no numbers. They precede those of all numbers: the maximum of several pixels is that of their numbers.
HIDDEN, IGNORED, OFF_EDGES, FIRST_NUMBER = 0, 1, 2, 3  # no pixel is stored as hidden
NOT_FINITE = 0xFF00 + FIRST_NUMBER  # inf; nan is larger
CODES = {
    "HIDDEN": HIDDEN,
    "IGNORED": IGNORED,
    "OFF_EDGES": OFF_EDGES,
    "FIRST": FIRST_NUMBER,
    "NOT_FINITE": NOT_FINITE,
    "REACH": REACH,
}


class Precision(NamedTuple):
    """How exact the numbers behind the pixels are.

    Attributes:
        bits: of a significand, 1 to 8.
    """

    bits: int

    @property
    def step(self) -> float:
        """The smallest step of probabilities and losses."""
        return 2.0 ** -{8: 13, 7: 10}.get(self.bits, self.bits + 2)

    @property
    def classes(self) -> int:
        """How many of the most probable classes are stored."""
        return min(max(self.bits - 1, 1), 3)


class Content(NamedTuple):
    """What a page holds of one image.

    Attributes:
        arrays: of the image alone, with details.
        layers: of all images, in the order of the menus.
        at: which of the images.
    """

    arrays: Arrays
    layers: Sequence[ColoredMap]
    at: int


class _Stored(NamedTuple):
    """An array of labels or of codes of floats: its kind and shape, and the functions that return its bands of rows."""

    kind: str
    shape: tuple[int, ...]
    bands: list[partial[_Array]]


def pack_images(images: Sequence[Content], room: int, pool: Executor) -> tuple[list[dict[str, Any]], Precision]:
    """Return arrays and histograms of each image, by name, in a precision that fits.

    Args:
        images: to pack.
        room: how many bytes the arrays may take.
        pool: to pack arrays in.
    """
    pixels = sum(image.arrays.target.size for image in images)
    bits = max(8 - int(1.2 * math.log2(max(pixels / LARGE, 1))), 1)  # fits for logits that vary slowly, as of networks
    while True:
        packed = [_pack(image, Precision(bits), pool) for image in images]
        size = sum(len(band) for image in packed for array in image["arrays"].values() for band in array["bands"])
        if size <= room or bits == 1:
            return packed, Precision(bits)
        bits = max(bits - (1 if size < 1.3 * room else 2), 1)


def _pack(image: Content, precision: Precision, pool: Executor) -> dict[str, Any]:
    log = {layer.key: layer.log for layer in image.layers}
    arrays = _arrays(image, precision)

    def run(name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        kind, shape, bands = arrays[name]
        level, texts, counts = _LEVELS[math.prod(shape) > LARGE], [], np.zeros(2**16, np.int64)
        for band in bands:
            codes = band()
            texts.append(_compressed(codes, kind, level))
            if name in log:
                counts += np.bincount(codes.ravel(), minlength=2**16)
        bins = histogram(counts, log=log[name]) if name in log else None
        return {"kind": kind, "shape": shape, "bands": texts}, bins

    packed = dict(zip(arrays, pool.map(run, arrays), strict=True))  # zlib and NumPy let other threads run
    return {
        "arrays": {name: array for name, (array, _) in packed.items()},
        "histograms": {name: bins for name, (_, bins) in packed.items() if name in log},
    }


def _compressed(values: _Array, kind: str, level: int) -> str:
    if kind == "float":
        # All high bytes precede all low bytes: similar bytes are adjacent, and compress well.
        values = np.stack([values >> 8, values & 255]).astype(np.uint8)
    return base64.b64encode(zlib.compress(values.tobytes(), level)).decode()


def _arrays(image: Content, precision: Precision) -> dict[str, _Stored]:
    """Return the arrays of an image by name, in bands: a page unpacks those that it shows."""
    arrays, layers, number = image
    details, edges = arrays.details, arrays.maps["edge_mask"][0]
    assert details is not None
    count = max(1, round(edges.size / _BAND))

    def bands(rows: int) -> list[slice]:
        return [slice(rows * band // count, rows * (band + 1) // count) for band in range(count)]

    starts = np.concatenate([[0], edges.sum(1).cumsum()])  # of the edge pixels of each row
    on_edges = [slice(int(starts[rows.start]), int(starts[rows.stop])) for rows in bands(len(edges))]

    def labels(values: _Array, numbers: int, at: Sequence[slice] | None = None) -> _Stored:
        # The largest value of the type stands for -1, and a page hides pixels by the one below.
        dtype = np.uint8 if numbers <= 254 else np.uint16
        parts = [partial(values[part].astype, dtype) for part in at or bands(len(values))]
        return _Stored(dtype.__name__, values.shape, parts)

    def floats(
        values: _Array, step: float, special: Mapping[int, _Array], at: Sequence[slice] | None = None
    ) -> _Stored:
        parts = [
            partial(encode, values[part], precision.bits, step, {code: mask[part] for code, mask in special.items()})
            for part in at or bands(len(values))
        ]
        return _Stored("float", values.shape, parts)

    named = {"truth": arrays.target, "prediction": arrays.prediction}
    stored = {name: labels(values[0], arrays.classes) for name, values in named.items()}
    for rank, probability in enumerate(details.probabilities[: precision.classes, 0]):
        if rank:  # rank 0 is the prediction
            stored[f"class_{rank}"] = labels(details.others[rank - 1, 0], arrays.classes)
        stored[f"probability_{rank}"] = floats(probability, precision.step, {})
    for layer in layers:
        special = {OFF_EDGES: ~edges} if layer.key in _EDGE_LAYERS else {}
        step = 0 if layer.key in _EXACT_LAYERS else precision.step
        stored[layer.key] = floats(layer.raw[number], step, special | {IGNORED: layer.void[number]})
    near = details.neighbors
    for name, axis in zip(("down", "right"), near.step, strict=True):
        stored[name] = labels(axis.T.astype(np.int32) + REACH, REACH, on_edges)
    return stored | {
        name: floats(values.T, precision.step, {}, on_edges)
        for name, values in (("nll", near.nll), ("share", near.share))
    }


# -------------------------------------------------------------------------------------------------------------- codes


def encode(values: _Array, bits: int, step: float, special: Mapping[int, _Array] | None = None) -> _Array:
    """Convert numbers ≥ 0 to codes in their order, with nan last.

    A code is the exponent of float32 and 8 bits of the significand, of which ``bits`` are used, plus ``FIRST_NUMBER``.

    Args:
        values: floating, of any shape.
        bits: of the significand, at most 8.
        step: round values below 1 to its multiples; 0 does not.
        special: masks of the pixels that have a code that is no number, by the code.

    Returns:
        uint16, in the shape of the values.

    Example:
        >>> decode(encode(np.array([0.0, 0.3, 5.01]), 8, 0)).tolist()
        [0.0, 0.2998046875, 5.015625]
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if step:
        single = np.where(single < 1, np.rint(single * np.float32(1 / step)) * np.float32(step), single)
    # A nan of any payload has one code, and -0 the code of 0.
    raw = np.where(np.isnan(single), np.float32(np.nan), np.abs(single)).view(np.uint32)
    drop = 23 - bits
    # Rounding may carry into the exponent; inf has no significand to round, and nan keeps its quiet bit.
    code = (raw + np.uint32(1 << (drop - 1))) >> np.uint32(drop) << np.uint32(8 - bits)
    codes = np.asarray(code + FIRST_NUMBER, dtype=np.uint16)
    for replaced, mask in (special or {}).items():
        codes[mask] = replaced
    return codes


def decode(codes: _Array) -> npt.NDArray[np.float32]:
    """Convert codes of numbers back to numbers, float32; others become 0."""
    return ((np.maximum(codes, FIRST_NUMBER).astype(np.uint32) - FIRST_NUMBER) << 15).view(np.float32)


def histogram(counts: _Array, *, log: bool) -> dict[str, Any] | None:
    """Count the finite numbers of a map in bins of equal width.

    Args:
        counts: [65536] how often each code occurs.
        log: the bins have equal widths in log10.

    Returns:
        ``low`` and ``width`` of the first bin, in log10 if wanted, and the ``counts`` of all; None without numbers.

    Example:
        >>> counts = np.bincount([FIRST_NUMBER, FIRST_NUMBER, FIRST_NUMBER + 127 * 256], minlength=65536)
        >>> bins = histogram(counts, log=False)
        >>> bins["counts"][0], bins["counts"][-1], bins["width"] * 60  # twice 0 and once 1
        (2, 1, 1.0)
    """
    codes = np.flatnonzero(counts[:NOT_FINITE])
    codes = codes[codes >= FIRST_NUMBER + log]
    if not codes.size:
        return None
    numbers = decode(codes).astype(np.float64)
    numbers = np.log10(numbers) if log else numbers
    low = float(numbers.min()) if log else 0.0
    width = (float(numbers.max()) - low) / _BINS or 1.0
    bins = np.minimum(((numbers - low) / width).astype(int), _BINS - 1)
    sums = np.bincount(bins, counts[codes], _BINS).astype(int)
    return {"low": low, "width": width, "counts": sums.tolist()}
