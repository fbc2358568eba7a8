"""From logits of any type and resolution to those that the terms read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss._reference.custom_ops import opaque_to_compilers


def readable_logits(logits: Tensor, valid: Tensor) -> Tensor:
    """Return the logits in float32 or float64, at the resolution of the labels, of at least two classes."""
    x = logits if logits.dtype == torch.float64 else logits.float()
    size = valid.shape[1:]
    if not valid.numel():
        x = x.flatten(2)[..., :0].reshape(*x.shape[:2], *size)
    elif x.shape[2:] != size:
        mode = "bilinear" if len(size) == 2 else "trilinear"
        # Interpolation multiplies cells that it does not need by 0, and 0 · nan is nan: cells without support among the
        # valid pixels are set to 0 first.
        support = cell_support(valid[:, None].to(x.dtype), x.shape[2:])
        x = F.interpolate(torch.where(support > 0, x, 0.0), size, mode=mode, align_corners=False)
    if x.shape[1] == 1:  # one logit x is the two-class logits (0, x)
        x = torch.cat([torch.zeros_like(x), x], 1)
    return x


@opaque_to_compilers(lambda valid, size: valid.new_empty([valid.shape[0], 1, *size]))  # torch has no symbols for it
def cell_support(valid: Tensor, size: Sequence[int]) -> Tensor:
    """Return what the interpolation of cells to valid [B, 1, *S] reads of each, [B, 1, *size]: its adjoint."""
    mode = "bilinear" if valid.dim() == 4 else "trilinear"
    adjoint = getattr(torch.ops.aten, f"upsample_{mode}{valid.dim() - 2}d_backward")
    support: Tensor = adjoint(valid, valid.shape[2:], [len(valid), 1, *size], False)
    return support
