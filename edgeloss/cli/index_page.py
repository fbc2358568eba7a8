"""The index of the pages of a folder, as one HTML file: thumbnails to sort and filter."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgeloss.cli.messages import printable
from edgeloss.cli.tables import mean_of_present

# Figures of an image with their names and formats, in the order of the menu.
_FIGURES = {
    "edge": ("edge loss", ".4f"),
    "mean IoU": ("mean IoU", ".1%"),
    "boundary F1": ("boundary F1", ".1%"),
    "pixel accuracy": ("pixel accuracy", ".1%"),
    "cross_entropy": ("cross-entropy", ".4f"),
    "same_side": ("same side", ".4f"),
    "other_side": ("other side", ".4f"),
    "region": ("region", ".4f"),
    "edge_fraction": ("edge pixels", ".1%"),
}


class IndexRow(NamedTuple):
    """A page in the index.

    Attributes:
        page: the name of its file.
        thumbnail: a JPEG.
        figures: terms of the loss and scores, by name.
        iou: of each class, nan for a class that does not occur.
    """

    page: str
    thumbnail: bytes
    figures: Mapping[str, float]
    iou: Sequence[float]


def index_page(rows: Sequence[IndexRow], names: Sequence[str] | None = None) -> str:
    """Return an HTML page that links to all others, highest edge loss first; it loads nothing else.

    Args:
        rows: the pages.
        names: of the classes; their indices if None.
    """
    from edgeloss.viz import pages

    def highest_first(row: IndexRow) -> tuple[float, str]:
        edge = row.figures["edge"]
        return -edge if math.isfinite(edge) else -math.inf, row.page

    rows = sorted(rows, key=highest_first)
    classes = max(len(row.iou) for row in rows)
    names = [str(k) for k in range(classes)] if names is None else names
    figures = {key: name for key, (name, _) in _FIGURES.items() if key in rows[0].figures}
    menu = [f'<option value="{key}">{name}</option>' for key, name in figures.items()]
    present = [k for k in range(classes) if any(not math.isnan(_iou(row, k)) for row in rows)]
    options = [f'<option value="{k}">{html.escape(names[k])}</option>' for k in present]
    averages = {
        f"{figures[key]}, average": pages.cell(mean_of_present([row.figures[key] for row in rows]), _FIGURES[key][1])
        for key in ("edge", "mean IoU", "boundary F1")
    }
    return pages.page(
        title=f"edgeloss: {len(rows)} images",
        header=pages.tiles({"images": str(len(rows)), **averages}),
        body=f'<div class="toolbar"><label>Sort by <select id="sort">{"".join(menu)}<option value="name">name</option>'
        '</select></label> <button id="order" aria-pressed="false">Reverse</button> '
        '<label>Class <select id="class"><option value="">all classes</option>'
        f'{"".join(options)}</select></label> <label>Name <input id="search" type="search" size="14"></label>'
        '<span id="count" role="status"></span></div>'
        f'<ul id="gallery">{"".join(map(_card, rows))}</ul>',
        footer="thumbnails show wrong pixels in red",
        data={"rows": [_data(row) for row in rows]},
        css=["index.css"],
        scripts=["index.js"],
    )


def _iou(row: IndexRow, label: int) -> float:
    return row.iou[label] if label < len(row.iou) else math.nan


def _data(row: IndexRow) -> dict[str, Any]:
    """Return what the page sorts by: null for what is not finite."""

    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    figures = {key: known(value) for key, value in row.figures.items()}
    return {"name": _name(row), "figures": figures, "iou": [known(value) for value in row.iou]}


def _name(row: IndexRow) -> str:
    return printable(Path(row.page).stem)


def _card(row: IndexRow) -> str:
    from edgeloss.viz import pages
    from edgeloss.viz.packing import data_uri

    lines = "".join(
        f"<div><dt>{name}</dt><dd>{pages.cell(row.figures[key], form)}</dd></div>"
        for key, (name, form) in _FIGURES.items()
        if key in row.figures
    )
    return (
        f'<li class="card"><a href="{pages.file_link(row.page)}">'
        f'<img src="{data_uri(row.thumbnail, "jpeg")}" alt="" loading="lazy">'
        f"<strong>{html.escape(_name(row))}</strong></a><dl>{lines}</dl></li>"
    )
