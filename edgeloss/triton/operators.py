"""The operators of the Triton kernels: what they return, and their shapes. Triton is imported by their first call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss.arguments import EdgeLossInputs, Numbers, is_evenly_spaced
from edgeloss.inputs import result_dtype
from edgeloss.reduction import SumRow
from edgeloss.region import POOL, SIDE

FEW_CLASSES = 8  # of so few, the statistics of the softmax take less time to form again than to read


class State(NamedTuple):
    """What backward reads; maps [B · P] but for the label, empty where nothing reads them.

    Attributes:
        label: [B, *S], the class of a pixel, -1 where it does not count.
        m: the largest logit; empty of few classes, like r and top.
        r: Σ e^(x - m) over the other classes.
        top: the likeliest class.
        same: A of the edge terms.
        first: of more than two classes, the first one that the other side looks for.
        against: B of it, negative where there are more.
        across: what edge pixels give to the pixels across the edge, of more than two classes.
        least_across: the distance that it counts from, with decay.
        field: distances, with decay.
        slopes: the derivative of R by the shares under each average.
    """

    label: Tensor
    m: Tensor
    r: Tensor
    top: Tensor
    same: Tensor
    first: Tensor
    against: Tensor
    across: Tensor
    least_across: Tensor
    field: Tensor
    slopes: Tensor


class BackwardInputs(NamedTuple):
    """The arguments of the backward operator."""

    of_terms: Tensor
    of_region: Tensor | None
    logits: Tensor
    weight: Tensor | None
    pixel_weight: Tensor | None
    edge_class_weight: Tensor | None
    state: State
    integers: list[int]
    reals: list[float]


def averages_of(shape: Sequence[int]) -> list[int]:
    """Return the number of averages along each axis of labels [B, *S]."""
    return [(length - 1) // POOL + 1 for length in shape[1:]]


def has_regions(shape: Sequence[int], numbers: Numbers) -> bool:
    """Return whether there is a region term, and an image of labels [B, *S] holds a region."""
    return bool(numbers.regions) and all(length >= SIDE for length in averages_of(shape)) and math.prod(shape) > 0


def new_gradient(logits: Tensor) -> Tensor:
    """Return a new tensor for the gradient of logits, with pixels that are evenly spaced in memory."""
    gradient = torch.empty_like(logits)
    return gradient if is_evenly_spaced(gradient) else torch.empty_like(logits, memory_format=torch.contiguous_format)


def state_sizes(inputs: EdgeLossInputs) -> list[int]:
    """Return the number of elements of each tensor of the state."""
    numbers, shape = Numbers.of(inputs.integers, inputs.reals), inputs.target.shape
    classes, pixels = max(2, inputs.logits.shape[1]), inputs.target.numel()
    kept = pixels if numbers.keeps_state else 0
    statistics = kept if inputs.logits.shape[2:] != shape[1:] or classes > FEW_CLASSES else 0
    edges = kept if numbers.edges else 0
    of_more = edges if classes > 2 else 0
    with_decay = of_more if numbers.decay else 0
    maps = shape[0] * (1 if classes == 2 else classes) if kept and has_regions(shape, numbers) else 0
    slopes = maps * math.prod(averages_of(shape))
    return [pixels, *[statistics] * 3, edges, of_more, edges, of_more, with_decay, with_decay, slopes]


def new_state(inputs: EdgeLossInputs, sizes: Sequence[int]) -> State:
    """Return a state of new tensors with so many elements, but for the label."""
    state = State(*(inputs.logits.new_empty(size, dtype=result_dtype(inputs.logits)) for size in sizes))
    short = {name: getattr(state, name).to(torch.int16) for name in ("top", "first")}
    return state._replace(label=inputs.logits.new_empty(inputs.target.shape, dtype=torch.int16), **short)


def fake(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return tensors as large as those of ``edge_loss``."""
    inputs = EdgeLossInputs(*args)
    numbers, logits = Numbers.of(inputs.integers, inputs.reals), inputs.logits
    counts = numbers.tables * max(2, logits.shape[1]) if numbers.count_edges else 0
    images = inputs.target.shape[0] // numbers.tables if numbers.regions else 0
    sums, *regions = (logits.new_empty(length, dtype=torch.float64) for length in (len(SumRow), images, images))
    return sums, logits.new_empty(counts, dtype=torch.int64), *regions, *new_state(inputs, state_sizes(inputs))


def _edge_loss(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    from edgeloss.triton import call

    return call.forward(*args)


def _edge_loss_backward(*args: Any) -> Tensor:  # noqa: ANN401
    from edgeloss.triton import call

    return call.backward(*args)


NAMESPACE = "edgeloss_triton"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_WEIGHTS = "Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight"
_STATE = ", ".join(f"Tensor {name}" for name in State._fields)
_LIBRARY.define(
    f"edge_loss(Tensor logits, Tensor target, {_WEIGHTS}, Tensor? distance, int[] integers, float[] reals) -> (Tensor"
    f" sums, Tensor edge_counts, Tensor region, Tensor region_weight, {_STATE})"
)
_LIBRARY.define(
    f"edge_loss_backward(Tensor of_terms, Tensor? of_region, Tensor logits, {_WEIGHTS}, {_STATE}, int[]"
    " integers, float[] reals) -> Tensor"
)
for _device in ("CUDA", "CPU"):  # on CPUs there is the interpreter
    _LIBRARY.impl("edge_loss", _edge_loss, _device)
    _LIBRARY.impl("edge_loss_backward", _edge_loss_backward, _device)
operators = getattr(torch.ops, NAMESPACE)
