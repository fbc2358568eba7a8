"""A call of the loss: launches the kernels in order. Imported where there is Triton only."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
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
from edgeloss.triton import labels, loss, region, upsampled
from edgeloss.triton.labels import Near, Sides
from edgeloss.triton.loss import Averages, Kept, Logits, Slopes
from edgeloss.triton.operators import (
    FEW_CLASSES,
    BackwardInputs,
    State,
    averages_of,
    has_regions,
    new_gradient,
    new_state,
    state_sizes,
)
from edgeloss.triton.tiles import INTERPRETED, Grid, Size, Weights, Window, launch, real_type, tile_of


class Call:
    """What the steps of a call share."""

    def __init__(self, logits: Tensor, shape: torch.Size, numbers: Numbers) -> None:
        """Read the sizes; shape is that of the target."""
        self.logits, self.shape, self.numbers = logits, shape, numbers
        self.batch, size = shape[0], Size.of(shape[1:])
        self.classes, self.dtype = max(2, logits.shape[1]), result_dtype(logits)
        self.is_upsampled, self.low = logits.shape[2:] != shape[1:], Size.of(logits.shape[2:])
        self.forms_again = not self.is_upsampled and self.classes <= FEW_CLASSES
        chunk = triton.next_power_of_2(self.classes)
        self.chunk = chunk if INTERPRETED else min(chunk, 4 if self.is_upsampled else 8)
        window = Window.of(clipped(numbers.radius, (self.batch, *size)))
        constants = tl.constexpr(self.classes), real_type(self.empty(0)), tl.constexpr(numbers.decay)
        self.grid = Grid(size, window, math.prod(size), numbers.tables, *constants)

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a new tensor, by default of the type that kernels compute in."""
        return torch.empty(size, dtype=dtype or self.dtype, device=self.logits.device)

    def map(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return a new map [B, P]."""
        return self.empty(self.batch * self.grid.pixels, dtype=dtype)

    def logits_in(self, values: Tensor, *, taps: bool = False) -> Logits:
        """Return logits, or their gradient, as kernels find them, with taps at the resolution of the labels."""
        axes = [a for a in range(2, values.dim()) if values.size(a) != 1]
        image, channel, pixel = values.stride(0), values.stride(1), values.stride(axes[-1]) if axes else 0
        one, dims = self.logits.shape[1] == 1, values.dim() - 2 if taps else 0
        classes, one, chunk, axes = map(tl.constexpr, (self.classes, int(one), self.chunk, dims))
        found = Logits(values, image, channel, pixel, classes, one, chunk, self.grid.real, axes)
        if not taps:
            return found
        depth, height, width = upsampled.taps(values, self.low, self.grid.size, self.dtype)
        return found._replace(depth=depth if dims == 3 else None, height=height, width=width)

    def launch(self, kernel: Any, images: int, count: int, block: int, *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Run a kernel that reads logits over ``count`` places of each image."""
        x, options["warps"] = self.logits_in(self.logits, taps=self.is_upsampled), 1
        launch(kernel, images, count, block, x, *args, self.grid, enable_fp_fusion=not self.is_upsampled, **options)

    def block(self, pixels: int, most: int) -> int:
        """Return how many pixels a program has, few enough for its registers."""
        logits = 128 if self.is_upsampled else 256
        return tile_of(pixels, max(32, min(most, logits // self.chunk)), 2**18 // self.chunk)


def _on_device(logits: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(logits.device) if logits.is_cuda else nullcontext()


def forward(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return the sums, counts and regions of a call, then the state that backward reads."""
    given = EdgeLossInputs(*args)
    call = Call(given.logits, given.target.shape, Numbers.of(given.integers, given.reals))
    with _on_device(given.logits):
        return _forward(call, given)


def _forward(call: Call, given: EdgeLossInputs) -> tuple[Tensor, ...]:
    numbers, images = call.numbers, call.batch // call.numbers.tables
    counts = given.logits.new_zeros(numbers.tables * call.classes if numbers.count_edges else 0, dtype=torch.int64)
    if call.batch * call.grid.pixels == 0:
        sums = given.logits.new_zeros(len(SumRow), dtype=torch.float64)
        return sums, counts, *sums.new_zeros(2, images if numbers.regions else 0), *new_state(given, state_sizes(given))
    maps = 1 if call.classes == 2 else call.classes
    present, averages = None, None
    if has_regions(call.shape, numbers):
        present = given.logits.new_zeros(call.batch, call.classes, dtype=torch.int8)
    sides, near, of_labels = _weights(call, given, present, counts if numbers.count_edges else None)
    if present is not None:
        is_candidate = (present * (present.sum(1, keepdim=True) > 1))[:, -maps:].contiguous()
        averages = _averages(call, maps, is_candidate)
    kept = None
    if averages is not None or (numbers.keeps_state and not call.forms_again):
        kept = Kept(call.map(), call.map(), call.map(torch.int16))
    sums = torch.cat([_terms(call, given, sides, near, kept, averages), of_labels.sum(0)])
    if numbers.validate == VALIDATE["async"]:
        library.record_wrong(sums[SumRow.WRONG])
    weight, none = of_labels[:, 0].view(images, -1).sum(1), sums.new_zeros(0)
    of_images, slopes = sums.new_zeros(images), None
    if averages is not None:
        of_images, slopes = region.region_terms(averages, images, slopes=bool(numbers.keeps_state))
    of_regions = (of_images, weight) if numbers.regions else (none, none)
    return sums, counts, *of_regions, *_state(given, sides, near, kept, slopes)


def _weights(
    call: Call, given: EdgeLossInputs, present: Tensor | None, counts: Tensor | None
) -> tuple[Sides, Near | None, Tensor]:
    """Return what the labels say, and the rows of sums that come from them, by program."""
    numbers, pixels = call.numbers, call.grid.pixels
    target = given.target.view(torch.uint8) if given.target.dtype == torch.bool else given.target
    block, label = tile_of(pixels, 256), call.map(torch.int16)
    sums = given.logits.new_zeros(call.batch * triton.cdiv(pixels, block), labels.ROWS.value, dtype=torch.float64)
    weights, over = Weights(given.pixel_weight, given.weight), (call.batch, pixels, block)
    launch(labels.read_labels_kernel, *over, target, weights, label, present, sums, call.grid, numbers.ignore_index)
    sides = Sides(label, None, label, None, None, None)
    if not numbers.edges:
        return sides, None, sums
    sides = sides._replace(same=call.map(), across=call.map())
    if numbers.decay:
        field = _distances(call, label, block) if given.distance is None else given.distance
        sides = sides._replace(least_same=call.map(), least_across=call.map(), field=field)
    weights = Weights(given.pixel_weight, given.edge_class_weight)
    launch(labels.find_sides_kernel, *over, sides, weights, counts, sums, call.grid)
    near = Near(call.map(), call.map(torch.int16) if call.classes > 2 else None, call.map())
    launch(labels.weigh_pixels_kernel, *over, sides, near, call.grid)
    return sides, near, sums


def _distances(call: Call, label: Tensor, block: int) -> Tensor:
    """Return the distance from each pixel to the nearest one of another class, as far as edge pixels read it."""
    grid, spacing, field = call.grid, call.numbers.spacing, call.map()
    limit = 2 * math.hypot(*(r * s for r, s in zip(grid.window[1:], spacing, strict=True)))
    reach = Window.of(clipped([math.ceil(limit / s) for s in spacing], (call.batch, *grid.size)))
    given, (depth, height, width) = (label, field, grid, reach), spacing
    over = call.batch, grid.pixels, block
    launch(labels.find_distances_kernel, *over, *given, DEPTH=depth, HEIGHT=height, WIDTH=width)
    return field


def _averages(call: Call, maps: int, is_candidate: Tensor) -> Averages:
    size, covers = Size.of(averages_of(call.shape)), Size.of([n // POOL + 1 for n in call.shape[1:]])
    shape = call.batch * maps * math.prod(size)
    return Averages(call.empty(shape, dtype=torch.int8), call.empty(shape), size, covers, is_candidate)


def _terms(
    call: Call, given: EdgeLossInputs, sides: Sides, near: Near | None, kept: Kept | None, averages: Averages | None
) -> Tensor:
    """Return the sums of the terms, and write the softmax and the averages."""
    if averages is None:
        steps, count, block = 1, call.grid.pixels, call.block(call.grid.pixels, 128)
    else:
        steps, count = POOL ** len(call.shape[1:]), math.prod(averages.cells)
        block = call.block(count, 32)
    sums = call.empty(call.batch * triton.cdiv(count, block), loss.TERMS.value, dtype=torch.float64)
    given_weights = Weights(given.pixel_weight, None), given.weight
    smoothing = call.numbers.label_smoothing
    call.launch(
        loss.forward_kernel, call.batch, count, block, near, sides, *given_weights, kept, averages, sums,
        SMOOTHING=smoothing, EDGES=near is not None, KEEPS=kept is not None, STEPS=steps,
    )  # fmt: skip
    return sums.sum(0)


def _state(
    given: EdgeLossInputs, sides: Sides, near: Near | None, kept: Kept | None, slopes: Tensor | None
) -> list[Tensor]:
    """Return what backward reads, and empty tensors for what it does not."""
    made = (sides.label.view(given.target.shape), *(kept or (None,) * 3), *(near or (None,) * 3), sides.across)
    made = (*made, sides.least_across, sides.field, slopes)
    sizes = state_sizes(given)
    nothing = new_state(given, [0] * len(sizes))
    return [
        values if values is not None and size else empty
        for values, size, empty in zip(made, sizes, nothing, strict=True)
    ]


def backward(*args: Any) -> Tensor:  # noqa: ANN401
    """Return the gradient of the logits; the arguments are those of the operator."""
    given = BackwardInputs._make((*args[:6], State._make(args[6:-2]), *args[-2:]))
    gradient = new_gradient(given.logits)
    call = Call(given.logits, given.state.label.shape, Numbers.of(given.integers, given.reals))
    pixels, channels = call.grid.pixels, gradient.shape[1]
    if call.batch * pixels == 0:
        return gradient.zero_()
    with _on_device(given.logits):
        if not call.is_upsampled:
            _gradients(call, given, call.logits_in(gradient), 0, call.batch)
            return gradient
        per_part = max(1, upsampled.PART // (channels * pixels * gradient.element_size()))
        for first in range(0, call.batch, per_part):
            of_pixels = call.empty(min(per_part, call.batch - first), channels, pixels)
            _gradients(call, given, call.logits_in(of_pixels), first, len(of_pixels))
            upsampled.add_up(of_pixels, call.logits_in(gradient[first:]), call.low, call.grid.size)
    return gradient


def _gradients(call: Call, given: BackwardInputs, g: Logits, first: int, images: int) -> None:
    """Write the gradient of some images, at the resolution of the labels."""
    state, classes = given.state, (call.grid.tables, call.classes)
    sides = Sides(state.label, None, state.across, None, _some(state.least_across), _some(state.field))
    near = Near(state.same, _some(state.first), state.against) if call.numbers.edges else None
    kept = None if call.forms_again else Kept(state.m, state.r, state.top)
    slopes = None
    if given.of_region is not None and len(state.slopes):
        slopes = Slopes(state.slopes, Size.of(averages_of(call.shape)), given.of_region)
    weight = given.weight
    total = call.empty(classes[0]).fill_(classes[1]) if weight is None else weight.view(classes).sum(1)
    call.launch(
        loss.backward_kernel, images, call.grid.pixels, call.block(call.grid.pixels, 128), g, near, sides,
        Weights(given.pixel_weight, None), weight, total, kept, slopes, given.of_terms, first,
        SMOOTHING=call.numbers.label_smoothing, EDGES=near is not None, KEPT=kept is not None,
        REGIONS=slopes is not None,
    )  # fmt: skip


def _some(values: Tensor) -> Tensor | None:
    return values if len(values) else None
