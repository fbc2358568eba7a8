"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeloss.cli.messages import PICTURE_SUFFIXES, check_suffix, errors_named, say_wrote, with_progress, write
from edgeloss.cli.options import AsJson, FileOptions, with_shared_options
from edgeloss.cli.tables import to_json

if TYPE_CHECKING:
    from edgeloss.cli.cases import Case
    from edgeloss.debug import Report
    from edgeloss.loss import EdgeAwareLoss
    from edgeloss.viz.drawing import TextFigure


@with_shared_options
def diagnose(
    *,
    source: FileOptions,
    as_json: AsJson = False,
    figure: Annotated[
        Path | None,
        typer.Option(help="A .png, .pdf or .svg file to draw the gradient to; for folders, a folder of .png files."),
    ] = None,
    loss: Mapping[str, Any],
) -> None:
    """Report problems of predictions, their labels, their loss and its gradient.

    For folders, files are matched by name, and each image has its own report.

    The exit code is 1 if a value is not finite.

    \b
    Examples:
      edgeloss diagnose --pred a.npy --mask a.png
      edgeloss diagnose --pred a.pt --mask a.png --power -1 --json --figure gradient.png
      edgeloss diagnose --pred logits --mask masks --classes 11
    """  # noqa: D301
    from edgeloss import debug
    from edgeloss.cli.cases import Reader, find_cases, make_criterion

    reader = Reader.from_options(source)
    criterion = make_criterion(loss, reader.ignore_index)
    cases, several = find_cases(source), source.pred.is_dir()
    if figure is not None and not several:
        check_suffix(figure, PICTURE_SUFFIXES)
    found: dict[str, Report] = {}
    for files in with_progress(cases):
        case = reader.read(files)
        with errors_named(files.prediction):
            diagnosis = found[files.name] = debug.diagnose(criterion, case.logits, case.target)
            if figure is not None:
                path = figure / f"{files.name}.png" if several else figure
                content = _figure(diagnosis, criterion, case).content(path.suffix)
                write(path, content)
                say_wrote(path, len(content))
        if not as_json:
            typer.echo(f"{files.name}: {diagnosis}\n" if several else str(diagnosis))
    bad = [name for name, diagnosis in found.items() if not diagnosis.ok]
    if not several and as_json:
        typer.echo(to_json(diagnosis.to_dict()))
    elif as_json:
        images = {name: diagnosis.to_dict() for name, diagnosis in found.items()}
        typer.echo(to_json({"ok": not bad, "images": images}))
    elif several:
        typer.echo(f"{len(found)} images; not finite: {', '.join(bad) or 'none'}")
    if bad:
        raise typer.Exit(1)


def _figure(diagnosis: Report, criterion: EdgeAwareLoss, case: Case) -> TextFigure:
    """Draw the gradient; if it is not finite, without the region term, which spreads nan over the whole image."""
    from edgeloss import debug

    if diagnosis.ok or not criterion.region_weight:
        return diagnosis.figure()
    pointwise = copy.copy(criterion)
    pointwise.region_weight = 0.0
    shown = debug.diagnose(pointwise, case.logits, case.target)
    return dataclasses.replace(shown, name=f"{shown.name} without the region term").figure()
