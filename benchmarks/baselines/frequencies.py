"""How often the classes occur, and losses that correct for it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def class_pixels(targets: Iterable[Tensor], num_classes: int, ignore_index: int) -> Tensor:
    """Return the number of pixels of each class in label maps [1, *S], one image each: [images, C]."""
    valid = (target[target != ignore_index].long() for target in targets)
    return torch.stack([torch.bincount(labels, minlength=num_classes).cpu().float() for labels in valid])


def class_prior(pixels: Tensor) -> Tensor:
    """Return the share of each class among the valid pixels [C]; a class that does not occur counts as one pixel."""
    total = pixels.sum(0).clamp(min=1)
    return total / total.sum()


def median_frequency_weight(pixels: Tensor) -> Tensor:
    """Return the class weights [C] of median frequency balancing: median(f) / f_c, and 1 for a class without pixels.

    f_c is the number of pixels of class c over that of the valid pixels of the images that have the class.

    Source: Eigen and Fergus, "Predicting Depth, Surface Normals and Semantic Labels with a Common Multi-Scale
    Convolutional Architecture", ICCV 2015, section 6.3.2.
    """
    where_present = (pixels.sum(1, keepdim=True) * (pixels > 0)).sum(0)
    frequency = pixels.sum(0) / where_present
    return (frequency[where_present > 0].quantile(0.5) / frequency).where(where_present > 0, 1)


def adjusted(logits: Tensor, prior: Tensor, tau: float) -> Tensor:
    """Add τ log π to the logits [B, C, *S], with the prior π [C] of the classes.

    The cross-entropy of the sum trains logits that are balanced without it.

    Source: Menon et al., "Long-tail learning via logit adjustment", ICLR 2021, equation 10.
    """
    return logits + tau * prior.log().view(-1, *[1] * (logits.dim() - 2))
