"""Images → a page of pictures to sort, filter and enlarge: the index of those under one network."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import picture_of_labels
from edgeloss.viz.palette import VOID, WRONG
from edgeloss.viz.pictures import Rgb, error_overlay, labels_picture, photo_picture, photograph, picture
from edgeloss.viz.scores import FIGURES, Scores, mean_of_present, shown_changes, shown_figures, weakest_class

_Array = npt.NDArray[Any]
ABOUT_SCORES = "Scores count the pixels of all images together."
ABOUT_LOSSES = "Losses are means over the images."
_ON_CARDS = tuple(FIGURES)[:2]  # figures of every card, next to the one that the page sorts by
_NEXT = "The lowest boundary F1 comes first; open an image to see its loss at each pixel."
_SIDE = 240  # pixels of the pictures


class Item(NamedTuple):
    """An image of the page.

    Attributes:
        name: to be shown.
        figures: of each network.
        scores: of each network.
        pictures: see :mod:`edgeloss.viz.pictures`.
        ignores: whether there are ignored pixels.
        photo: the photograph below them, a data URI.
        link: the page about it, as seen from this one; empty for none.
    """

    name: str
    figures: list[dict[str, float]]
    scores: list[Scores]
    pictures: list[pages.Part]
    ignores: bool
    photo: str = ""
    link: str = ""

    @property
    def changes(self) -> dict[str, float]:
        """The figures to sort by: those of one network, or of the second minus those of the first."""
        first, last = self.figures[0], self.figures[-1]
        return first if first is last else {key: last[key] - first[key] for key in last}


def draw_index(
    items: Sequence[Item],
    *,
    title: str,
    by: str,
    class_names: Sequence[str] | None,
    colors: _Array,
    configuration: str,
    links: Mapping[str, str] | None = None,
) -> str:
    """Return a page that leads to those of images.

    Args:
        items: at least one.
        title: of the page.
        by: the key of the figure that the page sorts by, the worst first; of equal ones in the given order.
        class_names: the class indices if None.
        colors: of the classes, [C, 3] in [0, 1].
        configuration: what the figures depend on, folded at the end.
        links: as of :func:`edgeloss.viz.pages.page`.
    """
    (total,), (figures,) = totals_of(items)
    names = names_of(total, class_names)
    parts = [
        pages.figure_tiles(figures, len(total.pixels), about=f"{ABOUT_SCORES} {ABOUT_LOSSES}"),
        {"kind": "key", "entries": [*class_key(items, names, colors), ["wrong", to_hex(WRONG)]]},
        gallery(items, (by, *FIGURES), names, [*range(len(items[0].pictures))]),
        pages.folded(configuration),
    ]
    return pages.page(title, parts, kind="index", lead=_summary(items, figures, total, names), links=links)


def _summary(items: Sequence[Item], figures: Mapping[str, float], total: Scores, names: Sequence[str]) -> str:
    """Return how good a network is, which images and which class are the worst, and what to do next."""
    means, lines = shown_figures(figures), []
    for key, many in (("boundary_f1_1px", "over all pixels"), ("edge", "on average")):
        name, _, is_score, *_ = FIGURES[key]

        def rank(item: Item, key: str = key, sign: int = 1 if is_score else -1) -> float:
            value = item.figures[0][key]
            return sign * (math.inf if math.isnan(value) else value)  # the worst of losses, and no score

        worst, end = min(items, key=rank), "lowest" if is_score else "highest"
        shown = shown_figures(worst.figures[0])[name]
        lines.append(f"The {name} is {means[name]} {many}, and {end} in {worst.name}: {shown}.")
    iou = dict(zip(names, total.iou.tolist(), strict=False))
    return " ".join(filter(None, [*lines, weakest_class(iou, "IoU"), _NEXT]))


# --------------------------------------------------------------------------------------------------------------- parts


def totals_of(items: Sequence[Item]) -> tuple[list[Scores], list[dict[str, float]]]:
    """Return the counts of each network over all images, and the figures that follow from them."""
    totals = [functools.reduce(Scores.plus, scores) for scores in zip(*(item.scores for item in items), strict=True)]
    return totals, [_total([item.figures[at] for item in items], total) for at, total in enumerate(totals)]


def _total(figures: Sequence[Mapping[str, float]], scores: Scores) -> dict[str, float]:
    """Return figures of many images: averages of the losses, but the scores over all images together."""
    return {key: mean_of_present([one[key] for one in figures]) for key in figures[0]} | scores.means


def names_of(total: Scores, class_names: Sequence[str] | None) -> Sequence[str]:
    """Return names of classes, their indices if there are none."""
    return [str(k) for k in range(len(total.pixels))] if class_names is None else class_names


def class_key(items: Sequence[Item], names: Sequence[str], colors: _Array) -> list[list[str]]:
    """Return names and colors of the classes that occur, and of ignored pixels if there are any."""
    occurs = functools.reduce(np.logical_or, (totals.occurs for totals in totals_of(items)[0]))
    classes = [[names[k], to_hex(colors[k])] for k in np.flatnonzero(occurs).tolist()]
    return classes + [["ignored", to_hex(VOID)]] * any(item.ignores for item in items)


def gallery(
    items: Sequence[Item],
    by: Sequence[str],
    names: Sequence[str],
    shown: Sequence[int],
    keys: Mapping[str, list[list[str]]] | None = None,
) -> pages.Part:
    """Return all images, with those of their figures that they have; the page sorts by the first.

    Args:
        items: at least one.
        by: keys of figures.
        names: of the classes.
        shown: places of the pictures on a card.
        keys: what the colors of pictures mean, by the name of a key.
    """
    of_figures = [key for key in dict.fromkeys(by) if key in items[0].changes and key != "loss"]
    occurs = functools.reduce(Scores.plus, (item.scores[0] for item in items)).occurs
    return {
        "kind": "gallery",
        "shown": shown,
        "keys": dict(keys or {}),
        "items": [_card(item, of_figures) for item in items],
        "sort": [[key, FIGURES[key].name] for key in of_figures],
        "always": [FIGURES[key].name for key in _ON_CARDS],
        "scores": [key for key, one in FIGURES.items() if one.is_score],
        "classes": [[k, names[k]] for k in np.flatnonzero(occurs).tolist()],
    }


def _card(item: Item, keys: Sequence[str]) -> pages.Part:
    runs = [shown_figures(figures) for figures in item.figures]
    names = [FIGURES[key].name for key in keys]
    changes = shown_changes(*item.figures) if len(runs) > 1 else {}
    return {
        "name": item.name,
        "link": item.link and pages.file_link(item.link),
        "photo": item.photo,
        "figures": item.pictures,
        "lines": [[name, " → ".join(run[name] for run in runs), changes.get(name)] for name in names],
        "values": {key: pages.finite(value) for key, value in item.changes.items()},
        "iou": [[pages.finite(iou) for iou in scores.iou] for scores in item.scores],
    }


def index_item(name: str, examined: Sequence[Arrays], images: Sequence[Rgb | None], colors: _Array, link: str) -> Item:
    """Return what an index shows of a page; of several slices their mean figures, and the middle one."""
    total = functools.reduce(Scores.plus, (one.scores for one in examined))
    middle = len(examined) // 2
    truth, prediction, image = examined[middle].target[0], examined[middle].prediction[0], images[middle]
    errors = error_overlay(truth, prediction, on_photo=image is not None, side=_SIDE)
    scene = [photo_picture(image, truth.shape), picture(picture_of_labels(truth, colors), _SIDE, "ground truth")]
    pictures = [
        *(scene if image is not None else []),
        picture(labels_picture(truth, prediction, colors), _SIDE, "prediction"),
        picture(errors, _SIDE, "wrong pixels", base="gray"),
    ]
    figures = [_total([one.figures for one in examined], total)]
    ignores = any((one.target < 0).any() for one in examined)
    return Item(name, figures, [total], pictures, ignores, photograph(image, _SIDE), link)
