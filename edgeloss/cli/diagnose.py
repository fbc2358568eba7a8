"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

import copy
import dataclasses
import math
from argparse import Namespace

from torch import Tensor

from edgeloss import debug
from edgeloss._checks.names import shortened
from edgeloss._checks.options import EDGE_TERMS, SUMMANDS
from edgeloss.cli.cases import Case, Reader
from edgeloss.cli.messages import printable, to_json
from edgeloss.cli.outputs import say_wrote, write
from edgeloss.cli.work import Work, read_split
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.scores import FIGURES


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
            text = _text(reports[files.name], case, reader.criterion, options)
            print(f"{printable(files.name)}: {text}" if options.takes_folders else text)
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


def _text(report: debug.Report, case: Case, criterion: EdgeAwareLoss, options: Namespace) -> str:
    """Return what is printed of an image; of one in a folder without a finding, a line."""
    if options.verbose:
        return f"{report}\n" if options.takes_folders else str(report)
    if options.takes_folders and not report.findings and report.gradient is not None:
        loss, largest = next(iter(report.to_dict()["loss"].values()))["min"], float(report.gradient.abs().amax())
        numbers = f"loss {_shown(loss)} and healthy, gradient at most {_shown(largest)} at a logit"
        return f"{numbers}; {_wrong(case, criterion)}"
    text = f"{report.summary()}\n\n{_numbers(report, case, criterion)}"
    return f"{text}\n" if options.takes_folders else text


def _numbers(report: debug.Report, case: Case, criterion: EdgeAwareLoss) -> str:
    """Return what prediction and labels are, the size of the gradient, and the loss as a sum of its terms."""
    found = report.to_dict()
    logits, counted = found["inputs"]["logits"], case.target[_valid(case, criterion)]
    classes = shortened([str(label) for label in counted.flatten().bincount().nonzero().flatten().tolist()])
    ignored = 1 - counted.numel() / case.target.numel()
    lines = {
        "prediction": f"{case.interpretation}; {_wrong(case, criterion)}",
        "logits": f"{_shown(logits['min'])} to {_shown(logits['max'])}",
        "labels": (classes or "none") + (f"; {100 * ignored:.1f} % of the pixels are ignored" if ignored else ""),
    }
    if report.gradient is not None:
        size = report.gradient.abs().amax(1)
        zeros, most = float((size == 0).double().mean()), float(size.amax())
        at_most = f"at most {_shown(most)} at a logit" if math.isfinite(most) else "not finite"
        lines["gradient"] = at_most + (f"; 0 at {100 * zeros:.1f} % of the pixels" if zeros else "")
    if "loss" in found:
        lines["loss"] = ", ".join(f"{_shown(one['min'])} in {dtype}" for dtype, one in found["loss"].items())
    text = "\n".join(f"{name:<12}{text}" for name, text in lines.items())
    return f"{text}\n\n{_sum_of_terms(report, criterion)}" if report.terms else text


def _valid(case: Case, criterion: EdgeAwareLoss) -> Tensor:
    """Return the mask of the pixels that are not ignored."""
    assert criterion.ignore_index is not None  # that of a reader
    return case.target != criterion.ignore_index


def _wrong(case: Case, criterion: EdgeAwareLoss) -> str:
    """Return the share of pixels that the prediction has wrong, in words; of those that are not ignored."""
    valid = _valid(case, criterion)
    wrong = (case.predicted(valid) != case.target)[valid]
    if not wrong.numel():
        return "no pixel is labeled"
    return f"{100 * float(wrong.double().mean()):.1f} % of the labeled pixels are wrong"


def _sum_of_terms(report: debug.Report, criterion: EdgeAwareLoss) -> str:
    """Return the terms of a loss, each with its part in the loss and in its gradient, and what the edges consist of."""
    terms, norms = report.terms, report.gradient_norms
    weights = {name: weight for name, option in SUMMANDS.items() if (weight := getattr(criterion, option))}
    total, all_norms = sum(weight * terms[name] for name, weight in weights.items()), sum(norms.values())
    digits = 4 if not total or not math.isfinite(total) else min(max(3 - math.floor(math.log10(abs(total))), 4), 12)
    rows = [("term", "mean", "", "weight", "", "in the loss", "gradient")]
    for name, weight in weights.items():
        part = f"{weight * terms[name]:.{digits}f}"
        row = FIGURES[name].name, f"{terms[name]:.{digits}f}", "×", f"{weight:g}", "=", part
        rows.append((*row, _share(norms[name], all_norms)))
    rows.append(("loss", "", "", "", "", f"{total:.{digits}f}", _share(all_norms, all_norms)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip() for first, *others in rows
    ]
    rule = "-" * len(lines[0])
    lines[1:1], lines[-1:-1] = [rule], [rule]
    lines += ["", "gradient: the norm of each weighted term's gradient by the logits, in % of their sum"]
    if not criterion.edge_weight:
        return "\n".join(lines)
    side_weights = criterion.same_side_weight, criterion.other_side_weight
    sides = [
        f"{one.title} {terms[one.name]:.{digits}f}" + (f" × {weight:g}" if weight != 1 else "")
        for one, weight in zip(EDGE_TERMS, side_weights, strict=True)
    ]
    before, after = f"{terms['edge']:.{digits}f}", f"{terms['edge_focused']:.{digits}f}"
    return "\n".join([*lines, f"edges: {' + '.join(sides)} = {before}, {after} after the focus"])


def _share(part: float, whole: float) -> str:
    """Return a part in percent, a dash where there is no whole."""
    return f"{100 * part / whole:.0f} %" if whole and math.isfinite(whole) else "-"


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
    return dataclasses.replace(report, name=f"{report.name}, {printable(case.name)}").figure().content(suffix)
