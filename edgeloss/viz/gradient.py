"""The gradient of any loss, pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from edgeloss.viz import drawing
from edgeloss.viz.arrays import gradient_norm
from edgeloss.viz.coloring import ColoredMap, color_map, reduce_blocks
from edgeloss.viz.palette import LOUD, NOTHING, VOID


def gradient_figure(gradient: Tensor, ignored: Tensor | None = None, *, title: str | None = None) -> Figure:
    """Draw the L2 norm of the gradient over the classes on a log scale, one picture per image.

    Colors are those of :func:`edgeloss.viz.panel`, with one scale for all pictures: non-finite values are magenta and
    counted above the picture, ignored pixels are gray, and gradients of exactly 0 are black.

    Args:
        gradient: [B, C, H, W] or [B, C, D, H, W] floating, any device. Of a volume, the slice with the most non-finite
            pixels is drawn, or the middle slice if there are none.
        ignored: [B, *S] bool, the ignored pixels, of images also in a higher resolution. None if there are none.
        title: one line above the pictures.

    Returns:
        The figure. Its axes are the pictures, each followed by its color bar.

    Raises:
        ValueError: if the gradient has another shape or no pixels.

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
            "gradient: expected [B, C, H, W] or [B, C, D, H, W] with at least one pixel, but got "
            f"{list(gradient.shape)}; pass the gradient with respect to 2-D or 3-D logits"
        )
    names, drawn = _colored(gradient, ignored)
    height, width = drawn.values.shape[1:]

    columns = min(len(names), 4)
    rows = math.ceil(len(names) / columns)
    wide = 4.5 if columns == 1 else 3.0
    high = wide * drawing.limited_aspect(height, width)
    across = wide + drawing.GAP
    below = drawing.BAR_GAP + drawing.BAR + drawing.TICKS
    down = drawing.CAPTION + high + below + drawing.GAP
    foot = drawing.MARGIN + drawing.KEY_LINE
    size = (columns * across + 2 * drawing.MARGIN, foot + rows * down + drawing.TITLE * (title is not None))
    figure = drawing.TextFigure(figsize=size, dpi=drawing.DPI)
    for image, name in enumerate(names):
        row, column = divmod(image, columns)
        bottom = foot + (rows - row) * down - drawing.CAPTION - high
        box = (drawing.MARGIN + column * across, bottom, wide, high)
        axes = drawing.add_axes(figure, box, (height, width), name, drawn.stats[image])
        picture = drawing.show_map(axes, drawn, image)
        drawing.mark(axes, np.ma.getmaskarray(drawn.values[image]))
        drawing.add_color_bar(figure, box, picture, drawn)
    drawing.add_title(figure, title)
    drawing.add_key(figure, _key(drawn), columns=3)
    return figure


def _key(drawn: ColoredMap) -> list[tuple[str, drawing.Color]]:
    """Return the special colors that occur."""
    special = [
        ("ignored", VOID, drawn.void.any()),
        ("zero gradient", NOTHING, drawn.nothing.any()),
        ("not finite", LOUD, np.ma.getmaskarray(drawn.values).any()),
    ]
    return [(name, color) for name, color, occurs in special if occurs]


def _colored(gradient: Tensor, ignored: Tensor | None) -> tuple[list[str], ColoredMap]:
    """Return a name per image, and log10 of the norm, of volumes that of one slice each."""
    norm = gradient_norm(gradient).cpu().numpy()
    void = np.zeros(norm.shape, dtype=bool) if ignored is None else ignored.cpu().numpy()
    names = [f"image {image}" for image in range(len(norm))]
    if norm.ndim == 4:
        failed = (~np.isfinite(norm)).sum((2, 3))
        chosen = np.where(failed.any(1), failed.argmax(1), norm.shape[1] // 2)
        names = [f"{name}, slice {d} of {norm.shape[1]}" for name, d in zip(names, chosen, strict=True)]
        batch = np.arange(len(norm))
        norm, void = norm[batch, chosen], void[batch, chosen]
    if void.shape != norm.shape:  # cells of a lower resolution have no label of their own
        void = reduce_blocks(np.logical_or, void, norm.shape[1:]) & (norm == 0)
    zero = (norm == 0) & ~void
    return names, color_map("|gradient|", norm, ~void, void, zero, outline="white", log=True)
