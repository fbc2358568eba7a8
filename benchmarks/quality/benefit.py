"""One crop under two losses: the image, the truth, both predictions, and the edge map of both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from edgeloss.functional import loss_maps
from pictures import save_figure
from quality.crops import Split, Window, add_legend, show_image, show_labels


def plot_benefit(split: Split, window: Window, logits: Mapping[str, Tensor], about: str, path: Path) -> None:
    """Draw a window under every loss.

    Args:
        split: the images and predictions.
        window: the part of an image to draw.
        logits: of the window's image [1, C, H, W] under each loss, by title.
        about: the line below the pictures.
        path: the PNG file to write.
    """
    from edgeloss.viz.coloring import CMAP
    from edgeloss.viz.drawing import draw_borders, find_borders
    from matplotlib.figure import Figure

    from edgeloss.viz.palette import VOID

    truth = window.labels(split.target, split)
    target = split.target[window.image][None]
    maps = {name: loss_maps(x, target, ignore_index=split.void) for name, x in logits.items()}
    edge_mask = window._replace(image=0).crop(maps[next(iter(maps))].edge_mask)
    edges = {name: window._replace(image=0).crop(of_loss.edge) for name, of_loss in maps.items()}
    high = float(np.percentile([edge[edge_mask] for edge in edges.values()], 98))

    figure = Figure(figsize=(16, 3.4), layout="constrained")
    axes = iter(figure.subplots(1, 2 + 2 * len(logits)))
    present = set(np.unique(truth).tolist())
    for name, show in {"image": show_image, "truth": None}.items():
        axis = next(axes)
        axis.set_title(name)
        show(axis, window, split) if show else show_labels(axis, truth, split)
    for (name, labels), score in zip(split.predictions.items(), window.scores, strict=True):
        axis = next(axes)
        predicted = window.labels(labels, split)
        show_labels(axis, predicted, split, truth)
        present |= set(np.unique(predicted).tolist())
        axis.set_title(name.partition(" (")[0])
        axis.set_xlabel(f"boundary F1 {score * 100:.0f} %")
    for name, edge in edges.items():
        axis = next(axes)
        picture = axis.imshow(edge.masked_fill(~edge_mask, np.nan), CMAP.with_extremes(bad="black"), vmin=0, vmax=high)
        axis.imshow(np.where((truth < 0)[..., None], (*VOID, 1.0), 0.0))
        draw_borders(axis, find_borders(truth), "white", 0.4)
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"edge map, {name.partition(' (')[0]}")
        axis.set_xlabel(f"mean over edge pixels {edge[edge_mask].mean():.2f}")
    figure.colorbar(picture, ax=axis, shrink=0.8, extend="max")
    add_legend(figure, present, split)
    figure.suptitle(about, fontsize=8)
    save_figure(figure, path, 100)
