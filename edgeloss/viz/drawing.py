"""Pictures of maps and labels → a figure: their places, borders, marks, color bars, title and key."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator

from edgeloss.viz.coloring import CMAP, Color, ColoredMap, map_to_rgb, power_of_ten
from edgeloss.viz.palette import LOUD

# Lengths in inches.
_MARGIN = 0.15
_GAP = 0.16  # between neighboring pictures
_CAPTION = 0.40  # the two lines above a picture
_ABOUT = 0.12  # the third line of a map
_TITLE_LINE, _TITLE_GAP = 0.18, 0.10  # a line of the title, and below all
_BAR = 0.08  # height of a color bar
_BAR_GAP = 0.05  # between a picture and its color bar
_BELOW_MAP = _BAR_GAP + _BAR + 0.16  # with the numbers below a color bar
_UNIT = 0.45  # right of a color bar
_NARROWEST = 1.4  # width of a picture that its caption fits
NARROWEST_FIGURE = _NARROWEST + 2 * _MARGIN
_KEY_LINE = 0.16  # height of a line of the key
_FRAME = 25  # the part of a picture's side between a marked pixel and the frame around it
_SWATCH = 0.3  # width of a colored box of the key with the space behind it, and the gap that follows its name
_TITLE_SIZE, _KEY_SIZE = 10, 7  # points
_DPI = 200

Box = tuple[float, float, float, float]  # left, bottom, width, height
_Array = npt.NDArray[Any]


class KeyEntry(NamedTuple):
    """A name of the key, and the color of the box or line before it."""

    name: str
    color: Color
    is_line: bool = False


class Picture(NamedTuple):
    """A picture of a figure.

    Attributes:
        name: of its caption.
        stats: the last line of the caption.
        content: colors [h, w, 3], or a map.
        at: which image of the map.
        borders: lines of :func:`find_borders`, if they are to be drawn over a picture of colors.
        marked: [h, w] bool, pixels to mark, in a picture of colors; those of a map are its values that are not finite.
    """

    name: str
    stats: str
    content: _Array | ColoredMap
    at: int = 0
    borders: _Array | None = None
    marked: _Array | None = None


def draw_figure(
    blocks: Sequence[Sequence[Picture]],
    shape: tuple[int, ...],
    key: Sequence[KeyEntry],
    *,
    title: str | None = None,
    width: float | None = None,
) -> TextFigure:
    """Draw blocks of pictures below each other, and the key: in places that the pictures leave free, or below all.

    Args:
        blocks: each with as many pictures, in a grid.
        shape: (H, W), the pixels of a picture.
        key: what the colors mean.
        title: one line above the pictures.
        width: of the figure in inches; None adapts it to the shape.
    """
    maps = [isinstance(picture.content, ColoredMap) for picture in blocks[0]]
    names = [_SWATCH + text_width(one.name, _KEY_SIZE) for one in key]
    width, height, boxes, places, lines = _layout(shape, len(blocks), maps, names, title, width)
    figure = TextFigure(figsize=(width, height), dpi=_DPI)
    for picture, box in zip([picture for block in blocks for picture in block], boxes, strict=True):
        axes = _add_axes(figure, box, shape, picture)
        if isinstance(picture.content, ColoredMap):
            _fill_map(figure, axes, box, picture)
            continue
        extent = (*axes.get_xlim(), *axes.get_ylim())
        axes.imshow(picture.content, extent=extent, aspect="auto", interpolation="antialiased")
        draw_true_borders(axes, picture.borders, min(0.16 * box[2], 0.45))
        if picture.marked is not None:
            _mark(axes, picture.marked)
    for at, line in enumerate(lines):
        size = _fitted(line, _TITLE_SIZE, width - 2 * _MARGIN, weight="bold")
        place = _MARGIN / width, 1 - (_MARGIN + at * _TITLE_LINE) / height
        figure.text(*place, line, va="top", weight="bold", size=size, parse_math=False)  # a "$" is a dollar sign
    for one, (x, y) in zip(key, places, strict=True):
        _add_to_key(figure, one, (x / width, y / height))
    return figure


# ------------------------------------------------------------------------------------------------------------- places


def _layout(
    shape: tuple[int, ...],
    blocks: int,
    maps: list[bool],
    names: list[float],
    title: str | None,
    width: float | None,
) -> tuple[float, float, list[Box], list[tuple[float, float]], list[str]]:
    """Return the size of a figure, the places of its pictures, with bars below the maps, and of its key, and its title.

    Args:
        shape: (H, W).
        blocks: how many there are.
        maps: whether each picture of a block is a map.
        names: the widths of the names in the key.
        title: in as many lines as it needs.
        width: of the figure; None chooses one.
    """
    aspect = min(max(shape[0] / shape[1], 1 / 8), 4)  # beyond that it is stretched, so that it can be seen
    columns = _columns(maps, blocks, aspect, width)
    wide = _picture_width(shape, aspect, columns)
    if width is not None:
        wide = (width - 2 * _MARGIN + _GAP) / columns - _GAP
    high = wide * aspect
    full = columns * (wide + _GAP) - _GAP + 2 * _MARGIN
    places, rows = _places(maps, columns)
    heads = [_CAPTION + _ABOUT * row for row in rows]
    tops = np.cumsum(
        [0.0, *(h + high + _GAP + _BELOW_MAP * row for h, row in zip(heads, rows, strict=True))]
    )  # downwards
    free = _free_place(places, columns, (wide, high), names)
    first = free[1] if free else 0
    left, key = first * (wide + _GAP), _flow(names, (columns - first) * (wide + _GAP))
    below = 0.0 if free else _KEY_LINE * (1 + max((line for _, line in key), default=-1))
    top = _MARGIN + below + blocks * float(tops[-1])
    head = top - tops[free[0]] - heads[free[0]] if free else _MARGIN + below
    entries = [(_MARGIN + left + x, float(head - (line + 1) * _KEY_LINE)) for x, line in key]
    boxes = [
        (
            _MARGIN + (wide + _GAP) * column,
            float(top - block * tops[-1] - tops[row] - heads[row] - high),
            wide,
            high,
        )
        for block in range(blocks)
        for row, column in places
    ]
    titles = [] if title is None else _wrapped(title, _TITLE_SIZE, full - 2 * _MARGIN, weight="bold")
    above = _TITLE_LINE * len(titles) + _TITLE_GAP * bool(titles)
    return full, top + above + _MARGIN / 2, boxes, entries, titles


def _places(maps: list[bool], columns: int) -> tuple[list[tuple[int, int]], list[bool]]:
    """Return row and column of each picture of a block, and whether a row has maps, which begin a row of their own."""
    labels = maps.count(False)
    skipped = -labels % columns if columns < len(maps) else 0  # unless all stand in one row
    places = [divmod(k + skipped * is_map, columns) for k, is_map in enumerate(maps)]
    rows = [False] * (places[-1][0] + 1)
    for (row, _), is_map in zip(places, maps, strict=True):
        rows[row] |= is_map
    return places, rows


def _free_place(
    places: list[tuple[int, int]], columns: int, size: tuple[float, float], names: list[float]
) -> tuple[int, int] | None:
    """Return row and column from which on a block has places for the key, None if it has no room for names so wide."""
    wide, high = size
    for row, last in dict(places).items():
        room = (columns - 1 - last) * (wide + _GAP)  # a name ends in a gap
        if names and max(names) <= room and (1 + _flow(names, room)[-1][1]) * _KEY_LINE <= high:
            return row, last + 1
    return None


def _columns(maps: list[bool], blocks: int, aspect: float, width: float | None) -> int:
    """Return how many pictures of a block stand side by side."""
    count, labels = len(maps), maps.count(False)
    if width is None and (blocks > 1 or aspect > 1.5):
        return count
    fits = count if width is None else int((width - 2 * _MARGIN + _GAP) / (_NARROWEST + _GAP))
    if aspect < 0.6:
        return min(2, fits)
    # The fewest free places, in wide rows.
    free = {
        columns: -labels % columns + -(count - labels) % columns for columns in range(min(3, fits), min(5, fits) + 1)
    }
    return min(free, key=lambda columns: (free[columns], -columns))


def _picture_width(size: Sequence[int], aspect: float, columns: int) -> float:
    """Return a width that shows much of a picture: larger for a large image, whose edges would fade."""
    area = min(max(math.prod(size) / _DPI**2, 6.5), 14)
    return min(max(math.sqrt(area / aspect), 1.8), max(13 / columns, 1.8), 5.5)


def _flow(widths: list[float], room: float) -> list[tuple[float, int]]:
    """Return where names of these widths begin, and on which line: side by side, as many as a line has room for.

    Example:
        >>> _flow([1.0, 1.5, 2.0], 3.0)
        [(0.0, 0), (1.0, 0), (0.0, 1)]
    """
    places: list[tuple[float, int]] = []
    x, line = 0.0, 0
    for width in widths:
        if x and x + width > room:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += width
    return places


@functools.lru_cache
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a line of text in inches; a "$" is a dollar sign."""
    font = FontProperties(size=size, weight=weight)
    width, *_ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(1.04 * width / 72)  # fonts fitted to dots are a little wider


