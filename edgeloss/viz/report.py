"""One self-contained HTML page: every loss map, with the numbers behind each pixel."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from string import Template
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.colors import to_hex
from torch import Tensor

from edgeloss.fields import boundary_distance
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz import pages
from edgeloss.viz.arrays import (
    Arrays,
    Details,
    Said,
    Scene,
    batched,
    examine,
    joined,
    keep_silent,
    read_scene,
    stack_arrays,
)
from edgeloss.viz.coloring import CMAP, ColoredMap, class_colors, class_labels, color_map, color_maps, rgb_bytes
from edgeloss.viz.packing import (
    CODES,
    LARGE,
    MAX_BYTES,
    REACH,
    Content,
    Precision,
    pack_images,
    picture_uri,
    worst_places,
)
from edgeloss.viz.palette import LOUD, NOTHING, RIGHT, VOID, WRONG
from edgeloss.viz.scores import FIGURES, Scores, compute_scores, shown_figures

_Array = npt.NDArray[Any]
_NEIGHBORS = 8  # per edge pixel
_MAX_PAIRS = 1_500_000  # neighbors in total: fewer per edge pixel if there are very many edge pixels
_FAR = 100.0, 25.0  # pixels; exact distances beyond it, in large pictures the latter, would take most of the time
_NOTHING = {"distance": "far", "gradient": "zero", "region": "zero", "cross_entropy": ""}  # what black means
_LAYERS = ("cross_entropy", "same_side", "other_side", "edge", "distance", "gradient", "region")
_SPECIAL = {"void": VOID, "loud": LOUD, "nothing": NOTHING, "right": RIGHT, "wrong": WRONG}
_SCRIPTS = ("data.js", "drawing.js", "views.js", "sidebar.js", "charts.js", "report.js")


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
    terms come from. A table lists scores and terms per class. Loss, gradient, scores and terms are those of each image
    by itself.

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
        title: of the page; escaped, as are the names.
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
    logits, target = batched(logits, target)
    most_pairs = _MAX_PAIRS // len(target)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # next to torch's own threads, which wait often
        drawn = [] if image is None else [pool.submit(picture_uri, one) for one in rgb_bytes(image, target.shape)]
        parts = [
            _examine(read_scene(x[None], y[None], criterion), most_pairs, said, pool)
            for x, y in zip(logits, target, strict=True)
        ]
        said("colors")
        arrays = stack_arrays([part.arrays for part in parts])
        layers = _layers(arrays, [part.distance.result() for part in parts if part.distance is not None])
        content = Content(arrays, layers, [part.details for part in parts])
        pictures, scores = [one.result() for one in drawn], [part.scores.result() for part in parts]
        said("compressing")
        # Without the text; of a large picture, each pixel beyond may take another byte.
        room = MAX_BYTES + max(arrays.target.size - LARGE, 0) - sum(map(len, pictures))
        packed, precision = pack_images(content, room, pool)
    classes = class_labels(class_names, arrays.classes)
    colors = [to_hex(color) for color in class_colors(palette, arrays.classes)]
    images = [
        numbers
        | _about_image(content, index)
        | {
            "name": f"{index + 1} of {len(parts)}" if names is None else names[index],
            "picture": pictures[index] if pictures else None,
        }
        for index, numbers in enumerate(packed)
    ]
    figures = [part.arrays.terms | score.means for part, score in zip(parts, scores, strict=True)]
    tables = [_table(part.arrays, score, classes, colors) for part, score in zip(parts, scores, strict=True)]
    size = " × ".join(map(str, arrays.target.shape[1:]))
    return pages.page(
        title="edgeloss report" if title is None else title,
        links=links,
        header=f'<p class="subtitle">{size} pixels · {arrays.classes} classes</p>',
        body=Template(pages.asset("report.html")).substitute(
            tiles=_of_images(pages.tiles(shown_figures(values)) for values in figures),
            loss=html.escape(" ".join(str(EdgeAwareLoss() if criterion is None else criterion).split())),
            panes="".join(Template(pages.asset("pane.html")).substitute(side=side) for side in ("left", "right")),
            table=_of_images(tables),
        ),
        footer=html.escape(_footer(precision, content.details)),
        data={
            "names": classes[: arrays.classes],
            "colors": colors,
            "special": {name: to_hex(color) for name, color in _SPECIAL.items()},
            "scale": [to_hex(color) for color in CMAP(np.arange(CMAP.N))],
            "codes": CODES,
            "reach": REACH,
            "images": images,
        },
        css=["report.css"],
        scripts=_SCRIPTS,
    )


class _Part(NamedTuple):
    """What a report shows of an image; scores and distance are computed meanwhile."""

    arrays: Arrays
    details: Details
    scores: Future[Scores]
    distance: Future[_Array] | None  # None where the loss has its own


def _examine(scene: Scene, most_pairs: int, said: Said, pool: Executor) -> _Part:
    """Examine an image. The scene ends here: its logits are the largest part of the memory."""
    distance = pool.submit(_distance, scene) if scene.criterion.decay is None else None
    arrays, details = examine(scene, said, neighbors=_NEIGHBORS, most_pairs=most_pairs)
    assert details is not None
    scores = pool.submit(compute_scores, arrays.target, arrays.prediction, arrays.classes)
    return _Part(arrays, details, scores, distance)


def _distance(scene: Scene) -> _Array:
    """Return the exact distance to the nearest other label, inf beyond ``_FAR``."""
    labels = scene.labels()
    return boundary_distance(labels, ignore_index=-1, max_distance=_FAR[labels.size > LARGE])


def _of_images(parts: Iterable[str]) -> str:
    """Return a part of the page for each image; the script shows that of the image that is chosen."""
    return "".join(f'<div data-image="{at}"{" hidden" if at else ""}>{part}</div>' for at, part in enumerate(parts))


def _about_image(content: Content, index: int) -> dict[str, Any]:
    """Return what the menus and the colors of the layers need, and the worst places."""
    maps = content.arrays.maps
    worst = "edge" if maps["edge_mask"].any() else "cross_entropy"
    layers = [
        {
            "key": layer.key,
            "name": layer.name,
            "stats": layer.stats[index],
            "low": float(layer.norm.vmin or 0),
            "high": float(layer.norm.vmax or 0),
            "log": layer.log,
            "unit": layer.unit,
            "extend": layer.extend,
            "nothing": _NOTHING.get(layer.key, "off the edges"),
        }
        for layer in content.layers
    ]
    return {"layers": layers, "worst": {"layer": worst, "places": worst_places(maps[worst][index])}}


def _layers(arrays: Arrays, exact: Sequence[_Array]) -> list[ColoredMap]:
    """Return the maps in the order of the menus; ``exact`` distances of each image if the loss has none."""
    maps = {colored.key: colored for colored in color_maps(arrays, terms=True)}
    void = arrays.target < 0
    distance = joined(exact) if exact else arrays.maps["distance"]  # the latter in units of the spacing of the loss
    # Infinite distances are drawn black: they mean no other label within the search radius, or ``_FAR``.
    far = np.isinf(distance)
    unit = "px" if exact else ""
    drawn = color_map("distance", np.where(far, 0, distance), ~far & ~void, void, far & ~void, unit=unit)
    maps["distance"] = drawn._replace(raw=distance)
    return [maps[key] for key in _LAYERS if key in maps]


# ------------------------------------------------------------------------------------------------------------ the text


def _footer(precision: Precision, details: Sequence[Details]) -> str:
    rounded = f"numbers are rounded to {2.0 ** -(precision.bits + 1):.1%}, probabilities and losses to"
    about = f"{rounded} {precision.step / 2:.1g}"
    count = max((len(one.neighbors.nll) for one in details if one.neighbors.nll.size), default=0)
    return f"{about} · up to {count} neighbors per edge pixel, largest weighted loss first" if count else about


def _table(arrays: Arrays, scores: Scores, names: Sequence[str], colors: Sequence[str]) -> str:
    """Return a row per class that occurs in the batch, as HTML."""
    edges = arrays.maps["edge_mask"]
    on_edges = arrays.target[edges]

    def mean(labels: _Array, values: _Array) -> _Array:
        if not (finite := np.isfinite(values)).all():
            labels, values = labels[finite], values[finite]
        total = np.bincount(labels + 1, values, arrays.classes + 1)  # ignored pixels come first
        with np.errstate(invalid="ignore"):
            return np.asarray(total / np.bincount(labels + 1, minlength=arrays.classes + 1))[1:]

    edge_pixels = np.bincount(on_edges, minlength=arrays.classes)
    means = {name: mean(on_edges, arrays.maps[name][edges]) for name in ("same_side", "other_side", "edge")}
    total = np.nan_to_num(means["edge"]) * edge_pixels
    with np.errstate(invalid="ignore"):
        share = total / total.sum()
    cross_entropy = mean(arrays.target.ravel(), arrays.maps["cross_entropy"].ravel())
    columns = {
        "pixels": [str(n) for n in scores.pixels],
        "IoU": [pages.cell(value, ".1%") for value in scores.iou],
        FIGURES["boundary_f1_1px"][0]: [pages.cell(value, ".1%") for value in scores.boundary_f1],
        "cross-entropy": [pages.cell(value, ".3f") for value in cross_entropy],
        "edge pixels": [str(n) for n in edge_pixels],
        **{name.replace("_", " "): [pages.cell(value, ".3f") for value in values] for name, values in means.items()},
        "share of edge loss": [pages.cell(value, ".1%") for value in share],
    }
    rows = [
        (
            f'<span class="swatch" style="background:{colors[k]}"></span>{html.escape(names[k])}',
            *(cells[k] for cells in columns.values()),
        )
        for k in range(arrays.classes)
        if scores.pixels[k] or scores.predicted[k]
    ]
    return pages.table(("class", *columns), rows, label="Scores and mean terms of each class")
