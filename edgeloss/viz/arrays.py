"""What the figures show, as NumPy arrays: everything that is computed, apart from everything that is drawn."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss.loss import EdgeAwareLoss
from edgeloss.reference import readable_logits


class Arrays(NamedTuple):
    """One batch of 2-D images, seen by the loss.

    Attributes:
        classes: how many classes there are; 2 for the one logit of the binary case.
        target: [B, H, W] int64, the labels; -1 on ignored pixels.
        prediction: [B, H, W] int64, the class of the largest logit; -1 where a logit is nan.
        cross_entropy: [B, H, W] float, the loss map of that name.
        edge: [B, H, W] float, the loss map of that name.
        edge_mask: [B, H, W] bool, the pixels on which the edge map is computed.
        gradient: [B, h, w] float64, the L2 norm over the classes of the loss's gradient with respect to the logits, in
            the logits' own resolution.
    """

    classes: int
    target: npt.NDArray[np.int64]
    prediction: npt.NDArray[np.int64]
    cross_entropy: npt.NDArray[Any]
    edge: npt.NDArray[Any]
    edge_mask: npt.NDArray[np.bool_]
    gradient: npt.NDArray[np.float64]


def compute_arrays(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None) -> Arrays:
    """The prediction, the loss maps and the gradient for a batch of 2-D images.

    Half-precision logits are read as they are and differentiated in float32, so that a mean over many pixels does not
    round their gradients to 0. Works under ``no_grad`` and ``inference_mode``; nothing is written into the arguments.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device.
        target: [B, H, W] or [H, W] integer, on the same device.
        criterion: the loss to look into; ``EdgeAwareLoss()`` if None. A map of ``reduction="none"`` is summed up first.

    Returns:
        Arrays, on the CPU.

    Raises:
        ValueError: a volume (pass a slice), no pixel, or other shapes than these; and whatever ``criterion`` refuses.
    """
    criterion = EdgeAwareLoss() if criterion is None else copy.copy(criterion)
    criterion.sync_normalizer = False  # a figure is one rank's affair: the others would be waited for in vain
    if criterion.validate == "async":
        criterion.validate = "sync"  # there is no next call that would tell of a bad label
    logits, target = _batched(logits, target)

    with torch.inference_mode(False), torch.enable_grad():  # copies, since tensors of inference mode know no backward
        leaf = logits.detach().clone()
        leaf = (leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf).requires_grad_()
        target = target.clone()
        loss, maps = criterion(leaf, target, return_maps=True)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)

    target = target.long()
    ignored = (target == criterion.ignore_index) | (target < 0) | (target >= max(2, logits.shape[1]))
    scores = readable_logits(leaf.detach(), ~ignored)
    return Arrays(
        classes=scores.shape[1],
        target=target.masked_fill(ignored, -1).cpu().numpy(),
        prediction=scores.argmax(1).masked_fill(scores.isnan().any(1), -1).cpu().numpy(),
        cross_entropy=maps.cross_entropy.cpu().numpy(),
        edge=maps.edge.cpu().numpy(),
        edge_mask=maps.edge_mask.cpu().numpy(),
        # In double precision: the squares of small float32 gradients would be 0.
        gradient=torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64).cpu().numpy(),
    )


def _batched(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits as [B, C, H, W] and target as [B, H, W]."""
    if logits.ndim == 5:
        raise ValueError(
            f"expected 2-D images but got a volume, logits {list(logits.shape)}: "
            "pass a slice, such as logits[:, :, d] and target[:, d]"
        )
    if logits.ndim == 3:
        logits = logits[None]
    if target.ndim == 2:
        target = target[None]
    if logits.ndim != 4 or target.ndim != 3 or len(logits) != len(target):
        raise ValueError(
            "expected logits [B, C, H, W] or [C, H, W] and target [B, H, W] or [H, W] "
            f"but got {list(logits.shape)} and {list(target.shape)}"
        )
    if not logits.numel() or not target.numel():
        raise ValueError(
            f"expected at least one pixel but got logits {list(logits.shape)} and target {list(target.shape)}"
        )
    return logits, target