def _wrapped(text: str, size: float, room: float, weight: str = "normal") -> list[str]:
    """Return text in the fewest lines of words that there is room for, about equally long, without a dot that ends one.

    A word that is wider has a line of its own.

    Example:
        >>> _wrapped("an image · its score", 10, 0.1)
        ['an', 'image', 'its', 'score']
    """

    def broken(room: float) -> list[str]:
        lines: list[str] = []
        for word in text.split(" "):
            if lines and text_width(f"{lines[-1]} {word}", size, weight) <= room:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        return lines

    lines, narrow = broken(room), text_width(text, size, weight)
    if len(lines) > 1:
        widths = (room * part / 20 for part in range(20) if room * part / 20 >= narrow / len(lines))
        lines = next((one for one in map(broken, widths) if len(one) == len(lines)), lines)
    return [line.removesuffix("·").rstrip() for line in lines if line != "·"]


def _fitted(text: str, size: float, room: float, weight: str = "normal") -> float:
    """Return the size of text that is at most as wide as there is room."""
    return size * room / max(text_width(text, size, weight), room)


# ----------------------------------------------------------------------------------------------------------- pictures


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


def draw_true_borders(axes: Axes, borders: _Array | None, width: float) -> None:
    """Draw the borders of the true labels, ``width`` points wide: black with a light rim, seen on any picture."""
    for color, factor in (("#ffffffa0", 2.2), ("black", 1.0)):
        draw_borders(axes, borders, color, factor * width)


