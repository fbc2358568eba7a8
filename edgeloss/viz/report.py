"""One self-contained HTML page: every loss map, with the numbers behind each pixel."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import json
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from string import Template
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from edgeloss.fields import boundary_distance
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz import pages
from edgeloss.viz.arrays import (
    Arrays,
    Neighbors,
    TopClasses,
    compute_arrays,
    compute_neighbors,
    compute_top_classes,
)
from edgeloss.viz.coloring import CMAP, ColoredMap, class_colors, class_labels, color_map, color_maps, rgb_images
from edgeloss.viz.palette import LOUD, NOTHING, VOID

_Array = npt.NDArray[Any]


class _Precision(NamedTuple):
    """How exact the numbers behind the pixels are.

    Attributes:
        bits: of a significand.
        step: the smallest step of probabilities and losses.
        classes: how many of the most probable classes are stored.
    """

    bits: int
    step: float
    classes: int


# The first that keeps the page small enough is used.
_PRECISIONS = (
    _Precision(8, 2.0**-13, 3),
    _Precision(7, 2.0**-10, 3),
    _Precision(6, 2.0**-8, 3),
    _Precision(5, 2.0**-7, 3),
    _Precision(4, 2.0**-6, 3),
    _Precision(3, 2.0**-5, 2),
    _Precision(2, 2.0**-4, 1),
)
_MAX_BYTES = 14_000_000
_NEIGHBORS = 8  # per edge pixel
_MAX_PAIRS = 1_500_000  # neighbors in total: fewer per edge pixel if there are very many edge pixels
_BINS = 60
_NOTHING = {"distance": "far", "gradient": "zero", "false_edge": "zero", "cross_entropy": ""}  # what black means
_REACH = 2**15  # added to the steps to a neighbor, which makes them ≥ 0


def report(
    logits: Tensor,
    target: Tensor,
    *,
    image: Tensor | None = None,
    criterion: EdgeAwareLoss | None = None,
    class_names: Sequence[str] | None = None,
    palette: Sequence[Any] | npt.NDArray[Any] | None = None,
    title: str | None = None,
) -> str:
    """Return an interactive HTML page: :func:`~edgeloss.viz.panel` with the numbers behind it.

    Two views, zoomed together, each show a layer: image, ground truth, prediction, cross-entropy, same side, other
    side, false edges (with a ``false_edge_weight``), edge map, distance to the nearest other label, or gradient.
    Pointing at a pixel shows its labels, its most probable classes, every term, and the neighbors that its edge terms
    come from. Below are histograms and a table per class.

    The page is one file and needs no server and no network, only a browser from 2023 or later. Its numbers are rounded
    to about 0.2 %, or more coarsely, as stated at its end, where the file would exceed 15 MB.

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

    Returns:
        The page, to be written as UTF-8.

    Raises:
        ImportError: if Plotly is not installed.
        ValueError: as :func:`~edgeloss.viz.panel`.

    Example:
        >>> import torch
        >>> page = report(torch.randn(2, 48, 64), torch.zeros(48, 64, dtype=torch.int64), class_names=["a", "<b>"])
        >>> page.startswith("<!doctype html>"), "&lt;b&gt;" in page
        (True, True)
        >>> _ = pathlib.Path("report.html").write_text(page, encoding="utf-8")  # doctest: +SKIP
    """
    if importlib.util.find_spec("plotly") is None:
        raise ImportError('edgeloss.viz.report needs plotly: pip install "edgeloss[viz]"')
    criterion = EdgeAwareLoss() if criterion is None else criterion
    arrays = compute_arrays(logits, target, criterion)
    content = _compute_content(logits, target, criterion, arrays)
    images = None if image is None else rgb_images(image, arrays.target.shape)
    colors = [to_hex(color) for color in class_colors(palette, arrays.classes)]
    return _page(content, images, class_labels(class_names, arrays.classes), colors, title)


class _Layer(NamedTuple):
    """A map of the menus."""

    key: str
    colored: ColoredMap
    values: _Array


class _Content(NamedTuple):
    """The numbers of a report."""

    criterion: EdgeAwareLoss
    arrays: Arrays
    layers: list[_Layer]  # in the order of the menus
    top_classes: TopClasses
    neighbors: Neighbors


def _compute_content(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss, arrays: Arrays) -> _Content:
    edge_pixels = int(arrays.maps["edge_mask"].sum())
    count = min(max(_MAX_PAIRS // max(edge_pixels, 1), 1), _NEIGHBORS)
    return _Content(
        criterion,
        arrays,
        _layers(arrays),
        compute_top_classes(logits, target, criterion),
        compute_neighbors(logits, target, criterion, count),
    )


def _page(
    content: _Content, pictures: _Array | None, names: Sequence[str], colors: Sequence[str], title: str | None
) -> str:
    arrays, neighbors = content.arrays, content.neighbors
    shared = {
        "names": names,
        "colors": colors,
        "special": {"void": to_hex(VOID), "loud": to_hex(LOUD), "nothing": to_hex(NOTHING)},
        "scale": [to_hex(color) for color in CMAP(np.arange(CMAP.N))],
        "view": json.loads(_views()),
        "figures": {"histograms": json.loads(_histograms(arrays))},
        "maxNeighbors": len(neighbors.nll),
        "reach": _REACH,
    }
    images, precision = _images(content, [] if pictures is None else [_data_uri(picture) for picture in pictures])
    terms = " · ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in arrays.terms.items())
    size = " × ".join(map(str, arrays.target.shape[1:]))
    about = str(content.criterion).replace("\n", " ")
    footer = (
        f"edgeloss {version('edgeloss')} · drawn with Plotly · numbers are rounded to"
        f" {2.0 ** -(precision.bits + 1):.1%}, probabilities and losses to {precision.step / 2:.1g}"
    )
    if arrays.maps["edge_mask"].any():
        footer += f" · up to {len(neighbors.nll)} neighbors are shown per edge pixel, largest weighted loss first"
    return pages.page(
        title="edgeloss report" if title is None else title,
        header=f'<p>{html.escape(about)}</p>\n<p class="figures">{size} pixels · {terms}</p>',
        body=Template(pages.asset("report.html")).substitute(table=_table(arrays, names, colors)),
        footer=html.escape(footer),
        data=shared | {"images": images},
        css=pages.asset("report.css"),
        script=pages.asset("report.js"),
    )


# --------------------------------------------------------------------------------------------------------- the numbers


def _layers(arrays: Arrays) -> list[_Layer]:
    cross_entropy, edge, gradient, same_side, other_side, *false_edge = color_maps(arrays, terms=True)
    void = arrays.target < 0
    distance = arrays.maps.get("distance")
    if distance is None:  # the loss uses none: show the exact distance
        distance = boundary_distance(arrays.target, ignore_index=-1)
    # Infinite distances are drawn black: they mean no other label within the search radius.
    far = np.isinf(distance)
    drawn = color_map("distance", np.where(far, 0, distance), ~far & ~void, void, far & ~void, outline="white")
    return [
        _Layer("cross_entropy", cross_entropy, arrays.maps["cross_entropy"]),
        _Layer("same_side", same_side, arrays.maps["same_side"]),
        _Layer("other_side", other_side, arrays.maps["other_side"]),
        *(_Layer("false_edge", colored, arrays.maps["false_edge"]) for colored in false_edge),
        _Layer("edge", edge, arrays.maps["edge"]),
        _Layer("distance", drawn, distance),
        _Layer("gradient", gradient, arrays.gradient),
    ]


def _images(content: _Content, pictures: Sequence[str]) -> tuple[list[dict[str, Any]], _Precision]:
    """Return the data of each image, in the highest precision that keeps the page small enough."""
    room = _MAX_BYTES - len(pages.packed_plotly()) - sum(map(len, pictures))
    for precision in _PRECISIONS:
        images = [_image(content, index, precision) for index in range(len(content.arrays.target))]
        if sum(len(array["data"]) for image in images for array in image["arrays"].values()) <= room:
            break
    for image, picture in zip(images, pictures, strict=False):
        image["picture"] = picture
    return images, precision


def _image(content: _Content, index: int, precision: _Precision) -> dict[str, Any]:
    """Return the data of one image, without its picture."""
    arrays, neighbors, top_classes = content.arrays, content.neighbors, content.top_classes
    bits, step, count = precision
    packed = {
        "truth": _labels(arrays.target[index], arrays.classes),
        "prediction": _labels(arrays.prediction[index], arrays.classes),
        "edge_mask": _labels(arrays.maps["edge_mask"][index].astype(np.int64), 2),
    }
    for rank in range(min(count, len(top_classes.classes))):
        if rank:  # rank 0 is the prediction
            packed[f"class_{rank}"] = _labels(top_classes.classes[rank, index], arrays.classes)
        packed[f"probability_{rank}"] = _floats(top_classes.probabilities[rank, index], bits, step)
    for key, _, values in content.layers:
        packed[key] = _floats(values[index], bits, 0 if key in ("gradient", "distance") else step)

    before, here = (int(arrays.maps["edge_mask"][part].sum()) for part in (slice(index), index))
    own = slice(before, before + here)
    for rank in range(len(neighbors.nll)):
        down, right = neighbors.step[:, rank, own]
        packed[f"down_{rank}"] = _labels(down + _REACH, _REACH)
        packed[f"right_{rank}"] = _labels(right + _REACH, _REACH)
        packed[f"given_{rank}"] = _floats(neighbors.probability[rank, own], bits, step)
        packed[f"nll_{rank}"] = _floats(neighbors.nll[rank, own], bits, step)
        packed[f"share_{rank}"] = _floats(neighbors.share[rank, own], bits, step)

    layers = [
        {
            "key": key,
            "name": colored.name,
            "stats": colored.stats[index],
            "low": float(colored.norm.vmin or 0),
            "high": float(colored.norm.vmax or 0),
            "log": key == "gradient",
            "extend": colored.extend,
            "nothing": _NOTHING.get(key, "off the edges"),
        }
        for key, colored, _ in content.layers
    ]
    return {"arrays": packed, "layers": layers}


def _labels(values: _Array, classes: int) -> dict[str, Any]:
    """Pack labels; the largest value of the type stands for -1."""
    dtype = np.uint8 if classes <= 255 else np.uint16
    return {"kind": dtype.__name__, "shape": values.shape, "data": _packed(values.astype(dtype))}


def _floats(values: _Array, bits: int, step: float) -> dict[str, Any]:
    """Pack numbers ≥ 0 in 16 bits: the exponent of float32 and 8 bits of the significand, of which ``bits`` are used.

    All high bytes precede all low bytes: similar bytes are adjacent, and compress well.
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if step:
        single = np.where(single < 1, np.rint(np.minimum(single, 1) / step) * np.float32(step), single)
    drop = 23 - bits
    # Rounding may carry into the exponent; inf has no significand to round, and nan keeps its quiet bit.
    code = (single.view(np.uint32).astype(np.uint64) + (1 << (drop - 1))) >> drop << (8 - bits)
    code = code.astype(np.uint16)
    return {
        "kind": "float",
        "shape": values.shape,
        "data": _packed(np.stack([code >> 8, code & 255]).astype(np.uint8)),
    }


