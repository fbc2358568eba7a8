"""A page about a run: curves, scores per class, and the worst images. One file that needs no network."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from edgeloss.io import atomic_write
from edgeloss.viz import pages
from edgeloss.viz.arrays import Arrays
from edgeloss.viz.coloring import Look, error_picture
from edgeloss.viz.panel import draw_panel
from edgeloss.viz.scores import shown as shown_number
from edgeloss.viz.scores import shown_figures, small_jpeg

Row = Mapping[str, Any]  # the figures of one epoch: numbers, or None
BY_CLASS = ("iou", "boundary_iou", "boundary_f1_1")  # scores that are shown per class too
_F1 = ("val/boundary_f1_1", "val/boundary_f1_3", "val/boundary_f1_5")
_TERMS = ("cross_entropy", "edge_focused", "region")  # that add up to the loss

# Titles of the pictures, and the figures that each shows if the run has them.
_CURVES = (
    ("Loss", ("train/loss", "val/loss")),
    ("Terms in training, times their weights", tuple(f"train/{name}" for name in _TERMS)),
    ("Terms in validation, times their weights", tuple(f"val/{name}" for name in _TERMS)),
    ("Edge terms in validation, before the focus", ("val/same_side", "val/other_side")),
    ("IoU in validation", ("val/miou", "val/boundary_iou", "val/boundary_iou_narrow", "val/trimap_iou_3")),
    ("Boundary F1 in validation", _F1),
    ("Accuracy in validation", ("val/accuracy", "val/edge_accuracy", "val/interior_accuracy")),
    (
        "Share of each term in the gradient",
        tuple(f"train/gradient_share/{name}" for name in ("cross_entropy", "edge", "region")),
    ),
    ("Learning rate", ("lr",)),
    ("Weight of the edge terms", ("edge_weight", "train/edge_focus", "val/edge_focus")),
)
_NAMES = {
    "train/loss": "training, mean of the steps",
    "val/loss": "validation, after the epoch",
    "lr": "learning rate",
}
_DPI = 110  # of the pictures, which are for a screen


def is_share(name: str) -> bool:
    """Return whether a figure of that name is a share, shown in percent."""
    return any(word in name for word in ("iou", "f1", "accuracy", "share", "fraction"))


def shown(name: str, value: float | None) -> str:
    """Return a figure as it is printed."""
    if value is None:
        return "none"
    if name == "lr":
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.1%}" if is_share(name) else f"{value:.4f}"


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
) -> Path:
    """Write ``report.html``.

    Args:
        folder: the run's folder.
        history: figures of each epoch, at least one.
        classes: names of the classes.
        worst: the names of the worst images, their losses, and how to draw them, in the order to show.
        config: configuration as text.
        weights: of the terms in the loss, by name; all 1 if None. Times them, the terms add up to the loss.
        best: the metric by which an epoch is the best, and the figures of that epoch, those of the run's best
            checkpoint; None for the highest ``val/miou``.

    Returns:
        The path of the page.

    Raises:
        ValueError: if there is no epoch.
    """
    if not history:
        raise ValueError("history: expected at least one epoch, but got none")
    metric, chosen = best_epoch(history) if best is None else best
    curves, constant = _curves(history, weights or {})
    parts = [
        _about(history, chosen, metric),
        {"kind": "curves", "curves": curves},
        {"kind": "note", "text": f"Constant, and not drawn: {'; '.join(constant)}." if constant else ""},
        {"kind": "tables", "title": "Classes in validation", "tables": _classes(chosen, history[-1], classes)},
        *_images(worst),
        {"kind": "folded", "title": "Configuration", "text": config},
    ]
    page = pages.page(
        f"Run {folder.resolve().name}",
        parts,
        footer="point at a curve, or press the arrow keys, to read the values of an epoch",
    )
    path = folder / "report.html"
    with atomic_write(path) as file:
        file.write(page.encode())
    return path


def _about(history: Sequence[Row], best: Row, metric: str) -> pages.Part:
    """Return the headline figures; scores are those of the best epoch unless they say otherwise."""
    seconds = timedelta(seconds=round(sum(row.get("seconds") or 0.0 for row in history)))
    skipped = round(sum(row.get("skipped") or 0.0 for row in history))
    values = {
        "epochs": str(history[-1]["epoch"]),
        "training time": str(seconds),
        f"best epoch, by {_words(metric.rpartition('/')[2])}": str(best["epoch"]),
        "its mean IoU": shown("miou", best.get("val/miou")),
        "last mean IoU": shown("miou", history[-1].get("val/miou")),
    }
    timed = [(row["seconds"], row["images_per_second"]) for row in history if row.get("images_per_second")]
    if timed:
        values["images per second"] = f"{sum(s * i for s, i in timed) / sum(s for s, _ in timed):.1f}"
    f1 = {f"its {_words(key[4:])}": shown(key, best[key]) for key in _F1 if best.get(key) is not None}
    return pages.tiles(values | f1 | ({"skipped steps, not finite": str(skipped)} if skipped else {}))


def _curves(history: Sequence[Row], weights: Mapping[str, float]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the curves to draw, and the names and values of those that never change."""
    drawn, constant = [], []
    for title, keys in _CURVES:
        is_weighted, series = keys[0].endswith("/cross_entropy") and "share" not in keys[0], []
        for key in keys:
            name = key.rpartition("/")[2]
            factor = weights.get(name, 1.0) if is_weighted else 1.0
            values = [None if row.get(key) is None else factor * row[key] for row in history]
            measured = [value for value in values if value is not None]
            name = _NAMES.get(key, _words(name))
            if len(measured) > 1 and len(set(measured)) == 1:
                constant.append(f"{title}, {name}: {shown(key, measured[0])}")
            elif measured:
                series.append({"name": name, "values": values})
        if series:
            epochs = [row["epoch"] for row in history]
            kind = {"share": is_share(keys[0]), "log": is_weighted}
            drawn.append({"title": title, **kind, "epochs": epochs, "series": series})
    return drawn, constant