def _add_axes(figure: Figure, box: Box, shape: tuple[int, ...], picture: Picture) -> Axes:
    """Add the axes of a picture of ``shape`` pixels, with its two lines of text."""
    axes = figure.add_axes(_in_figure(figure, box))
    height, width = shape
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
    axes.spines[:].set(linewidth=0.5, color="0.4")
    about = picture.content.kind.about if isinstance(picture.content, ColoredMap) else ""
    axes.set_title(picture.name, loc="left", size=8.5, weight="bold", pad=13 + 72 * _ABOUT * bool(about))
    for text, up in ((picture.stats, 3.0), (about, 3 + 72 * _ABOUT)):
        size = _fitted(text, 7, box[2])
        place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
        if text:
            axes.annotate(text, (0, 1), (0, up), size=size, **place)
    return axes


def _in_figure(figure: Figure, box: Box) -> Box:
    width, height = figure.get_size_inches()
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height


def _fill_map(figure: Figure, axes: Axes, box: Box, picture: Picture) -> None:
    """Fill the axes with one image of a map of any resolution."""
    colored = picture.content
    assert isinstance(colored, ColoredMap)
    values = colored.values(picture.at)
    norm, extent = Normalize(colored.low, colored.high), (*axes.get_xlim(), *axes.get_ylim())
    drawn = _MapImage(axes, cmap=CMAP, norm=norm, interpolation="nearest", extent=extent)
    drawn.colored, drawn.index = colored, picture.at
    drawn.set_data(values)
    drawn.set_clip_path(axes.patch)
    axes.add_image(drawn)
    _mark(axes, np.ma.getmaskarray(values))
    if colored.has_bar:
        _add_color_bar(figure, box, drawn, colored)


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


