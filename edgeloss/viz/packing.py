"""The arrays of a report → text for its page: as 16-bit codes, in bands of rows, compressed, with their histograms."""

from __future__ import annotations

import base64
import enum
import math
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeloss.viz.arrays import LARGE, Arrays
from edgeloss.viz.coloring import ColoredMap

_Array = npt.NDArray[Any]
MAX_BYTES = 14_000_000
_LEVELS = 6, 3  # of zlib; of large pictures
_BAND = 2**19  # pixels of the image
_BINS = 60


class Code(enum.IntEnum):
    """Codes that are no numbers, the first code of a number, which is 0, and that of inf; nan is larger.

    The former precede those of all numbers: the maximum of several pixels is that of their numbers. Class k is stored
    as the number of its place, ``FIRST`` + k.
    """

    HIDDEN = 0  # by a filter of the page; no pixel is stored so
    IGNORED = 1  # of a prediction: where a logit is nan
    NOTHING = 2  # off the edges, a gradient of exactly 0, or no other label nearby
    FIRST = 3
    NOT_FINITE = 0xFF00 + FIRST


def step_of(bits: int) -> float:
    """Return the smallest step of probabilities and losses that are stored with significands of 1 to 8 bits."""
    return 2.0 ** -{8: 13, 7: 10}.get(bits, bits + 2)


def pack_images(
    images: Sequence[Arrays], layers: Sequence[ColoredMap], room: int, pool: Executor
) -> tuple[list[dict[str, Any]], int]:
    """Return the arrays of each image by name, and in how many bits of a significand they fit.

    Args:
        images: each of a batch of it alone, with details.
        layers: of all images, in the order of the menus.
        room: how many bytes the arrays may take.
        pool: to pack arrays in.
    """
    pixels = sum(image.target.size for image in images)
    bits = max(8 - int(1.2 * math.log2(max(pixels / LARGE, 1))), 1)  # fits for logits that vary slowly, as of networks
    while True:
        packed = [_pack(image, layers, at, bits, pool) for at, image in enumerate(images)]
        size = sum(len(band) for arrays in packed for array in arrays.values() for band in array["bands"])
        if size <= room or bits == 1:
            return packed, bits
        bits = max(bits - (1 if size < 1.3 * room else 2), 1)


def _pack(image: Arrays, layers: Sequence[ColoredMap], at: int, bits: int, pool: Executor) -> dict[str, dict[str, Any]]:
    details, edges = image.details, image.maps["edge_mask"][0]
    assert details is not None
    count = max(1, round(edges.size / _BAND))
    rows = [len(edges) * band // count for band in range(count + 1)]  # where bands begin
    on_edges = np.concatenate([[0], edges.sum(1).cumsum()])[rows]  # the same, counted in edge pixels

    def labels(values: _Array, part: slice) -> _Array:
        codes = values[part].astype(np.uint8 if image.classes <= 255 - Code.FIRST else np.uint16)
        codes += codes.dtype.type(Code.FIRST)
        codes[values[part] < 0] = Code.IGNORED
        return codes

    def floats(values: _Array, part: slice) -> _Array:
        return encode(values[part], bits, step_of(bits))

    def colored(layer: ColoredMap, part: slice) -> _Array:
        # The nearest of the cells for each pixel: all layers of a page have one resolution.
        (height, width), (down, across) = edges.shape, layer.raw.shape[1:]
        row = (2 * np.arange(part.start, part.stop) + 1) * down // (2 * height)
        column = (2 * np.arange(width) + 1) * across // (2 * width)
        raw, nothing, void = (values[at].take(row, 0) for values in (layer.raw, layer.nothing, layer.void))
        codes = np.full(raw.shape, Code.NOTHING, np.uint16)
        shown: Any = ~nothing if layer.kind.nothing else ...  # few pixels, of edge terms
        # Small distances and gradients matter: they have no smallest step.
        codes[shown] = encode(raw[shown], bits, 0 if layer.kind.nothing in ("far", "zero") else step_of(bits))
        codes[void] = Code.IGNORED
        return codes if across == width else codes.take(column, 1)

    def pack(codes_of: Callable[[Any, slice], _Array], values: Any, cuts: Sequence[int]) -> dict[str, Any]:  # noqa: ANN401
        texts, counts, level = [], np.zeros(2**16, np.int64), _LEVELS[edges.size > LARGE]
        for part in map(slice, cuts[:-1], cuts[1:]):
            codes = codes_of(values, part)
            texts.append(_compress(codes, level))
            if codes_of is colored:
                counts += np.bincount(codes.ravel(), minlength=2**16)
        packed = {"kind": codes.dtype.name, "shape": (int(cuts[-1]), codes.shape[1]), "bands": texts}
        return packed | ({"histogram": histogram(counts, log=values.kind.log)} if codes_of is colored else {})

    def steps(values: _Array, part: slice) -> _Array:
        return np.ascontiguousarray(values[part])

    arrays: dict[str, tuple[Any, ...]] = {"truth": (labels, image.target[0], rows)}
    arrays["prediction"] = labels, image.prediction[0], rows
    for rank, probability in enumerate(details.probabilities[: max(bits - 1, 1), 0]):  # fewer if they are coarse
        if rank:  # rank 0 is the prediction
            arrays[f"class_{rank}"] = labels, details.others[rank - 1, 0], rows
        arrays[f"probability_{rank}"] = floats, probability, rows
    arrays |= {layer.key: (colored, layer, rows) for layer in layers}
    arrays |= {"nll": (floats, details.nll.T, on_edges), "share": (floats, details.share.T, on_edges)}
    arrays |= {"down": (steps, details.step[0].T, on_edges), "right": (steps, details.step[1].T, on_edges)}
    # zlib and NumPy let other threads run.
    return dict(zip(arrays, pool.map(pack, *zip(*arrays.values(), strict=True)), strict=True))


def _compress(codes: _Array, level: int) -> str:
    """Return codes as text: how rows differ from those above, where cells of several pixels become zeros.

    All high bytes precede all low bytes, as similar bytes that are adjacent compress well.
    """
    change = np.concatenate([codes[:1], codes[1:] - codes[:-1]])
    content = change.view(np.uint8).reshape(-1, codes.itemsize).T[::-1]
    return base64.b64encode(zlib.compress(content.tobytes(), level)).decode()


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
    low, high = float(numbers.min()) if log else 0.0, float(numbers.max())
    high = high if high > low else low + _BINS
    sums, _ = np.histogram(numbers, _BINS, (low, high), weights=counts[codes])
    return {"low": low, "width": (high - low) / _BINS, "counts": sums.astype(int).tolist()}
