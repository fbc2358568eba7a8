"""The loss that keeps nothing between calls, as a module."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from edgeloss import EdgeAwareLoss

# Where the module is the function.
STATELESS: dict[str, Any] = {"edge_class_weight": None, "edge_focus": 0.0, "region_weight": 0.0}


def stateless_loss(weight: Tensor | None = None, **options: Any) -> EdgeAwareLoss:
    """Return an ``EdgeAwareLoss`` that is the function of the same options, unless they say otherwise."""
    return EdgeAwareLoss(weight, **STATELESS | options)
