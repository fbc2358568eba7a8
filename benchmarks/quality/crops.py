"""Crops of predictions side by side, chosen by how far one loss is ahead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgeloss.metrics.counts import boundary_f1_counts, score_f1
from edgeloss.metrics.measure import LabelMaps
from pictures import save_figure
from quality.tables import named

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

    scored = []
    for image, top, left in product(range(len(split.target)), tops, lefts):
        window = Window(image, top, left, size)
        truth = window.crop(split.target)
        counts = [count(window.crop(labels), truth, classes, split.void) for labels in split.predictions.values()]
        if counts[0][3] >= 2 * size:  # pixels on the true borders; a straight border is one of two classes
            scores = [score_f1(of_loss).item() for of_loss in counts]
            scored.append(window._replace(scores=scores))
    if not scored:
        raise ValueError("--window: expected windows with enough border, but got none; choose a larger window")
    return sorted(scored, key=lambda window: window.difference)


def count(prediction: Tensor, truth: Tensor, classes: int, void: int) -> Tensor:
    """Count the border pixels of labels [H, W], of all classes together: what `score_f1` takes."""
    y = torch.stack([prediction, truth])[:, None]
    y = y.masked_fill(y[1] == void, -1)
    return boundary_f1_counts(LabelMaps(y, classes), RADIUS).sum((0, 2))[:, None]


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


def plot_crops(split: Split, rows: Mapping[float, Window], about: str, path: Path) -> None:
    """Draw windows below each other, with their percentiles."""
    places = {p: f"row {window.top}, column {window.left}, percentile {p:g}" for p, window in rows.items()}
    captions = [(split.names[window.image], places[p]) for p, window in rows.items()]
    save_figure(draw_windows(split, captions, [*rows.values()], title=about), path, 128)


def draw_windows(
    split: Split,
    captions: Sequence[tuple[str, str]],
    chosen: Sequence[Window],
    *,
    title: str,
) -> Figure:
    """Draw the image, the truth and the predictions in windows, and the classes that they show.

    Black lines are the true borders. Void is gray everywhere, since no score counts it.

    Args:
        split: what is drawn.
        captions: of the images, two lines each.
        chosen: windows of one size, a block of pictures for each.
        title: above all.
    """
    from edgeloss.viz import distinct_colors
    from edgeloss.viz.drawing import KeyEntry, Picture, draw_figure, find_borders
    from edgeloss.viz.palette import VOID

    colors, names = np.vstack([distinct_colors(len(split.classes)), VOID]), [*split.classes, "void"]
    blocks, present = [], set()
    for caption, window in zip(captions, chosen, strict=True):
        truth = window.crop(split.target)
        is_void = truth == split.void
        borders = find_borders(truth.masked_fill(is_void, -1).numpy())
        true_labels, *predictions = (
            window.crop(labels).masked_fill(is_void, len(split.classes)).numpy()
            for labels in (split.target, *split.predictions.values())
        )
        present |= {*np.unique([true_labels, *predictions]).tolist()}
        block = [Picture(*caption, window.crop(split.images).permute(1, 2, 0).numpy())]
        block.append(Picture("true labels", "", colors[true_labels]))
        for loss, labels, score in zip(split.predictions, predictions, window.scores, strict=True):
            block.append(Picture(named(loss), f"boundary F1 {100 * score:.0f} %", colors[labels], borders=borders))
        blocks.append(block)
    key = [KeyEntry(names[label], tuple(colors[label])) for label in sorted(present)]
    return draw_figure(blocks, (chosen[0].size,) * 2, key, title=title)
