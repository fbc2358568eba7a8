"""The arrays of a report → text for its page: rounded to 16-bit codes, in bands, compressed, with their histograms."""

from __future__ import annotations

import base64
import enum
import math
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeloss.viz.arrays import LARGE, Arrays
from edgeloss.viz.coloring import ColoredMap

_Array = npt.NDArray[Any]
MAX_BYTES = 14_000_000
_EDGE_LAYERS = ("same_side", "other_side", "edge")
_EXACT_LAYERS = (
    "gradient",
    "region",
    "distance",
    "pixel_distance",
)  # whose small values matter: they have no smallest step
_LEVELS = 6, 3  # of zlib; of large pictures
_BAND = 2**19  # pixels of the image
_BINS = 60


class Code(enum.IntEnum):
    """Codes that are no numbers, the first code of a number, which is 0, and that of inf; nan is larger.

    The former precede those of all numbers: the maximum of several pixels is that of their numbers.
    """

    HIDDEN = 0  # by a filter of the page; no pixel is stored so
    IGNORED = 1
    OFF_EDGES = 2
    FIRST = 3
    NOT_FINITE = 0xFF00 + FIRST


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


class _Stored(NamedTuple):
    """An array of labels or of codes of floats: its kind and shape, its bands of rows, and whether it is a layer."""

    kind: str
    shape: tuple[int, ...]
    bands: Iterator[_Array]
    layer: ColoredMap | None = None


def pack_images(
    images: Sequence[Arrays], layers: Sequence[ColoredMap], room: int, pool: Executor
) -> tuple[list[dict[str, Any]], Precision]:
    """Return arrays and histograms of each image, by name, in a precision that fits.

    Args:
        images: each of a batch of it alone, with details.
        layers: of all images, in the order of the menus.
        room: how many bytes the arrays may take.
        pool: to pack arrays in.
    """
    pixels = sum(image.target.size for image in images)
    bits = max(8 - int(1.2 * math.log2(max(pixels / LARGE, 1))), 1)  # fits for logits that vary slowly, as of networks
    while True:
        packed = [_pack(image, layers, at, Precision(bits), pool) for at, image in enumerate(images)]
        size = sum(len(band) for image in packed for array in image["arrays"].values() for band in array["bands"])
        if size <= room or bits == 1:
            return packed, Precision(bits)
        bits = max(bits - (1 if size < 1.3 * room else 2), 1)


def _pack(
    image: Arrays, layers: Sequence[ColoredMap], at: int, precision: Precision, pool: Executor
) -> dict[str, dict[str, Any]]:
    def run(stored: _Stored) -> tuple[dict[str, Any], dict[str, Any] | None]:
        kind, shape, bands, layer = stored
        texts, counts = [], np.zeros(2**16, np.int64)
        for codes in bands:
            # Of codes, all high bytes precede all low bytes: similar bytes are adjacent, and compress well.
            content = codes.view(np.uint8).reshape(-1, 2).T[::-1] if kind == "float" else codes
            texts.append(base64.b64encode(zlib.compress(content.tobytes(), _LEVELS[math.prod(shape) > LARGE])).decode())
            if layer is not None:
                counts += np.bincount(codes.ravel(), minlength=2**16)
        bins = None if layer is None else histogram(counts, log=layer.kind.log)
        return {"kind": kind, "shape": shape, "bands": texts}, bins

    stored = _arrays(image, layers, at, precision)
    packed = dict(zip(stored, pool.map(run, stored.values()), strict=True))  # zlib and NumPy let other threads run
    return {
        "arrays": {name: array for name, (array, _) in packed.items()},
        "histograms": {layer.key: packed[layer.key][1] for layer in layers},
    }


