"""The public functions: from logits and labels to the loss, and from labels to what it takes of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import torch
from torch import Tensor

from edgeloss import _call
from edgeloss._checks.inputs import (
    BALANCED,
    Call,
    Given,
    check_logits,
    check_map,
    check_non_negative,
    check_values,
    label_maps,
    plain,
    renamed_balance,
    result_dtype,
)
from edgeloss._checks.options import (
    BackendChoice,
    Options,
    Reduction,
    Validate,
    check_count,
    check_in,
    check_option,
    radius_per_axis,
    suggest_keywords,
)
from edgeloss._kernels import backends, evaluate
from edgeloss._reduction import LossMaps, LossResult, balance, places_of_labels, ratio
from edgeloss._reference.label_weights import EdgeWeights, edge_pixels, weigh_neighbors
from edgeloss._reference.neighbor_nll import by_torch, has_neighbors
from edgeloss._reference.neighborhoods import find_edges, neighbor_weights

__all__ = [
    "EdgeWeights",
    "balanced_edge_class_weight",
    "edge_aware_loss",
    "edge_weights",
    "loss_maps",
    "neighbor_nll",
    "normalizers",
]

Terms: TypeAlias = dict[str, Tensor]
Result: TypeAlias = Tensor | tuple[Tensor, LossMaps] | tuple[Tensor, Terms] | tuple[Tensor, LossMaps, Terms]


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
    edge_focus: float = 3.0,
    region_weight: float = 3.0,
    radius: int | Sequence[int] = 1,
    power: float = 0.0,
    decay: float | None = None,
    spacing: float | Sequence[float] | None = None,
    upsample: bool = False,
    sync_normalizer: bool = False,
    validate: Validate = "async",
    backend: BackendChoice = "auto",
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
    given = Given(weight, renamed_balance(edge_class_weight), pixel_weight, distance, normalizer)
    found = _call.evaluate(logits, target, options, given, with_maps=return_maps, with_terms=return_terms)
    return as_asked(*found, maps=return_maps, terms=return_terms)


def as_asked(result: LossResult, call: Call, *, maps: bool, terms: bool) -> Result:
    """Return the loss, then the maps and the terms if they are asked for."""
    if not maps and not terms:
        return result.loss
    asked: list[Tensor | LossMaps | Terms] = [result.loss]
    of_pixels = result.sums.maps
    if maps and of_pixels is not None:
        of_pixels = of_pixels._replace(edge_mask=of_pixels.edge_mask.clone())  # the backward pass reads it
        asked.append(LossMaps(*(x if x is None else call.inputs.as_given(x.detach()) for x in of_pixels)))  # type: ignore[arg-type]
    if terms:
        asked.append(result.terms())
    return cast("Result", tuple(asked))


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
    backend: BackendChoice = "auto",
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


@suggest_keywords
def normalizers(
    target: Tensor,
    num_classes: int | None = None,
    *,
    weight: Tensor | None = None,
    edge_class_weight: Tensor | str | None = BALANCED,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    radius: int | Sequence[int] = 1,
    validate: Validate = "async",
    pixel_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what the mean divides by, W and the edge pixels n of each class, from labels alone.

    For exact gradient accumulation, pass their sums over the parts of a step as ``normalizer`` of each part's call: the
    losses of the parts then add up to the loss of the whole batch, and so do their gradients. A part is some of the
    images; W and n of several calls add up where ``num_classes`` is the same.

    Args:
        target: [B, *S] class indices; with ``multilabel`` [B, C, *S] of 0 and 1.
        num_classes: C; by default that of the class weights, or as many as the largest label needs, which waits for the
            device. A call of the loss with more classes pads n with zeros.
        weight: class weights [C] of the cross-entropy; with ``multilabel`` also [C, 2], for labels 0 and 1.
        edge_class_weight: that of the loss. It changes nothing: n comes before the class weights, which come from n.
        ignore_index: label of pixels to ignore; None for none.
        multilabel: take each class as a binary loss of its own, with labels per class.
        radius: of the neighborhood in pixels, or one per axis.
        validate: ``"sync"`` raises an error for out-of-range labels; so does ``"async"``, except for CUDA tensors,
            where the loss raises it. With ``"never"`` such pixels are ignored.
        pixel_weight: [B, *S] ≥ 0, floating; with ``multilabel`` also [B, C, *S].

    Returns:
        W = Σ v · weight[y] over valid pixels, 0-d, and n [C], Σ v over the edge pixels of each class, float64, with
        v = ``pixel_weight`` or 1. With ``multilabel`` n is [C, 2], of labels 0 and 1 of each class.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a shape, device or value does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.functional import edge_aware_loss, normalizers
        >>> logits, target = torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
        >>> total = normalizers(target, 3)
        >>> parts = [edge_aware_loss(logits[i : i + 2], target[i : i + 2], normalizer=total) for i in (0, 2)]
        >>> torch.testing.assert_close(sum(parts), edge_aware_loss(logits, target))
    """
    options = Options(ignore_index=ignore_index, multilabel=multilabel, radius=radius, validate=validate)
    given = Given(weight, renamed_balance(edge_class_weight), pixel_weight)
    if num_classes is not None:
        check_count("num_classes", num_classes, 1)
    return _call.label_totals(target, options, given, num_classes)


