"""Crops of predictions side by side, chosen by how far one loss is ahead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from edgeloss.metrics.arguments import label_maps
from edgeloss.metrics.functional import boundary_f1_counts, f1_from_counts
from pictures import save_figure

if TYPE_CHECKING:  # slow to import, and not needed where nothing is drawn
    from matplotlib.figure import Figure

RADIUS = 1  # of the boundary F1


class Split(NamedTuple):
    """A split and the predictions of several networks for it.

    Attributes:
        names: of the images.
        images: [N, 3, H, W] in [0, 1].
        target: [N, H, W].
        predictions: labels [N, H, W] of each loss, by title: first the baseline, last the loss compared with it.
        classes: their names.
        void: the ignored label.
    """

    names: Sequence[str]
    images: Tensor
    target: Tensor
    predictions: Mapping[str, Tensor]
    classes: Sequence[str]
    void: int


class Window(NamedTuple):
    """A square part of an image: its first row and column, and the boundary F1 of each loss in it."""

    image: int
    top: int
    left: int
    size: int
    scores: Sequence[float] = ()

    @property
    def difference(self) -> float:
        """How far the last loss is ahead of the first."""
        return self.scores[-1] - self.scores[0]

    def crop(self, maps: Tensor) -> Tensor:
        """Return the window of maps [N, ..., H, W]."""
        return maps[self.image, ..., self.top : self.top + self.size, self.left : self.left + self.size]


# --------------------------------------------------------------------------------------------------------------- choose


def windows(split: Split, size: int) -> list[Window]:
    """Score the windows of all images that have enough border, and sort them by the difference of their scores.

    They form a regular grid from edge to edge of the image, at most half their size apart. Each is scored as an image
    of its own, with the counts of all classes added up, so that a few pixels of a rare class do not decide; a border in
    the right place between wrong classes does not count. A window with less border than one straight line across is
    left out.

    Raises:
        ValueError: if the images are smaller than a window, or no window has enough border.
    """
    height, width = split.target.shape[1:]
    if not 1 < size <= min(height, width):
        raise ValueError(f"--window: expected 2 to {min(height, width)} for images of this size, but got {size}")
    classes = len(split.classes)
    tops, lefts = (
        np.linspace(0, side - size, math.ceil((side - size) / (size / 2)) + 1).round().astype(int).tolist()
        for side in (height, width)
    )

    def count(window: Window, prediction: Tensor) -> Tensor:
        cropped = window.crop(prediction)[None], window.crop(split.target)[None]
        y = label_maps(*cropped, classes, split.void, validate=False)
        return boundary_f1_counts(y, classes, RADIUS, class_agnostic=False, per_image=False).sum(1, keepdim=True)

    scored = []
    for image, top, left in product(range(len(split.target)), tops, lefts):
        window = Window(image, top, left, size)
        counts = [count(window, prediction) for prediction in split.predictions.values()]
        if counts[0][3] >= 2 * size:  # pixels on the true borders; a straight border is one of two classes
            scores = [f1_from_counts(of_loss, "f1", "macro", split.void, per_image=False).item() for of_loss in counts]
            scored.append(window._replace(scores=scores))
    if not scored:
        raise ValueError("--window: expected windows with enough border, but got none; choose a larger window")
    return sorted(scored, key=lambda window: window.difference)


def at_percentiles(scored: Sequence[Window], percentiles: Iterable[float]) -> dict[float, Window]:
    """Return the window at each percentile of the differences; at 100 the last loss is most ahead.

    Raises:
        ValueError: if a percentile is out of range.
    """
    chosen = {}
    for percentile in percentiles:
        if not 0 <= percentile <= 100:
            raise ValueError(f"--percentile: expected 0 to 100, but got {percentile:g}")
        chosen[percentile] = scored[round(percentile / 100 * (len(scored) - 1))]
    return chosen


def summary(scored: Sequence[Window]) -> str:
    """Compare the last loss with the first over all windows."""
    points = 100 * np.array([window.difference for window in scored])
    return (
        f"ahead in {np.mean(points > 0) * 100:.0f} % of {len(scored)} windows and behind in"
        f" {np.mean(points < 0) * 100:.0f} %; median difference {np.median(points):+.1f} points,"
        f" mean {np.mean(points):+.1f}"
    )


# ----------------------------------------------------------------------------------------------------------------- draw


class Tile(NamedTuple):
    """What is drawn of a window: colors [h, w, 3], and for a loss its boundary F1 and the true borders."""

    title: str
    colors: npt.NDArray[Any]
    score: str = ""
    borders: npt.NDArray[Any] | None = None


Key = list[tuple[str, Any]]  # names of classes and their colors


def tiles_of(split: Split, window: Window) -> tuple[list[Tile], Key]:
    """Return the image, the truth and the predictions in a window, and the classes that they show.

    Void is gray everywhere, since no score counts it.
    """
    from edgeloss.viz import distinct_colors
    from edgeloss.viz.drawing import find_borders
    from edgeloss.viz.palette import VOID

    colors, names = np.vstack([distinct_colors(len(split.classes)), VOID]), [*split.classes, "void"]
    truth = window.crop(split.target)
    is_void = truth == split.void
    borders = find_borders(truth.masked_fill(is_void, -1).numpy())
    maps = [
        window.crop(labels).masked_fill(is_void, len(split.classes)).numpy()
        for labels in (split.target, *split.predictions.values())
    ]
    tiles = [Tile("image", window.crop(split.images).permute(1, 2, 0).numpy()), Tile("true labels", colors[maps[0]])]
    for title, labels, score in zip(split.predictions, maps[1:], window.scores, strict=True):
        tiles.append(Tile(title, colors[labels], f"F1 {100 * score:.0f} %", borders))
    return tiles, [(names[label], tuple(colors[label])) for label in np.unique(maps)]


def plot_crops(split: Split, rows: Mapping[float, Window], about: str, path: Path) -> None:
    """Draw windows below each other, with their percentiles; black lines are the true borders."""
    from edgeloss.viz.drawing import Picture, draw_figure

    blocks: list[list[Picture]] = []
    present: dict[str, Any] = {}
    for percentile, window in rows.items():
        (image, *others), key = tiles_of(split, window)
        present |= dict(key)
        place = f"row {window.top}, column {window.left}, percentile {percentile:g}"
        block = [Picture(split.names[window.image], place, image.colors)]
        for tile in others:
            name, opening, options = tile.title.partition(" (")
            about_loss = f"{tile.score}{opening}{options}"
            block.append(Picture(name, about_loss, tile.colors, borders=tile.borders, lines=[("black", 1)]))
        blocks.append(block)
    names = [name for name in (*split.classes, "void") if name in present]
    shape = image.colors.shape[:2]
    save_figure(draw_figure(blocks, shape, [(name, present[name]) for name in names], title=about), path, 128)


def plot_benefit(tiles: Sequence[Tile], key: Key, folder: Path) -> None:
    """Draw one window for the first page: side by side, and two by two for narrow screens."""
    for name, columns in {"benefit": len(tiles), "benefit-narrow": 2}.items():
        save_figure(draw_tiles(tiles, key, columns), folder / f"{name}.png", 200)


def draw_tiles(tiles: Sequence[Tile], key: Key, columns: int) -> Figure:
    """Draw tiles in a grid, with the key in its free places or else below; a width of 10 inches is a page's."""
    from matplotlib.figure import Figure

    from edgeloss.viz.drawing import add_key, draw_borders

    side, gap, above, below, line = 1.92, 0.1, 0.26, 0.24, 0.2  # inches; above a tile is its title, below its score
    margin = 0.08
    free = -len(tiles) % columns  # places of the grid
    places = 2 if free else 3 if columns < len(tiles) else len(key)  # names side by side
    rows = [tiles[first : first + columns] for first in range(0, len(tiles), columns)]
    ends = np.cumsum([above + side + below * any(tile.score for tile in row) + 0.04 for row in rows])  # downwards
    width = columns * (side + gap) - gap + 2 * margin
    height = float(ends[-1]) + 2 * margin + (0 if free else 0.1 + line * math.ceil(len(key) / places))
    figure = Figure(figsize=(width, height))
    for number, tile in enumerate(tiles):
        row = number // columns
        left, top = margin + number % columns * (side + gap), height - margin - above - (ends[row - 1] if row else 0)
        axes = figure.add_axes((left / width, (top - side) / height, side / width, side / height))
        axes.imshow(tile.colors, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(linewidth=0.75)
        draw_borders(axes, tile.borders, "black", 1)
        weight = "bold" if tile is tiles[-1] else "normal"
        axes.set_title(tile.title.partition(" (")[0], loc="left", size=10.5, weight=weight, pad=5)
        score = f"boundary {tile.score}" if tile.score else ""
        axes.text(0, -0.035, score, va="top", transform=axes.transAxes, size=10, weight=weight)
    corner = ((width - margin - side) / width, top / height) if free else (margin / width, margin / height)
    add_key(figure, key, places, corner, location="upper left" if free else "lower left", size=9.5)
    return figure
