"""Crops of predictions side by side, chosen by rule: where a loss is most ahead of another, midway, and most behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np
from torch import Tensor

from edgeloss.metrics.functional import boundary_f1_counts, f1_from_counts, label_maps

RADIUS = 1  # of the boundary F1
RANKS = {"better": "where it is most ahead", "median": "at the median", "worse": "where it is most behind"}


class Split(NamedTuple):
    """A split and what networks make of it.

    Attributes:
        names: of the images.
        images: [N, 3, H, W] in [0, 1].
        target: [N, H, W].
        predictions: labels [N, H, W] of each loss, by what it is called: first the baseline, last the one it is
            compared with.
        classes: their names.
        void: the label that does not count.
    """

    names: Sequence[str]
    images: Tensor
    target: Tensor
    predictions: Mapping[str, Tensor]
    classes: Sequence[str]
    void: int


class Window(NamedTuple):
    """A square of an image.

    Attributes:
        image: its index.
        top: first row.
        left: first column.
        size: pixels along a side.
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

    def of(self, maps: Tensor) -> Tensor:
        """The square of maps [N, ..., H, W]."""
        return maps[self.image, ..., self.top : self.top + self.size, self.left : self.left + self.size]


def windows(split: Split, size: int) -> list[Window]:
    """The windows of all images in which there is border enough, scored.

    They stand in a regular grid from edge to edge of the image, at most half their size apart. Each is scored as an
    image of its own, with the counts of all classes added up: a few pixels of a rare class do not decide, and a border
    in the right place between wrong classes does not count. Left out is what has less border than one straight across
    the window.

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
        y = label_maps(window.of(prediction)[None], window.of(split.target)[None], classes, split.void, validate=False)
        return boundary_f1_counts(y, classes, RADIUS, class_agnostic=False, per_image=False).sum(1, keepdim=True)

    found = []
    for image, top, left in product(range(len(split.target)), tops, lefts):
        window = Window(image, top, left, size)
        counts = [count(window, prediction) for prediction in split.predictions.values()]
        if counts[0][3] >= 2 * size:  # pixels on the true borders, of which a straight one is two classes'
            scores = [f1_from_counts(own, "f1", "macro", split.void, per_image=False).item() for own in counts]
            found.append(window._replace(scores=scores))
    return found


def choose(found: Sequence[Window], count: int) -> dict[str, list[Window]]:
    """Windows by rule: of each part of the images the first, the middle and the last by the difference of the scores.

    The parts are as many equal runs of images in their order: neighbouring frames of a video show the same, and so
    might the windows that are best of all.

    Raises:
        ValueError: if there are fewer images than parts.
    """
    images = sorted({window.image for window in found})
    if not 1 <= count <= len(images):
        raise ValueError(f"--count: expected 1 to {len(images)}, the images with border enough, but got {count}")
    parts = [
        sorted((window for window in found if window.image in part), key=lambda window: window.difference)
        for part in (set(part.tolist()) for part in np.array_split(images, count))
    ]
    return {
        "better": [part[-1] for part in parts],
        "median": [part[len(part) // 2] for part in parts],
        "worse": [part[0] for part in parts],
    }


def summary(found: Sequence[Window]) -> str:
    """How the last loss compares with the first in all windows: the crops are but the ends and the middle of it."""
    points = 100 * np.array([window.difference for window in found])
    return (
        f"ahead in {np.mean(points > 0) * 100:.0f} % of {len(found)} windows and behind in"
        f" {np.mean(points < 0) * 100:.0f} %; median difference {np.median(points):+.1f} points,"
        f" mean {np.mean(points):+.1f}"
    )


def plot_crops(split: Split, rows: Sequence[Window], kind: str, about: str, path: Path) -> None:
    """A row a window: the image, the truth and the predictions, with the true borders as black lines.

    Void is grey in all, since no score has it.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from edgeloss.viz import distinct_colors
    from edgeloss.viz.drawing import draw_borders, find_borders
    from edgeloss.viz.palette import VOID

    colors = np.vstack([distinct_colors(len(split.classes)), VOID])
    columns = 2 + len(split.predictions)
    figure = Figure(figsize=(2.05 * columns, 1.1 + 2.2 * len(rows)), layout="constrained")
    present: set[int] = set()
    for axes, window in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        maps = [
            window.of(labels).masked_fill(window.of(split.target) == split.void, -1).numpy()
            for labels in (split.target, *split.predictions.values())
        ]
        borders = find_borders(maps[0])
        present |= set(np.unique(maps).tolist())
        scores = ["", "", *(f"F1 {score * 100:.0f} %" for score in window.scores)]
        pictures = [window.of(split.images).permute(1, 2, 0).numpy(), *(colors[labels] for labels in maps)]
        for axis, picture, score, name in zip(
            axes, pictures, scores, ["image", "truth", *split.predictions], strict=True
        ):
            axis.imshow(picture, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.set_xlabel(score, fontsize=9)
            if window is rows[0]:
                axis.set_title(fill(name, 32), fontsize=9)
            if score:
                draw_borders(axis, borders, "black", 1)
        axes[0].set_ylabel(f"{split.names[window.image]}\nrow {window.top}, column {window.left}", fontsize=6.5)
    shown = sorted(present, key=lambda label: label % len(colors))  # void, which is -1, last
    figure.legend(
        [Patch(color=colors[label]) for label in shown],
        [[*split.classes, "void"][label] for label in shown],
        loc="outside lower center",
        ncols=len(shown),
        fontsize=8,
        frameon=False,
        handlelength=1,
        handleheight=1,
    )
    part = f"each of {len(rows)} equal parts" if len(rows) > 1 else "all"
    rule = f"Here: of {part} of the images, the window {RANKS[kind]}, by boundary F1 at {RADIUS} px over all classes"
    figure.suptitle("\n".join(fill(text, 32 * columns) for text in (about, rule)), fontsize=8)
    figure.savefig(path, dpi=128)
