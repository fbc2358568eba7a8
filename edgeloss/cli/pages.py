"""The pages of the command ``view``: a picture or report per case, and an index."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgeloss.cli.cases import Case, CaseFiles, Reader
from edgeloss.cli.index_page import IndexRow, index_page
from edgeloss.cli.messages import errors_named, printable, with_progress, write
from edgeloss.io import InputError, Rgb
from edgeloss.loss import EdgeAwareLoss


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
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # for names in other scripts
            figure = panel(case.logits, case.target, **self.drawn, **self._options(case))
            figure.savefig(file, format=suffix[1:], dpi=self.dpi)
        return file.getvalue()

    def index_row(self, case: Case, page: str) -> IndexRow:
        """Return the figures of a case and its entry in the index."""
        from edgeloss.viz import compute_arrays
        from edgeloss.viz.coloring import rgb_images
        from edgeloss.viz.scores import compute_scores, make_thumbnail

        arrays = compute_arrays(case.logits, case.target, self.criterion)
        scores = compute_scores(arrays.target, arrays.prediction, arrays.classes)
        image = None if case.image is None else rgb_images(case.image, arrays.target.shape)[0]
        thumbnail = make_thumbnail(arrays.target[0], arrays.prediction[0], image)
        return IndexRow(page, thumbnail, {**arrays.terms, **scores.means}, scores.iou.tolist())

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
    """A page that was written.

    Attributes:
        path: of its file.
        size: in bytes.
        interpretation: how the prediction was read, in words.
        row: its figures, if they were asked for.
    """

    path: Path
    size: int
    interpretation: str
    row: IndexRow | None

    def to_dict(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Return what --json prints."""
        assert self.row is not None
        classes = names or [str(k) for k in range(len(self.row.iou))]
        return {
            "page": str(self.path),
            "bytes": self.size,
            "prediction": self.interpretation,
            **{name.lower().replace(" ", "_"): value for name, value in self.row.figures.items()},
            "iou": dict(zip(classes, self.row.iou, strict=False)),
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
        row = painter.index_row(case, output.name) if figures else None
    write(output, page)
    return Written(output, len(page), case.interpretation, row)


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
    rows = [page.row for page in written if page.row is not None]
    write(folder / "index.html", index_page(rows, painter.names).encode())
    return written


def _links(pages: Sequence[str], at: int) -> dict[str, str]:
    """Return the links of a page to the index and its neighbors, by their text."""
    links = {"All images": "index.html"}
    if at:
        links[f"← {printable(Path(pages[at - 1]).stem)}"] = pages[at - 1]
    if at + 1 < len(pages):
        links[f"{printable(Path(pages[at + 1]).stem)} →"] = pages[at + 1]
    return links
