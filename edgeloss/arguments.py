"""From the options of a call to the numbers that cross into the operator of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from edgeloss.inputs import result_dtype
from edgeloss.options import Validate
from edgeloss.reduction import TERM_ROWS, SumRow

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


def new_outputs(inputs: EdgeLossInputs, numbers: Numbers) -> tuple[Tensor, ...]:
    """Return new tensors for what the operators return of a call, as :class:`edgeloss.fused.Outputs` describes it."""
    shape, new = inputs.target.shape, inputs.logits.new_empty
    counts = numbers.tables * max(2, inputs.logits.shape[1]) if numbers.count_edges else 0
    images = shape[0] // numbers.tables if numbers.regions else 0
    sums, *regions = (new(length, dtype=torch.float64) for length in (len(SumRow), images, images))
    maps = new((TERM_ROWS.stop if numbers.maps else 0, *shape), dtype=result_dtype(inputs.logits))
    return sums, new(counts, dtype=torch.int64), *regions, maps


def is_evenly_spaced(x: Tensor) -> bool:
    """Return whether the pixels of each image are equally spaced in memory, as in contiguous tensors."""
    if x.is_contiguous():
        return True
    axes = [a for a in range(2, x.dim()) if x.size(a) != 1]
    return all(x.stride(a) == x.stride(b) * x.size(b) for a, b in pairwise(axes))
