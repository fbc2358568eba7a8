"""Self-contained HTML pages: one file each, without network access."""

from __future__ import annotations

import base64
import html
import json
import math
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any


def page(
    *,
    title: str,
    body: str,
    footer: str,
    header: str = "",
    links: Mapping[str, str] | None = None,
    data: Mapping[str, Any] | None = None,
    css: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> str:
    """Return a page with the common style, and a policy that forbids the browser to load anything.

    Args:
        title: of the page; escaped here.
        body: HTML, escaped by the caller, as are footer and header.
        footer: HTML of the last line, after the name and version of the package.
        header: HTML below the title.
        links: files next to the page, by the text of the link; escaped here.
        data: available to the scripts as ``data``.
        css: assets appended to the style of all pages.
        scripts: assets that run after ``base.js``, in one scope. The last one calls ``begin``.

    Returns:
        The page, to be written as UTF-8.

    Example:
        >>> html = page(title="a < b", body="<p>b</p>", footer="")
        >>> "<title>a &lt; b</title>" in html
        True
    """
    return Template(asset("base.html")).substitute(
        title=html.escape(title),
        links="".join(f'<a href="{file_link(name)}">{html.escape(text)}</a>' for text, name in (links or {}).items()),
        header=header,
        body=body,
        footer=f"edgeloss {html.escape(version('edgeloss'))}{footer and ' · '}{footer}",
        css="".join(map(asset, ("base.css", *css))),
        # A "<" could end the script element early.
        data=json.dumps(data or {}, allow_nan=False).replace("<", "\\u003c"),
        script="\n".join([*map(asset, ("base.js", *scripts)), *([] if scripts else ["begin();"])]),
    )


def asset(name: str) -> str:
    """Return a file of the folder ``page``."""
    return (files("edgeloss.viz") / "page" / name).read_text(encoding="utf-8")


def file_link(name: str) -> str:
    """Return the link to a file in the folder of the page, for an attribute."""
    # "./" keeps a browser from reading a name with a colon as a URL scheme.
    return html.escape(f"./{urllib.parse.quote(name)}")


def tiles(values: Mapping[str, str]) -> str:
    """Return headline figures, by name; both are escaped here."""
    parts = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in values.items()
    )
    # All in one row, in two where they don't fit, and on a phone in rows of which the last is as full as can be.
    count = len(values)
    narrow = min((3, 2), key=lambda columns: -count % columns)
    return f'<dl class="tiles" style="--all:{count};--half:{-(-count // 2)};--narrow:{narrow}">{parts}</dl>'


def table(head: Iterable[str], rows: Iterable[Iterable[str]], *, label: str, foot: Iterable[str] | None = None) -> str:
    """Return a table that its columns sort, in a frame that scrolls; cells are HTML, the first of a row names it."""
    lines = "".join(_row(row) for row in rows)
    titles = "".join(f'<th scope="col"><button type="button">{name}</button></th>' for name in head)
    last = f"<tfoot>{_row(foot)}</tfoot>" if foot else ""
    return (
        f'<div class="scroll" role="region" aria-label="{html.escape(label)}" tabindex="0"><table class="sortable">'
        f"<thead><tr>{titles}</tr></thead><tbody>{lines}</tbody>{last}</table></div>"
    )


def _row(cells: Iterable[str]) -> str:
    first, *others = cells
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def cell(value: float, form: str) -> str:
    """Return a number as text, a dash for nan."""
    return "–" if math.isnan(value) else format(value, form)


def data_uri(content: bytes, kind: str) -> str:
    """Return a picture, ``kind`` png or jpeg, as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
