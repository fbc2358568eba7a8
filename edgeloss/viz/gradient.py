"""The gradient, pixel by pixel, of any loss."""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from edgeloss.viz.contents import drawn_map
from edgeloss.viz.palette import LOUD, NOTHING, VOID

parts = import_module("edgeloss.viz.panel")  # the package holds a function of this name


def gradient_figure(gradient: Tensor, ignored: Tensor | None = None, *, title: str | None = None) -> Figure:
    """Draws log10 of the gradient's L2 norm over the classes, one picture an image.

    The colours are those of :func:`edgeloss.viz.panel`, and the pictures share them: what is not finite is magenta and
    counted above the picture, an ignored pixel grey, a gradient of exactly 0 black.

    Args:
        gradient: [B, C, H, W] or [B, C, D, H, W] floating, any device. Of a volume the slice with the most pixels that
            are not finite is drawn, the middle one if there are none.
        ignored: [B, *S] bool, the pixels that do not count.
        title: one line above everything.

    Returns:
        The figure: its axes are the pictures, each followed by its colour bar.

    Raises:
        ValueError: for another shape, or without any pixel.

    Example:
        >>> import torch
        >>> gradient = torch.randn(2, 3, 8, 8)
        >>> gradient[1, 0, 4, 4] = torch.nan
        >>> figure = gradient_figure(gradient)
        >>> [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
        ['image 0', 'image 1']
        >>> figure.axes[2].texts[0].get_text()[-12:]
        '1 not finite'
    """
    if gradient.dim() not in (4, 5) or not gradient.numel():
        raise ValueError(
            "expected a gradient [B, C, H, W] or [B, C, D, H, W] of at least one pixel to draw but got "
            f"{list(gradient.shape)}"
        )
    # In double precision: the squares of small float32 gradients would be 0.
    norm = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64).cpu().numpy()
    void = np.zeros(norm.shape, dtype=bool) if ignored is None else ignored.cpu().numpy()
    names = [f"image {image}" for image in range(len(norm))]
    if norm.ndim == 4:
        failed = (~np.isfinite(norm)).sum((2, 3))
        chosen = np.where(failed.any(1), failed.argmax(1), norm.shape[1] // 2)
        names = [f"{name}, slice {d} of {norm.shape[1]}" for name, d in zip(names, chosen, strict=True)]
        batch = np.arange(len(norm))
        norm, void = norm[batch, chosen], void[batch, chosen]

    still = (norm == 0) & ~void
    drawn = drawn_map("log10 |gradient|", norm, ~void, void, still, outline="white", log=True)
    failed = np.ma.getmaskarray(drawn.values)

    columns = min(len(norm), 4)
    rows = math.ceil(len(norm) / columns)
    aspect = min(max(norm.shape[1] / norm.shape[2], 1 / 8), 4)  # beyond that a picture is stretched, so that it is seen
    wide = 4.5 if columns == 1 else 3.0
    high = wide * aspect
    across = wide + parts._BAR_GAP + parts._BAR + parts._TICKS
    down = parts._CAPTION + high + parts._GAP
    foot = parts._MARGIN + parts._LINE
    size = (columns * across + 2 * parts._MARGIN, foot + rows * down + parts._TITLE * (title is not None))
    figure = Figure(figsize=size, dpi=parts._DPI)
    for image, name in enumerate(names):
        row, column = divmod(image, columns)
        box = (parts._MARGIN + column * across, foot + (rows - row) * down - parts._CAPTION - high, wide, high)
        axes = parts._axes(figure, box, norm.shape[1:], name, drawn.stats[image])
        picture = parts._show(axes, drawn.values[image], drawn.norm)
        parts._cover(axes, {NOTHING: still[image], VOID: void[image]})
        parts._mark(axes, failed[image])
        parts._color_bar(figure, box, picture, drawn.extend)

    left = parts._MARGIN / size[0]
    if title is not None:
        figure.text(left, 1 - parts._MARGIN / size[1], title, va="top", weight="bold", size=10)
    key = [("ignored", VOID, void.any()), ("zero gradient", NOTHING, still.any()), ("not finite", LOUD, failed.any())]
    figure.legend(
        handles=[Patch(facecolor=color, edgecolor="0.4", linewidth=0.4, label=n) for n, color, occurs in key if occurs],
        loc="lower left",
        bbox_to_anchor=(left, parts._MARGIN / size[1]),
        ncols=3,
        fontsize=7,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=1,
        handleheight=1,
    )
    return figure
