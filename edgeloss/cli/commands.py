"""Words of a command line → its options, checked as far as possible before torch is imported, which takes seconds."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgeloss import __version__
from edgeloss._checks.options import HELP, Options, check_label, check_option
from edgeloss._checks.remap import REMAPS, Rule, parse_remap
from edgeloss.cli.parser import ArgumentGroup, Parser
from edgeloss.cli.paths import PALETTE_NAMES, READ_SUFFIXES, check_paths

PICTURES = (".png", ".pdf", ".svg")  # formats of Matplotlib
_EPILOG = (
    "Example:\n  edgeloss view --pred a.npy --mask a.png -o report.html --open\n\n"
    "edgeloss COMMAND --help shows the options of a command. A file that exists is replaced only if the same command"
    " wrote it.\n\n"
    "Exit codes: 0 success, 1 a value is not finite (diagnose), 2 invalid input or skipped images, 130 interrupted."
)

# The options of the loss that a command line can hold: numbers, and one radius for both axes.
_TYPES: dict[str, type] = {"float": float, "float | None": float, "int | Sequence[int]": int}
OF_LOSS = {one.name: one for one in dataclasses.fields(Options) if str(one.type) in _TYPES}


# Options for reading files whose values are text, which few files need.
_READING = {
    "--remap FROM:TO,...|NAME": "Labels to replace in masks and predicted labels, FROM:TO or FIRST-LAST:TO,"
    " separated by commas: 255:1 for a mask of 0 and 255; 0:255,1-150:0 for labels that begin at 1; or a name:"
    f" {', '.join(REMAPS)}.",
    "--mask-remap FROM:TO,...|NAME": "The same, for masks alone.",
    "--pred-remap FROM:TO,...|NAME": "The same, for predicted labels alone.",
    "--mask-suffix END": "For folders, how the names of masks end after those of the predictions: _mask for a_mask.png;"
    " or a pattern, {stem}_gtFine_labelIds.png. Other files are skipped.",
    "--pred-suffix END": "The same, for predictions.",
    "--image-suffix END": "The same, for images.",
    "--page N": "The page of a TIFF of several, from 0.",
    "--key NAME": "The prediction among several arrays of a .npz, or of a dict in a .pt.",
    "--mask-key NAME": "The labels in such a file.",
    "--region N|NAME": "The class to take, by its number or name, from predictions and masks [C, H, W] of classes that"
    " may overlap; the rest is the other class.",
    "--slice N|FIRST-LAST": "The slices to take from volumes [C, D, H, W], with masks and images [D, H, W], along D: N,"
    " or FIRST-LAST. Each is an image of its own, with the loss of an image.",
    "--max-pixels N": "The pixels that a picture may have.  [default: Pillow's 89 million]",
    "--max-gigabytes N": "What the numbers of a file may take of memory.  [default: 4.3]",
}
_MASK: dict[str, Any] = {
    "type": Path,
    "help": "Labels [H, W]: a .png of class indices, or of colors with --palette, or .npy, .npz or .pt.",
}
_IMAGE: dict[str, Any] = {
    "type": Path,
    "help": f"An image of the size of the mask: {', '.join(READ_SUFFIXES[:-1])} or {READ_SUFFIXES[-1]}.",
}
_JSON: dict[str, Any] = {"dest": "as_json", "action": "store_true", "help": "Print JSON."}


def make_parser() -> ArgumentParser:
    """Return the parser of the program. Its options have the function of the command as ``run``, module:name."""
    program = Parser(
        "edgeloss",
        usage="edgeloss COMMAND [options]",
        description="Show where a segmentation network fails at edges.",
        epilog=_EPILOG,
    )
    program.add_argument(
        "--version", action="version", version=f"edgeloss {__version__}", help="Show the version and exit."
    )
    commands = program.add_subparsers(title="commands", metavar="COMMAND", required=True, prog="edgeloss")
    for name, (module, usage, add_options) in COMMANDS.items():
        about = inspect.getdoc(add_options) or ""
        parser = commands.add_parser(
            name,
            usage=f"edgeloss {name} {usage}",
            help=about.partition("\n")[0],
            description=about,
        )
        parser.set_defaults(run=f"edgeloss.cli.{module}:{name}", command=name, parser=parser, output_flag="--output")
        add_options(parser)
    return program


# The docstrings of the next functions are the help of the commands.


def _add_view(parser: Parser) -> None:
    """Draw a prediction, its loss maps and its gradient.

    The output is a picture or, with .html, an interactive report.

    For folders, files are matched by name. Each image gets a page, and index.html lists the pages, the worst
    first.

    Examples:
      edgeloss view --pred a.npy --mask a.png -o panel.png
      edgeloss view --pred a.npy --mask a.png --image a.jpg -o report.html --open
      edgeloss view --pred logits --mask masks --image images -o pages
      edgeloss view --pred ct.npy --mask labels.npy --slice 20-40 -o slices.html
    """
    parser.set_defaults(suffixes=(*PICTURES, ".html"), fills_folder=True)
    _add_input(parser).add_argument("--image", **_IMAGE)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        "-o",
        type=Path,
        required=True,
        help="A .png, .pdf, .svg or .html file; for folders, a folder to create.",
    )
    output.add_argument(
        "--format", dest="page_format", choices=("png", "html"), default="png", help="For folders, that of the pages."
    )
    output.add_argument("--open", dest="show", action="store_true", help="Open the page, or the index, in a browser.")
    output.add_argument("--json", **_JSON)
    pictures = parser.add_argument_group("pictures")
    pictures.add_argument("--terms", action="store_true", help="Also draw each edge term separately.")
    pictures.add_argument(
        "--contours",
        action=BooleanOptionalAction,
        default=True,
        help="Draw the borders between the true labels.  [default: drawn]",
    )
    pictures.add_argument(
        "--width",
        type=_number(1.7, 100),
        help="Inches; a column of a paper has 3.3.  [default: by the number of maps]",
    )
    pictures.add_argument("--dpi", type=_number(20, 600, int), default=200, help="Dots per inch.")
    _add_reading(parser)
    _add_loss(parser)


def _add_compare(parser: Parser) -> None:
    """Compare the predictions of two networks for the same images.

    The page has:
      scores      of both and what changes, per class too
      examples    where the second gains most boundary F1,
                  the median, and where it loses most
      all images  to sort by any change and to filter
      training    the settings in which two runs differ

    Examples:
      edgeloss compare logits_a logits_b --mask masks -o compare.html
      edgeloss compare ce/labels edge/labels --mask masks -o compare.html --open
    """
    parser.set_defaults(suffixes=(".html",))
    files = parser.add_argument_group("input")
    files.add_argument("first", metavar="A", type=Path, help="Predictions of the first network: a folder or a file.")
    files.add_argument("second", metavar="B", type=Path, help="Predictions of the second, with the same names.")
    files.add_argument("--mask", **_MASK)
    files.add_argument("--image", **_IMAGE)
    output = parser.add_argument_group("output")
    output.add_argument("--output", "-o", type=Path, required=True, help="A .html file.")
    output.add_argument("--names", nargs=2, metavar=("A", "B"), help="Names of the two.  [default: of their folders]")
    output.add_argument("--open", dest="show", action="store_true", help="Open the page in a browser.")
    output.add_argument("--json", **_JSON)
    _add_reading(parser)
    _add_loss(parser)


def _add_metrics(parser: Parser) -> None:
    """Compute metrics of predictions, per class and averaged.

    IoU, Boundary IoU, boundary F1 at 1, 3 and 5 pixels, and the IoU within 3 pixels of a border (trimap). --scores all
    adds distances of surfaces: the Hausdorff distance and its 95th percentile, their average, and surface Dice within 1
    and 2 pixels, which are averaged over the images.

    For folders, files are matched by name, and pixels are counted over all images. A class that does not occur has no
    score and is left out of the mean.

    Examples:
      edgeloss metrics --pred predictions --mask masks --classes 11
      edgeloss metrics --pred logits --mask masks --classes classes.txt -o m.json
      edgeloss metrics --pred logits --mask masks --classes 11 --scores all
      edgeloss metrics --pred volumes --mask labels --classes 3 --volumes
    """
    parser.set_defaults(suffixes=(".csv", ".json", ".txt", ""))
    _add_input(parser)
    scores = parser.add_argument_group("scores")
    scores.add_argument(
        "--scores",
        choices=("default", "all"),
        default="default",
        help="all adds the distances of surfaces.  [default: without them]",
    )
    scores.add_argument(
        "--spacing",
        type=_number(1e-100, 1e100),
        nargs="+",
        metavar="SIZE",
        help="The size of a pixel, or its height and width, of volumes depth, height and width: with --scores all,"
        " lengths are in it.  [default: 1]",
    )
    scores.add_argument(
        "--volumes",
        action="store_true",
        help="Score volumes in 3-D: masks [D, H, W], predictions [C, D, H, W] or labels [D, H, W]; with --slice, a"
        " part of each.",
    )
    scores.add_argument(
        "--across-void",
        type=_number(0, 1000, int),
        default=0,
        metavar="N",
        help="Continue labels across void of at most N pixels, where void lies between all classes.",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--per-image", metavar="FILE.csv", type=Path, help="A file for the scores of each image and class."
    )
    output.add_argument(
        "--format",
        choices=("table", "csv", "json"),
        help="A table is in percent, csv and json have fractions.  [default: by the suffix of --output, else table]",
    )
    for form in ("csv", "json"):
        about = f"The same as --format {form}{', with every class' if form == 'csv' else ''}."
        output.add_argument(f"--{form}", dest="format", action="store_const", const=form, help=about)
    output.add_argument("--output", "-o", type=Path, help="A file to write to.  [default: standard output]")
    _add_reading(parser, needs_classes=True)


def _add_diagnose(parser: Parser) -> None:
    """Check labels, loss and gradient, and list the loss's terms.

    It prints whether the loss is healthy, what is not and how to fix it, the range of logits, labels and gradient, and
    the loss as the sum of its weighted terms. The exit code is 1 if a value is not finite.

    For folders, files are matched by name, and each image has its own report.

    Examples:
      edgeloss diagnose --pred a.npy --mask a.png
      edgeloss diagnose --pred a.npy --mask a.png --figure gradient.png
      edgeloss diagnose --pred logits --mask masks --classes 11
    """
    parser.set_defaults(suffixes=PICTURES, fills_folder=True, output_flag="--figure")
    _add_input(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--figure",
        dest="output",
        metavar="FIGURE",
        type=Path,
        help="A .png, .pdf or .svg file to draw the gradient to; for folders, a folder of .png files.",
    )
    output.add_argument(
        "--verbose",
        action="store_true",
        help="Also print the statistics of every tensor, in two precisions, of every image.",
    )
    output.add_argument("--json", **_JSON)
    _add_reading(parser)
    _add_loss(parser)


def _add_info(parser: Parser) -> None:
    """Print versions, devices and backends, for bug reports.

    Examples:
      edgeloss info
      edgeloss info --json
    """
    parser.add_argument("--json", **_JSON)


def _add_input(parser: Parser) -> ArgumentGroup:
    """Add the options of a prediction and its mask, and return their group."""
    files = parser.add_argument_group("input")
    files.add_argument(
        "--pred",
        type=Path,
        required=True,
        help="Logits or probabilities [C, H, W] in .npy, .npz or .pt, or labels [H, W] (also in .png). A prediction of"
        " lower resolution than the mask is upsampled as in the loss.",
    )
    files.add_argument("--mask", **_MASK)
    return files


def _add_reading(parser: Parser, *, needs_classes: bool = False) -> None:
    """Add the options that say how to read files."""
    parser.set_defaults(needs_classes=needs_classes)
    reading = parser.add_argument_group("reading files")
    reading.add_argument(
        "--data",
        nargs=3,
        metavar=("LAYOUT", "ROOT", "PART"),
        help="Instead of the masks and images, a part of a data set as in its archives: ade20k, camvid, cityscapes,"
        " coco-stuff, pet or voc, with its classes; or folder, with PART/images, PART/masks and classes.txt in ROOT.",
    )
    reading.add_argument(
        "--classes",
        metavar="N|FILE",
        type=_classes,
        help='The number of classes, or a text file with one "<index> <name>" or one name per line.'
        + "  [default: as many as the prediction has]" * (not needs_classes),
    )
    reading.add_argument(
        "--ignore-index",
        metavar="LABEL",
        type=_label,
        help='The label of pixels to ignore.  [default: 255, or the line "void" of --classes]',
    )
    reading.add_argument(
        "--palette",
        metavar="NAME|FILE",
        help=f"Colors of the classes, in color-coded masks and on pages: {', '.join(PALETTE_NAMES)}, or a text file"
        ' with one "<index> <r> <g> <b>" or "<index> #rrggbb" per line.',
    )
    rare = parser.add_hidden_group("reading files of other forms")
    rare.add_argument(
        "--pred-kind",
        choices=("auto", "logits", "probabilities", "labels"),
        default="auto",
        help="What --pred holds; auto infers it from the values, and says so where they may be another kind.",
    )
    rare.add_argument(
        "--skip-missing", action="store_true", help="For folders, leave out names that are missing from one of them."
    )
    rare.add_argument(
        "--strict", action="store_true", help="For folders, stop at a file that can't be used instead of skipping it."
    )
    for option, about in _READING.items():
        flag, metavar = option.split()
        default = "" if flag.endswith("-suffix") else None
        rare.add_argument(flag, metavar=metavar, type=_PARSED.get(flag, str), default=default, help=about)


def _add_loss(parser: Parser) -> None:
    """Add the options of the loss, with its defaults and checks."""
    loss = parser.add_hidden_group("the loss")
    for name, one in OF_LOSS.items():

        def parsed(text: str, name: str = name, kind: type = _TYPES[str(one.type)]) -> Any:  # noqa: ANN401
            value = _convert(text, kind, _KINDS[kind])
            try:
                check_option(name, value)
            except (TypeError, ValueError) as error:
                raise ArgumentTypeError(str(error).partition(": ")[2]) from error  # without the name
            return value

        flag, about = f"--{name.replace('_', '-')}", HELP[name].replace("%", "%%")
        loss.add_argument(flag, metavar="NUMBER", type=parsed, default=one.default, help=about)


_KINDS = {int: "an integer", float: "a number"}


def _number(low: float, high: float, kind: type = float) -> Callable[[str], Any]:
    """Return a type of options: a number in a range."""

    def parsed(text: str) -> Any:  # noqa: ANN401
        expected = f"{_KINDS[kind]} from {low:g} to {high:g}"
        value = _convert(text, kind, expected)
        if not low <= value <= high:
            raise ArgumentTypeError(f"expected {expected}, but got {text}")
        return value

    return parsed


def _convert(text: str, kind: type, expected: str) -> Any:  # noqa: ANN401
    """Return a text as an int or a float."""
    try:
        return kind(text)
    except ValueError as error:
        raise ArgumentTypeError(f"expected {expected}, but got {text}") from error


def _classes(text: str) -> int | str:
    """Return the number of classes, or the path of their file."""
    return check_class_count(int(text)) if text.isascii() and text.isdigit() else text


def check_class_count(count: int) -> int:
    """Return a number of classes that can be used."""
    if not 2 <= count < 2**15:
        raise ArgumentTypeError(f"expected 2 to {2**15 - 1} classes, but got {count}; one logit has two")
    return count


def _slices(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ArgumentTypeError(f"expected N or FIRST-LAST, but got {text!r}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _remap(text: str) -> list[Rule]:
    try:
        return parse_remap(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def _label(text: str) -> int:
    """Return a label of 64 bits."""
    value: int = _convert(text, int, "an integer")
    try:
        check_label("label", value)
    except ValueError as error:
        raise ArgumentTypeError(str(error).partition(": ")[2]) from error
    return value


_PARSED: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("--remap", "--mask-remap", "--pred-remap"), _remap),
    "--slice": _slices,
    "--page": _number(0, 2**31, int),
    "--max-pixels": _number(1, 2**40, int),
    "--max-gigabytes": _number(0.001, 10**6),
}

# By name: the module that has the function of this name, the usage, and what adds the options, with the help.
COMMANDS = {
    "view": ("pages", "--pred PRED (--mask MASK | --data LAYOUT ROOT PART) --output OUTPUT [options]", _add_view),
    "compare": ("pages", "A B (--mask MASK | --data LAYOUT ROOT PART) --output OUTPUT [options]", _add_compare),
    "metrics": (
        "metrics",
        "--pred PRED (--mask MASK --classes N|FILE | --data LAYOUT ROOT PART) [options]",
        _add_metrics,
    ),
    "diagnose": ("diagnose", "--pred PRED (--mask MASK | --data LAYOUT ROOT PART) [options]", _add_diagnose),
    "info": ("info", "[options]", _add_info),
}


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of a command line, or exit with an error if they or the paths among them can't be used.

    Args:
        arguments: what follows the name of the program; by default, the arguments of the process.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    for at in reversed(range(1, len(words))):  # argparse takes a value that begins with a minus for an option
        if words[at - 1].startswith("--") and re.match(r"-[\d.]", words[at]):
            words[at - 1 : at + 1] = [f"{words[at - 1]}={words[at]}"]
    program = make_parser()
    if not words:
        program.print_help()
        program.exit()
    options, unknown = program.parse_known_args(words)
    if unknown:
        options.parser.error_of_form(f"expected nothing else, but got {' '.join(unknown)}")
    if options.run.endswith(":info"):
        return options
    if (options.mask is None) == (options.data is None):
        got = "both" if options.mask is not None else "neither"
        options.parser.error_of_form(f"expected --mask or --data, but got {got}")
    if options.needs_classes and options.classes is None and options.data is None:
        options.parser.error(
            "--classes: expected the number of classes, such as --classes 11, or a file of their names, but got none"
        )
    check_paths(options)
    return options
