"""One self-contained HTML page: every map of the loss, and behind every pixel the numbers that made it."""

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
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from edgeloss.fields import boundary_distance
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays, Likely, Neighbors, compute_arrays, compute_likely, compute_neighbors
from edgeloss.viz.coloring import CMAP, ColoredMap, class_colors, class_labels, color_map, color_maps, rgb_images
from edgeloss.viz.palette import LOUD, NOTHING, VOID

_Array = npt.NDArray[Any]

# How exact the numbers behind the pixels are: bits of a significand, the smallest step of probabilities and losses, and
# how many of the most probable classes are told. The first line that keeps the page small enough is taken.
_LEVELS = (
    (8, 2.0**-13, 3),
    (7, 2.0**-10, 3),
    (6, 2.0**-8, 3),
    (5, 2.0**-7, 3),
    (4, 2.0**-6, 3),
    (3, 2.0**-5, 2),
    (2, 2.0**-4, 1),
)
_MAX_BYTES = 14_000_000
_NEIGHBORS = 8  # of an edge pixel
_MAX_PAIRS = 1_500_000  # neighbours in all: fewer of each where the edge pixels are very many
_BINS = 60
_NOTHING = {"distance": "far", "gradient": "zero", "false_edge": "zero", "cross_entropy": ""}  # what is painted black
_REACH = 2**15  # added to a neighbour's steps, so that they are no less than 0


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
    """A page to explore what the loss sees: :func:`~edgeloss.viz.panel` with the numbers behind it.

    Two views side by side, zoomed together, each show a layer of choice: image, ground truth, prediction,
    cross-entropy, same side, other side, false edges if the criterion has a ``false_edge_weight``, edge map, distance
    to the nearest other label, or gradient. Pointing at a pixel shows its labels, its most probable classes, every
    term, and the neighbours that its edge terms come from, with what each gives to the pixel's class and its share of
    the gradient. Below are histograms and a table by class.

    The page is one file that needs no server and no network. Its numbers are rounded to some 0.2 %; coarser, and it
    says how coarse, where the file would pass 15 MB: a noisy image of 1024 × 2048 pixels. Needs the extra
    ``edgeloss[viz]``, and a browser from 2023 on.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device. C = 1 is binary. The page shows one image at a time.
        target: [B, H, W] or [H, W] integer, on the same device. With ``criterion.upsample`` it may be larger.
        image: [B, 3, H, W] or [3, H, W], or one grey channel, in the target's size: floating in [0, 1] or uint8. None
            leaves the layer out.
        criterion: the loss to look into; ``EdgeAwareLoss()`` if None.
        class_names: at least C names; the numbers if None.
        palette: at least C colours, each an integer triple in 0 ... 255 or whatever Matplotlib calls a colour;
            :func:`~edgeloss.viz.distinct_colors` if None.
        title: the page's; escaped, as are the names.

    Returns:
        The page, to be written as UTF-8.

    Raises:
        ImportError: without Plotly.
        ValueError: as :func:`~edgeloss.viz.panel`.

    Example:
        >>> import torch
        >>> target = torch.zeros(48, 64, dtype=torch.int64)
        >>> target[12:36, 20:50] = 1
        >>> page = report(torch.randn(2, 48, 64), target, class_names=["ground", "<box>"])
        >>> page.startswith("<!doctype html>"), "&lt;box&gt;" in page
        (True, True)
        >>> _ = pathlib.Path("report.html").write_text(page, encoding="utf-8")  # doctest: +SKIP
    """
    if importlib.util.find_spec("plotly") is None:
        raise ImportError('edgeloss.viz.report needs plotly: pip install "edgeloss[viz]"')

    criterion = EdgeAwareLoss() if criterion is None else criterion
    seen = compute_arrays(logits, target, criterion)
    images = None if image is None else rgb_images(image, seen.target.shape)
    colors = [to_hex(color) for color in class_colors(palette, seen.classes)]
    names = class_labels(class_names, seen.classes)
    edges = int(seen.maps["edge_mask"].sum())
    likely = compute_likely(logits, target, criterion)
    neighbors = compute_neighbors(logits, target, criterion, count=min(max(_MAX_PAIRS // max(edges, 1), 1), _NEIGHBORS))
    layers = _layers(seen, criterion)

    fixed = {
        "names": names,
        "colors": colors,
        "special": {"void": to_hex(VOID), "loud": to_hex(LOUD), "nothing": to_hex(NOTHING)},
        "scale": [to_hex(color) for color in CMAP(np.arange(CMAP.N))],
        "view": json.loads(_views()),
        "figures": {"histograms": json.loads(_histograms(seen))},
        "maxNeighbors": len(neighbors.nll),
        "reach": _REACH,
    }
    pictures = [] if images is None else [_picture(picture) for picture in images]
    room = _MAX_BYTES - len(pages.library()) - sum(map(len, pictures))
    for level in _LEVELS:
        shown = [_image(index, seen, layers, likely, neighbors, *level) for index in range(len(seen.target))]
        if sum(len(array["data"]) for one in shown for array in one["arrays"].values()) <= room:
            break
    for one, picture in zip(shown, pictures, strict=False):
        one["picture"] = picture

    terms = " · ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in seen.terms.items())
    size = " × ".join(map(str, seen.target.shape[1:]))
    about = str(criterion).replace("\n", " ")
    return pages.page(
        title="edgeloss report" if title is None else title,
        header=f'<p>{html.escape(about)}</p>\n<p class="figures">{size} pixels · {terms}</p>',
        body=Template(pages.asset("report.html")).substitute(table=_table(seen, names, colors)),
        footer=html.escape(
            f"edgeloss {version('edgeloss')} · drawn by Plotly · numbers are rounded to {2.0 ** -(level[0] + 1):.1%}, "
            f"probabilities and losses to {level[1] / 2:.1g}"
            + (f" · the neighbours shown are the {fixed['maxNeighbors']} that weigh most" if edges else "")
        ),
        data=fixed | {"images": shown},
        css=pages.asset("report.css"),
        script=pages.asset("report.js"),
    )


# --------------------------------------------------------------------------------------------------------- the numbers


def _layers(seen: Arrays, criterion: EdgeAwareLoss) -> list[tuple[str, ColoredMap, _Array]]:
    """Key, colours and values of every map, in the order of the menus."""
    cross_entropy, edge, gradient, same_side, other_side, *false_edge = color_maps(seen, terms=True)
    void = seen.target < 0
    distance = seen.maps.get("distance")
    name = "distance"
    if distance is None:  # the loss reads none: show the exact one
        distance = boundary_distance(seen.target, ignore_index=-1)
    # Where there is no other label within the window, there is nothing to show: no failure.
    far = np.isinf(distance)
    drawn = color_map(name, np.where(far, 0, distance), ~far & ~void, void, far & ~void, outline="white")
    return [
        ("cross_entropy", cross_entropy, seen.maps["cross_entropy"]),
        ("same_side", same_side, seen.maps["same_side"]),
        ("other_side", other_side, seen.maps["other_side"]),
        *(("false_edge", one, seen.maps["false_edge"]) for one in false_edge),
        ("edge", edge, seen.maps["edge"]),
        ("distance", drawn, distance),
        ("gradient", gradient, seen.gradient),
    ]


def _image(
    index: int,
    seen: Arrays,
    layers: list[tuple[str, ColoredMap, _Array]],
    likely: Likely,
    neighbors: Neighbors,
    bits: int,
    step: float,
    count: int,
) -> dict[str, Any]:
    """All that the page knows of one image, but its picture."""
    classes = seen.classes
    arrays = {
        "truth": _labels(seen.target[index], classes),
        "prediction": _labels(seen.prediction[index], classes),
        "edge_mask": _labels(seen.maps["edge_mask"][index].astype(np.int64), 2),
    }
    for rank in range(min(count, len(likely.classes))):
        if rank:  # the first is the prediction
            arrays[f"class_{rank}"] = _labels(likely.classes[rank, index], classes)
        arrays[f"probability_{rank}"] = _floats(likely.probabilities[rank, index], bits, step)
    for key, _, values in layers:
        arrays[key] = _floats(values[index], bits, 0 if key in ("gradient", "distance") else step)

    before, here = (int(seen.maps["edge_mask"][part].sum()) for part in (slice(index), index))
    mine = slice(before, before + here)
    for rank in range(len(neighbors.nll)):
        down, right = neighbors.step[:, rank, mine]
        arrays[f"down_{rank}"] = _labels(down + _REACH, _REACH)
        arrays[f"right_{rank}"] = _labels(right + _REACH, _REACH)
        arrays[f"given_{rank}"] = _floats(neighbors.probability[rank, mine], bits, step)
        arrays[f"nll_{rank}"] = _floats(neighbors.nll[rank, mine], bits, step)
        arrays[f"share_{rank}"] = _floats(neighbors.share[rank, mine], bits, step)

    return {
        "arrays": arrays,
        "layers": [
            {
                "key": key,
                "name": drawn.name,
                "stats": drawn.stats[index],
                "low": float(drawn.norm.vmin or 0),
                "high": float(drawn.norm.vmax or 0),
                "log": key == "gradient",
                "extend": drawn.extend,
                "nothing": _NOTHING.get(key, "off the edges"),
            }
            for key, drawn, _ in layers
        ],
    }


def _labels(values: _Array, classes: int) -> dict[str, Any]:
    """Small whole numbers; the largest of the type stands for -1."""
    dtype = np.uint8 if classes <= 255 else np.uint16
    return {"kind": dtype.__name__, "shape": values.shape, "data": _packed(values.astype(dtype))}


def _floats(values: _Array, bits: int, step: float) -> dict[str, Any]:
    """Numbers ≥ 0 in 16 bits: the exponent of float32 and 8 bits of the significand, of which ``bits`` are used.

    The high bytes come first, then the low ones: alike stands beside alike, and packs well.
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if step:
        single = np.where(single < 1, np.rint(np.minimum(single, 1) / step) * np.float32(step), single)
    drop = 23 - bits
    # Rounding may carry into the exponent, as it should; inf has no significand to round, and nan keeps its quiet bit.
    code = (single.view(np.uint32).astype(np.uint64) + (1 << (drop - 1))) >> drop << (8 - bits)
    code = code.astype(np.uint16)
    return {
        "kind": "float",
        "shape": values.shape,
        "data": _packed(np.stack([code >> 8, code & 255]).astype(np.uint8)),
    }


def _packed(values: _Array) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 6)).decode()


def _picture(rgb: _Array) -> str:
    """An image [H, W, 3] in [0, 1] as a data URI: exact if it is small, else as good a JPEG as keeps it small."""
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
    """The two views, still without pictures, as Plotly's JSON."""
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


# One transparent pixel.
_EMPTY = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def _histograms(seen: Arrays) -> str:
    """How the values of each map are spread over its pixels, the batch together, as Plotly's JSON."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    valid, edges = seen.target >= 0, seen.maps["edge_mask"]
    moving = seen.gradient[(seen.gradient > 0) & np.isfinite(seen.gradient)]
    shown = {
        "cross-entropy": seen.maps["cross_entropy"][valid],
        "same side": seen.maps["same_side"][edges],
        "other side": seen.maps["other_side"][edges],
        "log10 |gradient|": np.log10(moving),
    }
    if (false := seen.maps.get("false_edge")) is not None:
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


def _table(seen: Arrays, names: Sequence[str], colors: Sequence[str]) -> str:
    """The classes that occur, in the batch together, as HTML."""
    valid, edges = seen.target >= 0, seen.maps["edge_mask"]
    truth, prediction = seen.target[valid], seen.prediction[valid]

    def count(labels: _Array) -> _Array:
        return np.bincount(labels[labels >= 0], minlength=seen.classes)

    def mean(name: str, where: _Array) -> _Array:
        where = where & np.isfinite(seen.maps[name])
        total = np.bincount(seen.target[where], seen.maps[name][where].astype(np.float64), seen.classes)
        with np.errstate(invalid="ignore"):
            return np.asarray(total / count(seen.target[where]))

    pixels, predicted, right = count(truth), count(prediction), count(truth[truth == prediction])
    with np.errstate(invalid="ignore"):
        iou = right / (pixels + predicted - right)
    rim = count(seen.target[edges])
    edge_means = [mean(name, edges) for name in ("same_side", "other_side", "edge")]
    with np.errstate(invalid="ignore"):
        part = np.nan_to_num(edge_means[2]) * rim / np.sum(np.nan_to_num(edge_means[2]) * rim)
    false = seen.maps.get("false_edge")
    more = {} if false is None else {"false edge": mean("false_edge", false > 0)}
    rows = [
        (
            f'<span class="swatch" style="background:{colors[k]}"></span>{html.escape(names[k])}',
            f"{pixels[k]}",
            pages.cell(iou[k], ".1%"),
            pages.cell(mean_ce, ".3f"),
            f"{rim[k]}",
            *(pages.cell(values[k], ".3f") for values in edge_means),
            pages.cell(part[k], ".1%"),
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
        "of all edge loss",
        *more,
    )
    return pages.table(head, rows)