@suggest_keywords
def edge_weights(
    target: Tensor,
    num_classes: int,
    *,
    edge_class_weight: Tensor | str | None = BALANCED,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    radius: int | Sequence[int] = 1,
    decay: float | None = None,
    spacing: float | Sequence[float] | None = None,
    validate: Validate = "async",
    pixel_weight: Tensor | None = None,
    distance: Tensor | None = None,
) -> EdgeWeights:
    """Compute how much the edge terms look at each pixel, from labels alone.

    With ``power=0``, the default, the edge terms are a sum over pixels whose weights do not depend on the logits:

        Σ_E v u S = Σ_n A_n · -log p_n(y_n)   and   Σ_E v u O = Σ_n Σ_k B_n(k) · -log(1 - p_n(k))

    ``edge_focus`` multiplies A of the pixels of a class in an image, and B(k) of a class k, by what it makes of the
    mean edge term of that class there. The arguments are those of :func:`edge_aware_loss`. Waits for the device.

    Args:
        target: [B, *S] class indices; with ``multilabel`` [B, C, *S] of 0 and 1.
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        edge_class_weight: u, class weights [C] of the edge terms, ≥ 0; with ``multilabel`` also [C, 2].
            ``"balanced"`` for those of the edge pixels of these labels; None for ones.
        ignore_index: label of pixels to ignore; None for none.
        multilabel: take each class as a binary loss of its own, with labels per class.
        radius: of the neighborhood in pixels, or one per axis.
        decay: distance over which the weight of a neighbor falls by a factor of e; None for equal weights.
        spacing: size of a pixel, or one per axis.
        validate: ``"sync"`` raises an error for out-of-range labels; so does ``"async"``, except for CUDA tensors. With
            ``"never"`` such pixels are ignored.
        pixel_weight: v [B, *S] ≥ 0, floating; with ``multilabel`` also [B, C, *S].
        distance: ≥ 0, floating, in the shape of the target; a distance field to use instead of that of the labels.
            Requires ``decay``.

    Returns:
        :class:`EdgeWeights`: A, B and E, in float64.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a shape, device or value does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.functional import edge_weights
        >>> weights = edge_weights(torch.tensor([[[0, 0, 0, 1, 1]]]), 2)  # one edge pixel of each class: u = 1
        >>> weights.same_side  # that of the pixels two away from the border: one edge pixel has it as its neighbor
        tensor([[[0., 1., 0., 0., 1.]]], dtype=torch.float64)
        >>> weights.pixel, weights.other_class  # pixel 2 is of class 0, next to an edge pixel of class 1
        (tensor([2, 3]), tensor([1, 0]))
        >>> weights.other_side, weights.total
        (tensor([1., 1.], dtype=torch.float64), tensor(2., dtype=torch.float64))
    """
    check_count("num_classes", num_classes, 1 if multilabel else 2)
    options = Options(
        ignore_index=ignore_index,
        multilabel=multilabel,
        radius=radius,
        decay=decay,
        spacing=spacing,
        validate=validate,
    )
    given = Given(None, renamed_balance(edge_class_weight), pixel_weight, distance)
    inputs = _call.without_logits(plain(target), num_classes, options, given)
    _call.check_distance(inputs, options)
    y, valid = inputs.labels()
    mask, classes = find_edges(y, valid, inputs.radius), max(2, inputs.logits.shape[1])
    _, log_w = neighbor_weights(inputs, y, valid, mask, decay)
    weights = weigh_neighbors(y, valid, mask, log_w, inputs.pixel_weight, inputs.radius, classes)
    u, n = inputs.edge_class_weight, edge_pixels(y, mask, inputs, classes)
    u = balance(n) if inputs.is_balanced else torch.ones_like(n) if u is None else u.to(n)
    table = weights.pixel // max(1, y[:1].numel()) % inputs.tables * 2 if inputs.tables > 1 else 0
    other_side = weights.other_side * u[weights.other_class + table]
    same_side = weights.same_side * u[torch.where(valid, places_of_labels(y, inputs.tables), 0)]
    seen = other_side > 0
    pixel, other_class, other_side = (x[seen] for x in (weights.pixel, weights.other_class, other_side))
    return EdgeWeights(inputs.as_given(same_side), pixel, other_class, other_side, torch.dot(u, n))


