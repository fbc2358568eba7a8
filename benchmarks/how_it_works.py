#!/usr/bin/env python3
"""Draw the pictures of docs/how-it-works.md, on one scene that is drawn here.

* edge-weights.png: which pixels the edge terms look at, and how much: A and B of functional.edge_weights.
* edge-step.png: what a step of gradient descent changes, by the cross-entropy alone and by the edge terms alone.
* regions.png: what the region term compares, and what of the labels the prediction leaves open, around the gap.

White lines are the borders of the labels, gray pixels are ignored. The three maps of a picture stand side by side, and
below each other in the file for narrow screens, whose name ends in -narrow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
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
OF_A = {"next to the end": ((17, 1), (28, 1.3)), "wire": ((22, 6), (27, 4.6))}
OF_B = {"wire": ((20, 4), (26, 2)), "dot": (DOT[::-1], (31.5, 10)), "corner": ((15, 25), (14, 29.5))}
SCALE = 3  # pixels of the last picture per pixel of the scene
PART = slice(2, 18), slice(16, 36)  # of it, around the gap
PROBABILITY = "probability"
COLORS = CMAP.with_extremes(bad=(0, 0, 0, 0))  # what is ignored has the color of the axes
LENGTH = 0.2  # of a step
NOISE = 5e-4  # a of docs/loss.md
# Inches, rows and columns of maps of 5 × 4, and what is free around and between them for titles and color bars.
LAYOUTS: dict[str, tuple[tuple[float, float], int, int, dict[str, float]]] = {
    "": ((9.96, 2.49), 1, 3, {"left": 0.006, "right": 0.94, "bottom": 0.024, "top": 0.892, "wspace": 0.222}),
    "-narrow": ((4, 9.1), 3, 1, {"left": 0.015, "right": 0.85, "bottom": 0.007, "top": 0.963, "hspace": 0.127}),
}


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


def show_map(
    axes: Axes, values: Tensor, title: str, unit: str, top: float | None = None, labels: Tensor | None = None
) -> None:
    """Draw a map [H, W] from 0 to the top, with its unit over the bar and the borders of the labels over the map."""
    drawn = axes.imshow(values.numpy(), cmap=COLORS, vmin=0, vmax=top)
    place, ticks = axes.inset_axes((1.03, 0, 0.04, 1)), MaxNLocator(5, steps=[1, 2, 5, 10])
    bar = axes.figure.colorbar(drawn, cax=place, ticks=ticks, format=StrMethodFormatter("{x:g}"))
    bar.ax.tick_params(labelsize=8.5, length=2)
    bar.ax.set_title(unit, loc="right", size=8.5, pad=4)
    bar.outline.set_visible(False)
    axes.set_title(title, loc="left", size=10.5)
    if labels is not None:
        draw_borders(axes, find_borders(labels.where(labels != IGNORED, -1).numpy()), "white", 0.6)


def write(axes: Axes, text: str, place: tuple[float, float], target: tuple[float, float] | None = None) -> None:
    """Write text at a place (x, y) of a map, with a line to a target."""
    halo = [withStroke(linewidth=2.5, foreground="black")]
    axes.annotate(
        text, place if target is None else target, place, color="white", size=9, ha="center", va="center",
        path_effects=halo, arrowprops={"arrowstyle": "-", "color": "white", "linewidth": 0.8} if target else None,
    )  # fmt: skip


def weight_maps(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return A, and the sum of B over the classes, [H, W]."""
    weights = edge_weights(labels[None], CLASSES, ignore_index=IGNORED)
    other = torch.zeros(labels.numel(), dtype=torch.float64).index_add_(0, weights.pixel, weights.other_side)
    return weights.same_side[0], other.view_as(labels)


def draw_weights(axes: Sequence[Axes], labels: Tensor) -> None:
    """Draw labels [H, W], A and B, with the weights of some pixels."""
    void = labels == IGNORED
    colors = torch.tensor([*distinct_colors(CLASSES).tolist(), VOID])
    axes[0].imshow(colors[labels.where(~void, CLASSES)].numpy())
    axes[0].set_title("labels", loc="left", size=10.5)
    for name, place in NAMES.items():
        write(axes[0], name, place)
    maps = weight_maps(labels)
    for shown, title, values in zip(axes[1:], ("A: same side", "B: other side"), maps, strict=True):
        shown.imshow(torch.where(void[..., None], torch.tensor(VOID), torch.tensor(NOTHING)).numpy())
        show_map(shown, values.masked_fill(values == 0, torch.nan), f"{title} (black: 0)", "weight", labels=labels)
    for shown, values, marked in zip(axes[1:], maps, (OF_A, OF_B), strict=True):
        for name, ((x, y), place) in marked.items():
            write(shown, f"{name}: {values[y, x]:.1f}", place, (x, y))


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


def draw_step(axes: Sequence[Axes], labels: Tensor) -> None:
    """Draw the probability of the label, and what a step by each of two losses adds to it."""
    logits = make_logits(labels)
    changes = {
        "a step of cross-entropy adds": step(logits, labels, edge_weight=0.0),
        "a step of the edge terms adds": step(logits, labels, ce_weight=0.0),
    }
    top = max(change.nan_to_num().abs().max().item() for change in changes.values())
    show_map(axes[0], label_probability(logits, labels), "the label before a step", PROBABILITY, 1, labels)
    write(axes[0], "missing part", (22.5, 15.5), (27, 11))
    for shown, (title, change) in zip(axes[1:], changes.items(), strict=True):
        show_map(shown, change, title, PROBABILITY, top, labels)
        write(shown, f"length of the step: {LENGTH:g} per pixel", (14.7, 30))


def regions(averages: Tensor) -> Tensor:
    """Return the centered regions [9, N] of averages [h, w]."""
    columns = F.unfold(averages[None, None], 3)[0]
    return columns - columns.mean(1, keepdim=True)


def draw_regions(axes: Sequence[Axes], labels: Tensor) -> None:
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
    titles = {
        "wire in the labels, averaged": "average",
        "in the prediction, averaged": "average",
        "error of the best linear map": "error",
    }
    for shown, (title, unit), values in zip(axes, titles.items(), (z, q, F.pad(left, [1] * 4)), strict=True):
        show_map(shown, values.masked_fill(ignored, torch.nan)[PART], title, unit, z.max().item())
        shown.add_patch(Rectangle((21.5 - PART[1].start, 5.5 - PART[0].start), 3, 3, fill=False, edgecolor="white"))
        write(shown, "a region", (11.3, 4.3))
    write(axes[1], "missing part", (12.5, 9.5))


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
        draw(axes, labels)
        save_figure(figure, folder / f"{name}{ending}.png", 200)


if __name__ == "__main__":
    main()