def _classes(best: Row, last: Row, classes: Sequence[str]) -> list[pages.Part]:
    """Return the scores of each class after the best and the last epoch."""
    epochs = {f"epoch {best['epoch']}, the best": best, f"epoch {last['epoch']}, the last": last}
    if best["epoch"] == last["epoch"]:
        epochs = {f"epoch {last['epoch']}, best and last": last}
    tables = []
    for title, row in epochs.items():
        kinds = [kind for kind in BY_CLASS if any(f"val/{kind}/{name}" in row for name in classes)]
        lines = [(name, *(_percent(row.get(f"val/{kind}/{name}")) for kind in kinds)) for name in classes]
        means = (_percent(row.get("val/miou" if kind == "iou" else f"val/{kind}")) for kind in kinds)
        head = ("class", *(_words(kind) for kind in kinds))
        table = pages.table(head, lines, label=f"Scores per class in {title}", foot=("mean", *means))
        tables.append(table | {"title": title})
    return tables


def _images(worst: Sequence[tuple[str, Arrays, Look]]) -> list[pages.Part]:
    """Return the images as thumbnails that lead to their panels."""
    if not worst:
        return []
    panels, cards = [], []
    for at, (name, arrays, look) in enumerate(worst):
        panel, file = draw_panel(arrays, look, terms=False, contours=True, width=None), io.BytesIO()
        panel.savefig(file, format="jpeg", dpi=_DPI, pil_kwargs={"quality": 85})
        figures = shown_figures(arrays.figures)
        line = " · ".join(f"{key} {figures[key]}" for key in ("edge loss", "cross-entropy", "mean IoU"))
        width, height = (round(_DPI * inches) for inches in panel.get_size_inches())
        about = {"name": name, "id": f"worst-{at}", "alt": f"Maps of {name}"}
        panels.append(pages.figure(file.getvalue(), line, width=width, height=height, **about))
        errors = error_picture(arrays.target[0], arrays.prediction[0], None if look.images is None else look.images[0])
        thumbnail, lines = pages.figure(small_jpeg(errors)), [("mean IoU", figures["mean IoU"])]
        cards.append({"name": name, "link": f"#worst-{at}", "figures": [thumbnail], "lines": lines})
    title = "The validation images of the highest edge loss, after the last epoch"
    hint = "Wrong pixels are red. Press a picture to see its maps."
    maps = {"kind": "figures", "title": "Their maps", "text": "", "rows": [{"figures": panels}], "wide": True}
    return [{"kind": "gallery", "title": title, "text": hint, "items": cards}, maps]


def _words(name: str) -> str:
    """Return the name of a figure in words."""
    words = re.sub(r" (\d+)$", r", \1 px", name.replace("_", " ").replace("miou", "mean iou"))
    for before, after in {"cross entropy": "cross-entropy", "iou": "IoU", "f1": "F1"}.items():
        words = words.replace(before, after)
    return words


def _percent(value: float | None) -> str:
    return shown_number(math.nan if value is None else value, ".1%")
