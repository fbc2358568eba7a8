"""A page of thumbnails to sort and filter: images under one network, or the same images under two."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from edgeloss.viz import pages
from edgeloss.viz.coloring import CMAP_DIFFERENCE, error_picture, picture_of_labels, reduce_blocks
from edgeloss.viz.palette import NOTHING, VOID
from edgeloss.viz.scores import FIGURES, Scores, mean_of_present, shown_figures, small_jpeg

_Array = npt.NDArray[Any]
# How two predictions differ: better and worse are told apart by red-green-blind readers too.
_BETTER, _WORSE, _BOTH = (0.13, 0.45, 0.85), (0.93, 0.45, 0.05), (0.95, 0.87, 0.25)
_SHOWN = 3  # images of the largest gains, and as many of the largest losses
_LARGE = 720  # pixels of the longer side of their pictures
_ON_TILES = ("mean_iou", "boundary_f1_1px", "pixel_accuracy", "edge", "cross_entropy", "region")


class Prediction(NamedTuple):
    """What one network makes of an image.

    Attributes:
        labels: [H, W], -1 where a logit is nan.
        edge: [H, W], the edge map.
        figures: terms of the loss and scores, by key of ``FIGURES``.
        scores: the counts behind them.
    """

    labels: _Array
    edge: _Array
    figures: dict[str, float]
    scores: Scores


class Item(NamedTuple):
    """An image of the page.

    Attributes:
        name: to be shown.
        figures: of each network.
        scores: of each network.
        pictures: JPEGs, by caption.
        link: a file next to the page; empty for none.
    """

    name: str
    figures: list[dict[str, float]]
    scores: list[Scores]
    pictures: dict[str, bytes]
    link: str = ""

    @property
    def changes(self) -> dict[str, float]:
        """The figures to sort by: those of one network, or of the second minus those of the first."""
        first, last = self.figures[0], self.figures[-1]
        return first if first is last else {key: last[key] - first[key] for key in last}


def gallery(
    items: Sequence[Item],
    *,
    title: str,
    by: str,
    runs: Sequence[str] = ("",),
    class_names: Sequence[str] | None = None,
    about: str = "",
    footer: str = "",
) -> str:
    """Return the page.

    Args:
        items: at least one, each with the figures of every network.
        title: of the page.
        by: the key of the figure that sorts them, the worst first.
        runs: names of the networks; none are shown if there is one.
        class_names: the class indices if None.
        about: HTML between tiles and thumbnails.
        footer: HTML of the last line.
    """
    items = sorted(items, key=lambda item: (_badness(item, by), item.name))
    classes = max(len(scores.pixels) for item in items for scores in item.scores)
    names = [str(k) for k in range(classes)] if class_names is None else class_names
    keys = [by, *(key for key in FIGURES if key in items[0].changes and key not in ("loss", by))]
    cards = "".join(_card(item, keys) for item in items)
    menu = [f'<option value="{key}">{FIGURES[key][0]}</option>' for key in keys]
    present = [k for k in range(classes) if any(_iou(item, 0, k) is not None for item in items)]
    options = [f'<option value="{k}">{html.escape(names[k])}</option>' for k in present]
    return pages.page(
        title=title,
        header="".join(_header(items, at, run) for at, run in enumerate(runs)),
        body=f'{about}<div class="toolbar"><label>Sort by <select id="sort">{"".join(menu)}'
        '<option value="name">name</option></select></label> <button id="order" aria-pressed="false">Reverse</button> '
        '<label>Class <select id="class"><option value="">all classes</option>'
        f'{"".join(options)}</select></label> <label>Name <input id="search" type="search" size="14"></label>'
        '<span id="count" role="status"></span></div>'
        f'<ul id="gallery" class="{"pairs" if len(runs) > 1 else ""}">{cards}</ul>',
        footer=footer,
        data={
            "rows": [_row(item, classes) for item in items],
            "scores": [key for key, (_, _, is_score) in FIGURES.items() if is_score],
        },
        css=["index.css"],
        scripts=["index.js"],
    )


def _badness(item: Item, by: str) -> float:
    value = item.changes[by]
    if not math.isfinite(value):
        return math.inf if FIGURES[by][2] else -math.inf  # a loss that is not finite is the worst; a score is none
    return value if FIGURES[by][2] else -value


def _header(items: Sequence[Item], at: int, run: str) -> str:
    """Return the tiles of a network: scores over all images together, as metrics are, and averages of the losses."""
    total = items[0].scores[at]
    for item in items[1:]:
        total = total.plus(item.scores[at])
    terms = {key: mean_of_present([item.figures[at][key] for item in items]) for key in items[0].figures[at]}
    figures = {key: value for key, value in (terms | total.means).items() if key in _ON_TILES}
    shown = {"images": str(len(items))} if not run else {}
    head = f"<h2>{html.escape(run)}</h2>" if run else ""
    return f"{head}{pages.tiles(shown | shown_figures(figures))}"


def _iou(item: Item, at: int, label: int) -> float | None:
    iou = item.scores[at].iou
    return float(iou[label]) if label < len(iou) and not math.isnan(iou[label]) else None


def _row(item: Item, classes: int) -> dict[str, Any]:
    """Return what the page sorts by: null for what is not finite."""
    figures = {key: value if math.isfinite(value) else None for key, value in item.changes.items()}
    iou = [[_iou(item, at, k) for k in range(classes)] for at in range(len(item.scores))]
    return {"name": item.name, "figures": figures, "iou": iou}


def _card(item: Item, keys: Sequence[str]) -> str:
    runs = [shown_figures(figures) for figures in item.figures]
    names = [FIGURES[key][0] for key in keys]
    lines = "".join(f"<div><dt>{name}</dt><dd>{' → '.join(run[name] for run in runs)}</dd></div>" for name in names)
    shown = "".join(
        f'<figure><img src="{pages.data_uri(content, "jpeg")}" alt="" loading="lazy">'
        f"{f'<figcaption>{html.escape(caption)}</figcaption>' if caption else ''}</figure>"
        for caption, content in item.pictures.items()
    )
    head = f'<div class="shown">{shown}</div><strong>{html.escape(item.name)}</strong>'
    if item.link:
        head = f'<a href="{pages.file_link(item.link)}">{head}</a>'
    return f'<li class="card">{head}<dl>{lines}</dl></li>'


# ------------------------------------------------------------------------------------------------------ two networks


def compare_item(
    name: str, truth: _Array, image: _Array | None, runs: Mapping[str, Prediction], colors: _Array
) -> tuple[Item, dict[str, bytes]]:
    """Return an image under two networks, and its large pictures by caption.

    Args:
        name: of the image.
        truth: [H, W] labels, -1 at ignored pixels.
        image: [H, W, 3] in [0, 1], or None.
        runs: the two predictions, by the name of their network.
        colors: [C, 3] in [0, 1].
    """
    (before, first), (after, second) = runs.items()
    small = {f"{run}: wrong pixels": error_picture(truth, one.labels, image) for run, one in runs.items()}
    small["difference"] = _difference(truth, first.labels, second.labels, image)
    edges, most = _edge_difference(truth, first.edge, second.edge)
    large = {} if image is None else {"image": image}
    large |= {"ground truth": picture_of_labels(truth, colors), **small}
    large[f"edge loss, {after} − {before}: ±{most:.2g} nats"] = edges
    item = Item(
        name,
        [one.figures for one in runs.values()],
        [one.scores for one in runs.values()],
        {caption: small_jpeg(picture, 240) for caption, picture in small.items()},
    )
    return item, {caption: small_jpeg(picture, _LARGE) for caption, picture in large.items()}


def best_and_worst(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the images whose boundary F1 gains most from the first network to the second, and which lose most."""
    order = sorted(
        (item for item in items if not math.isnan(item.changes["boundary_f1_1px"])),
        key=lambda item: (-item.changes["boundary_f1_1px"], item.name),
    )
    gains = [item for item in order if item.changes["boundary_f1_1px"] > 0][:_SHOWN]
    losses = [item for item in reversed(order) if item.changes["boundary_f1_1px"] < 0][:_SHOWN]
    return gains, losses


