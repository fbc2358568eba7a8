"""The command ``diagnose``: problems of a prediction, its labels, its loss and its gradient."""

from __future__ import annotations

import copy
import dataclasses
import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from edgeloss import debug
from edgeloss._checks.names import shortened
from edgeloss._checks.options import EDGE_TERMS, SUMMANDS
from edgeloss.cli.cases import Case, Reader
from edgeloss.cli.messages import printable, to_json
from edgeloss.cli.outputs import say_wrote, write
from edgeloss.cli.work import Work, read_split
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.scores import FIGURES

Facts = Mapping[str, Any]  # about an image, as in its JSON
_LISTED = 20  # of the images of a folder, at most


def diagnose(options: Namespace) -> int:
    """Print the report of each case, and draw its gradient.

    Returns:
        1 if a value is not finite, 2 if images were skipped.
    """
    split = read_split(options)
    reader, work = Reader(options, split), Work(options, split)
    figures = work.outputs(options, ".png")
    images: dict[str, dict[str, Any]] = {}  # without the gradients, of which a folder has more than fits into memory
    for files, said in work:
        said("diagnosing")
        with work.skipping(files):
            case, criterion = reader.read(files), reader.criterion
            report = debug.diagnose(criterion, case.logits, case.target)
            if (path := figures.get(files.name)) is not None:
                write(path, _figure(report, criterion, case, path.suffix), options.command)
                say_wrote(path)
            facts = _facts(report, case, criterion)
            images[files.name] = {"summary": facts} | report.to_dict()
            if not options.as_json and (report.findings or options.verbose or not options.takes_folders):
                text = _text(report, facts, criterion, is_verbose=options.verbose)
                print(f"{printable(files.name)}: {text}\n" if options.takes_folders else text)
    bad = [name for name, one in images.items() if not one["ok"]]
    warned = [name for name, one in images.items() if any(x["level"] == "warning" for x in one["findings"])]
    if options.as_json:
        every = {"ok": not bad, "not_finite": bad, "warnings": warned, "images": images, "skipped": work.skipped}
        print(to_json(every if options.takes_folders else images.popitem()[1]))
    elif options.takes_folders:
        if images:
            print(f"{_worst_first(images)}\n")
        listed = [
            f"{what}: {', '.join(map(printable, names)) or 'none'}"
            for what, names in {"not finite": bad, "warnings": warned}.items()
        ]
        print("; ".join([f"{len(images)} images", *listed]))
    reader.say_at_the_end()
    return work.finish() or (1 if bad else 0)


def _facts(report: debug.Report, case: Case, criterion: EdgeAwareLoss) -> dict[str, Any]:
    """Return what the text and the JSON of an image have: shares are fractions of 1, None where there is no whole."""
    assert criterion.ignore_index is not None  # that of a reader
    found, valid = report.to_dict(), case.target != criterion.ignore_index
    logits, labeled, wrong = found["inputs"]["logits"], case.target[valid], case.wrong(valid)[valid].double()
    facts: dict[str, Any] = {
        "verdict": report.verdict,
        "prediction": {"read_as": case.interpretation, "wrong": float(wrong.mean()) if wrong.numel() else None},
        "logits": {
            "min": logits["min"],
            "max": logits["max"],
            "not_finite": logits["nan"] + logits["posinf"] + logits["neginf"],
        },
        "labels": {
            "values": labeled.flatten().bincount().nonzero().flatten().tolist(),
            "ignored": 1 - labeled.numel() / case.target.numel(),
        },
    }
    if report.gradient is not None:
        size = report.gradient.abs().amax(1)
        facts["gradient"] = {"max": float(size.amax()), "zero": float((size == 0).double().mean())}
    if "loss" in found:
        facts["loss"] = {dtype: one["min"] for dtype, one in found["loss"].items()}
    if report.terms:
        terms, norms = report.terms, report.gradient_norms
        whole = sum(norms.values())
        facts["terms"] = {
            name: {
                "mean": terms[name],
                "weight": weight,
                "in_the_loss": weight * terms[name],
                "gradient": norms[name] / whole if whole and math.isfinite(whole) else None,
            }
            for name, option in SUMMANDS.items()
            if (weight := getattr(criterion, option))
        }
        if criterion.edge_weight:
            facts["edges"] = {name: terms[name] for name in (*(one.name for one in EDGE_TERMS), "edge", "edge_focused")}
    return facts


