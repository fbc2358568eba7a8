"""Scores of a prediction: what a report, a gallery and their thumbnails say about an image."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from edgeloss.metrics.arguments import label_maps
from edgeloss.metrics.functional import boundary_f1_counts, f1_from_counts

_Array = npt.NDArray[Any]
BORDER_RADIUS = 1  # pixels, the tolerance of boundary F1
# Figures of an image by key: name, format, and whether the lowest is the worst, as of a score.
FIGURES = {
    "loss": ("loss", ".4g", False),
    "mean_iou": ("mean IoU", ".1%", True),
    "boundary_f1_1px": (f"boundary F1, {BORDER_RADIUS} px", ".1%", True),
    "pixel_accuracy": ("pixel accuracy", ".1%", True),
    "cross_entropy": ("cross-entropy", ".4g", False),
    "same_side": ("same side", ".4g", False),
    "other_side": ("other side", ".4g", False),
    "edge": ("edge loss", ".4g", False),
    "region": ("region term", ".4g", False),
    "edge_fraction": ("edge pixels", ".1%", False),
}


class Scores(NamedTuple):
    """Counts of a prediction, which are added over images, and the scores that follow from them.

    Attributes:
        pixels: [C] valid pixels of each class.
        predicted: [C] valid pixels predicted as each class.
        correct: [C] those of them that are right.
        borders: [4, C] border pixels, as :func:`edgeloss.metrics.functional.boundary_f1_counts` returns them.
    """

    pixels: _Array
    predicted: _Array
    correct: _Array
    borders: _Array

    @property
    def iou(self) -> _Array:
        """IoU of each class, nan for one that does not occur."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.correct / (self.pixels + self.predicted - self.correct))

    @property
    def boundary_f1(self) -> _Array:
        """Boundary F1 of each class within ``BORDER_RADIUS`` pixels, nan for a class without a border."""
        counts = torch.from_numpy(self.borders)
        return f1_from_counts(counts, "f1", "none", None, per_image=False).numpy()[: len(self.pixels)]

    @property
    def means(self) -> dict[str, float]:
        """Mean IoU and mean boundary F1 over the classes that occur, and the share of valid pixels that are right."""
        total = int(self.pixels.sum())
        return {
            "mean_iou": mean_of_present(self.iou),
            "boundary_f1_1px": mean_of_present(self.boundary_f1),
            "pixel_accuracy": float(self.correct.sum() / total) if total else math.nan,
        }

    def plus(self, other: Scores) -> Scores:
        """Return the counts over both; one of them may know fewer classes."""
        return Scores(*(_sum(*both) for both in zip(self, other, strict=True)))


def compute_scores(target: _Array, prediction: _Array, classes: int) -> Scores:
    """Compute the scores of predicted labels.

    Args:
        target: [B, H, W] labels, -1 at ignored pixels.
        prediction: [B, H, W] labels, -1 where a logit is nan, which counts as wrong.
        classes: C, the number of classes.

    Returns:
        The scores.

    Example:
        >>> target = np.array([[[0, 0, 1, -1]]])
        >>> compute_scores(target, np.array([[[0, 1, 1, 0]]]), classes=2).iou.tolist()
        [0.5, 0.5]
    """
    found = np.where(target < 0, -1, prediction)
    counts = [
        np.bincount(labels.ravel() + 1, minlength=classes + 1)[1:]
        for labels in (target, found, np.where(target == found, target, -1))
    ]
    known = np.where(prediction < 0, (target + 1) % classes, prediction)
    y = label_maps(torch.from_numpy(known), torch.from_numpy(target), max(classes, 2), -1, None, multilabel=False)
    borders = boundary_f1_counts(y, max(classes, 2), BORDER_RADIUS, class_agnostic=False, per_image=False)
    return Scores(counts[0], counts[1], counts[2], borders.numpy())


def _sum(first: _Array, second: _Array) -> _Array:
    """Return the sum of two arrays, the shorter one followed by zeros along its last axis."""
    total = np.zeros((*first.shape[:-1], max(first.shape[-1], second.shape[-1])), first.dtype)
    total[..., : first.shape[-1]] += first
    total[..., : second.shape[-1]] += second
    return total


def mean_of_present(values: Any) -> float:  # noqa: ANN401
    """Return the mean without nan, the score of a class that does not occur; nan if there is no other value."""
    present = [float(value) for value in values if not math.isnan(value)]
    return sum(present) / len(present) if present else math.nan


def shown_figures(figures: Mapping[str, float]) -> dict[str, str]:
    """Return figures of an image as they are shown, by their names, in the order of ``FIGURES``."""
    return {
        name: "–" if math.isnan(figures[key]) else format(figures[key], form)
        for key, (name, form, _) in FIGURES.items()
        if key in figures
    }


def small_jpeg(picture: _Array, side: int = 360) -> bytes:
    """Return a picture [H, W, 3] in [0, 1] as a JPEG whose longer side has at most ``side`` pixels."""
    small, file = Image.fromarray(np.rint(255 * picture).astype(np.uint8)), io.BytesIO()
    small.thumbnail((side, side))
    small.save(file, "jpeg", quality=85)
    return file.getvalue()
