"""HTML pages that are one file each, and fetch nothing: what they all share."""

from __future__ import annotations

import base64
import functools
import html
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from string import Template
from typing import Any


def page(
    *,
    title: str,
    header: str,
    body: str,
    footer: str,
    data: Mapping[str, Any],
    css: str = "",
    script: str = "begin();",
) -> str:
    """A page with Plotly's script in it, packed, and a policy that forbids the browser to fetch anything.

    Args:
        title: the page's; escaped here.
        header: HTML below the title, escaped by the caller, as are body and footer.
        body: the page's own part.
        footer: its last line.
        data: what the script finds as ``data``. ``figures``, if it is there, are Plotly figures, {"data", "layout"} by
            the ``id`` of the element they are drawn in.
        css: on top of what all pages have.
        script: runs after ``page.js``; it has to call its ``begin``.

    Returns:
        The page, to be written as UTF-8.
    """
    return Template(asset("page.html")).substitute(
        title=html.escape(title),
        header=header,
        body=body,
        footer=footer,
        css=asset("page.css") + css,
        # "<" would end the script early; JSON has another way to write it.
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        library=library(),
        script=asset("page.js") + script,
    )


def asset(name: str) -> str:
    """A file of the folder ``page``."""
    return (files("edgeloss.viz") / "page" / name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=1)
def library() -> str:
    """Plotly's script, packed: a third of its size."""
    import plotly.offline

    return base64.b64encode(zlib.compress(plotly.offline.get_plotlyjs().encode(), 9)).decode()


def data_uri(content: bytes, kind: str) -> str:
    """A picture, ``kind`` png or jpeg, as the source of an image within the page."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """An HTML table of cells that are HTML."""
    lines = "".join(_row(row, "td") for row in rows)
    return f"<table><thead>{_row(head, 'th')}</thead><tbody>{lines}</tbody></table>"


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def cell(value: float, form: str) -> str:
    """A number, or a dash for nan."""
    return "–" if math.isnan(value) else format(value, form)
