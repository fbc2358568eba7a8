"""The losses to train with: cross-entropy, and what each recipe adds to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from baselines import regions
from baselines.active_boundary import active_boundary
from baselines.affinity import affinity
from baselines.boundary import boundary
from baselines.common import cross_entropy
from baselines.control import edge_weighted_cross_entropy
from baselines.cpg import cpg
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss
from edgeloss.reference import find_edges

Options = dict[str, Any]


class Progress(NamedTuple):
    """Progress of a training.

    Attributes:
        step: number of complete steps.
        steps: number of all steps.
        epoch: number of complete epochs.
    """

    step: int = 0
    steps: int = 1
    epoch: int = 0


Loss = Callable[[Tensor, Tensor, Progress], Tensor]


def _ce(logits: Tensor, target: Tensor, progress: Progress, *, ignore_index: int) -> Tensor:
    return cross_entropy(logits, target, ignore_index)


def _balanced(
    logits: Tensor,
    target: Tensor,
    progress: Progress,
    *,
    ignore_index: int,
    edge_class_weight: Tensor | None = None,
) -> Tensor:
    """Compute cross-entropy with the class weights at all pixels, not only at edges."""
    return cross_entropy(logits, target, ignore_index, edge_class_weight)


def _weighted(
    logits: Tensor,
    target: Tensor,
    progress: Progress,
    *,
    ignore_index: int,
    edge_class_weight: Tensor | None = None,
    k: float = 4.0,
) -> Tensor:
    return edge_weighted_cross_entropy(
        logits, target, ignore_index=ignore_index, k=k, edge_class_weight=edge_class_weight
    )


def ours(
    logits: Tensor,
    target: Tensor,
    progress: Progress,
    *,
    ignore_index: int,
    edge_class_weight: Tensor | None = None,
    edge_weight: float = 1.0,
    other_side_weight: float = 1.0,
    same_side_weight: float = 1.0,
    radius: int = 1,
    power: float = 0.0,
    decay: float | None = None,
    start: float = 0.0,
    final_edge_weight: float | None = None,
    k: float = 0.0,
    false_edge_weight: float = 0.0,
    false_edge_start: float = 0.0,
) -> Tensor:
    """Compute EdgeAwareLoss, optionally with a schedule and the control's weights.

    Args:
        logits: [B, C, H, W].
        target: [B, H, W].
        progress: of the training.
        ignore_index: the ignored label.
        edge_class_weight: this and the options up to ``decay`` are those of EdgeAwareLoss.
        edge_weight: weight of the edge terms.
        other_side_weight: weight of O.
        same_side_weight: weight of S.
        radius: of the neighborhood.
        power: exponent of the mean.
        decay: distance over which a weight falls by e.
        start: fraction of the steps that use cross-entropy alone.
        final_edge_weight: edge_weight changes linearly to it, from ``start`` to the last step; None keeps it.
        k: additional weight of edge pixels, in the cross-entropy, too.
        false_edge_weight: weight of false edges.
        false_edge_start: fraction of the steps without false edges.
    """
    done = progress.step / progress.steps
    if done < start:
        edge_weight = 0.0
    elif final_edge_weight is not None:
        edge_weight += (final_edge_weight - edge_weight) * (done - start) / (1 - start)
    valid = target != ignore_index
    return edge_aware_loss(
        logits,
        target,
        ignore_index=ignore_index,
        edge_class_weight=edge_class_weight,
        edge_weight=edge_weight,
        other_side_weight=other_side_weight,
        same_side_weight=same_side_weight,
        radius=radius,
        false_edge_weight=false_edge_weight if done >= false_edge_start else 0.0,
        power=power,
        decay=decay,
        pixel_weight=1 + k * find_edges(target, valid, (1,) * (target.dim() - 1)).float() if k else None,
    )


def _abl(
    logits: Tensor,
    target: Tensor,
    progress: Progress,
    *,
    ignore_index: int,
    weight: float = 1.0,
    lovasz: float = 0.0,
) -> Tensor:
    """Compute the active boundary loss; its authors add the Lovász term with weight 1."""
    term = active_boundary(logits, target, ignore_index=ignore_index)
    loss = cross_entropy(logits, target, ignore_index) + weight * term
    return loss + lovasz * regions.lovasz(logits, target, ignore_index=ignore_index) if lovasz else loss


def _with_cross_entropy(
    term: Callable[..., Tensor], default: float = 1.0, schedule: Callable[[Progress], float] = lambda progress: 1.0
) -> Callable[..., Tensor]:
    """Return cross-entropy + weight · schedule · term, where the weight is an option."""

    def loss(
        logits: Tensor, target: Tensor, progress: Progress, *, ignore_index: int, weight: float = default
    ) -> Tensor:
        added = weight * schedule(progress) * term(logits, target, ignore_index=ignore_index)
        return cross_entropy(logits, target, ignore_index) + added

    return loss


RECIPES: dict[str, Callable[..., Tensor]] = {
    "ce": _ce,
    "balanced": _balanced,
    "weighted": _weighted,
    "ours": ours,
    "dice": _with_cross_entropy(regions.dice),
    "lovasz": _with_cross_entropy(regions.lovasz),
    "boundary": _with_cross_entropy(boundary, 0.01, lambda progress: progress.epoch + 1),
    "affinity": _with_cross_entropy(affinity, schedule=lambda progress: 10 ** (-progress.step / progress.steps)),
    "abl": _abl,
    "cpg": _with_cross_entropy(cpg),
    "hausdorff": _with_cross_entropy(regions.hausdorff),
}
TITLES = {
    "ce": "cross-entropy",
    "balanced": "class-weighted CE",
    "weighted": "edge-weighted CE",
    "ours": "edgeloss",
    "dice": "CE + Dice",
    "lovasz": "CE + Lovász",
    "boundary": "CE + boundary loss",
    "affinity": "CE + affinity 3×3",
    "abl": "CE + active boundary",
    "cpg": "CE + CPG",
    "hausdorff": "CE + Hausdorff DT",
}


def defaults(name: str) -> Options:
    """Return the options of a loss and their defaults.

    Raises:
        ValueError: if there is no such loss.
    """
    if name not in RECIPES:
        raise ValueError(f"loss: expected one of {list(RECIPES)}, but got {name!r}")
    parameters = inspect.signature(RECIPES[name]).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY and p.name != "ignore_index"}
    if "edge_class_weight" in options:  # computed from the labels
        del options["edge_class_weight"]
        options["class_balance"] = 0.0
    return options


def completed(name: str, options: Mapping[str, Any]) -> Options:
    """Return all options of a loss: the given values, and defaults for the others.

    Raises:
        ValueError: if the loss or an option does not exist.
        TypeError: if an option is not a number.
    """
    known = defaults(name)
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"options of {name}: expected some of {list(known)}, but got {key!r}")
        if value is None and known[key] is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"option {key} of {name}: expected a number, but got {value!r}")
        known[key] = value if isinstance(known[key], int) else float(value)
    return known


def make(
    name: str,
    options: Mapping[str, Any],
    ignore_index: int,
    *,
    targets: Iterable[Tensor] = (),
    num_classes: int = 0,
    device: str = "cpu",
) -> Loss:
    """Return the loss: a function of logits [B, C, H, W], labels and progress.

    Args:
        name: name of a recipe.
        options: of the loss. ``class_balance`` > 0 is the exponent of class weights computed from the edge pixels.
        ignore_index: the ignored label.
        targets: label maps [B, H, W] to compute class weights from.
        num_classes: number of classes C.
        device: of the logits.
    """
    options = completed(name, options)
    balance = options.pop("class_balance", 0.0)
    if balance:
        options["edge_class_weight"] = balanced_edge_class_weight(
            targets, num_classes, exponent=balance, ignore_index=ignore_index
        ).to(device)
    return partial(RECIPES[name], ignore_index=ignore_index, **options)
