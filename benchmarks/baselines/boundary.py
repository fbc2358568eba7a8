"""Boundary loss: probabilities times the signed distance to the class border."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baselines.common import one_hot, weighted_mean
from edgeloss.fields import distance_to_sites


def boundary(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute the mean of p_k φ_k over valid pixels and all classes.

    It is negative where the prediction is good.

    Source: Kervadec et al., "Boundary loss for highly unbalanced segmentation", MIDL 2019. The authors compute φ in the
    data loader; here it is part of the training step.
    """
    phi = signed_distance(one_hot(target, logits.shape[1], ignore_index))
    valid = (target != ignore_index)[:, None].expand_as(phi)
    return weighted_mean(logits.softmax(1) * phi, valid)


def signed_distance(masks: Tensor) -> Tensor:
    """Compute φ [B, C, *S] of masks of the same shape, in pixels.

    Outside a mask φ is the distance to it, inside -(distance to the outside - 1). It is 0 if there is no inside or no
    outside.
    """
    phi = np.zeros(masks.shape, dtype=np.float32)
    pixel = (1,) * (masks.dim() - 2)
    inside = masks.cpu().numpy()
    for index in np.ndindex(*masks.shape[:2]):
        mask = inside[index]
        if mask.any() and not mask.all():
            phi[index] = np.where(mask, 1 - distance_to_sites(~mask, pixel), distance_to_sites(mask, pixel))
    return torch.from_numpy(phi).to(masks.device)
