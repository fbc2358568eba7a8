"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

import copy
import dataclasses
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeloss.cli.messages import PICTURE_SUFFIXES, check_suffix, errors_named, say_wrote, with_progress, write
from edgeloss.cli.options import AS_JSON, option
from edgeloss.cli.tables import print_json

if TYPE_CHECKING:
    from edgeloss.cli.cases import Case
    from edgeloss.debug import Report
    from edgeloss.loss import EdgeAwareLoss
    from edgeloss.viz.drawing import TextFigure

OPTIONS = [
    AS_JSON,
    option(
        "--figure",
        type=Path,
        help="A .png, .pdf or .svg file to draw the gradient to; for folders, a folder of .png files.",
    ),
]


def diagnose(options: Namespace) -> int:
    """Report problems of predictions, their labels, their loss and its gradient.

    For folders, files are matched by name, and each image has its own report.

    The exit code is 1 if a value is not finite.

    Examples:
      edgeloss diagnose --pred a.npy --mask a.png
      edgeloss diagnose --pred a.pt --mask a.png --power -1 --json --figure gradient.png
      edgeloss diagnose --pred logits --mask masks --classes 11
    """
    from edgeloss import debug
    from edgeloss.cli.cases import Reader, find_cases
    from edgeloss.cli.pages import make_criterion

    reader, figure = Reader(options), options.figure
    criterion = make_criterion(options, reader.ignore_index)
    cases, several = find_cases(options), options.pred.is_dir()
    if figure is not None and not several:
        check_suffix(figure, PICTURE_SUFFIXES)
    found: dict[str, Report] = {}
    for files, said in with_progress(cases):
        said("diagnosing")
        case = reader.read(files)
        with errors_named(files.prediction):
            diagnosis = found[files.name] = debug.diagnose(criterion, case.logits, case.target)
            if figure is not None:
                path = figure / f"{files.name}.png" if several else figure
                content = _figure(diagnosis, criterion, case).content(path.suffix)
                write(path, content)
                say_wrote(path, len(content))
        if not options.as_json:
            print(f"{files.name}: {diagnosis}\n" if several else str(diagnosis))
    bad = [name for name, diagnosis in found.items() if not diagnosis.ok]
    if not several and options.as_json:
        print_json(diagnosis.to_dict())
    elif options.as_json:
        images = {name: diagnosis.to_dict() for name, diagnosis in found.items()}
        print_json({"ok": not bad, "images": images})
    elif several:
        print(f"{len(found)} images; not finite: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


def _figure(diagnosis: Report, criterion: EdgeAwareLoss, case: Case) -> TextFigure:
    """Draw the gradient; if it is not finite, without the region term, which spreads nan over the whole image."""
    from edgeloss import debug

    if diagnosis.ok or not criterion.region_weight:
        return diagnosis.figure()
    pointwise = copy.copy(criterion)
    pointwise.region_weight = 0.0
    shown = debug.diagnose(pointwise, case.logits, case.target)
    return dataclasses.replace(shown, name=f"{shown.name} without the region term").figure()
