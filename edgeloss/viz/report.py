"""Images → one self-contained HTML page: every loss map, with the numbers behind each pixel."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from edgeloss._checks.options import EDGE_TERMS, TERMS
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz import pages
from edgeloss.viz.arrays import LARGE, Arrays, Said, examine_images, keep_silent, stack_arrays, workers
from edgeloss.viz.coloring import CLIP, ColoredMap, Look, color_maps, read_look, shown_number
from edgeloss.viz.packing import MAX_BYTES, encode, pack_images, step_of
from edgeloss.viz.scores import FIGURES, mistakes, shown, shown_score, sum_by_class, worst_places

_Array = npt.NDArray[Any]
_ON_EDGES = tuple(term.name for term in EDGE_TERMS)
_OF_TERMS = tuple(term.name for term in TERMS if term.has_map)
_LEAD = "The page shows which pixels are wrong, and the loss at each."
_LAYERS = (*_OF_TERMS, "edge", "distance", "pixel_distance", "gradient", "region")


def report(
    logits: Tensor,
    target: Tensor,
    *,
    image: Tensor | None = None,
    criterion: EdgeAwareLoss | None = None,
    class_names: Sequence[str] | None = None,
    palette: Sequence[Any] | npt.NDArray[Any] | None = None,
    title: str | None = None,
    links: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    said: Said = keep_silent,
) -> str:
    """Return an interactive HTML page: :func:`~edgeloss.viz.panel` with the numbers behind it.

    Two views, zoomed together, each show a layer over the image: ground truth, prediction, right and wrong pixels, the
    loss maps, the distance to the nearest other label, or the gradient, with contours if wanted. The legend and the
    histograms limit what they show. Pointing at a pixel shows its labels, its most probable classes, every term that
    belongs to a pixel, the gradient of the region term, which belongs to an image, and the neighbors that its edge
    terms come from. Edge terms of pixels and of classes are those before class weights and focus; the share of a class
    in the edge loss is that with both. A table lists scores and terms per class. Loss, gradient, scores and terms are
    those of each image by itself.

    The page is one file and needs no server and no network, only a browser from 2023 or later. Its numbers are rounded
    to about 0.2 %, or more coarsely, as stated at its end, where the file would exceed 15 MB, or for more than two
    million pixels 13 MB and a byte per pixel.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device; C = 1 for binary. The page shows one image at a time.
        target: [B, H, W] or [H, W] integer, on the same device. With ``criterion.upsample`` it may be larger.
        image: [B, 3, H, W] or [3, H, W], or with one gray channel, in the size of the target; floating in [0, 1] or
            uint8. None leaves the layer out.
        criterion: the loss to show; ``EdgeAwareLoss()`` if None.
        class_names: at least C names; the class indices if None.
        palette: at least C colors, each three integers in 0 ... 255 or any Matplotlib color;
            :func:`~edgeloss.viz.distinct_colors` if None.
        title: of the page.
        links: files in the folder of the page, by the text of the link, shown above the title.
        names: of the images, for the menu and the slider that choose one; their numbers if None.
        said: is called with what is being computed.

    Returns:
        The page, to be written as UTF-8.

    Raises:
        ValueError: as :func:`~edgeloss.viz.panel`.

    Example:
        >>> import torch
        >>> page = report(torch.randn(2, 48, 64), torch.zeros(48, 64, dtype=torch.int64), class_names=["a", "<b>"])
        >>> page.startswith("<!doctype html>"), "<b>" in page
        (True, False)
    """
    examined = examine_images(logits, target, criterion, details=True, said=said)
    look = read_look(stack_arrays(examined), image, class_names, palette, title)
    return draw_report(examined, criterion, look, links=links, names=names, said=said)


def draw_report(
    examined: Sequence[Arrays],
    criterion: EdgeAwareLoss | None,
    look: Look,
    *,
    links: Mapping[str, str] | None,
    names: Sequence[str] | None,
    said: Said,
    about: str = "",
) -> str:
    """Return the page about images that were examined with details.

    ``about`` says what was read as the prediction; the other arguments are those of :func:`report`.
    """
    arrays = stack_arrays(examined)
    colors = [to_hex(color) for color in look.colors]
    said("colors")
    names = [f"{index + 1} of {len(examined)}" for index in range(len(examined))] if names is None else names
    with workers() as pool:
        pictures = pool.map(_picture_uri, [None] * len(examined) if look.images is None else look.images)
        abouts = pool.map(lambda one: _about_image(one, look.names, colors), examined)
        layers = color_maps(arrays, _LAYERS)
        images = [
            about | {"name": name, "picture": picture, "layers": [_about_layer(layer, index) for layer in layers]}
            for index, (about, name, picture) in enumerate(zip(abouts, names, pictures, strict=True))
        ]
        said("compressing")
        # Without the text; of a large picture, each pixel beyond may take another byte.
        room = MAX_BYTES + max(arrays.target.size - LARGE, 0) - sum(len(image["picture"] or "") for image in images)
        packed, bits = pack_images(examined, layers, room, pool)
    for image, packed_arrays in zip(images, packed, strict=True):
        image["arrays"] = packed_arrays
        for layer in image["layers"]:  # the largest value is shown as in the statistics, not as it is rounded
            code = encode(np.array([layer["most"]]), bits, 0 if layer["nothing"] in ("far", "zero") else step_of(bits))
            layer["most"] = [int(code[0]), layer["most"]]
    viewer = {
        "kind": "viewer",
        "names": look.names[: arrays.classes],
        "colors": colors,
        "images": images,
    }
    size = " × ".join(map(str, arrays.target.shape[:0:-1]))
    return pages.page(
        "edgeloss report" if look.title is None else look.title,
        [viewer, pages.folded(describe_loss(EdgeAwareLoss() if criterion is None else criterion))],
        kind="report",
        subtitle=" · ".join(filter(None, (about, f"{size} pixels", f"{arrays.classes} classes"))),
        lead=_lead(images, look.names),
        links=links,
        footer=_footer(bits, examined),
    )


def describe_loss(criterion: EdgeAwareLoss) -> str:
    """Return the options of a loss as a line of text."""
    return " ".join(str(criterion).split())


def _picture_uri(rgb: npt.NDArray[np.uint8] | None) -> str | None:
    """Return an image [H, W, 3] as a data URI: a PNG, or a JPEG of a tenth of ``MAX_BYTES`` at most."""
    if rgb is None:
        return None
    picture = Image.fromarray(rgb)
    kind = "png" if rgb.shape[0] * rgb.shape[1] <= 512 * 512 else "jpeg"
    for quality in (92, 80, 60, 30):
        file = io.BytesIO()
        picture.save(file, kind, quality=quality)
        if file.tell() <= MAX_BYTES / 10:
            break
    return pages.data_uri(file.getvalue(), kind)


def _about_image(arrays: Arrays, names: Sequence[str], colors: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows next to the views."""
    scores, target = arrays.scores, arrays.target[0]
    worst = "edge" if arrays.maps["edge_mask"].any() else "cross_entropy"
    return {
        "tiles": pages.figure_tiles(arrays.figures, arrays.classes),
        "tables": {"title": "Scores per class", "tables": _tables(arrays, names, colors)},
        "pixels": {"valid": int(scores.pixels.sum()), "wrong": scores.wrong},
        "occurs": [[k, int(scores.pixels[k])] for k in np.flatnonzero(scores.occurs).tolist()],
        "mistakes": mistakes(target, arrays.prediction[0]),
        "worst": {"layer": worst, "places": worst_places(arrays.maps[worst][0], target, arrays.prediction[0])},
    }


