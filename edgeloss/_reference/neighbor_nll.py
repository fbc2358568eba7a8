"""From logits, classes and weights of neighbors to the operator of the original write-up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgeloss._reference.custom_ops import opaque_to_compilers
from edgeloss._reference.neighborhoods import Grid, offsets
from edgeloss._reference.terms import negative_log_mean


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
