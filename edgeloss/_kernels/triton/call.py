"""Tensors of a call → what kernels take, and the kernels in order. Imported where there is Triton only."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from edgeloss._checks.inputs import result_dtype
from edgeloss._kernels import library
from edgeloss._kernels.arguments import VALIDATE, Arguments, KernelOptions, new_outputs
from edgeloss._kernels.triton import edges, interpolate, label_weights, sums, terms
from edgeloss._kernels.triton.region import region_terms
from edgeloss._kernels.triton.terms import Logits
from edgeloss._kernels.triton.tiles import (
    INTERPRETED,
    Grid,
    Size,
    cdiv,
    constant,
    constants,
    launcher,
    power_of_2,
    tile_of,
)
from edgeloss._kernels.triton.workspace import Workspace, maps_of_image, new_workspace, state_of, workspace_of
from edgeloss._reference.custom_ops import new_gradient
from edgeloss._reference.neighborhoods import clipped
from edgeloss._reference.region import POOL, averages_of

EDGE_PROGRAMS = 2048  # that add up the edge terms, each with a table of the classes
OF_LABELS = 512  # pixels of a program that reads labels, 4 per thread: with 8 the weights spill registers
COLUMNS = 32  # of them at most: square tiles have edges less often


@lru_cache(maxsize=256)
def _grid(shape: torch.Size, numbers: KernelOptions, classes: int, dtype: torch.dtype) -> Grid:
    """Return what kernels know of a call of such labels, but for its weights."""
    size = Size.of(shape[1:])
    radius = clipped(numbers.radius, (1, *size))
    reach = Size(constant(radius[0]), *constants(radius[1:]))  # the depth also for loops of the interpreter
    sizes = reach, Size.of([n // POOL + 1 for n in shape[1:]]), Size.of(averages_of(shape))
    counts = math.prod(size), constant(math.prod(2 * r + 1 for r in radius)), numbers.tables
    real = tl.float64 if dtype == torch.float64 else tl.float32
    of_call = map(constant, (classes, maps_of_image(classes), real, numbers.decay, numbers.label_smoothing))
    return Grid(size, *sizes, *counts, None, None, *of_call)


class Call:
    """What the steps of a call share; the target may be the labels that were read."""

    def __init__(self, given: Arguments, numbers: KernelOptions, *others: Any) -> None:  # noqa: ANN401
        """Find the places of pixels and logits, and how many of them a program has; kernels get the others too."""
        logits, shape = given.logits, given.target.shape
        self.given, self.numbers, self.batch, self.dtype = given, numbers, shape[0], result_dtype(logits)
        grid = _grid(shape, numbers, max(2, logits.shape[1]), self.dtype)
        self.grid = grid._replace(pixel_weight=given.pixel_weight, weight=given.weight)
        self.low, self.is_upsampled = Size.of(logits.shape[2:]), logits.shape[2:] != shape[1:]
        self.x = self.logits_in(logits)
        if self.is_upsampled:
            taps = interpolate.taps(logits, self.low, grid.size, self.dtype)
            self.x = self.x._replace(axes=constant(logits.dim() - 2), taps=taps)
        is_long = self.is_upsampled or self.dtype == torch.float64
        self.block = tile_of(grid.pixels, 32 if is_long else 64 if logits.shape[1] > 2 else 128)
        of_labels = tile_of(grid.pixels, OF_LABELS)
        self.signature = logits.shape, logits.stride(), shape, numbers, *given[:5], *others
        self.launch = launcher(*self.signature)
        self.columns = min(of_labels if INTERPRETED else COLUMNS, power_of_2(grid.size.width))
        self.rows = of_labels // self.columns
        self.tiles = self.batch * grid.size.depth * cdiv(grid.size.height, self.rows)  # of labels, below each other

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a new tensor, by default of the type that kernels compute in."""
        return self.given.logits.new_empty(size, dtype=dtype or self.dtype)

    def logits_in(self, values: Tensor) -> Logits:
        """Return logits [B, C, *S], or their gradient, as kernels find them in memory."""
        axes = [a for a in range(2, values.dim()) if values.size(a) != 1]
        steps = values.stride(0), values.stride(1), values.stride(axes[-1]) if axes else 0
        one = constant(int(self.given.logits.shape[1] == 1))
        return Logits(values, *steps, self.grid.classes, one, self.grid.real, constant(0), None)

    def over_labels(self, kernel: Any, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel over all pixels of the labels."""
        self.launch(kernel, self.tiles, self.grid.size.width, self.columns, *args, self.grid, self.rows)

    def over_logits(self, kernel: Any, images: int, count: int, block: int, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel that reads logits over ``count`` places of each image."""
        self.launch(kernel, images, count, block, self.x, *args, self.grid, warps=1)


def forward(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return what ``edgeloss._kernels.arguments.Outputs`` has of a call, then the state that backward reads."""
    given = Arguments(*args)
    numbers = given.options
    of_call, of_edges, region, weight, no_maps = outputs = new_outputs(given)
    maps = new_workspace(given)
    state = state_of(maps, given)
    if given.target.numel() == 0:
        return *(values.zero_() for values in outputs), *state
    with torch.cuda.device_of(of_call):
        call = Call(given, numbers)
        present = None if maps.class_map is None else torch.zeros_like(maps.class_map, dtype=torch.int8)
        of_labels = _weigh(call, maps, present)
        pixels, block, of_image = call.grid.pixels, call.block, len(of_labels) // call.batch
        of_terms = call.empty(call.batch * cdiv(pixels, block), dtype=torch.float64)
        call.over_logits(terms.forward_kernel, call.batch, pixels, block, maps, of_terms, pixels)
        tables, of_tables = _add_edges(call, maps, of_labels, of_edges)
        wrong = library.recorded_wrong(of_call.device) if numbers.validate == VALIDATE["async"] else None
        programs = of_terms, len(of_terms), of_labels, len(of_labels), of_image, tables, of_tables, call.batch
        to = of_call, of_edges, weight if weight.numel() else None, wrong, present, maps, call.grid
        rows, wide = len(of_call) + call.batch, constant(power_of_2(call.grid.classes.value))
        if tables is not None:
            rows += len(of_edges) * call.batch * cdiv(call.grid.classes.value, sums.CLASSES.value)
        at_once = sums.AT_ONCE
        call.launch(sums.collect_kernel, rows, at_once, at_once, *programs, *to, wide, warps=8, fuses=False)
        if present is None:
            region.zero_()
        else:
            region_terms(*_averages(call, maps), maps.map_class, region, maps.region_slopes, call.launch)
    return *outputs, *state


def _weigh(call: Call, maps: Workspace, present: Tensor | None) -> Tensor:
    """Fill the maps that come from labels, and return the rows of sums that do, by program."""
    numbers, target, size = call.numbers, call.given.target, call.grid.size
    programs = call.tiles * cdiv(size.width, call.columns)
    of_labels = call.empty(programs, label_weights.ROWS_OF_SUMS.value, dtype=torch.float64)
    target = target.view(torch.uint8) if target.dtype == torch.bool else target
    call.over_labels(label_weights.read_labels_kernel, target, maps.label, present, of_labels, numbers.ignore_index)
    if not numbers.edges:
        return of_labels
    if numbers.decay and call.given.distance is None:
        # As far as a neighbor of an edge pixel is from another class.
        batch = call.batch, *size
        limit = 2 * math.hypot(*(r * s for r, s in zip(clipped(numbers.radius, batch), numbers.spacing, strict=True)))
        reach = clipped([math.ceil(limit / s) for s in numbers.spacing], batch)
        nearest = call.empty(target.numel(), dtype=torch.int64)
        call.over_labels(label_weights.find_in_rows_kernel, maps.label, nearest, constant(reach[-1]))
        rows = Size(*constants((*reach[:2], 0))), constant((2 * reach[0] + 1) * (2 * reach[1] + 1))
        given = maps.label, nearest, maps.field, *rows, Size(*constants(numbers.spacing))
        call.over_labels(label_weights.find_distances_kernel, *given)
    call.over_labels(label_weights.find_sides_kernel, maps, of_labels)
    call.over_labels(label_weights.weigh_pixels_kernel, maps, of_labels)
    return of_labels


def _add_edges(call: Call, maps: Workspace, of_labels: Tensor, of_edges: Tensor) -> tuple[Tensor | None, int]:
    """Add up the edge terms by image and class; return tables to be added up, of how many programs of an image."""
    if maps.toward is None:
        of_edges.zero_()
        return None, 1
    tiles = len(of_labels) // call.batch
    programs = min(tiles, cdiv(EDGE_PROGRAMS, call.batch))
    tables = of_edges if programs == 1 else of_edges.new_empty(programs, *of_edges.shape)
    given = call.x, maps, of_labels, tables, tiles, programs, call.grid, constant(call.rows)
    call.launch(edges.edge_sums_kernel, call.batch * programs, call.columns, call.columns, *given, warps=16)
    return None if programs == 1 else tables, programs


def _averages(call: Call, maps: Workspace) -> tuple[Tensor, Tensor]:
    """Return the averages z and r of the classes that have a map of them."""
    shape, cells = (*maps.map_class.shape, *call.grid.averages), math.prod(call.grid.cells)
    averages = call.empty(*shape, dtype=torch.int8), call.empty(*shape)
    steps = POOL ** (call.given.target.dim() - 1)
    given = maps, *averages, cells, steps, constants(range(3 if call.is_upsampled else 9))
    call.over_logits(terms.averages_kernel, call.batch, cells, tile_of(cells, 32), *given)
    return averages


def backward(grad: Tensor | None, slopes: Tensor, edge_pixel_weight: None, logits: Tensor, *others: Any) -> Tensor:  # noqa: ANN401
    """Return the gradient of the logits; the arguments are those of the operator."""
    if edge_pixel_weight is not None:
        raise ValueError("edge_pixel_weight: expected None, but got a tensor; pass backend='reference'")
    gradient, options = new_gradient(logits), others[-len(KernelOptions._fields) :]
    weights, state = others[:3], others[3 : -len(options)]
    if state[0].numel() == 0:
        return gradient.zero_()
    given = Arguments(logits, state[0], *weights, *options)
    numbers, maps = given.options, workspace_of(state, given.distance)
    of_all = None if given.weight is None else given.weight.view(numbers.tables, -1).sum(1)
    with torch.cuda.device_of(logits):
        call = Call(given, numbers, grad, slopes, *state)
        pixels, channels, per_part = call.grid.pixels, gradient.shape[1], call.batch
        if call.is_upsampled:
            per_part = max(1, interpolate.PART // (channels * pixels * gradient.element_size()))
        for first in range(0, call.batch, per_part):
            images = min(per_part, call.batch - first)
            g = call.empty(images, channels, pixels) if call.is_upsampled else gradient
            to = call.logits_in(g), maps, of_all, grad, slopes, call.batch * call.grid.classes.value, first
            call.over_logits(terms.backward_kernel, images, pixels, call.block, *to)
            if call.is_upsampled:
                interpolate.add_up(call, g, gradient[first : first + images])
    return gradient
