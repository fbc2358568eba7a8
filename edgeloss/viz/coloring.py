"""Arrays → what is drawn: maps with their colors, and the images, class names and colors of the caller."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from torch import Tensor

from edgeloss._checks import hints
from edgeloss._checks.options import EDGE_TERMS, TERMS
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.palette import (
    BETTER,
    LOUD,
    NOTHING,
    PALE,
    RIGHT,
    VOID,
    WORSE,
    WRONG,
    WRONG_IN_BOTH,
    distinct_colors,
)

_Array = npt.NDArray[Any]
Color = tuple[float, float, float]
Extend = Literal["neither", "min", "max", "both"]

# Perceptually uniform, without its darkest colors: a small loss on an edge differs from the black around it.
CMAP = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.3, 1, 256))).with_extremes(bad=LOUD)

CLIP = 99.5  # percent of the values, from which on a map has its last color
_LEAST_LOSS = math.log(2)  # nats, where a range of colors ends at least: small losses must not look like large ones
_MOST_VALUES = 2**22  # that a range of colors is computed from


class Kind(NamedTuple):
    """What is known of a map without its numbers.

    Attributes:
        name: to be shown.
        about: what it shows, in a line.
        unit: of the values.
        nothing: what black means.
        log: the colors are those of log10; the statistics remain those of the values.
    """

    name: str
    about: str
    unit: str = ""
    nothing: str = "off the edges"
    log: bool = False


_ABOUT_SIDES = {
    "same_side": "neighbors of the class that miss it",
    "other_side": "neighbors across that are given it",
}
_KINDS = {
    "cross_entropy": Kind(TERMS[0].title, "how improbable the true label is", "nats", ""),
    **{term.name: Kind(term.title, _ABOUT_SIDES[term.name], "nats") for term in EDGE_TERMS},
    "edge": Kind("edge map", "loss at edges, no class weights", "nats"),
    "distance": Kind("distance", "to the nearest other label", "", "far"),
    "pixel_distance": Kind("distance", "to the nearest other label", "px", "far"),
    "gradient": Kind("|gradient|", "bright: what a step changes most", "L2 norm", "zero", log=True),
    "region": Kind("|region gradient|", "what the region term adds to it", "L2 norm", "zero", log=True),
}


class ColoredMap(NamedTuple):
    """One map of a batch, with what its colors need.

    Attributes:
        key: of the map, as in :class:`edgeloss.LossMaps`.
        kind: its name and more.
        raw: [B, h, w], as given.
        void: [B, h, w] bool, drawn gray.
        nothing: [B, h, w] bool, drawn black.
        low: the lowest value of the color range, of logarithms if the kind says so.
        high: the highest.
        extend: the ends of the color bar that get an arrow, because values lie beyond them.
        means: of the finite values of each image that count, nan if there are none.
        most: the largest of them, 0 if there are none.
        failed: the numbers of values that are not finite.
    """

    key: str
    kind: Kind
    raw: _Array
    void: _Array
    nothing: _Array
    low: float
    high: float
    extend: Extend
    means: list[float]
    most: list[float]
    failed: list[int]

    @property
    def stats(self) -> list[str]:
        """One line of text per image: its mean, its maximum, and how many values are not finite."""
        return [self.describe(index, {"mean": mean, "max": self.most[index]}) for index, mean in enumerate(self.means)]

    def describe(self, index: int, values: Mapping[str, float]) -> str:
        """Return values of an image by their names as a line of text, and how many are not finite."""
        shown = [f"{name} {shown_number(value, by_power=self.kind.log)}" for name, value in values.items()]
        line = ["nothing to measure"] if math.isnan(self.means[index]) else shown
        failed = self.failed[index]
        many = f"{failed // 1000}k" if failed >= 1000 else failed  # narrow pictures have room for three digits
        return " · ".join(line + [f"{many} not finite"] * bool(failed))

    @property
    def has_bar(self) -> bool:
        """Whether there is a value to read off a color bar."""
        return not self.kind.log or max(self.most) > 0

    @property
    def is_clipped(self) -> bool:
        """Whether values lie above the color range, which then ends at ``CLIP`` percent of them."""
        return self.extend in ("max", "both")

    @property
    def ends(self) -> tuple[str, str]:
        """The ends of the color bar as text."""
        log = self.kind.log
        low, high = (shown_number(10**end if log else end, by_power=log) for end in (self.low, self.high))
        below, above = "≤ " * (self.extend in ("min", "both")), "≥ " * self.is_clipped
        return f"{below}{low}", f"{above}{high}\xa0{self.kind.unit}".strip()

    def values(self, index: int) -> np.ma.MaskedArray[Any, Any]:
        """Return what is colored of one image, masked where not finite."""
        raw = self.raw[index]
        if self.kind.log:
            return np.ma.array(np.log10(np.maximum(raw, np.nextafter(0, 1))), mask=~np.isfinite(raw))  # 0 is black
        return np.ma.array(raw, mask=~np.isfinite(raw))


def color_maps(arrays: Arrays, keys: Sequence[str]) -> list[ColoredMap]:
    """Return those of the maps, ``gradient`` and ``region`` that the arrays have, with their colors."""
    maps = arrays.maps | {"gradient": arrays.gradient, "region": arrays.region}
    void, edges = arrays.target < 0, arrays.maps["edge_mask"]
    return [color_layer(key, values, edges, void) for key in keys if (values := maps.get(key)) is not None]


def color_layer(key: str, values: _Array, edges: _Array | None, void: _Array) -> ColoredMap:
    """Return a map with its statistics and the range of its colors.

    Mean, maximum and color range are computed over the finite values of valid pixels, of edge terms on the edges only.

    Args:
        key: of the map.
        values: [B, h, w], ≥ 0.
        edges: [B, H, W] bool, the edge pixels; a gradient needs none.
        void: [B, H, W] bool, the ignored pixels, gray; of a gradient they may be of a higher resolution.
    """
    kind = _KINDS[key]
    if kind.nothing == "zero":
        nothing = values == 0
        if void.shape != values.shape:
            # A cell of a lower resolution has no label of its own, and may have a gradient from the pixels around it.
            void = reduce_blocks(np.logical_or, void, values.shape[1:]) & nothing
        counted, nothing = ~void, nothing & ~void
    elif kind.nothing == "far":  # infinite: no other label within the search radius
        nothing = np.isinf(values)
        counted = ~nothing & ~void
    elif kind.nothing:
        assert edges is not None
        counted, nothing = edges, ~edges & ~void
    else:
        counted, nothing = ~void, np.zeros_like(void)
    means, failed, measured = [], [], []
    for image, inside, black in zip(values, counted, nothing, strict=True):
        finite = np.isfinite(image)
        failed.append(int(np.count_nonzero(~finite & ~black)))
        numbers = image[inside & finite if failed[-1] else inside]
        measured.append(numbers)
        # Dividing first keeps the sum from overflowing.
        means.append(float(np.sum(numbers / numbers.size, dtype=np.float64)) if numbers.size else math.nan)
    least = _LEAST_LOSS if kind.unit == "nats" else 0.0
    low, high, extend = _color_range(measured[0] if len(measured) == 1 else np.concatenate(measured), kind.log, least)
    most = [float(numbers.max(initial=0)) for numbers in measured]
    return ColoredMap(key, kind, values, void, nothing, low, high, extend, means, most, failed)


def shown_number(value: float, *, by_power: bool = False) -> str:
    """Return a value of a map as text, with three digits; very small and very large ones by a power of ten, or all.

    Example:
        >>> [shown_number(value) for value in (0, 0.178, 7.2, 5.67e-6, 1234567)], shown_number(0.178, by_power=True)
        (['0', '0.178', '7.20', '5.67×10⁻⁶', '1.23×10⁶'], '1.78×10⁻¹')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    if 1e-3 <= abs(value) < 1e5 and not by_power:
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits}×{power_of_ten(int(exponent))}"


