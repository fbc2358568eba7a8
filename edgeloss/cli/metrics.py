"""The command ``metrics``: scores of predictions, per class and averaged, as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import math
from argparse import Namespace
from collections.abc import Mapping

import torch
from torch import Tensor

from edgeloss.cli.cases import Reader
from edgeloss.cli.messages import rounded, say, to_json
from edgeloss.cli.outputs import say_wrote, write
from edgeloss.cli.scoring import Scoring, check_per_image
from edgeloss.cli.tables import Scores, scores_as_text
from edgeloss.cli.work import CaseFiles, Work, errors_named, read_split
from edgeloss.viz.scores import mean_of_present

_SHOWN = 10  # of many classes, the lowest and as many of the highest


def metrics(options: Namespace) -> int:
    """Print or write the scores of predictions; return 2 if images were skipped."""
    split = read_split(options)
    reader, work = Reader(options, split, needs_finite=True), Work(options, split)
    assert reader.num_classes is not None
    check_per_image(options.per_image, (options.pred, options.mask, options.output))
    keeps_images = options.per_image is not None
    scoring = Scoring(
        options.scores,
        reader.num_classes,
        reader.ignore_index,
        options.spacing,
        across_void=options.across_void,
        dims=3 if options.volumes else 2,
        keeps_images=keeps_images,
    )
    for files, said in work:
        said("measuring")
        with work.skipping(files):
            labels, target = _read_labels(reader, files, volumes=options.volumes)
        if files.name in work.skipped:
            continue
        with errors_named(files):  # not to be skipped: some measures have counted it
            scoring.add(files.name, labels, target)
    if len(work.skipped) == len(work.cases):
        return work.finish()
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
    count = len(work.cases) - len(work.skipped)
    if form == "json":
        text = to_json({"images": count, "mean": mean, "classes": rows})
    elif form == "csv":
        text = _to_csv([*rows.items(), ("mean", mean)])
    else:
        listed = _best_and_worst(rows)
        counted = f"{count} {'volume' if options.volumes else 'image'}{'s' * (count != 1)}"
        text = f"{counted}; {scores_as_text([*listed.items()], mean, options.spacing)}"
        if len(rows) > len(listed):
            text += f"\n{len(listed)} of {len(rows)} classes, the worst and the best by IoU; --csv has all"
    if output is None:
        print(text)
    else:
        write(output, f"{text}\n".encode(), options.command)
        say_wrote(output)
    reader.say_at_the_end()
    return work.finish()


def _read_labels(reader: Reader, files: CaseFiles, *, volumes: bool) -> tuple[Tensor, Tensor]:
    """Return predicted and true labels of a case: [B, H, W], of an image or of slices, or of a volume [1, D, H, W]."""
    parts = [
        (part.predicted(part.target != reader.ignore_index), part.target)
        for part in reader.parts(files, volumes=volumes)
    ]
    labels, target = (torch.cat(maps) for maps in zip(*parts, strict=True))
    return (labels[None], target[None]) if volumes else (labels, target)


def _best_and_worst(rows: Mapping[str, Scores]) -> Mapping[str, Scores]:
    """Return the rows of the classes of lowest and highest IoU, lowest first; of few classes, all in order."""
    if len(rows) <= 2 * _SHOWN:
        return rows
    scored = sorted((name for name in rows if not math.isnan(rows[name]["iou"])), key=lambda name: rows[name]["iou"])
    kept = scored if len(scored) <= 2 * _SHOWN else [*scored[:_SHOWN], *scored[-_SHOWN:]]
    return {name: rows[name] for name in kept}


def _to_csv(rows: list[tuple[str, Scores]]) -> str:
    """Return a line per row; nan is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *rows[0][1]])
    for name, scores in rows:
        writer.writerow([name, *("" if math.isnan(value) else rounded(value) for value in scores.values())])
    return text.getvalue().rstrip("\n")
