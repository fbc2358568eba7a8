"""Figures of a run: those of a validation set, and gradient shares of the terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassJaccardIndex

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss, loss_maps, normalizers
from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU
from edgeloss.viz.run_page import BY_CLASS, SUMMANDS


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


class LabelsSeen(Metric):
    """Which labels occur: those of the classes, and at last ``ignore_index``, in [C + 1] of bool.

    Args:
        num_classes: C.
        ignore_index: the label of void pixels.
    """

    is_differentiable, higher_is_better, full_state_update = False, None, False

    def __init__(self, num_classes: int, ignore_index: int) -> None:
        """Store the options."""
        super().__init__()
        self.ignore_index = ignore_index
        self.counts: Tensor
        none = torch.zeros(num_classes + 1, dtype=torch.int64)
        self.add_state("counts", none, dist_reduce_fx="sum", persistent=True)

    def update(self, labels: Tensor) -> None:
        """Add labels [B, *S]."""
        self.counts[labels.where(labels != self.ignore_index, len(self.counts) - 1).flatten()] = 1

    def compute(self) -> Tensor:
        """Return which labels occurred in any process."""
        return self.counts > 0


def flatten(results: Mapping[str, Tensor], classes: Sequence[str]) -> dict[str, Tensor]:
    """Convert the results of `validation_metrics` to figures of a table.

    Args:
        results: for each metric the scores of the classes [C], nan for a class that does not occur.
        classes: names of the classes.

    Returns:
        For each metric the mean over the classes that occur, under its name, or ``miou`` for ``iou``; for those in
        `BY_CLASS` also each class, as ``iou/CLASS``. nan where there is nothing to measure.
    """
    figures = {"miou" if metric == "iou" else metric: scores.nanmean() for metric, scores in results.items()}
    return figures | {f"{metric}/{name}": results[metric][k] for metric in BY_CLASS for k, name in enumerate(classes)}


def label_sums(criterion: EdgeAwareLoss, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return what the mean of a loss divides by, W and the edge pixels n [C] of each class, from labels [B, *S]."""
    options = {name: getattr(criterion, name) for name in ("weight", "ignore_index", "radius")}
    return normalizers(labels, num_classes, **options)


def loss_figures(criterion: EdgeAwareLoss, logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the terms of the loss, and accuracies, of a batch of a validation set.

    Edge pixels are those with a neighbor (of 8) of another class, for any radius of the criterion, so that all losses
    are compared on the same pixels.

    Args:
        criterion: the loss; with ``reduction="mean"``.
        logits: [B, C, *S].
        labels: [B, *S].

    Returns:
        Each figure with its weight: the weighted means over all batches and processes are the figures of all of them as
        one batch, but for classes that are balanced in each batch. What a batch does not have is nan, with weight 0.
    """
    _, terms = edge_aware_loss(logits, labels, **criterion.options() | {"sync_normalizer": False}, return_terms=True)
    weight, edges = label_sums(criterion, labels, logits.shape[1])
    if isinstance(criterion.edge_class_weight, Tensor):
        edges = edges * criterion.edge_class_weight
    edges = edges.sum()
    border = loss_maps(logits, labels, ignore_index=criterion.ignore_index).edge_mask
    valid, correct = labels != criterion.ignore_index, logits.argmax(1) == labels
    weights = dict.fromkeys(terms, edges) | dict.fromkeys(SUMMANDS.keys() - {"edge_focused"}, weight)
    weights["edge_fraction"] = valid.sum()
    figures = {name: (term, torch.as_tensor(weights[name])) for name, term in terms.items()}
    if not criterion.region_weight:
        del figures["region"]
    for name, where in {"accuracy": valid, "edge_accuracy": border, "interior_accuracy": valid & ~border}.items():
        figures[name] = (correct & where).sum() / where.sum(), where.sum()
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
        For each of what adds up to the loss, by its name among the terms: the L2 norm of its weighted gradient, over
        the sum of these norms. The shares sum to 1, or are all 0 if all gradients are.
    """
    # In float32 at least, since the gradient of a mean over many pixels underflows in float16.
    logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    squares = []
    for kept in SUMMANDS.values():
        others = {name: 0.0 for name in SUMMANDS.values() if name != kept}
        leaf = logits.clone().requires_grad_()
        with torch.enable_grad():
            loss = edge_aware_loss(leaf, target, **criterion.options() | others)
        (gradient,) = torch.autograd.grad(loss, leaf)
        squares.append(torch.linalg.vector_norm(gradient).double().square())
    totals = torch.stack(squares)
    if dist.is_initialized():
        dist.all_reduce(totals)
    norms = totals.sqrt().tolist()
    return {name: norm / (sum(norms) or 1.0) for name, norm in zip(SUMMANDS, norms, strict=True)}
