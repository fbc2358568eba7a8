"""Active boundary loss: push predicted borders towards those of the labels."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from baselines.common import compare, pairs
from edgeloss._reference.neighborhoods import within_reach
from edgeloss.fields import distance_to_sites

# The order decides ties: straight steps come before diagonal ones, and the center is last.
STEPS = [(1, 0), (-1, 0), (0, -1), (0, 1), (-1, 1), (1, 1), (-1, -1), (1, -1), (0, 0)]
MOST = 0.01  # largest share of an image's pixels that seed the border of the prediction
FAR = 20.0  # distance from which a pixel has full weight
SMOOTHING = 0.2


def active_boundary(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute how well predicted borders point to the borders of the labels.

    With D = max(0, distance to the labels' border - 1), the target of each pixel on a predicted border is the one of
    its 8 neighbors with the least D; pixels with the least D themselves are left out. The logits are the 8 values
    KL(neighbor ‖ center), without gradient to the neighbors. The cross-entropy of these, with label smoothing, has the
    weight min(D, 20) / 20.

    Source: Wang et al., "Active Boundary Loss for Semantic Segmentation", AAAI 2022, and the authors' code. Their code
    treats void as border; here there is no border next to void, and a void pixel is neither on one nor a target.
    """
    _, _, height, width = logits.shape
    valid = target != ignore_index
    distance, has_border = label_distance(target, valid)
    seeds = predicted_border(logits.detach(), valid) & valid & has_border[:, None, None]
    image, row, column = seeds.nonzero().unbind(1)

    # Pixels outside the image and void pixels are infinitely far.
    far = F.pad(distance.masked_fill(~valid, torch.inf), [1] * 4, value=torch.inf)
    direction = torch.stack([far[image, row + 1 + dy, column + 1 + dx] for dy, dx in STEPS]).argmin(0)
    moves = (direction < len(STEPS) - 1).nonzero().squeeze(1)
    if not len(moves):
        return logits.sum() * 0
    image, row, column, direction = (index[moves] for index in (image, row, column, direction))
    log_p = logits.log_softmax(1).movedim(1, -1).reshape(-1, logits.shape[1])

    def at(dy: int, dx: int) -> Tensor:  # a pixel outside has the prediction of its neighbor inside
        y, x = (row + dy).clamp(0, height - 1), (column + dx).clamp(0, width - 1)
        return log_p.index_select(0, (image * height + y) * width + x)

    *neighbors, center = [at(dy, dx) for dy, dx in STEPS]
    kl = torch.stack([divergence(neighbor.detach(), center, dim=1) for neighbor in neighbors], 1)  # [K, 8]
    loss = F.cross_entropy(kl, direction, label_smoothing=SMOOTHING, reduction="none")
    return (loss * distance[image, row, column].clamp(max=FAR) / FAR).mean()


def divergence(log_a: Tensor, log_b: Tensor, *, dim: int) -> Tensor:
    """Compute KL(a ‖ b) from log-probabilities."""
    return (log_a.exp() * (log_a - log_b)).sum(dim)


def label_distance(target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Compute D [B, H, W], and which images [B] have a border.

    The border is the pixels whose right or lower neighbor has another label.
    """
    border = torch.zeros_like(valid)
    for offset in ((0, 1), (1, 0)):
        pairs(border, *offset)[0].logical_or_(compare(target, valid, offset)[0])
    distance = np.zeros(target.shape, dtype=np.float32)
    for field, sites in zip(distance, border.cpu().numpy(), strict=True):
        if sites.any():
            field[:] = np.maximum(distance_to_sites(sites, (1, 1)) - 1, 0)
    return torch.from_numpy(distance).to(target.device), border.flatten(1).any(1)


def predicted_border(logits: Tensor, valid: Tensor) -> Tensor:
    """Find where the prediction changes most to the right and down.

    At most 1 % of an image's pixels, then dilated by 3 × 3.
    """
    log_p = logits.log_softmax(1)
    change = torch.zeros_like(log_p[:, 0])
    for offset in ((0, 1), (1, 0)):
        here, there = pairs(log_p, *offset)
        exists = torch.logical_and(*pairs(valid, *offset))
        pairs(change, *offset)[0].add_(torch.where(exists, divergence(here, there, dim=1), 0))
    most = MOST * change[0].numel()
    least = change.new_full((len(change), 1, 1), 1e-5)
    while (many := (change > least).sum((1, 2), keepdim=True) > most).any():
        least = torch.where(many, least * 1.2, least)
    return within_reach(change > least, (1, 1))
