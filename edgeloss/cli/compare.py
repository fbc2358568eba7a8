"""The command ``compare``: the same images under two networks, or under networks of two losses, as one page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeloss.cli.messages import check_suffix, open_page, say_wrote, write
from edgeloss.cli.options import AsJson, FileOptions, with_shared_options
from edgeloss.cli.tables import to_json


@with_shared_options
def compare(
    *,
    first: Annotated[Path, typer.Argument(metavar="A", help="Predictions of the first network: a folder or a file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Predictions of the second, with the same names.")],
    source: FileOptions,
    image: Annotated[Path | None, typer.Option(help="Images of the size of the masks.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .html file.")],
    names: Annotated[
        tuple[str, str] | None, typer.Option("--names", help="Names of the two, instead of those of their folders.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: AsJson = False,
    loss: Mapping[str, Any],
) -> None:
    """Compare the predictions of two networks for the same images.

    The page has the scores and the terms of the loss of each network, the images where the second gains and loses most
    boundary F1 with maps of the differences, and a gallery of all images to sort and filter.

    \b
    Examples:
      edgeloss compare logits_a logits_b --image images --mask masks --classes classes.txt -o compare.html
      edgeloss compare runs/ce/labels runs/edge/labels --mask masks --classes 11 -o compare.html --open
    """  # noqa: D301
    from edgeloss.cli.cases import find_cases
    from edgeloss.cli.pages import Painter, compare_page
    from edgeloss.io import InputError

    check_suffix(output, [".html"])
    painter = Painter.from_options(source, loss)
    found = [find_cases(source._replace(pred=path), image) for path in (first, second)]
    if first.is_dir():
        missing = {files.name for files in found[0]} ^ {files.name for files in found[1]}
        if missing and not source.skip_missing:
            raise InputError(f"{second}: expected names as in {first}, but got none for {sorted(missing)[0]}")
        found = [[files for files in cases if files.name not in missing] for cases in found]
        if not found[0]:
            raise InputError(f"{second}: expected names as in {first}, but got none that is in both")
    page, items = compare_page(dict(zip(names or _names(first, second), found, strict=True)), painter)
    content = page.encode()
    write(output, content)
    say_wrote(output, len(content))
    if as_json:
        figures = {
            item.name: [
                figures | {"iou": scores.iou.tolist()}
                for figures, scores in zip(item.figures, item.scores, strict=True)
            ]
            for item in items
        }
        typer.echo(to_json({"page": str(output), "images": figures}))
    if show:
        open_page(output)


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Return the parts of two paths that tell them apart: the last ones that differ."""
    for one, other in zip(reversed(first.resolve().parts), reversed(second.resolve().parts), strict=False):
        if one != other:
            return Path(one).stem if first.is_file() else one, Path(other).stem if second.is_file() else other
    return f"{first} (A)", f"{second} (B)"
