"""Images under one network, or the same images under two → a page of thumbnails to sort and filter."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import CMAP_DIFFERENCE, color_bytes, error_picture, picture_of_labels, reduce_blocks
from edgeloss.viz.palette import NOTHING, VOID
from edgeloss.viz.scores import FIGURES, Scores, mean_of_present, shown_changes, shown_figures, small_jpeg

_Array = npt.NDArray[Any]
# How two predictions differ: better and worse are told apart by red-green-blind readers too.
_BETTER, _WORSE, _BOTH = (0.13, 0.45, 0.85), (0.93, 0.45, 0.05), (0.95, 0.87, 0.25)
_SHOWN = 3  # images of the largest gains, and as many of the largest losses
_LARGE = 720  # pixels of the longer side of their pictures


class Item(NamedTuple):
    """An image of the page.

    Attributes:
        name: to be shown.
        figures: of each network.
        scores: of each network.
        pictures: JPEGs, by caption.
        link: a file next to the page; empty for none.
        large: larger JPEGs, by caption.
    """

    name: str
    figures: list[dict[str, float]]
    scores: list[Scores]
    pictures: dict[str, bytes]
    link: str = ""
    large: Mapping[str, bytes] = {}

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
    runs: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    about: Sequence[pages.Part] = (),
    footer: str = "",
) -> str:
    """Return the page.

    Args:
        items: at least one, each with the figures of every network.
        title: of the page.
        by: the key of the figure that the page sorts by, the worst first; of equal ones in the given order.
        runs: names of the two networks; none if there is one.
        class_names: the class indices if None.
        about: between tiles and thumbnails.
        footer: the last line.
    """
    totals = [functools.reduce(Scores.plus, scores) for scores in zip(*(item.scores for item in items), strict=True)]
    shown = [_total([item.figures[at] for item in items], total) for at, total in enumerate(totals)]
    names = [str(k) for k in range(len(totals[0].pixels))] if class_names is None else class_names
    keys = [by, *(key for key in FIGURES if key in items[0].changes and key not in ("loss", by))]
    thumbnails = {
        "kind": "gallery",
        "items": [_card(item, keys) for item in items],
        "sort": [[key, FIGURES[key][0]] for key in keys],
        "scores": [key for key, (_, _, is_score) in FIGURES.items() if is_score],
        "classes": [[k, names[k]] for k in np.flatnonzero(~np.isnan(totals[0].iou)).tolist()],
    }
    count = {} if runs else {"images": str(len(items))}
    tiles = [pages.tiles(count | shown_figures(shown[0]), runs[0] if runs else "")]
    tiles += [pages.tiles(shown_figures(one), runs[1], shown_changes(shown[0], one)) for one in shown[1:]]
    return pages.page(title, [*tiles, *about, thumbnails], footer=footer)


def _total(figures: Sequence[Mapping[str, float]], scores: Scores) -> dict[str, float]:
    """Return figures of many images: averages of the losses, but the scores over all images together."""
    return {key: mean_of_present([one[key] for one in figures]) for key in figures[0]} | scores.means


def _card(item: Item, keys: Sequence[str]) -> pages.Part:
    """Return an image with its lines of figures, and with the numbers that the page sorts by."""
    runs = [shown_figures(figures) for figures in item.figures]
    names = [FIGURES[key][0] for key in keys]
    return {
        "name": item.name,
        "link": item.link and pages.file_link(item.link),
        "figures": [pages.figure(content, caption) for caption, content in item.pictures.items()],
        "lines": [[name, " → ".join(run[name] for run in runs)] for name in names],
        "values": {key: pages.finite(value) for key, value in item.changes.items()},
        "iou": [[pages.finite(iou) for iou in scores.iou] for scores in item.scores],
    }


def index_item(
    name: str, examined: Sequence[Arrays], images: Sequence[npt.NDArray[np.uint8] | None], link: str
) -> Item:
    """Return what an index shows of a page; of several slices their mean figures, and the middle one."""
    total = functools.reduce(Scores.plus, (one.scores for one in examined))
    middle = len(examined) // 2
    arrays = examined[middle]
    picture = small_jpeg(error_picture(arrays.target[0], arrays.prediction[0], images[middle]))
    return Item(name, [_total([one.figures for one in examined], total)], [total], {"": picture}, link)


# ------------------------------------------------------------------------------------------------------ two networks


def compare_item(
    name: str, image: npt.NDArray[np.uint8] | None, runs: Mapping[str, Arrays], colors: npt.NDArray[Any]
) -> Item:
    """Return an image under two networks, with its large pictures.

    Args:
        name: of the image.
        image: [H, W, 3], or None.
        runs: what the two make of it, by the name of their network.
        colors: [C, 3] in [0, 1].
    """
    before, after = runs
    first, second = runs.values()
    truth = first.target[0]
    small = {f"{run}: wrong pixels": error_picture(truth, one.prediction[0], image) for run, one in runs.items()}
    small["difference"] = _difference(truth, first.prediction[0], second.prediction[0], image)
    edges, most = _edge_difference(truth, first.maps["edge"][0], second.maps["edge"][0])
    large = {} if image is None else {"image": image}
    large |= {"ground truth": picture_of_labels(truth, colors), **small}
    large[f"edge loss, {after} − {before}: ±{most:.2g} nats"] = edges
    return Item(
        name,
        [one.figures for one in runs.values()],
        [one.scores for one in runs.values()],
        {caption: small_jpeg(picture, 240) for caption, picture in small.items()},
        large={caption: small_jpeg(picture, _LARGE) for caption, picture in large.items()},
    )


def best_and_worst(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the images whose boundary F1 gains most from the first network to the second, and which lose most."""

    def change(item: Item) -> float:
        return item.changes["boundary_f1_1px"]

    gains = sorted((item for item in items if change(item) > 0), key=change, reverse=True)
    losses = sorted((item for item in items if change(item) < 0), key=change)
    return gains[:_SHOWN], losses[:_SHOWN]


