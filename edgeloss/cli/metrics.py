"""The command ``metrics``: scores of predictions, per class and averaged, as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import math
from argparse import Namespace
from collections.abc import Mapping

from edgeloss.cli.cases import Reader, find_cases, with_progress
from edgeloss.cli.messages import rounded, say, say_wrote, to_json, write
from edgeloss.cli.scoring import Scoring, check_per_image
from edgeloss.reference import readable_logits
from edgeloss.viz.scores import mean_of_present

Scores = Mapping[str, float]  # by metric


def metrics(options: Namespace) -> None:
    """Print or write the scores of predictions."""
    reader, cases = Reader(options, needs_finite=True), find_cases(options)
    assert reader.num_classes is not None
    check_per_image(options.per_image, (options.pred, options.mask, options.output))
    keeps_images = options.per_image is not None
    scoring = Scoring(
        options.scores, reader.num_classes, reader.ignore_index, options.spacing, keeps_images=keeps_images
    )
    for files, said in with_progress(cases):
        said("measuring")
        case = reader.read(files)
        labels = readable_logits(case.logits, case.target != reader.ignore_index).argmax(1)
        scoring.add(case.name, labels, case.target)
    scores = scoring.scores()
    names = reader.names or [str(c) for c in range(reader.num_classes)]
    rows = {name: {metric: values[c] for metric, values in scores.items()} for c, name in enumerate(names)}
    mean = {metric: mean_of_present(values) for metric, values in scores.items()}
    if options.per_image is not None:
        write(options.per_image, scoring.images_as_csv(names).encode())
        say_wrote(options.per_image)

    if left_out := scoring.left_out(names):
        counts = ", ".join(f"{name} in {count}" for name, count in left_out.items())
        say(f"note: no distance in images where one of the maps lacks a class: {counts}")

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
