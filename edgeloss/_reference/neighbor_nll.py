"""From logits, classes and weights of neighbors to the operator of the original write-up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgeloss._checks.inputs import (
    check_device,
    check_labels,
    check_logits,
    check_map,
    check_non_negative,
    check_pair,
    check_target,
    check_that,
    check_values,
    result_dtype,
)
from edgeloss._checks.options import Backend, check_option, radius_per_axis, suggest_keywords
from edgeloss._kernels import evaluate as fused
from edgeloss._kernels import library
from edgeloss._reference.custom_ops import is_evenly_spaced, opaque_to_compilers
from edgeloss._reference.neighborhoods import Grid, offsets
from edgeloss._reference.terms import negative_log_mean


@suggest_keywords
def neighbor_nll(
    logits: Tensor,
    index: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    *,
    radius: int | Sequence[int] = 1,
    backend: Backend = "auto",
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
    reason = library.why_reference(backend, logits)
    reads_values = reason is not None or logits.device.type == "cpu"
    if reads_values:
        check_non_negative("weight", weight)
    weight = weight.detach() if weight.dtype == torch.float64 else weight.detach().float()
    if classes < 2:
        raise ValueError("logits: expected at least 2 classes, but got 1; pass torch.cat([torch.zeros_like(x), x], 1)")
    if mask is not None:
        check_map("mask", mask, logits[:, 0], is_mask=True)
    index = _check_index(index, logits, weight, mask, radius, reads_values)
    x = logits.to(result_dtype(logits))
    if reason is None:
        return by_kernels(x, index, weight, mask, radius)
    mask = has_neighbors(weight, radius) if mask is None else mask
    return by_torch(x, index if index.dim() == x.dim() else index.long(), weight, mask, radius)


def _check_index(
    index: Tensor, logits: Tensor, weight: Tensor, mask: Tensor | None, radius: Sequence[int], reads_values: bool
) -> Tensor:
    """Return the index, 0 where it is out of range off the mask, or the indicator as bool."""
    classes = logits.shape[1]

    def on_mask() -> Tensor:
        return has_neighbors(weight, radius) if mask is None else mask

    if isinstance(index, Tensor) and index.shape == logits.shape:
        check_device("index", index, logits)
        if reads_values and index.dtype != torch.bool:
            is_indicator = ((index == 0) | (index == 1)).all()
            check_that(is_indicator, "index: expected an indicator [B, C, *S] of 0 and 1, but got other values")
        index = index.bool()
        any_class = index.any(1)
        if reads_values and (torch.compiler.is_compiling() or not any_class.all()):
            one = "index: expected at least one class per pixel of the mask, but got a pixel without any"
            check_that(~(on_mask() & ~any_class).any(), one)
        return index
    check_target(index, name="index")
    check_pair(logits, index, name="index")
    y = index.long()
    if reads_values and (torch.compiler.is_compiling() or ((y < 0) | (y >= classes)).any()):
        index = torch.where(on_mask(), y, 0)
        check_labels(index, classes, name="index")
    return index


def by_kernels(logits: Tensor, index: Tensor, weight: Tensor, mask: Tensor | None, radius: Sequence[int]) -> Tensor:
    """Return what :func:`by_torch` does, by the fused kernels.

    Without a mask it is set everywhere. A pixel whose index is out of range, or whose indicator has no class, is left
    out.
    """

    def spaced(x: Tensor) -> Tensor:
        return x if x.dim() == logits.dim() and is_evenly_spaced(x) else x.contiguous()

    mask = None if mask is None else mask.contiguous()
    value: Tensor = fused.operators.neighbor_nll(*map(spaced, (logits, index, weight)), mask, list(radius))[0]
    return value


@opaque_to_compilers(lambda x, index, weight, mask, radius: x.new_empty(mask.shape))
def by_torch(x: Tensor, index: Tensor, weight: Tensor, mask: Tensor, radius: Sequence[int]) -> Tensor:
    """Return -log(Σ_n w_in P_in / Σ_n w_in) over the neighbors n of i inside the image, [B, *S]; 0 off the mask.

    P_in is p_n(index_i), or Σ_c indicator_i(c) p_n(c). The mean is formed from logarithms, as -log M_1{P_in; w_in}.
    """
    center = mask.flatten().nonzero().squeeze(1)
    row, n, w = weighted_pairs(weight, center, radius)
    pixels, at = torch.unique(n, return_inverse=True)  # a pixel is the neighbor of many
    logits = x.movedim(1, -1).reshape(-1, x.shape[1]).index_select(0, pixels)
    if index.dim() < x.dim():
        chosen = at * x.shape[1] + index.flatten()[center][row]
        a = logits.log_softmax(1).flatten().index_select(0, chosen)
    else:
        chosen = index.movedim(1, -1).reshape(-1, x.shape[1])[center]
        log_sum = _log_sum_of_chosen(logits, torch.ones_like(logits, dtype=torch.bool))

        def log_chosen(row: Tensor, at: Tensor) -> Tensor:
            return _log_sum_of_chosen(logits.index_select(0, at), chosen[row]) - log_sum.index_select(0, at)

        # Recomputed in the backward pass: the [P, C] intermediate would take K times the memory of the logits.
        parts = zip(*(torch.split(values, max(1, len(center))) for values in (row, at)), strict=True)
        of_parts = [checkpoint(log_chosen, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        a = torch.cat(of_parts) if of_parts else log_sum[:0]
    value = negative_log_mean(a, w.log(), row, len(center), power=1.0)
    return x.new_zeros(mask.numel()).index_copy(0, center, value).view_as(mask)


def _log_sum_of_chosen(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return log Σ exp(x - max) [N] over the chosen classes alone, the max being that of all; both are [N, C].

    No result depends on the shift, so it has no derivative. The max of the chosen ones is kept apart from the rest: far
    below that of all, one number has no digits for both, and the derivatives, the softmax over the chosen ones, would
    not add up to 1.
    """
    x = logits.masked_fill(~chosen, -math.inf)
    top = x.amax(1, keepdim=True).detach().clamp(min=torch.finfo(x.dtype).min)
    return (top[:, 0] - logits.amax(1).detach()) + (x - top).exp().sum(1).log()


def weighted_pairs(weight: Tensor, center: Tensor, radius: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return row of center, neighbor inside the image, and weight of all pairs with a weight > 0, [P] each."""
    grid = Grid(torch.ones_like(weight[:, 0], dtype=torch.bool), radius)
    place = grid.place(center)
    parts = []
    for k, offset in enumerate(offsets(radius)):
        row, n = grid.neighbors(place, offset)
        w = weight[:, k].flatten()[center[row]]
        parts.append((row[w > 0], n[w > 0], w[w > 0]))
    rows, neighbors, weights = zip(*parts, strict=True)
    return torch.cat(rows), torch.cat(neighbors), torch.cat(weights)


@opaque_to_compilers(lambda weight, radius: weight.new_empty(weight[:, 0].shape, dtype=torch.bool))
def has_neighbors(weight: Tensor, radius: Sequence[int]) -> Tensor:
    """Return where some neighbor inside the image has weight, [B, *S] bool."""
    like = weight[:, 0]
    everywhere = torch.arange(like.numel(), device=like.device)
    mask = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    mask[weighted_pairs(weight, everywhere, radius)[0]] = True
    return mask.view_as(like)
