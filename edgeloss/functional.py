"""The loss as functions: validate, choose a backend, call it, reduce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor

from edgeloss import fused, inputs, library, reference
from edgeloss.options import Backend, Options, Reduction, Validate, check_option, radius_per_axis, spacing_per_axis
from edgeloss.reference import LossMaps

__all__ = ["balanced_edge_class_weight", "edge_aware_loss", "loss_maps", "neighbor_nll", "normalizers"]

Result: TypeAlias = (
    Tensor | tuple[Tensor, LossMaps] | tuple[Tensor, dict[str, Tensor]] | tuple[Tensor, LossMaps, dict[str, Tensor]]
)


def edge_aware_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    edge_class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    ce_weight: float = 1.0,
    edge_weight: float = 1.0,
    other_side_weight: float = 1.0,
    same_side_weight: float = 1.0,
    false_edge_weight: float = 0.0,
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
    """The edge-aware loss; :class:`edgeloss.EdgeAwareLoss` tells of every argument.

    Args:
        logits: [B, C, H, W] or [B, C, D, H, W], floating.
        target: [B, *S] class indices.
        weight: class weights [C] of the cross-entropy.
        edge_class_weight: class weights [C] of the edge terms.
        ignore_index: the label that does not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: in [0, 1].
        ce_weight: weight of the cross-entropy.
        edge_weight: weight of the edge terms.
        other_side_weight: weight of the other-side term among the edge terms.
        same_side_weight: weight of the same-side term among the edge terms.
        false_edge_weight: weight of the term of false edges among the edge terms.
        radius: of the neighbourhood in pixels, or one an axis.
        power: exponent q of the power mean over the neighbours.
        decay: distance over which a neighbour's weight falls by e; None for equal weights.
        spacing: size of a pixel, or one an axis.
        upsample: bring logits of lower resolution to the target's first.
        sync_normalizer: share the denominators among the ranks of ``torch.distributed``.
        validate: when labels are checked.
        backend: ``"auto"``, ``"fused"`` or ``"reference"``.
        pixel_weight: [B, *S] ≥ 0.
        distance: [B, *S] ≥ 0, an own distance field.
        normalizer: own denominators (W, E).
        return_maps: return :class:`edgeloss.LossMaps` too.
        return_terms: return the terms of the loss too.

    Returns:
        The loss, followed by the maps and the terms if they are asked for.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device or value that does not fit.
        RuntimeError: if ``backend="fused"`` can't serve the call.

    Example:
        >>> import torch
        >>> from edgeloss.functional import edge_aware_loss
        >>> logits = torch.zeros(1, 2, 4, 4, requires_grad=True)
        >>> target = torch.tensor([[[0, 0, 1, 1]] * 4])
        >>> loss = edge_aware_loss(logits, target)  # log 2 of cross-entropy + log 2 + log 2 at the edge
        >>> round(loss.item(), 4)
        2.0794
        >>> loss.backward()
    """
    Options(
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        ce_weight=ce_weight,
        edge_weight=edge_weight,
        other_side_weight=other_side_weight,
        same_side_weight=same_side_weight,
        false_edge_weight=false_edge_weight,
        radius=radius,
        power=power,
        decay=decay,
        spacing=spacing,
        upsample=upsample,
        sync_normalizer=sync_normalizer,
        validate=validate,
        backend=backend,
    )
    for name, of_classes in {"weight": weight, "edge_class_weight": edge_class_weight}.items():
        if of_classes is not None:
            inputs.check_weight(of_classes, validate, name=name)
    inputs.check_logits(logits)
    inputs.check_target(target)
    inputs.check_pair(logits, target, upsample=upsample)
    classes, dims = logits.shape[1], logits.dim() - 2
    radius = radius_per_axis(radius, dims)
    spacing = spacing_per_axis(spacing, dims)
    normalizer = None if normalizer is None else inputs.normalizer_tensors(normalizer, logits.device, validate)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if weight is not None:
        inputs.check_class_weight(weight, classes, logits.device)
        weight = weight.detach().to(dtype)
    if edge_class_weight is not None:
        inputs.check_class_weight(edge_class_weight, classes, logits.device, name="edge_class_weight")
        edge_class_weight = edge_class_weight.detach().to(dtype)
    if pixel_weight is not None:
        _, valid = reference.labels(target, classes, ignore_index)
        pixel_weight = _pixel_weight(pixel_weight, target, valid, validate, dtype)
    if distance is not None:
        if decay is None:
            raise ValueError("distance: expected decay with it, the length over which a neighbour's weight falls by e")
        inputs.check_map("distance", distance, target)
        if validate != "never" and inputs.may_read(distance, validate):
            y, valid = reference.labels(target, classes, ignore_index)
            read = valid & reference.within_reach(reference.edge_mask(y, valid, radius), radius)
            inputs.check_non_negative("distance", distance, where=read)
        distance = distance.detach()

    edges = edge_weight > 0 or return_maps or return_terms
    reason = _why_not_fused(backend, logits, target, decay)
    if reason and validate != "never":
        inputs.check_labels(target.long(), classes, ignore_index)
    found = (reference.evaluate if reason else partial(fused.evaluate, validate=validate))(
        logits,
        target,
        weight=weight,
        edge_class_weight=edge_class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        other_side_weight=other_side_weight,
        same_side_weight=same_side_weight,
        radius=radius,
        power=power,
        decay=decay,
        spacing=spacing,
        pixel_weight=pixel_weight,
        distance=distance,
        edges=edges,
        false_edges=edges and false_edge_weight > 0,
        maps=return_maps or reduction == "none",
    )
    denominators = normalizer or found.normalizer
    if reduction == "sum":  # the terms of a map are means
        denominators = torch.ones_like(denominators[0]), torch.ones_like(denominators[1])
    elif sync_normalizer and dist.is_available() and dist.is_initialized():
        denominators = _mean_over_ranks(denominators)
    if reduction == "none" and found.maps is not None:
        of_edges = reference.edge_pixel_weight(target.long(), found.maps.edge_mask, pixel_weight, edge_class_weight)
        loss = reference.total_map(
            found.maps,
            pixel_weight,
            of_edges,
            ce_weight=ce_weight,
            edge_weight=edge_weight,
            false_edge_weight=false_edge_weight,
        )
    else:
        loss = reference.total(
            found.sums,
            denominators,
            ce_weight=ce_weight,
            edge_weight=edge_weight,
            other_side_weight=other_side_weight,
            same_side_weight=same_side_weight,
            false_edge_weight=false_edge_weight,
        )
    loss = loss.to(dtype)

    terms = {}
    if return_terms:
        terms = reference.terms(
            found, denominators, other_side_weight=other_side_weight, same_side_weight=same_side_weight
        )
        terms = {name: term.to(dtype) for name, term in terms.items()}
    if return_maps and found.maps is not None:
        maps = found.maps.detach()
        return (loss, maps, terms) if return_terms else (loss, maps)
    return (loss, terms) if return_terms else loss


def loss_maps(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    other_side_weight: float = 1.0,
    same_side_weight: float = 1.0,
    false_edge_weight: float = 0.0,
    radius: int | Sequence[int] = 1,
    power: float = 0.0,
    decay: float | None = None,
    spacing: float | Sequence[float] | None = None,
    upsample: bool = False,
    validate: Validate = "async",
    backend: Backend = "auto",
    distance: Tensor | None = None,
) -> LossMaps:
    """Where the loss comes from: its terms a pixel, detached, before any reduction or weight.

    The arguments are those of :func:`edge_aware_loss`.

    Args:
        logits: [B, C, H, W] or [B, C, D, H, W], floating.
        target: [B, *S] class indices.
        weight: class weights [C].
        ignore_index: the label that does not count.
        label_smoothing: in [0, 1].
        other_side_weight: weight of the other-side term in ``edge``.
        same_side_weight: weight of the same-side term in ``edge``.
        false_edge_weight: 0 leaves false edges out.
        radius: of the neighbourhood in pixels, or one an axis.
        power: exponent q of the power mean over the neighbours.
        decay: distance over which a neighbour's weight falls by e; None for equal weights.
        spacing: size of a pixel, or one an axis.
        upsample: bring logits of lower resolution to the target's first.
        validate: when labels are checked.
        backend: ``"auto"``, ``"fused"`` or ``"reference"``.
        distance: [B, *S] ≥ 0, an own distance field.

    Returns:
        The maps, [B, *S] each.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device or value that does not fit.
        RuntimeError: if ``backend="fused"`` can't serve the call.

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
            label_smoothing=label_smoothing,
            other_side_weight=other_side_weight,
            same_side_weight=same_side_weight,
            false_edge_weight=false_edge_weight,
            radius=radius,
            power=power,
            decay=decay,
            spacing=spacing,
            upsample=upsample,
            validate=validate,
            backend=backend,
            distance=distance,
            return_maps=True,
        )
    return cast("tuple[Tensor, LossMaps]", result)[1]


