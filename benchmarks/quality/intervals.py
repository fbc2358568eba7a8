"""Statistics of paired differences: intervals, p-values and their adjustment."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation, which is None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean by Student's t; None for a single value."""
    from scipy.stats import t

    mean, deviation = spread(values)
    if deviation is None:
        return None
    half = float(t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))
    return mean - half, mean + half


def p_value(values: Sequence[float]) -> float | None:
    """Return the two-sided p-value of a mean of 0 by Student's t; None for a single value."""
    from scipy.stats import t

    mean, deviation = spread(values)
    if deviation is None:
        return None
    if deviation == 0:
        return float(mean == 0)
    return 2 * float(t.sf(abs(mean) / deviation * math.sqrt(len(values)), len(values) - 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for their number by Holm's method."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted
