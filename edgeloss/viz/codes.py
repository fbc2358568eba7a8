"""Numbers as 16-bit codes, in which a report stores and compares them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]

# Codes that are no numbers. They precede those of all numbers: the maximum of several pixels is that of their numbers.
IGNORED, OFF_EDGES, FIRST_NUMBER = 1, 2, 3
NOT_FINITE = 0xFF00 + FIRST_NUMBER  # inf; nan is larger


def encode(values: _Array, bits: int, step: float) -> _Array:
    """Convert numbers ≥ 0 to codes in their order, with nan last.

    A code is the exponent of float32 and 8 bits of the significand, of which ``bits`` are used, plus ``FIRST_NUMBER``.

    Args:
        values: floating, of any shape.
        bits: of the significand, at most 8.
        step: round values below 1 to its multiples; 0 does not.

    Returns:
        uint16, in the shape of the values.

    Example:
        >>> decode(encode(np.array([0.0, 0.3, 5.01]), 8, 0)).tolist()
        [0.0, 0.2998046875, 5.015625]
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if step:
        single = np.where(single < 1, np.rint(single * np.float32(1 / step)) * np.float32(step), single)
    # A nan of any payload has one code, and -0 the code of 0.
    raw = np.where(np.isnan(single), np.float32(np.nan), np.abs(single)).view(np.uint32)
    drop = 23 - bits
    # Rounding may carry into the exponent; inf has no significand to round, and nan keeps its quiet bit.
    code = (raw + np.uint32(1 << (drop - 1))) >> np.uint32(drop) << np.uint32(8 - bits)
    return np.asarray(code + FIRST_NUMBER, dtype=np.uint16)


def decode(codes: _Array) -> npt.NDArray[np.float32]:
    """Convert codes of numbers back to numbers, float32; others become 0."""
    return ((np.maximum(codes, FIRST_NUMBER).astype(np.uint32) - FIRST_NUMBER) << 15).view(np.float32)
