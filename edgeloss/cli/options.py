"""Options that several commands share, as tables. Nothing here imports torch, so that --help is quick."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from edgeloss.options import HELP, MODULE_ONLY, Options

PALETTE_NAMES = ("ade20k", "camvid", "cityscapes", "voc")  # of edgeloss.io, which imports torch


class Option(NamedTuple):
    """An option of a command: its flags, or the name of an argument, and the keywords of ``add_argument``."""

    flags: tuple[str, ...]
    about: dict[str, Any]


def option(*flags: str, **about: Any) -> Option:  # noqa: ANN401
    """Return an option."""
    return Option(flags, about)


def number(low: float, high: float = float("inf"), kind: type = float) -> Callable[[str], Any]:
    """Return a type of options: a number in a range."""

    def parsed(text: str) -> Any:  # noqa: ANN401
        value = kind(text)
        if not low <= value <= high:
            raise ArgumentTypeError(f"expected a number from {low:g} to {high:g}, but got {text}")
        return value

    parsed.__name__ = kind.__name__  # named in the error for what is no number
    return parsed


PRED = option(
    "--pred",
    type=Path,
    required=True,
    help="Logits or probabilities [C, H, W] in .npy, .npz or .pt, or labels [H, W] (also in .png). A prediction of"
    " lower resolution than the mask is upsampled as in the loss.",
)
MASK = option(
    "--mask",
    type=Path,
    required=True,
    help="Labels [H, W]: a .png of class indices, or of colors with --palette, or .npy, .npz or .pt.",
)
IMAGE = option("--image", type=Path, help="An image of the size of the mask.")
AS_JSON = option("--json", dest="as_json", action="store_true", help="Print JSON.")
CLASSES_HELP = 'The number of classes, or a text file with one "<index> <name>" per line.'

# The options that say how to read files.
FILES = [
    option("--classes", metavar="N|FILE", help=CLASSES_HELP),
    option(
        "--ignore-index",
        type=int,
        help='The label of pixels to ignore.  [default: 255, or the line "void" of --classes]',
    ),
    option(
        "--pred-kind",
        choices=("auto", "logits", "probabilities", "labels"),
        default="auto",
        help="What --pred holds; auto infers it from the values.",
    ),
    option(
        "--palette",
        metavar="NAME|FILE",
        help=f"Colors of the classes, of pages and of color-coded masks: {', '.join(PALETTE_NAMES)}, or a text file"
        ' with one "<index> <r> <g> <b>" or "<index> #rrggbb" per line.',
    ),
    option(
        "--remap",
        metavar="FROM:TO,...",
        default="",
        help="Labels to replace in masks and predicted labels, FROM:TO or FIRST-LAST:TO, separated by commas: 255:1 for"
        " a mask of 0 and 255; 0:255,1-150:0 for labels that begin at 1.",
    ),
    option("--key", help="The name of the prediction in a .npz or a dict in a .pt."),
    option("--mask-key", help="The name of the labels in such a file."),
    option(
        "--region",
        metavar="N|NAME",
        help="The class to take, by its number or name, from predictions and masks [C, H, W] of classes that may"
        " overlap; the rest is the other class.",
    ),
    option(
        "--slice",
        dest="slices",
        metavar="N|FIRST-LAST",
        help="The slices to take from volumes [C, D, H, W], with masks and images [D, H, W], along D: N, or FIRST-LAST."
        " Each is an image of its own, with the loss of an image.",
    ),
    option(
        "--skip-missing", action="store_true", help="For folders, leave out names that are missing from one of them."
    ),
]

# The options of the loss that a command line can hold: numbers, and one radius for both axes.
_TYPES = {"float": float, "float | None": float, "int | Sequence[int]": int}
_OF_LOSS = {
    one.name: one for one in dataclasses.fields(Options) if str(one.type) in _TYPES and one.name not in MODULE_ONLY
}
LOSS = [
    option(
        f"--{name.replace('_', '-')}",
        type=_TYPES[str(one.type)],
        default=one.default,
        help=f"Loss: {HELP[name]}".replace("%", "%%"),
    )
    for name, one in _OF_LOSS.items()
]


def loss_options(options: Namespace) -> dict[str, Any]:
    """Return the options of the loss, as keywords of ``EdgeAwareLoss``."""
    return {name: getattr(options, name) for name in _OF_LOSS}
