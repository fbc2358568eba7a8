"""Weights of the pixels between nearby objects, as of the U-Net."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

REACH = 4  # in σ: farther from an object, a pixel's weight is below w0 exp(-8)


def unet_weights(target: Tensor, *, ignore_index: int, num_classes: int, w0: float, sigma: float) -> Tensor:
    """Compute w0 exp(-(d1 + d2)² / 2σ²) [B, *S], with the distances d1 and d2 to the two nearest objects of a class.

    An object is a connected component of a class. A pixel is weighted by the objects of the other classes, the class
    with the least d1 + d2: with cells on a background these are the pixels between two nearby cells. The term w_c of
    the source, which balances the classes, is left out. It is 0 on ignored pixels.

    Source: Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015,
    equation 2.
    """
    total = np.full(target.shape, np.inf)
    for labels, least in zip(target.cpu().numpy(), total, strict=True):
        for label in range(num_classes):
            if label != ignore_index:
                own = labels == label
                np.minimum(least, np.where(own, np.inf, two_nearest(own, REACH * sigma)), out=least)
    weights = torch.from_numpy(w0 * np.exp(-np.square(total) / (2 * sigma**2))).float().to(target.device)
    return weights.masked_fill(target == ignore_index, 0)


def two_nearest(mask: np.ndarray, reach: float) -> np.ndarray:
    """Compute the sum of the distances of each pixel to the two nearest components of a mask; inf beyond the reach."""
    components, count = ndimage.label(mask, np.ones((3,) * mask.ndim))
    nearest = np.full((2, *mask.shape), np.inf)
    if count < 2:
        return nearest[0]
    margin = math.ceil(reach)
    for number, box in enumerate(ndimage.find_objects(components), start=1):
        window = tuple(slice(max(side.start - margin, 0), side.stop + margin) for side in box)
        distance = ndimage.distance_transform_edt(components[window] != number)
        first, second = nearest[0][window], nearest[1][window]
        np.minimum(second, np.maximum(first, distance), out=second)
        np.minimum(first, distance, out=first)
    return nearest.sum(0)