def _worst_first(images: Mapping[str, Facts]) -> str:
    """Return a line per image: those that are not finite, those with a warning, then the others by their loss."""
    rows = []
    for name, one in images.items():
        levels = {finding["level"] for finding in one["findings"]}
        verdict = "NOT OK" if not one["ok"] else "warning" if "warning" in levels else "healthy"
        loss = next(iter(one["summary"].get("loss", {}).values()), None)
        largest, wrong = one["summary"].get("gradient", {}).get("max"), one["summary"]["prediction"]["wrong"]
        badness = math.inf if loss is None or not math.isfinite(loss) else loss
        rank = ("NOT OK", "warning", "healthy").index(verdict), -badness
        share = "-" if wrong is None else f"{100 * wrong:.1f} %"
        rows.append((rank, (printable(name), _shown(loss), _shown(largest), share, verdict)))
    rows.sort(key=lambda row: row[0])
    head = ("image", "loss", "max |gradient|", "wrong", "")
    text = _aligned([head, *(cells for _, cells in rows[:_LISTED])], rules=[1])
    return text + f"\n{_LISTED} of {len(rows)} images, the worst first; --json has all" * (len(rows) > _LISTED)


def _text(report: debug.Report, facts: Facts, criterion: EdgeAwareLoss, *, is_verbose: bool) -> str:
    """Return what is printed of an image."""
    if is_verbose:
        return str(report)
    text = f"{report.summary()}\n\n{_numbers(facts)}"
    return f"{text}\n\n{_sum_of_terms(facts, criterion)}" if "terms" in facts else text


def _numbers(facts: Facts) -> str:
    """Return what prediction and labels are, the size of the gradient, and the loss."""
    logits, labels = facts["logits"], facts["labels"]
    span = "none is finite" if logits["min"] is None else f"{_shown(logits['min'])} to {_shown(logits['max'])}"
    if logits["not_finite"] and logits["min"] is not None:
        span += f"; {logits['not_finite']} not finite"
    ignored = f"; {100 * labels['ignored']:.1f} % of the pixels are ignored" if labels["ignored"] else ""
    lines = {
        "prediction": f"{facts['prediction']['read_as']}; {_wrong(facts)}",
        "logits": span,
        "labels": (shortened([str(label) for label in labels["values"]]) or "none") + ignored,
    }
    if "gradient" in facts:
        most, zeros = facts["gradient"]["max"], facts["gradient"]["zero"]
        at_most = f"at most {_shown(most)} at a logit" if math.isfinite(most) else "not finite"
        lines["gradient"] = at_most + (f"; 0 at {100 * zeros:.1f} % of the pixels" if zeros else "")
    if "loss" in facts:
        lines["loss"] = ", ".join(f"{_shown(loss)} in {dtype}" for dtype, loss in facts["loss"].items())
    return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def _wrong(facts: Facts) -> str:
    """Return the share of pixels that the prediction has wrong, in words; of those that are not ignored."""
    share = facts["prediction"]["wrong"]
    return "no pixel is labeled" if share is None else f"{100 * share:.1f} % of the labeled pixels are wrong"


def _sum_of_terms(facts: Facts, criterion: EdgeAwareLoss) -> str:
    """Return the terms of a loss, each with its part in the loss and in its gradient, and what the edges consist of."""
    terms = facts["terms"]
    total = sum(term["in_the_loss"] for term in terms.values())
    digits = 4 if not total or not math.isfinite(total) else min(max(3 - math.floor(math.log10(abs(total))), 4), 12)
    rows = [("term", "mean", "", "weight", "", "in the loss", "gradient")]
    for name, term in terms.items():
        row = FIGURES[name].name, f"{term['mean']:.{digits}f}", "×", f"{term['weight']:g}", "="
        rows.append((*row, f"{term['in_the_loss']:.{digits}f}", _percent(term["gradient"])))
    shares = [term["gradient"] for term in terms.values()]
    rows.append(("loss", "", "", "", "", f"{total:.{digits}f}", _percent(None if None in shares else sum(shares))))
    table = _aligned(rows, rules=[1, len(rows) - 1])
    lines = [table, "", "gradient: the norm of each weighted term's gradient by the logits, in % of their sum"]
    if (edges := facts.get("edges")) is None:
        return "\n".join(lines)
    side_weights = criterion.same_side_weight, criterion.other_side_weight
    sides = [
        f"{one.title} {edges[one.name]:.{digits}f}" + (f" × {weight:g}" if weight != 1 else "")
        for one, weight in zip(EDGE_TERMS, side_weights, strict=True)
    ]
    before, after = f"{edges['edge']:.{digits}f}", f"{edges['edge_focused']:.{digits}f}"
    return "\n".join([*lines, f"edges: {' + '.join(sides)} = {before}, {after} after the focus"])


def _aligned(rows: Sequence[Sequence[str]], rules: Sequence[int]) -> str:
    """Return rows as lines, the first column aligned at the left, with a rule above the rows with these indices."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip() for first, *others in rows
    ]
    rule = "-" * max(map(len, lines))
    for index in sorted(rules, reverse=True):
        lines.insert(index, rule)
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


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
