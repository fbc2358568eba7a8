"""Draw which pixels the edge terms look at, and how much: docs/images/edge-weights.png.

python benchmarks/edge_weights.py data/shapes/val/masks/000.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from edgeloss.functional import edge_weights
from edgeloss.io import read_labels
from pictures import save_figure

OPTIONS = {"radius": 1}, {"radius": 3, "decay": 1.5}


def maps(target: Tensor, **options: float) -> dict[str, Tensor]:
    """Return the weights of both terms as maps [H, W], for labels [H, W]; 255 is ignored."""
    labels = target.unique()
    weights = edge_weights(target[None], max(2, int(labels[labels != 255].max()) + 1), ignore_index=255, **options)
    # Several classes may look at the same pixel.
    other_side = torch.zeros(target.numel(), dtype=torch.float64).index_add_(0, weights.pixel, weights.other_side)
    return {"same side, A": weights.same_side[0], "other side, Σ B": other_side.view_as(target)}


def main() -> None:
    """Draw the weights of a mask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mask", type=Path, help="labels, as a PNG of class indices; 255 is ignored")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images/edge-weights.png"))
    arguments = parser.parse_args()
    target = read_labels(arguments.mask)[:64, :64]
    figure = Figure(figsize=(11, 2.8), layout="constrained")
    axes = figure.subplots(1, 5)
    axes[0].imshow(target.float().where(target != 255, torch.nan), cmap="tab20", interpolation="nearest")
    axes[0].set_title("labels")
    panels = [(name, options, values) for options in OPTIONS for name, values in maps(target, **options).items()]
    for ax, (name, options, values) in zip(axes[1:], panels, strict=True):
        image = ax.imshow(values.where(values > 0, torch.nan), cmap="viridis", vmin=0, interpolation="nearest")
        ax.set_title(f"{name}\n{', '.join(f'{key}={value}' for key, value in options.items())}", fontsize=9)
        figure.colorbar(image, ax=ax, shrink=0.4)
    for ax in axes:
        ax.set_axis_off()
    save_figure(figure, arguments.output, 110)


if __name__ == "__main__":
    main()
