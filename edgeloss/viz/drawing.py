"""The parts of a figure of maps: its measures, pictures, borders, marks, color bars, title and key."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from edgeloss.viz.coloring import CMAP, ColoredMap, map_to_rgb
from edgeloss.viz.palette import LOUD

# Lengths in inches.
MARGIN = 0.15
GAP = 0.16  # between neighboring pictures
CAPTION = 0.40  # the two lines above a picture
TITLE = 0.28
BAR = 0.08  # height of a color bar
BAR_GAP = 0.05  # between a picture and its color bar
TICKS = 0.16  # the numbers below a color bar
BELOW_MAP = BAR_GAP + BAR + TICKS
_LINES_FROM = 0.012  # size of a pixel of a map that leaves room for contours
UNIT = 0.27  # right of a color bar
_TITLE_LETTER = 0.1  # width of a letter of the title, rounded up
_CAPTION_LETTER = 0.05  # width of a letter of a caption, rounded up
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


def draw_borders(axes: Axes, borders: _Array | None, color: str, width: float) -> None:
    """Draw the lines of :func:`find_borders`, ``width`` points wide."""
    if borders is None or not len(borders):
        return
    lines = LineCollection(list(borders), colors=color, linewidths=width, capstyle="projecting", rasterized=True)
    axes.add_collection(lines, autolim=False)


def add_axes(figure: Figure, box: Box, shape: tuple[int, ...], name: str, stats: str) -> Axes:
    """Add the axes of a picture of ``shape`` pixels, with its two lines of text."""
    axes = figure.add_axes(_in_figure(figure, box))
    height, width = shape
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
    axes.spines[:].set(linewidth=0.5, color="0.4")
    axes.set_title(name, loc="left", size=8.5, weight="bold", pad=13)
    size = 7 * min(box[2] / (_CAPTION_LETTER * max(len(stats), 1)), 1.0)  # small enough for the width of the picture
    axes.annotate(stats, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", va="bottom", size=size)
    return axes


def _in_figure(figure: Figure, box: Box) -> Box:
    width, height = figure.get_size_inches()
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height


def show(axes: Axes, picture: _Array) -> AxesImage:
    """Fill the axes with colors [h, w, 3] of any resolution."""
    extent = (*axes.get_xlim(), *axes.get_ylim())
    return axes.imshow(picture, extent=extent, aspect="auto", interpolation="antialiased")


def show_map(axes: Axes, colored: ColoredMap, index: int) -> AxesImage:
    """Fill the axes with one image of a map of any resolution."""
    extent = (*axes.get_xlim(), *axes.get_ylim())
    picture = _MapImage(axes, cmap=CMAP, norm=colored.norm, interpolation="nearest", extent=extent)
    picture.colored, picture.index = colored, index
    picture.set_data(colored.values[index])
    picture.set_clip_path(axes.patch)
    axes.add_image(picture)
    return picture


class _MapImage(AxesImage):
    """A map that is reduced to the dots of the file that it is drawn in."""

    colored: ColoredMap
    index: int

    def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:  # noqa: ANN401
        """Draw as many pixels as there are dots."""
        values, box = self.get_array(), self.axes.bbox
        # With one fewer, each pixel is at least as large as a dot, and no dot passes over one.
        height, width = (max(int(size * magnification) - 1, 1) for size in (box.height, box.width))
        try:
            self.set_data(map_to_rgb(self.colored, self.index, (height, width)))
            return super().make_image(renderer, magnification, unsampled)
        finally:
            self.set_data(values)  # of which the color bar is


def add_map(
    figure: Figure,
    box: Box,
    shape: tuple[int, ...],
    colored: ColoredMap,
    index: int,
    *,
    name: str | None = None,
    borders: _Array | None = None,
) -> None:
    """Add one image of a map with its color bar, and borders where its pixels are large enough."""
    axes = add_axes(figure, box, shape, name or colored.name, colored.stats[index])
    picture = show_map(axes, colored, index)
    if (pixel := box[-1] / shape[0]) > _LINES_FROM:
        draw_borders(axes, borders, colored.outline, min(0.3 * 72 * pixel, 1.0))
    mark(axes, np.ma.getmaskarray(colored.values[index]))
    add_color_bar(figure, box, picture, colored)


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


def add_color_bar(figure: Figure, box: Box, picture: AxesImage, colored: ColoredMap) -> None:
    """Add the color bar of a map below it; ``box`` is the picture's."""
    left, bottom, width, _ = box
    wide = width - UNIT  # also without a unit, for the numbers at the ends of neighboring bars
    axes = figure.add_axes(_in_figure(figure, (left, bottom - BAR_GAP - BAR, wide, BAR)))
    steps = min(max(int(wide / 0.3), 1), 5)  # a number is 0.3 inches wide
    bar = figure.colorbar(
        picture,
        cax=axes,
        orientation="horizontal",
        extend=colored.extend,
        extendfrac=BAR / wide,
        ticks=MaxNLocator(steps, steps=[1, 2, 5, 10], integer=colored.log, min_n_ticks=1 if steps < 3 else 2),
        format=FuncFormatter(lambda x, _: _power_of_ten(x) if colored.log else f"{x:.3g}"),
    )
    bar.outline.set(linewidth=0.5, edgecolor="0.4")
    axes.tick_params(labelsize=6.5, length=2, width=0.5, pad=1.5)
    unit = _in_figure(figure, (left + width - UNIT + 0.04, bottom - BAR_GAP - BAR / 2, 0, 0))[:2]
    axes.annotate(colored.unit, unit, xycoords="figure fraction", va="center", size=6.5, annotation_clip=False)


