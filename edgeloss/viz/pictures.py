"""Photographs, label maps and overlays → the small pictures of a page, for which it reserves their space."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import binary_dilation

from edgeloss.viz.coloring import color_bytes, picture_of_labels, reduce_blocks
from edgeloss.viz.pages import Part, data_uri
from edgeloss.viz.palette import LOUD, PALE, RIGHT, RIM, TRUE_BORDER, VOID, WRONG

_Array = npt.NDArray[Any]
Rgb = npt.NDArray[np.uint8]
_PIXELS = 10_000_000  # of one kind of picture in a page, so that it stays small where there are many
_SIDES = 200, 720


def side_for(count: int) -> int:
    """Return how many pixels the longer side of the pictures of ``count`` images may have.

    Example:
        >>> side_for(1), side_for(100), side_for(5000)
        (720, 316, 200)
    """
    low, high = _SIDES
    return min(max(int(math.sqrt(_PIXELS / max(count, 1))), low), high)


def shrunk(shape: Sequence[int], side: int) -> tuple[int, int]:
    """Return a size (H, W) whose longer side has at most ``side`` pixels.

    Example:
        >>> shrunk((360, 480), 360), shrunk((36, 48), 360)
        ((270, 360), (36, 48))
    """
    height, width = (max(1, round(length * min(1.0, side / max(shape)))) for length in shape)
    return height, width


def photograph(image: Rgb | None, side: int) -> str:
    """Return an image [H, W, 3] as the data URI of a JPEG, nothing for None."""
    if image is None:
        return ""
    small, file = Image.fromarray(image), io.BytesIO()
    small.thumbnail((side, side))
    small.save(file, "jpeg", quality=85, subsampling=0)  # else colors of single pixels are lost
    return data_uri(file.getvalue(), "jpeg")


def picture(colors: Rgb, side: int, caption: str, *, base: str = "", about: str = "") -> Part:
    """Return a picture, without loss: where it is smaller, it has every n-th pixel.

    Args:
        colors: [H, W, 3], or [H, W, 4] with opacity.
        side: pixels of the longer side.
        caption: above the picture.
        base: ``"gray"`` shows the photograph of the image in light gray where the picture is transparent.
        about: below the picture.
    """
    shape = colors.shape[:2]
    size = shrunk(shape, side)
    down, right = ((np.arange(new) + 0.5) * length / new for new, length in zip(size, shape, strict=True))
    small = np.ascontiguousarray(colors[down.astype(int)[:, None], right.astype(int)])
    source = data_uri(encode_png(small), "png")
    return {"source": source, "caption": caption, "about": about, "base": base, "size": size[::-1]}


def photo_picture(image: Rgb | None, shape: Sequence[int]) -> Part:
    """Return the photograph of an image as a picture of it; an empty one if there is none."""
    height, width = shape
    caption = "no image given" if image is None else "image"
    return {"source": "", "caption": caption, "about": "", "base": "photo", "size": [width, height]}


def encode_png(colors: Rgb) -> bytes:
    """Return a picture [H, W, 3 or 4] as a PNG, with a palette if it has at most 256 colors."""
    channels, file = colors.shape[2], io.BytesIO()
    packed = np.full((*colors.shape[:2], 4), 255, np.uint8)
    packed[..., :channels] = colors
    found, codes = np.unique(packed.view(np.uint32)[..., 0], return_inverse=True)
    if len(found) > 256:
        Image.fromarray(colors).save(file, "png", optimize=True)
        return file.getvalue()
    table = found[:, None].view(np.uint8)
    indexed = Image.fromarray(codes.reshape(colors.shape[:2]).astype(np.uint8))
    indexed.putpalette(table[:, :3].tobytes())
    opacity: dict[str, Any] = {"transparency": table[:, 3].tobytes()} if channels == 4 else {}
    indexed.save(file, "png", optimize=True, **opacity)
    return file.getvalue()


def overlay(marks: Mapping[tuple[float, float, float], _Array], shape: Sequence[int], *, on_photo: bool) -> Rgb:
    """Return masks [H, W] in their colors, [H, W, 4], transparent elsewhere; without a photograph light gray there."""
    colors = np.zeros((*shape, 4), np.uint8)
    colors[:] = (0, 0, 0, 0) if on_photo else (*color_bytes([PALE[1]] * 3), 255)
    for color, mask in marks.items():
        colors[mask] = (*color_bytes(color), 255)
    return colors


def error_overlay(target: _Array, prediction: _Array, *, on_photo: bool, side: int | None = None) -> Rgb:
    """Return the wrong pixels in red, ignored ones in gray; without a photograph right ones in light gray.

    Args:
        target: [H, W] labels, -1 at ignored pixels.
        prediction: [H, W] labels.
        on_photo: there is a photograph below.
        side: pixels of the longer side of the picture, which shows every wrong pixel also where it is smaller than the
            labels; that of the labels if None.

    Returns:
        [H, W, 4], or smaller.
    """
    size = target.shape if side is None else shrunk(target.shape, side)
    wrong = reduce_blocks(np.logical_or, (target != prediction) & (target >= 0), size)
    void = reduce_blocks(np.logical_and, target < 0, size)
    right = {} if on_photo else {RIGHT: ~wrong & ~void}
    return overlay({**right, WRONG: wrong, VOID: void}, wrong.shape, on_photo=on_photo)


def labels_picture(target: _Array, prediction: _Array, colors: _Array) -> Rgb:
    """Return the colors of predicted labels, [H, W, 3], gray where no label counts."""
    drawn = picture_of_labels(prediction, colors, LOUD)
    drawn[target < 0] = color_bytes(VOID)
    return drawn


def with_borders(drawn: Rgb, labels: _Array) -> Rgb:
    """Return a picture with the borders of labels as lines between its pixels, black with a light rim.

    Args:
        drawn: [H, W, 3].
        labels: [H, W], -1 where none counts.

    Returns:
        About 384 pixels across: each pixel of the picture is a square.
    """
    scale = max(384 // max(labels.shape), 4)
    large, values = (one.repeat(scale, 0).repeat(scale, 1) for one in (drawn, labels))
    mask = np.zeros(values.shape, bool)
    for along, borders in ((values, mask), (values.T, mask.T)):
        differ = (along[1:] != along[:-1]) & (along[1:] >= 0) & (along[:-1] >= 0)
        borders[1:] |= differ
        borders[:-1] |= differ
    large[binary_dilation(mask, np.ones((3, 3)))] = color_bytes(RIM)
    large[mask] = color_bytes(TRUE_BORDER)
    return large


def window_of_most(
    counts: _Array, across: int, apart: Sequence[tuple[slice, slice]] = ()
) -> tuple[slice, slice] | None:
    """Return the rows and columns of the square of the largest sum, in the middle of equal ones; None for none > 0.

    Args:
        counts: [H, W].
        across: pixels of a side.
        apart: squares of that size which it must not overlap.

    Example:
        >>> counts = np.zeros((96, 96), int)
        >>> counts[40:50, 60:70], counts[:30, :30] = 1, -1
        >>> int(counts[window_of_most(counts, 32)].sum()), int(counts[window_of_most(-counts, 32)].sum())
        (100, -900)
        >>> print(window_of_most(counts, 32, apart=[(slice(30, 62), slice(50, 82))]))
        None
    """
    sums = np.pad(counts, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    totals = sums[across:, across:] - sums[:-across, across:] - sums[across:, :-across] + sums[:-across, :-across]
    for rows, columns in apart:
        near = (slice(max(side.start - across + 1, 0), side.start + across) for side in (rows, columns))
        totals[tuple(near)] = 0
    if totals.max() <= 0:
        return None
    equal = np.argwhere(totals == totals.max())
    top, left = equal[np.abs(equal - equal.mean(0)).sum(1).argmin()].tolist()
    return slice(top, top + across), slice(left, left + across)
