"""The arrays of a report, rounded and compressed, as its script reads them."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Iterator
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
    """Return the packed arrays of each image, by name, in the highest precision that needs ``room`` bytes or less."""
    for precision in _PRECISIONS:
        if precision is not _PRECISIONS[-1] and _estimate(content, precision) > room:
            continue
        images = [
            {name: packed.as_json() for name, packed in _image(content, index, precision, _whole)}
            for index in range(len(content.arrays.target))
        ]
        if sum(len(array["data"]) for image in images for array in image.values()) <= room:
            break
    return images, precision


def _estimate(content: Content, precision: Precision) -> float:
    """Return about how many bytes the images need."""
    return sum(
        len(packed.compressed()) * packed.whole / max(packed.values.size, 1)
        for index in range(len(content.arrays.target))
        for _, packed in _image(content, index, precision, _sample)
    )


class _Packed(NamedTuple):
    """An array to store, or a part of it: labels, or the codes of floats."""

    kind: str
    values: _Array
    whole: int  # how many values the whole array has

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "shape": self.values.shape, "data": self.compressed()}

    def compressed(self) -> str:
        values = self.values
        if self.kind == "float":
            # All high bytes precede all low bytes: similar bytes are adjacent, and compress well.
            values = np.stack([values >> 8, values & 255]).astype(np.uint8)
        return base64.b64encode(zlib.compress(values.tobytes(), 6)).decode()


_Part = Callable[[_Array], _Array]


def _sample(values: _Array) -> _Array:
    """Return ``_BLOCKS`` blocks of rows, or all rows of a small array."""
    rows = max(1, _BLOCK * len(values) // max(values.size, 1))
    step = len(values) // (rows * _BLOCKS)
    if step < 2:
        return values
    blocks = values[: _BLOCKS * step * rows].reshape(_BLOCKS, step * rows, *values.shape[1:])
    return blocks[:, :rows].reshape(-1, *values.shape[1:])


def _whole(values: _Array) -> _Array:
    return values


def _image(content: Content, index: int, precision: Precision, part: _Part) -> Iterator[tuple[str, _Packed]]:
    """Yield the name and a part of the content of each array of one image."""
    arrays, neighbors, top_classes = content.arrays, content.neighbors, content.top_classes
    bits, step, count = precision
    edges = arrays.maps["edge_mask"][index]

    def labels(values: _Array, classes: int) -> _Packed:
        # The largest value of the type stands for -1.
        dtype = np.uint8 if classes <= 255 else np.uint16
        return _Packed(dtype.__name__, part(values).astype(dtype), values.size)

    def floats(values: _Array, step: float = step) -> _Packed:
        return _Packed("float", _codes(part(values), bits, step), values.size)

    yield "truth", labels(arrays.target[index], arrays.classes)
    yield "prediction", labels(arrays.prediction[index], arrays.classes)
    yield "edge_mask", labels(edges, 2)
    for rank in range(min(count, len(top_classes.classes))):
        if rank:  # rank 0 is the prediction
            yield f"class_{rank}", labels(top_classes.classes[rank, index], arrays.classes)
        yield f"probability_{rank}", floats(top_classes.probabilities[rank, index])
    for key, colored, values in content.layers:
        packed = floats(values[index], 0 if key in ("gradient", "distance") else step)
        if key in _EDGE_LAYERS:
            packed.values[~part(edges)] = OFF_EDGES
        packed.values[part(colored.void[index])] = IGNORED
        yield key, packed

    before, here = (int(arrays.maps["edge_mask"][images].sum()) for images in (slice(index), index))
    own = slice(before, before + here)
    for rank in range(len(neighbors.nll)):
        down, right = neighbors.step[:, rank, own]
        yield f"down_{rank}", labels(down + REACH, REACH)
        yield f"right_{rank}", labels(right + REACH, REACH)
        yield f"given_{rank}", floats(neighbors.probability[rank, own])
        yield f"nll_{rank}", floats(neighbors.nll[rank, own])
        yield f"share_{rank}", floats(neighbors.share[rank, own])


# Codes that are no numbers. They precede those of all numbers: the maximum of several pixels is that of their numbers.
IGNORED, OFF_EDGES, FIRST_NUMBER = 1, 2, 3


def _codes(values: _Array, bits: int, step: float) -> _Array:
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
    return np.asarray(code + FIRST_NUMBER, dtype=np.uint16)


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
