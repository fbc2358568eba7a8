"""Self-contained HTML pages: one file each, without network access."""

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
    """Return a page that contains Plotly, compressed, and a policy that forbids the browser to load anything.

    Args:
        title: of the page; escaped here.
        header: HTML below the title, escaped by the caller, as are body and footer.
        body: HTML.
        footer: HTML of the last line.
        data: available to the script as ``data``. Its ``figures``, if any, are Plotly figures, {"data", "layout"} by
            the ``id`` of the element to draw them in.
        css: appended to the style of all pages.
        script: runs after ``page.js``; it must call ``begin``.

    Returns:
        The page, to be written as UTF-8.

    Example:
        >>> html = page(title="a < b", header="", body="<main></main>", footer="", data={})
        >>> "<title>a &lt; b</title>" in html
        True
    """
    return Template(asset("page.html")).substitute(
        title=html.escape(title),
        header=header,
        body=body,
        footer=footer,
        css=asset("page.css") + css,
        # A "<" could end the script element early.
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        library=packed_plotly(),
        script=asset("page.js") + script,
    )


def asset(name: str) -> str:
    """Return a file of the folder ``page``."""
    return (files("edgeloss.viz") / "page" / name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=1)
def packed_plotly() -> str:
    """Return the script of Plotly, compressed to a third of its size."""
    import plotly.offline

    return base64.b64encode(zlib.compress(plotly.offline.get_plotlyjs().encode(), 9)).decode()


def data_uri(content: bytes, kind: str) -> str:
    """Return a picture, ``kind`` png or jpeg, as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table; cells are HTML."""
    lines = "".join(_row(row, "td") for row in rows)
    return f"<table><thead>{_row(head, 'th')}</thead><tbody>{lines}</tbody></table>"


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def cell(value: float, form: str) -> str:
    """Return a number as text, a dash for nan."""
    return "–" if math.isnan(value) else format(value, form)
