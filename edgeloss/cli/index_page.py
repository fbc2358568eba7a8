"""The index of the pages of a folder, as one HTML file."""

from __future__ import annotations

import base64
import html
import io
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from edgeloss.cli.messages import printable

_THUMBNAIL = 360  # its longer side in pixels
_COLUMNS = {
    "edge": "edge loss",
    "same_side": "same side",
    "other_side": "other side",
    "false_edge": "false edge",
    "cross_entropy": "cross-entropy",
    "edge_fraction": "edge pixels",
}


class IndexRow(NamedTuple):
    """A page in the index.

    Attributes:
        page: the name of its file.
        thumbnail: a JPEG.
        terms: of the loss, by name.
    """

    page: str
    thumbnail: bytes
    terms: Mapping[str, float]


def make_thumbnail(picture: bytes) -> bytes:
    """Return a small JPEG of an image file."""
    small, file = Image.open(io.BytesIO(picture)).convert("RGB"), io.BytesIO()
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    small.save(file, "jpeg", quality=85)
    return file.getvalue()


def index_page(rows: Sequence[IndexRow]) -> str:
    """Return an HTML page that links to all others, highest edge loss first; it loads nothing else."""

    def highest_first(row: IndexRow) -> tuple[float, str]:
        edge = row.terms["edge"]
        return -edge if math.isfinite(edge) else -math.inf, row.page

    # The column of false edges is shown if it is not all 0.
    columns = {k: title for k, title in _COLUMNS.items() if k != "false_edge" or any(row.terms[k] for row in rows)}
    lines = []
    for row in sorted(rows, key=highest_first):
        # "./" keeps a browser from reading a name with a colon as a URL scheme.
        link = html.escape(f"./{urllib.parse.quote(row.page)}")
        name = html.escape(printable(Path(row.page).stem))
        picture = base64.b64encode(row.thumbnail).decode()
        cells = "".join(f"<td>{row.terms[term]:{'.1%' if term == 'edge_fraction' else '.4f'}}</td>" for term in columns)
        lines.append(
            f'<tr><td><a href="{link}"><img src="data:image/jpeg;base64,{picture}" alt=""></a></td>'
            f'<th scope="row"><a href="{link}">{name}</a></th>{cells}</tr>'
        )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("", "name", *columns.values()))
    return _TEMPLATE.format(count=len(rows), head=head, rows="\n".join(lines))


_TEMPLATE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>edgeloss: {count} images</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse }}
th, td {{ padding: .4em .8em; text-align: right; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums }}
th {{ text-align: left }}
th[scope=row] {{ font-weight: normal; overflow-wrap: anywhere }}
img {{ display: block }}
</style>
<h1>{count} images, highest edge loss first</h1>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</html>
"""
