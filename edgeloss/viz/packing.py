"""The arrays of a report, rounded and compressed, as its script reads them."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from edgeloss.viz.arrays import Arrays, Neighbors, TopClasses
from edgeloss.viz.coloring import ColoredMap

_Array = npt.NDArray[Any]
MAX_BYTES = 14_000_000
REACH = 2**15  # added to the steps to a neighbor, which makes them ≥ 0
_EDGE_LAYERS = ("same_side", "other_side", "edge")
_BLOCK = 2**15  # values
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
    """Return the packed arrays of each image, by name, in the highest precision that needs ``room`` bytes or less."""
    for precision in _PRECISIONS:
        if precision is not _PRECISIONS[-1] and _estimate(content, precision) > room:
            continue
        images = [
            {name: packed.as_json() for name, packed in _image(content, index, precision)}
            for index in range(len(content.arrays.target))
        ]
        if sum(len(array["data"]) for image in images for array in image.values()) <= room:
            break
    return images, precision


def _estimate(content: Content, precision: Precision) -> float:
    """Return about how many bytes the images need."""
    return sum(
        packed.estimated_size()
        for index in range(len(content.arrays.target))
        for _, packed in _image(content, index, precision)
    )


class _Packed(NamedTuple):
    """An array to store: labels, or the codes of floats."""

    kind: str
    values: _Array

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "shape": self.values.shape, "data": self._compressed(self.values)}

    def estimated_size(self) -> float:
        rows = max(1, _BLOCK * len(self.values) // max(self.values.size, 1))
        step = len(self.values) // (rows * _BLOCKS)
        if step < 2:
            return len(self._compressed(self.values))
        sample = self.values[: _BLOCKS * step * rows].reshape(_BLOCKS, step, -1)[:, 0]
        return len(self._compressed(sample)) * self.values.size / sample.size

    def _compressed(self, values: _Array) -> str:
        if self.kind == "float":
            # All high bytes precede all low bytes: similar bytes are adjacent, and compress well.
            values = np.stack([values >> 8, values & 255]).astype(np.uint8)
        return base64.b64encode(zlib.compress(values.tobytes(), 6)).decode()


def _image(content: Content, index: int, precision: Precision) -> Iterator[tuple[str, _Packed]]:
    """Yield the name and the content of each array of one image."""
    arrays, neighbors, top_classes = content.arrays, content.neighbors, content.top_classes
    bits, step, count = precision
    edges = arrays.maps["edge_mask"][index]
    yield "truth", _labels(arrays.target[index], arrays.classes)
    yield "prediction", _labels(arrays.prediction[index], arrays.classes)
    yield "edge_mask", _labels(edges.astype(np.int64), 2)
    for rank in range(min(count, len(top_classes.classes))):
        if rank:  # rank 0 is the prediction
            yield f"class_{rank}", _labels(top_classes.classes[rank, index], arrays.classes)
        yield f"probability_{rank}", _floats(top_classes.probabilities[rank, index], bits, step)
    for key, colored, values in content.layers:
        packed = _floats(values[index], bits, 0 if key in ("gradient", "distance") else step)
        if key in _EDGE_LAYERS:
            packed.values[~edges] = OFF_EDGES
        packed.values[colored.void[index]] = IGNORED
        yield key, packed

    before, here = (int(arrays.maps["edge_mask"][part].sum()) for part in (slice(index), index))
    own = slice(before, before + here)
    for rank in range(len(neighbors.nll)):
        down, right = neighbors.step[:, rank, own]
        yield f"down_{rank}", _labels(down + REACH, REACH)
        yield f"right_{rank}", _labels(right + REACH, REACH)
        yield f"given_{rank}", _floats(neighbors.probability[rank, own], bits, step)
        yield f"nll_{rank}", _floats(neighbors.nll[rank, own], bits, step)
        yield f"share_{rank}", _floats(neighbors.share[rank, own], bits, step)


def _labels(values: _Array, classes: int) -> _Packed:
    """Convert labels; the largest value of the type stands for -1."""
    dtype = np.uint8 if classes <= 255 else np.uint16
    return _Packed(dtype.__name__, values.astype(dtype))


# Codes that are no numbers. They precede those of all numbers: the maximum of several pixels is that of their numbers.
IGNORED, OFF_EDGES, FIRST_NUMBER = 1, 2, 3


def _floats(values: _Array, bits: int, step: float) -> _Packed:
    """Convert numbers ≥ 0 to codes in their order, with nan last.

    A code is the exponent of float32 and 8 bits of the significand, of which ``bits`` are used, plus ``FIRST_NUMBER``.
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if step:
        single = np.where(single < 1, np.rint(np.minimum(single, 1) / step) * np.float32(step), single)
    # A nan of any payload has one code, and -0 the code of 0.
    raw = np.where(np.isnan(single), np.float32(np.nan), np.abs(single)).view(np.uint32)
    drop = 23 - bits
    # Rounding may carry into the exponent; inf has no significand to round, and nan keeps its quiet bit.
    code = (raw + np.uint32(1 << (drop - 1))) >> np.uint32(drop) << np.uint32(8 - bits)
    return _Packed("float", (code + FIRST_NUMBER).astype(np.uint16))


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
