#!/usr/bin/env python3
"""Draw the pictures of docs/how-it-works.md, on one scene that is drawn here.

* edge-weights.png: which pixels the edge terms look at, and how much: A and B of functional.edge_weights.
* edge-step.png: what a step of gradient descent changes, by the cross-entropy alone and by the edge terms alone.
* regions.png: what the region term compares, and what of the labels the prediction leaves open, around the gap.

White lines are the borders of the labels, gray pixels are ignored. The three maps of a picture stand side by side, and
below each other in the file for narrow screens, whose name ends in -narrow. They share one scale of colors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor

from edgeloss.functional import edge_aware_loss, edge_weights
from edgeloss.viz.coloring import CMAP
from edgeloss.viz.drawing import draw_borders, find_borders
from edgeloss.viz.palette import NOTHING, VOID, distinct_colors
from pictures import save_figure

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
CLASSES, IGNORED = 4, 255
BACKGROUND, AREA, DISK, WIRE = range(CLASSES)
DOT = 6, 33  # row and column of a single pixel
# Names in the picture of the labels, and pixels whose weights A and B are written there: places (x, y).
NAMES = {
    "background": (7.5, 1.7),
    "area": (14, 30),
    "disk": (10, 12),
    "wire": (25, 4),
    "dot": (33, 4),
    "ignored": (34.7, 15.7),
}
OF_A = {"wire": ((22, 6), (30, 3.5)), "area": ((12, 25), (12, 29.5))}
OF_B = {"dot": (DOT[::-1], (32, 2)), "corner": ((15, 25), (14, 29.5))}
GAP = 26, 10  # a pixel (x, y) of the missing part of the wire
SCALE = 3  # pixels of the last picture per pixel of the scene
PART = slice(2, 18), slice(16, 36)  # of it, around the gap
COLORS = CMAP.with_extremes(bad=(0, 0, 0, 0))  # what is ignored has the color of the axes
LENGTH = 0.2  # of a step
NOISE = 5e-4  # a of docs/loss.md
# Inches, rows and columns of maps of 5 × 4, and what is free around and between them for titles.
LAYOUTS: dict[str, tuple[tuple[float, float], int, int, dict[str, float]]] = {
    "": ((9.96, 2.67), 1, 3, {"left": 0.006, "right": 0.932, "bottom": 0.024, "top": 0.892, "wspace": 0.04}),
    "-narrow": ((4, 11), 3, 1, {"left": 0.015, "right": 0.985, "bottom": 0.062, "top": 0.97, "hspace": 0.108}),
}
# The bar of colors next to the last map or below it, as parts of the map: left, bottom, width and height.
BARS = {"": ("vertical", (1.03, 0, 0.04, 1)), "-narrow": ("horizontal", (0.02, -0.07, 0.96, 0.04))}


class Scale(NamedTuple):
    """What the colors of the maps of a picture say, from 0 to the top."""

    unit: str
    top: float


def make_labels() -> Tensor:
    """Return labels [32, 40]: two areas, a disk, a wire of one pixel, a single pixel, and pixels that are ignored."""
    y, x = torch.meshgrid(torch.arange(32), torch.arange(40), indexing="ij")
    labels = (3 * y > 60 + x).long() * AREA
    labels[(y - 12) ** 2 + (x - 10) ** 2 < 50] = DISK
    labels[x - y == 16] = WIRE
    labels[DOT] = WIRE
    labels[25:28, 4:10] = IGNORED
    labels[9:18, 30:40] = torch.where(x + y > 46, IGNORED, labels)[9:18, 30:40]
    return labels


def make_logits(labels: Tensor) -> Tensor:
    """Return logits [1, C, H, W] of a prediction out of focus, in which a part of the wire is missing."""
    height, width = labels.shape
    shown = labels.where(labels != IGNORED, BACKGROUND)
    gap = slice(height // 4, height // 2)
    shown[gap] = shown[gap].where(shown[gap] != WIRE, BACKGROUND)
    right = F.one_hot(shown, CLASSES).movedim(-1, 0)[None].double()
    side = 2 * (width // 40) + 1
    blurred = F.avg_pool2d(F.pad(right, [side // 2] * 4, mode="replicate"), side, stride=1)
    return (blurred + 0.02).log()


def show_map(axes: Axes, values: Tensor, title: str, top: float, labels: Tensor | None = None) -> None:
    """Draw a map [H, W] from 0 to the top, with the borders of the labels."""
    axes.imshow(values.numpy(), cmap=COLORS, vmin=0, vmax=top)
    axes.set_title(title, loc="left", size=11)
    if labels is not None:
        draw_borders(axes, find_borders(labels.where(labels != IGNORED, -1).numpy()), "white", 0.6)


def add_bar(axes: Axes, scale: Scale, orientation: str, place: tuple[float, float, float, float]) -> None:
    """Draw the scale of the colors at a place next to a map."""
    bar = axes.figure.colorbar(
        ScalarMappable(Normalize(0, scale.top), COLORS), cax=axes.inset_axes(place), orientation=orientation,
        ticks=MaxNLocator(5, steps=[1, 2, 5, 10]), format=StrMethodFormatter("{x:g}"),
    )  # fmt: skip
    bar.ax.tick_params(labelsize=9.5, length=2)
    bar.set_label(scale.unit, size=9.5)
    bar.outline.set_visible(False)


def write(axes: Axes, text: str, place: tuple[float, float], target: tuple[float, float] | None = None) -> None:
    """Write text at a place (x, y) of a map, with a line to a target."""
    halo = [withStroke(linewidth=2.5, foreground="black")]
    axes.annotate(
        text, place if target is None else target, place, color="white", size=10.5, ha="center", va="center",
        path_effects=halo, arrowprops={"arrowstyle": "-", "color": "white", "linewidth": 0.8} if target else None,
    )  # fmt: skip


def weight_maps(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return A, and the sum of B over the classes, [H, W]."""
    weights = edge_weights(labels[None], CLASSES, ignore_index=IGNORED)
    other = torch.zeros(labels.numel(), dtype=torch.float64).index_add_(0, weights.pixel, weights.other_side)
    return weights.same_side[0], other.view_as(labels)


