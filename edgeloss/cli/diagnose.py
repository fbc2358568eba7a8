"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

import copy
import dataclasses
from argparse import Namespace

from edgeloss import debug
from edgeloss.cli.cases import Case, Reader, errors_named, find_cases, with_progress
from edgeloss.cli.messages import say_wrote, to_json, write
from edgeloss.loss import EdgeAwareLoss


def diagnose(options: Namespace) -> int:
    """Print the report of each case, and draw its gradient; return 1 if a value is not finite."""
    reader = Reader(options)
    reports: dict[str, debug.Report] = {}
    for files, said in with_progress(find_cases(options)):
        said("diagnosing")
        case = reader.read(files)
        with errors_named(files.prediction):
            report = reports[files.name] = debug.diagnose(reader.criterion, case.logits, case.target)
            if (path := options.output) is not None:
                path = path / f"{files.name}.png" if options.takes_folders else path
                write(path, _figure(report, reader.criterion, case, path.suffix))
                say_wrote(path)
        if not options.as_json:
            print(f"{files.name}: {report}\n" if options.takes_folders else str(report))
    bad = [name for name, report in reports.items() if not report.ok]
    if options.as_json:
        images = {name: report.to_dict() for name, report in reports.items()}
        print(to_json({"ok": not bad, "images": images} if options.takes_folders else images.popitem()[1]))
    elif options.takes_folders:
        print(f"{len(reports)} images; not finite: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


def _figure(report: debug.Report, criterion: EdgeAwareLoss, case: Case, suffix: str) -> bytes:
    """Draw the gradient; if it is not finite, without the region term, which spreads nan over the whole image."""
    if not report.ok and criterion.region_weight:
        pointwise = copy.copy(criterion)
        pointwise.region_weight = 0.0
        report = debug.diagnose(pointwise, case.logits, case.target)
        report = dataclasses.replace(report, name=f"{report.name} without the region term")
    return report.figure().content(suffix)
