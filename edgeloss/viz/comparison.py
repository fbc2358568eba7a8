"""The same images under two networks → the page that compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from edgeloss._checks.names import shortened
from edgeloss._checks.options import TERMS
from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import color_bytes, compared_errors, picture_of_labels, reduce_blocks
from edgeloss.viz.gallery import ABOUT_LOSSES, ABOUT_SCORES, Item, class_key, gallery, names_of, totals_of
from edgeloss.viz.palette import BETTER, TRUE_BORDER, VOID, WORSE, WRONG_IN_BOTH
from edgeloss.viz.pictures import (
    Rgb,
    labels_picture,
    overlay,
    photo_picture,
    photograph,
    picture,
    shrunk,
    window_of_most,
    with_borders,
)
from edgeloss.viz.scores import (
    ABOUT_STRAY,
    FIGURES,
    Scores,
    about_figures,
    shown_change,
    shown_changes,
    shown_figures,
    shown_growth,
    shown_score,
)

_Array = npt.NDArray[Any]
_Name = TypeVar("_Name")
_MOST_CHANGE = 3.0  # nats of edge loss, from which on a change has its full color
_COLUMNS = 5  # of pictures: the whole image in the first row, parts of it in the second
_DIFFERENCE, _ON_CARD = 4, (0, 4, 2, 3)  # places of pictures: of the difference, and of those that a gallery shows
_EXAMPLES = 3  # images of the largest gains, and as many of the largest losses
_MOST_CLASSES = 3  # that are named as worse
_BY = "boundary_f1_1px"  # what a comparison sorts by
_STRAY = "stray pixels"
_WINDOW = 32, 96  # pixels across them, the least and the most


def draw_comparison(
    items: Sequence[Item],
    runs: Sequence[str],
    *,
    class_names: Sequence[str] | None,
    colors: _Array,
    settings: Mapping[str, Sequence[str]],
    verdict: str,
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
        verdict: as :func:`describe_change` returns it.
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
    border = [["true border", to_hex(TRUE_BORDER), "line"]]
    keys = {"classes": classes, "difference": wrong + ignored, "enlarged": [*classes, *border]}
    scores = _class_scores(totals, figures)
    examples = choose_examples({at: item.changes[_BY] for at, item in enumerate(items)})
    occurring = np.flatnonzero(totals[0].plus(totals[1]).occurs).tolist()
    tables = [_class_table(one, runs, occurring, names, colors) for one in scores]
    parts = [
        _headlines(runs, totals, figures, scores, names),
        *_all_changes(items, runs, examples),
        {"kind": "tables", "title": "Scores of each class", "tables": tables},
        _term_table(runs, figures, len(totals[0].pixels)),
        *_examples(examples, runs, len(items), [*classes, *wrong, *border]),
        {"kind": "heading", "title": f"All {len(items)} images"},
        {"kind": "key", "entries": [*classes, *wrong]},
        gallery(items, tuple(FIGURES), names, _ON_CARD, keys=keys),
        *_trained(runs, settings),
        pages.folded(configuration),
    ]
    title = f"{runs[1]} compared with {runs[0]}"
    return pages.page(title, parts, kind="comparison", subtitle=f"{len(items)} images", lead=verdict, links=links)


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
    about = f"blue: less with {[*runs][1]}, which is better"
    change = picture(
        _edge_change(truth, before, after, side), side, "change of the edge loss", base="gray", about=about
    )
    wrong = overlay({**compared_errors(truth, first, second), VOID: truth < 0}, truth.shape, on_photo=on_photo)
    difference = picture(wrong, side, "difference", base="gray") | {"key": "difference"}
    labels = [("ground truth", picture_of_labels(truth, colors))]
    labels += [(run, labels_picture(truth, one.prediction[0], colors)) for run, one in runs.items()]
    pictures = [photo_picture(image, truth.shape)]
    pictures += [picture(drawn, side, caption) | {"key": "classes"} for caption, drawn in labels]
    pictures.append(difference)
    windows = choose_windows(truth, first, second)
    for letter, window in windows.items():
        for (run, drawn), about in zip(labels[1:], window.abouts, strict=True):
            enlarged = with_borders(drawn[window.place], truth[window.place])
            part = picture(enlarged, max(enlarged.shape), f"{letter}: {run}", about=about)
            pictures.append(part | {"key": "enlarged", "is_extra": True})
    pictures.append(change | {"bar": _change_bar(), "is_extra": True})
    frames = [{"name": letter, "place": _percent(one.place, truth.shape)} for letter, one in windows.items()]
    for at in (0, _DIFFERENCE):
        pictures[at]["frames"] = frames
    figures, scores = [one.figures for one in runs.values()], [one.scores for one in runs.values()]
    return Item(name, figures, scores, pictures, bool((truth < 0).any()), photograph(image, side))


class Window(NamedTuple):
    """A part of an image to enlarge.

    Attributes:
        place: its rows and columns.
        pixels: the number of its labeled pixels.
        wrong: those of them that are wrong, for each of the two networks.
    """

    place: tuple[slice, slice]
    pixels: int
    wrong: tuple[int, int]

    @property
    def abouts(self) -> tuple[str, str]:
        """What is said below the pictures of both networks."""
        first, second = (f"{wrong:,} of {self.pixels:,} pixels wrong" for wrong in self.wrong)
        return first, second


def choose_windows(truth: _Array, first: _Array, second: _Array) -> dict[str, Window]:
    """Return the parts of an image to enlarge: where most pixels are gained, A, and where most are lost, B.

    Args:
        truth: [H, W] labels, -1 at ignored pixels.
        first: [H, W] labels of a network.
        second: [H, W] labels of the other one.

    Returns:
        Squares by letter, which do not overlap; without that in which no square gains, or loses, a pixel.
    """
    was, now = ((labels != truth) & (truth >= 0) for labels in (first, second))
    fewer, (least, most) = was.astype(np.int64) - now, _WINDOW
    across = min(max(least, min(truth.shape) // 8), most, *truth.shape)
    windows: dict[str, Window] = {}
    for letter, gain in {"A": fewer, "B": -fewer}.items():
        place = window_of_most(gain, across, apart=[one.place for one in windows.values()])
        if place is not None:
            pixels, before, after = (int(np.count_nonzero(mask[place])) for mask in (truth >= 0, was, now))
            windows[letter] = Window(place, pixels, (before, after))
    return windows


def _percent(window: tuple[slice, slice], shape: Sequence[int]) -> list[float]:
    """Return left, top, width and height of a part of an image, in percent."""
    (y, height), (x, width) = zip(window, shape, strict=True)
    places = (x.start / width, y.start / height, (x.stop - x.start) / width, (y.stop - y.start) / height)
    return [round(100 * place, 2) for place in places]


class _ClassScores(NamedTuple):
    """A score of each class, or a number of wrong pixels, under both networks.

    Attributes:
        title: of the score.
        before: [C], of the first network.
        after: [C], of the second.
        total: its name, and the mean or sum of both.
        shown: a value → text.
        change: two values → their change as text, and whether it is for the better.
    """

    title: str
    before: _Array
    after: _Array
    total: tuple[str, float, float]
    shown: Callable[[Any], str]
    change: Callable[[Any, Any], dict[str, str]]

    @property
    def worse(self) -> list[int]:
        """The classes that get worse, by more than is rounded off, the largest change first."""
        worse = [k for k in range(len(self.before)) if self.change(self.before[k], self.after[k])["tone"] == "worse"]
        return sorted(worse, key=lambda k: -abs(self.after[k] - self.before[k]))


def _class_scores(totals: Sequence[Scores], figures: Sequence[Mapping[str, float]]) -> list[_ClassScores]:
    """Return what the page shows of each class."""
    (first, second), scores = totals, []
    for key, title, before, after in (
        ("mean_iou", "IoU", first.iou, second.iou),
        (_BY, FIGURES[_BY].name, first.boundary_f1, second.boundary_f1),
    ):
        form, (of_first, of_second) = FIGURES[key].form, (one[key] for one in figures)
        shown, change = partial(shown_score, form=form), partial(shown_change, form=form, is_score=True)
        scores.append(_ClassScores(title, before, after, ("mean", of_first, of_second), shown, change))
    total = "total", first.stray.sum(), second.stray.sum()
    return [*scores, _ClassScores(_STRAY, first.stray, second.stray, total, "{:,}".format, shown_growth)]


def _class_table(
    scores: _ClassScores, runs: Sequence[str], occurring: Sequence[int], names: Sequence[str], colors: _Array
) -> pages.Part:
    """Return the table of a score of the classes that occur."""

    def cells(first: float, second: float) -> tuple[Any, ...]:
        return scores.shown(first), scores.shown(second), scores.change(first, second)

    before, after, (of_all, *totals) = scores.before, scores.after, scores.total
    rows = [([names[k], to_hex(colors[k])], *cells(before[k], after[k])) for k in occurring]
    is_stray = scores.title == _STRAY
    label, notes = f"{scores.title} of each class", {_STRAY: f"{ABOUT_STRAY}, by that class"} if is_stray else {}
    head, foot = ("class", *runs, "change" if is_stray else "change, points"), (of_all, *cells(*totals))
    return pages.table(head, rows, label=label, title=scores.title, foot=foot, notes=notes)


def describe_change(
    items: Sequence[Item],
    runs: Sequence[str],
    *,
    class_names: Sequence[str] | None,
    settings: Mapping[str, Sequence[str]],
) -> str:
    """Return which network is ahead, what gets worse and, if seeds are known, that others may give another result.

    The arguments are those of :func:`draw_comparison`.
    """
    totals, figures = totals_of(items)
    names, scores = names_of(totals[0], class_names), _class_scores(totals, figures)
    name, change = FIGURES[_BY].name, shown_changes(*figures)[FIGURES[_BY].name]
    before, after = (shown_figures(one)[name] for one in figures)
    gains = [item.changes[_BY] for item in items]
    higher, lower = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    losses = "; ".join(_losses(one, names) for one in scores if one.worse)
    lost = f"Worse: {losses}." if losses else f"No class gets worse in {', '.join(one.title for one in scores)}."
    seeds = dict.fromkeys(settings.get("seed_everything", ()))
    of_seed = f" These are trainings with seed {' and '.join(seeds)}: another seed may give another result."
    verdict = f"{runs[1]} is {change['tone'] or 'level'} in {name}: {after} instead of {before}"
    return (
        f"{verdict} ({change['text']} points), higher in {higher} and lower in {lower} of {len(items)} images."
        f" {lost}{of_seed * bool(seeds)}"
    )


def _losses(scores: _ClassScores, names: Sequence[str]) -> str:
    """Return the classes that get worse, with their values, after the total or mean if that is worse, too."""

    def described(name: str, before: Any, after: Any) -> str:  # noqa: ANN401
        return f"{name} ({scores.shown(before)} → {scores.shown(after)})"

    of_all, before, after = scores.total
    is_said = scores.title == FIGURES[_BY].name  # by the verdict
    is_worse = not is_said and scores.change(before, after)["tone"] == "worse"
    whole = f", {described(of_all, before, after)}," * is_worse
    classes = [described(names[k], scores.before[k], scores.after[k]) for k in scores.worse]
    of_class = "predicted as" if scores.title == _STRAY else "of"
    return f"{scores.title}{whole} {of_class} {shortened(classes, _MOST_CLASSES)}"


def _headlines(
    runs: Sequence[str],
    totals: Sequence[Scores],
    figures: Sequence[Mapping[str, float]],
    scores: Sequence[_ClassScores],
    names: Sequence[str],
) -> pages.Part:
    """Return the totals; a change for the better names the classes that get worse, which it hides."""
    # No loss: it would favor the network that was trained with it.
    before, after = ({key: of_run[key] for key, one in FIGURES.items() if one.is_score} for of_run in figures)
    abouts = about_figures(len(totals[0].pixels))
    values = [(name, value, abouts[name]) for name, value in shown_figures(after).items()]
    former, changes = shown_figures(before), shown_changes(before, after)
    first, second = (int(total.stray.sum()) for total in totals)
    values.append((_STRAY, f"{second:,}", ABOUT_STRAY))
    former[_STRAY], changes[_STRAY] = f"{first:,}", shown_growth(first, second)
    in_points = {one.name for one in FIGURES.values() if one.form.endswith("%")}
    for name, change in changes.items():
        verdict, points = f"{change['tone']}: " if change["tone"] else "", " points" * (name in in_points)
        change["text"] = f"{verdict}{change['text']}{points} from {former[name]}"
    for one in scores:
        of_total = {"IoU": FIGURES["mean_iou"].name}.get(one.title, one.title)
        if one.worse and changes[of_total]["tone"] != "worse":
            changes[of_total]["but"] = f"worse: {shortened([names[k] for k in one.worse], _MOST_CLASSES)}"
    return pages.tiles(
        values, changes=changes, about=f"Figures of {runs[1]}, and their change from {runs[0]}. {ABOUT_SCORES}"
    )


def _all_changes(items: Sequence[Item], runs: Sequence[str], examples: Mapping[str, Sequence[int]]) -> list[pages.Part]:
    """Return the bars of the change of each image, of which the examples stand out; nothing where none changes."""
    name, changes = FIGURES[_BY].name, [item.changes[_BY] for item in items]
    falling = sorted(np.flatnonzero(np.isfinite(changes)).tolist(), key=lambda at: -changes[at])
    if len(falling) < 2 or not any(changes[at] for at in falling):
        return []
    ends = {"highest": falling[0], "median": falling[len(falling) // 2], "lowest": falling[-1]}
    texts = {at: shown_changes(*items[at].figures)[name] for at in ends.values()}
    shown = {at for places in examples.values() for at in places}
    return [
        {
            "kind": "bars",
            "title": f"Change in {name} of each image",
            "about": (
                f"Each bar is an image: up where {runs[1]} is better than {runs[0]}, down where it is worse. The bars"
                " in full color are the examples below."
            ),
            "unit": "points",
            "values": [100 * changes[at] for at in falling],
            "strong": [place for place, at in enumerate(falling) if at in shown],
            "ends": [[f"{what}: {items[at].name}", texts[at]] for what, at in ends.items()],
        }
    ]


def _trained(runs: Sequence[str], settings: Mapping[str, Sequence[str]]) -> list[pages.Part]:
    """Return the table of how two networks were trained, nothing if that is unknown."""
    if not settings:
        return []
    table = pages.table(("setting", *runs), [(name, *values) for name, values in settings.items()], label="Settings")
    about = "From config.yaml in the folders of the two runs: the seed, and every setting that differs."
    if any(name.endswith(".edge_weight") for name in settings):
        about += " With edge_weight and region_weight 0 the loss is plain cross-entropy."
    return [{"kind": "tables", "title": "How the two were trained", "about": about, "tables": [table]}]


def _term_table(runs: Sequence[str], figures: Sequence[Mapping[str, float]], classes: int) -> pages.Part:
    """Return the loss and its terms of both networks, folded."""
    changes, (before, after) = shown_changes(*figures), map(shown_figures, figures)
    # A network may have the name of a term.
    titles = {one.name: f"{one.name.removesuffix(' term')} term" for one in (FIGURES[term.name] for term in TERMS)}
    abouts = about_figures(classes)
    shown = [one.name for one in FIGURES.values() if one.name in before and not one.is_score]
    terms = [(titles.get(name, name), before[name], after[name], changes[name]) for name in shown]
    notes = {titles.get(name, name): abouts[name] for name in shown}
    whole = pages.table(("", *runs, "change"), terms, label="The loss and its terms", notes=notes)
    about = f"Both networks by the same loss. {ABOUT_LOSSES} None is a score: training with this loss lowers it."
    return {"kind": "tables", "title": "The loss and its terms", "about": about, "tables": [whole], "folded": True}


def choose_examples(changes: Mapping[_Name, float]) -> dict[str, list[_Name]]:
    """Return the images that gain most, the median one, and those that lose most.

    Where none gains they are those that lose least, and where none loses those that gain least. Images of equal change
    are in the given order, and those that have none, since a score has no value, are left out.

    Args:
        changes: of the score, by image.
    """
    finite = [one for one, change in changes.items() if np.isfinite(change)]
    falling = sorted(finite, key=lambda one: -changes[one])
    rising = sorted(finite, key=lambda one: changes[one])
    gains = [one for one in falling if changes[one] > 0][:_EXAMPLES]
    losses = [one for one in rising if changes[one] < 0][:_EXAMPLES]
    first = {"gains most": gains} if gains else {"loses least": [at for at in falling if at not in losses][:_EXAMPLES]}
    last = {"loses most": losses} if losses else {"gains least": [at for at in rising if at not in gains][:_EXAMPLES]}
    taken = [one for chosen in (first | last).values() for one in chosen]
    return first | {"median": [one for one in falling[len(falling) // 2 :][:1] if one not in taken]} | last


def _examples(
    examples: Mapping[str, Sequence[int]], runs: Sequence[str], count: int, key: list[list[str]]
) -> list[pages.Part]:
    """Return the parts of a page about the largest gains, the median and the largest losses, among ``count`` images."""
    name = FIGURES[_BY].name
    titles = {
        "gains most": f"Where {runs[1]} gains most {name}",
        "loses least": f"No image gains {name}: the smallest losses of {runs[1]}",
        "median": f"The median image by gain in {name}",
        "loses most": f"Where {runs[1]} loses most {name}",
        "gains least": f"No image loses {name}: the smallest gains of {runs[1]}",
    }
    about = (
        f"Chosen by a rule among all {count} images: the {_EXAMPLES} of the largest gain in {name}, the median,"
        f" and the {_EXAMPLES} of the largest loss or, where none loses, of the smallest gain; the first of each is"
        " open. A and B are enlarged: of all squares as large, A is where"
        f" {runs[1]} removes the most wrong pixels, and B, which does not overlap it, where it adds the most, left out"
        " where it adds none. Press a picture to enlarge it; then the arrow keys or a swipe show the next."
    )
    parts: list[pages.Part] = [{"kind": "heading", "title": "Examples", "about": about}]
    parts.append({"kind": "key", "entries": key})
    for kind, places in examples.items():
        if places:
            rows = [{"item": at} for at in places]
            parts.append({"kind": "figures", "title": titles[kind], "columns": _COLUMNS, "rows": rows})
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
