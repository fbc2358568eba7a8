"""Figures of a batch: images, labels, loss maps and gradient; or the gradient of any loss alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from edgeloss._checks.options import EDGE_TERMS
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.arrays import Arrays, compute_arrays, gradient_norm
from edgeloss.viz.coloring import (
    CLIP,
    CMAP,
    ColoredMap,
    Look,
    color_layer,
    color_maps,
    error_picture,
    picture_of_labels,
    read_look,
)
from edgeloss.viz.drawing import NARROWEST_FIGURE, KeyEntry, Picture, TextFigure, draw_figure, find_borders
from edgeloss.viz.palette import LOUD, NOTHING, RIGHT, VOID, WRONG
from edgeloss.viz.pictures import labels_picture
from edgeloss.viz.scores import shown

MAPS = ("cross_entropy", "edge", "gradient", "region")
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
) -> TextFigure:
    """Draw image, ground truth, prediction, wrong pixels, the maps of cross-entropy and edge terms, and gradients.

    The loss maps are those of ``criterion(logits, target, return_maps=True)``: the edge map is that of the edge terms
    before class weights and focus. The gradient is that of the loss with respect to the logits, drawn as its L2 norm
    over the classes on a log scale. The region term has a value per image
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
        contours: draw the borders between the true labels as lines over image and prediction.
        width: of the figure in inches, at least 1.7: about 3.3 for a column of a paper and 6.9 for two. None adapts it
            to the images.

    Returns:
        The figure. The axes of each image are image, ground truth, prediction, wrong pixels, then cross-entropy, edge
        map, with ``terms`` same side and other side, gradient, and gradient of the region term unless its weight is 0,
        each followed by its color bar. Maps begin a row of their own, unless all pictures of an image are in one. The
        key is where they leave places free, or below all.

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
        ['ground truth', 'prediction', 'wrong pixels', 'cross-entropy', 'edge map', '|gradient|', '|region gradient|']
        >>> figure.savefig("panel.png")  # doctest: +SKIP
    """
    arrays = compute_arrays(logits, target, criterion)
    look = read_look(arrays, image, class_names, palette, title)
    return draw_panel(arrays, look, terms=terms, contours=contours, width=width)


def draw_panel(
    arrays: Arrays,
    look: Look,
    *,
    terms: bool,
    contours: bool,
    width: float | None,
    names: Sequence[str] | None = None,
    read: str = "logits",
) -> TextFigure:
    """Draw the arrays of a batch, with the names of its images.

    ``read`` says what the predictions were; the other arguments are those of :func:`panel`.
    """
    if width is not None and not width >= NARROWEST_FIGURE:
        raise ValueError(
            f"width: expected at least {NARROWEST_FIGURE:.2g} inches, but got {width}; pass 3.3 for a column, or None"
        )
    sides = tuple(term.name for term in EDGE_TERMS) * terms
    maps = color_maps(arrays, (*MAPS[:2], *sides, *MAPS[2:]))  # losses, then gradients
    blocks = []
    for index, (truth, prediction) in enumerate(zip(arrays.target, arrays.prediction, strict=True)):
        borders = find_borders(truth) if contours else None
        image = None if look.images is None else look.images[index]
        pictures = _pictures_of_labels(truth, prediction, image, look.colors, borders, read)
        if names is not None:
            pictures[0] = pictures[0]._replace(stats=f"{names[index]} · {pictures[0].stats}")
        blocks.append(pictures + [Picture(one.kind.name, one.stats[index], one, index) for one in maps])
    return draw_figure(
        blocks, arrays.target.shape[1:], _key(arrays, maps, look, contours=contours), title=look.title, width=width
    )


def _pictures_of_labels(
    truth: _Array, prediction: _Array, image: _Array | None, colors: _Array, borders: _Array | None, read: str
) -> list[Picture]:
    """Return image, truth, prediction and wrong pixels of one image."""
    valid = truth >= 0
    height, width = truth.shape
    occurring = len(np.unique(truth[valid]))
    ignored = shown(float(np.mean(~valid)), ".1%")
    stats = f"{occurring} class{'es' * (occurring != 1)}{'' if valid.all() else f' · {ignored} ignored'}"
    is_wrong = prediction[valid] != truth[valid]
    share = float(is_wrong.mean()) if valid.any() else np.nan
    right = f"{shown(1 - share, '.1%')} right" if valid.any() else "all ignored"
    right += f", from {read}" * (read != "logits")
    wrong = f"{is_wrong.sum():,} of {is_wrong.size:,}, {shown(share, '.1%')}" if valid.any() else "all ignored"
    predicted = labels_picture(truth, prediction, colors)
    size = f"{width} × {height} pixels"
    return [
        *([] if image is None else [Picture("image", size, image, borders=borders)]),
        Picture("ground truth", stats, picture_of_labels(truth, colors)),
        Picture("prediction", right, predicted, borders=borders, marked=(prediction < 0) & valid),
        Picture("wrong pixels", wrong, error_picture(truth, prediction, image)),
    ]


def _key(arrays: Arrays, maps: Sequence[ColoredMap], look: Look, *, contours: bool) -> list[KeyEntry]:
    """Return the names and colors that occur, of very many classes those with the most pixels."""
    labels = np.concatenate([arrays.target.ravel(), arrays.prediction.ravel()])
    counts = np.bincount(labels[labels >= 0], minlength=arrays.classes)
    most = np.sort(np.argsort(-counts, kind="stable")[: min(_MOST_NAMES, np.count_nonzero(counts))])
    more = np.count_nonzero(counts) - len(most)
    wrong = (arrays.prediction != arrays.target) & (arrays.target >= 0)
    special = [
        (f"and {more} more", (1.0, 1.0, 1.0), more > 0),
        ("right", RIGHT, not wrong.all()),
        ("wrong", WRONG, wrong.any()),
        ("ignored", VOID, (arrays.target < 0).any()),
        (f"highest {100 - CLIP:g} % of a map", CMAP(1.0)[:3], any(colored.is_clipped for colored in maps)),
        ("no edge, zero gradient", NOTHING, any(colored.nothing.any() for colored in maps)),
        (
            "not finite",
            LOUD,
            (arrays.prediction < 0).any() or any("not finite" in line for colored in maps for line in colored.stats),
        ),
    ]
    key = [KeyEntry(look.names[label], tuple(look.colors[label])) for label in most]
    key += [KeyEntry(name, color) for name, color, occurs in special if occurs]
    return [*key, KeyEntry("true borders", (0.0, 0.0, 0.0), is_line=True)] if contours else key


# ------------------------------------------------------------------------------------------- the gradient of any loss


def gradient_figure(gradient: Tensor, ignored: Tensor | None = None, *, title: str | None = None) -> TextFigure:
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
    pictures = [Picture(name, drawn.stats[index], drawn, index) for index, name in enumerate(names)]
    special = [
        ("ignored", VOID, drawn.void.any()),
        (f"highest {100 - CLIP:g} % of a map", CMAP(1.0)[:3], drawn.is_clipped),
        ("zero gradient", NOTHING, drawn.nothing.any()),
        ("not finite", LOUD, not np.isfinite(drawn.raw).all()),
    ]
    key = [KeyEntry(name, color) for name, color, occurs in special if occurs]
    return draw_figure([pictures], drawn.raw.shape[1:], key, title=title)


def _colored(gradient: Tensor, ignored: Tensor | None) -> tuple[list[str], ColoredMap]:
    """Return a name per image, and log10 of the norm, of volumes that of one slice each."""
    norm = gradient_norm(gradient).cpu().numpy()
    void = np.zeros(norm.shape, dtype=bool) if ignored is None else ignored.cpu().numpy()
    names = [f"image {image}" for image in range(len(norm))] if len(norm) > 1 else ["|gradient|"]
    if norm.ndim == 4:
        failed = (~np.isfinite(norm)).sum((2, 3))
        chosen = np.where(failed.any(1), failed.argmax(1), norm.shape[1] // 2)
        names = [f"{name}, slice {d} of {norm.shape[1]}" for name, d in zip(names, chosen, strict=True)]
        batch = np.arange(len(norm))
        norm, void = norm[batch, chosen], void[batch, chosen]
    return names, color_layer("gradient", norm, None, void)
