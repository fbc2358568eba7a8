"""The arrays of a report → text for its page: rounded to 16-bit codes, in bands, compressed, with their histograms."""

from __future__ import annotations

import base64
import bisect
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import ColoredMap

_Array = npt.NDArray[Any]
MAX_BYTES = 14_000_000
LARGE = 2**21  # pixels
REACH = 2**15  # added to the steps to a neighbor, which makes them ≥ 0
_EDGE_LAYERS = ("same_side", "other_side", "edge")
_EXACT_LAYERS = ("gradient", "region", "distance")  # whose small values matter: they have no smallest step
_LEVELS = 6, 3  # of zlib; of large pictures
_BAND = 2**19  # pixels of the image
_BLOCK = 2**14  # values
_BLOCKS = 8  # sizes are estimated from as many blocks of rows, or from all of a small image
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
        bits: of a significand.
        step: the smallest step of probabilities and losses.
        classes: how many of the most probable classes are stored.
    """

    bits: int
    step: float
    classes: int


# The first that keeps the page small enough is used.
_PRECISIONS = (
    Precision(8, 2.0**-13, 3),
    Precision(7, 2.0**-10, 3),
    Precision(6, 2.0**-8, 3),
    Precision(5, 2.0**-7, 3),
    Precision(4, 2.0**-6, 3),
    Precision(3, 2.0**-5, 2),
    Precision(2, 2.0**-4, 1),
    Precision(1, 2.0**-3, 1),
)


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


_Split = Callable[[_Array, Sequence[int]], list[_Array]]  # an array, and where its bands end → the parts to store
_Job = Callable[[_Split], "_Packed"]


def pack_images(images: Sequence[Content], room: int, pool: Executor) -> tuple[list[dict[str, Any]], Precision]:
    """Return arrays and histograms of each image, by name, in the highest precision that fits.

    Args:
        images: to pack.
        room: how many bytes the arrays may take.
        pool: to pack arrays in.
    """

    def fits(precision: Precision) -> bool:
        samples = (job for image in images for job in _jobs(image, precision).values())
        return sum(pool.map(_estimate, samples)) <= room

    # Bisected: a coarser precision takes less room, and even an estimate takes time.
    at = bisect.bisect_left(_PRECISIONS[:-1], True, key=fits)
    for precision in _PRECISIONS[at:]:
        packed = [_pack(image, precision, pool) for image in images]
        if sum(len(band) for image in packed for array in image["arrays"].values() for band in array["bands"]) <= room:
            break
    return packed, precision


def _pack(image: Content, precision: Precision, pool: Executor) -> dict[str, Any]:
    log = {layer.key: layer.log for layer in image.layers}
    jobs = _jobs(image, precision)

    def run(name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        array = jobs[name](_bands)
        packed = {"kind": array.kind, "shape": array.shape, "bands": array.compressed()}
        if name not in log:
            return packed, None
        counts = sum(np.bincount(part.ravel(), minlength=2**16) for part in array.parts)
        return packed, histogram(np.asarray(counts), log=log[name])

    packed = dict(zip(jobs, pool.map(run, jobs), strict=True))  # zlib and NumPy let other threads run
    return {
        "arrays": {name: array for name, (array, _) in packed.items()},
        "histograms": {name: bins for name, (_, bins) in packed.items() if name in log},
    }


def _estimate(job: _Job) -> float:
    """Return about how many bytes an array needs."""
    packed = job(_sample)
    return (
        sum(map(len, packed.compressed())) * math.prod(packed.shape) / max(sum(part.size for part in packed.parts), 1)
    )


class _Packed(NamedTuple):
    """An array to store, or a part of it: labels, or the codes of floats.

    Attributes:
        kind: uint8, uint16 or float.
        shape: of the whole array.
        parts: of the array, along its first axis.
    """

    kind: str
    shape: tuple[int, ...]
    parts: list[_Array]

    def compressed(self) -> list[str]:
        level = _LEVELS[math.prod(self.shape) > LARGE]
        return [base64.b64encode(zlib.compress(self._bytes(part), level)).decode() for part in self.parts]

    def _bytes(self, values: _Array) -> bytes:
        if self.kind == "float":
            # All high bytes precede all low bytes: similar bytes are adjacent, and compress well.
            values = np.stack([values >> 8, values & 255]).astype(np.uint8)
        return values.tobytes()


def _sample(values: _Array, _ends: Sequence[int]) -> list[_Array]:
    """Return ``_BLOCKS`` blocks of rows, or all rows of a small array."""
    rows = max(1, _BLOCK * len(values) // max(values.size, 1))
    step = len(values) // (rows * _BLOCKS)
    if step < 2:
        return [values]
    blocks = values[: _BLOCKS * step * rows].reshape(_BLOCKS, step * rows, *values.shape[1:])
    return [blocks[:, :rows].reshape(-1, *values.shape[1:])]


def _bands(values: _Array, ends: Sequence[int]) -> list[_Array]:
    """Return bands of rows that end at ``ends``."""
    return np.split(values, ends[:-1])


def _jobs(image: Content, precision: Precision) -> dict[str, _Job]:
    """Return, by name, what makes each array of an image, split in bands: a page unpacks those that it shows."""
    (arrays, layers, number), (bits, step, count) = image, precision
    details, edges = arrays.details, arrays.maps["edge_mask"][0]
    assert details is not None
    bands = max(1, round(edges.size / _BAND))

    def ends(rows: int) -> list[int]:
        return [rows * (band + 1) // bands for band in range(bands)]

    starts = np.concatenate([[0], edges.sum(1).cumsum()])  # of the edge pixels of each row
    on_edges = [int(starts[row]) for row in ends(len(edges))]

    def labels(values: _Array, numbers: int, at: Sequence[int] | None = None) -> _Job:
        # The largest value of the type stands for -1, and a page hides pixels by the one below.
        dtype, at = np.uint8 if numbers <= 254 else np.uint16, at or ends(len(values))
        return lambda split: _Packed(dtype.__name__, values.shape, [part.astype(dtype) for part in split(values, at)])

    def floats(
        values: _Array, step: float = step, at: Sequence[int] | None = None, special: Mapping[int, _Array] | None = None
    ) -> _Job:
        def job(split: _Split) -> _Packed:
            cuts = at or ends(len(values))
            parts = [encode(part, bits, step) for part in split(values, cuts)]
            for code, mask in (special or {}).items():
                for part, where in zip(parts, split(mask, cuts), strict=True):
                    part[where] = code
            return _Packed("float", values.shape, parts)

        return job

    named = {"truth": arrays.target, "prediction": arrays.prediction}
    jobs = {name: labels(values[0], arrays.classes) for name, values in named.items()}
    for rank, probability in enumerate(details.probabilities[:count, 0]):
        if rank:  # rank 0 is the prediction
            jobs[f"class_{rank}"] = labels(details.others[rank - 1, 0], arrays.classes)
        jobs[f"probability_{rank}"] = floats(probability)
    for layer in layers:
        special = {OFF_EDGES: ~edges} if layer.key in _EDGE_LAYERS else {}
        least = 0 if layer.key in _EXACT_LAYERS else step
        jobs[layer.key] = floats(layer.raw[number], least, special=special | {IGNORED: layer.void[number]})
    near = details.neighbors
    for name, axis in zip(("down", "right"), near.step, strict=True):
        jobs[name] = labels(axis.T.astype(np.int32) + REACH, REACH, on_edges)
    return jobs | {"nll": floats(near.nll.T, at=on_edges), "share": floats(near.share.T, at=on_edges)}


# -------------------------------------------------------------------------------------------------------------- codes


def encode(values: _Array, bits: int, step: float) -> _Array:
    """Convert numbers ≥ 0 to codes in their order, with nan last.

    A code is the exponent of float32 and 8 bits of the significand, of which ``bits`` are used, plus ``FIRST_NUMBER``.

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
        single = np.ascontiguousarray(values, dtype=np.float32)
    if step:
        single = np.where(single < 1, np.rint(single * np.float32(1 / step)) * np.float32(step), single)
    # A nan of any payload has one code, and -0 the code of 0.
    raw = np.where(np.isnan(single), np.float32(np.nan), np.abs(single)).view(np.uint32)
    drop = 23 - bits
    # Rounding may carry into the exponent; inf has no significand to round, and nan keeps its quiet bit.
    code = (raw + np.uint32(1 << (drop - 1))) >> np.uint32(drop) << np.uint32(8 - bits)
    return np.asarray(code + FIRST_NUMBER, dtype=np.uint16)


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
