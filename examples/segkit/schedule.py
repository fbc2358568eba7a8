"""The weight of the edge terms in the course of a training."""

from __future__ import annotations

import math
from typing import Literal, get_args

Kind = Literal["constant", "linear", "cosine"]


def edge_weight(step: int, total: int, *, weight: float, kind: Kind = "constant", warmup: float = 0.0) -> float:
    """The edge weight of a step: 0 at the first one, where there is a warm-up, and `weight` when that is over.

    While a network knows nothing, its borders mean nothing: a warm-up lets the cross-entropy find the regions first.

    Args:
        step: optimizer steps done before this one, ≥ 0.
        total: optimizer steps of the whole training, ≥ 1.
        weight: the full weight, ≥ 0.
        kind: ``"constant"`` is the full weight from the start, whatever `warmup`; ``"linear"`` rises in a straight
            line; ``"cosine"`` along half a cosine, slowly at both ends.
        warmup: share of all steps that the rise takes, in [0, 1]; with 0 there is none.

    Returns:
        The weight, in [0, `weight`].

    Raises:
        ValueError: for a value out of its range.

    Example:
        >>> [edge_weight(step, 100, weight=0.5, kind="linear", warmup=0.2) for step in (0, 5, 10, 20, 99)]
        [0.0, 0.125, 0.25, 0.5, 0.5]
        >>> round(edge_weight(5, 100, weight=0.5, kind="cosine", warmup=0.2), 4)
        0.0732
    """
    if kind not in get_args(Kind):
        raise ValueError(f"expected kind to be one of {', '.join(get_args(Kind))} but got {kind!r}")
    if not 0 <= weight < math.inf:
        raise ValueError(f"expected a finite weight >= 0 but got {weight}")
    if not 0 <= warmup <= 1:
        raise ValueError(f"expected warmup to be a share of all steps, in [0, 1], but got {warmup}")
    if step < 0 or total < 1:
        raise ValueError(f"expected step >= 0 and total >= 1 but got {step} and {total}")
    rise = round(warmup * total)  # in steps
    if kind == "constant" or step >= rise:
        return weight
    share = step / rise
    return weight * (share if kind == "linear" else (1 - math.cos(math.pi * share)) / 2)
