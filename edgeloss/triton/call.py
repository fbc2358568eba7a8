"""Tensors of a call → what kernels take, and the kernels in order. Imported where there is Triton only."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from edgeloss import library
from edgeloss.arguments import VALIDATE, EdgeLossInputs, Numbers
from edgeloss.inputs import result_dtype
from edgeloss.neighborhoods import clipped
from edgeloss.region import POOL
from edgeloss.triton import labels, loss, operators, step, upsampled
from edgeloss.triton.loss import Logits
from edgeloss.triton.operators import Maps
from edgeloss.triton.region import region_terms
from edgeloss.triton.tiles import INTERPRETED, Grid, Size, cdiv, constant, constants, launch, power_of_2, tile_of

OF_LABELS = 512  # pixels of a program that reads labels, 4 per thread: with 8 the weights spill registers
COLUMNS = 32  # of them at most: square tiles have edges less often


@lru_cache(maxsize=256)
def _grid(shape: torch.Size, numbers: Numbers, classes: int, dtype: torch.dtype) -> Grid:
    """Return what kernels know of a call of such labels, but for its weights."""
    size = Size.of(shape[1:])
    radius = clipped(numbers.radius, (1, *size))
    sizes = Size.constant(radius), Size.of([n // POOL + 1 for n in shape[1:]]), Size.of(operators.averages_of(shape))
    counts = math.prod(size), constant(math.prod(2 * r + 1 for r in radius)), numbers.tables
    real = tl.float64 if dtype == torch.float64 else tl.float32
    constants = map(constant, (classes, operators.maps_of_image(classes), real, numbers.decay, numbers.label_smoothing))
    return Grid(size, *sizes, *counts, None, None, *constants)


class Call:
    """What the steps of a call share; the target may be the labels that were read."""

    def __init__(self, given: EdgeLossInputs) -> None:
        """Read the sizes."""
        logits, self.shape, self.numbers = given.logits, given.target.shape, Numbers.of(given.integers, given.reals)
        self.given, self.logits, self.batch = given, logits, self.shape[0]
        self.classes, self.dtype = max(2, logits.shape[1]), result_dtype(logits)
        self.is_upsampled, self.low = logits.shape[2:] != self.shape[1:], Size.of(logits.shape[2:])
        grid = _grid(self.shape, self.numbers, self.classes, self.dtype)
        self.grid = grid._replace(pixel_weight=given.pixel_weight, weight=given.weight)
        pixels = tile_of(grid.pixels, OF_LABELS)
        self.columns = min(pixels if INTERPRETED else COLUMNS, power_of_2(grid.size.width))
        self.rows = pixels // self.columns  # of a program that reads labels
        self.parts = self.batch * cdiv(grid.size.depth * grid.size.height, self.rows)

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a new tensor, by default of the type that kernels compute in."""
        return torch.empty(size, dtype=dtype or self.dtype, device=self.logits.device)

    def logits_in(self, values: Tensor) -> Logits:
        """Return logits, or their gradient, as kernels find them; those of lower resolution have taps."""
        axes = [a for a in range(2, values.dim()) if values.size(a) != 1]
        steps = values.stride(0), values.stride(1), values.stride(axes[-1]) if axes else 0
        has_taps = self.is_upsampled and values.dim() == self.logits.dim()
        one, dims = int(self.logits.shape[1] == 1), values.dim() - 2 if has_taps else 0
        classes, one, dims = map(constant, (self.classes, one, dims))
        taps = upsampled.taps(values, self.low, self.grid.size, self.dtype) if has_taps else None
        return Logits(values, *steps, classes, one, self.grid.real, dims, taps)

    def over_labels(self, kernel: Any, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel over all pixels of the labels."""
        launch(kernel, self.parts, self.grid.size.width, self.columns, *args, self.grid, self.rows)

    def over_logits(self, kernel: Any, images: int, count: int, block: int, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel that reads logits over ``count`` places of each image."""
        launch(kernel, images, count, block, self.logits_in(self.logits), *args, self.grid, warps=1)

    def block(self, places: int) -> int:
        """Return how many places a program that reads logits has."""
        is_long = self.is_upsampled or self.dtype == torch.float64
        return tile_of(places, 32 if is_long else 64 if self.classes > 2 else 128)


def forward(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return what ``edgeloss.fused.Outputs`` has of a call, then the state that backward reads."""
    call = Call(EdgeLossInputs(*args))
    sums, counts, region, weight, no_maps = outputs = operators.new_outputs(call.given, call.numbers)
    maps = operators.new_maps(call.given, call.numbers)
    state = operators.state_of(maps, call.given, call.numbers)
    if call.shape.numel() == 0:
        return *(values.zero_() for values in outputs), *state
    with torch.cuda.device_of(call.logits):
        present = None
        if maps.map_class is not None:
            present = call.logits.new_zeros(call.batch, call.classes, dtype=torch.int8)
        of_labels = _weigh(call, maps, present, counts.zero_() if counts.numel() else None)
        of_terms = _terms(call, maps)
        wrong = library.recorded_wrong(sums.device) if call.numbers.validate == VALIDATE["async"] else None
        programs = of_terms, len(of_terms), of_labels, len(of_labels), len(of_labels) // call.batch
        given = *programs, sums, weight if weight.numel() else None, wrong, present, maps, call.grid
        rows, at_once, classes = len(sums) + call.batch, step.AT_ONCE, constant(power_of_2(call.classes))
        launch(step.collect_kernel, rows, at_once, at_once, *given, classes, warps=8, fuses=False)
        if present is None:
            region.zero_()
        else:
            region = region_terms(*_averages(call, maps), maps.map_class, region.numel(), maps.slopes)
    return sums, counts, region, weight, no_maps, *state


def _weigh(call: Call, maps: Maps, present: Tensor | None, counts: Tensor | None) -> Tensor:
    """Fill the maps that come from labels, and return the rows of sums that do, by program."""
    numbers, target, size = call.numbers, call.given.target, call.grid.size
    sums = call.empty(call.parts * cdiv(size.width, call.columns), labels.ROWS_OF_SUMS.value, dtype=torch.float64)
    target = target.view(torch.uint8) if target.dtype == torch.bool else target
    call.over_labels(labels.read_labels_kernel, target, maps.label, present, sums, numbers.ignore_index)
    if not numbers.edges:
        return sums
    if numbers.decay and call.given.distance is None:
        # As far as a neighbor of an edge pixel is from another class.
        batch = call.batch, *size
        limit = 2 * math.hypot(*(r * s for r, s in zip(clipped(numbers.radius, batch), numbers.spacing, strict=True)))
        reach = clipped([math.ceil(limit / s) for s in numbers.spacing], batch)
        nearest = call.empty(target.numel(), dtype=torch.int64)
        call.over_labels(labels.find_in_rows_kernel, maps.label, nearest, constant(reach[-1]))
        rows = Size.constant((*reach[:2], 0)), constant((2 * reach[0] + 1) * (2 * reach[1] + 1))
        given = maps.label, nearest, maps.field, *rows, Size.constant(numbers.spacing)
        call.over_labels(labels.find_distances_kernel, *given)
    call.over_labels(labels.find_sides_kernel, maps, call.given.edge_class_weight, counts, sums)
    call.over_labels(labels.weigh_pixels_kernel, maps)
    return sums


def _terms(call: Call, maps: Maps) -> Tensor:
    """Return the sums of the terms, by program, and write the softmax."""
    count, block = call.grid.pixels, call.block(call.grid.pixels)
    sums = call.empty(call.batch * cdiv(count, block), loss.TERMS.value, dtype=torch.float64)
    call.over_logits(loss.forward_kernel, call.batch, count, block, maps, sums, count)
    return sums


def _averages(call: Call, maps: Maps) -> tuple[Tensor, Tensor]:
    """Return the averages z and r of the classes that have a map of them."""
    shape, cells = (*maps.map_class.shape, *call.grid.averages), math.prod(call.grid.cells)
    averages = call.empty(*shape, dtype=torch.int8), call.empty(*shape)
    steps = POOL ** len(call.shape[1:])
    given = maps, *averages, cells, steps, constants(range(3 if call.is_upsampled else 9))
    call.over_logits(loss.averages_kernel, call.batch, cells, tile_of(cells, 32), *given)
    return averages


def backward(
    of_terms: Tensor, of_region: Tensor | None, logits: Tensor, weight: Tensor | None, pixel_weight: Tensor | None,
    edge_class_weight: Tensor | None, distance: Tensor | None, *others: Any,  # noqa: ANN401
) -> Tensor:  # fmt: skip
    """Return the gradient of the logits; the arguments are those of the operator."""
    *state, integers, reals = others
    label, gradient = state[0], operators.new_gradient(logits)
    if label.numel() == 0:
        return gradient.zero_()
    call = Call(EdgeLossInputs(logits, label, weight, pixel_weight, edge_class_weight, distance, integers, reals))
    of_all = None if weight is None else weight.view(call.numbers.tables, -1).sum(1)
    maps = operators.maps_of(state, distance)
    given = maps, of_all, of_terms, None if maps.slopes is None else of_region
    pixels, channels, block = call.grid.pixels, gradient.shape[1], call.block(call.grid.pixels)
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