@suggest_keywords
def balanced_edge_class_weight(
    targets: Iterable[Tensor],
    num_classes: int,
    *,
    exponent: float = 1.0,
    ignore_index: int | None = -100,
    multilabel: bool = False,
    radius: int | Sequence[int] = 1,
) -> Tensor:
    """Compute class weights of the edge terms that give the edges of rare classes more weight.

    A class with n edge pixels gets (1 / n)^exponent, scaled so that the mean weight over all edge pixels is 1; a class
    without edge pixels gets 1. By default every class contributes the same share of the sum.

    Args:
        targets: label maps [B, *S], such as those of a data loader; with ``multilabel`` [B, C, *S].
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        exponent: in [0, 1]; 1 gives equal shares of the sum, 0 equal weights.
        ignore_index: label of pixels to ignore; None for none.
        multilabel: take each class as a binary loss of its own, with labels per class.
        radius: of the neighborhood in pixels, or one per axis.

    Returns:
        [C] float32, on the CPU. With ``multilabel`` [C, 2]: labels 0 and 1 of each class are then 2 C classes.

    Raises:
        TypeError: if labels have the wrong type.
        ValueError: if labels are out of range, or an argument does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.functional import balanced_edge_class_weight
        >>> target = torch.zeros(1, 5, 9, dtype=torch.long)
        >>> target[:, 2, 1:] = 1  # 8 pixels, all at the edge, as are 19 around them
        >>> balanced_edge_class_weight([target], 3)
        tensor([0.7105, 1.6875, 1.0000])
    """
    check_count("num_classes", num_classes, 1 if multilabel else 2)
    check_in("exponent", exponent, 0, 1)
    options = Options(ignore_index=ignore_index, multilabel=multilabel, radius=radius, validate="sync")
    n = torch.zeros((num_classes, 2) if multilabel else num_classes, dtype=torch.float64, device="cpu")
    for target in label_maps(targets, multilabel=multilabel, classes=num_classes):
        n += _call.label_totals(target, options, Given(), num_classes)[1].cpu()
    u = torch.where(n > 0, n, 1.0) ** -exponent
    u *= ratio(n.sum(), (u * n).sum())
    return torch.where(n > 0, u, 1.0).float()


