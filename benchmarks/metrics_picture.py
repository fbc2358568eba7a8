#!/usr/bin/env python3
"""Draw what each boundary metric counts, for docs/metrics.md: in a wide picture, and in one for narrow screens."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy import ndimage

from edgeloss import metrics
from edgeloss.fields import boundary_distance
from pictures import save_figure

Mask = npt.NDArray[np.bool_]
SIZE, BAND, RADIUS = 26, 2, 1
RATIO = BAND / (SIZE * 2**0.5)  # whose band is as wide
# Inches, rows and columns.
LAYOUTS = {"": ((8, 6), 2, 3), "-narrow": ((4.6, 8.1), 3, 2)}
BOTH, TOLERATED, ONLY_TARGET, ONLY_PRED, NOTHING = "#2f7d52", "#8fd1a8", "#3b6fb6", "#e07b39", "#f2f2f2"
KEY = {
    "in both": BOTH,
    f"border within {RADIUS} px\nof the other: counts": TOLERATED,
    "target only": ONLY_TARGET,
    "prediction only": ONLY_PRED,
}


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


def scores() -> list[str]:
    """Return the scores of the prediction, in the order of the pictures."""
    pred, target = (torch.from_numpy(mask.astype(np.int64))[None] for mask in shapes())
    shape = {"pred": pred, "target": target, "num_classes": 2, "include_background": False}
    return [
        f"IoU: {metrics.trimap_iou(**shape, radius=SIZE):.2f}",  # of all pixels
        f"Boundary IoU: {metrics.boundary_iou(**shape, ratio=RATIO):.2f}",
        f"F1 within {RADIUS} px: {metrics.boundary_f1(**shape, radius=RADIUS):.2f}",
        f"IoU within {BAND} px: {metrics.trimap_iou(**shape, radius=BAND):.2f}",
        f"average: {metrics.average_surface_distance(**shape):.2f} px",
    ]


def fill(axes: Axes, title: str, layers: dict[str, Mask]) -> None:
    """Draw masks over each other, in their colors."""
    picture = np.broadcast_to(mpl.colors.to_rgb(NOTHING), (SIZE, SIZE, 3)).copy()
    for color, mask in layers.items():
        picture[mask] = mpl.colors.to_rgb(color)
    axes.imshow(picture, extent=(0, SIZE, SIZE, 0))
    axes.set_title(title, fontsize=10, loc="left")
    axes.set(xticks=[], yticks=[], xlim=(2, SIZE), ylim=(SIZE - 2, 2))
    axes.spines[:].set_visible(False)


def draw(figure: Figure, rows: int, columns: int) -> None:
    """Draw the target and the prediction, what four metrics count, and the key."""
    pred, target = shapes()
    axes = figure.subplots(rows, columns).flat
    fill(
        axes[0], "target and prediction", {ONLY_TARGET: target & ~pred, ONLY_PRED: pred & ~target, BOTH: pred & target}
    )
    p, t = (mask & ~ndimage.binary_erosion(mask, np.ones((3, 3)), BAND) for mask in (pred, target))
    fill(axes[1], "Boundary IoU: bands", {ONLY_TARGET: t & ~p, ONLY_PRED: p & ~t, BOTH: p & t})
    p, t = border(pred), border(target)
    near_p, near_t = (ndimage.distance_transform_edt(~mask) <= RADIUS for mask in (p, t))
    layers = {TOLERATED: (near_p & t) | (near_t & p), BOTH: p & t, ONLY_TARGET: t & ~near_p, ONLY_PRED: p & ~near_t}
    fill(axes[2], "Boundary F1: borders", layers)
    near = boundary_distance(target[None].astype(np.uint8), ignore_index=None)[0] <= BAND
    wrong = {ONLY_TARGET: near & target & ~pred, ONLY_PRED: near & pred & ~target}
    fill(axes[3], "Trimap IoU: near borders", {BOTH: near & (pred == target), **wrong})
    fill(axes[4], "Surface distances", {"#dddddd": target})
    for mask, other, color in (
        (corners(pred), corners(target), ONLY_PRED),
        (corners(target), corners(pred), ONLY_TARGET),
    ):
        nearest = ndimage.distance_transform_edt(~other, return_distances=False, return_indices=True)
        for y, x in np.argwhere(mask):
            axes[4].plot([x, nearest[1, y, x]], [y, nearest[0, y, x]], color=color, linewidth=2)
        y, x = np.nonzero(mask & ~other)
        axes[4].scatter(x, y, s=14, color=color, zorder=3)
    y, x = np.nonzero(corners(pred) & corners(target))
    axes[4].scatter(x, y, s=14, color=BOTH, zorder=3)
    for shown, score in zip(axes, scores(), strict=False):
        shown.set_xlabel(score, fontsize=10, loc="left")
    axes[5].set_axis_off()
    patches = [Patch(facecolor=color) for color in KEY.values()]
    axes[5].legend(patches, KEY, loc="upper left", frameon=False, fontsize=10, borderaxespad=0, labelspacing=0.9)


def main() -> None:
    """Write the figures of docs/metrics.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).parents[1] / "docs" / "images" / "metrics.png"
    parser.add_argument("--output", type=Path, default=default)
    path = parser.parse_args().output
    for ending, (size, rows, columns) in LAYOUTS.items():
        figure = Figure(figsize=size, layout="constrained")
        draw(figure, rows, columns)
        save_figure(figure, path.with_stem(f"{path.stem}{ending}"), dpi=150)


if __name__ == "__main__":
    main()
