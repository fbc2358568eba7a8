"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

import copy
import dataclasses
from argparse import Namespace

from edgeloss import debug
from edgeloss.cli.cases import Case, Reader
from edgeloss.cli.messages import printable, to_json
from edgeloss.cli.outputs import say_wrote, write
from edgeloss.cli.work import Work, read_split
from edgeloss.loss import EdgeAwareLoss


def diagnose(options: Namespace) -> int:
    """Print the report of each case, and draw its gradient.

    Returns:
        1 if a value is not finite, 2 if images were skipped.
    """
    split = read_split(options)
    reader, work = Reader(options, split), Work(options, split)
    figures = work.outputs(options, ".png")
    reports: dict[str, debug.Report] = {}
    for files, said in work:
        said("diagnosing")
        with work.skipping(files):
            case = reader.read(files)
            report = debug.diagnose(reader.criterion, case.logits, case.target)
            if (path := figures.get(files.name)) is not None:
                write(path, _figure(report, reader.criterion, case, path.suffix), options.command)
                say_wrote(path)
            reports[files.name] = report
        if not options.as_json and files.name in reports:
            report = reports[files.name]
            print(f"{printable(files.name)}: {report}\n" if options.takes_folders else str(report))
    bad = [name for name, report in reports.items() if not report.ok]
    if options.as_json:
        images = {name: report.to_dict() for name, report in reports.items()}
        every = {"ok": not bad, "images": images, "skipped": work.skipped}
        print(to_json(every if options.takes_folders else images.popitem()[1]))
    elif options.takes_folders:
        warned = [name for name, report in reports.items() if any(one.level == "warning" for one in report.findings)]
        listed = [
            f"{what}: {', '.join(map(printable, names)) or 'none'}"
            for what, names in {"not finite": bad, "warnings": warned}.items()
        ]
        print("; ".join([f"{len(reports)} images", *listed]))
    reader.say_at_the_end()
    return work.finish() or (1 if bad else 0)


def _figure(report: debug.Report, criterion: EdgeAwareLoss, case: Case, suffix: str) -> bytes:
    """Draw the gradient; if it is not finite, that of pixels: regions and the focus spread nan over an image."""
    if not report.ok and (criterion.region_weight or criterion.edge_focus):
        pointwise = copy.copy(criterion)
        pointwise.region_weight = pointwise.edge_focus = 0.0
        report = debug.diagnose(pointwise, case.logits, case.target)
        report = dataclasses.replace(report, name=f"{report.name} without region term and focus")
    return report.figure().content(suffix)
