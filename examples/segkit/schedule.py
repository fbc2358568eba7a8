"""Learning rate and weight of the edge terms over a training."""

from __future__ import annotations

import math
from typing import Literal

Kind = Literal["constant", "linear", "cosine"]


def edge_weight(step: int, total: int, *, weight: float, kind: Kind = "constant", warmup: float = 0.0) -> float:
    """Return the edge weight of a step.

    With a warm-up it rises from 0 to `weight`: the cross-entropy finds the regions first.

    Args:
        step: optimizer steps done before this one, ≥ 0.
        total: optimizer steps of the whole training, ≥ 1.
        weight: the full weight, ≥ 0.
        kind: ``"constant"`` for the full weight from the start, ``"linear"`` or ``"cosine"`` for a rise in a straight
            line or along half a cosine.
        warmup: duration of the rise as a share of all steps, in [0, 1]; 0 for none.

    Returns:
        The weight, in [0, `weight`].

    Raises:
        ValueError: if the duration is out of range.

    Example:
        >>> [edge_weight(step, 100, weight=0.5, kind="linear", warmup=0.2) for step in (0, 5, 10, 20, 99)]
        [0.0, 0.125, 0.25, 0.5, 0.5]
        >>> round(edge_weight(5, 100, weight=0.5, kind="cosine", warmup=0.2), 4)
        0.0732
    """
    if not 0 <= warmup <= 1:
        raise ValueError(f"edge_warmup: expected a share of all steps in [0, 1], but got {warmup}")
    rise = round(warmup * total)  # in steps
    if kind == "constant" or step >= rise:
        return weight
    share = step / rise
    return weight * (share if kind == "linear" else (1 - math.cos(math.pi * share)) / 2)


def lr_factor(step: int, *, total: int, warmup: int, power: float) -> float:
    """Return the share of the full learning rate at a step.

    It is a linear rise over `warmup` steps, times a polynomial decay to 0 at step `total`.
    """
    left = max(0.0, 1 - step / total)  # a run resumed with larger batches has planned fewer steps than it takes
    return min(1.0, (step + 1) / max(warmup, 1)) * math.pow(left, power)