def _mark(axes: Axes, mask: _Array) -> None:
    """Draw a dot on every pixel of the mask, large enough to see one pixel in a million, and a frame around them."""
    row, column = np.nonzero(mask)
    rows, columns = mask.shape
    if not row.size:
        return
    # Lines around all that is near a marked pixel; where they are everywhere, there is none.
    near = mask
    for _ in range(2):  # down, then across
        size = max(round(len(near) / _FRAME), 1)
        sums = np.pad(near.astype(np.int32), ((size + 1, size), (0, 0))).cumsum(0)
        near = (sums[2 * size + 1 :] > sums[: -2 * size - 1]).T
    scale = np.array([np.ptp(axes.get_xlim()) / columns, np.ptp(axes.get_ylim()) / rows])
    draw_borders(axes, (find_borders(near.astype(np.int8)) + 0.5) * scale - 0.5, to_hex(LOUD), 1.2)
    x, y = (column + 0.5) / columns, 1 - (row + 0.5) / rows
    axes.plot(x, y, "s", markersize=2.5, markeredgewidth=0, color=LOUD, transform=axes.transAxes, rasterized=True)


def _add_color_bar(figure: Figure, box: Box, drawn: AxesImage, colored: ColoredMap) -> None:
    """Add the color bar of a map below it; ``box`` is the picture's."""
    left, bottom, width, _ = box
    wide = width - _UNIT  # also without a unit, for the numbers at the ends of neighboring bars
    axes = figure.add_axes(_in_figure(figure, (left, bottom - _BAR_GAP - _BAR, wide, _BAR)))
    steps = min(max(int(wide / 0.3), 1), 5)  # a number is 0.3 inches wide
    bar = figure.colorbar(
        drawn,
        cax=axes,
        orientation="horizontal",
        extend=colored.extend,
        extendfrac=_BAR / wide,
        ticks=MaxNLocator(steps, steps=[1, 2, 5, 10], integer=colored.kind.log, min_n_ticks=1 if steps < 3 else 2),
        format=FuncFormatter(lambda x, _: power_of_ten(x) if colored.kind.log else f"{x:.3g}"),
    )
    bar.outline.set(linewidth=0.5, edgecolor="0.4")
    axes.tick_params(labelsize=6.5, length=2, width=0.5, pad=1.5)
    unit = _in_figure(figure, (left + width - _UNIT + 0.04, bottom - _BAR_GAP - _BAR / 2, 0, 0))[:2]
    axes.annotate(colored.kind.unit, unit, xycoords="figure fraction", va="center", size=6.5, annotation_clip=False)


def _add_to_key(figure: Figure, entry: KeyEntry, corner: tuple[float, float]) -> None:
    """Add a name and its color, with the lower left corner at a place of the figure; a "$" is a dollar sign."""
    if entry.is_line:
        handle: Artist = Line2D([], [], color=entry.color, linewidth=1)
    else:
        handle = Patch(facecolor=entry.color, edgecolor="0.4", linewidth=0.4)
    legend = figure.legend(
        [handle],
        ["name"],
        loc="lower left",
        bbox_to_anchor=corner,
        fontsize=_KEY_SIZE,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=1,
        handleheight=1,
        handletextpad=0.5,
    )
    (text,) = legend.get_texts()
    text.set_parse_math(False)
    text.set_text(entry.name)  # as a label, a name like _background_ would be dropped by Matplotlib before 3.10


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
