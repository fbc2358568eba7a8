#!/usr/bin/env python3
"""Draw what each boundary metric counts, for docs/metrics.md."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy import ndimage

from edgeloss.fields import boundary_distance
from pictures import save_figure

Mask = npt.NDArray[np.bool_]
SIZE, BAND, RADIUS = 26, 2, 1
BOTH, ONLY_TARGET, ONLY_PRED, NOTHING = "#4c9f70", "#3b6fb6", "#e07b39", "#f2f2f2"


def shapes() -> tuple[Mask, Mask]:
    """Return a target, an ellipse, and a prediction of it: moved, with a false bump."""
    y, x = np.mgrid[:SIZE, :SIZE]
    target = ((y - 12.5) / 8) ** 2 + ((x - 12) / 7) ** 2 <= 1
    pred = ((y - 12.5) / 8) ** 2 + ((x - 13) / 7) ** 2 <= 1
    return pred | ((abs(y - 9) < 2) & (x > 13) & (x < 24)), target


def border(mask: Mask) -> Mask:
    """Return the border of boundary F1: pixels that differ from their right, lower or lower-right neighbor."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    return np.asarray((padded[1:, :-1] != mask) | (padded[:-1, 1:] != mask) | (padded[1:, 1:] != mask))


def corners(mask: Mask) -> Mask:
    """Return the surface elements: corners around which some pixels are of the class and others not."""
    framed = np.pad(mask, 1)
    around = [framed[:-1, :-1], framed[:-1, 1:], framed[1:, :-1], framed[1:, 1:]]
    return np.asarray(np.any(around, 0) & ~np.all(around, 0))


def fill(axes: Axes, title: str, layers: dict[str, Mask]) -> None:
    """Draw masks over each other, in their colors."""
    picture = np.broadcast_to(mpl.colors.to_rgb(NOTHING), (SIZE, SIZE, 3)).copy()
    for color, mask in layers.items():
        picture[mask] = mpl.colors.to_rgb(color)
    axes.imshow(picture, extent=(0, SIZE, SIZE, 0))
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()


def draw(path: Path) -> None:
    """Draw the four pictures, and write them."""
    pred, target = shapes()
    figure, axes = pyplot.subplots(1, 4, figsize=(11, 3.1), layout="constrained")
    p, t = (mask & ~ndimage.binary_erosion(mask, np.ones((3, 3)), BAND) for mask in (pred, target))
    fill(axes[0], "Boundary IoU: bands", {ONLY_TARGET: t & ~p, ONLY_PRED: p & ~t, BOTH: p & t})
    p, t = border(pred), border(target)
    near_p, near_t = (ndimage.distance_transform_edt(~mask) <= RADIUS for mask in (p, t))
    found = (p & near_t) | (t & near_p)
    fill(axes[1], "Boundary F1: borders", {ONLY_TARGET: t & ~near_p, ONLY_PRED: p & ~near_t, BOTH: found})
    near = boundary_distance(target[None].astype(np.uint8), ignore_index=None)[0] <= BAND
    wrong = {ONLY_TARGET: near & target & ~pred, ONLY_PRED: near & pred & ~target}
    fill(axes[2], "Trimap IoU: pixels near borders", {BOTH: near & (pred == target), **wrong})
    fill(axes[3], "Surface distances", {"#dddddd": target})
    for mask, other, color in (
        (corners(pred), corners(target), ONLY_PRED),
        (corners(target), corners(pred), ONLY_TARGET),
    ):
        nearest = ndimage.distance_transform_edt(~other, return_distances=False, return_indices=True)
        for y, x in np.argwhere(mask):
            axes[3].plot([x, nearest[1, y, x]], [y, nearest[0, y, x]], color=color, linewidth=1)
        y, x = np.nonzero(mask & ~other)
        axes[3].scatter(x, y, s=5, color=color)
    y, x = np.nonzero(corners(pred) & corners(target))
    axes[3].scatter(x, y, s=5, color=BOTH)
    save_figure(figure, path, dpi=110)


def main() -> None:
    """Write the figure of docs/metrics.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).parents[1] / "docs" / "images" / "metrics.png"
    parser.add_argument("--output", type=Path, default=default)
    draw(parser.parse_args().output)


if __name__ == "__main__":
    main()
