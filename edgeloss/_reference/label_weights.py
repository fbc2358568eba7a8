"""From labels alone to what the loss takes of them: denominators, class weights and weights of pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgeloss._checks.inputs import (
    BALANCED,
    Given,
    Inputs,
    check_inputs,
    check_label_map,
    check_labels,
    check_non_negative,
    is_checked,
    label_maps,
    plain,
    renamed_balance,
    widest,
)
from edgeloss._checks.options import Options, Validate, check_count, check_in, suggest_keywords
from edgeloss._reduction import balance, places_of_labels, ratio, weights_of_pixels
from edgeloss._reference.neighborhoods import Grid, clipped, find_edges, neighbor_weights, within_reach

_ANY = 2**31 - 1  # classes: more than any labels have


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
    return label_totals(target, options, given, num_classes)


def label_totals(target: Tensor, options: Options, given: Given, classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Return what :func:`normalizers` does."""
    target = plain(target)
    if classes is None and not options.multilabel:
        weights = (given.weight, given.edge_class_weight)
        classes = next((len(weight) for weight in weights if isinstance(weight, Tensor) and weight.dim()), None)
    inputs = _without_logits(target, classes, options, given)
    y, valid = inputs.labels()
    if classes is None and not options.multilabel:
        classes = max(2, 1 + int(torch.where(valid, y, 0).max())) if y.numel() else 2
    classes = 2 if options.multilabel else max(2, classes or 2)
    mask = find_edges(y, valid, inputs.radius)
    n = edge_pixels(y, mask, inputs, classes)
    w = weights_of_pixels(inputs, y, valid).sum(dtype=n.dtype)
    return w, n if inputs.multilabel_classes is None else n.view(-1, 2)


def edge_pixels(y: Tensor, mask: Tensor, inputs: Inputs, classes: int) -> Tensor:
    """Return n = Σ v over the edge pixels of each class, [C], or [2C] of a multilabel call."""
    v, wide = inputs.pixel_weight, widest(y.device)
    n = torch.zeros(classes * inputs.tables, dtype=wide, device=y.device)
    place = torch.where(mask, places_of_labels(y, inputs.tables), 0)
    return n.index_add_(0, place.flatten(), (mask if v is None else torch.where(mask, v, 0.0)).to(wide).flatten())


def _without_logits(target: Tensor, classes: int | None, options: Options, given: Given) -> Inputs:
    """Check the arguments of a call without logits, labels included; without ``classes``, each label ≥ 0 may be one."""
    check_label_map(target, multilabel=options.multilabel, classes=classes)
    if options.multilabel and classes is None:
        classes = target.shape[1]
    # Logits of no memory, whose number of classes the arguments are checked against.
    shape = target.shape[0], _ANY if classes is None else classes, *target.shape[1 + options.multilabel :]
    logits = torch.zeros((), dtype=widest(target.device), device=target.device).expand(shape)
    inputs = check_inputs(logits, target, options, given)
    if is_checked(target, options.validate):
        check_labels(target.long(), None if classes is None else inputs.logits.shape[1], options.ignore_index)
    return inputs


class EdgeWeights(NamedTuple):
    """How much the edge terms with ``power=0`` look at each pixel, from the labels alone.

    Attributes:
        same_side: A, the weight of -log p_n(y_n) at each pixel n, [B, *S]; of a multilabel target [B, C, *S]. Adds up
            to E, but for edge pixels without a neighbor of their own class.
        pixel: n, the pixels that the other side looks at, once for each class k of the edge pixels around it, as
            indices in the flattened target, [L] int64 in ascending order.
        other_class: k, [L] int64.
        other_side: B, the weight of -log(1 - p_n(k)), > 0, [L]. Adds up to E.
        total: E = Σ_E v · u, 0-d, by which ``reduction="mean"`` divides.
    """

    same_side: Tensor
    pixel: Tensor
    other_class: Tensor
    other_side: Tensor
    total: Tensor


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
    inputs = _without_logits(plain(target), num_classes, options, given)
    check_distance(inputs, options)
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


