"""Region mutual information: small regions of the prediction explain those of the labels."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from baselines.common import one_hot

SIDE = 3  # of a region
POOL = 3  # pixels per side that are averaged before
POSITION = 5e-4  # added to the diagonals, so that the matrices are positive definite
SMALLEST = 1e-6  # added to the probabilities


def rmi(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute the bound of the negative mutual information: Σ over classes of log det(M) / 2d.

    A region of a class is a vector of d = 9 values, 27 in 3-D: y of the one-hot labels, and p of sigmoid(logits), both
    averaged over 3 pixels per axis before. With the scatter matrices of all regions of an image and a = 5e-4,
    M = Σ_yy - Σ_yp (Σ_pp + a I)⁻¹ Σ_py + a I. The mean is over images. An ignored pixel has the value 0 in both; an
    image without valid pixels does not count.

    Source: Zhao et al., "Region Mutual Information Loss for Semantic Segmentation", NeurIPS 2019, and the authors'
    code, in their variant with the softmax cross-entropy; volumes are our extension.

    Args:
        logits: [B, C, *S], 3 regions per axis after the pooling, so at least 7 pixels.
        target: [B, *S].
        ignore_index: the ignored label.
    """
    valid = (target != ignore_index)[:, None]
    labels = one_hot(target, logits.shape[1], ignore_index).double()
    pool = F.avg_pool3d if target.dim() == 4 else F.avg_pool2d
    y, p = (
        _regions(pool(x, POOL, stride=POOL, padding=POOL // 2))
        for x in (labels, logits.sigmoid().masked_fill(~valid, 0).double() + SMALLEST)
    )
    diagonal = POSITION * torch.eye(y.shape[2], dtype=y.dtype, device=y.device)
    across = y @ p.mT
    matrix = y @ y.mT - across @ torch.linalg.solve(p @ p.mT + diagonal, across.mT) + diagonal
    log_det = 2 * torch.linalg.cholesky(matrix).diagonal(dim1=-2, dim2=-1).log().sum(-1)  # [B, C]
    has_pixels = valid.flatten(1).any(1)
    loss = torch.where(has_pixels, log_det.sum(1) / (2 * y.shape[2]), 0).sum() / has_pixels.sum().clamp(min=1)
    return loss.to(logits.dtype)


def _regions(x: Tensor) -> Tensor:
    """Return the centered regions of maps [B, C, *s]: [B, C, SIDE to the number of axes, number of regions]."""
    windows = product(*([slice(i, i + length - SIDE + 1) for i in range(SIDE)] for length in x.shape[2:]))
    values = torch.stack([x[(..., *window)].flatten(2) for window in windows], 2)
    return values - values.mean(-1, keepdim=True)
