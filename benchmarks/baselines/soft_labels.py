"""Cross-entropy with labels that are less strict near edges."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baselines.common import one_hot, triples
from edgeloss._reference.neighborhoods import within_reach


def relaxed_cross_entropy(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute -log Σ p_c over the classes c of the valid pixels in each 3 × 3 neighborhood: a map [B, *S].

    Away from edges this is the cross-entropy. It is 0 on ignored pixels.

    Source: Zhu et al., "Improving Semantic Segmentation via Video Propagation and Label Relaxation", CVPR 2019,
    equation 3, and the authors' code.
    """
    near = within_reach(one_hot(target, logits.shape[1], ignore_index), (0, *[1] * (target.dim() - 1)))
    void = (target == ignore_index)[:, None]
    relaxed = logits.masked_fill(~(near | void), -torch.inf).logsumexp(1)
    return torch.where(void[:, 0], 0, logits.logsumexp(1) - relaxed)


def smoothed_cross_entropy(logits: Tensor, target: Tensor, *, ignore_index: int, sigma: float) -> Tensor:
    """Compute cross-entropy with labels that are smoothed near edges only: a map [B, *S].

    The one-hot labels are convolved with a Gaussian of 3 pixels per axis whose center is replaced by the sum of the
    other weights; the labels of the border continue outside. Ignored pixels have no weight, and the others are scaled
    to the sum of 1. It is 0 on ignored pixels.

    Source: Islam and Glocker, "Spatially Varying Label Smoothing: Capturing Uncertainty from Expert Annotations",
    IPMI 2021, and the authors' code.
    """
    labels = one_hot(target, logits.shape[1], ignore_index).to(logits.dtype)
    weight = math.exp(-1 / (2 * sigma**2))
    center = (1 + 2 * weight) ** -(target.dim() - 1)  # of the Gaussian, whose sum is 1
    smooth = labels
    for axis in range(2, labels.dim()):
        before, here, after = triples(smooth, axis)
        smooth = (here + weight * (before + after)) / (1 + 2 * weight)
    smooth = smooth + (1 - 2 * center) * labels
    smooth = smooth / smooth.sum(1, keepdim=True).clamp(min=1e-12)
    void = (target == ignore_index)[:, None]
    return -(smooth.masked_fill(void, 0) * logits.log_softmax(1)).sum(1)
