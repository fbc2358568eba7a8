"""From labels alone to neighborhoods, edges and distances.

Symbols are those of :mod:`edgeloss._reference.terms`. Lists of pixels hold their indices in the flattened batch,
0 ... B·|S| - 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss._checks.inputs import Inputs, widest
from edgeloss._reference.custom_ops import opaque_to_compilers

PART = 2**21  # pairs per part, which bounds the memory
FAR = 1e38  # all distances beyond so many decays are as far: no difference of two may overflow float32


def find_edges(y: Tensor, valid: Tensor, radius: Sequence[int]) -> Tensor:
    """Return E as a bool mask [B, *S]."""
    # Some label in the window differs from that of the center if and only if the largest or the smallest one does.
    label = y if y.dtype.is_signed else y.long()
    nothing = torch.iinfo(label.dtype).min
    largest = _window_max(torch.where(valid, label, nothing), radius, nothing)
    smallest = -_window_max(torch.where(valid, -label, nothing), radius, nothing)
    return valid & ((largest > label) | (smallest < label))


def neighbor_weights(
    inputs: Inputs, y: Tensor, valid: Tensor, mask: Tensor, decay: float | None, *, everywhere: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """Return d and log w = -d / decay, [B, *S], at the neighbors of the pixels of the mask, or everywhere.

    The field of the user is returned as it is; log w is finite also where d is not. Both are None without decay.
    """
    if decay is None:
        return None, None
    distance = inputs.distance
    if distance is None:
        radius = clipped(inputs.radius, y.shape)
        read = valid if everywhere else valid & within_reach(mask, radius)
        distance = distance_map(y, valid, read, radius, inputs.spacing)
    return distance, -(distance.to(widest(distance.device)) / decay).clamp(max=FAR)


def within_reach(mask: Tensor, radius: Sequence[int]) -> Tensor:
    """Return the pixels within radius of a pixel of the mask, itself included: bool [B, *S]."""
    return _window_max(mask, radius, False)


@opaque_to_compilers(lambda y, *_: y.new_empty(y.shape, dtype=widest(y.device)))
def distance_map(y: Tensor, valid: Tensor, read: Tensor, radius: Sequence[int], spacing: Sequence[float]) -> Tensor:
    """Return d [B, *S] at the valid pixels of the mask ``read``, by a search in the labels, and inf elsewhere.

    It is inf beyond 2 ‖radius · spacing‖. A neighbor n of an edge pixel i is never beyond: n is within
    ‖radius · spacing‖ of i, and so is some pixel j with y_j ≠ y_i; y_i or y_j differs from y_n.
    """

    def length(offset: Sequence[int]) -> float:
        return math.hypot(*(o * s for o, s in zip(offset, spacing, strict=True)))

    limit = 2 * length(radius)
    reach = clipped([math.ceil(limit / s) for s in spacing], y.shape)
    window = sorted((o for o in offsets(reach) if length(o) <= limit), key=length)
    grid, y_flat, left = Grid(valid, reach), y.flatten(), read.flatten().nonzero().squeeze(1)
    d = torch.full(y_flat.shape, math.inf, dtype=widest(y.device), device=y.device)
    place, label = grid.place(left), y_flat[left]
    for distance, ring in itertools.groupby(window, key=length):  # from near to far
        for offset in ring:
            row, n = grid.neighbors(place, offset)
            d[left[row[y_flat[n] != label[row]]]] = distance
        still = d[left].isinf()
        left, place, label = left[still], place[still], label[still]
        if not len(left):
            break
    return d.view_as(y)


# ------------------------------------------------------------------------------------------------------------- windows


def offsets(radius: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the K = ∏(2 · radius_a + 1) - 1 offsets of a neighborhood, row-major, without the center."""
    window = itertools.product(*(range(-r, r + 1) for r in radius))
    return [offset for offset in window if any(offset)]


class Grid:
    """Look up the neighbors of pixels.

    A table holds the index of each pixel, or -1 where it does not exist, with a margin of -1 around each image: every
    neighbor is then at a constant step in the table.

    Args:
        exists: [B, *S] bool.
        reach: the largest offset along each axis.
    """

    def __init__(self, exists: Tensor, reach: Sequence[int]) -> None:
        """Build the table."""
        self._shape, self._reach = exists.shape, reach
        numbers = torch.arange(exists.numel(), device=exists.device).view_as(exists)
        # F.pad keeps the memory format of its input.
        table = F.pad(
            torch.where(exists, numbers, -1), [r for r in reversed(reach) for _ in range(2)], value=-1
        ).contiguous()
        self._strides, self._table = table.stride(), table.flatten()

    def place(self, pixels: Tensor) -> Tensor:
        """Return the positions of pixels [M] in the table, [M] int64."""
        place, rest = torch.zeros_like(pixels), pixels  # torch.unravel_index would import sympy, which takes seconds
        for length, reach, stride in zip(self._shape[:0:-1], self._reach[::-1], self._strides[:0:-1], strict=True):
            place += (rest % length + reach) * stride
            rest = rest // length
        return place + rest * self._strides[0]

    def neighbors(self, place: Tensor, offset: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the pixels n at the offset from those at ``place``, as (row of place, n): [P] int64 each."""
        n = self._table[place + self._step(offset)]
        row = (n >= 0).nonzero().squeeze(1)
        return row, n[row]

    def split(self, of_pixels: Tensor, pairs: int = PART) -> tuple[Tensor, ...]:
        """Return parts of a list with one element per pixel, for pairs of a part at a time."""
        return torch.split(of_pixels, max(1, pairs // max(1, len(offsets(self._reach)))))

    def pairs(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return all neighbors n of pixels [M] within reach, as (row of pixels, n): [P] int64 each."""
        window = offsets(self._reach)
        step = torch.tensor([self._step(offset) for offset in window], dtype=torch.int64, device=pixels.device)
        n = self._table[(self.place(pixels) + step[:, None]).flatten()]
        place = (n >= 0).nonzero().squeeze(1)
        return place % max(1, len(pixels)), n[place]

    def _step(self, offset: Sequence[int]) -> int:
        return sum(o * s for o, s in zip(offset, self._strides[1:], strict=True))


def _window_max(values: Tensor, radius: Sequence[int], nothing: float) -> Tensor:
    """Return the largest of values [B, *S] in the window of each pixel, with ``nothing`` outside."""
    for axis, reach in enumerate(clipped(radius, values.shape), 1):
        padding = [reach if a == axis else 0 for a in range(values.dim() - 1, 0, -1) for _ in range(2)]
        values = F.pad(values, padding, value=nothing)
        values = sliding_max(values, 2 * reach + 1, axis)
    return values


def sliding_max(values: Tensor, size: int, axis: int) -> Tensor:
    """Return the largest of each ``size`` values along an axis, from windows that are joined from two."""
    length = 1
    while length < size:
        step = min(length, size - length)
        kept = values.shape[axis] - step
        values = torch.maximum(values.narrow(axis, 0, kept), values.narrow(axis, step, kept))
        length += step
    return values


def clipped(radius: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the radius, clipped to what an image of shape (B, *S) needs."""
    return [min(r, max(length - 1, 0)) for r, length in zip(radius, shape[1:], strict=True)]
