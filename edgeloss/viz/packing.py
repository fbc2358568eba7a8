"""The arrays of a report, rounded and compressed, as its script reads them."""

from __future__ import annotations

import base64
import bisect
import io
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from edgeloss.viz.arrays import Arrays, TopClasses
from edgeloss.viz.codes import IGNORED, OFF_EDGES, encode
from edgeloss.viz.coloring import ColoredMap
from edgeloss.viz.neighbors import Neighbors
from edgeloss.viz.summary import histogram

_Array = npt.NDArray[Any]
MAX_BYTES = 14_000_000
REACH = 2**15  # added to the steps to a neighbor, which makes them ≥ 0
_EDGE_LAYERS = ("same_side", "other_side", "edge")
_LEVEL = 6  # of zlib
_BAND = 2**19  # pixels of the image
_BLOCK = 2**14  # values
_BLOCKS = 16  # sizes are estimated from as many blocks of rows, or from all of a small image


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


class Layer(NamedTuple):
    """A map of the menus."""

    key: str
    colored: ColoredMap
    values: _Array


class Content(NamedTuple):
    """The numbers of a report."""

    arrays: Arrays
    layers: list[Layer]  # in the order of the menus
    top_classes: TopClasses
    neighbors: Neighbors


def pack_images(content: Content, room: int) -> tuple[list[dict[str, Any]], Precision]:
    """Return arrays and histograms of each image, by name, in the highest precision that fits.

    Args:
        content: to pack.
        room: how many bytes the arrays may take.
    """
    # Bisected: a coarser precision takes less room, and even an estimate takes time.
    at = bisect.bisect_left(_PRECISIONS[:-1], True, key=lambda precision: _estimate(content, precision) <= room)
    for precision in _PRECISIONS[at:]:
        images = [_pack(content, index, precision) for index in range(len(content.arrays.target))]
        if sum(len(band) for image in images for array in image["arrays"].values() for band in array["bands"]) <= room:
            break
    return images, precision


def _pack(content: Content, index: int, precision: Precision) -> dict[str, Any]:
    layers = {layer.key: layer for layer in content.layers}
    packed: dict[str, Any] = {"arrays": {}, "histograms": {}}
    for name, array in _image(content, index, precision, _bands):
        packed["arrays"][name] = {"kind": array.kind, "shape": array.shape, "bands": array.compressed()}
        if name in layers:
            counts = sum(np.bincount(part.ravel(), minlength=2**16) for part in array.parts)
            log = layers[name].colored.log
            packed["histograms"][name] = histogram(np.asarray(counts), log=log)
    return packed


def _estimate(content: Content, precision: Precision) -> float:
    """Return about how many bytes the images need."""
    return sum(
        sum(map(len, packed.compressed())) * math.prod(packed.shape) / max(sum(part.size for part in packed.parts), 1)
        for index in range(len(content.arrays.target))
        for _, packed in _image(content, index, precision, _sample)
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
        return [base64.b64encode(zlib.compress(self._bytes(part), _LEVEL)).decode() for part in self.parts]

    def _bytes(self, values: _Array) -> bytes:
        if self.kind == "float":
            # All high bytes precede all low bytes: similar bytes are adjacent, and compress well.
            values = np.stack([values >> 8, values & 255]).astype(np.uint8)
        return values.tobytes()


_Split = Callable[[_Array, Sequence[int]], list[_Array]]


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


def _image(content: Content, index: int, precision: Precision, split: _Split) -> Iterator[tuple[str, _Packed]]:
    """Yield the name and content of each array of one image, split in bands: a page unpacks those that it shows."""
    arrays, neighbors, top_classes = content.arrays, content.neighbors, content.top_classes
    bits, step, count = precision
    edges = arrays.maps["edge_mask"][index]
    bands = max(1, round(edges.size / _BAND))

    def ends(rows: int) -> list[int]:
        return [rows * (band + 1) // bands for band in range(bands)]

    def labels(values: _Array, classes: int, at: Sequence[int] = ends(len(edges))) -> _Packed:
        # The largest value of the type stands for -1.
        dtype = np.uint8 if classes <= 255 else np.uint16
        return _Packed(dtype.__name__, values.shape, [part.astype(dtype) for part in split(values, at)])

    def floats(values: _Array, step: float = step, at: Sequence[int] | None = None) -> _Packed:
        parts = split(values, ends(len(values)) if at is None else at)
        return _Packed("float", values.shape, [encode(part, bits, step) for part in parts])

    yield "truth", labels(arrays.target[index], arrays.classes)
    yield "prediction", labels(arrays.prediction[index], arrays.classes)
    for rank in range(min(count, len(top_classes.classes))):
        if rank:  # rank 0 is the prediction
            yield f"class_{rank}", labels(top_classes.classes[rank, index], arrays.classes)
        yield f"probability_{rank}", floats(top_classes.probabilities[rank, index])
    for key, colored, values in content.layers:
        packed = floats(values[index], 0 if key in ("gradient", "distance") else step)
        special = {OFF_EDGES: ~edges} if key in _EDGE_LAYERS else {}
        for code, mask in {**special, IGNORED: colored.void[index]}.items():
            for part, where in zip(packed.parts, split(mask, ends(len(mask))), strict=True):
                part[where] = code
        yield key, packed

    before, here = (int(arrays.maps["edge_mask"][images].sum()) for images in (slice(index), index))
    own = slice(before, before + here)
    edges_before = np.concatenate([[0], edges.sum(1).cumsum()])
    at = [int(edges_before[row]) for row in ends(len(edges))]
    down, right = (axis[:, own].T for axis in neighbors.step)
    yield "down", labels(down + REACH, REACH, at)
    yield "right", labels(right + REACH, REACH, at)
    yield "given", floats(neighbors.probability[:, own].T, at=at)
    yield "nll", floats(neighbors.nll[:, own].T, at=at)
    yield "share", floats(neighbors.share[:, own].T, at=at)


def picture_uri(rgb: _Array) -> str:
    """Return an image [H, W, 3] in [0, 1] as a data URI: a PNG, or a JPEG of a tenth of ``MAX_BYTES`` at most."""
    picture = Image.fromarray(np.rint(rgb * 255).astype(np.uint8))
    kind = "png" if rgb.shape[0] * rgb.shape[1] <= 512 * 512 else "jpeg"
    for quality in (92, 80, 60, 30):
        file = io.BytesIO()
        picture.save(file, kind, quality=quality)
        if file.tell() <= MAX_BYTES / 10:
            break
    return data_uri(file.getvalue(), kind)


def data_uri(content: bytes, kind: str) -> str:
    """Return a picture, ``kind`` png or jpeg, as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
