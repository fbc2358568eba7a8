"""Arguments of a call → its operators: their schema, shapes and state. Triton is imported by their first call."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss.arguments import EdgeLossInputs, Numbers, is_evenly_spaced
from edgeloss.inputs import result_dtype
from edgeloss.reduction import SumRow
from edgeloss.region import POOL, SIDE

_ALIGNED = 16  # elements, from a map to the next: Triton compiles other kernels for addresses that are less aligned
_SHORT = ("top", "first")  # the maps of int16


class Maps(NamedTuple):
    """What kernels leave to others, maps [B · P] but for the label and the slopes; None where nothing reads them."""

    label: Any  # [B, *S] int16, the class of a pixel, -1 where it does not count
    m: Any = None  # the largest logit
    r: Any = None  # Σ e^(x - m) over the other classes
    top: Any = None  # the likeliest class
    toward: Any = None  # A of the edge terms
    first: Any = None  # of more than two classes, one of those with B > 0, -1 where there is none
    against: Any = None  # B of the other class of two, or of the first one, and then negative where there are more
    same: Any = None  # u / D of edge pixels, 0 elsewhere
    across: Any = None  # u / D' of edge pixels, not written elsewhere
    least_same: Any = None  # with decay, the distance that ``same`` counts from
    least_across: Any = None  # that of ``across``
    field: Any = None  # with decay, distances
    slopes: Any = None  # the derivative of R by the shares under each average, [B, M, *A]
    map_class: Any = None  # the class of each map of averages, -1 after the last one, [B, M] int16
    class_map: Any = None  # the map of each class, -1 where it has none, [B, C] int16


class State(NamedTuple):
    """What backward reads of the maps: a row for each of those of a dtype, and two in their own shapes."""

    label: Tensor
    short_maps: Tensor
    real_maps: Tensor
    slopes: Tensor  # empty where nothing reads it, as are those after it
    map_class: Tensor
    class_map: Tensor


def count_maps(inputs: EdgeLossInputs) -> int:
    """Return M, the number of maps of averages of an image: of two classes, the second alone has one."""
    classes = inputs.logits.shape[1]
    return classes if classes > 2 else 1


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


def map_names(inputs: EdgeLossInputs, numbers: Numbers) -> tuple[list[str], list[str]]:
    """Return which maps forward leaves to backward, and which others it makes, but for the label and the slopes."""
    shape, classes = inputs.target.shape, max(2, inputs.logits.shape[1])
    saved: list[str] = []
    others: list[str] = []
    kept = saved if numbers.keeps_state else others
    if has_regions(shape, numbers) or numbers.keeps_state:
        kept.extend(("m", "r", "top"))
    if numbers.edges:
        kept.extend(("toward", "against", *(("first",) if classes > 2 else ())))
        others.append("same")
        further = kept if classes > 2 else others
        further.append("across")
        if numbers.decay:
            others.append("least_same")
            further.extend(("least_across", *(("field",) if inputs.distance is None else ())))
    return saved, others


def new_maps(inputs: EdgeLossInputs, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return a row for each map of int16, and for each of the others."""
    pixels, short = -(-inputs.target.numel() // _ALIGNED) * _ALIGNED, sum(name in _SHORT for name in names)
    short_maps = inputs.logits.new_empty(short, pixels, dtype=torch.int16)
    return short_maps, inputs.logits.new_empty(len(names) - short, pixels, dtype=result_dtype(inputs.logits))


def maps_in(names: Sequence[str], short_maps: Tensor, real_maps: Tensor) -> dict[str, Tensor]:
    """Return the maps by their names."""
    short, real = iter(short_maps.unbind()), iter(real_maps.unbind())
    return {name: next(short if name in _SHORT else real) for name in names}


def new_state(inputs: EdgeLossInputs, numbers: Numbers, names: Sequence[str]) -> State:
    """Return the state of a call that leaves maps of these names."""
    shape, new = inputs.target.shape, partial(inputs.logits.new_empty, dtype=torch.int16)
    images, maps = shape[0] if numbers.keeps_state and has_regions(shape, numbers) else 0, count_maps(inputs)
    slopes = inputs.logits.new_empty(images, maps, *averages_of(shape), dtype=result_dtype(inputs.logits))
    return State(
        new(shape), *new_maps(inputs, names), slopes, new(images, maps), new(images, max(2, inputs.logits.shape[1]))
    )


def new_outputs(inputs: EdgeLossInputs, numbers: Numbers) -> tuple[Tensor, ...]:
    """Return tensors for the sums, the counts and the regions, and an empty one: these kernels leave no maps."""
    new = inputs.logits.new_empty
    counts = numbers.tables * max(2, inputs.logits.shape[1]) if numbers.count_edges else 0
    images = inputs.target.shape[0] // numbers.tables if numbers.regions else 0
    sums, *regions = (new(length, dtype=torch.float64) for length in (len(SumRow), images, images))
    return sums, new(counts, dtype=torch.int64), *regions, new(0, dtype=result_dtype(inputs.logits))


def fake(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return tensors as large as those of ``edge_loss``."""
    inputs = EdgeLossInputs(*args)
    numbers = Numbers.of(inputs.integers, inputs.reals)
    return *new_outputs(inputs, numbers), *new_state(inputs, numbers, map_names(inputs, numbers)[0])


def _kernels(name: str, *args: Any) -> Any:  # noqa: ANN401
    return getattr(importlib.import_module("edgeloss.triton.call"), name)(*args)


NAMESPACE = "edgeloss_triton"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_WEIGHTS = "Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight"
_STATE = ", ".join(f"Tensor {name}" for name in State._fields)
_LIBRARY.define(
    f"edge_loss(Tensor logits, Tensor target, {_WEIGHTS}, Tensor? distance, int[] integers, float[] reals) -> (Tensor"
    f" sums, Tensor edge_counts, Tensor region, Tensor region_weight, Tensor maps, {_STATE})"
)
_LIBRARY.define(
    f"edge_loss_backward(Tensor of_terms, Tensor? of_region, Tensor logits, {_WEIGHTS}, Tensor? distance,"
    f" {_STATE}, int[] integers, float[] reals) -> Tensor"
)
for _device in ("CUDA", "CPU"):  # on CPUs there is the interpreter
    _LIBRARY.impl("edge_loss", partial(_kernels, "forward"), _device)
    _LIBRARY.impl("edge_loss_backward", partial(_kernels, "backward"), _device)
operators = getattr(torch.ops, NAMESPACE)
