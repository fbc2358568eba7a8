"""From logits and labels to the loss, as functions: check the arguments, choose a backend, evaluate, reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from edgeloss._checks.inputs import (
    BALANCED,
    Given,
    Inputs,
    check_inputs,
    check_labels_of,
    check_values,
    renamed_balance,
    result_dtype,
)
from edgeloss._checks.options import Backend, Options, Reduction, Validate, suggest_keywords
from edgeloss._kernels import evaluate as fused
from edgeloss._kernels import library
from edgeloss._reduction import Evaluation, LossMaps, Result, reduce
from edgeloss._reference import region
from edgeloss._reference import terms as reference
from edgeloss._reference.label_weights import (
    EdgeWeights,
    balanced_edge_class_weight,
    check_distance,
    edge_weights,
    normalizers,
)
from edgeloss._reference.neighbor_nll import neighbor_nll

__all__ = [
    "EdgeWeights",
    "balanced_edge_class_weight",
    "edge_aware_loss",
    "edge_weights",
    "loss_maps",
    "neighbor_nll",
    "normalizers",
]


@suggest_keywords
def edge_aware_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    edge_class_weight: Tensor | str | None = BALANCED,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    ce_weight: float = 1.0,
    edge_weight: float = 1.0,
    other_side_weight: float = 1.0,
    same_side_weight: float = 1.0,
    edge_focus: float = 8.0,
    region_weight: float = 3.0,
    radius: int | Sequence[int] = 1,
    power: float = 0.0,
    decay: float | None = None,
    spacing: float | Sequence[float] | None = None,
    upsample: bool = False,
    sync_normalizer: bool = False,
    validate: Validate = "async",
    backend: Backend = "auto",
    pixel_weight: Tensor | None = None,
    distance: Tensor | None = None,
    normalizer: tuple[float | Tensor, float | Tensor] | None = None,
    return_maps: bool = False,
    return_terms: bool = False,
) -> Result:
    """Compute the loss of :class:`edgeloss.EdgeAwareLoss`, with the same defaults and the same value.

    The module and its :meth:`~edgeloss.EdgeAwareLoss.forward` describe the arguments in full.

    Args:
        logits: [B, C, H, W] or [B, C, D, H, W], floating; C = 1 is binary.
        target: [B, *S] class indices; with ``multilabel`` [B, C, *S] of 0 and 1.
        weight: class weights [C] of the cross-entropy, ≥ 0; with ``multilabel`` also [C, 2], for labels 0 and 1.
        edge_class_weight: class weights of the edge terms: ``"balanced"`` for those of the edge pixels of the batch, a
            tensor as ``weight``, or None for ones.
        ignore_index: label of pixels to ignore; None for none.
        multilabel: take each class as a binary loss of its own, with labels per class.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for a map in the shape of the target.
        label_smoothing: of the cross-entropy, in [0, 1].
        ce_weight: weight of the cross-entropy, ≥ 0.
        edge_weight: weight of the edge terms, ≥ 0; 0 leaves them out. With ``region_weight=0`` as well, the loss is
            plain cross-entropy.
        other_side_weight: weight of the other-side term among the edge terms, ≥ 0.
        same_side_weight: weight of the same-side term among the edge terms, ≥ 0.
        edge_focus: γ ≥ 0: edge terms of a class in an image count by its error there to the power of γ; 0 for
            equal weights.
        region_weight: weight of the region term, ≥ 0; 0 leaves it out.
        radius: of the neighborhood in pixels, or one per axis.
        power: exponent of the power mean over the neighbors.
        decay: distance over which the weight of a neighbor falls by a factor of e; None for equal weights.
        spacing: size of a pixel, or one per axis.
        upsample: accept logits of lower resolution than the target, and interpolate them.
        sync_normalizer: share the denominators across the ranks of ``torch.distributed``.
        validate: when out-of-range labels raise: ``"async"``, ``"sync"`` or ``"never"``.
        backend: ``"auto"``, ``"fused"`` or ``"reference"``.
        pixel_weight: [B, *S] ≥ 0, floating; with ``multilabel`` also [B, C, *S].
        distance: ≥ 0, floating, in the shape of the target; a distance field to use instead of that of the labels.
            Requires ``decay``.
        normalizer: (W, n) of a whole step to use instead of those of the batch; see :func:`normalizers`.
        return_maps: also return :class:`edgeloss.LossMaps`.
        return_terms: also return a dict of the terms.

    Returns:
        The loss, float32, or float64 for float64 logits: a scalar, or a map with ``reduction="none"``. With
        ``return_maps`` or ``return_terms``, a tuple of the loss, the maps and the terms, in this order.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a shape, device or value does not fit.
        RuntimeError: if ``backend="fused"`` does not support the call.

    Example:
        >>> import torch
        >>> from edgeloss.functional import edge_aware_loss
        >>> logits = torch.zeros(1, 2, 4, 4, requires_grad=True)
        >>> target = torch.tensor([[[0, 0, 1, 1]] * 4])
        >>> options = {"edge_focus": 0.0, "region_weight": 0.0}
        >>> loss = edge_aware_loss(logits, target, **options)  # log 2 each: cross-entropy, same side, other side
        >>> round(loss.item(), 4)
        2.0794
        >>> loss.backward()
    """
    options = Options(
        ignore_index=ignore_index,
        multilabel=multilabel,
        reduction=reduction,
        label_smoothing=label_smoothing,
        ce_weight=ce_weight,
        edge_weight=edge_weight,
        other_side_weight=other_side_weight,
        same_side_weight=same_side_weight,
        edge_focus=edge_focus,
        region_weight=region_weight,
        radius=radius,
        power=power,
        decay=decay,
        spacing=spacing,
        upsample=upsample,
        sync_normalizer=sync_normalizer,
        validate=validate,
        backend=backend,
    )
    result, _ = loss_and_evaluation(
        logits,
        target,
        options,
        Given(weight, renamed_balance(edge_class_weight), pixel_weight, distance, normalizer),
        return_maps=return_maps,
        return_terms=return_terms,
    )
    return result


def loss_and_evaluation(
    logits: Tensor,
    target: Tensor,
    options: Options,
    given: Given,
    *,
    return_maps: bool,
    return_terms: bool,
) -> tuple[Result, Evaluation]:
    """Return what :func:`edge_aware_loss` does of the same arguments, and what the backend returned."""
    inputs = check_inputs(logits, target, options, given)
    check_distance(inputs, options)
    edges = options.edge_weight > 0 or return_maps or return_terms
    evaluation = _evaluate(inputs, options, edges=edges, return_maps=return_maps)
    return reduce(evaluation, inputs, options, maps=return_maps, terms=return_terms), evaluation


def _evaluate(inputs: Inputs, options: Options, *, edges: bool, return_maps: bool) -> Evaluation:
    maps = return_maps or options.reduction == "none"
    lengths: list[float] = []
    if options.decay is not None and inputs.distance is None:
        lengths = [s / options.decay for s in inputs.spacing]
    reason = library.why_reference(options.backend, inputs.logits, inputs.target, lengths, options.power)
    gathers = library.gathers(inputs.logits, options.power)
    no_maps = library.uses_triton(inputs.logits) or torch.compiler.is_compiling()
    no_distance = return_maps and options.decay is not None
    if not (reason or gathers or (maps and no_maps) or no_distance):
        return fused.evaluate(inputs, options, edges=edges, maps=maps)  # it checks the labels
    check_values("logits", inputs.logits)
    if options.validate != "never":
        check_labels_of(inputs, options)
    regions = None
    if options.region_weight > 0:
        # Of half precision, the gradients of all terms are rounded as one sum.
        inputs = inputs._replace(logits=inputs.logits.to(result_dtype(inputs.logits)))
        inputs, regions = region.evaluate(inputs)
    by_kernels = fused.gathered_terms if gathers and not reason else None
    evaluation = reference.evaluate(inputs, options, edges=edges, maps=maps, by_kernels=by_kernels)
    return evaluation._replace(regions=regions)


@suggest_keywords
def loss_maps(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    label_smoothing: float = 0.0,
    other_side_weight: float = 1.0,
    same_side_weight: float = 1.0,
    radius: int | Sequence[int] = 1,
    power: float = 0.0,
    decay: float | None = None,
    spacing: float | Sequence[float] | None = None,
    upsample: bool = False,
    validate: Validate = "async",
    backend: Backend = "auto",
    distance: Tensor | None = None,
) -> LossMaps:
    """Compute the terms of the loss per pixel, detached, before any reduction.

    The arguments are those of :func:`edge_aware_loss`.

    Args:
        logits: [B, C, H, W] or [B, C, D, H, W], floating.
        target: [B, *S] class indices; with ``multilabel`` [B, C, *S] of 0 and 1.
        weight: class weights [C] of the cross-entropy, ≥ 0; with ``multilabel`` also [C, 2], for labels 0 and 1.
        ignore_index: label of pixels to ignore; None for none.
        multilabel: take each class as a binary loss of its own, with labels per class.
        label_smoothing: of the cross-entropy, in [0, 1].
        other_side_weight: weight of the other-side term in the map ``edge``, ≥ 0.
        same_side_weight: weight of the same-side term in the map ``edge``, ≥ 0.
        radius: of the neighborhood in pixels, or one per axis.
        power: exponent of the power mean over the neighbors.
        decay: distance over which the weight of a neighbor falls by a factor of e; None for equal weights.
        spacing: size of a pixel, or one per axis.
        upsample: accept logits of lower resolution than the target, and interpolate them.
        validate: when out-of-range labels raise: ``"async"``, ``"sync"`` or ``"never"``.
        backend: ``"auto"``, ``"fused"`` or ``"reference"``.
        distance: ≥ 0, floating, in the shape of the target; a distance field to use instead of that of the labels.
            Requires ``decay``.

    Returns:
        :class:`edgeloss.LossMaps`, each in the shape of the target.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a shape, device or value does not fit.
        RuntimeError: if ``backend="fused"`` does not support the call.

    Example:
        >>> import torch
        >>> from edgeloss.functional import loss_maps
        >>> target = torch.tensor([[[0, 0, 0, 1]] * 2])
        >>> loss_maps(torch.zeros(1, 2, 2, 4), target).edge_mask[0, 0]
        tensor([False, False,  True,  True])
    """
    with torch.no_grad():
        result = edge_aware_loss(
            logits,
            target,
            weight=weight,
            ignore_index=ignore_index,
            multilabel=multilabel,
            label_smoothing=label_smoothing,
            other_side_weight=other_side_weight,
            same_side_weight=same_side_weight,
            radius=radius,
            power=power,
            decay=decay,
            spacing=spacing,
            upsample=upsample,
            validate=validate,
            backend=backend,
            distance=distance,
            region_weight=0.0,
            return_maps=True,
        )
    return cast("tuple[Tensor, LossMaps]", result)[1]