@suggest_keywords
def neighbor_nll(
    logits: Tensor,
    index: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    *,
    radius: int | Sequence[int] = 1,
    backend: BackendChoice = "auto",
) -> Tensor:
    r"""Compute -log of the weighted mean probability that a pixel's neighbors give to its class.

    .. math:: \ell_i = -\log \frac{\sum_n w_{in} \, p_n(\mathrm{index}_i)}{\sum_n w_{in}}

    over the neighbors n of pixel i inside the image. With an indicator instead of an index, :math:`p_n` is the sum
    over the classes that pixel i indicates.

    Source: the general form of the line ``-log(((probnb * gtind).sum(-3) * gtdf).sum(-3) / gtdf.sum(-3))`` of a 2017
    write-up of an edge- and consistency-aware segmentation loss (of the loss behind IEEE document 7801846; the paper's
    own text was not at hand). With two classes, the flipped one-hot label as indicator, and equal weights for the
    neighbors of the other class, it is the other-side term of :func:`edgeloss.functional.edge_aware_loss` with
    ``power=1``.

    Args:
        logits: [B, C, H, W] or [B, C, D, H, W], floating, C ≥ 2. Pass probabilities as ``prob.log()``.
        index: class indices [B, *S], read on the mask only; or an indicator [B, C, *S] of 0 and 1, bool or any other
            dtype.
        weight: [B, K, *S], floating, ≥ 0, not differentiable, for K = ∏(2 · radius + 1) - 1 neighbors in row-major
            order of their offsets. A weight of 0 leaves the neighbor out, and its logits are not read.
        mask: [B, *S] bool, the pixels to compute; by default those with Σ weight > 0 over the neighbors inside.
        radius: of the neighborhood in pixels, or one per axis.
        backend: ``"auto"``, ``"fused"`` or ``"reference"``. The fused CUDA kernels do not check the values of weight
            and index: a neighbor whose weight is not > 0 is left out, and so is a pixel whose index is out of range or
            whose indicator has no class.

    Returns:
        [B, *S], float32, or float64 for float64 logits: ≥ 0, and 0 off the mask and where no neighbor has weight.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a shape, device or value does not fit.
        RuntimeError: if ``backend="fused"`` does not support the call.

    Example:
        >>> import torch
        >>> from edgeloss.functional import neighbor_nll
        >>> logits = torch.zeros(1, 2, 3, 3, requires_grad=True)
        >>> index, weight = torch.zeros(1, 3, 3, dtype=torch.long), torch.ones(1, 8, 3, 3)
        >>> nll = neighbor_nll(logits, index, weight)  # every neighbor has p = 1/2: log 2
        >>> torch.testing.assert_close(nll, torch.full((1, 3, 3), 2.0).log())
        >>> nll.sum().backward()
    """
    check_option("backend", backend)
    check_logits(logits)
    check_values("logits", logits)
    batch, classes, *size = logits.shape
    radius = radius_per_axis(radius, len(size))
    count = math.prod([2 * r + 1 for r in radius]) - 1
    check_map("weight", weight, logits[:, 0], [batch, count, *size])
    reason = backends.why_no_neighbor_nll(logits) if backend != "reference" else "the caller's choice"
    if backend == "fused" and reason:
        raise RuntimeError(_call.refusal(reason))
    reads_values = reason is not None or logits.device.type == "cpu"
    if reads_values:
        check_non_negative("weight", weight)
    weight = weight.detach() if weight.dtype == torch.float64 else weight.detach().float()
    if classes < 2:
        raise ValueError("logits: expected at least 2 classes, but got 1; pass torch.cat([torch.zeros_like(x), x], 1)")
    if mask is not None:
        check_map("mask", mask, logits[:, 0], is_mask=True)
    index = _call.check_index(index, logits, weight, mask, radius, reads_values)
    x = logits.to(result_dtype(logits))
    if reason is None:
        return evaluate.neighbor_nll(x, index, weight, mask, radius)
    mask = has_neighbors(weight, radius) if mask is None else mask
    return by_torch(x, index if index.dim() == x.dim() else index.long(), weight, mask, radius)