def _packed(values: _Array) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 6)).decode()


def _data_uri(rgb: _Array) -> str:
    """Return an image [H, W, 3] in [0, 1] as a data URI: a PNG if small, else the best JPEG that is small enough."""
    picture = Image.fromarray(np.rint(rgb * 255).astype(np.uint8))
    kind = "png" if rgb.shape[0] * rgb.shape[1] <= 512 * 512 else "jpeg"
    for quality in (92, 80, 60, 30):
        file = io.BytesIO()
        picture.save(file, kind, quality=quality)
        if file.tell() <= _MAX_BYTES / 10:
            break
    return pages.data_uri(file.getvalue(), kind)


# --------------------------------------------------------------------------------------------------------- the figures


def _views() -> str:
    """Return the two views, without pictures, as the JSON of Plotly."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.01)
    for column in (1, 2):
        figure.add_trace(go.Image(source=_EMPTY, hoverinfo="none"), row=1, col=column)
        marker = {"color": to_hex(LOUD), "size": 5, "symbol": "square"}
        figure.add_trace(go.Scatter(x=[], y=[], mode="markers", marker=marker, hoverinfo="skip"), row=1, col=column)
    figure.update_xaxes(matches="x", visible=False)
    figure.update_yaxes(matches="y", visible=False)
    figure.update_layout(
        template="none",
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        showlegend=False,
        dragmode="zoom",
        hovermode="closest",
        plot_bgcolor="#eee",
        modebar={"bgcolor": "rgba(255,255,255,0.6)"},
    )
    figure.layout.yaxis.scaleanchor = "x"
    return str(figure.to_json())


# A transparent pixel.
_EMPTY = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def _histograms(arrays: Arrays) -> str:
    """Return histograms of the values of each map, over the batch, as the JSON of Plotly."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    valid, edges = arrays.target >= 0, arrays.maps["edge_mask"]
    gradient = arrays.gradient[(arrays.gradient > 0) & np.isfinite(arrays.gradient)]
    shown = {
        "cross-entropy": arrays.maps["cross_entropy"][valid],
        "same side": arrays.maps["same_side"][edges],
        "other side": arrays.maps["other_side"][edges],
        "log10 |gradient|": np.log10(gradient),
    }
    if (false := arrays.maps.get("false_edge")) is not None:
        shown["false edge"] = false[false > 0]
    figure = make_subplots(rows=1, cols=len(shown), subplot_titles=list(shown), horizontal_spacing=0.05)
    for column, values in enumerate(shown.values(), start=1):
        counts, borders = np.histogram(values[np.isfinite(values)].astype(np.float64), _BINS)
        middle = (borders[1:] + borders[:-1]) / 2
        bars = go.Bar(
            x=middle.tolist(), y=counts.tolist(), width=float(borders[1] - borders[0]), marker_color="#31688e"
        )
        bars.hovertemplate = "%{x:.3g}: %{y} pixels<extra></extra>"
        figure.add_trace(bars, row=1, col=column)
    figure.update_yaxes(type="log", title_text="", dtick=1)
    figure.update_yaxes(title_text="pixels", col=1)
    figure.update_layout(
        template="plotly_white",
        height=230,
        margin={"l": 50, "r": 10, "t": 30, "b": 30},
        showlegend=False,
        bargap=0,
    )
    return str(figure.to_json())