def describe_changes(items: Sequence[Item], runs: Sequence[str]) -> list[pages.Part]:
    """Return the parts of a page about the largest gains and losses."""
    key = {
        f"wrong in {runs[0]} only, or less edge loss in {runs[1]}": _BETTER,
        f"wrong in {runs[1]} only, or more edge loss": _WORSE,
        "wrong in both": _BOTH,
        "ignored": VOID,
    }
    parts: list[pages.Part] = [{"kind": "key", "entries": [[text, to_hex(color)] for text, color in key.items()]}]
    name = FIGURES["boundary_f1_1px"][0]
    for chosen, verb in zip(best_and_worst(items), ("gains", "loses"), strict=True):
        rows = []
        for item in chosen:
            first, second = (shown_figures(figures)[name] for figures in item.figures)
            figures = [pages.figure(content, caption) for caption, content in item.large.items()]
            rows.append({"title": f"{item.name}: {first} → {second}", "figures": figures})
        title = f"Where {runs[1]} {verb} most {name}"
        parts.append({"kind": "figures", "title": title, "text": "" if rows else "Nowhere.", "rows": rows})
    return parts


def _difference(truth: _Array, first: _Array, second: _Array, image: _Array | None) -> npt.NDArray[np.uint8]:
    """Return where one prediction is wrong and the other is not, over the image in gray, [H, W, 3]."""
    was, now = ((labels != truth) & (truth >= 0) for labels in (first, second))
    picture = error_picture(truth, truth, np.full((*truth.shape, 3), 128, np.uint8) if image is None else image)
    for mask, color in ((was & ~now, _BETTER), (now & ~was, _WORSE), (was & now, _BOTH)):
        picture[mask] = color_bytes(color)
    return picture


def _edge_difference(truth: _Array, first: _Array, second: _Array) -> tuple[npt.NDArray[np.uint8], float]:
    """Return the colors of the difference of two edge maps, [H, W, 3], and the value of the strongest."""
    with np.errstate(invalid="ignore"):
        change = np.where((truth >= 0) & ((first != 0) | (second != 0)), second - first, 0).astype(np.float64)
    finite = np.abs(change[np.isfinite(change) & (change != 0)])
    most = float(np.percentile(finite, 99)) if finite.size else 1.0
    # The strongest of several pixels stays where the picture is smaller, so that thin edges do.
    size = [max(1, round(length * min(1.0, _LARGE / max(change.shape)))) for length in change.shape]
    up, down = (reduce_blocks(np.maximum, np.nan_to_num(sign * change, nan=0.0), tuple(size)) for sign in (1, -1))
    strongest = np.where(up >= down, up, -down)
    brightness = np.sign(strongest) * np.sqrt(np.abs(strongest) / most)  # of small changes too
    colors = CMAP_DIFFERENCE(0.5 + brightness / 2, bytes=True)[..., :3]
    colors[strongest == 0] = color_bytes(NOTHING)
    colors[reduce_blocks(np.logical_and, truth < 0, tuple(size))] = color_bytes(VOID)
    return colors, most