def draw_weights(axes: Sequence[Axes], labels: Tensor) -> Scale:
    """Draw labels [H, W], A and B, with the weights of some pixels."""
    void = labels == IGNORED
    colors = torch.tensor([*distinct_colors(CLASSES).tolist(), VOID])
    axes[0].imshow(colors[labels.where(~void, CLASSES)].numpy())
    axes[0].set_title("labels", loc="left", size=11)
    for name, place in NAMES.items():
        write(axes[0], name, place)
    maps, titles = weight_maps(labels), ("A, same side", "B, other side")
    top = max(values.max().item() for values in maps)
    for shown, title, values, marked in zip(axes[1:], titles, maps, (OF_A, OF_B), strict=True):
        shown.imshow(torch.where(void[..., None], torch.tensor(VOID), torch.tensor(NOTHING)).numpy())
        show_map(shown, values.masked_fill(values == 0, torch.nan), title, top, labels)
        for name, ((x, y), place) in marked.items():
            write(shown, f"{name}: {values[y, x]:.1f}", place, (x, y))
    return Scale("weight", top)


def step(logits: Tensor, labels: Tensor, **weights: float) -> Tensor:
    """Return by how much a step on the logits changes the probability of the label [H, W].

    The steps of all losses have the same length: the sum of their changes of logits, without signs, is that of LENGTH
    per pixel. There is no region term.
    """
    x = logits.clone().requires_grad_()
    edge_aware_loss(x, labels[None], ignore_index=IGNORED, region_weight=0.0, **weights).backward()
    after = logits - LENGTH * labels.numel() / x.grad.abs().sum() * x.grad
    return label_probability(after, labels) - label_probability(logits, labels)


