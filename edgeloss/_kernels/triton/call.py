"""Tensors of a call → what kernels take, and the kernels in order. Imported where there is Triton only."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from edgeloss._checks.inputs import result_dtype
from edgeloss._kernels import library
from edgeloss._kernels.arguments import VALIDATE, Arguments, KernelOptions, new_outputs
from edgeloss._kernels.triton import edges, interpolate, label_weights, plans, sums, terms
from edgeloss._kernels.triton.region import region_terms
from edgeloss._kernels.triton.terms import Logits
from edgeloss._kernels.triton.tiles import INTERPRETED, Grid, Size, cdiv, constant, constants, power_of_2, tile_of
from edgeloss._kernels.triton.workspace import Workspace, maps_of_image, new_state, parts_of, read_state
from edgeloss._reference.custom_ops import new_gradient
from edgeloss._reference.neighborhoods import clipped
from edgeloss._reference.region import POOL, averages_of

EDGE_PROGRAMS = 2048  # that add up the edge terms, each with a table of the classes
OF_LABELS = 512  # pixels of a program that reads labels, 4 per thread: with 8 the weights spill registers
COLUMNS = 32  # of them at most: square tiles have edges less often


def _grid(shape: torch.Size, numbers: KernelOptions, classes: int, dtype: torch.dtype, *weights: Tensor | None) -> Grid:
    """Return what kernels know of a call of such labels."""
    size = Size.of(shape[1:])
    radius = clipped(numbers.radius, (1, *size))
    reach = Size(constant(radius[0]), *constants(radius[1:]))  # the depth also for loops of the interpreter
    sizes = reach, Size.of([n // POOL + 1 for n in shape[1:]]), Size.of(averages_of(shape))
    counts = math.prod(size), constant(math.prod(2 * r + 1 for r in radius)), numbers.tables
    real = tl.float64 if dtype == torch.float64 else tl.float32
    of_call = map(constant, (classes, maps_of_image(classes), real, numbers.decay, numbers.label_smoothing))
    return Grid(size, *sizes, *counts, *weights, *of_call)


class Call:
    """What the steps of a call share; the target may be the labels that were read."""

    def __init__(self, plan: plans.Plan, given: Arguments, numbers: KernelOptions) -> None:
        """Find the places of pixels and logits, and how many of them a program has."""
        logits, shape = given.logits, given.target.shape
        self.plan, self.given, self.numbers = plan, given, numbers
        self.batch, self.dtype = shape[0], result_dtype(logits)
        self.grid = _grid(shape, numbers, max(2, logits.shape[1]), self.dtype, given.pixel_weight, given.weight)
        self.low, self.is_upsampled = Size.of(logits.shape[2:]), logits.shape[2:] != shape[1:]
        self.x = self.logits_in(logits)
        if self.is_upsampled:
            taps = interpolate.taps(logits, self.low, self.grid.size, self.dtype)
            self.x = self.x._replace(axes=constant(logits.dim() - 2), taps=taps)
        is_long = self.is_upsampled or self.dtype == torch.float64
        self.block = tile_of(self.grid.pixels, 32 if is_long else 64 if logits.shape[1] > 2 else 128)
        of_labels = tile_of(self.grid.pixels, OF_LABELS)
        self.columns = min(of_labels if INTERPRETED else COLUMNS, power_of_2(self.grid.size.width))
        self.rows = of_labels // self.columns
        self.tiles = self.batch * self.grid.size.depth * cdiv(self.grid.size.height, self.rows)  # below each other

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a new tensor for this call alone, by default of the type that kernels compute in."""
        return self.plan.empty(self.given.logits.new_empty(size, dtype=dtype or self.dtype))

    def kept(self, label: Tensor, memory: Tensor) -> Workspace:
        """Return the maps that forward leaves to backward; the others are None."""
        maps = read_state(memory, parts_of(self.given))
        maps = {name: self.plan.view(memory, values) for name, values in maps.items()}
        return Workspace(label, **maps if self.given.distance is None else {**maps, "field": self.given.distance})

    def logits_in(self, values: Tensor) -> Logits:
        """Return logits [B, C, *S], or their gradient, as kernels find them in memory."""
        axes = [a for a in range(2, values.dim()) if values.size(a) != 1]
        steps = values.stride(0), values.stride(1), values.stride(axes[-1]) if axes else 0
        one = constant(int(self.given.logits.shape[1] == 1))
        return Logits(values, *steps, self.grid.classes, one, self.grid.real, constant(0), None)

    def over_labels(self, kernel: Any, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel over all pixels of the labels."""
        self.plan.launch(kernel, self.tiles, self.grid.size.width, self.columns, *args, self.grid, self.rows)

    def over_logits(self, kernel: Any, images: int, count: int, block: int, *args: Any) -> None:  # noqa: ANN401
        """Run a kernel that reads logits over ``count`` places of each image."""
        self.plan.launch(kernel, images, count, block, self.x, *args, self.grid, warps=1)


def forward(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return what ``Outputs`` has of a call, then the labels and the memory that backward reads."""
    arguments = Arguments(*args)
    return tuple(plans.run(_forward, arguments[: -len(KernelOptions._fields)], arguments.options))


def _forward(plan: plans.Plan, tensors: plans.Tensors, options: KernelOptions) -> list[Tensor]:
    given = Arguments._make((*tensors, *options))
    parts = parts_of(given) if given.target.numel() else {}
    returned = [*new_outputs(given), *new_state(given)]
    of_call, of_edges, region, weight, _, label, memory = returned
    is_zero = not parts, "same_side" not in parts, "average_start" not in parts, not parts, *(False,) * 3
    for values, is_empty in zip(returned, is_zero, strict=True):
        plan.result(values, is_zero=is_empty)
    if not given.target.numel():
        return returned
    call, present = Call(plan, given, options), None
    others = {name: call.empty(*part.size, dtype=part.dtype) for name, part in parts.items() if not part.is_kept}
    maps = call.kept(label, memory)._replace(**others)
    if maps.average_start is not None:
        present = plan.result(torch.empty_like(maps.average_start, dtype=torch.int8), is_zero=True)
    of_labels = _weigh(call, maps, present)
    pixels, block, of_image = call.grid.pixels, call.block, len(of_labels) // call.batch
    of_terms = call.empty(call.batch * cdiv(pixels, block), dtype=torch.float64)
    call.over_logits(terms.forward_kernel, call.batch, pixels, block, maps, of_terms, pixels)
    tables, of_tables = _add_edges(call, maps, of_labels, of_edges)
    wrong = library.recorded_wrong(of_call.device) if options.validate == VALIDATE["async"] else None
    programs = of_terms, len(of_terms), of_labels, len(of_labels), of_image, tables, of_tables, call.batch
    to = of_call, of_edges, weight if weight.numel() else None, wrong, present, maps, call.grid
    rows, wide = len(of_call) + call.batch, constant(power_of_2(call.grid.classes.value))
    if tables is not None:
        rows += len(of_edges) * call.batch * cdiv(call.grid.classes.value, sums.CLASSES.value)
    at_once = sums.AT_ONCE
    plan.launch(sums.collect_kernel, rows, at_once, at_once, *programs, *to, wide, warps=8, fuses=False)
    if present is not None:
        region_terms(plan, *_averages(call, maps), maps.average_class, region, maps.region_slopes)
    return returned


def _weigh(call: Call, maps: Workspace, present: Tensor | None) -> Tensor:
    """Fill the maps that come from labels, and return the rows of sums that do, by program."""
    numbers, target, size = call.numbers, call.given.target, call.grid.size
    programs = call.tiles * cdiv(size.width, call.columns)
    of_labels = call.empty(programs, label_weights.ROWS_OF_SUMS.value, dtype=torch.float64)
    target = call.plan.view(target, target.view(torch.uint8)) if target.dtype == torch.bool else target
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
    if maps.same_side is None:
        return None, 1
    tiles = len(of_labels) // call.batch
    programs = min(tiles, cdiv(EDGE_PROGRAMS, call.batch))
    tables = of_edges if programs == 1 else call.empty(programs, *of_edges.shape, dtype=of_edges.dtype)
    given = call.x, maps, of_labels, tables, tiles, programs, call.grid, constant(call.rows)
    call.plan.launch(edges.edge_sums_kernel, call.batch * programs, call.columns, call.columns, *given, warps=16)
    return None if programs == 1 else tables, programs


def _averages(call: Call, maps: Workspace) -> tuple[Tensor, Tensor]:
    """Return the averages z and r of the classes that have a map of them."""
    shape, cells = (*maps.average_class.shape, *call.grid.averages), math.prod(call.grid.cells)
    averages = call.empty(*shape, dtype=torch.int8), call.empty(*shape)
    steps = POOL ** (call.given.target.dim() - 1)
    given = maps, *averages, cells, steps, constants(range(3 if call.is_upsampled else 9))
    call.over_logits(terms.averages_kernel, call.batch, cells, tile_of(cells, 32), *given)
    return averages


def backward(grad: Tensor | None, slopes: Tensor, edge_pixel_weight: None, logits: Tensor, *others: Any) -> Tensor:  # noqa: ANN401
    """Return the gradient of the logits; the arguments are those of the operator."""
    if edge_pixel_weight is not None:
        raise ValueError("edge_pixel_weight: expected None, but got a tensor; pass backend='reference'")
    options = KernelOptions._make(others[-len(KernelOptions._fields) :])
    return plans.run(_backward, (logits, grad, slopes, *others[: -len(options)]), options)[0]


def _backward(plan: plans.Plan, tensors: plans.Tensors, options: KernelOptions) -> list[Tensor]:
    logits, grad, slopes, *weights, label, memory = tensors
    given = Arguments._make((logits, label, *weights, *options))
    gradient = plan.result(new_gradient(given.logits), is_zero=given.target.numel() == 0)
    if given.target.numel() == 0:
        return [gradient]
    call = Call(plan, given, options)
    maps = call.kept(label, memory)
    pixels, channels, per_part = call.grid.pixels, gradient.shape[1], call.batch
    g, between = gradient, []
    if call.is_upsampled:
        per_part = max(1, min(per_part, interpolate.PART // (channels * pixels * gradient.element_size())))
        g, between = call.empty(per_part, channels, pixels), interpolate.sums_between(call, per_part, channels)
    wide = constant(power_of_2(call.grid.classes.value))
    for first in range(0, call.batch, per_part):
        images = min(per_part, call.batch - first)
        to = call.logits_in(g), maps, grad, slopes, call.batch * call.grid.classes.value, first, wide
        call.over_logits(terms.backward_kernel, images, pixels, call.block, *to)
        if call.is_upsampled:
            of_part = plan.view(gradient, gradient[first : first + images].flatten(2))
            interpolate.add_up(call, images * channels, g, *between, of_part)
    return [gradient]
