"""One titled figure per batch: the images, the labels, the loss maps and the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor

from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.arrays import Arrays, compute_arrays
from edgeloss.viz.contents import CMAP, Drawn, Extend, class_colors, class_labels, maps_of, rgb_images
from edgeloss.viz.palette import LOUD, NOTHING, VOID

# Lengths in inches.
_MARGIN = 0.12
_GAP = 0.14  # between neighbouring pictures
_CAPTION = 0.40  # the two lines above a picture
_TITLE = 0.28
_BAR = 0.09  # width of a colour bar
_BAR_GAP = 0.05  # between a picture and its bar
_TICKS = 0.42  # the numbers at a bar
_LINE = 0.16  # height of a line of the key
_SWATCH = 0.29  # width of a coloured box of the key with the space around it
_LETTER = 0.062  # width of a letter of the key, on the safe side
_DPI = 200

_Array = npt.NDArray[Any]
_Color = tuple[float, float, float]
_Box = tuple[float, float, float, float]


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
    """Draws what the loss sees: image, truth, prediction, cross-entropy map, edge map and gradient.

    The loss maps are those of ``criterion(logits, target, return_maps=True)``; the gradient is that of its loss with
    respect to the logits, as log10 of the L2 norm over the classes. Thin lines are the borders of the truth.
    Ignored pixels are grey. The edge map off the edge mask is black, and so is a gradient of exactly 0. What is not
    finite is magenta and counted above the picture. Means and colours leave out ignored and non-finite pixels, and the
    edge map's those off the edge mask; a colour bar ends with an arrow where it leaves out outliers. The images of a
    batch share their colour bars.

    The figure knows no window and no global state: ``figure.savefig(path)`` writes it, a notebook shows it as a cell's
    result, and there is nothing to close.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device. C = 1 is binary. One row of pictures per image.
        target: [B, H, W] or [H, W] integer, on the same device. With ``criterion.upsample`` it may be larger.
        image: [B, 3, H, W] or [3, H, W], or one grey channel, in the target's size: floating in [0, 1] or uint8. None
            leaves the picture out.
        criterion: the loss to look into; ``EdgeAwareLoss()`` if None.
        class_names: at least C names; the numbers if None.
        palette: at least C colours, each an integer triple in 0 ... 255 or whatever Matplotlib calls a colour;
            :func:`~edgeloss.viz.distinct_colors` if None.
        title: one line above everything.
        terms: draw the two edge terms apart too, and false edges if the criterion has a ``false_edge_weight``.

    Returns:
        The figure. In each row its axes are image, ground truth, prediction, then cross-entropy, edge map, gradient
        and, with ``terms``, same side, other side and false edges, each followed by its colour bar.

    Raises:
        ValueError: a volume (pass a slice), no pixel, other shapes than these, an image of another size or range, too
            few names or colours; and whatever ``criterion`` refuses.

    Example:
        >>> import torch
        >>> target = torch.zeros(48, 64, dtype=torch.int64)
        >>> target[12:36, 20:50] = 1
        >>> figure = panel(torch.randn(2, 48, 64), target, class_names=["ground", "box"])
        >>> [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
        ['ground truth', 'prediction', 'cross-entropy', 'edge map', 'log10 |gradient|']
        >>> figure.savefig("panel.png")  # doctest: +SKIP
    """
    seen = compute_arrays(logits, target, criterion)
    images = None if image is None else rgb_images(image, seen.target.shape)
    colors = class_colors(palette, seen.classes)
    names = class_labels(class_names, seen.classes)

    maps = maps_of(seen, terms=terms)
    key = _key(seen, maps, names, colors)
    layout = _layout(
        seen.target.shape, 2 + (images is not None), len(maps), [len(name) for name, _ in key], title is not None
    )
    figure = Figure(figsize=(layout.width, layout.height), dpi=_DPI)

    height, width = seen.target.shape[1:]
    thin = min(0.3 * 72 * layout.boxes[0][-1] / height, 1.0)  # in points: the pixels at both sides of a border are seen
    boxes = iter(layout.boxes)
    for row, (truth, prediction) in enumerate(zip(seen.target, seen.prediction, strict=True)):
        valid = truth >= 0
        borders = _borders(truth)
        if images is not None:
            axes = _axes(figure, next(boxes), truth.shape, "image", f"{height} × {width} pixels")
            _show(axes, images[row], interpolation="antialiased")
            _outline(axes, borders, "white", max(thin, 0.4))

        axes = _axes(figure, next(boxes), truth.shape, "ground truth", f"{(~valid).mean():.1%} ignored")
        _show(axes, np.vstack([colors, VOID])[truth], interpolation="antialiased")  # the last row is that of label -1

        right = f"{np.mean(prediction[valid] == truth[valid]):.1%} right" if valid.any() else "all ignored"
        axes = _axes(figure, next(boxes), truth.shape, "prediction", right)
        _show(axes, np.vstack([colors, LOUD])[prediction], interpolation="antialiased")
        _outline(axes, borders, "black", max(thin, 0.4))
        _mark(axes, prediction < 0)

        for drawn in maps:
            box = next(boxes)
            axes = _axes(figure, box, truth.shape, drawn.name, drawn.stats[row])
            picture = _show(axes, drawn.values[row], drawn.norm)
            _cover(axes, {NOTHING: drawn.nothing[row], VOID: drawn.void[row]})
            _outline(axes, borders, drawn.outline, thin)
            _mark(axes, np.ma.getmaskarray(drawn.values[row]))
            _color_bar(figure, box, picture, drawn.extend)

    left, bottom = _MARGIN / layout.width, _MARGIN / layout.height
    if title is not None:
        figure.text(left, 1 - bottom, title, va="top", weight="bold", size=10, parse_math=False)
    legend = figure.legend(
        [Patch(facecolor=color, edgecolor="0.4", linewidth=0.4) for _, color in key],
        ["name"] * len(key),
        loc="lower left",
        bbox_to_anchor=(left, bottom),
        ncols=layout.key_columns,
        fontsize=7,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=1,
        handleheight=1,
        handletextpad=0.5,
        labelspacing=0.45,
        columnspacing=1.2,
    )
    for text, (name, _) in zip(legend.get_texts(), key, strict=True):
        text.set_parse_math(False)  # a "$" is one
        text.set_text(name)  # given as a label, a name like _background_ would be dropped by Matplotlib before 3.10
    return figure


def _key(seen: Arrays, maps: list[Drawn], names: Sequence[str], colors: _Array) -> list[tuple[str, _Color]]:
    """The names and colours that occur."""
    present = np.union1d(seen.target, seen.prediction)
    special = [
        ("ignored", VOID, (seen.target < 0).any()),
        ("no edge, zero gradient", NOTHING, any(drawn.nothing.any() for drawn in maps)),
        ("not finite", LOUD, (seen.prediction < 0).any() or any(drawn.values.mask.any() for drawn in maps)),
    ]
    key: list[tuple[str, _Color]] = [(names[label], tuple(colors[label])) for label in present[present >= 0]]
    return key + [(name, color) for name, color, occurs in special if occurs]


def _borders(labels: _Array) -> _Array:
    """The borders between valid pixels of different labels, as lines [N, 2 ends, (x, y)] along the pixels' sides."""
    lines = []
    for grid in (labels, labels.T):
        differ = (grid[:, 1:] != grid[:, :-1]) & (grid[:, 1:] >= 0) & (grid[:, :-1] >= 0)
        # One line for a whole run down a column: it starts where `differ` rises and stops where it falls.
        step = np.diff(differ.T.astype(np.int8), axis=1, prepend=0, append=0)
        column, start = np.nonzero(step == 1)
        _, stop = np.nonzero(step == -1)
        ends = np.stack([np.stack([column + 0.5, end - 0.5], axis=1) for end in (start, stop)], axis=1)
        lines.append(ends if grid is labels else ends[:, :, ::-1])
    return np.concatenate(lines)


# ------------------------------------------------------------------------------------------------------------ drawing


class _Layout(NamedTuple):
    """Where things stand, in inches."""

    width: float
    height: float
    boxes: list[_Box]  # left, bottom, width, height of every picture, row by row of the batch
    key_columns: int


def _layout(shape: tuple[int, ...], pictures: int, maps: int, letters: list[int], titled: bool) -> _Layout:
    """Places the pictures of a batch of [H, W] images, followed by maps with bars, above a key.

    A single image stands over its maps, or left of them if it is wide; all in one row if it is tall or has no picture
    for the place over a map.

    Args:
        shape: (B, H, W).
        pictures: how many there are before the maps, 2 or 3.
        maps: how many there are, 3 or more.
        letters: the lengths of the key's entries.
        titled: keep room for a line at the top.
    """
    batch, height, width = shape
    aspect = min(max(height / width, 1 / 8), 4)  # beyond that a picture is stretched, so that it can be seen
    beside = batch == 1 and aspect < 0.6
    if beside:
        places = [(row, 0) for row in range(pictures)] + [(i % 3, 1 + i // 3) for i in range(maps)]
    elif batch == 1 and aspect <= 1.5 and pictures == 3:
        places = [(i // 3, i % 3) for i in range(3 + maps)]
    else:
        places = [(0, column) for column in range(pictures + maps)]
    rows, columns = (max(place) + 1 for place in zip(*places, strict=True))

    area = min(max(height * width / _DPI**2, 6.5), 14)  # more for a large image, whose edges would fade
    wide = min(max(math.sqrt(area / aspect), 1.8), 2.4 if columns > 3 else 5.5)
    high = wide * aspect
    step = _CAPTION + high + _GAP
    barred = {column for _, column in places[pictures:]}
    lefts = np.cumsum([_MARGIN, *(wide + (_BAR_GAP + _BAR + _TICKS if c in barred else _GAP) for c in range(columns))])
    full = float(lefts[-1])

    hole = beside and pictures == 2  # below the prediction, where the key fits in
    key_width = wide if hole else full - 2 * _MARGIN
    key_columns = next(
        n
        for n in range(len(letters), 0, -1)
        if n == 1 or n * _SWATCH + _LETTER * sum(max(part) for part in np.array_split(letters, n)) < key_width
    )
    key_height = _LINE * math.ceil(len(letters) / key_columns) + _GAP
    foot = _MARGIN + max(0, key_height - step * hole)
    top = foot + batch * rows * step - _GAP
    boxes = [
        (float(lefts[column]), top - (image * rows + row + 1) * step + _GAP, wide, high)
        for image in range(batch)
        for row, column in places
    ]
    return _Layout(full, top + _TITLE * titled + _MARGIN / 2, boxes, key_columns)


def _axes(figure: Figure, box: _Box, shape: tuple[int, ...], name: str, stats: str) -> Axes:
    """An empty picture of ``shape`` pixels with its two lines of text."""
    axes = figure.add_axes(_in_figure(figure, box))
    height, width = shape
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
    axes.spines[:].set(linewidth=0.5, color="0.4")
    axes.set_title(name, loc="left", size=8.5, weight="bold", pad=13)
    axes.annotate(stats, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", va="bottom", size=7)
    return axes


def _in_figure(figure: Figure, box: _Box) -> _Box:
    width, height = figure.get_size_inches()
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height


def _show(
    axes: Axes,
    values: _Array,
    norm: Normalize | None = None,
    interpolation: Literal["nearest", "antialiased"] = "nearest",
) -> AxesImage:
    """Fills the axes with an array of any resolution.

    A map is not averaged where it is finer than the paper: a mean of colours means nothing, and edges would fade.
    """
    extent = (*axes.get_xlim(), *axes.get_ylim())
    return axes.imshow(values, cmap=CMAP, norm=norm, extent=extent, aspect="auto", interpolation=interpolation)


def _cover(axes: Axes, masks: dict[_Color, _Array]) -> None:
    """Paints over pixels: a mask a colour."""
    for color, mask in masks.items():
        if mask.any():
            _show(axes, np.dstack([np.broadcast_to(color, (*mask.shape, 3)), mask]))


def _mark(axes: Axes, mask: _Array) -> None:
    """Puts a dot on every pixel of the mask, so that one of a million is seen."""
    row, column = np.nonzero(mask)
    rows, columns = mask.shape
    axes.plot(
        (column + 0.5) / columns,
        1 - (row + 0.5) / rows,
        linestyle="none",
        marker="s",
        markersize=2.5,
        markeredgewidth=0,
        color=LOUD,
        transform=axes.transAxes,
        rasterized=True,
    )


def _outline(axes: Axes, borders: _Array, color: str, width: float) -> None:
    lines = LineCollection(list(borders), colors=color, linewidths=width, capstyle="projecting", rasterized=True)
    axes.add_collection(lines, autolim=False)


def _color_bar(figure: Figure, box: _Box, picture: AxesImage, extend: Extend) -> None:
    left, bottom, width, height = box
    axes = figure.add_axes(_in_figure(figure, (left + width + _BAR_GAP, bottom, _BAR, height)))
    steps = min(max(int(height / 0.2), 1), 4)  # a number is as high as that, in inches
    bar = figure.colorbar(
        picture,
        cax=axes,
        extend=extend,
        extendfrac=_BAR / height,
        ticks=MaxNLocator(steps, steps=[1, 2, 5, 10], min_n_ticks=1 if steps < 3 else 2),
        format=StrMethodFormatter("{x:.3g}"),
    )
    bar.outline.set(linewidth=0.5, edgecolor="0.4")
    axes.tick_params(labelsize=6.5, length=2, width=0.5, pad=1.5)
