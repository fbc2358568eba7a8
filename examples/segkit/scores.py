"""What is measured besides the loss: scores of a validation set, its worst images, and which term pulls how much."""

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

BY_CLASS = ("iou", "boundary_iou", "boundary_f1_3")  # of which the figure of each class is kept too


def validation_metrics(num_classes: int, ignore_index: int) -> MetricCollection:
    """IoU and boundary metrics of a whole set, class by class.

    Boundary IoU has its usual band of 2 % of the diagonal, and a narrow one of 0.5 %; Boundary F1 goes by radii of 1, 3
    and 5 pixels, trimap IoU by 3. Counts are integers: the figures depend neither on batches nor on ranks, which
    torchmetrics adds up in ``compute``.

    Args:
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels.

    Returns:
        The metrics; update them with labels, ``logits.argmax(1)``, or each would find the largest logit by itself.
    """
    options: dict[str, Any] = {"num_classes": num_classes, "ignore_index": ignore_index, "average": "none"}
    return MetricCollection(
        {
            "iou": MulticlassJaccardIndex(**options, zero_division=math.nan),
            "boundary_iou": BoundaryIoU(**options),
            "boundary_iou_narrow": BoundaryIoU(**options, ratio=0.005),
            **{f"boundary_f1_{radius}": BoundaryF1(**options, radius=radius) for radius in (1, 3, 5)},
            "trimap_iou_3": TrimapIoU(**options, radius=3),
        }
    )


def flatten(results: Mapping[str, Tensor], classes: Sequence[str]) -> dict[str, float | None]:
    """What `validation_metrics` computes, as figures for a table.

    Args:
        results: of each metric the scores of the classes [C], nan for a class that does not occur.
        classes: the classes' names.

    Returns:
        Of each metric the mean over the classes that occur, under its name, and ``miou`` for ``iou``; of those in
        `BY_CLASS` each class too, as ``iou/CLASS``. None where there is nothing to measure.
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
    """How hard each term of the loss pulls at the logits, in comparison.

    For each term forward and backward through the loss, not through the network: call it every so many steps. A
    collective under ``torch.distributed``: the ranks' batches count as one, exactly so with ``sync_normalizer=True``.

    Args:
        criterion: the loss.
        logits: [B, C, *S]; neither they nor their graph are touched.
        target: [B, *S].

    Returns:
        For ``cross_entropy``, ``same_side``, ``other_side`` and, if it has a weight, ``false_edge`` the L2 norm of the
        weighted term's gradient with respect to the logits, over the sum of these norms: in [0, 1], with a sum of 1, or
        all 0 where no term pulls.
    """
    # In float32 at least, since the gradient of a mean over many pixels underflows in float16.
    logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    weights = {"cross_entropy": "ce_weight", "same_side": "same_side_weight", "other_side": "other_side_weight"}
    if criterion.false_edge_weight:
        weights["false_edge"] = "false_edge_weight"
    norms = []
    for kept in weights.values():
        term = copy.copy(criterion)
        for name in weights.values():
            if name != kept:
                setattr(term, name, 0.0)
        leaf = logits.clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(term(leaf, target), leaf)
        norms.append(torch.linalg.vector_norm(gradient))
    found = [math.sqrt(total) for total in sum_over_ranks([norm**2 for norm in torch.stack(norms).tolist()])]
    return {name: norm / (sum(found) or 1.0) for name, norm in zip(weights, found, strict=True)}


class ImageFigures(NamedTuple):
    """One image of a validation set.

    Attributes:
        name: of the image.
        edge: mean edge loss over its edge pixels.
        cross_entropy: its mean, weighted as the loss's.
        miou: mean IoU over the classes that occur in it.
    """

    name: str
    edge: float
    cross_entropy: float
    miou: float


class WorstImages:
    """The images of a set with the highest edge loss. Those without an edge have none.

    Args:
        criterion: the loss that the maps come from.
        num_classes: C ≥ 2.
        count: how many to keep.
    """

    def __init__(self, criterion: EdgeAwareLoss, num_classes: int, count: int) -> None:
        """Start with none."""
        self.criterion = criterion
        self.num_classes = num_classes
        self.count = count
        self._found: list[ImageFigures] = []

    def update(self, names: Sequence[str], maps: LossMaps, prediction: Tensor, target: Tensor) -> None:
        """Look at a batch.

        Args:
            names: of its images, the first ones of the batch.
            maps: of the loss, [B, *S] each.
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
                self._found.append(
                    ImageFigures(name, edge, *(None if math.isnan(value) else value for value in others))
                )
        self._keep()

    def ranked(self) -> list[ImageFigures]:
        """The worst first. A collective under ``torch.distributed``: the worst of all ranks, the same on each."""
        # A sampler may have given an image to two ranks, so that all have as many.
        self._found = list({one.name: one for one in gather(self._found)}.values())
        self._keep()
        return self._found

    def _keep(self) -> None:
        # What is not finite is worst; of equals the names decide, not the order of batches or ranks.
        self._found.sort(key=lambda one: (-one.edge if math.isfinite(one.edge) else -math.inf, one.name))
        del self._found[self.count :]
