"""What is drawn: the maps with their colors, and the images, class names and colors of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize, to_rgb
from torch import Tensor

from edgeloss import hints
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.palette import LOUD, NOTHING, RIGHT, VOID, WRONG, distinct_colors

_Array = npt.NDArray[Any]
Extend = Literal["neither", "min", "max", "both"]

# Perceptually uniform, without its darkest colors: a small loss on an edge differs from the black around it.
CMAP = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.2, 1, 256))).with_extremes(bad=LOUD)

# From blue through black, which is off the edges, to orange.
CMAP_DIFFERENCE = LinearSegmentedColormap.from_list("difference", [(0.13, 0.55, 1.0), (0, 0, 0), (1.0, 0.5, 0.05)])

_MOST_VALUES = 2**22  # that a range of colors is computed from

_NAMES = {
    "cross_entropy": "cross-entropy",
    "same_side": "same side",
    "other_side": "other side",
    "edge": "edge map",
    "gradient": "|gradient|",
    "region": "|region gradient|",
}


class ColoredMap(NamedTuple):
    """One map of a batch, with what its colors need.

    Attributes:
        key: of the map, as in :class:`edgeloss.LossMaps`.
        name: to be shown.
        stats: one line of text per image.
        raw: [B, h, w], as given.
        values: [B, h, w], what is colored, masked where not finite.
        void: [B, h, w] bool, drawn gray.
        nothing: [B, h, w] bool, drawn black.
        norm: the range of the colors.
        extend: the ends of the color bar that get an arrow, because values lie beyond them.
        outline: the color of the borders between the true labels.
        unit: of the values.
        log: the values are log10 of the raw ones.
    """

    key: str
    name: str
    stats: list[str]
    raw: _Array
    values: np.ma.MaskedArray[Any, Any]
    void: _Array
    nothing: _Array
    norm: Normalize
    extend: Extend
    outline: str
    unit: str
    log: bool


def color_maps(arrays: Arrays, *, terms: bool) -> list[ColoredMap]:
    """Return cross-entropy, edge map, gradient and, if the region term has a weight, its gradient, with their colors.

    Args:
        arrays: of the batch.
        terms: append the same side and the other side.
    """
    void, edges = arrays.target < 0, arrays.maps["edge_mask"]

    def on_edges(key: str) -> ColoredMap:
        return color_map(key, arrays.maps[key], edges, void, ~edges & ~void, outline="black", unit="nats")

    maps = [
        color_map("cross_entropy", arrays.maps["cross_entropy"], ~void, void, np.zeros_like(void), unit="nats"),
        on_edges("edge"),
        color_gradient("gradient", arrays.gradient, void),
    ]
    if arrays.region is not None:
        maps.append(color_gradient("region", arrays.region, void))
    return [*maps, on_edges("same_side"), on_edges("other_side")] if terms else maps


def color_gradient(key: str, norm: _Array, void: _Array) -> ColoredMap:
    """Return the size of a gradient [B, h, w] on a log scale; ``void`` [B, H, W] may be of a higher resolution."""
    zero = norm == 0
    if void.shape != norm.shape:
        # A cell of a lower resolution has no label of its own, and may have a gradient from the pixels around it.
        void = reduce_blocks(np.logical_or, void, norm.shape[1:]) & zero
    return color_map(key, norm, ~void, void, zero & ~void, log=True)


def color_map(
    key: str,
    values: _Array,
    counted: _Array,
    void: _Array,
    nothing: _Array,
    *,
    outline: str = "white",
    unit: str = "",
    log: bool = False,
) -> ColoredMap:
    """Return a map with its statistics and the range of its colors.

    Mean, maximum and color range are computed over the finite values in ``counted``.

    Args:
        key: of the map.
        values: [B, h, w], ≥ 0.
        counted: [B, h, w] bool, the pixels to measure.
        void: [B, h, w] bool, the pixels to draw gray.
        nothing: [B, h, w] bool, the pixels to draw black.
        outline: the color of the borders between the true labels.
        unit: of the values.
        log: color log10 of the values; the statistics remain those of the values.
    """
    finite, raw = np.isfinite(values), values
    stats = []
    for image, inside, failed in zip(values, counted & finite, (~finite).sum((1, 2)), strict=True):
        measured = image[inside]
        mean = np.sum(
            measured / max(measured.size, 1), dtype=np.float64
        )  # dividing first keeps the sum from overflowing
        line = f"mean {mean:.3g} · max {measured.max():.3g}" if measured.size else "nothing to measure"
        many = f"{failed // 1000}k" if failed >= 1000 else failed  # narrow pictures have room for three digits
        stats.append(f"{line} · {many} not finite" if failed else line)
    if log:
        values = np.log10(np.maximum(values, np.nextafter(0, 1)))  # finite at 0, which is drawn black
    norm, extend = _norm(values[counted & finite & ~nothing], log)
    shown = np.ma.array(values, mask=~finite)
    return ColoredMap(key, _NAMES.get(key, key), stats, raw, shown, void, nothing, norm, extend, outline, unit, log)


def map_to_rgb(colored: ColoredMap, index: int, shape: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """Return the colors of one image of a map, [h, w, 3].

    Where several pixels share one of ``shape``, it has the color of the largest of their values: a mean would fade thin
    edges. It is gray or black if all of them are.
    """
    nothing, void = colored.nothing[index], colored.void[index]
    shape = nothing.shape if shape is None else shape
    values = reduce_blocks(np.maximum, colored.values[index].filled(-np.inf), shape)
    colors = CMAP(colored.norm(np.ma.masked_equal(values, -np.inf)), bytes=True)[..., :3]
    for color, mask in {NOTHING: nothing | void, VOID: void}.items():
        colors[reduce_blocks(np.logical_and, mask, shape)] = np.rint(255 * np.array(color))
    return np.asarray(colors)


def reduce_blocks(ufunc: np.ufunc, values: _Array, shape: tuple[int, ...]) -> _Array:
    """Reduce the last two axes to ``shape``, or leave those that are not longer: block by block, without a gap.

    Args:
        ufunc: such as ``np.maximum``.
        values: [..., H, W].
        shape: (h, w), at least 1.

    Returns:
        [..., min(h, H), min(w, W)].

    Example:
        >>> reduce_blocks(np.maximum, np.array([[0, 1, 2, 3, 4]]), (1, 2)).tolist()
        [[1, 4]]
    """
    for axis, size in zip((-2, -1), shape, strict=True):
        if size < (length := values.shape[axis]):
            values = ufunc.reduceat(values, np.arange(size) * length // size, axis=axis)
    return values


def error_picture(target: _Array, prediction: _Array, image: _Array | None) -> _Array:
    """Return the wrong pixels in red: over the image in gray, or next to right ones in blue.

    Args:
        target: [H, W] labels, -1 at ignored pixels, which are gray.
        prediction: [H, W] labels.
        image: [H, W, 3] in [0, 1], or None.

    Returns:
        [H, W, 3] in [0, 1].
    """
    wrong, void = (target != prediction)[..., None], (target < 0)[..., None]
    right = np.array(RIGHT) if image is None else 0.15 + 0.7 * image.mean(axis=-1, keepdims=True)
    return np.where(void, VOID, np.where(wrong, WRONG, right))


def picture_of_labels(labels: _Array, colors: _Array, absent: tuple[float, float, float] = VOID) -> _Array:
    """Return the colors of labels [H, W], [H, W, 3] in [0, 1]; label -1 has the color ``absent``."""
    return np.asarray(np.vstack([colors, absent])[labels])  # label -1 is the last row


def _norm(values: _Array, log: bool) -> tuple[Normalize, Extend]:
    """Return the color range and the ends that get an arrow: from 0, or for logarithms over 1 to 8 decades."""
    if not values.size:
        return Normalize(-1, 0) if log else Normalize(0, 1), "neither"
    # Few values hold no outlier: "higher" selects the largest of up to 200. Of very many, some tell as much.
    some = values[:: max(1, values.size // _MOST_VALUES)]
    high = float(np.percentile(some, 99.5, method="higher"))
    if not log and high == 0:  # nearly all values are 0
        high = float(values.max()) or 1.0
    low = min(max(float(np.percentile(some, 0.5, method="lower")), high - 8), high - 1) if log else 0.0
    below, above = values.min() < low, values.max() > high
    return Normalize(low, high), "both" if below and above else "min" if below else "max" if above else "neither"


def rgb_images(image: Tensor, shape: tuple[int, ...]) -> _Array:
    """Return the caller's images as [B, H, W, 3] in [0, 1].

    Args:
        image: [B, 3, H, W] or [3, H, W], or with one gray channel; floating in [0, 1] or uint8.
        shape: (B, H, W) of the target.

    Raises:
        ValueError: if the image has another shape or range.
    """
    if not isinstance(image, Tensor):
        raise TypeError(f"image: expected a tensor, but got {hints.not_a_tensor('image', image)}")
    pictures = image[None] if image.ndim == 3 else image
    batch, height, width = shape
    if pictures.shape not in ((batch, 3, height, width), (batch, 1, height, width)):
        hint = "pass it in the size of the target"
        if pictures.shape[1:3] == (height, width):
            hint = "for channels at the end pass image.movedim(-1, -3)"
        elif pictures.shape == (batch, 4, height, width):
            hint = "leave out its alpha channel: image[..., :3, :, :]"
        raise ValueError(
            f"image: expected [{batch}, 3, {height}, {width}] or one gray channel, but got {list(image.shape)}; {hint}"
        )
    array = pictures.detach().cpu().float().numpy()
    if image.dtype == torch.uint8:
        array = array / np.float32(255)
    if not (array.min() >= -0.01 and array.max() <= 1.01):  # resizing may overshoot a little
        raise ValueError(
            f"image: expected floating values in [0, 1], or uint8, but got {image.dtype} from {array.min():.3g} to "
            f"{array.max():.3g}; undo the normalization"
        )
    return np.broadcast_to(np.moveaxis(array.clip(0, 1), 1, -1), (batch, height, width, 3))


def rgb_bytes(image: Tensor, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return what :func:`rgb_images` does, [B, H, W, 3] in 0 ... 255."""
    return np.stack([np.rint(one * 255).astype(np.uint8) for one in rgb_images(image, shape)])


def class_colors(palette: Sequence[Any] | _Array | None, classes: int) -> _Array:
    """Return the caller's colors, or by default distinct ones, [classes, 3] in [0, 1].

    Raises:
        ValueError: if there are too few colors.
    """
    if palette is None:
        return distinct_colors(classes)
    if len(palette) < classes:
        raise ValueError(
            f"palette: expected at least {classes} colors, but got {len(palette)}; pass one per class, or None"
        )
    is_integer = [not isinstance(color, str) and np.asarray(color).dtype.kind in "iu" for color in palette]
    scaled = [tuple(np.asarray(c) / 255) if integer else c for c, integer in zip(palette, is_integer, strict=True)]
    return np.array([to_rgb(color) for color in scaled[:classes]])


def class_labels(class_names: Sequence[str] | None, classes: int) -> list[str]:
    """Return the caller's class names, or by default the class indices.

    Raises:
        ValueError: if there are too few names.
    """
    names = [str(c) for c in range(classes)] if class_names is None else [str(name) for name in class_names]
    if len(names) < classes:
        raise ValueError(
            f"class_names: expected at least {classes} names, but got {len(names)}; pass one per class, or None"
        )
    return names
