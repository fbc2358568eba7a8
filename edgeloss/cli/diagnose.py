"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeloss import debug
from edgeloss.cli.cases import match_files
from edgeloss.cli.messages import errors_named
from edgeloss.cli.options import (
    AsJson,
    ClassesOption,
    IgnoreIndex,
    Kind,
    Mask,
    Pred,
    PredKind,
    Reader,
    make_criterion,
    with_loss_options,
)
from edgeloss.cli.tables import to_json
from edgeloss.cli.view import PICTURE_SUFFIXES
from edgeloss.io import InputError, atomic_write


@with_loss_options
def diagnose(
    *,
    pred: Pred,
    mask: Mask,
    classes: ClassesOption = None,
    ignore_index: IgnoreIndex = None,
    pred_kind: Kind = PredKind.auto,
    as_json: AsJson = False,
    figure: Annotated[Path | None, typer.Option(help="A .png, .pdf or .svg file to draw the gradient to.")] = None,
    loss: Mapping[str, Any],
) -> None:
    """Report problems of a prediction, its labels, its loss and its gradient.

    The exit code is 1 if a value is not finite.

    \b
    Examples:
      edgeloss diagnose --pred a.npy --mask a.png
      edgeloss diagnose --pred a.pt --mask a.png --power -1 --json --figure gradient.png
    """  # noqa: D301
    reader = Reader.from_options(classes, ignore_index, pred_kind)
    criterion = make_criterion(loss, reader.ignore_index)
    files = match_files(pred, mask)
    if pred.is_dir():
        raise InputError(f"{pred}: expected the file of one image, but got a folder")
    if figure is not None and figure.suffix.lower() not in PICTURE_SUFFIXES:
        raise InputError(
            f"{figure}: expected a figure in one of {', '.join(PICTURE_SUFFIXES)}, but got"
            f" {figure.suffix or 'no suffix'}"
        )
    case = reader.read(files[0])
    with errors_named(pred):
        diagnosis = debug.diagnose(criterion, case.logits, case.target)
    typer.echo(to_json(diagnosis.to_dict()) if as_json else str(diagnosis))
    if figure is not None:
        with errors_named(pred), atomic_write(figure) as file:
            diagnosis.figure().savefig(file, format=figure.suffix.lower()[1:])
    if not diagnosis.ok:
        raise typer.Exit(1)
