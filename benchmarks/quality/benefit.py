"""One crop under several losses, with the predictions and the edge map of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from edgeloss.functional import loss_maps
from pictures import save_figure
from quality.crops import Split, Window, add_legend, show_image, show_labels

if TYPE_CHECKING:  # slow to import, and not needed where nothing is drawn
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


def plot_benefit(split: Split, window: Window, logits: Mapping[str, Tensor], about: str, path: Path) -> None:
    """Draw a window under every loss.

    Args:
        split: the images and predictions.
        window: the part of an image to draw.
        logits: of the window's image [1, C, H, W] under each loss, by title.
        about: the line above the pictures.
        path: the PNG file to write.
    """
    from matplotlib.figure import Figure

    truth = window.labels(split.target, split)
    figure = Figure(figsize=(16, 3.5), layout="constrained")
    axes = iter(figure.subplots(1, 2 + 2 * len(logits)))

    axis = next(axes)
    show_image(axis, window, split)
    axis.set_title("image")
    axis = next(axes)
    show_labels(axis, truth, split)
    axis.set_title("truth")
    present = set(np.unique(truth).tolist())
    for (name, labels), score in zip(split.predictions.items(), window.scores, strict=True):
        axis = next(axes)
        predicted = window.labels(labels, split)
        show_labels(axis, predicted, split, truth)
        axis.set_title(_short(name))
        axis.set_xlabel(f"boundary F1 {score * 100:.0f} %")
        present |= set(np.unique(predicted).tolist())

    maps = _edge_maps(split, window, logits)
    high = float(np.percentile(np.ma.stack([*maps.values()]).compressed(), 98))
    for name, values in maps.items():
        axis = next(axes)
        picture = _show_map(axis, values, truth, high)
        axis.set_title(f"edge map, {_short(name)}")
        axis.set_xlabel(f"mean over edge pixels {values.mean():.2f}")
    figure.colorbar(picture, ax=axis, shrink=0.8, extend="max")
    add_legend(figure, present, split)
    figure.suptitle(about, fontsize=8)
    save_figure(figure, path, 100)


def _edge_maps(split: Split, window: Window, logits: Mapping[str, Tensor]) -> dict[str, np.ma.MaskedArray]:
    """Compute the edge map of each loss in the window, masked where there is no edge."""
    target = split.target[window.image][None]
    own = window._replace(image=0)
    maps = {}
    for name, x in logits.items():
        of_loss = loss_maps(x, target, ignore_index=split.void)
        maps[name] = np.ma.array(own.crop(of_loss.edge).numpy(), mask=~own.crop(of_loss.edge_mask).numpy())
    return maps


def _show_map(axis: Axes, values: np.ma.MaskedArray, truth: np.ndarray, high: float) -> AxesImage:
    """Show an edge map: black where there is no edge, gray where the truth is void."""
    from edgeloss.viz.coloring import CMAP
    from edgeloss.viz.drawing import draw_borders, find_borders
    from edgeloss.viz.palette import NOTHING, VOID

    picture = axis.imshow(values, CMAP.with_extremes(bad=NOTHING), vmin=0, vmax=high, interpolation="nearest")
    axis.imshow(np.where((truth < 0)[..., None], (*VOID, 1.0), 0.0), interpolation="nearest")
    draw_borders(axis, find_borders(truth), "white", 0.4)
    axis.set(xticks=[], yticks=[])
    return picture


def _short(title: str) -> str:
    """Return the title of a loss without its options."""
    return title.partition(" (")[0]
