"""Figures besides the loss: scores of a validation set, its worst images, and gradient shares of the terms."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassJaccardIndex
from torchmetrics.functional.classification import multiclass_jaccard_index

from edgeloss import EdgeAwareLoss, LossMaps
from edgeloss.functional import normalizers
from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU
from segkit.distributed import gather, sum_over_ranks

BY_CLASS = ("iou", "boundary_iou", "boundary_f1_3")  # scores that are kept per class too


def validation_metrics(
    num_classes: int, ignore_index: int, spacing: float | Sequence[float] | None = None
) -> MetricCollection:
    """Return the metrics of a validation set: IoU and boundary metrics per class.

    Boundary IoU has its usual band of 2 % of the diagonal, and a narrow one of 0.5 %; Boundary F1 has radii of 1, 3
    and 5 pixels, trimap IoU of 3. Counts are integers, so the results depend neither on batches nor on ranks, whose
    counts torchmetrics adds in ``compute``.

    Args:
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels.
        spacing: size of a pixel, or one per axis. Radii are in units of the smallest.

    Returns:
        The metrics. Update them with labels, ``logits.argmax(1)``, so that not each of them computes the labels again.
    """
    options: dict[str, Any] = {"num_classes": num_classes, "ignore_index": ignore_index, "average": "none"}
    iou = MulticlassJaccardIndex(**options, zero_division=math.nan)
    if isinstance(spacing, Sequence):  # one number changes no distance in pixels
        options["spacing"] = [size / min(spacing) for size in spacing]
    return MetricCollection(
        {
            "iou": iou,
            "boundary_iou": BoundaryIoU(**options),
            "boundary_iou_narrow": BoundaryIoU(**options, ratio=0.005),
            **{f"boundary_f1_{radius}": BoundaryF1(**options, radius=radius) for radius in (1, 3, 5)},
            "trimap_iou_3": TrimapIoU(**options, radius=3),
        }
    )


def flatten(results: Mapping[str, Tensor], classes: Sequence[str]) -> dict[str, float | None]:
    """Convert the results of `validation_metrics` to figures of a table.

    Args:
        results: for each metric the scores of the classes [C], nan for a class that does not occur.
        classes: names of the classes.

    Returns:
        For each metric the mean over the classes that occur, under its name, or ``miou`` for ``iou``; for those in
        `BY_CLASS` also each class, as ``iou/CLASS``. None where there is nothing to measure.
    """
    figures: dict[str, float | None] = {}
    for metric, scores in results.items():
        values = [None if math.isnan(value) else value for value in scores.tolist()]
        present = [value for value in values if value is not None]
        figures["miou" if metric == "iou" else metric] = sum(present) / len(present) if present else None
        if metric in BY_CLASS:
            figures |= {f"{metric}/{name}": value for name, value in zip(classes, values, strict=True)}
    return figures


def gradient_shares(criterion: EdgeAwareLoss, logits: Tensor, target: Tensor) -> dict[str, float]:
    """Return the share of each term of the loss in the gradient of the logits.

    This runs the loss, but not the network, forward and backward for each term. It is a collective under
    ``torch.distributed``: the batches of all ranks count as one, exactly so with ``sync_normalizer=True``.

    Args:
        criterion: the loss.
        logits: [B, C, *S]; their graph is not used.
        target: [B, *S].

    Returns:
        For ``cross_entropy``, ``same_side``, ``other_side`` and, if it has a weight, ``region``: the L2 norm of the
        gradient of the weighted term, over the sum of these norms. The shares sum to 1, or are all 0 if all gradients
        are.
    """
    # In float32 at least, since the gradient of a mean over many pixels underflows in float16.
    logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    weights = {"cross_entropy": "ce_weight", "same_side": "same_side_weight", "other_side": "other_side_weight"}
    if criterion.region_weight:
        weights["region"] = "region_weight"
    norms = []
    for kept in weights.values():
        term = copy.copy(criterion)
        term.edge_weight = criterion.options()["edge_weight"]
        term.training = False  # the step has counted its edge pixels
        for name in weights.values():
            if name != kept:
                setattr(term, name, 0.0)
        leaf = logits.clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(term(leaf, target), leaf)
        norms.append(torch.linalg.vector_norm(gradient))
    totals = [math.sqrt(total) for total in sum_over_ranks([norm**2 for norm in torch.stack(norms).tolist()])]
    return {name: norm / (sum(totals) or 1.0) for name, norm in zip(weights, totals, strict=True)}


class ImageFigures(NamedTuple):
    """Figures of one image of a validation set.

    Attributes:
        name: name of the image.
        edge: mean edge loss over its edge pixels.
        cross_entropy: mean cross-entropy, with the class weights of the loss.
        miou: mean IoU over the classes that occur in the image.
    """

    name: str
    edge: float
    cross_entropy: float
    miou: float


class WorstImages:
    """Collect the images with the highest edge loss; images without an edge are skipped.

    Args:
        criterion: the loss of the maps.
        num_classes: C ≥ 2.
        count: number of images to keep.
    """

    def __init__(self, criterion: EdgeAwareLoss, num_classes: int, count: int) -> None:
        """Start without images."""
        self.criterion = criterion
        self.num_classes = num_classes
        self.count = count
        self._images: list[ImageFigures] = []

    def update(self, names: Sequence[str], maps: LossMaps, prediction: Tensor, target: Tensor) -> None:
        """Add the images of a batch.

        Args:
            names: names of the first images of the batch; the others are skipped.
            maps: loss maps, [B, *S] each.
            prediction: labels [B, *S].
            target: labels [B, *S].
        """
        if not names:
            return
        ignore, weight = self.criterion.ignore_index, self.criterion.weight
        rows = []
        for index in range(len(names)):
            labels = target[index : index + 1]
            w, edges = normalizers(labels, weight=weight, ignore_index=ignore, radius=self.criterion.radius)
            iou = multiclass_jaccard_index(
                prediction[index : index + 1],
                labels,
                self.num_classes,
                average="none",
                ignore_index=ignore,
                zero_division=math.nan,
            )
            sums = (maps.edge[index].sum() / edges, maps.cross_entropy[index].sum() / w, iou.nanmean())
            rows.append(torch.stack([value.float() for value in (edges, *sums)]))
        for name, (edges, *figures) in zip(names, torch.stack(rows).tolist(), strict=True):
            if edges:
                edge, *others = figures
                self._images.append(
                    ImageFigures(name, edge, *(None if math.isnan(value) else value for value in others))
                )
        self._keep()

    def ranked(self) -> list[ImageFigures]:
        """Return the worst images of all ranks, worst first; a collective."""
        # A sampler may have given an image to two ranks, to give all ranks the same number.
        self._images = list({image.name: image for image in gather(self._images)}.values())
        self._keep()
        return self._images

    def _keep(self) -> None:
        # Images whose loss is not finite come first; ties are sorted by name, not by batch or rank.
        self._images.sort(key=lambda image: (-image.edge if math.isfinite(image.edge) else -math.inf, image.name))
        del self._images[self.count :]
