"""The command ``view``: a picture or report per image, and an index for a folder."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeloss.cli.messages import PICTURE_SUFFIXES, check_suffix, open_page, say_wrote, with_clock
from edgeloss.cli.options import AsJson, FileOptions, with_shared_options
from edgeloss.cli.tables import to_json


class PageFormat(str, enum.Enum):
    """The values of --format."""

    png = "png"
    html = "html"


@with_shared_options
def view(
    *,
    source: FileOptions,
    image: Annotated[Path | None, typer.Option(help="An image of the size of the mask.")] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A .png, .pdf, .svg or .html file; for folders, a folder to create."),
    ],
    page_format: Annotated[
        PageFormat, typer.Option("--format", help="For folders, the format of the pages.")
    ] = PageFormat.png,
    terms: Annotated[bool, typer.Option("--terms", help="Also draw each edge term separately.")] = False,
    contours: Annotated[bool, typer.Option(help="Draw the borders between the true labels in pictures.")] = True,
    width: Annotated[float | None, typer.Option(min=1.7, help="Inches of pictures; a paper's column has 3.3.")] = None,
    dpi: Annotated[int, typer.Option(min=20, max=600, help="Dots per inch of pictures.")] = 200,
    show: Annotated[bool, typer.Option("--open", help="Open the page, or the index, in a browser.")] = False,
    as_json: AsJson = False,
    loss: Mapping[str, Any],
) -> None:
    """Draw a prediction, its loss maps and its gradient.

    The output is a picture or, with .html, an interactive report.

    For folders, files are matched by name. Each image gets a page, and index.html lists the pages, highest edge loss
    first.

    \b
    Examples:
      edgeloss view --image a.jpg --mask a.png --pred a.npy -o panel.png
      edgeloss view --mask a.png --pred a.npy -o report.html --classes classes.txt --open
      edgeloss view --image images --mask masks --pred logits -o pages --classes 11
      edgeloss view --image ct.npy --mask labels.npy --pred logits.npy --slice 20-40 -o slices.html
    """  # noqa: D301
    from edgeloss.cli.cases import find_cases
    from edgeloss.cli.pages import Painter, write_folder, write_page
    from edgeloss.io import InputError

    painter = Painter.from_options(source, loss, {"terms": terms, "contours": contours, "width": width}, dpi)
    files = find_cases(source, image)
    if any(path is not None and output.resolve() == path.resolve() for path in (source.pred, source.mask, image)):
        raise InputError(f"{output}: expected a path other than the inputs, but got one of them")
    if source.pred.is_dir():
        pages = write_folder(files, output, page_format.value, painter)
        page = output / "index.html"
        say_wrote(page, sum(written.size for written in pages) + page.stat().st_size, len(pages))
        shown = [written.to_dict(painter.reader.names) for written in pages]
        figures: dict[str, Any] = {"index": str(page), "pages": shown}
    else:
        check_suffix(output, (*PICTURE_SUFFIXES, ".html"))
        with with_clock(files[0].name) as said:
            written = write_page(files[0], output, painter, figures=as_json, said=said)
        page = output
        say_wrote(page, written.size)
        figures = written.to_dict(painter.reader.names) if as_json else {}
    if as_json:
        typer.echo(to_json(figures))
    if show:
        open_page(page)
