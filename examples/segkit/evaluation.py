"""Figures of a model on a whole data set."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss, LossMaps
from edgeloss.functional import edge_aware_loss, loss_maps, normalizers
from segkit.distributed import sum_over_ranks
from segkit.guard import NonFiniteLossError
from segkit.loader import MicroBatch
from segkit.placement import Placement
from segkit.scores import WorstImages, flatten, validation_metrics


@torch.no_grad()
def evaluate(
    model: nn.Module,
    criterion: EdgeAwareLoss,
    data: Iterable[Sequence[MicroBatch]],
    *,
    classes: Sequence[str],
    placement: Placement,
    worst: WorstImages | None = None,
    on_batch: Callable[[int], None] = lambda images: None,
) -> dict[str, float | None]:
    """Evaluate a model on a data set as if all of it were one batch.

    All figures are sums over sums, not means of means. Each process evaluates its part, and all return the figures of
    the whole set. Edge pixels are those with a neighbor (of 8) of another class, for any radius of the criterion, so
    that all losses are compared on the same pixels. Boundary metrics measure in the ``spacing`` of the criterion.

    Args:
        model: images to logits.
        criterion: the loss; with ``reduction="mean"``.
        data: what `load_batches` yields.
        classes: names of the classes.
        placement: where and how to compute.
        worst: collects the worst images.
        on_batch: called after each micro-batch with its number of images.

    Returns:
        ``loss`` and its terms, ``region`` if it has a weight; ``accuracy``, ``edge_accuracy`` and ``interior_accuracy``
        over all pixels, edge pixels and the others; and the scores of `flatten`. None where there is nothing to
        measure.

    Raises:
        NonFiniteLossError: if the loss of the whole set is nan or infinite.
    """
    model.eval()
    scores = validation_metrics(len(classes), criterion.ignore_index, criterion.spacing)  # synchronize themselves
    scores = scores.to(placement.device)
    parts: dict[str, float] = defaultdict(float)
    wholes: dict[str, float] = defaultdict(float)
    for names, images, labels in chain.from_iterable(data):
        labels = labels.to(placement.device)
        ratios, maps, prediction = _measure(placement.run(model, images), labels, criterion)
        scores.update(prediction, labels)
        if worst is not None:
            worst.update(names, maps, prediction, labels)
        for name, (part, whole) in ratios.items():
            parts[name] += part.item()
            wholes[name] += whole.item()
        on_batch(len(names))
    return {**_means(parts, wholes, criterion), **flatten(scores.compute(), classes)}


def _measure(
    logits: Tensor, labels: Tensor, criterion: EdgeAwareLoss
) -> tuple[dict[str, tuple[Tensor, Tensor]], LossMaps, Tensor]:
    """Measure a micro-batch.

    Returns:
        Numerator and denominator of each figure, the loss maps, and the predicted labels.
    """
    ignore = criterion.ignore_index
    options = {**criterion.options(training=False), "sync_normalizer": False}
    _, maps, terms = edge_aware_loss(logits, labels, **options, return_maps=True, return_terms=True)
    names = ("weight", "edge_class_weight", "ignore_index", "radius")
    weight, edges = normalizers(labels, **{name: options[name] for name in names})
    valid = labels != ignore
    border = loss_maps(logits, labels, ignore_index=ignore, upsample=True).edge_mask
    if logits.shape[2:] != labels.shape[1:]:
        logits = F.interpolate(logits.float(), labels.shape[1:], mode="trilinear" if labels.dim() == 4 else "bilinear")
    prediction = logits.argmax(1)
    correct = prediction == labels
    ratios = {
        "cross_entropy": (terms["cross_entropy"] * weight, weight),
        "same_side": (terms["same_side"] * edges, edges),
        "other_side": (terms["other_side"] * edges, edges),
        "edge": (terms["edge"] * edges, edges),
        "region": (terms["region"] * weight, weight),
        "edge_fraction": (maps.edge_mask.sum(), valid.sum()),
        "accuracy": (correct.sum(), valid.sum()),
        "edge_accuracy": ((correct & border).sum(), border.sum()),
        "interior_accuracy": ((correct & ~border).sum(), (valid & ~border).sum()),
    }
    return ratios, maps, prediction


def total_loss(terms: Mapping[str, float | None], criterion: EdgeAwareLoss) -> float:
    """Return the loss that is made of terms, with ``edge_weight`` in full, in training as in validation."""
    weights = {
        "cross_entropy": criterion.ce_weight,
        "edge": criterion.edge_weight,
        "region": criterion.region_weight,
    }
    return sum(weight * (terms.get(name) or 0.0) for name, weight in weights.items())


def _means(parts: dict[str, float], wholes: dict[str, float], criterion: EdgeAwareLoss) -> dict[str, float | None]:
    """Return loss, terms and accuracies of the whole set."""
    names, sums = list(parts), sum_over_ranks([*parts.values(), *wholes.values()])
    ratios = zip(names, sums[: len(names)], sums[len(names) :], strict=True)
    means = {name: part / whole if whole else None for name, part, whole in ratios}
    loss = total_loss(means, criterion)
    if not criterion.region_weight:
        del means["region"]
    if not math.isfinite(loss):
        raise NonFiniteLossError(f"the validation loss is {loss}")
    return {"loss": loss, **means}
