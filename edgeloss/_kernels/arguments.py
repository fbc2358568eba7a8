"""From a call to the arguments of its operator, by name, and what the operator returns."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss._checks.inputs import Call, result_dtype, widest
from edgeloss._checks.options import NO_POWER, Options, Validate
from edgeloss._kernels import library
from edgeloss._reduction import EdgeRow, SumRow
from edgeloss._reference.custom_ops import is_evenly_spaced
from edgeloss._reference.interpolate import readable_logits
from edgeloss._reference.neighborhoods import FAR, clipped

VALIDATE: dict[Validate, int] = {"never": 0, "async": 1, "sync": 2}
_NO_LABEL = -(2**63)  # that the kernels take for ignore_index=None
_MOST_DECAYS = 25  # the span of distances over which weights of neighbors have a common scale in float32


class KernelOptions(NamedTuple):
    """The options of a call as its operator takes them, by the names of csrc/options.h."""

    ignore_index: int
    validate: int
    tables: int
    edges: bool
    regions: bool
    by_pairs: bool  # the edge terms by pairs of pixels: their weights do not come from the labels alone
    maps: bool  # the terms of each pixel too; of the kernels on CPUs
    keeps_state: bool  # for a backward pass
    radius: tuple[int, ...]  # of 3 axes, as spacing
    label_smoothing: float
    power: float
    decay: float  # 0 for none
    spacing: tuple[float, ...]


class Arguments(NamedTuple):
    """The arguments of ``edge_loss``, named and ordered as in its schema."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    pixel_weight: Tensor | None
    distance: Tensor | None
    ignore_index: int
    validate: int
    tables: int
    edges: bool
    regions: bool
    by_pairs: bool
    maps: bool
    keeps_state: bool
    radius: tuple[int, ...]
    label_smoothing: float
    power: float
    decay: float
    spacing: tuple[float, ...]

    @property
    def options(self) -> KernelOptions:
        """Those without a tensor."""
        return KernelOptions._make(self[-len(KernelOptions._fields) :])


class Outputs(NamedTuple):
    """What ``edge_loss`` returns, but for the state that its backward pass reads, which follows.

    Attributes:
        sums: [5] float64, a row for each :class:`edgeloss._reduction.SumRow`.
        edge_sums: [3, B, C] float64, a row for each :class:`edgeloss._reduction.EdgeRow`, by image and class of the
            edge pixels; images are those of the kernels, B · C of a multilabel call with two classes each.
        region: R of each image [B] float64, or empty where not asked for, like its weight.
        image_weight: Σ_valid v · weight[y] of each image [B] float64.
        maps: the terms of each pixel, [3, B, *S]: the cross-entropy, S and O, or empty where not asked for.
    """

    sums: Tensor
    edge_sums: Tensor
    region: Tensor
    image_weight: Tensor
    maps: Tensor


def new_outputs(arguments: Arguments) -> Outputs:
    """Return new tensors for what the operators return of a call."""
    shape, new = arguments.target.shape, arguments.logits.new_empty
    images = shape[0] // arguments.tables if arguments.regions else 0
    sums, region, image_weight = (new(length, dtype=torch.float64) for length in (len(SumRow), images, images))
    edge_sums = new((len(EdgeRow), shape[0], max(2, arguments.logits.shape[1])), dtype=torch.float64)
    maps = new((len(EdgeRow) if arguments.maps else 0, *shape), dtype=result_dtype(arguments.logits))
    return Outputs(sums, edge_sums, region, image_weight, maps)


def arguments_of(call: Call) -> Arguments:
    """Return the arguments of the operator for a call."""
    inputs, options = call.inputs, call.options
    logits, distance, radius, spacing = inputs.logits, inputs.distance, inputs.radius, inputs.spacing
    unit, power, is_spread = _unit(options), 0.0 if abs(options.power) <= NO_POWER else options.power, False
    decay = 0.0 if options.decay is None else options.decay / unit
    if decay:
        reach = zip(clipped(radius, inputs.target.shape), spacing, strict=True)
        is_spread = distance is not None or 2 * math.hypot(*(r * s / unit for r, s in reach)) > _MOST_DECAYS * decay
    by_pairs = call.edges and (power != 0 or is_spread or call.maps)
    if by_pairs and logits.shape[2:] != inputs.target.shape[1:]:  # pairs of pixels are of one resolution
        logits = readable_logits(logits, inputs.labels()[1])
    if distance is not None:
        wide = (distance.to(widest(distance.device)) / unit).clamp(max=FAR)
        distance = wide.to(result_dtype(logits)).contiguous() if call.edges else None
    # Elsewhere the kernels count labels out of range, and evaluate() raises the error.
    is_checked_inside = torch.compiler.is_compiling() or library.is_of_triton(logits)
    missing = 3 - len(radius)
    return Arguments(
        logits=logits if is_evenly_spaced(logits) else logits.contiguous(),
        target=inputs.target.contiguous(),
        weight=contiguous(inputs.weight),
        pixel_weight=contiguous(inputs.pixel_weight),
        distance=distance,
        ignore_index=_NO_LABEL if options.ignore_index is None else options.ignore_index,
        validate=VALIDATE[options.validate] if is_checked_inside else 0,
        tables=inputs.tables,
        edges=call.edges,
        regions=options.region_weight > 0,
        by_pairs=by_pairs,
        maps=call.maps,
        keeps_state=torch.compiler.is_compiling() or (torch.is_grad_enabled() and logits.requires_grad),
        radius=(*(0,) * missing, *radius),
        label_smoothing=options.label_smoothing,
        power=power,
        decay=decay,
        spacing=(*(1.0,) * missing, *(s / unit for s in spacing)),
    )


def _unit(options: Options) -> float:
    """Return a unit of length that suits the decay: a power of two, so that nothing is rounded."""
    return 1.0 if options.decay is None else 2.0 ** math.ceil(math.log2(options.decay))


def contiguous(values: Any) -> Any:  # noqa: ANN401
    """Return a contiguous tensor, or None."""
    return None if values is None else values.contiguous()
