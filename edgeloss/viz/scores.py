"""Scores of a prediction: what a report, an index of reports and their thumbnails say about an image."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from edgeloss.metrics.functional import boundary_f1
from edgeloss.viz.coloring import error_picture

_Array = npt.NDArray[Any]
BORDER_RADIUS = 3  # pixels, the tolerance of boundary F1


class Scores(NamedTuple):
    """Scores of a batch.

    Attributes:
        pixels: [C] valid pixels of each class.
        predicted: [C] valid pixels predicted as each class.
        iou: [C], nan for a class that does not occur.
        boundary_f1: [C] within ``BORDER_RADIUS`` pixels, nan for a class without a border.
        accuracy: share of valid pixels that are right; nan if there is none.
    """

    pixels: _Array
    predicted: _Array
    iou: _Array
    boundary_f1: _Array
    accuracy: float

    @property
    def means(self) -> dict[str, float]:
        """Mean IoU and mean boundary F1 over the classes that occur, and the accuracy."""
        return {
            "mean IoU": _mean(self.iou),
            "boundary F1": _mean(self.boundary_f1),
            "pixel accuracy": self.accuracy,
        }


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
    valid = target >= 0
    truth, found = target[valid], prediction[valid]
    right = truth == found
    pixels, predicted, correct = (
        np.bincount(labels[labels >= 0], minlength=classes) for labels in (truth, found, truth[right])
    )
    with np.errstate(invalid="ignore"):
        iou = correct / (pixels + predicted - correct)
    known = np.where(prediction < 0, (target + 1) % classes, prediction)
    border = boundary_f1(
        torch.from_numpy(known),
        torch.from_numpy(target),
        max(classes, 2),
        ignore_index=-1,
        radius=BORDER_RADIUS,
        average="none",
    )
    accuracy = float(right.mean()) if right.size else float("nan")
    return Scores(pixels, predicted, iou, border.numpy()[:classes], accuracy)


def make_thumbnail(target: _Array, prediction: _Array, image: _Array | None) -> bytes:
    """Return a small JPEG of an image, or of a gray one, with its wrong pixels in red; as :func:`error_picture`."""
    return small_jpeg(error_picture(target, prediction, image))


def small_jpeg(picture: _Array, side: int = 360) -> bytes:
    """Return a picture [H, W, 3] in [0, 1] as a JPEG whose longer side has at most ``side`` pixels."""
    small, file = Image.fromarray(np.rint(255 * picture).astype(np.uint8)), io.BytesIO()
    small.thumbnail((side, side))
    small.save(file, "jpeg", quality=85)
    return file.getvalue()


def _mean(values: _Array) -> float:
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else float("nan")
