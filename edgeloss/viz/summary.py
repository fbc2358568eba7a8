"""What a report shows of a whole image: the distributions of its maps, and the places that go wrong most."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgeloss.viz.codes import FIRST_NUMBER, NOT_FINITE, decode

_Array = npt.NDArray[Any]
_BINS = 60
_PLACES = 6


def histogram(counts: _Array, *, log: bool) -> dict[str, Any] | None:
    """Count the finite numbers of a map in bins of equal width.

    Args:
        counts: [65536] how often each code occurs.
        log: the bins have equal widths in log10.

    Returns:
        ``low`` and ``width`` of the first bin, in log10 if wanted, and the ``counts`` of all; None without numbers.

    Example:
        >>> counts = np.bincount([FIRST_NUMBER, FIRST_NUMBER, FIRST_NUMBER + 127 * 256], minlength=65536)
        >>> bins = histogram(counts, log=False)
        >>> bins["counts"][0], bins["counts"][-1], bins["width"] * 60  # twice 0 and once 1
        (2, 1, 1.0)
    """
    codes = np.flatnonzero(counts[:NOT_FINITE])
    codes = codes[codes >= FIRST_NUMBER + log]
    if not codes.size:
        return None
    numbers = decode(codes).astype(np.float64)
    numbers = np.log10(numbers) if log else numbers
    low = float(numbers.min()) if log else 0.0
    width = (float(numbers.max()) - low) / _BINS or 1.0
    bins = np.minimum(((numbers - low) / width).astype(int), _BINS - 1)
    sums = np.bincount(bins, counts[codes], _BINS).astype(int)
    return {"low": low, "width": width, "counts": sums.tolist()}


def worst_places(losses: _Array) -> list[dict[str, Any]]:
    """Sum a map over square blocks, and return the largest sums that do not touch each other.

    Args:
        losses: [H, W], ≥ 0. A block with a number that is not finite comes first.

    Returns:
        ``row`` and ``column`` of the middles, ``size`` of the blocks, and the ``sum``, None where it is not finite.
    """
    rows, columns = losses.shape
    size = min(max(round(min(rows, columns) / 12), 8), 64)
    starts = [np.arange(0, length, size) for length in losses.shape]
    sums = np.add.reduceat(np.add.reduceat(losses, starts[0], axis=0, dtype=np.float64), starts[1], axis=1)
    places: list[tuple[int, int]] = []
    order = np.argsort(-np.nan_to_num(sums, nan=np.inf), axis=None, kind="stable")
    for block in order[: np.count_nonzero(sums)]:
        y, x = divmod(int(block), sums.shape[1])
        if all(max(abs(y - v), abs(x - u)) > 1 for v, u in places):
            places.append((y, x))
        if len(places) == _PLACES:
            break
    return [
        {
            "row": min(int((y + 0.5) * size), rows - 1),
            "column": min(int((x + 0.5) * size), columns - 1),
            "size": size,
            "sum": float(sums[y, x]) if np.isfinite(sums[y, x]) else None,
        }
        for y, x in places
    ]
