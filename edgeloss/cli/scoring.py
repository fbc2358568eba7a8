"""The scores that ``metrics`` computes: of all images together, and of each by itself."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassJaccardIndex

from edgeloss.cli.messages import rounded
from edgeloss.io import InputError
from edgeloss.metrics import BoundaryF1, BoundaryIoU, BoundaryScores, TrimapIoU

Scores = Mapping[str, list[float]]  # a value per class by metric
_HEADER = ["image", "class", "score", "value"]


def check_per_image(path: Path | None, others: Iterable[Path | None]) -> None:
    """Check that the file for the scores of images is a new one, or an earlier one of its kind.

    Args:
        path: the file; None for none.
        others: the inputs and the output.

    Raises:
        InputError: if the file is one of the others, or was not written by this command.
    """
    if path is None:
        return
    if any(other is not None and os.path.realpath(other) == os.path.realpath(path) for other in others):
        raise InputError(f"{path}: expected another path than the inputs and --output, but got one of them")
    if path.is_dir():
        raise InputError(f"{path}: expected a file to write to, but got a folder")
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            is_own = file.read(200).startswith(",".join(_HEADER).encode())
        if not is_own:
            raise InputError(f"{path}: expected a new file, but got another one; choose another --per-image")


class Scoring:
    """Add up the scores of images.

    Args:
        scores: "default", or "all" for the scores of :class:`edgeloss.metrics.BoundaryScores` too.
        num_classes: C.
        ignore_index: the label of void pixels.
        spacing: size of a pixel of "all", one number or one per axis; None for 1.
        across_void: the width of void that boundary scores continue labels across.
        dims: 2 for images, 3 for volumes.
        keeps_images: whether to keep the scores of each image.

    Raises:
        InputError: for a spacing of another number of axes, or of the default scores, which are in pixels.
    """

    def __init__(
        self,
        scores: str,
        num_classes: int,
        ignore_index: int,
        spacing: Sequence[float] | None,
        *,
        across_void: int,
        dims: int,
        keeps_images: bool,
    ) -> None:
        """Create the metrics."""
        shared: dict[str, Any] = {"ignore_index": ignore_index, "average": "none"}
        iou = MulticlassJaccardIndex(num_classes, zero_division=math.nan, **shared)
        shared["across_void"] = across_void
        self._metrics: dict[str, Metric] = {"iou": iou}
        if spacing is not None and scores != "all":
            raise InputError("--spacing: expected --scores all too, since the default scores are in pixels")
        if spacing is not None and len(spacing) not in (1, dims):
            axes = {2: "two, height and width", 3: "three, depth, height and width"}[dims]
            raise InputError(f"--spacing: expected one size, or {axes}, but got {len(spacing)}")
        if scores == "all":
            size = spacing[0] if spacing is not None and len(spacing) == 1 else spacing
            self._metrics["all"] = BoundaryScores(num_classes, spacing=size, **shared)
        else:
            self._metrics["boundary_iou"] = BoundaryIoU(num_classes, **shared)
            for radius in (1, 3, 5):
                self._metrics[f"boundary_f1_{radius}px"] = BoundaryF1(num_classes, radius=radius, **shared)
            self._metrics["trimap_iou_3px"] = TrimapIoU(num_classes, radius=3, **shared)
        self._images: dict[str, Scores] | None = {} if keeps_images else None

    def add(self, name: str, labels: Tensor, target: Tensor) -> None:
        """Score an image."""
        if self._images is None:
            for metric in self._metrics.values():
                metric.update(labels, target)
        else:
            self._images[name] = _flat({key: metric(labels, target) for key, metric in self._metrics.items()})

    def scores(self) -> Scores:
        """Return the scores of all images."""
        return _flat({key: metric.compute() for key, metric in self._metrics.items()})

    def left_out(self, classes: Sequence[str]) -> dict[str, int]:
        """Return in how many images each class has no distance, since one of the maps lacks it; without zeros."""
        metric = self._metrics.get("all")
        counts = metric.left_out.tolist() if isinstance(metric, BoundaryScores) else []
        return {name: count for name, count in zip(classes, counts, strict=False) if count}

    def images_as_csv(self, classes: Sequence[str]) -> str:
        """Return a line per image, class and score; nan is an empty field."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_HEADER)
        for image, scores in (self._images or {}).items():
            for score, values in scores.items():
                for name, value in zip(classes, values, strict=True):
                    writer.writerow([image, name, score, "" if math.isnan(value) else rounded(value)])
        return text.getvalue()


def _flat(values: Mapping[str, Any]) -> Scores:
    """Return the values of each metric as lists; BoundaryScores has several metrics under one key."""
    flat: dict[str, list[float]] = {}
    for key, value in values.items():
        for name, scores in value.items() if isinstance(value, dict) else [(key, value)]:
            flat[name] = scores.tolist()
    return flat
