"""Options that several commands share, and what they mean for the files and the loss."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edgeloss.cli.cases import Case, CaseFiles, read_case
from edgeloss.cli.messages import say
from edgeloss.io import VOID_INDEX, InputError, PredictionKind, read_classes
from edgeloss.loss import EdgeAwareLoss
from edgeloss.options import HELP, MODULE_ONLY, Options


class PredKind(str, enum.Enum):
    """The values of --pred-kind."""

    auto = "auto"
    logits = "logits"
    probabilities = "probabilities"
    labels = "labels"


_PRED_HELP = (
    "Logits or probabilities [C, H, W] in .npy, .npz or .pt, or labels [H, W] (also in .png). A prediction of lower"
    " resolution than the mask is upsampled as in the loss."
)
CLASSES_HELP = 'The number of classes, or a text file with one "<index> <name>" per line.'
Pred = Annotated[Path, typer.Option(help=_PRED_HELP, show_default=False)]
Mask = Annotated[Path, typer.Option(help="Labels [H, W]: a .png of class indices, or .npy, .npz or .pt.")]
ClassesOption = Annotated[str | None, typer.Option(metavar="N|FILE", help=CLASSES_HELP)]
IgnoreIndex = Annotated[
    int | None,
    typer.Option(
        help='The label of pixels to ignore.  [default: 255, or the line "void" of --classes]',
        show_default=False,
    ),
]
Kind = Annotated[PredKind, typer.Option(help="What --pred holds; auto infers it from the values.")]
SkipMissing = Annotated[
    bool, typer.Option("--skip-missing", help="For folders, leave out names that are missing from one of them.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# The options of the loss that a command line can hold: numbers, and one radius for both axes.
_TYPES: dict[str, Any] = {"float": float, "float | None": float | None, "int | Sequence[int]": int}
_LOSS_OPTIONS: dict[str, Any] = {
    option.name: _TYPES[str(option.type)]
    for option in dataclasses.fields(Options)
    if str(option.type) in _TYPES and option.name not in MODULE_ONLY
}


def with_loss_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the loss to a command, which receives them as its argument ``loss``."""
    defaults = {option.name: option.default for option in dataclasses.fields(Options)}
    of_command = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "loss"]
    of_loss = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name],
            annotation=Annotated[kind, typer.Option(help=f"Loss: {HELP[name]}")],
        )
        for name, kind in _LOSS_OPTIONS.items()
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:  # noqa: ANN401
        loss = {name: values.pop(name) for name in _LOSS_OPTIONS}
        command(**values, loss=loss)

    # typer reads the options from these two.
    wrapper.__signature__ = inspect.Signature([*of_command, *of_loss])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in [*of_command, *of_loss]}
    return wrapper


class Reader(NamedTuple):
    """How to read files.

    Attributes:
        kind: what predictions hold; None infers it.
        num_classes: the number of classes, if it is known.
        names: of the classes, if they are known.
        ignore_index: the label of ignored pixels.
    """

    kind: PredictionKind | None
    num_classes: int | None
    names: list[str] | None
    ignore_index: int

    @classmethod
    def from_options(cls, classes: str | None, ignore_index: int | None, kind: PredKind) -> Reader:
        """Return what --classes, --ignore-index and --pred-kind ask for.

        Raises:
            InputError: if --classes is out of range or its file cannot be used.
        """
        count: int | None = None
        names, void = None, None
        if classes is not None and classes.isascii() and classes.isdigit():
            count = int(classes)
        elif classes is not None:
            names, void = read_classes(classes)
            count = len(names)
        if count is not None and not 2 <= count < 2**15:
            raise InputError(f"--classes: expected 2 to {2**15 - 1} classes, but got {count}; one logit has two")
        if ignore_index is None:
            ignore_index = VOID_INDEX if void is None else void
        return cls(None if kind is PredKind.auto else kind.value, count, names, ignore_index)

    def read(self, files: CaseFiles) -> Case:
        """Read the files of one case, with a note about non-finite values and about a mask of 0 and 255."""
        case = read_case(files, kind=self.kind, num_classes=self.num_classes, ignore_index=self.ignore_index)
        if case.non_finite:
            say(f"note: {files.prediction}: {case.non_finite} of {case.logits.numel()} values are not finite")
        void = case.target == self.ignore_index
        if case.logits.shape[1] <= 2 and void.any() and not (case.target[~void] != 0).any():
            say(f"note: {files.mask}: holds only 0 and {self.ignore_index}, which is ignored; store class 1 as 1")
        return case


def make_criterion(loss: Mapping[str, Any], ignore_index: int) -> EdgeAwareLoss:
    """Return the loss that the options ask for.

    Raises:
        InputError: if an option is out of range.
    """
    try:
        stateless: dict[str, Any] = {"edge_class_weight": None, "edge_focus": 0.0}  # a command has no steps
        return EdgeAwareLoss(ignore_index=ignore_index, upsample=True, **stateless, **loss)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
