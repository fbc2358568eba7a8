"""A figure of a batch: the images, the labels, the loss maps and the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from torch import Tensor

from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz import drawing
from edgeloss.viz.arrays import Arrays, compute_arrays
from edgeloss.viz.coloring import ColoredMap, class_colors, class_labels, color_maps, rgb_images
from edgeloss.viz.palette import LOUD, NOTHING, VOID

# Lengths in inches.
_SWATCH = 0.29  # width of a colored box of the key with the space around it
_LETTER = 0.062  # width of a letter of the key, rounded up

_Array = npt.NDArray[Any]


def panel(
    logits: Tensor,
    target: Tensor,
    *,
    image: Tensor | None = None,
    criterion: EdgeAwareLoss | None = None,
    class_names: Sequence[str] | None = None,
    palette: Sequence[Any] | npt.NDArray[Any] | None = None,
    title: str | None = None,
    terms: bool = False,
) -> Figure:
    """Draw image, ground truth, prediction, cross-entropy map, edge map and gradient.

    The loss maps are those of ``criterion(logits, target, return_maps=True)``. The gradient is that of the loss with
    respect to the logits, drawn as log10 of its L2 norm over the classes. Thin lines are the borders between the true
    labels. Ignored pixels are gray; pixels off the edge mask and gradients of exactly 0 are black; non-finite values
    are magenta and counted above the picture. Means and color ranges leave out ignored and non-finite pixels and, for
    the edge map, pixels off the edge mask. A color bar ends in an arrow where outliers lie beyond it. All images of a
    batch share one color range per map.

    The figure does not use pyplot: ``figure.savefig(path)`` writes it, a notebook displays it as the result of a cell,
    and it needs no closing.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device; C = 1 for binary. One row of pictures per image.
        target: [B, H, W] or [H, W] integer, on the same device. With ``criterion.upsample`` it may be larger.
        image: [B, 3, H, W] or [3, H, W], or with one gray channel, in the size of the target; floating in [0, 1] or
            uint8. None leaves the picture out.
        criterion: the loss to draw; ``EdgeAwareLoss()`` if None.
        class_names: at least C names; the class indices if None.
        palette: at least C colors, each three integers in 0 ... 255 or any Matplotlib color;
            :func:`~edgeloss.viz.distinct_colors` if None.
        title: one line above the pictures.
        terms: also draw the two edge terms, and the false edges if the criterion has a ``false_edge_weight``.

    Returns:
        The figure. The axes of each row are image, ground truth, prediction, then cross-entropy, edge map, gradient
        and, with ``terms``, same side, other side and false edges, each followed by its color bar.

    Raises:
        ValueError: if logits or target are volumes, have no pixels or do not fit each other; if the image has another
            size or range; if there are too few names or colors; and as ``criterion`` does.

    Example:
        >>> import torch
        >>> target = torch.zeros(48, 64, dtype=torch.int64)
        >>> target[12:36, 20:50] = 1
        >>> figure = panel(torch.randn(2, 48, 64), target, class_names=["ground", "box"])
        >>> [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
        ['ground truth', 'prediction', 'cross-entropy', 'edge map', 'log10 |gradient|']
        >>> figure.savefig("panel.png")  # doctest: +SKIP
    """
    arrays = compute_arrays(logits, target, criterion)
    images = None if image is None else rgb_images(image, arrays.target.shape)
    colors = class_colors(palette, arrays.classes)
    names = class_labels(class_names, arrays.classes)
    return _draw(arrays, color_maps(arrays, terms=terms), images, names, colors, title)


def _draw(
    arrays: Arrays,
    maps: Sequence[ColoredMap],
    images: _Array | None,
    names: Sequence[str],
    colors: _Array,
    title: str | None,
) -> Figure:
    key = _key(arrays, maps, names, colors)
    letters = [len(name) for name, _ in key]
    layout = _layout(arrays.target.shape, 2 + (images is not None), len(maps), letters, title is not None)
    figure = Figure(figsize=(layout.width, layout.height), dpi=drawing.DPI)
    boxes = iter(layout.boxes)
    for row in range(len(arrays.target)):
        _draw_row(figure, boxes, arrays, maps, colors, row, None if images is None else images[row])
    drawing.add_title(figure, title)
    drawing.add_key(figure, key, layout.key_columns, handletextpad=0.5, labelspacing=0.45, columnspacing=1.2)
    return figure


def _draw_row(
    figure: Figure,
    boxes: Iterator[drawing.Box],
    arrays: Arrays,
    maps: Sequence[ColoredMap],
    colors: _Array,
    row: int,
    image: _Array | None,
) -> None:
    """Draw the pictures of one image, each in the next box."""
    truth, prediction = arrays.target[row], arrays.prediction[row]
    height, width = truth.shape
    valid = truth >= 0
    borders = drawing.find_borders(truth)
    box = next(boxes)
    thin = min(0.3 * 72 * box[-1] / height, 1.0)  # in points: leaves the pixels on both sides of a border visible
    if image is not None:
        axes = drawing.add_axes(figure, box, truth.shape, "image", f"{height} × {width} pixels")
        drawing.show(axes, image, interpolation="antialiased")
        drawing.draw_borders(axes, borders, "white", max(thin, 0.4))
        box = next(boxes)

    axes = drawing.add_axes(figure, box, truth.shape, "ground truth", f"{(~valid).mean():.1%} ignored")
    drawing.show(axes, np.vstack([colors, VOID])[truth], interpolation="antialiased")  # label -1 is the last row

    right = f"{np.mean(prediction[valid] == truth[valid]):.1%} right" if valid.any() else "all ignored"
    axes = drawing.add_axes(figure, next(boxes), truth.shape, "prediction", right)
    drawing.show(axes, np.vstack([colors, LOUD])[prediction], interpolation="antialiased")
    drawing.draw_borders(axes, borders, "black", max(thin, 0.4))
    drawing.mark(axes, prediction < 0)

    for colored in maps:
        box = next(boxes)
        axes = drawing.add_axes(figure, box, truth.shape, colored.name, colored.stats[row])
        picture = drawing.show(axes, colored.values[row], colored.norm)
        drawing.cover(axes, {NOTHING: colored.nothing[row], VOID: colored.void[row]})
        drawing.draw_borders(axes, borders, colored.outline, thin)
        drawing.mark(axes, np.ma.getmaskarray(colored.values[row]))
        drawing.add_color_bar(figure, box, picture, colored.extend)


def _key(
    arrays: Arrays, maps: Sequence[ColoredMap], names: Sequence[str], colors: _Array
) -> list[tuple[str, drawing.Color]]:
    """Return the names and colors that occur."""
    present = np.union1d(arrays.target, arrays.prediction)
    special = [
        ("ignored", VOID, (arrays.target < 0).any()),
        ("no edge, zero gradient", NOTHING, any(colored.nothing.any() for colored in maps)),
        ("not finite", LOUD, (arrays.prediction < 0).any() or any(colored.values.mask.any() for colored in maps)),
    ]
    key: list[tuple[str, drawing.Color]] = [(names[label], tuple(colors[label])) for label in present[present >= 0]]
    return key + [(name, color) for name, color, occurs in special if occurs]


class _Layout(NamedTuple):
    """Size and places, in inches."""

    width: float
    height: float
    boxes: list[drawing.Box]  # of every picture, row by row of the batch
    key_columns: int


def _layout(shape: tuple[int, ...], pictures: int, maps: int, letters: list[int], titled: bool) -> _Layout:
    """Place the pictures of a batch of [H, W] images, then the maps with their bars, and the key below.

    Args:
        shape: (B, H, W).
        pictures: how many stand before the maps, 2 or 3.
        maps: how many there are, 3 or more.
        letters: the lengths of the names in the key.
        titled: reserve a line at the top.
    """
    batch, height, width = shape
    aspect = drawing.limited_aspect(height, width)
    places = _places(batch, aspect, pictures, maps)
    rows, columns = (max(place) + 1 for place in zip(*places, strict=True))

    area = min(max(height * width / drawing.DPI**2, 6.5), 14)  # larger for a large image, whose edges would fade
    wide = min(max(math.sqrt(area / aspect), 1.8), 2.4 if columns > 3 else 5.5)
    high = wide * aspect
    step = drawing.CAPTION + high + drawing.GAP
    with_bar = {column for _, column in places[pictures:]}
    bar = drawing.BAR_GAP + drawing.BAR + drawing.TICKS
    steps = (wide + (bar if column in with_bar else drawing.GAP) for column in range(columns))
    lefts = np.cumsum([drawing.MARGIN, *steps])
    full = float(lefts[-1])

    key_under_prediction = pictures == 2 and _is_wide(batch, aspect)  # the place below it is free
    key_width = wide if key_under_prediction else full - 2 * drawing.MARGIN
    key_columns = next(
        n
        for n in range(len(letters), 0, -1)
        if n == 1 or n * _SWATCH + _LETTER * sum(max(part) for part in np.array_split(letters, n)) < key_width
    )
    key_height = drawing.KEY_LINE * math.ceil(len(letters) / key_columns) + drawing.GAP
    foot = drawing.MARGIN + max(0, key_height - step * key_under_prediction)
    top = foot + batch * rows * step - drawing.GAP
    boxes = [
        (float(lefts[column]), top - (image * rows + row + 1) * step + drawing.GAP, wide, high)
        for image in range(batch)
        for row, column in places
    ]
    return _Layout(full, top + drawing.TITLE * titled + drawing.MARGIN / 2, boxes, key_columns)


def _places(batch: int, aspect: float, pictures: int, maps: int) -> list[tuple[int, int]]:
    """Return (row, column) of the pictures and maps of one image.

    The pictures of a single image stand above its maps, or left of them if it is wide. All are in one row if the image
    is tall, if there is no picture to fill the place above a map, or for a batch.
    """
    if _is_wide(batch, aspect):
        return [(row, 0) for row in range(pictures)] + [(i % 3, 1 + i // 3) for i in range(maps)]
    if batch == 1 and aspect <= 1.5 and pictures == 3:
        return [(i // 3, i % 3) for i in range(3 + maps)]
    return [(0, column) for column in range(pictures + maps)]


def _is_wide(batch: int, aspect: float) -> bool:
    """Whether the maps stand right of the pictures: for one image of less than 3:5."""
    return batch == 1 and aspect < 0.6