def _power_of_ten(exponent: float) -> str:
    """Return a power of ten as text, which a formula would not be in a file of vectors.

    Example:
        >>> _power_of_ten(-12.0)
        '10⁻¹²'
    """
    return "10" + f"{exponent:.3g}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def add_title(figure: Figure, title: str | None) -> None:
    """Add a line of text at the top, small enough for the figure; a "$" in it is a dollar sign."""
    if title is not None:
        width, height = figure.get_size_inches()
        size = 10 * min((width - 2 * MARGIN) / (_TITLE_LETTER * max(len(title), 1)), 1.0)
        figure.text(MARGIN / width, 1 - MARGIN / height, title, va="top", weight="bold", size=size, parse_math=False)


def add_key(
    figure: Figure, entries: Sequence[tuple[str, Color]], columns: int, left: float = MARGIN, top: float | None = None
) -> None:
    """Add names and their colors; a "$" in a name is a dollar sign.

    Args:
        figure: the figure.
        entries: name and color.
        columns: how many entries stand side by side.
        left: in inches.
        top: in inches from the bottom of the figure; None places the key at its bottom.
    """
    width, height = figure.get_size_inches()
    options: dict[str, Any] = {
        "loc": "lower left" if top is None else "upper left",
        "bbox_to_anchor": (left / width, (MARGIN if top is None else top) / height),
        "ncols": columns,
        "fontsize": 7,
        "frameon": False,
        "borderaxespad": 0,
        "borderpad": 0,
        "handlelength": 1,
        "handleheight": 1,
        "handletextpad": 0.5,
        "labelspacing": 0.45,
        "columnspacing": 1.2,
    }
    patches = [Patch(facecolor=color, edgecolor="0.4", linewidth=0.4) for _, color in entries]
    legend = figure.legend(patches, ["name"] * len(patches), **options)
    for text, (name, _) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)  # as a label, a name like _background_ would be dropped by Matplotlib before 3.10


class TextFigure(Figure):
    """A figure whose text stays text in an SVG or PDF: it can be searched, and set in the font of a paper."""

    def savefig(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        """Write the figure; arguments as of Figure.savefig."""
        with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
            super().savefig(*arguments, **options)

    def content(self, suffix: str, **options: Any) -> bytes:  # noqa: ANN401
        """Return the content of a file with this suffix; options as of Figure.savefig."""
        file = io.BytesIO()
        self.savefig(file, format=suffix.lower()[1:], **options)
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        """Return what a notebook displays, also before anything has imported pyplot."""
        return self.content(".png")
