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

Part = dict[str, Any]  # what a page shows, by its "kind": the name of a function of page/*.js that draws it
_STYLES = ("base.css", "viewer.css")
# Those that follow page.js find its elements.
_SCRIPTS = ["base", "parts", "curves", "gallery", "page", "data", "drawing", "views", "sidebar", "filters", "viewer"]
_SPECIAL = {"void": VOID, "loud": LOUD, "nothing": NOTHING, "right": RIGHT, "wrong": WRONG}


def page(
    title: str, parts: Iterable[Part], *, subtitle: str = "", links: Mapping[str, str] | None = None, footer: str = ""
) -> str:
    """Return a page, with a policy that forbids the browser to load anything.

    All text is data, which the page inserts as text: nothing needs to be escaped.

    Args:
        title: of the page.
        parts: see the functions below, and :mod:`edgeloss.viz.report`.
        subtitle: below the title.
        links: files next to the page, by the text of the link.
        footer: the last line, after the name and version of the package.

    Returns:
        The page, to be written as UTF-8.

    Example:
        >>> html = page("a < b", [{"kind": "note", "text": "<p>"}])
        >>> "<title>a &lt; b</title>" in html, "<p>" in html
        (True, False)
    """
    data = {
        "title": title,
        "subtitle": subtitle,
        "links": [[text, file_link(name)] for text, name in (links or {}).items()],
        "parts": list(parts),
        "footer": " · ".join(filter(None, (f"edgeloss {version('edgeloss')}", footer))),
        "codes": {code.name: code.value for code in Code},
        "special": {name: to_hex(color) for name, color in _SPECIAL.items()},
        "scale": [to_hex(color) for color in CMAP(np.arange(CMAP.N))],
    }
    return Template(asset("page.html")).substitute(
        title=html.escape(title),
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


def finite(value: float) -> float | None:
    """Return a number as data, None for what is not finite."""
    return float(value) if math.isfinite(value) else None


def tiles(values: Mapping[str, str], title: str = "", changes: Mapping[str, str] | None = None) -> Part:
    """Return headline figures, by name, and how much they changed."""
    return {"kind": "tiles", "title": title, "values": list(values.items()), "changes": dict(changes or {})}


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, label: str, foot: Sequence[str] | None = None) -> Part:
    """Return a table that its columns sort; a cell is text, or the first of a row a list of a name and its color."""
    return {"kind": "table", "head": list(head), "rows": list(rows), "label": label, "foot": foot}


def figure(picture: bytes, caption: str = "", **more: Any) -> Part:  # noqa: ANN401
    """Return a JPEG with its caption, and with ``name``, ``id`` and ``alt``, if it has any."""
    return {"source": data_uri(picture), "caption": caption, **more}
