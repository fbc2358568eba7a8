"""The command ``metrics``: scores of predictions, per class and averaged."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeloss.cli.messages import say_wrote, with_progress, write
from edgeloss.cli.options import CLASSES_HELP, FileOptions, with_shared_options
from edgeloss.cli.tables import to_csv, to_json, to_table

if TYPE_CHECKING:
    from edgeloss.cli.cases import CaseFiles, Reader


class TableFormat(str, enum.Enum):
    """The values of --format."""

    table = "table"
    csv = "csv"
    json = "json"


@with_shared_options
def metrics(
    *,
    source: FileOptions,
    classes: Annotated[str, typer.Option(metavar="N|FILE", help=CLASSES_HELP, show_default=False)],  # required here
    table_format: Annotated[TableFormat, typer.Option("--format", help="The output format.")] = TableFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file to write to instead of standard output.")
    ] = None,
) -> None:
    """Compute metrics of predictions, per class and averaged.

    IoU, Boundary IoU, boundary F1 at 1, 3 and 5 pixels, and the IoU within 3 pixels of a border (trimap).

    For folders, files are matched by name, and pixels are counted over all images. A class that does not occur has no
    score and is left out of the mean.

    \b
    Examples:
      edgeloss metrics --pred predictions --mask masks --classes 11
      edgeloss metrics --pred logits --mask masks --classes classes.txt --json -o metrics.json
    """  # noqa: D301
    from edgeloss.cli.cases import Reader, find_cases
    from edgeloss.viz.scores import mean_of_present

    reader = Reader.from_options(source)
    assert reader.num_classes is not None
    cases = find_cases(source)
    scores = _compute_scores(cases, reader, reader.num_classes)
    names = reader.names or [str(c) for c in range(reader.num_classes)]
    rows = {name: {metric: values[c] for metric, values in scores.items()} for c, name in enumerate(names)}
    mean = {metric: mean_of_present(values) for metric, values in scores.items()}

    if as_json or table_format is TableFormat.json:
        text = to_json({"images": len(cases), "mean": mean, "classes": rows})
    else:
        text = to_csv(rows, mean) if table_format is TableFormat.csv else to_table(rows, mean)
    if output is None:
        typer.echo(text)
    else:
        content = f"{text}\n".encode()
        write(output, content)
        say_wrote(output, len(content))


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
    for files in with_progress(cases):
        case = reader.read(files)
        if case.non_finite:
            raise InputError(f"{files.prediction}: expected finite values, but got {case.non_finite} others")
        labels = readable_logits(case.logits, case.target != reader.ignore_index).argmax(1)
        for metric in metrics.values():
            metric.update(labels, case.target)
    return {name: metric.compute().tolist() for name, metric in metrics.items()}
