"""A page about a run: curves, scores per class, and the worst images. One file that needs no network."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.colors import to_hex

from edgeloss._checks.options import EDGE_TERMS, SUMMANDS
from edgeloss.io import atomic_write
from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import ColoredMap, Look, color_maps, map_to_rgb, picture_of_labels, shared_range
from edgeloss.viz.palette import LOUD, NOTHING, VOID, WRONG
from edgeloss.viz.panel import MAPS
from edgeloss.viz.pictures import (
    Rgb,
    error_overlay,
    labels_picture,
    photo_picture,
    photograph,
    picture,
    shrunk,
    side_for,
)
from edgeloss.viz.scores import F1_ABOUT, FIGURES, shown_change, shown_figures, shown_score, weakest_class
from edgeloss.viz.scores import shown as shown_number

Row = Mapping[str, Any]  # the figures of one epoch: numbers, or None
BY_CLASS = ("iou", "boundary_iou", "boundary_f1_1")  # scores that are shown per class too
_F1 = ("val/boundary_f1_1", "val/boundary_f1_3", "val/boundary_f1_5")
_ACCURACY = ("val/accuracy", "val/edge_accuracy", "val/interior_accuracy")


class Curves(NamedTuple):
    """A picture of curves.

    Attributes:
        title: of it.
        about: what it shows, in a line.
        keys: the figures that it shows if the run has them.
        is_weighted: whether they are terms, which are drawn times their weights.
    """

    title: str
    about: str
    keys: tuple[str, ...]
    is_weighted: bool = False


_IOUS = ("val/miou", "val/boundary_iou", "val/boundary_iou_narrow", "val/trimap_iou_3")
_TERMS = {key: FIGURES[key].name for key in SUMMANDS}
# By the title of a group. Of a figure of both, the first curve, which is solid, is validation, and training is dashed.
_SCORE_CURVES = "Scores of the validation images"
_CURVES = {
    _SCORE_CURVES: (
        Curves("Boundary F1", "precision and recall of borders, within 1, 3 or 5 px", _F1),
        Curves("IoU", "overlap with the true areas: of all pixels, and near borders alone", _IOUS),
        Curves("Accuracy", "pixels that are right: of all, at edges and off them", _ACCURACY),
    ),
    "The loss and its terms": (
        Curves(
            "Loss",
            "the sum of the terms; where validation rises again, the network overfits",
            ("val/loss", "train/loss"),
        ),
        *(
            Curves(
                f"{name[0].upper()}{name[1:]}",
                "what it adds to the loss, times its weight",
                (f"val/{key}", f"train/{key}"),
                is_weighted=True,
            )
            for key, name in _TERMS.items()
        ),
        Curves(
            "Share of each term in the gradient",
            "which term moves the network, also one that changes little",
            tuple(f"train/gradient_share/{name}" for name in SUMMANDS),
        ),
    ),
    "What drives the training": (
        Curves(
            "Edge terms before the focus",
            "in validation: neighbors of the same class, and of another one",
            tuple(f"val/{term.name}" for term in EDGE_TERMS),
        ),
        Curves(
            "Weight of the edge terms",
            "in the gradient: edge focus falls as edges are learned",
            ("val/edge_focus", "train/edge_focus", "edge_weight"),
        ),
        Curves("Learning rate", "of the optimizer", ("lr",)),
    ),
}
# What the figures of a group mean, as far as their names and its lines leave that open; folded below it.
_NOTES = {
    _SCORE_CURVES: {
        "boundary F1": F1_ABOUT.format("1, 3 or 5"),
        "boundary IoU": "IoU of the bands along borders, as wide as 2 % of the diagonal of the image",
        "boundary IoU, narrow": "the same of bands of 0.5 %, in which little but the borders counts",
    },
    "The loss and its terms": {
        "focused edges": FIGURES["edge_focused"].about,
        "region term": "the part of what the labels say about small regions that the prediction misses, times its"
        " weight: 0 as labeled, 1 unrelated, 2 inverted. It changes little, since it is near 1 until the thinnest parts"
        " are found",
        "share in the gradient": "L2 norm of the gradient of a term times its weight, over the sum of these norms",
    },
    "What drives the training": {
        "edge terms before the focus": "how far the neighbors of an edge pixel miss its class on the same side of the"
        " edge, and take it on across the edge, before well learned edges count less",
        "edge focus": FIGURES["edge_focus"].about,
    },
}
_RECENT = 5  # the last part of a run, which is compared with what was before, is one of so many
_NAMES = {
    **{f"val/{key}": "validation" for key in ("loss", *SUMMANDS)},
    **{f"train/{key}": "training" for key in ("loss", *SUMMANDS)},
    "lr": "learning rate",
    "train/edge_focus": "edge focus, training",
    "val/edge_focus": "edge focus, validation",
    "val/accuracy": "all pixels",
    "val/edge_accuracy": "edge pixels",
    "val/interior_accuracy": "other pixels",
    "val/boundary_iou_narrow": "boundary IoU, narrow",
    "val/trimap_iou_3": "IoU within 3 px of a border",
}
# Name and meaning of the scores that are shown large.
_SCORES = {
    _F1[0]: (FIGURES["boundary_f1_1px"].name, F1_ABOUT.format(1)),
    "val/miou": (FIGURES["mean_iou"].name, FIGURES["mean_iou"].about),
    "val/boundary_iou": ("boundary IoU", "IoU of the bands along borders, 2\N{NO-BREAK SPACE}% of the diagonal wide"),
    "val/edge_accuracy": ("accuracy at edges", "share of the pixels next to another label that are right"),
    "val/accuracy": (FIGURES["pixel_accuracy"].name, FIGURES["pixel_accuracy"].about),
}


def is_share(name: str) -> bool:
    """Return whether a figure of that name is a share, shown in percent."""
    return any(word in name for word in ("iou", "f1", "accuracy", "share", "fraction"))


def shown(name: str, value: float | None) -> str:
    """Return a figure as it is printed."""
    if value is None:
        return "none"
    if name == "lr":
        return f"{value:.1e}".replace("e-0", "e-")
    return shown_number(value, ".1%" if is_share(name) else ".4f")


def best_epoch(history: Sequence[Row], monitor: str = "val/miou", mode: str = "max") -> tuple[str, Row]:
    """Return the metric that is compared, and the figures of the epoch where it is best.

    Args:
        history: figures of each epoch, at least one.
        monitor: name of the metric; ``"val/miou"`` takes its place if no epoch has it.
        mode: ``"max"`` or ``"min"``.

    Returns:
        The name of the metric, and the first of the best epochs, as Lightning's ``ModelCheckpoint`` takes it.

    Example:
        >>> best_epoch([{"epoch": 1, "val/f1": 0.7}, {"epoch": 2, "val/f1": 0.6}], "val/f1")
        ('val/f1', {'epoch': 1, 'val/f1': 0.7})
    """
    name = monitor if any(row.get(monitor) is not None for row in history) else "val/miou"
    sign = -1 if mode == "min" else 1
    return name, max(history, key=lambda row: -math.inf if row.get(name) is None else sign * row[name])


def write_run_page(
    folder: Path,
    history: Sequence[Row],
    classes: Sequence[str],
    worst: Sequence[tuple[str, Arrays, Look]],
    *,
    config: str = "",
    weights: Mapping[str, float] | None = None,
    best: tuple[str, Row] | None = None,
    links: Mapping[str, str] | None = None,
) -> Path:
    """Write ``report.html``.

    Args:
        folder: the run's folder.
        history: figures of each epoch, at least one.
        classes: names of the classes.
        worst: the names of the images of the highest edge loss after the last epoch, their losses, and how to draw
            them, in the order to show.
        config: configuration as text.
        weights: the options of the loss that weight its terms, by name; 1 for others. Times them, the terms add up to
            the loss.
        best: the metric by which an epoch is the best, and the figures of that epoch, those of the run's best
            checkpoint; None for the highest ``val/miou``.
        links: files, from the run's folder, by the text of the link.

    Returns:
        The path of the page.

    Raises:
        ValueError: if there is no epoch.
    """
    if not history:
        raise ValueError("history: expected at least one epoch, but got none")
    metric, chosen = best_epoch(history) if best is None else best
    colors = [to_hex(color) for color in worst[0][2].colors] if worst else []
    tables = _classes(chosen, history[-1], dict(itertools.zip_longest(classes, colors[: len(classes)])))
    curves = _curves(history, weights or {}, {"epoch": chosen["epoch"], "name": f"best {_metric_name(metric)}"})
    scores = [one for one in curves if one["title"] == _SCORE_CURVES]
    parts = [
        _headlines(history, chosen, metric),
        *scores,
        {"kind": "tables", "title": "Classes in validation", "tables": tables},
        *(one for one in curves if one not in scores),
        *_images(worst, chosen, history[-1]),
        pages.folded(config),
    ]
    page = pages.page(
        folder.resolve().name,
        parts,
        kind="run",
        subtitle=_about(history),
        lead=_verdict(history, classes, metric, chosen),
        links=links,
    )
    path = folder / "report.html"
    with atomic_write(path) as file:
        file.write(page.encode())
    return path


def _about(history: Sequence[Row]) -> str:
    """Return how long the run was.

    Example:
        >>> _about([{"epoch": 1, "seconds": 20.0}, {"epoch": 2, "seconds": 14.2}])
        '2 epochs · 34 s of training'
    """
    minutes, seconds = divmod(round(sum(row.get("seconds") or 0.0 for row in history)), 60)
    hours, minutes = divmod(minutes, 60)
    time = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    parts = [f"{history[-1]['epoch']} epochs", f"{time} of training"]
    timed = [(row["seconds"], row["images_per_second"]) for row in history if row.get("images_per_second")]
    if timed:
        parts.append(f"{sum(s * i for s, i in timed) / sum(s for s, _ in timed):.1f} images per second")
    if skipped := round(sum(row.get("skipped") or 0.0 for row in history)):
        parts.append(f"{skipped} steps skipped, not finite")
    return " · ".join(parts)


def _verdict(history: Sequence[Row], classes: Sequence[str], metric: str, best: Row) -> str:
    """Return what the run shows: its last and best epoch, what its last part gained, and its weakest class."""
    last, name, lines = history[-1], _metric_name(metric), []
    measured = [row for row in history if row.get(metric) is not None]
    if len(measured) > 1 and best.get(metric) is not None:
        is_best = best["epoch"] == last["epoch"]
        which = "the last and the best" if is_best else "the last"
        other = "" if is_best else f"; the best is {shown(metric, best[metric])} after epoch {best['epoch']}"
        lines.append(f"After epoch {last['epoch']}, {which}, {name} is {shown(metric, last.get(metric))}{other}.")
        recent = math.ceil(len(measured) / _RECENT)
        mode = "max" if best[metric] == max(row[metric] for row in measured) else "min"
        ends = [best_epoch(part, metric, mode)[1] for part in (measured[:-recent], measured[-recent:])]
        (first, second), form = (row[metric] for row in ends), "%" if is_share(metric) else ""
        gain = shown_change(first, second, form, is_score=mode == "max")
        points = " points" if is_share(metric) else ""
        is_better = gain["tone"] == "better"
        gained = f"{gain['text'].lstrip('+−')}{points}" if is_better else "nothing"
        best_before = f"the best before, {shown(metric, ends[0][metric])} (epoch {ends[0]['epoch']})"
        what = f"The last {recent} epochs" if recent > 1 else "The last epoch"
        lines.append(f"{what} gained {gained} over {best_before}.")
    iou = {one: last[key] for one in classes if last.get(key := f"val/{BY_CLASS[0]}/{one}") is not None}
    return " ".join(filter(None, [*lines, weakest_class(iou, _words(BY_CLASS[0]))]))


def _epochs(best: Row, last: Row) -> dict[str, Row]:
    """Return the last and the best epoch by their titles, or the one that is both."""
    if best["epoch"] == last["epoch"]:
        return {f"epoch {last['epoch']}, the best and the last": last}
    return {f"epoch {last['epoch']}, the last": last, f"epoch {best['epoch']}, the best": best}


def _headlines(history: Sequence[Row], best: Row, metric: str) -> pages.Part:
    """Return the scores after the last epoch, and the best of each where that is another."""
    last = history[-1]
    scores = {key: one for key, one in _SCORES.items() if last.get(key) is not None}
    values = [(name, shown(key, last[key]), about) for key, (name, about) in scores.items()]
    title, changes = next(iter(_epochs(best, last))), {}
    for key, (name, _) in scores.items():
        _, highest = best_epoch(history, key)
        if highest["epoch"] != last["epoch"]:
            text = f"best: {shown(key, highest[key])} after epoch {highest['epoch']}"
            changes[name] = {"text": text, "tone": ""}
    by = f", by {_metric_name(metric)}" if "best" in title else ""
    return pages.tiles(values, title=f"Scores after {title}{by}", changes=changes)


def _curves(history: Sequence[Row], weights: Mapping[str, float], best: Mapping[str, Any]) -> list[pages.Part]:
    """Return the groups of curves to draw; the notes of a group have the figures that never change.

    Args:
        history: figures of each epoch.
        weights: of the terms, by the option.
        best: the best epoch and the name of its mark, in pictures of scores.
    """
    groups: list[pages.Part] = []
    epochs = [row["epoch"] for row in history]
    for group, pictures in _CURVES.items():
        drawn, notes = [], dict(_NOTES[group])
        for title, about, keys, is_weighted in pictures:
            series = []
            for key in keys:
                factor = weights.get(SUMMANDS[_term_of(key)], 1.0) if is_weighted else 1.0
                values = [None if row.get(key) is None else factor * row[key] for row in history]
                measured = [value for value in values if value is not None]
                if len(measured) > 1 and len(set(measured)) == 1:
                    notes[f"{_name(key)}, {title}"] = f"{shown(key, measured[0])} in all epochs, so it is not drawn"
                elif measured:
                    series.append({"name": _name(key), "values": values})
            if series:
                share = _gradient_share(history, _term_of(keys[0])) if is_weighted else ""
                about += f"; {share} of the gradient in the last epoch" * bool(share)
                kind = {"share": is_share(keys[0]), "epochs": epochs}
                mark = best if group == _SCORE_CURVES else None
                drawn.append({"title": title, "about": about, **kind, "best": mark, "series": series})
        if drawn:
            about = _about_region(history, weights) if group == "The loss and its terms" else ""
            groups.append(
                {"kind": "curves", "title": group, "about": about, "curves": drawn, "notes": list(notes.items())}
            )
    if groups:
        groups[0]["about"] = (
            f"Values are those of epoch {epochs[-1]}, the last. Point at a curve, tap it or press the arrow keys, for"
            " those of another epoch. Each axis ends near the lowest and the highest value: most do not begin at 0."
        )
    return groups


def _term_of(key: str) -> str:
    """Return the key of a term without that of its images."""
    return key.rpartition("/")[2]


def _gradient_share(history: Sequence[Row], term: str) -> str:
    """Return the share of a term in the gradient of the last epoch; nothing if that is unknown."""
    share = history[-1].get(f"train/gradient_share/{term}")
    return "" if share is None else shown("share", share)


def _about_region(history: Sequence[Row], weights: Mapping[str, float]) -> str:
    """Return what to read off the curve of the region term; nothing without the term."""
    values = [row["train/region"] for row in history if row.get("train/region") is not None]
    weight, loss = weights.get(SUMMANDS["region"], 1.0), history[-1].get("train/loss")
    if not any(values) or not weight:
        return ""
    first, last = (f"{weight * value:.3g}" for value in (values[0], values[-1]))
    of_loss = "" if loss is None else f", of a training loss of {loss:.3g}"
    share = _gradient_share(history, "region")
    moves = f" Its influence on the network is its share in the gradient, {share} in the last epoch." * bool(share)
    return (
        f"The region term is {first} at first and {last} in the end{of_loss}: it stays near its weight of {weight:g}"
        f" until the thinnest parts are found.{moves}"
    )


def _classes(best: Row, last: Row, classes: Mapping[str, str | None]) -> list[pages.Part]:
    """Return the scores of each class after the last and the best epoch; classes have names and, if known, colors."""
    tables = []
    for title, row in _epochs(best, last).items():
        kinds = [kind for kind in BY_CLASS if any(f"val/{kind}/{name}" in row for name in classes)]
        lines = [
            ([name, color] if color else name, *(_percent(row.get(f"val/{kind}/{name}")) for kind in kinds))
            for name, color in classes.items()
        ]
        means = (_percent(row.get("val/miou" if kind == "iou" else f"val/{kind}")) for kind in kinds)
        head = ("class", *(_words(kind) for kind in kinds))
        label = f"Scores per class in {title}"
        tables.append(pages.table(head, lines, label=label, foot=("mean", *means), title=title, has_bars=True))
    return tables


def _images(worst: Sequence[tuple[str, Arrays, Look]], best: Row, last: Row) -> list[pages.Part]:
    """Return the pictures of the images."""
    if not worst:
        return []
    rows, side = [], side_for(2 * len(worst))
    maps = _maps([arrays for _, arrays, _ in worst])
    for (name, arrays, look), colored in zip(worst, maps, strict=True):
        figures = shown_figures(arrays.figures)
        line = " · ".join(f"{key} {figures[key]}" for key in ("edge loss", "cross-entropy", "mean IoU"))
        image = None if look.images is None else look.images[0]
        rows.append(
            {
                "name": name,
                "about": line,
                "photo": photograph(image, side),
                "figures": _pictures(arrays, look, image, side, colored),
            }
        )
    which = "the best and the last" if best["epoch"] == last["epoch"] else f"the last; the best is {best['epoch']}"
    text = (
        f"As the network of epoch {last['epoch']} sees them, {which}. The highest edge loss comes first, and the colors"
        " of a map mean the same in all images. The gradient of the region term comes in blocks of 3 × 3 pixels, which"
        " begin one pixel outside of the image; the last pixels of a row or column may have none. Press a picture to"
        " enlarge it; then the arrow keys or a swipe show the next."
    )
    _, _, look = worst[0]
    colors = {name: to_hex(color) for name, color in zip(look.names, look.colors, strict=False)}
    others = {
        "wrong": (WRONG, True),
        "ignored": (VOID, any((arrays.target < 0).any() for _, arrays, _ in worst)),
        "no edge, zero gradient": (NOTHING, any(one.nothing.any() for colored in maps for one in colored)),
        "not finite": (LOUD, any(one.failed[0] for colored in maps for one in colored)),
    }
    colors |= {name: to_hex(color) for name, (color, occurs) in others.items() if occurs}
    key = [[name, color] for name, color in colors.items()]
    title = "The validation images of the highest edge loss"
    return [{"kind": "figures", "title": title, "text": text, "key": key, "columns": 4, "rows": rows}]


def _maps(images: Sequence[Arrays]) -> list[list[ColoredMap]]:
    """Return the maps of each image, in colors that all images share."""
    maps = [color_maps(arrays, MAPS) for arrays in images]
    wide = [shared_range([image[k] for image in maps]) for k in range(len(maps[0]))]
    return [[one._replace(**ends) for one, ends in zip(image, wide, strict=True)] for image in maps]


def _pictures(arrays: Arrays, look: Look, image: Rgb | None, side: int, maps: Sequence[ColoredMap]) -> list[pages.Part]:
    """Return the pictures of an image: in rows of four labels, then losses."""
    truth, prediction = arrays.target[0], arrays.prediction[0]
    return [
        photo_picture(image, truth.shape),
        picture(picture_of_labels(truth, look.colors), side, "ground truth"),
        picture(labels_picture(truth, prediction, look.colors), side, "prediction"),
        picture(error_overlay(truth, prediction, on_photo=image is not None), side, "wrong pixels", base="gray"),
        *(_map_picture(colored, truth.shape, side) for colored in maps),
    ]


def _map_picture(colored: ColoredMap, shape: Sequence[int], side: int) -> pages.Part:
    drawn = picture(map_to_rgb(colored, 0, shrunk(shape, side)), side, colored.kind.name, about=colored.kind.about)
    return drawn | {"bar": pages.color_bar(*colored.ends) if colored.has_bar else None, "is_extra": True}


def _name(key: str) -> str:
    """Return how a figure is named."""
    return _NAMES.get(key, _words(key.rpartition("/")[2]))


def _metric_name(metric: str) -> str:
    """Return the name of a metric of the validation images."""
    return _words(metric.rpartition("/")[2])


def _words(name: str) -> str:
    """Return the name of a figure in words."""
    if name in FIGURES:
        return FIGURES[name].name
    words = re.sub(r" (\d+)$", r" (\1 px)", name.replace("_", " ").replace("miou", "mean iou"))
    for before, after in {"cross entropy": "cross-entropy", "iou": "IoU", "f1": "F1"}.items():
        words = words.replace(before, after)
    return words


def _percent(value: float | None) -> str:
    return shown_score(math.nan if value is None else value, ".1%")
