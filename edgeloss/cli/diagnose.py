"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

import copy
import dataclasses
import math
from argparse import Namespace

from edgeloss import debug
from edgeloss.cli.cases import Case, Reader
from edgeloss.cli.messages import printable, to_json
from edgeloss.cli.outputs import say_wrote, write
from edgeloss.cli.work import Work, read_split
from edgeloss.io.arrays import shortened
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
            text = (
                str(report)
                if options.verbose
                else f"{report.summary()}\n\n{_numbers(report, case, reader.ignore_index)}"
            )
            print(f"{printable(files.name)}: {text}\n" if options.takes_folders else text)
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


def _numbers(report: debug.Report, case: Case, ignore_index: int | None) -> str:
    """Return what logits and labels are, the loss, its terms and its gradient, a line each."""
    found = report.to_dict()
    logits, target = found["inputs"]["logits"], case.target
    counted = target if ignore_index is None else target[target != ignore_index]
    classes = shortened([str(label) for label in counted.flatten().bincount().nonzero().flatten().tolist()])
    ignored = 1 - counted.numel() / target.numel()
    lines = {
        "logits": f"{_shown(logits['min'])} to {_shown(logits['max'])}",
        "labels": f"{classes or 'none'}; {ignored:.1%} of the pixels are ignored",
    }
    if "loss" in found:
        lines["loss"] = ", ".join(f"{_shown(one['min'])} in {dtype}" for dtype, one in found["loss"].items())
    if isinstance(terms := found.get("terms"), dict):
        lines["terms"] = ", ".join(f"{name} {_shown(term['loss']['min'])}" for name, term in terms.items())
        lines["terms"] += ", before their weights"
    if report.gradient is not None:
        size = report.gradient.abs().amax(1)
        zeros = float((size == 0).double().mean())
        lines["gradient"] = f"at most {_shown(float(size.amax()))}; 0 at {zeros:.1%} of the pixels"
    return "\n".join(f"{name:<10}{text}" for name, text in lines.items())


def _shown(value: float | None) -> str:
    """Return a finite number with four digits."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _figure(report: debug.Report, criterion: EdgeAwareLoss, case: Case, suffix: str) -> bytes:
    """Draw the gradient; if it is not finite, that of pixels: regions and the focus spread nan over an image."""
    if not report.ok and (criterion.region_weight or criterion.edge_focus):
        pointwise = copy.copy(criterion)
        pointwise.region_weight = pointwise.edge_focus = 0.0
        report = debug.diagnose(pointwise, case.logits, case.target)
        report = dataclasses.replace(report, name=f"{report.name} without region term and focus")
    return report.figure().content(suffix)
