"""The pages of the command ``view``: a picture or report per case, and an index of thumbnails to sort and filter."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from edgeloss.cli.cases import Case, CaseFiles, Reader
from edgeloss.cli.messages import errors_named, printable, with_progress, write
from edgeloss.cli.tables import mean_of_present
from edgeloss.io import InputError, Rgb
from edgeloss.loss import EdgeAwareLoss

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


class Painter(NamedTuple):
    """Draw cases as pages.

    Attributes:
        criterion: the loss.
        names: of the classes, if they are known.
        colors: by class, if they are known.
        palette: where the colors come from.
        drawn: keywords of the panel: terms, contours and width.
        dpi: of pictures.
    """

    criterion: EdgeAwareLoss
    names: Sequence[str] | None
    colors: Mapping[int, Rgb] | None
    palette: str | None
    drawn: Mapping[str, Any]
    dpi: int

    def page(self, case: Case, suffix: str, links: Mapping[str, str] | None = None) -> bytes:
        """Return the content of a file with this suffix; a report shows the links."""
        from edgeloss.viz import panel, report

        if suffix == ".html":
            text: str = report(case.logits, case.target, links=links, **self._options(case))
            return text.encode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for names in other scripts
            figure = panel(case.logits, case.target, **self.drawn, **self._options(case))
            return figure.content(suffix, dpi=self.dpi)

    def summary(self, case: Case) -> tuple[bytes, dict[str, float], list[float]]:
        """Return thumbnail, figures and IoU of each class."""
        from edgeloss.viz import compute_arrays
        from edgeloss.viz.coloring import rgb_images
        from edgeloss.viz.scores import compute_scores, make_thumbnail

        arrays = compute_arrays(case.logits, case.target, self.criterion)
        scores = compute_scores(arrays.target, arrays.prediction, arrays.classes)
        image = None if case.image is None else rgb_images(case.image, arrays.target.shape)[0]
        thumbnail = make_thumbnail(arrays.target[0], arrays.prediction[0], image)
        return thumbnail, {**arrays.terms, **scores.means}, scores.iou.tolist()

    def _options(self, case: Case) -> dict[str, Any]:
        """Return the keywords that panel and report share."""
        classes = max(2, case.logits.shape[1])
        colors = self.colors
        if colors is not None and (missing := [str(c) for c in range(classes) if c not in colors]):
            raise InputError(f"{self.palette}: expected {classes} colors, but got none for class {', '.join(missing)}")
        return {
            "image": case.image,
            "criterion": self.criterion,
            "class_names": self.names,
            "palette": None if colors is None else [colors[c] for c in range(classes)],
            "title": printable(f"{case.name}: {case.interpretation}"),
        }


class Written(NamedTuple):
    """A page that was written, and what an index says of it.

    Attributes:
        path: of its file.
        size: in bytes.
        interpretation: how the prediction was read, in words.
        thumbnail: a JPEG; like the figures, empty if they were not asked for.
        figures: terms of the loss and scores, by name.
        iou: of each class, nan for a class that does not occur.
    """

    path: Path
    size: int
    interpretation: str
    thumbnail: bytes = b""
    figures: Mapping[str, float] = MappingProxyType({})
    iou: Sequence[float] = ()

    @property
    def name(self) -> str:
        """The name of the case, to be shown."""
        return printable(self.path.stem)

    def to_dict(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Return what --json prints."""
        classes = names or [str(k) for k in range(len(self.iou))]
        return {
            "page": str(self.path),
            "bytes": self.size,
            "prediction": self.interpretation,
            **{name.lower().replace(" ", "_"): value for name, value in self.figures.items()},
            "iou": dict(zip(classes, self.iou, strict=False)),
        }


def write_page(
    files: CaseFiles,
    output: Path,
    reader: Reader,
    painter: Painter,
    *,
    links: Mapping[str, str] | None = None,
    figures: bool = True,
) -> Written:
    """Write the page of one case."""
    with errors_named(files.prediction):
        case = reader.read(files)
        page = painter.page(case, output.suffix.lower(), links)
        summary = painter.summary(case) if figures else ()
    write(output, page)
    return Written(output, len(page), case.interpretation, *summary)


def write_folder(
    cases: Sequence[CaseFiles], folder: Path, page_format: str, reader: Reader, painter: Painter
) -> list[Written]:
    """Write a page per case and, once all are complete, the index."""
    if page_format == "html" and any(files.name.lower() == "index" for files in cases):
        raise InputError(f"{folder}: expected names other than index, but got one; it would overwrite index.html")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be created ({error.strerror})") from error
    pages = [f"{files.name}.{page_format}" for files in cases]
    written = [
        write_page(files, folder / pages[at], reader, painter, links=_links(pages, at))
        for at, files in enumerate(with_progress(cases))
    ]
    write(folder / "index.html", _index(written, painter.names).encode())
    return written


def _links(pages: Sequence[str], at: int) -> dict[str, str]:
    """Return the links of a page to the index and its neighbors, by their text."""
    links = {"All images": "index.html"}
    if at:
        links[f"← {printable(Path(pages[at - 1]).stem)}"] = pages[at - 1]
    if at + 1 < len(pages):
        links[f"{printable(Path(pages[at + 1]).stem)} →"] = pages[at + 1]
    return links


# ------------------------------------------------------------------------------------------------------- the index


def _index(rows: Sequence[Written], names: Sequence[str] | None) -> str:
    """Return an HTML page that links to all others, highest edge loss first; it loads nothing else."""
    from edgeloss.viz import pages

    def highest_first(row: Written) -> tuple[float, str]:
        edge = row.figures["edge"]
        return -edge if math.isfinite(edge) else -math.inf, row.path.name

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


def _iou(row: Written, label: int) -> float:
    return row.iou[label] if label < len(row.iou) else math.nan


def _data(row: Written) -> dict[str, Any]:
    """Return what the page sorts by: null for what is not finite."""

    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    figures = {key: known(value) for key, value in row.figures.items()}
    return {"name": row.name, "figures": figures, "iou": [known(value) for value in row.iou]}


def _card(row: Written) -> str:
    from edgeloss.viz import pages
    from edgeloss.viz.packing import data_uri

    lines = "".join(
        f"<div><dt>{name}</dt><dd>{pages.cell(row.figures[key], form)}</dd></div>"
        for key, (name, form) in _FIGURES.items()
        if key in row.figures
    )
    return (
        f'<li class="card"><a href="{pages.file_link(row.path.name)}">'
        f'<img src="{data_uri(row.thumbnail, "jpeg")}" alt="" loading="lazy">'
        f"<strong>{html.escape(row.name)}</strong></a><dl>{lines}</dl></li>"
    )