def normalizers(
    target: Tensor,
    *,
    weight: Tensor | None = None,
    edge_class_weight: Tensor | None = None,
    ignore_index: int = -100,
    radius: int | Sequence[int] = 1,
    validate: Validate = "async",
    pixel_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The denominators (W, E) of the mean, from labels alone.

    Their sums over several crops, given to each crop's call as ``normalizer``, make the crops' losses add up exactly to
    the loss of all of them in one batch: exact gradient accumulation. Without class weights the number of classes is
    not known here, and every label ≥ 0 but ``ignore_index`` counts.

    Args:
        target: [B, *S] class indices.
        weight: class weights [C] of the cross-entropy.
        edge_class_weight: class weights [C] of the edge terms.
        ignore_index: the label that does not count.
        radius: of the neighbourhood in pixels, or one an axis.
        validate: ``"never"`` does not look for labels out of range, and they count as ignored; nor does ``"async"`` on
            CUDA, where the loss itself will tell of them.
        pixel_weight: [B, *S] ≥ 0.

    Returns:
        W = Σ v · weight[y] over valid pixels and E = Σ v · edge_class_weight[y] over edge pixels, 0-d float64, with
        v = ``pixel_weight`` or 1.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device or value that does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.functional import edge_aware_loss, normalizers
        >>> logits, target = torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
        >>> w, e = normalizers(target)
        >>> parts = [edge_aware_loss(logits[i : i + 2], target[i : i + 2], normalizer=(w, e)) for i in (0, 2)]
        >>> torch.testing.assert_close(sum(parts), edge_aware_loss(logits, target))
    """
    inputs.check_target(target)
    if target.dim() not in (3, 4):
        raise ValueError(f"target: expected [B, H, W] or [B, D, H, W], but got {list(target.shape)}")
    radius = radius_per_axis(radius, target.dim() - 1)
    check_option("validate", validate)
    classes = None
    for name, of_classes in {"weight": weight, "edge_class_weight": edge_class_weight}.items():
        if of_classes is not None:
            inputs.check_weight(of_classes, validate, name=name)
            classes = len(of_classes) if classes is None else classes
            inputs.check_class_weight(of_classes, classes, target.device, name=name)
    y = target.long()
    if validate != "never" and inputs.may_read(y, validate):
        inputs.check_labels(y, classes, ignore_index)
    valid = (y != ignore_index) & (y >= 0)
    if classes is not None:
        valid &= y < classes
    if pixel_weight is not None:
        pixel_weight = _pixel_weight(pixel_weight, target, valid, validate, torch.float64)
    mask = reference.edge_mask(y, valid, radius)
    of_edges = reference.edge_pixel_weight(y, mask, pixel_weight, edge_class_weight)
    w, e = reference.normalizers(y, valid, mask, weight, pixel_weight, of_edges)
    return w.detach(), e.detach()


def balanced_edge_class_weight(
    targets: Iterable[Tensor],
    num_classes: int,
    *,
    exponent: float = 1.0,
    ignore_index: int = -100,
    radius: int | Sequence[int] = 1,
) -> Tensor:
    """Class weights of the edge terms, from the labels to train on, under which rare classes' edges count for more.

    A class with n of the edge pixels E gets (1 / n)^exponent, times what makes the weights' mean over E 1; one without
    edge pixels gets 1. By default every class has as much of the sum as any other.

    Args:
        targets: label maps [B, *S], such as those of a data loader.
        num_classes: C ≥ 2.
        exponent: from 1, for equal shares of the sum, to 0, for equal weights.
        ignore_index: the label that does not count.
        radius: of the neighbourhood in pixels, or one an axis.

    Returns:
        [C] float32, on the CPU.

    Raises:
        TypeError: for labels of the wrong type.
        ValueError: for labels out of range or an argument that does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.functional import balanced_edge_class_weight
        >>> target = torch.zeros(1, 5, 9, dtype=torch.long)
        >>> target[:, 2, 1:] = 1  # 8 pixels, all at the edge, as are 19 around them
        >>> balanced_edge_class_weight([target], 3)
        tensor([0.7105, 1.6875, 1.0000])
    """
    if num_classes < 2:
        raise ValueError(f"num_classes: expected at least 2, but got {num_classes}")
    counts = torch.zeros(num_classes, dtype=torch.float64)
    for target in targets:
        inputs.check_target(target)
        inputs.check_labels(target.long(), num_classes, ignore_index)
        y, valid = reference.labels(target, num_classes, ignore_index)
        mask = reference.edge_mask(y, valid, radius_per_axis(radius, target.dim() - 1))
        counts += torch.bincount(y[mask], minlength=num_classes).cpu()
    weight = torch.where(counts > 0, counts, 1.0) ** -exponent
    weight *= counts.sum() / (counts * weight).sum()
    return torch.where(counts > 0, weight, 1.0).float()


def neighbor_nll(
    logits: Tensor,
    index: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    *,
    radius: int | Sequence[int] = 1,
    backend: Backend = "auto",
) -> Tensor:
    r"""The negative log of the neighbours' weighted mean probability of a class that each pixel chooses.

    .. math:: \ell_i = -\log \frac{\sum_n w_{in} \, p_n(\mathrm{index}_i)}{\sum_n w_{in}}

    over the neighbours n of i inside the image. With an indicator instead of an index, :math:`p_n` is summed over the
    classes that pixel i indicates. This is the general form of the line ``-log(((probnb * gtind).sum(-3) *
    gtdf).sum(-3) / gtdf.sum(-3))`` of a 2017 write-up of an edge- and consistency-aware segmentation loss (of the loss
    behind IEEE document 7801846; the paper's own text was not at hand). With two classes, the flipped one-hot label as
    indicator and equal weights for the neighbours of the other class it is the other-side term of
    :func:`edge_aware_loss`.

    Args:
        logits: [B, C, H, W] or [B, C, D, H, W], floating, C ≥ 2. Probabilities go in as ``prob.log()``.
        index: [B, *S] class indices, or an indicator [B, C, *S] of 0 and 1 (bool or any other dtype). An index is read
            on the mask only.
        weight: [B, K, *S] ≥ 0, not differentiable, K = ∏(2 · radius + 1) - 1 neighbours in row-major order of their
            offsets. A weight of 0 leaves the neighbour out: its logits are not read.
        mask: [B, *S] bool, where to compute; by default where Σ weight > 0 over the neighbours inside.
        radius: of the neighbourhood in pixels, or one an axis.
        backend: ``"auto"``, ``"fused"`` or ``"reference"``. The fused kernels of a GPU do not wait for it to see the
            values of weight and index: there a wrong one raises no error, but a weight that is not > 0 leaves the
            neighbour out, and an index out of range or an indicator without a class leaves out the pixel.

    Returns:
        [B, *S], float32 (float64 for float64): ≥ 0, and 0 off the mask and where no neighbour has weight.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a shape, device or value that does not fit.
        RuntimeError: if ``backend="fused"`` can't serve the call.

    Example:
        >>> import torch
        >>> from edgeloss.functional import neighbor_nll
        >>> logits = torch.zeros(1, 2, 3, 3, requires_grad=True)
        >>> index, weight = torch.zeros(1, 3, 3, dtype=torch.long), torch.ones(1, 8, 3, 3)
        >>> nll = neighbor_nll(logits, index, weight)  # every neighbour is undecided: log 2
        >>> torch.testing.assert_close(nll, torch.full((1, 3, 3), 2.0).log())
        >>> nll.sum().backward()
    """
    check_option("backend", backend)
    inputs.check_logits(logits)
    batch, classes, *size = logits.shape
    radius = radius_per_axis(radius, len(size))
    like = logits[:, 0]
    inputs.check_map("weight", weight, like, [batch, len(reference.offsets(radius)), *size])
    reason = _why_not_fused(backend, logits)
    reads_values = reason is not None or logits.device.type == "cpu"
    if reads_values:
        inputs.check_non_negative("weight", weight)
    weight = weight.detach() if weight.dtype == torch.float64 else weight.detach().float()
    if classes < 2:
        raise ValueError("logits: expected at least 2 classes, but got 1; pass torch.cat([torch.zeros_like(x), x], 1)")
    if mask is not None:
        inputs.check_mask(mask, like)

    def on_mask() -> Tensor:
        return _has_neighbors(weight, radius) if mask is None else mask

    if isinstance(index, Tensor) and index.shape == logits.shape:
        if index.device != logits.device:
            raise ValueError(f"index: expected device {logits.device}, as the logits, but got {index.device}")
        if reads_values and index.dtype != torch.bool and not ((index == 0) | (index == 1)).all():
            raise ValueError("index: expected an indicator [B, C, *S] of 0 and 1, but got other values")
        index = index.bool()
        if reads_values and not (any_class := index.any(1)).all() and (on_mask() & ~any_class).any():
            raise ValueError("index: expected at least one class a pixel of the mask, but got an indicator without any")
    else:
        inputs.check_target(index, name="index")
        inputs.check_pair(logits, index, name="index")
        if reads_values and (((labels := index.long()) < 0) | (labels >= classes)).any():
            index = torch.where(on_mask(), labels, 0)
            inputs.check_labels(index, classes, name="index")
    if reason is None:
        return fused.neighbor_nll(logits, index, weight, mask, radius)
    x = logits if logits.dtype == torch.float64 else logits.float()
    return reference.neighbor_nll(x, index if index.dim() == x.dim() else index.long(), weight, on_mask(), radius)


def _has_neighbors(weight: Tensor, radius: Sequence[int]) -> Tensor:
    """Where some neighbour inside the image has weight, [B, *S] bool."""
    like = weight[:, 0]
    everywhere = torch.arange(like.numel(), device=like.device)
    mask = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    mask[reference.weighted_pairs(weight, everywhere, radius)[0]] = True
    return mask.view_as(like)


def _why_not_fused(
    backend: Backend, logits: Tensor, target: Tensor | None = None, decay: float | None = None
) -> str | None:
    """Why the reference is to serve a call; None if the fused kernels are."""
    reason = "the caller's choice" if backend == "reference" else library.why_not_fused(logits, target, decay)
    if backend == "fused" and reason:
        raise RuntimeError(f"backend='fused' can't serve this call: {reason}; use 'auto' or 'reference'")
    return reason


def _pixel_weight(
    pixel_weight: Tensor, target: Tensor, valid: Tensor, validate: Validate, dtype: torch.dtype
) -> Tensor:
    """Checked, detached, and 0 on pixels that do not count, whatever stood there."""
    inputs.check_map("pixel_weight", pixel_weight, target)
    pixel_weight = torch.where(valid, pixel_weight.detach().to(dtype), 0.0)
    if validate != "never" and inputs.may_read(pixel_weight, validate):
        inputs.check_non_negative("pixel_weight", pixel_weight)
    return pixel_weight


def _mean_over_ranks(normalizer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    # DDP averages the ranks' gradients: with Σ / (global denominator / world_size) that is the whole batch's gradient.
    both = torch.stack(normalizer)
    dist.all_reduce(both)
    both /= dist.get_world_size()
    return both[0], both[1]
