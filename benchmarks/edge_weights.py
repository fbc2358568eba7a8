#!/usr/bin/env python3
"""Draw which pixels the edge terms look at, and how much: the weights A and B of functional.edge_weights.

White lines are the borders of the labels, gray pixels are ignored.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from edgeloss.functional import edge_weights
from edgeloss.viz.drawing import draw_borders, find_borders
from edgeloss.viz.palette import NOTHING, VOID, distinct_colors
from pictures import save_figure

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "edge-weights.png"
CLASSES, IGNORED = 4, 255


def make_labels() -> Tensor:
    """Return labels [32, 40]: two areas, a disk, a wire of one pixel, a single pixel, and pixels that are ignored."""
    y, x = torch.meshgrid(torch.arange(32), torch.arange(40), indexing="ij")
    labels = (3 * y > 60 + x).long()
    labels[(y - 12) ** 2 + (x - 10) ** 2 < 50] = 2
    labels[x - y == 16] = 3
    labels[6, 33] = 3
    labels[25:28, 4:10] = IGNORED
    labels[9:18, 30:40] = torch.where(x + y > 46, IGNORED, labels)[9:18, 30:40]
    return labels


def draw(labels: Tensor) -> Figure:
    """Draw labels [H, W], A, and the sum of B over the classes."""
    weights = edge_weights(labels[None], CLASSES, ignore_index=IGNORED)
    other = torch.zeros(labels.numel(), dtype=torch.float64).index_add_(0, weights.pixel, weights.other_side)
    void = labels == IGNORED
    colors = torch.tensor([*distinct_colors(CLASSES).tolist(), VOID])
    borders = find_borders(torch.where(void, -1, labels).numpy())
    figure = Figure(figsize=(10, 2.7), layout="constrained")
    axes = figure.subplots(1, 3)
    axes[0].imshow(colors[torch.where(void, CLASSES, labels)].numpy())
    axes[0].set_title("labels")
    for place, title, values in ((axes[1], "A", weights.same_side[0]), (axes[2], "Σ B", other.view_as(labels))):
        place.imshow(torch.where(void[..., None], torch.tensor(VOID), torch.tensor(NOTHING)).numpy())
        shown = place.imshow(values.masked_fill(values == 0, torch.nan).numpy(), cmap="viridis", vmin=0)
        figure.colorbar(shown, ax=place)
        draw_borders(place, borders, "white", 0.6)
        place.set_title(title)
    for place in axes:
        place.set(xticks=[], yticks=[])
    return figure


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=IMAGE, metavar="FILE", help="default: %(default)s")
    save_figure(draw(make_labels()), parser.parse_args().output, 100)


if __name__ == "__main__":
    main()