def _table(arrays: Arrays, names: Sequence[str], colors: Sequence[str]) -> str:
    """Return a row per class that occurs in the batch, as HTML."""
    valid, edges = arrays.target >= 0, arrays.maps["edge_mask"]
    truth, prediction = arrays.target[valid], arrays.prediction[valid]

    def count(labels: _Array) -> _Array:
        return np.bincount(labels[labels >= 0], minlength=arrays.classes)

    def mean(name: str, where: _Array) -> _Array:
        where = where & np.isfinite(arrays.maps[name])
        total = np.bincount(arrays.target[where], arrays.maps[name][where].astype(np.float64), arrays.classes)
        with np.errstate(invalid="ignore"):
            return np.asarray(total / count(arrays.target[where]))

    pixels, predicted, correct = count(truth), count(prediction), count(truth[truth == prediction])
    with np.errstate(invalid="ignore"):
        iou = correct / (pixels + predicted - correct)
    edge_pixels = count(arrays.target[edges])
    edge_means = [mean(name, edges) for name in ("same_side", "other_side", "edge")]
    with np.errstate(invalid="ignore"):
        share = np.nan_to_num(edge_means[2]) * edge_pixels / np.sum(np.nan_to_num(edge_means[2]) * edge_pixels)
    false = arrays.maps.get("false_edge")
    more = {} if false is None else {"false edge": mean("false_edge", false > 0)}
    rows = [
        (
            f'<span class="swatch" style="background:{colors[k]}"></span>{html.escape(names[k])}',
            f"{pixels[k]}",
            pages.cell(iou[k], ".1%"),
            pages.cell(mean_ce, ".3f"),
            f"{edge_pixels[k]}",
            *(pages.cell(values[k], ".3f") for values in edge_means),
            pages.cell(share[k], ".1%"),
            *(pages.cell(values[k], ".3f") for values in more.values()),
        )
        for k, mean_ce in enumerate(mean("cross_entropy", valid))
        if pixels[k] or predicted[k]
    ]
    head = (
        "class",
        "pixels",
        "IoU",
        "cross-entropy",
        "edge pixels",
        "same side",
        "other side",
        "edge",
        "share of edge loss",
        *more,
    )
    return pages.table(head, rows)
