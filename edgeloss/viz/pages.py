"""Parts, as data → a self-contained HTML page, which draws them: one file, without network access."""

from __future__ import annotations

import base64
import html
import json
import math
import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from edgeloss.viz.coloring import CMAP
from edgeloss.viz.packing import Code
from edgeloss.viz.palette import LOUD, NOTHING, RIGHT, VOID, WRONG
from edgeloss.viz.scores import HEADLINES, about_figures, shown_figures

Part = dict[str, Any]  # what a page shows, by its "kind": the name of a function of page/*.js that draws it
_STYLES = ("base.css", "viewer.css")
# Those that follow page.js find its elements.
_SCRIPTS = ["base", "parts", "enlarge", "curves", "gallery", "page"]
_SCRIPTS += ["data", "drawing", "views", "sidebar", "filters", "viewer"]
_SPECIAL = {"void": VOID, "loud": LOUD, "nothing": NOTHING, "right": RIGHT, "wrong": WRONG}


def page(
    title: str,
    parts: Iterable[Part],
    *,
    kind: str = "",
    subtitle: str = "",
    lead: str = "",
    links: Mapping[str, str] | None = None,
    footer: str = "",
) -> str:
    """Return a page, with a policy that forbids the browser to load anything.

    All text is data, which the page inserts as text: nothing needs to be escaped.

    Args:
        title: of the page.
        parts: see the functions below, and :mod:`edgeloss.viz.report`.
        kind: of the page, such as "report": above the title, and after it in the name of the window.
        subtitle: below the title.
        lead: what the page shows, in a sentence or two.
        links: files next to the page, by the text of the link.
        footer: the last line, after the name and version of the package.

    Returns:
        The page, to be written as UTF-8.

    Example:
        >>> html = page("a < b", [{"kind": "note", "text": "<p>"}], kind="report")
        >>> "<title>a &lt; b · edgeloss report</title>" in html, "<p>" in html
        (True, False)
    """
    kind = f"edgeloss {kind}".strip()
    data = {
        "title": title,
        "kind": kind,
        "subtitle": subtitle,
        "lead": lead,
        "links": [[text, file_link(name)] for text, name in (links or {}).items()],
        "parts": list(parts),
        "footer": " · ".join(filter(None, (f"edgeloss {version('edgeloss')}", footer))),
        "codes": {code.name: code.value for code in Code},
        "special": {name: to_hex(color) for name, color in _SPECIAL.items()},
        "scale": [to_hex(color) for color in CMAP(np.arange(CMAP.N))],
    }
    return Template(asset("page.html")).substitute(
        title=html.escape(title if title.startswith(kind) else f"{title} · {kind}"),
        css="".join(map(asset, _STYLES)),
        # A "<" could end the script element early.
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        script="\n".join(asset(f"{name}.js") for name in _SCRIPTS),
    )


def asset(name: str) -> str:
    """Return a file of the folder ``page``."""
    return (files("edgeloss.viz") / "page" / name).read_text(encoding="utf-8")


def file_link(name: str) -> str:
    """Return the link to a file in the folder of the page."""
    # "./" keeps a browser from reading a name with a colon as a URL scheme. A name may have bytes that are no UTF-8.
    return f"./{urllib.parse.quote(os.fsencode(name))}"


def data_uri(content: bytes, kind: str = "jpeg") -> str:
    """Return a picture, ``kind`` png or jpeg, as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def folded(text: str, title: str = "Configuration") -> Part:
    """Return text that is shown when its title is pressed; nothing without text."""
    return {"kind": "folded", "title": title, "text": text}


def color_bar(low: str, high: str, colors: Sequence[str] | None = None) -> Part:
    """Return the color bar of a picture: its ends, and its colors if they are not those of maps."""
    return {"low": low, "high": high, "colors": colors}


def finite(value: float) -> float | None:
    """Return a number as data, None for what is not finite."""
    return float(value) if math.isfinite(value) else None


def tiles(
    values: Iterable[tuple[str, str, str]],
    *,
    title: str = "",
    changes: Mapping[str, Part] | None = None,
    about: str = "",
    more: Iterable[tuple[str, str, str]] = (),
) -> Part:
    """Return headline figures.

    Args:
        values: name, value and what it is, in a line; of those that are shown large.
        title: of the group.
        changes: how much some of them changed, by name, as :func:`edgeloss.viz.scores.shown_change` returns it.
        about: a line about all; it is folded, too, where there are folded figures.
        more: figures that are folded, in the form of the values.
    """
    return {
        "kind": "tiles",
        "title": title,
        "values": list(values),
        "changes": dict(changes or {}),
        "about": about,
        "more": list(more),
    }


def figure_tiles(figures: Mapping[str, float], classes: int, *, about: str = "") -> Part:
    """Return the figures of an image by key of :data:`edgeloss.viz.scores.FIGURES`, all but the first ones folded."""
    abouts = about_figures(classes)
    shown = [(name, value, abouts[name]) for name, value in shown_figures(figures).items()]
    return tiles(shown[:HEADLINES], about=about, more=shown[HEADLINES:])


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    label: str,
    foot: Sequence[Any] | None = None,
    title: str = "",
    notes: Mapping[str, str] | None = None,
    has_bars: bool = False,
) -> Part:
    """Return a table that its columns sort.

    A cell is text, a change as :func:`edgeloss.viz.scores.shown_change` returns it, or the first of a row a list of a
    name and its color. The notes are lines below the table: what its names mean. With ``has_bars``, cells in percent
    have a bar of that length.
    """
    return {
        "kind": "table",
        "title": title,
        "head": list(head),
        "rows": list(rows),
        "label": label,
        "foot": foot,
        "notes": list((notes or {}).items()),
        "bars": has_bars,
    }
