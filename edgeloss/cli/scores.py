"""The scores of the command ``metrics``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchmetrics.classification import MulticlassJaccardIndex

from edgeloss.cli.cases import CaseFiles
from edgeloss.cli.messages import with_progress
from edgeloss.cli.reader import Reader
from edgeloss.io import InputError
from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU
from edgeloss.reference import readable_logits


def compute_scores(cases: Sequence[CaseFiles], reader: Reader, num_classes: int) -> dict[str, list[float]]:
    """Return the score of each class by each metric."""
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