def power_of_ten(exponent: float) -> str:
    """Return a power of ten as text, which a formula would not be in a file of vectors.

    Example:
        >>> power_of_ten(-12.0)
        '10⁻¹²'
    """
    return "10" + f"{exponent:.3g}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _color_range(values: _Array, log: bool, least: float = 0.0) -> tuple[float, float, Extend]:
    """Return the color range and the ends that get an arrow: from 0, or for logarithms over 1 to 8 decades.

    A range from 0 ends at ``least`` or higher.
    """
    if log:
        values = values[values > 0]  # zero gradients are black
    if not values.size:
        return (-1.0, 0.0, "neither") if log else (0.0, 1.0, "neither")
    # "higher" selects the largest of up to 200 values, so that none is cut off. Of very many, a sample is enough.
    ends, some = np.array([values.min(), values.max()], np.float64), values[:: max(1, values.size // _MOST_VALUES)]
    ends, some = (np.log10(ends), np.log10(some)) if log else (ends, some)
    high = float(np.percentile(some, CLIP, method="higher"))
    if not log:
        high = max(high or float(ends[1]) or 1.0, least)  # nearly all values may be 0
    low = min(max(float(np.percentile(some, 0.5, method="lower")), high - 8), high - 1) if log else 0.0
    return low, high, _extend(below=bool(ends[0] < low), above=bool(ends[1] > high))


def shared_range(maps: Sequence[ColoredMap]) -> dict[str, Any]:
    """Return ``low``, ``high`` and ``extend`` of a color range for all these maps: the medians of their ends."""
    low, high = (float(np.median([getattr(one, end) for one in maps])) for end in ("low", "high"))
    below = any(one.low < low or one.extend in ("min", "both") for one in maps)
    above = any(one.high > high or one.is_clipped for one in maps)
    return {"low": low, "high": high, "extend": _extend(below=below, above=above)}


def _extend(*, below: bool, above: bool) -> Extend:
    """Return which ends of a color bar get an arrow."""
    return "both" if below and above else "min" if below else "max" if above else "neither"


def map_to_rgb(colored: ColoredMap, index: int, shape: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """Return the colors of one image of a map, [h, w, 3].

    Where several pixels share one of ``shape``, it has the color of the largest of their values: a mean would fade thin
    edges. It is gray or black if all of them are.
    """
    nothing, void = colored.nothing[index], colored.void[index]
    shape = nothing.shape if shape is None else shape
    values = reduce_blocks(np.maximum, colored.values(index).filled(-np.inf), shape)
    norm = Normalize(colored.low, colored.high)
    colors = CMAP(norm(np.ma.masked_equal(values, -np.inf)), bytes=True)[..., :3]
    for color, mask in {NOTHING: nothing | void, VOID: void}.items():
        colors[reduce_blocks(np.logical_and, mask, shape)] = color_bytes(color)
    return np.asarray(colors)


def reduce_blocks(ufunc: np.ufunc, values: _Array, shape: tuple[int, ...]) -> _Array:
    """Reduce the last two axes to ``shape``, or leave those that are not longer: block by block, without a gap.

    Args:
        ufunc: such as ``np.maximum``, which may have a value twice.
        values: [..., H, W].
        shape: (h, w), at least 1.

    Returns:
        [..., min(h, H), min(w, W)].

    Example:
        >>> reduce_blocks(np.maximum, np.array([[0, 1, 2, 3, 4]]), (1, 2)).tolist()
        [[1, 4]]
    """
    for axis, size in zip((-2, -1), shape, strict=True):
        if size < (length := values.shape[axis]):  # ufunc.reduceat takes ten times as long
            ends = np.arange(size + 1) * length // size
            places = (np.minimum(ends[:-1] + k, ends[1:] - 1) for k in range(-(-length // size)))
            values = functools.reduce(ufunc, (values.take(place, axis) for place in places))
    return values


def error_picture(target: _Array, prediction: _Array, image: _Array | None) -> npt.NDArray[np.uint8]:
    """Return the wrong pixels in red over the image in light gray, or over plain gray.

    Args:
        target: [H, W] labels, -1 at ignored pixels, which are gray.
        prediction: [H, W] labels.
        image: [H, W, 3] uint8, or None.

    Returns:
        [H, W, 3].
    """
    picture = np.empty((*target.shape, 3), np.uint8)
    picture[:] = color_bytes(RIGHT)
    if image is not None:
        low, high = PALE
        gray = image.mean(-1, dtype=np.float32, keepdims=True)
        picture[:] = (0.5 + 255 * low + (high - low) * gray).astype(np.uint8)
    picture[target != prediction] = color_bytes(WRONG)
    picture[target < 0] = color_bytes(VOID)
    return picture


def compared_errors(target: _Array, first: _Array, second: _Array) -> dict[Color, _Array]:
    """Return where one of two predictions is wrong and the other is not, and where both are, by color.

    Args:
        target: [H, W] labels, -1 at ignored pixels, which are wrong nowhere.
        first: [H, W] labels.
        second: [H, W] labels.
    """
    was, now = ((labels != target) & (target >= 0) for labels in (first, second))
    return {BETTER: was & ~now, WORSE: now & ~was, WRONG_IN_BOTH: was & now}


def picture_of_labels(labels: _Array, colors: _Array, absent: Color = VOID) -> npt.NDArray[np.uint8]:
    """Return the colors of labels [H, W], [H, W, 3]; ``colors`` are [C, 3] in [0, 1], and label -1 has ``absent``."""
    return np.asarray(color_bytes(np.vstack([colors, absent]))[labels])  # label -1 is the last row


def color_bytes(color: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return colors in [0, 1] as bytes.

    Example:
        >>> color_bytes((0, 0.5, 1)).tolist()
        [0, 128, 255]
    """
    return np.asarray(np.rint(255 * np.asarray(color)), dtype=np.uint8)


class Look(NamedTuple):
    """How a caller wants images to be shown.

    Attributes:
        images: [B, H, W, 3], or None.
        names: of the classes.
        colors: of the classes, [C, 3] in [0, 1].
        title: of the figure or page.
    """

    images: npt.NDArray[np.uint8] | None
    names: list[str]
    colors: _Array
    title: str | None


def read_look(
    arrays: Arrays,
    image: Tensor | None,
    class_names: Sequence[str] | None,
    palette: Sequence[Any] | _Array | None,
    title: str | None,
) -> Look:
    """Check the arguments of :func:`edgeloss.viz.panel` that are not of the loss.

    Raises:
        TypeError: if the image is no tensor.
        ValueError: if the image has another shape or range, or if there are too few names or colors.
    """
    images = None if image is None else _rgb_images(image, arrays.target.shape)
    colors = class_colors(palette, arrays.classes)
    names = [str(c) for c in range(arrays.classes)] if class_names is None else [str(name) for name in class_names]
    if len(names) < arrays.classes:
        raise ValueError(
            f"class_names: expected at least {arrays.classes} names, but got {len(names)}; pass one per class, or None"
        )
    return Look(images, names, colors, title)


def _rgb_images(image: Tensor, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return the caller's images as [B, H, W, 3], of a target of ``shape``."""
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
    array = pictures.detach().cpu()
    if image.dtype != torch.uint8:
        array = array.float()
        low, high = (float(end) for end in array.aminmax())
        if not (low >= -0.01 and high <= 1.01):  # resizing may overshoot a little
            raise ValueError(
                f"image: expected floating values in [0, 1], or uint8, but got {image.dtype} from {low:.3g} to"
                f" {high:.3g}; undo the normalization"
            )
        array = (array.clamp(0, 1) * 255).round_().to(torch.uint8)
    return np.broadcast_to(np.moveaxis(array.numpy(), 1, -1), (batch, height, width, 3))


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
