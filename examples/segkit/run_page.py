"""A page about a run: curves, scores per class, and the worst images. One file that needs no network."""

from __future__ import annotations

import html
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from omegaconf import OmegaConf

from edgeloss.io import atomic_write
from edgeloss.viz import pages
from segkit.console import Row, is_share, shown
from segkit.scores import BY_CLASS, ImageFigures

_TERMS = ("cross_entropy", "same_side", "other_side", "false_edge")

# Titles of the pictures, and the figures that each shows if the run has them.
_CURVES = (
    ("Loss", ("train/loss", "val/loss")),
    ("Terms in training", tuple(f"train/{name}" for name in _TERMS)),
    ("Terms in validation", tuple(f"val/{name}" for name in _TERMS)),
    (
        "IoU in validation",
        tuple(f"val/{name}" for name in ("miou", "boundary_iou", "boundary_iou_narrow", "trimap_iou_3")),
    ),
    ("Boundary F1 in validation", tuple(f"val/boundary_f1_{radius}" for radius in (1, 3, 5))),
    ("Accuracy in validation", tuple(f"val/{name}" for name in ("accuracy", "edge_accuracy", "interior_accuracy"))),
    ("Share of each term in the gradient", tuple(f"train/gradient_share/{name}" for name in _TERMS)),
    ("Learning rate", ("lr",)),
    ("Weight of the edge terms", ("edge_weight",)),
    ("Images a second", ("images_per_second",)),
)
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito's
_CSS = """
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 8px 20px; }
.tables { display: flex; flex-wrap: wrap; gap: 8px 60px; }
h3, figcaption { font-size: 13px; margin: 6px 0 2px; }
.worst { display: grid; grid-template-columns: repeat(auto-fill, minmax(560px, 1fr)); gap: 16px 20px; }
figure { margin: 0; }
figcaption { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
figure img { width: 100%; height: auto; }
pre { overflow-x: auto; }
"""
_DPI = 110  # of the pictures, which are for a screen


