"""The command ``view``: a picture or report per image, and an index for a folder."""

from __future__ import annotations

import enum
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edgeloss.cli.cases import Case, CaseFiles, match_files
from edgeloss.cli.index_page import IndexRow, index_page
from edgeloss.cli.messages import errors_named, printable, with_progress
from edgeloss.cli.options import (
    ClassesOption,
    IgnoreIndex,
    Kind,
    Mask,
    Pred,
    PredKind,
    Reader,
    SkipMissing,
    make_criterion,
    with_loss_options,
)
from edgeloss.io import InputError, atomic_write, read_palette
from edgeloss.loss import EdgeAwareLoss

PICTURE_SUFFIXES = (".png", ".pdf", ".svg")
_PAGE_SUFFIXES = (*PICTURE_SUFFIXES, ".html")


class PageFormat(str, enum.Enum):
    """The values of --format."""

    png = "png"
    html = "html"


class _Painter(NamedTuple):
    """Draw cases as pages.

    Attributes:
        criterion: the loss.
        names: of the classes, if they are known.
        colors: by class, if they are known.
        palette: the file that the colors come from.
        terms: show the edge terms separately.
        dpi: of pictures.
    """

    criterion: EdgeAwareLoss
    names: Sequence[str] | None
    colors: Mapping[int, tuple[int, int, int]] | None
    palette: Path | None
    terms: bool
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
            figure = panel(case.logits, case.target, terms=self.terms, **self._options(case))
            figure.savefig(file, format=suffix[1:], dpi=self.dpi)
        return file.getvalue()

    def index_row(self, case: Case, page: str) -> IndexRow:
        """Return the entry of a case in the index."""
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


@with_loss_options
def view(
    *,
    pred: Pred,
    mask: Mask,
    image: Annotated[Path | None, typer.Option(help="An image of the size of the mask.")] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A .png, .pdf, .svg or .html file; for folders, a folder to create."),
    ],
    classes: ClassesOption = None,
    palette: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Class colors: one "<index> <r> <g> <b>" or "<index> #rrggbb" per line of a text file.',
        ),
    ] = None,
    ignore_index: IgnoreIndex = None,
    pred_kind: Kind = PredKind.auto,
    page_format: Annotated[
        PageFormat, typer.Option("--format", help="For folders, the format of the pages.")
    ] = PageFormat.png,
    skip_missing: SkipMissing = False,
    terms: Annotated[bool, typer.Option("--terms", help="Also draw each edge term separately.")] = False,
    dpi: Annotated[int, typer.Option(min=20, max=600, help="Dots per inch of pictures.")] = 200,
    loss: Mapping[str, Any],
) -> None:
    """Draw a prediction, its loss maps and its gradient.

    The output is a picture or, with .html, an interactive report.

    For folders, files are matched by name. Each image gets a page, and index.html lists the pages, highest edge loss
    first.

    \b
    Examples:
      edgeloss view --image a.jpg --mask a.png --pred a.npy -o panel.png
      edgeloss view --mask a.png --pred a.npy -o report.html --classes classes.txt
      edgeloss view --image images --mask masks --pred logits -o pages --classes 11
    """  # noqa: D301
    reader = Reader.from_options(classes, ignore_index, pred_kind)
    colors = None if palette is None else read_palette(palette)
    painter = _Painter(make_criterion(loss, reader.ignore_index), reader.names, colors, palette, terms, dpi)
    files = match_files(pred, mask, image, skip_missing=skip_missing)
    if any(path is not None and output.resolve() == path.resolve() for path in (pred, mask, image)):
        raise InputError(f"{output}: expected a path other than the inputs, but got one of them")
    if pred.is_dir():
        _view_folder(files, output, page_format.value, reader, painter)
    else:
        _view_file(files[0], output, reader, painter)


def _view_file(files: CaseFiles, output: Path, reader: Reader, painter: _Painter) -> None:
    """Write the page of one case."""
    suffix = output.suffix.lower()
    if suffix not in _PAGE_SUFFIXES:
        raise InputError(
            f"{output}: expected an output in one of {', '.join(_PAGE_SUFFIXES)}, but got {suffix or 'no suffix'}"
        )
    with errors_named(files.prediction):
        page = painter.page(reader.read(files), suffix)
    with atomic_write(output) as file:
        file.write(page)


def _view_folder(cases: Sequence[CaseFiles], folder: Path, page_format: str, reader: Reader, painter: _Painter) -> None:
    """Write a page per case and, once all are complete, the index."""
    if page_format == "html" and any(files.name.lower() == "index" for files in cases):
        raise InputError(f"{folder}: expected names other than index, but got one; it would overwrite index.html")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be created ({error.strerror})") from error
    rows = []
    pages = [f"{files.name}.{page_format}" for files in cases]
    for at, files in enumerate(with_progress(cases)):
        with errors_named(files.prediction):
            case = reader.read(files)
            page = painter.page(case, f".{page_format}", _links(pages, at))
            rows.append(painter.index_row(case, pages[at]))
        with atomic_write(folder / pages[at]) as file:
            file.write(page)
    with atomic_write(folder / "index.html") as file:
        file.write(index_page(rows, painter.names).encode())


def _links(pages: Sequence[str], at: int) -> dict[str, str]:
    """Return the links of a page to the index and its neighbors, by their text."""
    links = {"All images": "index.html"}
    if at:
        links[f"← {printable(Path(pages[at - 1]).stem)}"] = pages[at - 1]
    if at + 1 < len(pages):
        links[f"{printable(Path(pages[at + 1]).stem)} →"] = pages[at + 1]
    return links