def _lead(images: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return what the page shows; of a single image, what is wrong first."""
    pixels, most = images[0]["pixels"], images[0]["mistakes"]
    if len(images) > 1 or not pixels["wrong"]:
        return _LEAD
    true, predicted, count = most[0]
    pair = f", most often {names[true]} predicted as {names[predicted]} ({count:,} px)" if predicted >= 0 else ""
    return f"{shown(pixels['wrong'] / pixels['valid'], '.1%')} of the labeled pixels are wrong{pair}. {_LEAD}"


def _about_layer(layer: ColoredMap, index: int) -> dict[str, Any]:
    """Return what the menus and the colors of a layer need."""
    about = {"key": layer.key, "low": layer.low, "high": layer.high, "most": layer.most[index]}
    about["bar"] = pages.color_bar(*layer.ends) if layer.has_bar else None
    clipped = f"; colors end at {CLIP} % of the values" if layer.is_clipped else ""
    kind = layer.kind._replace(about=f"{layer.kind.about}{clipped}")
    # Not the mean: class weights are no part of a map, so that the edge loss, a tile, is another number.
    return about | kind._asdict() | {"stats": layer.describe(index, {"max": layer.most[index]})}


def _footer(bits: int, examined: Sequence[Arrays]) -> str:
    rounded = f"values of pixels are rounded to {shown(2.0 ** -(bits + 1), '.1%')} of themselves"
    about = f"{rounded}, the smallest to {shown_number(step_of(bits) / 2)}; probabilities may not add up to 1"
    counts = [len(one.details.nll) for one in examined if one.details and one.details.nll.size]
    many = f"up to {max(counts)} neighbors per edge pixel, largest weighted loss first" if counts else ""
    return f"{about} · {many}" if many else about


def _tables(arrays: Arrays, names: Sequence[str], colors: Sequence[str]) -> list[pages.Part]:
    """Return the scores and the mean terms of each class that occurs in the image."""
    scores, edges = arrays.scores, arrays.maps["edge_mask"]
    on_edges = arrays.target[edges]

    def mean(labels: _Array, values: _Array) -> _Array:
        if not (finite := np.isfinite(values)).all():
            labels, values = labels[finite], values[finite]
        with np.errstate(invalid="ignore"):
            total = sum_by_class(labels, arrays.classes, values)
            return np.asarray(total / sum_by_class(labels, arrays.classes))

    means = {name: mean(on_edges, arrays.maps[name][edges]) for name in (*_ON_EDGES, "edge")}
    of_scores = {
        "pixels": [f"{n:,}" for n in scores.pixels],
        "edge pixels": [f"{n:,.0f}" for n in sum_by_class(on_edges, arrays.classes)],
        "IoU": [shown_score(value, ".1%") for value in scores.iou],
        FIGURES["boundary_f1_1px"].name: [shown_score(value, ".1%") for value in scores.boundary_f1],
    }
    terms = {
        "cross-entropy": mean(arrays.target, arrays.maps["cross_entropy"]),
        **{FIGURES[name].name: values for name, values in means.items()},
    }
    of_terms = {name: [shown_score(value, ".3f") for value in values] for name, values in terms.items()}
    of_terms["share"] = [shown_score(value, ".1%") for value in arrays.edge_shares[0]]
    notes = {FIGURES[name].name: FIGURES[name].about for name in means}
    notes["share"] = "of the class in the focused edges of the image, with class weights"
    occurring = np.flatnonzero(scores.occurs).tolist()

    def table(columns: Mapping[str, Sequence[str]], title: str, notes: Mapping[str, str]) -> pages.Part:
        rows = [([names[k], colors[k]], *(cells[k] for cells in columns.values())) for k in occurring]
        return pages.table(("class", *columns), rows, label=f"{title} of each class", title=title, notes=notes)

    return [
        table(of_scores, "Scores", {"edge pixels": "pixels of the class with another label next to them"}),
        table(of_terms, "Mean terms of the loss, nats", notes),
    ]
