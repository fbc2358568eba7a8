"""The command ``metrics``: scores of predictions, per class and averaged, as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import math
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torchmetrics.classification import MulticlassJaccardIndex

from edgeloss.cli.cases import Reader, find_cases, with_progress
from edgeloss.cli.messages import rounded, say_wrote, to_json, write
from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU
from edgeloss.reference import readable_logits
from edgeloss.viz.scores import mean_of_present

Scores = Mapping[str, float]  # by metric


def metrics(options: Namespace) -> None:
    """Print or write the scores of predictions."""
    reader, cases = Reader(options, needs_finite=True), find_cases(options)
    assert reader.num_classes is not None
    shared: dict[str, Any] = {"ignore_index": reader.ignore_index, "average": "none"}
    measures = {
        "iou": MulticlassJaccardIndex(reader.num_classes, zero_division=math.nan, **shared),
        "boundary_iou": BoundaryIoU(reader.num_classes, **shared),
        **{f"boundary_f1_{radius}px": BoundaryF1(reader.num_classes, radius=radius, **shared) for radius in (1, 3, 5)},
        "trimap_iou_3px": TrimapIoU(reader.num_classes, radius=3, **shared),
    }
    for files, said in with_progress(cases):
        said("measuring")
        case = reader.read(files)
        labels = readable_logits(case.logits, case.target != reader.ignore_index).argmax(1)
        for measure in measures.values():
            measure.update(labels, case.target)
    scores = {name: measure.compute().tolist() for name, measure in measures.items()}
    names = reader.names or [str(c) for c in range(reader.num_classes)]
    rows = {name: {metric: values[c] for metric, values in scores.items()} for c, name in enumerate(names)}
    mean = {metric: mean_of_present(values) for metric, values in scores.items()}

    output = options.output
    form = options.format or ("table" if output is None else output.suffix.lower()[1:])
    if form == "json":
        text = to_json({"images": len(cases), "mean": mean, "classes": rows})
    else:
        text = (_to_csv if form == "csv" else _to_table)([*rows.items(), ("mean", mean)])
    if output is None:
        print(text)
    else:
        write(output, f"{text}\n".encode())
        say_wrote(output)


def _to_csv(rows: list[tuple[str, Scores]]) -> str:
    """Return a line per row; nan is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *rows[0][1]])
    for name, scores in rows:
        writer.writerow([name, *("" if math.isnan(value) else rounded(value) for value in scores.values())])
    return text.getvalue().rstrip("\n")


def _to_table(rows: list[tuple[str, Scores]]) -> str:
    """Return aligned columns with a line per row; nan is a dash."""
    lines = [["class", *(name.replace("_", " ") for name in rows[0][1])]]
    for name, scores in rows:
        lines.append([name, *("-" if math.isnan(value) else f"{value:.4f}" for value in scores.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
