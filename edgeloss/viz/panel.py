"""Figures of a batch: images, labels, loss maps and gradient; or the gradient of any loss alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from torch import Tensor

from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz import drawing
from edgeloss.viz.arrays import Arrays, compute_arrays, gradient_norm
from edgeloss.viz.coloring import (
    ColoredMap,
    class_colors,
    class_labels,
    color_gradient,
    color_maps,
    error_picture,
    picture_of_labels,
    rgb_images,
)
from edgeloss.viz.palette import LOUD, NOTHING, RIGHT, VOID, WRONG

# Lengths in inches.
_SWATCH = 0.29  # width of a colored box of the key with the space around it
_LETTER = 0.062  # width of a letter of the key, rounded up
_NARROWEST = 1.4  # width of a picture that its caption fits

_MOST_NAMES = 40  # in the key: the classes with the most pixels

_Array = npt.NDArray[Any]


def panel(
    logits: Tensor,
    target: Tensor,
    *,
    image: Tensor | None = None,
    criterion: EdgeAwareLoss | None = None,
    class_names: Sequence[str] | None = None,
    palette: Sequence[Any] | npt.NDArray[Any] | None = None,
    title: str | None = None,
    terms: bool = False,
    contours: bool = True,
    width: float | None = None,
) -> drawing.TextFigure:
    """Draw image, ground truth, prediction, errors, the maps of cross-entropy and edge terms, and gradients.

    The loss maps are those of ``criterion(logits, target, return_maps=True)``. The gradient is that of the loss with
    respect to the logits, drawn as its L2 norm over the classes on a log scale. The region term has a value per image
    and no map; the size of its own part of the gradient shows where it acts. Ignored pixels are gray; pixels off the
    edge mask and gradients of exactly 0 are black; non-finite values are magenta and counted above the picture. Means
    and color ranges leave out ignored and non-finite pixels and, for the edge map, pixels off the edge mask. A color
    bar ends in an arrow where outliers lie beyond it. All images of a batch share one color range per map. Where the
    pixels of a map are smaller than the dots of the file, a dot shows the largest value below it.

    The figure does not use pyplot: ``figure.savefig(path)`` writes it, a notebook displays it as the result of a cell,
    and it needs no closing. In an SVG or PDF, text is text.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device; C = 1 for binary. One row of pictures per image.
        target: [B, H, W] or [H, W] integer, on the same device. With ``criterion.upsample`` it may be larger.
        image: [B, 3, H, W] or [3, H, W], or with one gray channel, in the size of the target; floating in [0, 1] or
            uint8. None leaves the picture out.
        criterion: the loss to draw; ``EdgeAwareLoss()`` if None.
        class_names: at least C names; the class indices if None.
        palette: at least C colors, each three integers in 0 ... 255 or any Matplotlib color;
            :func:`~edgeloss.viz.distinct_colors` if None.
        title: one line above the pictures.
        terms: also draw the two edge terms.
        contours: draw the borders between the true labels as lines over image, prediction and, where the pixels are
            large enough, maps.
        width: of the figure in inches, at least 1.7: about 3.3 for a column of a paper and 6.9 for two. None adapts it
            to the images.

    Returns:
        The figure. The axes of each image are image, ground truth, prediction, errors, then cross-entropy, edge map,
        gradient, gradient of the region term unless its weight is 0 and, with ``terms``, same side and other side, each
        followed by its color bar.

    Raises:
        ValueError: if logits or target are volumes, have no pixels or do not fit each other; if the image has another
            size or range; if there are too few names or colors; if the width is too small; if the criterion is
            multilabel, of which :meth:`~edgeloss.EdgeAwareLoss.of_class` draws a class; and as ``criterion`` does.

    Example:
        >>> import torch
        >>> target = torch.zeros(48, 64, dtype=torch.int64)
        >>> target[12:36, 20:50] = 1
        >>> figure = panel(torch.randn(2, 48, 64), target, class_names=["ground", "box"])
        >>> [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
        ['ground truth', 'prediction', 'errors', 'cross-entropy', 'edge map', '|gradient|', '|region gradient|']
        >>> figure.savefig("panel.png")  # doctest: +SKIP
    """
    arrays = compute_arrays(logits, target, criterion)
    images = None if image is None else rgb_images(image, arrays.target.shape)
    colors = class_colors(palette, arrays.classes)
    names = class_labels(class_names, arrays.classes)
    least = _NARROWEST + 2 * drawing.MARGIN
    if width is not None and not width >= least:
        raise ValueError(
            f"width: expected at least {least:.2g} inches, but got {width}; pass 3.3 for a column, or None"
        )
    maps = color_maps(arrays, terms=terms)
    key = _key(arrays, maps, names, colors, has_image=images is not None)
    letters, pictures = [len(name) for name, _ in key], 3 + (images is not None)
    layout = _layout(arrays.target.shape, pictures, len(maps), letters, titled=title is not None, width=width)
    figure = drawing.TextFigure(figsize=(layout.width, layout.height), dpi=drawing.DPI)
    boxes = iter(layout.boxes)
    for index, (truth, prediction) in enumerate(zip(arrays.target, arrays.prediction, strict=True)):
        borders = drawing.find_borders(truth) if contours else None
        _draw_labels(figure, boxes, truth, prediction, None if images is None else images[index], colors, borders)
        for colored in maps:
            drawing.add_map(figure, next(boxes), truth.shape, colored, index, borders=borders)
    drawing.add_title(figure, title)
    drawing.add_key(figure, key, layout.key_columns, *layout.key_place)
    return figure


def _draw_labels(
    figure: Figure,
    boxes: Iterator[drawing.Box],
    truth: _Array,
    prediction: _Array,
    image: _Array | None,
    colors: _Array,
    borders: _Array | None,
) -> None:
    """Draw image, truth, prediction and errors of one image, each in the next box."""
    valid = truth >= 0
    height, width = truth.shape
    box = next(boxes)
    line = min(0.16 * box[2], 0.45)  # in points
    if image is not None:
        axes = drawing.add_axes(figure, box, truth.shape, "image", f"{height} × {width} pixels")
        drawing.show(axes, image)
        drawing.draw_borders(axes, borders, "#00000080", 2 * line)
        drawing.draw_borders(axes, borders, "white", line)
        box = next(boxes)

    occurring = len(np.unique(truth[valid]))
    stats = f"{occurring} class{'es' * (occurring != 1)}{'' if valid.all() else f' · {(~valid).mean():.1%} ignored'}"
    axes = drawing.add_axes(figure, box, truth.shape, "ground truth", stats)
    drawing.show(axes, picture_of_labels(truth, colors))

    right = f"{np.mean(prediction[valid] == truth[valid]):.1%} right" if valid.any() else "all ignored"
    axes = drawing.add_axes(figure, next(boxes), truth.shape, "prediction", right)
    drawing.show(axes, picture_of_labels(prediction, colors, LOUD))
    drawing.draw_borders(axes, borders, "black", line)
    drawing.mark(axes, prediction < 0)

    wrong = f"{np.sum(prediction[valid] != truth[valid]):,} pixels wrong"
    axes = drawing.add_axes(figure, next(boxes), truth.shape, "errors", wrong)
    drawing.show(axes, error_picture(truth, prediction, image))


def _key(
    arrays: Arrays, maps: Sequence[ColoredMap], names: Sequence[str], colors: _Array, *, has_image: bool
) -> list[tuple[str, drawing.Color]]:
    """Return the names and colors that occur, of very many classes those with the most pixels."""
    labels = np.concatenate([arrays.target.ravel(), arrays.prediction.ravel()])
    counts = np.bincount(labels[labels >= 0], minlength=arrays.classes)
    most = np.sort(np.argsort(-counts, kind="stable")[: min(_MOST_NAMES, np.count_nonzero(counts))])
    more = np.count_nonzero(counts) - len(most)
    wrong = (arrays.prediction != arrays.target) & (arrays.target >= 0)
    special = [
        (f"and {more} more", (1.0, 1.0, 1.0), more > 0),
        ("right", RIGHT, not has_image and not wrong.all()),
        ("wrong", WRONG, wrong.any()),
        ("ignored", VOID, (arrays.target < 0).any()),
        ("no edge, zero gradient", NOTHING, any(colored.nothing.any() for colored in maps)),
        ("not finite", LOUD, (arrays.prediction < 0).any() or any(colored.values.mask.any() for colored in maps)),
    ]
    key: list[tuple[str, drawing.Color]] = [(names[label], tuple(colors[label])) for label in most]
    return key + [(name, color) for name, color, occurs in special if occurs]


class _Layout(NamedTuple):
    """Size and places, in inches."""

    width: float
    height: float
    boxes: list[drawing.Box]  # of every picture, row by row, image by image
    key_columns: int
    key_place: tuple[float, float | None]  # left and top, None at the bottom of the figure


def _layout(
    shape: tuple[int, ...], pictures: int, maps: int, letters: list[int], *, titled: bool, width: float | None
) -> _Layout:
    """Place the pictures of a batch of [H, W] images, then the maps with their bars, and the key.

    Args:
        shape: (B, H, W).
        pictures: how many precede the maps.
        maps: how many there are, 3 or more.
        letters: the lengths of the names in the key.
        titled: reserve a line at the top.
        width: of the figure; None chooses one.
    """
    batch, *size = shape
    aspect = drawing.limited_aspect(*size)
    count = pictures + maps
    columns = _columns(count, batch, aspect, width)
    wide = (
        _picture_width(size, aspect, columns)
        if width is None
        else (width - 2 * drawing.MARGIN + drawing.GAP) / columns - drawing.GAP
    )
    high = wide * aspect
    full = columns * (wide + drawing.GAP) - drawing.GAP + 2 * drawing.MARGIN

    rows = math.ceil(count / columns)
    # A row has bars if the last of its pictures is a map.
    steps = [
        drawing.CAPTION + high + drawing.GAP + drawing.BELOW_MAP * (min((row + 1) * columns, count) > pictures)
        for row in range(rows)
    ]
    tops = np.cumsum([0.0, *steps])  # of the rows of an image, downwards
    block = float(tops[-1])

    free = rows * columns - count
    key_columns, lines = _key_columns(letters, free * (wide + drawing.GAP) - drawing.GAP)
    in_grid = 0 < lines * drawing.KEY_LINE <= steps[-1] - drawing.CAPTION - drawing.GAP
    if not in_grid:
        key_columns, lines = _key_columns(letters, full - 2 * drawing.MARGIN)
        lines = lines or len(letters)  # a name is longer than a line
    foot = drawing.MARGIN + (0 if in_grid else lines * drawing.KEY_LINE + drawing.GAP)
    top = foot + batch * block - drawing.GAP
    lefts = drawing.MARGIN + (wide + drawing.GAP) * np.arange(columns)
    boxes = [
        (
            float(lefts[k % columns]),
            float(top - image * block - tops[k // columns] - drawing.CAPTION - high),
            wide,
            high,
        )
        for image in range(batch)
        for k in range(count)
    ]
    place = (float(lefts[-free]), boxes[-1][1] + high) if in_grid else (drawing.MARGIN, None)
    return _Layout(full, top + drawing.TITLE * titled + drawing.MARGIN / 2, boxes, key_columns, place)


def _columns(count: int, batch: int, aspect: float, width: float | None) -> int:
    """Return how many of the ``count`` pictures of an image stand side by side."""
    if width is None and (batch > 1 or aspect > 1.5):
        return count
    fits = count if width is None else int((width - 2 * drawing.MARGIN + drawing.GAP) / (_NARROWEST + drawing.GAP))
    if aspect < 0.6:
        return min(2, fits)
    return min(range(min(3, fits), min(5, fits) + 1), key=lambda columns: -count % columns)  # the fewest free places


def _picture_width(size: list[int], aspect: float, columns: int) -> float:
    """Return a width that shows much of a picture: larger for a large image, whose edges would fade."""
    area = min(max(math.prod(size) / drawing.DPI**2, 6.5), 14)
    return min(max(math.sqrt(area / aspect), 1.8), max(13 / columns, 1.8), 5.5)


def _key_columns(letters: list[int], width: float) -> tuple[int, int]:
    """Return how many names of these lengths stand side by side, and on how many lines; (1, 0) if none fits."""
    for columns in range(len(letters), 0, -1):
        parts = np.array_split(letters, columns)  # as a legend arranges them, column by column
        if columns * _SWATCH + _LETTER * sum(max(part) for part in parts) < width:
            return columns, math.ceil(len(letters) / columns)
    return 1, 0


# ------------------------------------------------------------------------------------------- the gradient of any loss


def gradient_figure(gradient: Tensor, ignored: Tensor | None = None, *, title: str | None = None) -> drawing.TextFigure:
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
    shape = drawn.values.shape[1:]
    columns = min(len(names), 4)
    rows = math.ceil(len(names) / columns)
    wide = 4.5 if columns == 1 else 3.0
    high = wide * drawing.limited_aspect(*shape)
    down = drawing.CAPTION + high + drawing.BELOW_MAP + drawing.GAP
    foot = drawing.MARGIN + drawing.KEY_LINE
    size = (
        columns * (wide + drawing.GAP) + 2 * drawing.MARGIN,
        foot + rows * down + drawing.TITLE * (title is not None),
    )
    figure = drawing.TextFigure(figsize=size, dpi=drawing.DPI)
    for image, name in enumerate(names):
        row, column = divmod(image, columns)
        bottom = foot + (rows - row) * down - drawing.CAPTION - high
        box = (drawing.MARGIN + column * (wide + drawing.GAP), bottom, wide, high)
        drawing.add_map(figure, box, shape, drawn, image, name=name)
    drawing.add_title(figure, title)
    special = [
        ("ignored", VOID, drawn.void.any()),
        ("zero gradient", NOTHING, drawn.nothing.any()),
        ("not finite", LOUD, np.ma.getmaskarray(drawn.values).any()),
    ]
    drawing.add_key(figure, [(name, color) for name, color, occurs in special if occurs], columns=3)
    return figure


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
    return names, color_gradient("gradient", norm, void)