def describe_changes(items: Sequence[Item], large: Mapping[str, Mapping[str, bytes]], runs: Sequence[str]) -> str:
    """Return the part of a page about the largest gains and losses, as HTML; ``large`` are pictures by item's name."""
    key = "".join(
        f'<li><span class="swatch" style="background:{to_hex(color)}"></span>{html.escape(text)}</li>'
        for text, color in (
            (f"wrong in {runs[0]} only, or less edge loss in {runs[1]}", _BETTER),
            (f"wrong in {runs[1]} only, or more edge loss", _WORSE),
            ("wrong in both", _BOTH),
            ("ignored", VOID),
        )
    )
    parts = [f'<ul class="key">{key}</ul>']
    name = FIGURES["boundary_f1_1px"][0]
    for chosen, verb in zip(best_and_worst(items), ("gains", "loses"), strict=True):
        rows = "".join(_large(item, large[item.name]) for item in chosen)
        title = f"Where {html.escape(runs[1])} {verb} most {name}"
        parts.append(f'<section class="card"><h2>{title}</h2>{rows or "<p>Nowhere.</p>"}</section>')
    return "".join(parts)


def _large(item: Item, pictures: Mapping[str, bytes]) -> str:
    first, second = (shown_figures(figures)[FIGURES["boundary_f1_1px"][0]] for figures in item.figures)
    shown = "".join(
        f'<figure><img src="{pages.data_uri(content, "jpeg")}" alt=""><figcaption>{html.escape(text)}</figcaption>'
        "</figure>"
        for text, content in pictures.items()
    )
    return f'<h3>{html.escape(item.name)}: {first} → {second}</h3><div class="large">{shown}</div>'


