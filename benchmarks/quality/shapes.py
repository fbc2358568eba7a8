"""Metrics of the shapes of regions, which take longer than the others: HD95 and clDice."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Mask = npt.NDArray[np.bool_]


class Shapes:
    """Accumulate HD95 and clDice over batches of label maps.

    HD95 is MONAI's 95th percentile of the distances between the borders of a class in prediction and target, in
    pixels, the larger of the two directions. It is averaged over the images, then over the classes. A class counts in
    the images where both maps have it: where one lacks it the distance is not defined, and the other metrics are lower.

    clDice is that of Shit et al., CVPR 2021, for one class of thin lines: the harmonic mean of the share of the
    prediction's skeleton that is in the target's region, and vice versa. It is averaged over the images whose target
    has the class.

    Void pixels belong to no class in either map.

    Args:
        num_classes: C.
        void: the ignored label.
        thin: the class of clDice; None for no clDice.
    """

    def __init__(self, num_classes: int, void: int, thin: int | None = None) -> None:
        """Start with no images."""
        self.num_classes, self.void, self.thin = num_classes, void, thin
        self.distances: dict[int, list[float]] = defaultdict(list)  # per class
        self.cldice: list[float] = []

    def update(self, pred: Tensor, target: Tensor) -> None:
        """Add labels [B, *S] of predictions and targets."""
        for predicted, y in zip(pred.cpu(), target.cpu(), strict=True):
            valid = y != self.void
            masks = {c: ((predicted == c) & valid, (y == c) & valid) for c in range(self.num_classes)}
            both = [c for c, (of_pred, of_target) in masks.items() if of_pred.any() and of_target.any()]
            if both:
                distances = _hd95(*zip(*(masks[c] for c in both), strict=True))
                for c, distance in zip(both, distances, strict=True):
                    self.distances[c].append(distance)
            if self.thin is not None and masks[self.thin][1].any():
                self.cldice.append(_cldice(*(mask.numpy() for mask in masks[self.thin])))

    def compute(self) -> dict[str, float]:
        """Return ``hd95`` and, with a thin class, ``cldice``; nan where nothing counted."""
        per_class = torch.tensor([np.mean(values) for values in self.distances.values()])
        scores = {"hd95": per_class.mean().item()}
        if self.thin is not None:
            scores["cldice"] = float(np.mean(self.cldice)) if self.cldice else math.nan
        return scores


def _hd95(pred: tuple[Tensor, ...], target: tuple[Tensor, ...]) -> list[float]:
    """Compute HD95 of masks of one image."""
    from monai.metrics import compute_hausdorff_distance

    maps = torch.stack(pred)[None].float(), torch.stack(target)[None].float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MONAI 1.5 calls a function of its own with an old argument
        distances = compute_hausdorff_distance(*maps, include_background=True, percentile=95)
    return list(distances[0].tolist())


def _cldice(pred: Mask, target: Mask) -> float:
    from skimage.morphology import skeletonize

    of_pred, of_target = skeletonize(pred), skeletonize(target)
    if not pred.any():
        return 0.0
    precision, sensitivity = target[of_pred].mean(), pred[of_target].mean()
    return float(2 * precision * sensitivity / (precision + sensitivity)) if precision + sensitivity else 0.0
