"""Tensors of a call → what kernels take, and the kernels in order. Imported where there is Triton only."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeloss import library
from edgeloss.arguments import VALIDATE, EdgeLossInputs, Numbers
from edgeloss.inputs import result_dtype
from edgeloss.neighborhoods import clipped
from edgeloss.reduction import SumRow
from edgeloss.region import POOL
from edgeloss.triton import labels, loss, upsampled
from edgeloss.triton.loss import Logits
from edgeloss.triton.operators import Maps, averages_of, has_regions, map_sizes, new_gradient, new_maps, new_outputs
from edgeloss.triton.region import region_terms
from edgeloss.triton.tiles import Grid, Size, constants, launch, tile_of

OF_LABELS = 128  # pixels of a program that reads labels, 4 per thread: with 8 the weights spill registers


class Call:
    """What the steps of a call share; weights are those of the cross-entropy, shape that of the target."""

    def __init__(
        self, logits: Tensor, shape: torch.Size, numbers: Numbers, pixel_weight: Tensor | None, weight: Tensor | None
    ) -> None:
        """Read the sizes."""
        self.logits, self.shape, self.numbers, self.batch = logits, shape, numbers, shape[0]
        self.classes, self.dtype, size = max(2, logits.shape[1]), result_dtype(logits), Size.of(shape[1:])
        self.is_upsampled, self.low = logits.shape[2:] != shape[1:], Size.of(logits.shape[2:])
        radius = clipped(numbers.radius, (self.batch, *size))
        sizes = Size.constant(radius), Size.of([n // POOL + 1 for n in shape[1:]]), Size.of(averages_of(shape))
        counts = math.prod(size), tl.constexpr(math.prod(2 * r + 1 for r in radius)), numbers.tables
        real = tl.float64 if self.dtype == torch.float64 else tl.float32
        constants = map(tl.constexpr, (self.classes, real, numbers.decay, numbers.label_smoothing))
        self.grid = Grid(size, *sizes, *counts, pixel_weight, weight, *constants)

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a new tensor, by default of the type that kernels compute in."""
        return torch.empty(size, dtype=dtype or self.dtype, device=self.logits.device)

    def logits_in(self, values: Tensor) -> Logits:
        """Return logits, or their gradient, as kernels find them; those of lower resolution have taps."""
        axes = [a for a in range(2, values.dim()) if values.size(a) != 1]
        steps = values.stride(0), values.stride(1), values.stride(axes[-1]) if axes else 0
        has_taps = self.is_upsampled and values.dim() == self.logits.dim()
        one, dims = int(self.logits.shape[1] == 1), values.dim() - 2 if has_taps else 0
        classes, one, dims = map(tl.constexpr, (self.classes, one, dims))
        taps = upsampled.taps(values, self.low, self.grid.size, self.dtype) if has_taps else None
        return Logits(values, *steps, classes, one, self.grid.real, dims, taps)

    def over_labels(self, kernel: Any, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel over all pixels of the labels."""
        launch(kernel, self.batch, self.grid.pixels, tile_of(self.grid.pixels, OF_LABELS), *args, self.grid, warps=1)

    def over_logits(self, kernel: Any, images: int, count: int, block: int, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel that reads logits over ``count`` places of each image."""
        x, fuses = self.logits_in(self.logits), not self.is_upsampled
        launch(kernel, images, count, block, x, *args, self.grid, warps=1, fuses=fuses)

    def block(self, places: int) -> int:
        """Return how many places a program that reads logits has."""
        return tile_of(places, 32 if self.is_upsampled or self.dtype == torch.float64 else 64)


def forward(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return the sums, counts and regions of a call, then the state that backward reads."""
    given = EdgeLossInputs(*args)
    numbers, shape = Numbers.of(given.integers, given.reals), given.target.shape
    call = Call(given.logits, shape, numbers, given.pixel_weight, given.weight)
    outputs, saved = new_outputs(given), map_sizes(given, saved=True)
    if shape.numel() == 0:
        return *outputs, *new_maps(given, saved)
    maps = new_maps(given, map_sizes(given, saved=False))
    with torch.cuda.device_of(call.logits):
        outputs = _forward(call, given, maps, *outputs)
    return *outputs, *(values if size else values.new_empty(0) for values, size in zip(maps, saved, strict=True))


def _forward(
    call: Call, given: EdgeLossInputs, maps: Maps, sums: Tensor, counts: Tensor, region: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    """Fill the maps, and return the sums, the counts and the regions."""
    averages, present = None, None
    if has_regions(call.shape, call.numbers):
        present = given.logits.new_zeros(call.batch, call.classes, dtype=torch.int8)
    maps = (maps if given.distance is None else maps._replace(field=given.distance)).present()
    of_labels = _weigh(call, given, maps, present, counts if len(counts) else None)
    if present is not None:  # of the classes of images that have others too
        is_candidate = (present * (present.sum(1, keepdim=True) > 1))[:, call.classes == 2 :].contiguous()
        shape = *is_candidate.shape, *call.grid.averages
        averages = call.empty(*shape, dtype=torch.int8), call.empty(*shape), is_candidate
    sums = torch.cat([_terms(call, maps, averages), of_labels.sum(0)])
    if call.numbers.validate == VALIDATE["async"]:
        library.record_wrong(sums[SumRow.WRONG])
    if len(weight):
        weight = of_labels[:, 0].view(len(weight), -1).sum(1)
    if averages is not None:
        region = region_terms(*averages, len(region), maps.slopes)
    return sums, counts, region, weight


def _weigh(call: Call, given: EdgeLossInputs, maps: Maps, present: Tensor | None, counts: Tensor | None) -> Tensor:
    """Fill the maps that come from labels, and return the rows of sums that do, by program."""
    numbers, target = call.numbers, given.target
    programs = call.batch * triton.cdiv(call.grid.pixels, tile_of(call.grid.pixels, OF_LABELS))
    sums = given.logits.new_zeros(programs, labels.ROWS.value, dtype=torch.float64)
    target = target.view(torch.uint8) if target.dtype == torch.bool else target
    call.over_labels(labels.read_labels_kernel, target, maps.label, present, sums, numbers.ignore_index)
    if not numbers.edges:
        return sums
    if numbers.decay and given.distance is None:
        # As far as a neighbor of an edge pixel is from another class.
        batch = call.batch, *call.grid.size
        limit = 2 * math.hypot(*(r * s for r, s in zip(clipped(numbers.radius, batch), numbers.spacing, strict=True)))
        reach = clipped([math.ceil(limit / s) for s in numbers.spacing], batch)
        steps = tl.constexpr(math.prod(2 * r + 1 for r in reach))
        window = Size(*reach), steps, Size.constant(numbers.spacing)
        call.over_labels(labels.find_distances_kernel, maps.label, maps.field, *window)
    call.over_labels(labels.find_sides_kernel, maps, given.edge_class_weight, counts, sums)
    call.over_labels(labels.weigh_pixels_kernel, maps)
    return sums


def _terms(call: Call, maps: Maps, averages: tuple[Tensor, ...] | None) -> Tensor:
    """Return the sums of the terms, and write the softmax and the averages."""
    steps, count, block = 1, call.grid.pixels, call.block(call.grid.pixels)
    if averages is not None:
        steps, count = POOL ** len(call.shape[1:]), math.prod(call.grid.cells)
        block = tile_of(count, 32)
    sums = call.empty(call.batch * triton.cdiv(count, block), loss.TERMS.value, dtype=torch.float64)
    numbers = constants(range(min(steps, 3 if call.is_upsampled else 9)))
    given = maps, averages, sums, count, tl.constexpr(steps), numbers
    call.over_logits(loss.forward_kernel, call.batch, count, block, *given)
    return sums.sum(0)


def backward(
    of_terms: Tensor, of_region: Tensor | None, logits: Tensor, weight: Tensor | None, pixel_weight: Tensor | None,
    edge_class_weight: Tensor | None, *others: Any,  # noqa: ANN401
) -> Tensor:  # fmt: skip
    """Return the gradient of the logits; the arguments are those of the operator."""
    *state, integers, reals = others
    maps, gradient = Maps(*state), new_gradient(logits)
    call = Call(logits, maps.label.shape, Numbers.of(integers, reals), pixel_weight, weight)
    if maps.label.numel() == 0:
        return gradient.zero_()
    of_all = None if weight is None else weight.view(call.numbers.tables, -1).sum(1)
    factors = of_all, of_terms, of_region if len(maps.slopes) else None
    pixels, channels = call.grid.pixels, gradient.shape[1]
    given, block = (maps.present(), *factors), call.block(pixels)
    with torch.cuda.device_of(call.logits):
        if not call.is_upsampled:
            call.over_logits(loss.backward_kernel, call.batch, pixels, block, call.logits_in(gradient), *given, 0)
            return gradient
        per_part = max(1, upsampled.PART // (channels * pixels * gradient.element_size()))
        for first in range(0, call.batch, per_part):
            part = call.empty(min(per_part, call.batch - first), channels, pixels)
            call.over_logits(loss.backward_kernel, len(part), pixels, block, call.logits_in(part), *given, first)
            upsampled.add_up(call, part, gradient[first : first + len(part)])
    return gradient
