"""The parts of a figure of maps: its measures, pictures, borders, marks, color bars, title and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from edgeloss.viz.coloring import CMAP, Extend
from edgeloss.viz.palette import LOUD

# Lengths in inches.
MARGIN = 0.12
GAP = 0.14  # between neighboring pictures
CAPTION = 0.40  # the two lines above a picture
TITLE = 0.28
BAR = 0.09  # width of a color bar
BAR_GAP = 0.05  # between a picture and its color bar
TICKS = 0.42  # the numbers of a color bar
KEY_LINE = 0.16  # height of a line of the key
DPI = 200

Color = tuple[float, float, float]
Box = tuple[float, float, float, float]  # left, bottom, width, height
_Array = npt.NDArray[Any]


def limited_aspect(height: float, width: float) -> float:
    """Return height / width of a picture, within 1/8 to 4: beyond that it is stretched, so that it can be seen."""
    return min(max(height / width, 1 / 8), 4)


def find_borders(labels: _Array) -> _Array:
    """Find the borders between pixels of different labels, along the sides of the pixels.

    Args:
        labels: [H, W] integer; pixels < 0 are ignored and have no border.

    Returns:
        [N, 2, 2] float, lines from (x, y) to (x, y).

    Example:
        >>> find_borders(np.array([[0, 1], [0, 1]])).tolist()
        [[[0.5, -0.5], [0.5, 1.5]]]
    """
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


def draw_borders(axes: Axes, borders: _Array, color: str, width: float) -> None:
    """Draw the lines of :func:`find_borders`, ``width`` points wide."""
    lines = LineCollection(list(borders), colors=color, linewidths=width, capstyle="projecting", rasterized=True)
    axes.add_collection(lines, autolim=False)


def add_axes(figure: Figure, box: Box, shape: tuple[int, ...], name: str, stats: str) -> Axes:
    """Add the axes of a picture of ``shape`` pixels, with its two lines of text."""
    axes = figure.add_axes(_in_figure(figure, box))
    height, width = shape
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
    axes.spines[:].set(linewidth=0.5, color="0.4")
    axes.set_title(name, loc="left", size=8.5, weight="bold", pad=13)
    axes.annotate(stats, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", va="bottom", size=7)
    return axes


def _in_figure(figure: Figure, box: Box) -> Box:
    width, height = figure.get_size_inches()
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height


def show(
    axes: Axes,
    values: _Array,
    norm: Normalize | None = None,
    interpolation: Literal["nearest", "antialiased"] = "nearest",
) -> AxesImage:
    """Fill the axes with an array of any resolution.

    Maps are drawn without averaging, even where a pixel is smaller than a dot: a mean of colors means nothing, and
    edges would fade.
    """
    extent = (*axes.get_xlim(), *axes.get_ylim())
    return axes.imshow(values, cmap=CMAP, norm=norm, extent=extent, aspect="auto", interpolation=interpolation)


def cover(axes: Axes, masks: Mapping[Color, _Array]) -> None:
    """Paint over the pixels of each mask with its color."""
    for color, mask in masks.items():
        if mask.any():
            show(axes, np.dstack([np.broadcast_to(color, (*mask.shape, 3)), mask]))


def mark(axes: Axes, mask: _Array) -> None:
    """Draw a dot on every pixel of the mask, large enough to see one pixel in a million."""
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


def add_color_bar(figure: Figure, box: Box, picture: AxesImage, extend: Extend) -> None:
    """Add the color bar of a picture to its right; ``box`` is the picture's."""
    left, bottom, width, height = box
    axes = figure.add_axes(_in_figure(figure, (left + width + BAR_GAP, bottom, BAR, height)))
    steps = min(max(int(height / 0.2), 1), 4)  # a number is 0.2 inches high
    bar = figure.colorbar(
        picture,
        cax=axes,
        extend=extend,
        extendfrac=BAR / height,
        ticks=MaxNLocator(steps, steps=[1, 2, 5, 10], min_n_ticks=1 if steps < 3 else 2),
        format=StrMethodFormatter("{x:.3g}"),
    )
    bar.outline.set(linewidth=0.5, edgecolor="0.4")
    axes.tick_params(labelsize=6.5, length=2, width=0.5, pad=1.5)


def add_title(figure: Figure, title: str | None) -> None:
    """Add a line of text at the top; a "$" in it is a dollar sign."""
    if title is not None:
        width, height = figure.get_size_inches()
        figure.text(MARGIN / width, 1 - MARGIN / height, title, va="top", weight="bold", size=10, parse_math=False)


def add_key(figure: Figure, entries: Sequence[tuple[str, Color]], columns: int, **spacing: float) -> None:
    """Add names and their colors at the bottom; a "$" in a name is a dollar sign.

    Args:
        figure: the figure.
        entries: name and color.
        columns: how many entries stand side by side.
        spacing: ``handletextpad``, ``labelspacing`` and ``columnspacing`` of :meth:`Figure.legend`.
    """
    width, height = figure.get_size_inches()
    options: dict[str, Any] = {
        "loc": "lower left",
        "bbox_to_anchor": (MARGIN / width, MARGIN / height),
        "ncols": columns,
        "fontsize": 7,
        "frameon": False,
        "borderaxespad": 0,
        "borderpad": 0,
        "handlelength": 1,
        "handleheight": 1,
        **spacing,
    }
    patches = [Patch(facecolor=color, edgecolor="0.4", linewidth=0.4) for _, color in entries]
    legend = figure.legend(patches, ["name"] * len(patches), **options)
    for text, (name, _) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)  # as a label, a name like _background_ would be dropped by Matplotlib before 3.10