def _difference(truth: _Array, first: _Array, second: _Array, image: _Array | None) -> _Array:
    """Return where one prediction is wrong and the other is not, over the image in gray, [H, W, 3] in [0, 1]."""
    was, now = ((labels != truth) & (truth >= 0) for labels in (first, second))
    picture = error_picture(truth, truth, np.full((*truth.shape, 3), 0.5) if image is None else image)
    for mask, color in ((was & ~now, _BETTER), (now & ~was, _WORSE), (was & now, _BOTH)):
        picture[mask] = color
    return picture


def _edge_difference(truth: _Array, first: _Array, second: _Array) -> tuple[_Array, float]:
    """Return the colors of the difference of two edge maps, [H, W, 3] in [0, 1], and the value of the strongest."""
    with np.errstate(invalid="ignore"):
        change = np.where((truth >= 0) & ((first != 0) | (second != 0)), second - first, 0).astype(np.float64)
    finite = np.abs(change[np.isfinite(change) & (change != 0)])
    most = float(np.percentile(finite, 99)) if finite.size else 1.0
    # The strongest of several pixels stays where the picture is smaller, so that thin edges do.
    size = [max(1, round(length * min(1.0, _LARGE / max(change.shape)))) for length in change.shape]
    up, down = (reduce_blocks(np.maximum, np.nan_to_num(sign * change, nan=0.0), tuple(size)) for sign in (1, -1))
    strongest = np.where(up >= down, up, -down)
    colors = CMAP_DIFFERENCE(0.5 + strongest / (2 * most))[..., :3]
    colors[strongest == 0] = NOTHING
    colors[reduce_blocks(np.logical_and, truth < 0, tuple(size))] = VOID
    return colors, most
