"""Crops of predictions side by side, chosen by how far one loss is ahead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from edgeloss.metrics.arguments import label_maps
from edgeloss.metrics.functional import boundary_f1_counts, f1_from_counts
from pictures import save_figure

if TYPE_CHECKING:  # slow to import, and not needed where nothing is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RADIUS = 1  # of the boundary F1
RANKS = {"better": "where it is most ahead", "median": "at the median", "worse": "where it is most behind"}


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
    """A square part of an image.

    Attributes:
        image: its index.
        top: first row.
        left: first column.
        size: pixels per side.
        scores: boundary F1 of each loss.
    """

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

    def labels(self, labels: Tensor, split: Split) -> npt.NDArray[Any]:
        """Return the window of labels [N, H, W], with -1 where the target is void."""
        return self.crop(labels).masked_fill(self.crop(split.target) == split.void, -1).numpy()


# --------------------------------------------------------------------------------------------------------------- choose


def windows(split: Split, size: int) -> list[Window]:
    """Score the windows of all images that have enough border.

    They form a regular grid from edge to edge of the image, at most half their size apart. Each is scored as an image
    of its own, with the counts of all classes added up, so that a few pixels of a rare class do not decide; a border in
    the right place between wrong classes does not count. A window with less border than one straight line across is
    left out.

    Raises:
        ValueError: if the images are smaller than a window.
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
    return scored


def choose(scored: Sequence[Window], count: int) -> dict[str, list[Window]]:
    """Choose in each part of the images the best, median and worst window.

    They are ranked by the difference of their scores. The parts are equal runs of consecutive images: neighboring
    frames of a video look the same, and so might the best windows of all.

    Raises:
        ValueError: if there are fewer images than parts.
    """
    images = sorted({window.image for window in scored})
    if not 1 <= count <= len(images):
        raise ValueError(f"--count: expected 1 to {len(images)}, the images with enough border, but got {count}")
    parts = [
        sorted((window for window in scored if window.image in part), key=lambda window: window.difference)
        for part in (set(part.tolist()) for part in np.array_split(images, count))
    ]
    return {
        "better": [part[-1] for part in parts],
        "median": [part[len(part) // 2] for part in parts],
        "worse": [part[0] for part in parts],
    }


def at_percentile(scored: Iterable[Window], percentile: float) -> Window:
    """Return the window at a percentile of the differences.

    At 100 the last loss is most ahead.

    Raises:
        ValueError: if the percentile is out of range or there is no window.
    """
    if not 0 <= percentile <= 100:
        raise ValueError(f"--percentile: expected 0 to 100, but got {percentile:g}")
    ranked = sorted(scored, key=lambda window: window.difference)
    if not ranked:
        raise ValueError("--window: expected windows with enough border, but got none; choose a larger window")
    return ranked[round(percentile / 100 * (len(ranked) - 1))]


def summary(scored: Sequence[Window]) -> str:
    """Compare the last loss with the first over all windows."""
    points = 100 * np.array([window.difference for window in scored])
    return (
        f"ahead in {np.mean(points > 0) * 100:.0f} % of {len(scored)} windows and behind in"
        f" {np.mean(points < 0) * 100:.0f} %; median difference {np.median(points):+.1f} points,"
        f" mean {np.mean(points):+.1f}"
    )


# ----------------------------------------------------------------------------------------------------------------- draw


def plot_crops(split: Split, rows: Sequence[Window], kind: str, about: str, path: Path) -> None:
    """Draw the image, the truth and the predictions in each window, a row per window.

    Black lines are the true borders. Void is gray everywhere, since no score counts it.
    """
    from matplotlib.figure import Figure

    columns = 2 + len(split.predictions)
    figure = Figure(figsize=(2.05 * columns, 1.1 + 2.2 * len(rows)), layout="constrained")
    present: set[int] = set()
    for axes, window in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        truth = window.labels(split.target, split)
        show_image(axes[0], window, split)
        show_labels(axes[1], truth, split)
        present |= set(np.unique(truth).tolist())
        for axis, labels, score in zip(axes[2:], split.predictions.values(), window.scores, strict=True):
            predicted = window.labels(labels, split)
            show_labels(axis, predicted, split, truth)
            axis.set_xlabel(f"F1 {score * 100:.0f} %", fontsize=9)
            present |= set(np.unique(predicted).tolist())
        if window is rows[0]:
            for axis, name in zip(axes, ["image", "truth", *split.predictions], strict=True):
                axis.set_title(fill(name, 32), fontsize=9)
        axes[0].set_ylabel(f"{split.names[window.image]}\nrow {window.top}, column {window.left}", fontsize=6.5)
    add_legend(figure, present, split)
    part = f"each of {len(rows)} equal parts" if len(rows) > 1 else "all"
    rank = RANKS.get(kind, kind)
    rule = f"Here: of {part} of the images, the window {rank}, by boundary F1 at {RADIUS} px over all classes"
    figure.suptitle("\n".join(fill(text, 32 * columns) for text in (about, rule)), fontsize=8)
    save_figure(figure, path, 128)


def show_image(axis: Axes, window: Window, split: Split) -> None:
    """Show the image in a window."""
    axis.imshow(window.crop(split.images).permute(1, 2, 0).numpy(), interpolation="nearest")
    axis.set(xticks=[], yticks=[])


def show_labels(axis: Axes, labels: npt.NDArray[Any], split: Split, truth: npt.NDArray[Any] | None = None) -> None:
    """Show labels in the colors of their classes, with the borders of the truth.

    A label of -1 is void.
    """
    from edgeloss.viz.drawing import draw_borders, find_borders

    axis.imshow(_colors(split)[labels], interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    if truth is not None:
        draw_borders(axis, find_borders(truth), "black", 1)


def add_legend(figure: Figure, present: set[int], split: Split) -> None:
    """Add the names and colors of the labels that occur, void (-1) last."""
    from matplotlib.patches import Patch

    colors = _colors(split)
    shown = sorted(present, key=lambda label: label % len(colors))
    figure.legend(
        [Patch(color=colors[label]) for label in shown],
        [[*split.classes, "void"][label] for label in shown],
        loc="outside lower center",
        ncols=min(len(shown), int(figure.get_figwidth())),  # a name takes up to an inch
        fontsize=8,
        frameon=False,
        handlelength=1,
        handleheight=1,
    )


def _colors(split: Split) -> npt.NDArray[np.float64]:
    from edgeloss.viz import distinct_colors
    from edgeloss.viz.palette import VOID

    return np.vstack([distinct_colors(len(split.classes)), VOID])
