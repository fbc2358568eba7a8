"""Images under one network, or the same images under two → a page of pictures to sort, filter and enlarge."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from edgeloss._checks.options import TERMS
from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import color_bytes, compared_errors, picture_of_labels, reduce_blocks
from edgeloss.viz.palette import BETTER, VOID, WORSE, WRONG, WRONG_IN_BOTH
from edgeloss.viz.pictures import (
    Rgb,
    error_overlay,
    labels_picture,
    overlay,
    photo_picture,
    photograph,
    picture,
    shrunk,
)
from edgeloss.viz.scores import (
    FIGURES,
    HEADLINES,
    Scores,
    about_figures,
    mean_of_present,
    shown_change,
    shown_changes,
    shown_figures,
    shown_score,
)

_Array = npt.NDArray[Any]
_MOST_CHANGE = 3.0  # nats of edge loss, from which on a change has its full color
# Places of pictures that a gallery shows, and of a comparison those that narrow screens show first, in their order.
_SHOWN_OF_ONE, _SHOWN_OF_TWO = (0, 3, 1, 2), (2, 3, 1, 5)
_SHOWN = 3  # images of the largest gains, and as many of the largest losses
_BY = "boundary_f1_1px"  # what a comparison sorts by
_ON_CARDS = tuple(FIGURES)[:2]  # figures of every card, next to the one that the page sorts by
_ABOUT_ALL = "Scores count the pixels of all images together; losses are means over the images."
_INDEX_LEAD = "All images under one network, the highest edge loss first. Open one to see its loss at each pixel."
_INDEX_SIDE = 240  # pixels of the pictures of an index


class Item(NamedTuple):
    """An image of the page.

    Attributes:
        name: to be shown.
        figures: of each network.
        scores: of each network.
        pictures: see :mod:`edgeloss.viz.pictures`.
        photo: the photograph below them, a data URI.
        link: a file next to the page; empty for none.
    """

    name: str
    figures: list[dict[str, float]]
    scores: list[Scores]
    pictures: list[pages.Part]
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
    (total,), (figures,) = _totals(items)
    names = _names_of(total, class_names)
    wrong = [["wrong", to_hex(WRONG)], ["ignored", to_hex(VOID)]]
    parts = [
        pages.figure_tiles(figures, len(total.pixels), about=_ABOUT_ALL),
        {"kind": "key", "entries": [*_class_key(total, names, colors), *wrong]},
        _gallery(items, (by, *FIGURES), names, _SHOWN_OF_ONE),
        pages.folded(configuration),
    ]
    return pages.page(title, parts, kind="index", lead=_INDEX_LEAD, links=links)


def draw_comparison(
    items: Sequence[Item],
    runs: Sequence[str],
    *,
    class_names: Sequence[str] | None,
    colors: _Array,
    settings: Mapping[str, Sequence[str]],
    configuration: str,
    links: Mapping[str, str] | None = None,
) -> str:
    """Return the page about the same images under two networks.

    Args:
        items: at least one, as :func:`compare_item` returns them.
        runs: names of the two networks.
        class_names: the class indices if None.
        colors: of the classes, [C, 3] in [0, 1].
        settings: how the two were trained, by the name of a setting; empty if that is unknown.
        configuration: what the two are and what the figures depend on, folded at the end.
        links: as of :func:`edgeloss.viz.pages.page`.
    """
    totals, figures = _totals(items)
    names = _names_of(totals[0], class_names)
    keys = {
        "classes": _class_key(totals[0], names, colors),
        "difference": [
            [f"only {runs[0]} wrong", to_hex(BETTER)],
            [f"only {runs[1]} wrong", to_hex(WORSE)],
            ["both wrong", to_hex(WRONG_IN_BOTH)],
            ["ignored", to_hex(VOID)],
        ],
    }
    parts = [
        _headlines(items, runs, figures, len(totals[0].pixels)),
        *_trained(runs, settings),
        *_score_tables(runs, totals, figures, names, colors),
        *_examples(items, runs, keys["classes"]),
        {"kind": "heading", "title": f"All {len(items)} images"},
        *({"kind": "key", "entries": entries} for entries in keys.values()),
        _gallery(items, tuple(FIGURES), names, _SHOWN_OF_TWO, keys=keys),
        pages.folded(configuration),
    ]
    title, lead = f"{runs[0]} compared with {runs[1]}", _verdict(items, runs, figures, settings)
    return pages.page(title, parts, kind="comparison", subtitle=f"{len(items)} images", lead=lead, links=links)


# --------------------------------------------------------------------------------------------------------------- parts


def _totals(items: Sequence[Item]) -> tuple[list[Scores], list[dict[str, float]]]:
    """Return the counts of each network over all images, and the figures that follow from them."""
    totals = [functools.reduce(Scores.plus, scores) for scores in zip(*(item.scores for item in items), strict=True)]
    return totals, [_total([item.figures[at] for item in items], total) for at, total in enumerate(totals)]


def _total(figures: Sequence[Mapping[str, float]], scores: Scores) -> dict[str, float]:
    """Return figures of many images: averages of the losses, but the scores over all images together."""
    return {key: mean_of_present([one[key] for one in figures]) for key in figures[0]} | scores.means


def _names_of(total: Scores, class_names: Sequence[str] | None) -> Sequence[str]:
    return [str(k) for k in range(len(total.pixels))] if class_names is None else class_names


def _class_key(total: Scores, names: Sequence[str], colors: _Array) -> list[list[str]]:
    """Return names and colors of the classes that occur."""
    return [[names[k], to_hex(colors[k])] for k in np.flatnonzero(total.occurs).tolist()]


def _gallery(
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
    errors = error_overlay(truth, prediction, on_photo=image is not None, side=_INDEX_SIDE)
    pictures = [
        photo_picture(image, truth.shape),
        picture(picture_of_labels(truth, colors), _INDEX_SIDE, "ground truth"),
        picture(labels_picture(truth, prediction, colors), _INDEX_SIDE, "prediction"),
        picture(errors, _INDEX_SIDE, "wrong pixels", base="gray"),
    ]
    figures = [_total([one.figures for one in examined], total)]
    return Item(name, figures, [total], pictures, photograph(image, _INDEX_SIDE), link)


# ------------------------------------------------------------------------------------------------------ two networks


def compare_item(name: str, image: Rgb | None, runs: Mapping[str, Arrays], colors: _Array, side: int) -> Item:
    """Return an image under two networks, with its pictures.

    Args:
        name: of the image.
        image: [H, W, 3], or None.
        runs: what the two make of it, by the name of their network.
        colors: [C, 3] in [0, 1].
        side: pixels of the longer side of the pictures.
    """
    truth, on_photo = next(iter(runs.values())).target[0], image is not None
    first, second = (one.prediction[0] for one in runs.values())
    before, after = (one.maps["edge"][0] for one in runs.values())
    change = picture(_edge_change(truth, before, after, side), side, "change of the edge loss", base="gray")
    difference = overlay({**compared_errors(truth, first, second), VOID: truth < 0}, truth.shape, on_photo=on_photo)
    labels = [("ground truth", picture_of_labels(truth, colors))]
    labels += [(run, labels_picture(truth, one.prediction[0], colors)) for run, one in runs.items()]
    # In rows of four, or of two: what belongs together is next to or below each other.
    pictures = [
        photo_picture(image, truth.shape),
        *(picture(drawn, side, caption) | {"key": "classes"} for caption, drawn in labels),
        change | {"bar": _change_bar()},
        picture(difference, side, "difference", base="gray") | {"key": "difference"},
    ]
    for run, one in runs.items():
        errors = error_overlay(truth, one.prediction[0], on_photo=on_photo, side=side)
        pictures.append(picture(errors, side, f"wrong: {run}", base="gray"))
    figures, scores = [one.figures for one in runs.values()], [one.scores for one in runs.values()]
    return Item(name, figures, scores, pictures, photograph(image, side))


def _verdict(
    items: Sequence[Item],
    runs: Sequence[str],
    figures: Sequence[Mapping[str, float]],
    settings: Mapping[str, Sequence[str]],
) -> str:
    """Return which network is ahead and, where their seeds are known, that others may give another result."""
    name, change = FIGURES[_BY].name, shown_changes(*figures)[FIGURES[_BY].name]
    gains = [item.changes[_BY] for item in items]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    seeds = dict.fromkeys(settings.get("seed_everything", ()))
    of_seed = f" These are trainings with seed {' and '.join(seeds)}: another seed may give another result."
    return (
        f"{runs[1]} changes {name} by {change['text']} points, and is better in {better} and worse in {worse} of"
        f" {len(items)} images.{of_seed * bool(seeds)}"
    )


def _headlines(
    items: Sequence[Item], runs: Sequence[str], figures: Sequence[Mapping[str, float]], classes: int
) -> pages.Part:
    before, after = ({key: of_run[key] for key in [*FIGURES][:HEADLINES]} for of_run in figures)
    gains = [item.changes[_BY] for item in items]
    abouts = about_figures(classes)
    values = [(name, value, abouts[name]) for name, value in shown_figures(after).items()]
    many = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
    values.append(("images that gain", many, f"of which {FIGURES[_BY].name} is higher"))
    changes = shown_changes(before, after)
    changes["images that gain"] = {"text": f"{sum(gain < 0 for gain in gains)} lose", "tone": ""}
    return pages.tiles(
        values, changes=changes, about=f"Figures of {runs[1]}, and their change from {runs[0]}. {_ABOUT_ALL}"
    )


def _trained(runs: Sequence[str], settings: Mapping[str, Sequence[str]]) -> list[pages.Part]:
    """Return the table of how two networks were trained, nothing if that is unknown."""
    if not settings:
        return []
    table = pages.table(("setting", *runs), [(name, *values) for name, values in settings.items()], label="Settings")
    about = "From config.yaml in the folders of the two runs: the seed, and every setting that differs."
    if any(name.endswith(".edge_weight") for name in settings):
        about += " With edge_weight and region_weight 0 the loss is plain cross-entropy."
    return [{"kind": "tables", "title": "How the two were trained", "about": about, "tables": [table]}]


def _score_tables(
    runs: Sequence[str],
    totals: Sequence[Scores],
    figures: Sequence[Mapping[str, float]],
    names: Sequence[str],
    colors: _Array,
) -> list[pages.Part]:
    """Return the scores of each class of both networks and their difference, and the terms of the loss."""
    changes, (before, after) = shown_changes(*figures), map(shown_figures, figures)
    # A network may have the name of a term.
    titles = {one.name: f"{one.name.removesuffix(' term')} term" for one in (FIGURES[term.name] for term in TERMS)}
    abouts = {one.name: one.about for one in FIGURES.values()}
    shown = [*before][HEADLINES:]
    terms = [(titles.get(name, name), before[name], after[name], changes[name]) for name in shown]
    tables = []
    for key in ("mean_iou", _BY):
        name, form, *_ = FIGURES[key]
        of_runs = [total.iou if key == "mean_iou" else total.boundary_f1 for total in totals]
        title = "IoU" if key == "mean_iou" else name
        rows: list[Sequence[Any]] = []
        for k in np.flatnonzero(totals[0].plus(totals[1]).occurs).tolist():
            first, second = (float(values[k]) for values in of_runs)
            change = shown_change(first, second, form, is_score=True)
            rows.append(([names[k], to_hex(colors[k])], shown_score(first, form), shown_score(second, form), change))
        label, foot = f"{title} of each class", ("mean", before[name], after[name], changes[name])
        tables.append(pages.table(("class", *runs, "change"), rows, label=label, title=title, foot=foot))
    notes = {titles.get(name, name): abouts[name] for name in shown}
    whole = pages.table(("", *runs, "change"), terms, label="The loss and its terms", notes=notes)
    return [
        {"kind": "tables", "title": "Scores of each class", "tables": tables},
        {"kind": "tables", "title": "The loss and its terms", "tables": [whole], "folded": True},
    ]


def choose_examples(items: Sequence[Item]) -> dict[str, list[int]]:
    """Return the places of the images that gain most, of the median one, and of those that lose most.

    Where none gains they are those that lose least, and where none loses those that gain least. Images of equal change
    are in the given order, and those that have none, since a score has no value, are left out.
    """
    changes = {at: item.changes[_BY] for at, item in enumerate(items) if np.isfinite(item.changes[_BY])}
    falling = sorted(changes, key=lambda at: -changes[at])
    rising = sorted(changes, key=lambda at: changes[at])
    gains = [at for at in falling if changes[at] > 0][:_SHOWN]
    losses = [at for at in rising if changes[at] < 0][:_SHOWN]
    first = {"gains most": gains} if gains else {"loses least": [at for at in falling if at not in losses][:_SHOWN]}
    last = {"loses most": losses} if losses else {"gains least": [at for at in rising if at not in gains][:_SHOWN]}
    taken = [at for places in (first | last).values() for at in places]
    return first | {"median": [at for at in falling[len(falling) // 2 :][:1] if at not in taken]} | last


def _examples(items: Sequence[Item], runs: Sequence[str], key: list[list[str]]) -> list[pages.Part]:
    """Return the parts of a page about the largest gains, the median and the largest losses."""
    name = FIGURES[_BY].name
    titles = {
        "gains most": f"Where {runs[1]} gains most {name}",
        "loses least": f"No image gains {name}: the smallest losses of {runs[1]}",
        "median": f"The median image by gain in {name}",
        "loses most": f"Where {runs[1]} loses most {name}",
        "gains least": f"No image loses {name}: the smallest gains of {runs[1]}",
    }
    about = (
        f"Chosen by a rule among all {len(items)} images: the {_SHOWN} of the largest gain in {name}, the median, and"
        f" the {_SHOWN} of the largest loss or, where none loses, of the smallest gain. Press a picture to enlarge it;"
        " then the arrow keys or a swipe show the next."
    )
    parts: list[pages.Part] = [{"kind": "heading", "title": "Examples", "about": about}]
    parts.append({"kind": "key", "entries": key})
    for kind, places in choose_examples(items).items():
        if places:
            rows = [{"item": at} for at in places]
            parts.append({"kind": "figures", "title": titles[kind], "first": _SHOWN_OF_TWO, "rows": rows})
    return parts


def _edge_change(truth: _Array, first: _Array, second: _Array, side: int) -> Rgb:
    """Return the colors of the difference of two edge maps, [h, w, 4]."""
    with np.errstate(invalid="ignore"):
        change = np.where((truth >= 0) & ((first != 0) | (second != 0)), second - first, 0).astype(np.float64)
    # The strongest of several pixels stays where the picture is smaller, so that thin edges do.
    size = shrunk(change.shape, side)
    up, down = (reduce_blocks(np.maximum, np.nan_to_num(sign * change, nan=0.0), size) for sign in (1, -1))
    colors = _change_colors(np.where(up >= down, up, -down))
    colors[reduce_blocks(np.logical_and, truth < 0, size)] = (*color_bytes(VOID), 255)
    return colors


def _change_colors(change: _Array) -> Rgb:
    """Return the colors of changes of the edge loss, [..., 4], the more opaque the larger; transparent for 0."""
    strength = np.minimum(np.sqrt(np.abs(change) / _MOST_CHANGE), 1)  # small changes are seen, too
    colors = np.empty((*change.shape, 4), np.uint8)
    colors[..., :3] = np.where(change[..., None] < 0, color_bytes(BETTER), color_bytes(WORSE))
    colors[..., 3] = np.rint(90 * (change != 0) + 165 * strength).astype(int) // 5 * 5  # few enough for a palette
    return colors


def _change_bar() -> pages.Part:
    """Return the color bar of the change of the edge loss, the same for all images."""
    ramp = _change_colors(np.linspace(-_MOST_CHANGE, _MOST_CHANGE, 25)) / 255
    colors = [to_hex(color, keep_alpha=True) for color in ramp]
    low, high = f"≤ −{_MOST_CHANGE:.2g}", f"≥ +{_MOST_CHANGE:.2g} nats"
    return pages.color_bar(low, high, colors=colors)
