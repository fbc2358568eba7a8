"""From the options of a call to the numbers that cross into the operator of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from edgeloss.options import Validate

VALIDATE: dict[Validate, int] = {"never": 0, "async": 1, "sync": 2}


class Numbers(NamedTuple):
    """The options of a call, as they cross into an operator; csrc/options.h reads them in this order."""

    ignore_index: int
    validate: int
    tables: int
    edges: int
    count_edges: int
    regions: int
    gathers: int  # the edge terms by pairs of pixels: their weights do not come from the labels alone
    maps: int  # the terms of each pixel too; of the kernels on CPUs
    keeps_state: int
    radius: tuple[int, ...]
    label_smoothing: float
    power: float
    decay: float  # 0 for none
    spacing: tuple[float, ...]

    @property
    def integers(self) -> list[int]:
        """All before ``label_smoothing``, with a radius of 3 axes."""
        return [*self[:9], *(0,) * (3 - len(self.radius)), *self.radius]

    @property
    def reals(self) -> list[float]:
        """The others, with a spacing of 3 axes."""
        return [self.label_smoothing, self.power, self.decay, *(1.0,) * (3 - len(self.spacing)), *self.spacing]

    @classmethod
    def of(cls, integers: Sequence[int], reals: Sequence[float]) -> Numbers:
        """Return the numbers of both lists, with radius and spacing of 3 axes."""
        return cls._make((*integers[:9], tuple(integers[9:]), *reals[:3], tuple(reals[3:])))


class EdgeLossInputs(NamedTuple):
    """The arguments of the operators that return the sums of the loss."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    pixel_weight: Tensor | None
    edge_class_weight: Tensor | None
    distance: Tensor | None
    integers: list[int]
    reals: list[float]


def is_evenly_spaced(x: Tensor) -> bool:
    """Return whether the pixels of each image are equally spaced in memory, as in contiguous tensors."""
    if x.is_contiguous():
        return True
    axes = [a for a in range(2, x.dim()) if x.size(a) != 1]
    return all(x.stride(a) == x.stride(b) * x.size(b) for a, b in pairwise(axes))