def write_run_page(
    folder: Path,
    history: Sequence[Row],
    classes: Sequence[str],
    worst: Sequence[tuple[ImageFigures, Figure]],
    *,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``report.html``.

    Args:
        folder: the run's folder.
        history: figures of each epoch, at least one, as in `segkit.run_files.RunFiles`.
        classes: names of the classes.
        worst: the worst images with their panels, in the order to show.
        config: configuration, shown as YAML.

    Returns:
        The path of the page.

    Raises:
        ValueError: if there is no epoch.
    """
    if not history:
        raise ValueError("history: expected at least one epoch, but got none")
    best = max(history, key=lambda row: -1.0 if (miou := row.get("val/miou")) is None else miou)  # the first of equals
    curves = {title: names for title, keys in _CURVES if (names := [key for key in keys if _has(history, key)])}
    cells = "".join(f'<div><h3>{title}</h3><div id="curve-{k}"></div></div>' for k, title in enumerate(curves))
    page = pages.page(
        title=f"Run {folder.resolve().name}",
        header=f'<p class="figures">{_about(history, best)}</p>',
        body=f'<main><section class="curves">{cells}</section>'
        f"<section><h2>Classes in validation</h2>{_classes(best, history[-1], classes)}</section>"
        f"{_images(worst)}{_configuration(config)}</main>",
        footer=f"edgeloss {html.escape(version('edgeloss'))} · drawn by Plotly · drag to zoom, double-click to see all",
        data={"figures": {f"curve-{k}": _curve(history, names) for k, names in enumerate(curves.values())}},
        css=_CSS,
    )
    path = folder / "report.html"
    with atomic_write(path) as file:
        file.write(page.encode())
    return path


def _has(history: Sequence[Row], key: str) -> bool:
    return any(row.get(key) is not None for row in history)


def _about(history: Sequence[Row], best: Row) -> str:
    """Return the line below the title."""
    seconds = timedelta(seconds=round(sum(row.get("seconds") or 0.0 for row in history)))
    skipped = round(sum(row.get("skipped") or 0.0 for row in history))
    parts = [
        f"{history[-1]['epoch']} epochs in {seconds} hours",
        f"best mean IoU {shown('miou', best.get('val/miou'))} in epoch {best['epoch']}",
        f"last {shown('miou', history[-1].get('val/miou'))}",
    ]
    if skipped:
        parts.append(f"{skipped} steps skipped, whose loss or gradient was not finite")
    return html.escape(" · ".join(parts))


def _curve(history: Sequence[Row], keys: Sequence[str]) -> dict[str, Any]:
    """Return a picture as JSON for Plotly."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for key, color in zip(keys, _COLORS, strict=False):
        split, _, name = key.rpartition("/")
        figure.add_scatter(
            x=[row["epoch"] for row in history],
            y=[row.get(key) for row in history],
            name=split if keys[0] == "train/loss" else _words(name),
            mode="lines+markers",
            marker={"size": 4},
            line={"color": color, "width": 1.5},
        )
    figure.update_layout(
        template="plotly_white",
        height=250,
        margin={"l": 55, "r": 40, "t": 8, "b": 40},
        modebar={"orientation": "v", "bgcolor": "rgba(0,0,0,0)"},
        showlegend=len(keys) > 1,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="x unified",
    )
    figure.update_xaxes(title_text="epoch", dtick=1 if len(history) <= 10 else None)  # no ticks between epochs
    tick_format, hover_format = (".0%", ".1%") if is_share(keys[0]) else (None, ".4g")
    figure.update_yaxes(rangemode="tozero", tickformat=tick_format, hoverformat=hover_format)
    plotly: dict[str, Any] = json.loads(str(figure.to_json()))
    return plotly


def _classes(best: Row, last: Row, classes: Sequence[str]) -> str:
    """Return the scores of each class after the best and the last epoch."""
    epochs = {f"epoch {best['epoch']}, the best": best, f"epoch {last['epoch']}, the last": last}
    if best["epoch"] == last["epoch"]:
        epochs = {f"epoch {last['epoch']}, best and last": last}
    tables = ""
    for title, row in epochs.items():
        kinds = [kind for kind in BY_CLASS if any(f"val/{kind}/{name}" in row for name in classes)]
        lines = [(html.escape(name), *(_percent(row.get(f"val/{kind}/{name}")) for kind in kinds)) for name in classes]
        means = (_percent(row.get("val/miou" if kind == "iou" else f"val/{kind}")) for kind in kinds)
        head = ("class", *(_words(kind) for kind in kinds))
        tables += f"<div><h3>{title}</h3>{pages.table(head, [*lines, ('<b>mean</b>', *means)])}</div>"
    return f'<div class="tables">{tables}</div>'


def _images(worst: Sequence[tuple[ImageFigures, Figure]]) -> str:
    """Return the images with their panels."""
    if not worst:
        return ""
    parts = []
    for image, panel in worst:
        file = io.BytesIO()
        panel.savefig(file, format="jpeg", dpi=_DPI, pil_kwargs={"quality": 85})
        name = html.escape(image.name)
        line = f"edge loss {image.edge:.4g} · cross-entropy {image.cross_entropy:.4g} · mean IoU {_percent(image.miou)}"
        source = pages.data_uri(file.getvalue(), "jpeg")
        parts.append(
            f"<figure><figcaption><b>{name}</b><br>{line}</figcaption>"
            f'<img src="{source}" alt="{name}" loading="lazy"></figure>'
        )
    title = "The validation images of the highest edge loss, after the last epoch"
    return f'<section><h2>{title}</h2><div class="worst">{"".join(parts)}</div></section>'


def _configuration(config: Mapping[str, Any] | None) -> str:
    if config is None:
        return ""
    text = html.escape(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
    return f"<section><details><summary>Configuration</summary><pre>{text}</pre></details></section>"


def _words(name: str) -> str:
    """Return the name of a figure in words."""
    words = re.sub(r" (\d+)$", r", \1 px", name.replace("_", " ").replace("miou", "mean iou"))
    return words.replace("iou", "IoU").replace("f1", "F1")


def _percent(value: float | None) -> str:
    return pages.cell(math.nan if value is None else value, ".1%")
