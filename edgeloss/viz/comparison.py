"""The same images under two networks → the page that compares them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from edgeloss._checks.options import TERMS
from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import color_bytes, compared_errors, picture_of_labels, reduce_blocks
from edgeloss.viz.gallery import ABOUT_ALL, Item, class_key, gallery, names_of, totals_of
from edgeloss.viz.palette import BETTER, FOUND_BORDER, TRUE_BORDER, VOID, WORSE, WRONG_IN_BOTH
from edgeloss.viz.pictures import (
    Rgb,
    border_lines,
    error_overlay,
    labels_picture,
    overlay,
    photo_picture,
    photograph,
    picture,
    shrunk,
    window_of_most,
)
from edgeloss.viz.scores import (
    ABOUT_STRAY,
    FIGURES,
    HEADLINES,
    Scores,
    about_figures,
    shown_change,
    shown_changes,
    shown_figures,
    shown_growth,
    shown_score,
)

_Array = npt.NDArray[Any]
_MOST_CHANGE = 3.0  # nats of edge loss, from which on a change has its full color
# Places of pictures that narrow screens show first, in their order, and those that a gallery shows.
_FIRST, _ON_CARD = (0, 1, 2, 3, 8, 9, 10, 11), (0, 5, 2, 3)
_EXAMPLES = 3  # images of the largest gains, and as many of the largest losses
_BY = "boundary_f1_1px"  # what a comparison sorts by
_STRAY = "stray pixels"
_WINDOW = 32, 96  # pixels across the enlarged parts of an image, the least and the most


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
    totals, figures = totals_of(items)
    names = names_of(totals[0], class_names)
    classes = class_key(items, names, colors)
    ignored = [entry for entry in classes if entry == ["ignored", to_hex(VOID)]]
    wrong = [
        [f"only {runs[0]} wrong", to_hex(BETTER)],
        [f"only {runs[1]} wrong", to_hex(WORSE)],
        ["both wrong", to_hex(WRONG_IN_BOTH)],
    ]
    borders = [["true border", to_hex(TRUE_BORDER)], ["predicted border", to_hex(FOUND_BORDER)]]
    keys = {"classes": classes, "difference": wrong + ignored, "borders": borders + ignored}
    tables = _class_tables(runs, totals, figures, names, colors)
    parts = [
        _headlines(items, runs, totals, figures),
        {"kind": "tables", "title": "Scores of each class", "tables": tables},
        _term_table(runs, figures),
        *_examples(items, runs, [*classes, *borders]),
        {"kind": "heading", "title": f"All {len(items)} images"},
        {"kind": "key", "entries": [*classes, *wrong]},
        gallery(items, tuple(FIGURES), names, _ON_CARD, keys=keys),
        *_trained(runs, settings),
        pages.folded(configuration),
    ]
    title, lead = f"{runs[0]} compared with {runs[1]}", _verdict(items, runs, figures, settings, tables)
    return pages.page(title, parts, kind="comparison", subtitle=f"{len(items)} images", lead=lead, links=links)


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
    at_edges = np.where(next(iter(runs.values())).maps["edge_mask"][0], truth, -1)
    windows = choose_windows(at_edges, first, second)
    for letter, window in windows.items():
        part = None if image is None else image[window]
        for run, one in runs.items():
            drawn, counted = _enlarged(part, truth[window], one.prediction[0][window]), at_edges[window]
            wrong = np.count_nonzero((one.prediction[0][window] != counted) & (counted >= 0))
            about = f"{wrong} of {np.count_nonzero(counted >= 0)} edge pixels wrong"
            pictures.append(drawn | {"caption": f"{letter}, {run}: {about}"})
    frames = [{"name": letter, "place": _place(window, truth.shape)} for letter, window in windows.items()]
    for at in (0, 5):
        pictures[at]["frames"] = frames
    figures, scores = [one.figures for one in runs.values()], [one.scores for one in runs.values()]
    return Item(name, figures, scores, pictures, bool((truth < 0).any()), photograph(image, side))


def choose_windows(truth: _Array, first: _Array, second: _Array) -> dict[str, tuple[slice, slice]]:
    """Return the parts of an image to enlarge: where most edge pixels are gained, A, and most are lost, B.

    Args:
        truth: [H, W] labels of edge pixels, -1 elsewhere.
        first: [H, W] labels of a network.
        second: [H, W] labels of the other one.

    Returns:
        Rows and columns of squares, by letter; without one in which no window gains, or loses, a pixel.
    """
    colors = compared_errors(truth, first, second)
    fewer, (least, most) = colors[BETTER].astype(np.int64) - colors[WORSE], _WINDOW
    across = min(max(least, min(truth.shape) // 8), most, *truth.shape)
    windows = {letter: (window_of_most(gain, across), gain) for letter, gain in {"A": fewer, "B": -fewer}.items()}
    return {letter: window for letter, (window, gain) in windows.items() if gain[window].sum() > 0}


def _place(window: tuple[slice, slice], shape: Sequence[int]) -> list[float]:
    """Return left, top, width and height of a part of an image, in percent."""
    (y, height), (x, width) = zip(window, shape, strict=True)
    places = (x.start / width, y.start / height, (x.stop - x.start) / width, (y.stop - y.start) / height)
    return [round(100 * place, 2) for place in places]


def _enlarged(image: Rgb | None, truth: _Array, prediction: _Array) -> pages.Part:
    """Return true and predicted borders over a part of an image, pixel by pixel."""
    lines = border_lines({TRUE_BORDER: truth, FOUND_BORDER: np.where(truth < 0, -1, prediction)})
    drawn = picture(lines, max(lines.shape), "", base="photo")
    return drawn | {"photo": photograph(image, max(truth.shape)), "key": "borders"}


def _verdict(
    items: Sequence[Item],
    runs: Sequence[str],
    figures: Sequence[Mapping[str, float]],
    settings: Mapping[str, Sequence[str]],
    tables: Sequence[pages.Part],
) -> str:
    """Return which network is ahead, what it loses and, if seeds are known, that others may give another result."""
    name, change = FIGURES[_BY].name, shown_changes(*figures)[FIGURES[_BY].name]
    gains = [item.changes[_BY] for item in items]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    losses = ", ".join(filter(None, map(_largest_loss, tables)))
    scores = ", ".join(table["title"] for table in tables)
    lost = f"Worst changes by class: {losses}." if losses else f"No class gets worse in {scores}."
    seeds = dict.fromkeys(settings.get("seed_everything", ()))
    of_seed = f" These are trainings with seed {' and '.join(seeds)}: another seed may give another result."
    return (
        f"{runs[1]} changes {name} by {change['text']} points, and is better in {better} and worse in {worse} of"
        f" {len(items)} images. {lost}{of_seed * bool(seeds)}"
    )


def _largest_loss(table: pages.Part) -> str:
    """Return the class that gets worse by most, and by how much; empty for none."""
    worse = [(name, change["text"]) for (name, _), *_, change in table["rows"] if change["tone"] == "worse"]
    size = {text: float(re.sub("[^0-9.]", "", text)) for _, text in worse}
    name, text = max(worse, key=lambda one: size[one[1]], default=("", ""))
    return f"{table['title']} of {name} ({text})" if name else ""


def _headlines(
    items: Sequence[Item], runs: Sequence[str], totals: Sequence[Scores], figures: Sequence[Mapping[str, float]]
) -> pages.Part:
    before, after = ({key: of_run[key] for key in [*FIGURES][:HEADLINES]} for of_run in figures)
    gains = [item.changes[_BY] for item in items]
    abouts = about_figures(len(totals[0].pixels))
    values = [(name, value, abouts[name]) for name, value in shown_figures(after).items()]
    changes = shown_changes(before, after)
    first, second = (int(total.stray.sum()) for total in totals)
    values.append((_STRAY, f"{second:,}", ABOUT_STRAY))
    changes[_STRAY] = shown_growth(first, second)
    many = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
    values.append(("images that gain", many, f"of which {FIGURES[_BY].name} is higher"))
    changes["images that gain"] = {"text": f"{sum(gain < 0 for gain in gains)} lose", "tone": ""}
    in_points = {one.name for one in FIGURES.values() if one.form.endswith("%")}
    for name, change in changes.items():
        change["text"] += " points" * (name in in_points) + ", worse" * (change["tone"] == "worse")
    return pages.tiles(
        values, changes=changes, about=f"Figures of {runs[1]}, and their change from {runs[0]}. {ABOUT_ALL}"
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


def _class_tables(
    runs: Sequence[str],
    totals: Sequence[Scores],
    figures: Sequence[Mapping[str, float]],
    names: Sequence[str],
    colors: _Array,
) -> list[pages.Part]:
    """Return the scores of each class of both networks and their difference."""
    changes, shown = shown_changes(*figures), [shown_figures(of_run) for of_run in figures]
    occurring = np.flatnonzero(totals[0].plus(totals[1]).occurs).tolist()
    tables = []

    def add(title: str, cells: Callable[[int], Sequence[Any]], foot: Sequence[Any], **more: Any) -> None:  # noqa: ANN401
        rows = [([names[k], to_hex(colors[k])], *cells(k)) for k in occurring]
        label = f"{title} of each class"
        tables.append(pages.table(("class", *runs, "change"), rows, label=label, title=title, foot=foot, **more))

    for key, title in (("mean_iou", "IoU"), (_BY, FIGURES[_BY].name)):
        name, form, *_ = FIGURES[key]
        values = [total.iou if key == "mean_iou" else total.boundary_f1 for total in totals]

        def scores(k: int, values: Sequence[_Array] = values, form: str = form) -> Sequence[Any]:
            first, second = (float(one[k]) for one in values)
            change = shown_change(first, second, form, is_score=True)
            return shown_score(first, form), shown_score(second, form), change

        add(title, scores, ("mean", *(one[name] for one in shown), changes[name]))

    def stray(counts: Sequence[int]) -> Sequence[Any]:
        return (*(f"{count:,}" for count in counts), shown_growth(*counts))

    total = stray([int(one.stray.sum()) for one in totals])
    add(_STRAY, lambda k: stray([int(one.stray[k]) for one in totals]), ("total", *total), notes={_STRAY: ABOUT_STRAY})
    return tables


def _term_table(runs: Sequence[str], figures: Sequence[Mapping[str, float]]) -> pages.Part:
    """Return the terms of the loss of both networks, folded."""
    changes, (before, after) = shown_changes(*figures), map(shown_figures, figures)
    # A network may have the name of a term.
    titles = {one.name: f"{one.name.removesuffix(' term')} term" for one in (FIGURES[term.name] for term in TERMS)}
    abouts = {one.name: one.about for one in FIGURES.values()}
    shown = [*before][HEADLINES:]
    terms = [(titles.get(name, name), before[name], after[name], changes[name]) for name in shown]
    notes = {titles.get(name, name): abouts[name] for name in shown}
    whole = pages.table(("", *runs, "change"), terms, label="The loss and its terms", notes=notes)
    return {"kind": "tables", "title": "The loss and its terms", "tables": [whole], "folded": True}


def choose_examples(items: Sequence[Item]) -> dict[str, list[int]]:
    """Return the places of the images that gain most, of the median one, and of those that lose most.

    Where none gains they are those that lose least, and where none loses those that gain least. Images of equal change
    are in the given order, and those that have none, since a score has no value, are left out.
    """
    changes = {at: item.changes[_BY] for at, item in enumerate(items) if np.isfinite(item.changes[_BY])}
    falling = sorted(changes, key=lambda at: -changes[at])
    rising = sorted(changes, key=lambda at: changes[at])
    gains = [at for at in falling if changes[at] > 0][:_EXAMPLES]
    losses = [at for at in rising if changes[at] < 0][:_EXAMPLES]
    first = {"gains most": gains} if gains else {"loses least": [at for at in falling if at not in losses][:_EXAMPLES]}
    last = {"loses most": losses} if losses else {"gains least": [at for at in rising if at not in gains][:_EXAMPLES]}
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
        f"Chosen by a rule among all {len(items)} images: the {_EXAMPLES} of the largest gain in {name}, the median,"
        f" and the {_EXAMPLES} of the largest loss or, where none loses, of the smallest gain. A and B are enlarged: of"
        f" all squares of that size, {runs[1]} has the fewest wrong edge pixels compared with {runs[0]} in A, and the"
        " most in B. Press a picture to enlarge it; then the arrow keys or a swipe show the next."
    )
    parts: list[pages.Part] = [{"kind": "heading", "title": "Examples", "about": about}]
    parts.append({"kind": "key", "entries": key})
    for kind, places in choose_examples(items).items():
        if places:
            rows = [{"item": at} for at in places]
            parts.append({"kind": "figures", "title": titles[kind], "first": _FIRST, "rows": rows})
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
