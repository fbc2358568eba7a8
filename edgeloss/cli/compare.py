"""The command ``compare``: the same images under two networks, or under networks of two losses, as one page."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from edgeloss.cli.messages import check_suffix, open_page, say_wrote, write
from edgeloss.cli.options import AS_JSON, IMAGE, option
from edgeloss.cli.tables import print_json

OPTIONS = [
    option("first", metavar="A", type=Path, help="Predictions of the first network: a folder or a file."),
    option("second", metavar="B", type=Path, help="Predictions of the second, with the same names."),
    IMAGE,
    option("--output", "-o", type=Path, required=True, help="A .html file."),
    option("--names", nargs=2, metavar=("A", "B"), help="Names of the two, instead of those of their folders."),
    option("--open", dest="show", action="store_true", help="Open the page in a browser."),
    AS_JSON,
]


def compare(options: Namespace) -> None:
    """Compare the predictions of two networks for the same images.

    The page has the scores and the terms of the loss of each network, the images where the second gains and loses most
    boundary F1 with maps of the differences, and a gallery of all images to sort and filter.

    Examples:
      edgeloss compare logits_a logits_b --image images --mask masks --classes classes.txt -o compare.html
      edgeloss compare runs/ce/labels runs/edge/labels --mask masks --classes 11 -o compare.html --open
    """
    from edgeloss.cli.cases import find_cases
    from edgeloss.cli.pages import Painter, compare_page
    from edgeloss.io import InputError

    first, second, output = options.first, options.second, options.output
    check_suffix(output, [".html"])
    painter = Painter(options)
    found = [find_cases(options, path) for path in (first, second)]
    if first.is_dir():
        missing = {files.name for files in found[0]} ^ {files.name for files in found[1]}
        if missing and not options.skip_missing:
            raise InputError(f"{second}: expected names as in {first}, but got none for {sorted(missing)[0]}")
        found = [[files for files in cases if files.name not in missing] for cases in found]
        if not found[0]:
            raise InputError(f"{second}: expected names as in {first}, but got none that is in both")
    page, items = compare_page(dict(zip(options.names or _names(first, second), found, strict=True)), painter)
    content = page.encode()
    write(output, content)
    say_wrote(output, len(content))
    if options.as_json:
        images = {
            item.name: [
                figures | {"iou": scores.iou.tolist()}
                for figures, scores in zip(item.figures, item.scores, strict=True)
            ]
            for item in items
        }
        print_json({"page": str(output), "images": images})
    if options.show:
        open_page(output)


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Return the parts of two paths that tell them apart: the last ones that differ."""
    for one, other in zip(reversed(first.resolve().parts), reversed(second.resolve().parts), strict=False):
        if one != other:
            return Path(one).stem if first.is_file() else one, Path(other).stem if second.is_file() else other
    return f"{first} (A)", f"{second} (B)"