def check_distance(inputs: Inputs, options: Options) -> None:
    """Check the values of a distance field where the loss reads them.

    Raises:
        ValueError: if one is negative or not finite.
    """
    distance = inputs.distance
    if distance is not None and is_checked(distance, options.validate):
        y, valid = inputs.labels()
        read = valid & within_reach(find_edges(y, valid, inputs.radius), inputs.radius)
        check_non_negative("distance", inputs.as_given(distance), where=inputs.as_given(read))


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
        n += label_totals(target, options, Given(), num_classes)[1].cpu()
    u = torch.where(n > 0, n, 1.0) ** -exponent
    u *= ratio(n.sum(), (u * n).sum())
    return torch.where(n > 0, u, 1.0).float()


# ------------------------------------------------------------------------------------------------ weights of pixels


def weigh_neighbors(
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    log_w: Tensor | None,
    v: Tensor | None,
    radius: Sequence[int],
    classes: int,
) -> EdgeWeights:
    """Return A, B and E of maps [B, *S], without u; log w is None for equal weights, v for ones. Labels are < classes.

    Symbols are those of :mod:`edgeloss._reference.terms`, v = ``pixel_weight``. The logarithm of a neighbor n is read by the
    edge pixels i around it, each with its share of a mean. Sorted by n instead of by i,

        Σ_E v S = Σ_n A_n · -log p_n(y_n)               A_n    = w_n · Σ { v_i / D_i  : n ∈ N(i), y_i = y_n }
        Σ_E v O = Σ_n Σ_k B_n(k) · -log(1 - p_n(k))     B_n(k) = w_n · Σ { v_i / D'_i : n ∈ N(i), y_i = k ≠ y_n }

    where i ∈ E, and D_i and D'_i are the sums of w over the neighbors of i on its own side and on the other. The sums
    over the edge pixels of class c alone are those over A_n with y_n = c, and over B_n(c).
    """
    center, label, wide = mask.flatten().nonzero().squeeze(1), y.flatten(), widest(y.device)
    weight = torch.ones_like(center, dtype=wide) if v is None else v.flatten()[center].to(wide)
    same_side, grid = torch.zeros_like(label, dtype=wide), Grid(valid, clipped(radius, y.shape))
    key, other_side = center[:0], weight[:0]  # n · C + k
    for i, of_i in zip(grid.split(center), grid.split(weight), strict=True):
        row, n = grid.pairs(i)
        k = label[i][row]
        is_same = label[n] == k
        share = side_shares(row, is_same, None if log_w is None else log_w.flatten()[n], len(i), wide) * of_i[row]
        same_side.index_add_(0, n[is_same], share[is_same])
        across = ~is_same
        key, place = torch.unique(torch.cat([key, (n * classes + k)[across]]), return_inverse=True)
        other_side = torch.zeros_like(key, dtype=wide).index_add_(0, place, torch.cat([other_side, share[across]]))
    key, other_side = key[other_side > 0], other_side[other_side > 0]
    return EdgeWeights(same_side.view_as(y), key // classes, key % classes, other_side, weight.sum())


def side_shares(row: Tensor, is_same: Tensor, log_w: Tensor | None, count: int, dtype: torch.dtype) -> Tensor:
    """Return w_n over the sum of w on the same side of the edge pixel, of each pair, [P].

    ``row`` is the number of the edge pixel, below ``count``; ``is_same``, whether n is on its own side.
    """
    side = 2 * row + is_same
    sums = torch.zeros(2 * count, dtype=dtype, device=row.device)
    w = torch.ones_like(side, dtype=dtype)
    if log_w is not None:  # relative to the largest of the side: all may be below the smallest number
        largest = torch.full_like(sums, -math.inf).scatter_reduce_(0, side, log_w, "amax")
        w = (log_w - largest[side]).exp()
    return w / sums.index_add_(0, side, w)[side]
