"""Combinations of test parameters: a few in which every pair of values meets, or all of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

EXHAUSTIVE = os.environ.get("EXHAUSTIVE") == "true"


def pairwise(
    first: Sequence[Any], second: Sequence[Any], *others: Sequence[Any], exhaustive: bool = EXHAUSTIVE
) -> list[tuple[Any, ...]]:
    """Return rows of one value per axis that hold every pair of values of two axes.

    Most faults that depend on parameters at all depend on one or two of them, and the pairs need far fewer rows than
    the product of all axes, which EXHAUSTIVE=true returns instead. The rows are the same on every run.
    """
    axes = (first, second, *others)
    if exhaustive:
        return list(itertools.product(*axes))
    places = [[(axis, i) for i in range(len(values))] for axis, values in enumerate(axes)]
    # A dictionary as a set that keeps its order.
    missing = dict.fromkeys(
        pair for one, other in itertools.combinations(places, 2) for pair in itertools.product(one, other)
    )
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for axis in range(len(axes)):
            if axis not in row:
                row[axis] = max(places[axis], key=lambda place: _count(missing, row, place))[1]
        chosen = sorted(row.items())
        for pair in itertools.combinations(chosen, 2):
            missing.pop(pair, None)
        rows.append(tuple(axes[axis][i] for axis, i in chosen))
    return rows


def _count(missing: dict[Any, None], row: dict[int, int], place: tuple[int, int]) -> int:
    """Count the missing pairs that a place would add to a row."""
    return sum(tuple(sorted((place, other))) in missing for other in row.items())
