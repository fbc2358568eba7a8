"""Options that several commands share. Nothing here imports torch, so that --help is quick."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from edgeloss.cli.messages import say
from edgeloss.options import HELP, MODULE_ONLY, Options


class PredKind(str, enum.Enum):
    """The values of --pred-kind."""

    auto = "auto"
    logits = "logits"
    probabilities = "probabilities"
    labels = "labels"


PALETTE_NAMES = ("ade20k", "camvid", "cityscapes", "voc")  # of edgeloss.io, which imports torch
CLASSES_HELP = 'The number of classes, or a text file with one "<index> <name>" per line.'
_PRED_HELP = (
    "Logits or probabilities [C, H, W] in .npy, .npz or .pt, or labels [H, W] (also in .png). A prediction of lower"
    " resolution than the mask is upsampled as in the loss."
)
_MASK_HELP = "Labels [H, W]: a .png of class indices, or of colors with --palette, or .npy, .npz or .pt."
_PALETTE_HELP = (
    f"Colors of the classes, of pages and of color-coded masks: {', '.join(PALETTE_NAMES)}, or a text file with one"
    ' "<index> <r> <g> <b>" or "<index> #rrggbb" per line.'
)
_REMAP_HELP = (
    "Labels to replace in masks and predicted labels, FROM:TO or FIRST-LAST:TO, separated by commas: 255:1 for a mask"
    " of 0 and 255; 0:255,1-150:0 for labels that begin at 1."
)
_REGION_HELP = (
    "The class to take, by its number or name, from predictions and masks [C, H, W] of classes that may overlap; the"
    " rest is the other class."
)
_SLICE_HELP = (
    "The slices to take from volumes [C, D, H, W], with masks and images [D, H, W], along D: N, or FIRST-LAST. Each is"
    " an image of its own, with the loss of an image."
)
_IGNORE_HELP = 'The label of pixels to ignore.  [default: 255, or the line "void" of --classes]'
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class FileOptions(NamedTuple):
    """The options that say which files to read, and how."""

    pred: Annotated[Path, typer.Option(help=_PRED_HELP, show_default=False)]
    mask: Annotated[Path, typer.Option(help=_MASK_HELP, show_default=False)]
    classes: Annotated[str | None, typer.Option(metavar="N|FILE", help=CLASSES_HELP)] = None
    ignore_index: Annotated[int | None, typer.Option(help=_IGNORE_HELP, show_default=False)] = None
    pred_kind: Annotated[PredKind, typer.Option(help="What --pred holds; auto infers it from the values.")] = (
        PredKind.auto
    )
    palette: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=_PALETTE_HELP)] = None
    remap: Annotated[str | None, typer.Option(metavar="FROM:TO,...", help=_REMAP_HELP)] = None
    key: Annotated[str | None, typer.Option(help="The name of the prediction in a .npz or a dict in a .pt.")] = None
    mask_key: Annotated[str | None, typer.Option(help="The name of the labels in such a file.")] = None
    region: Annotated[str | None, typer.Option(metavar="N|NAME", help=_REGION_HELP)] = None
    slices: Annotated[str | None, typer.Option("--slice", metavar="N|FIRST-LAST", help=_SLICE_HELP)] = None
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="For folders, leave out names that are missing from one of them.")
    ] = False


# The options of the loss that a command line can hold: numbers, and one radius for both axes.
_TYPES: dict[str, Any] = {"float": float, "float | None": float | None, "int | Sequence[int]": int}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_LOSS_OPTIONS = {
    option.name: _keyword(
        option.name,
        Annotated[_TYPES[str(option.type)], typer.Option(help=f"Loss: {HELP[option.name]}")],
        option.default,
    )
    for option in dataclasses.fields(Options)
    if str(option.type) in _TYPES and option.name not in MODULE_ONLY
}


def _check_paths(values: Mapping[str, Any]) -> None:
    """Exit with an error if an input does not exist, before the command imports torch, which takes seconds."""
    paths = [values.get(name) for name in ("first", "second", "pred", "mask", "image")]
    if not str(values.get("classes") or 0).isdigit():
        paths.append(Path(values["classes"]))
    for path in paths:
        if path is not None and not path.exists():
            say(f"error: {path}: no such file or folder")
            raise typer.Exit(2)
    palette = values.get("palette")
    if palette is not None and palette not in PALETTE_NAMES and not Path(palette).exists():
        say(f"error: {palette}: expected a file, or one of {', '.join(PALETTE_NAMES)}, but got neither")
        raise typer.Exit(2)


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of files to a command, and those of the loss if it has an argument ``loss``.

    The command receives them as its arguments ``source``, a `FileOptions`, and ``loss``, a dict. An option that both
    have is that of the command. One with the arguments ``first`` and ``second`` has no ``--pred``; the source has the
    first.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    has_loss = own.pop("loss", None) is not None
    del own["source"]
    hints, defaults = get_type_hints(FileOptions, include_extras=True), FileOptions._field_defaults
    of_files = {
        name: _keyword(name, hints[name], defaults.get(name, inspect.Parameter.empty)) for name in FileOptions._fields
    }
    if "first" in own:  # a command of two predictions
        del of_files["pred"]
    shared = of_files | own | (_LOSS_OPTIONS if has_loss else {})

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:  # noqa: ANN401
        _check_paths(values)
        arguments = {name: values[name] for name in own}
        given = {"pred": values["first"], **values} if "first" in own else values
        arguments["source"] = FileOptions(**{name: given[name] for name in FileOptions._fields})
        if has_loss:
            arguments["loss"] = {name: values[name] for name in _LOSS_OPTIONS}
        command(**arguments)

    # typer reads the options from these two.
    wrapper.__signature__ = inspect.Signature(list(shared.values()))  # type: ignore[attr-defined]
    wrapper.__annotations__ = {name: parameter.annotation for name, parameter in shared.items()}
    return wrapper