def _arrays(image: Arrays, layers: Sequence[ColoredMap], at: int, precision: Precision) -> dict[str, _Stored]:
    """Return the arrays of an image by name, in bands: a page unpacks those that it shows."""
    details, edges = image.details, image.maps["edge_mask"][0]
    assert details is not None
    count = max(1, round(edges.size / _BAND))

    def bands(rows: int) -> list[slice]:
        return [slice(rows * band // count, rows * (band + 1) // count) for band in range(count)]

    starts = np.concatenate([[0], edges.sum(1).cumsum()])  # of the edge pixels of each row
    on_edges = [slice(int(starts[rows.start]), int(starts[rows.stop])) for rows in bands(len(edges))]

    def labels(values: _Array) -> _Stored:
        # The largest value of the type stands for -1, and a page hides pixels by the one below.
        dtype = np.uint8 if image.classes <= 254 else np.uint16
        return _Stored(dtype.__name__, values.shape, (values[rows].astype(dtype) for rows in bands(len(values))))

    def floats(values: _Array, parts: Sequence[slice]) -> _Stored:
        codes = (encode(values[part], precision.bits, precision.step) for part in parts)
        return _Stored("float", values.shape, codes)

    def colored(layer: ColoredMap) -> _Stored:
        raw, void = layer.raw[at], layer.void[at]
        step = 0 if layer.key in _EXACT_LAYERS else precision.step

        def codes(rows: slice) -> _Array:
            if layer.key in _EDGE_LAYERS:
                result = np.full(raw[rows].shape, Code.OFF_EDGES, np.uint16)
                result[edges[rows]] = encode(raw[rows][edges[rows]], precision.bits, step)
            else:
                result = encode(raw[rows], precision.bits, step)
            result[void[rows]] = Code.IGNORED
            return result

        return _Stored("float", raw.shape, map(codes, bands(len(raw))), layer)

    stored = {"truth": labels(image.target[0]), "prediction": labels(image.prediction[0])}
    for rank, probability in enumerate(details.probabilities[: precision.classes, 0]):
        if rank:  # rank 0 is the prediction
            stored[f"class_{rank}"] = labels(details.others[rank - 1, 0])
        stored[f"probability_{rank}"] = floats(probability, bands(len(probability)))
    stored |= {layer.key: colored(layer) for layer in layers}
    near = details.neighbors
    stored |= {"nll": floats(near.nll.T, on_edges), "share": floats(near.share.T, on_edges)}
    steps = (_Stored("int16", step.T.shape, map(step.T.__getitem__, on_edges)) for step in near.step)
    return stored | dict(zip(("down", "right"), steps, strict=True))


# -------------------------------------------------------------------------------------------------------------- codes


def encode(values: _Array, bits: int, step: float) -> npt.NDArray[np.uint16]:
    """Convert numbers ≥ 0 to codes in their order, with nan last.

    A code is the exponent of float32 and 8 bits of the significand, of which ``bits`` are used, plus ``Code.FIRST``.

    Args:
        values: floating, of any shape.
        bits: of the significand, at most 8.
        step: round values below 1 to its multiples; 0 does not.

    Returns:
        uint16, in the shape of the values.

    Example:
        >>> decode(encode(np.array([0.0, 0.3, 5.01]), 8, 0)).tolist()
        [0.0, 0.2998046875, 5.015625]
    """
    with np.errstate(over="ignore"):
        single = np.abs(values, dtype=np.float32, casting="same_kind", order="C")  # -0 has the code of 0
    if step:
        rounded = np.rint(single * np.float32(1 / step))
        rounded *= np.float32(step)
        np.copyto(single, rounded, where=single < 1)
    code, drop = np.minimum(single.view(np.uint32), np.float32(np.nan).view(np.uint32)), np.uint32(23 - bits)
    # Rounding may carry into the exponent; inf has no significand to round, and nan keeps its quiet bit.
    code += np.uint32(1) << (drop - np.uint32(1))
    code >>= drop
    code <<= np.uint32(8 - bits)
    code += np.uint32(Code.FIRST)
    return np.asarray(code, np.uint16)


def decode(codes: _Array) -> npt.NDArray[np.float32]:
    """Convert codes of numbers back to numbers, float32; others become 0."""
    first = np.uint32(Code.FIRST)
    return np.asarray(((np.maximum(codes, first).astype(np.uint32) - first) << np.uint32(15)).view(np.float32))


def histogram(counts: _Array, *, log: bool) -> dict[str, Any] | None:
    """Count the finite numbers of a map in bins of equal width.

    Args:
        counts: [65536] how often each code occurs.
        log: the bins have equal widths in log10.

    Returns:
        ``low`` and ``width`` of the first bin, in log10 if wanted, and the ``counts`` of all; None without numbers.

    Example:
        >>> counts = np.bincount([Code.FIRST, Code.FIRST, Code.FIRST + 127 * 256], minlength=65536)
        >>> bins = histogram(counts, log=False)
        >>> bins["counts"][0], bins["counts"][-1], bins["width"] * 60  # twice 0 and once 1
        (2, 1, 1.0)
    """
    codes = np.flatnonzero(counts[: Code.NOT_FINITE])
    codes = codes[codes >= Code.FIRST + log]
    if not codes.size:
        return None
    numbers = decode(codes).astype(np.float64)
    numbers = np.log10(numbers) if log else numbers
    low = float(numbers.min()) if log else 0.0
    width = (float(numbers.max()) - low) / _BINS or 1.0
    bins = np.minimum(((numbers - low) / width).astype(int), _BINS - 1)
    sums = np.bincount(bins, counts[codes], _BINS).astype(int)
    return {"low": low, "width": width, "counts": sums.tolist()}