def label_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of the label [H, W], nan where it is ignored."""
    index = labels.where(labels != IGNORED, 0)[None, None]
    return logits.softmax(1).gather(1, index)[0, 0].masked_fill(labels == IGNORED, torch.nan)


def draw_step(axes: Sequence[Axes], labels: Tensor) -> Scale:
    """Draw the probability of the label, and what a step by each of two losses adds to it."""
    logits = make_logits(labels)
    maps = {
        "probability of the label": label_probability(logits, labels),
        "what a step of cross-entropy adds": step(logits, labels, edge_weight=0.0),
        "what a step of edge terms adds": step(logits, labels, ce_weight=0.0),
    }
    x, y = GAP
    for at, (shown, (title, values)) in enumerate(zip(axes, maps.items(), strict=True)):
        show_map(shown, values, title, 1, labels)
        write(shown, f"missing part: {values[y, x]:{'+' if at else ''}.2f}", (20.5, 19.5), GAP)
    return Scale("probability", 1)


def regions(averages: Tensor) -> Tensor:
    """Return the centered regions [9, N] of averages [h, w]."""
    columns = F.unfold(averages[None, None], 3)[0]
    return columns - columns.mean(1, keepdim=True)


def draw_regions(axes: Sequence[Axes], labels: Tensor) -> Scale:
    """Draw averages of labels and prediction, and the residual of the best linear estimate of the former."""
    labels = labels.repeat_interleave(SCALE, 0).repeat_interleave(SCALE, 1)
    logits = make_logits(labels)
    valid = (labels != IGNORED).double()
    maps = torch.stack([(labels == WIRE).double(), logits.softmax(1)[0, WIRE] * valid])[:, None]
    z, q = F.avg_pool2d(maps, SCALE, stride=SCALE, padding=1)[:, 0]
    of_labels, of_prediction = regions(z), regions(q)
    noise = NOISE * max(1.0, (of_prediction.square().sum() / of_labels.square().sum()).item())
    inner = of_prediction @ of_prediction.T + noise * torch.eye(9, dtype=torch.float64)
    residual = of_labels - torch.linalg.solve(inner, of_prediction @ of_labels.T).T @ of_prediction
    left = residual[4].abs().view(z.shape[0] - 2, z.shape[1] - 2)  # of the average in the middle of a region
    ignored = F.avg_pool2d(valid[None], SCALE, stride=SCALE, padding=1)[0] == 0
    titles, top = ("wire in the labels", "in the prediction", "error of the best linear map"), z.max().item()
    for shown, title, values in zip(axes, titles, (z, q, F.pad(left, [1] * 4)), strict=True):
        show_map(shown, values.masked_fill(ignored, torch.nan)[PART], title, top)
        shown.add_patch(Rectangle((21.5 - PART[1].start, 5.5 - PART[0].start), 3, 3, fill=False, edgecolor="white"))
    write(axes[0], "a region", (11.6, 4.3))
    x, y = GAP
    write(axes[1], "missing part", (5.5, 12.5), (x - PART[1].start, y - PART[0].start))
    return Scale("share of wire", top)


def main() -> None:
    """Draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=IMAGES, metavar="FOLDER", help="default: %(default)s")
    folder, labels = parser.parse_args().output, make_labels()
    drawings = {"edge-weights": draw_weights, "edge-step": draw_step, "regions": draw_regions}
    for (name, draw), (ending, (size, rows, columns, free)) in product(drawings.items(), LAYOUTS.items()):
        figure = Figure(figsize=size)
        blank = {"xticks": [], "yticks": [], "facecolor": VOID}
        axes = [*figure.subplots(rows, columns, gridspec_kw=free, subplot_kw=blank)]
        for each in axes:
            each.spines[:].set(linewidth=0.5, color="0.4")
        add_bar(axes[-1], draw(axes, labels), *BARS[ending])
        save_figure(figure, folder / f"{name}{ending}.png", 200)


if __name__ == "__main__":
    main()
