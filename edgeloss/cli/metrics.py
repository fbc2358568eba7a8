"""The command ``metrics``: scores of predictions, per class and averaged."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeloss.cli.messages import say_wrote, with_progress, write
from edgeloss.cli.options import CLASSES_HELP, option
from edgeloss.cli.tables import to_csv, to_json, to_table

if TYPE_CHECKING:
    from edgeloss.cli.cases import CaseFiles, Reader

OPTIONS = [
    option("--classes", metavar="N|FILE", required=True, help=CLASSES_HELP),
    option("--format", choices=("table", "csv", "json"), default="table", help="The output format."),
    option("--json", dest="format", action="store_const", const="json", help="The same as --format json."),
    option("--output", "-o", type=Path, help="A file to write to instead of standard output."),
]


def metrics(options: Namespace) -> None:
    """Compute metrics of predictions, per class and averaged.

    IoU, Boundary IoU, boundary F1 at 1, 3 and 5 pixels, and the IoU within 3 pixels of a border (trimap).

    For folders, files are matched by name, and pixels are counted over all images. A class that does not occur has no
    score and is left out of the mean.

    Examples:
      edgeloss metrics --pred predictions --mask masks --classes 11
      edgeloss metrics --pred logits --mask masks --classes classes.txt --json -o metrics.json
    """
    from edgeloss.cli.cases import Reader, find_cases
    from edgeloss.viz.scores import mean_of_present

    reader = Reader(options)
    assert reader.num_classes is not None
    cases = find_cases(options)
    scores = _compute_scores(cases, reader, reader.num_classes)
    names = reader.names or [str(c) for c in range(reader.num_classes)]
    rows = {name: {metric: values[c] for metric, values in scores.items()} for c, name in enumerate(names)}
    mean = {metric: mean_of_present(values) for metric, values in scores.items()}

    if options.format == "json":
        text = to_json({"images": len(cases), "mean": mean, "classes": rows})
    else:
        text = to_csv(rows, mean) if options.format == "csv" else to_table(rows, mean)
    if options.output is None:
        print(text)
    else:
        content = f"{text}\n".encode()
        write(options.output, content)
        say_wrote(options.output, len(content))


def _compute_scores(cases: Sequence[CaseFiles], reader: Reader, num_classes: int) -> dict[str, list[float]]:
    """Return the score of each class by each metric."""
    from torchmetrics.classification import MulticlassJaccardIndex

    from edgeloss.io import InputError
    from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU
    from edgeloss.reference import readable_logits

    options: dict[str, Any] = {"ignore_index": reader.ignore_index, "average": "none"}
    metrics = {
        "iou": MulticlassJaccardIndex(num_classes, zero_division=math.nan, **options),
        "boundary_iou": BoundaryIoU(num_classes, **options),
        **{f"boundary_f1_{radius}px": BoundaryF1(num_classes, radius=radius, **options) for radius in (1, 3, 5)},
        "trimap_iou_3px": TrimapIoU(num_classes, radius=3, **options),
    }
    for files, said in with_progress(cases):
        said("measuring")
        case = reader.read(files)
        if case.non_finite:
            raise InputError(f"{files.prediction}: expected finite values, but got {case.non_finite} others")
        labels = readable_logits(case.logits, case.target != reader.ignore_index).argmax(1)
        for metric in metrics.values():
            metric.update(labels, case.target)
    return {name: metric.compute().tolist() for name, metric in metrics.items()}
