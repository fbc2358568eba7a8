"""The command ``view``: a picture or report per image, and an index for a folder."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from pathlib import Path
from typing import Any

from edgeloss.cli.messages import PICTURE_SUFFIXES, check_suffix, open_page, say_wrote, with_progress
from edgeloss.cli.options import AS_JSON, IMAGE, number, option
from edgeloss.cli.tables import print_json

OPTIONS = [
    IMAGE,
    option(
        "--output",
        "-o",
        type=Path,
        required=True,
        help="A .png, .pdf, .svg or .html file; for folders, a folder to create.",
    ),
    option(
        "--format", dest="page_format", choices=("png", "html"), default="png", help="For folders, that of the pages."
    ),
    option("--terms", action="store_true", help="Also draw each edge term separately."),
    option(
        "--contours",
        action=BooleanOptionalAction,
        default=True,
        help="Draw the borders between the true labels in pictures.",
    ),
    option("--width", type=number(1.7), help="Inches of pictures; a paper's column has 3.3."),
    option("--dpi", type=number(20, 600, int), default=200, help="Dots per inch of pictures."),
    option("--open", dest="show", action="store_true", help="Open the page, or the index, in a browser."),
    AS_JSON,
]


def view(options: Namespace) -> None:
    """Draw a prediction, its loss maps and its gradient.

    The output is a picture or, with .html, an interactive report.

    For folders, files are matched by name. Each image gets a page, and index.html lists the pages, highest edge loss
    first.

    Examples:
      edgeloss view --image a.jpg --mask a.png --pred a.npy -o panel.png
      edgeloss view --mask a.png --pred a.npy -o report.html --classes classes.txt --open
      edgeloss view --image images --mask masks --pred logits -o pages --classes 11
      edgeloss view --image ct.npy --mask labels.npy --pred logits.npy --slice 20-40 -o slices.html
    """
    from edgeloss.cli.cases import find_cases
    from edgeloss.cli.pages import Painter, write_folder
    from edgeloss.io import InputError

    output, painter = options.output, Painter(options)
    cases = find_cases(options)
    inputs = (options.pred, options.mask, options.image)
    if any(path is not None and output.resolve() == path.resolve() for path in inputs):
        raise InputError(f"{output}: expected a path other than the inputs, but got one of them")
    if options.pred.is_dir():
        pages = write_folder(cases, output, options.page_format, painter)
        page = output / "index.html"
        say_wrote(page, sum(written["bytes"] for written in pages) + page.stat().st_size, len(pages))
        figures: dict[str, Any] = {"index": str(page), "pages": pages}
    else:
        page = output
        check_suffix(output, (*PICTURE_SUFFIXES, ".html"))
        for files, said in with_progress(cases):
            written = painter.write(files, output, said)
        say_wrote(output, written.size)
        figures = painter.describe(written)[1] if options.as_json else {}
    if options.as_json:
        print_json(figures)
    if options.show:
        open_page(page)
