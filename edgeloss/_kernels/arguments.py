"""From the options of a call to the numbers that cross into the operator of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgeloss._checks.inputs import result_dtype
from edgeloss._checks.options import Validate
from edgeloss._reduction import EdgeRow, SumRow

VALIDATE: dict[Validate, int] = {"never": 0, "async": 1, "sync": 2}


class Numbers(NamedTuple):
    """The options of a call, as they cross into an operator; csrc/options.h reads them in this order."""

    ignore_index: int
    validate: int
    tables: int
    edges: int
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
        return [*self[:8], *(0,) * (3 - len(self.radius)), *self.radius]

    @property
    def reals(self) -> list[float]:
        """The others, with a spacing of 3 axes."""
        return [self.label_smoothing, self.power, self.decay, *(1.0,) * (3 - len(self.spacing)), *self.spacing]

    @classmethod
    def of(cls, integers: Sequence[int], reals: Sequence[float]) -> Numbers:
        """Return the numbers of both lists, with radius and spacing of 3 axes."""
        return cls._make((*integers[:8], tuple(integers[8:]), *reals[:3], tuple(reals[3:])))


class EdgeLossInputs(NamedTuple):
    """The arguments of the operators that return the sums of the loss."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    pixel_weight: Tensor | None
    distance: Tensor | None
    integers: list[int]
    reals: list[float]


class Outputs(NamedTuple):
    """What ``edge_loss`` returns, but for the state that its backward pass reads, which follows.

    Attributes:
        sums: [5] float64, a row for each :class:`edgeloss._reduction.SumRow`.
        edge_sums: [3, B, C] float64, a row for each :class:`edgeloss._reduction.EdgeRow`, by image and class of the edge
            pixels; images are those of the kernels, B · C of a multilabel call with two classes each.
        region: R of each image [B] float64, or empty where not asked for, like its weight.
        region_weight: Σ_valid v · weight[y] of each image [B] float64.
        maps: the terms of each pixel, [3, B, *S]: the cross-entropy, S and O, or empty where not asked for.
    """

    sums: Tensor
    edge_sums: Tensor
    region: Tensor
    region_weight: Tensor
    maps: Tensor


def new_outputs(inputs: EdgeLossInputs, numbers: Numbers) -> tuple[Tensor, ...]:
    """Return new tensors for what the operators return of a call: :class:`Outputs`."""
    shape, new = inputs.target.shape, inputs.logits.new_empty
    images = shape[0] // numbers.tables if numbers.regions else 0
    sums, *regions = (new(length, dtype=torch.float64) for length in (len(SumRow), images, images))
    edge_sums = new((len(EdgeRow), shape[0], max(2, inputs.logits.shape[1])), dtype=torch.float64)
    maps = new((len(EdgeRow) if numbers.maps else 0, *shape), dtype=result_dtype(inputs.logits))
    return sums, edge_sums, *regions, maps
