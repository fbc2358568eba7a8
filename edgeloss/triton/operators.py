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

FEW_CLASSES = 8  # of so few, the statistics of the softmax take less time to form again than to read


class Maps(NamedTuple):
    """What kernels leave to others, maps [B · P] but for the label and the slopes; empty where nothing reads them."""

    label: Any  # [B, *S] int16, the class of a pixel, -1 where it does not count
    m: Any  # the largest logit
    r: Any  # Σ e^(x - m) over the other classes
    top: Any  # the likeliest class, int16
    toward: Any  # A of the edge terms
    first: Any  # of more than two classes, one of those with B > 0, -1 where there is none, int16
    against: Any  # B of the other class of two, or of the first one, and then negative where there are more
    same: Any  # u / D of edge pixels, 0 elsewhere
    across: Any  # u / D' of them
    least_same: Any  # with decay, the distance that ``same`` counts from
    least_across: Any  # that of ``across``
    field: Any  # with decay, distances
    slopes: Any  # the derivative of R by the shares under each average, [B, M, *A]

    def present(self) -> Maps:
        """Return the maps with None for empty ones."""
        return Maps(*(values if len(values) else None for values in self))


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


def map_sizes(inputs: EdgeLossInputs, *, saved: bool) -> Maps:
    """Return the number of elements of each map that forward makes, or of those that backward reads."""
    numbers, shape = Numbers.of(inputs.integers, inputs.reals), inputs.target.shape
    classes, pixels = max(2, inputs.logits.shape[1]), inputs.target.numel()
    regions, kept = has_regions(shape, numbers), pixels if numbers.keeps_state else 0
    forms_again = inputs.logits.shape[2:] == shape[1:] and classes <= FEW_CLASSES
    statistics = pixels if regions and not saved else 0 if forms_again else kept
    edges = (kept if saved else pixels) if numbers.edges else 0
    across, used = 0 if saved and classes == 2 else edges, 0 if saved else edges
    decay = across if numbers.decay else 0
    return Maps(
        label=pixels,
        m=statistics,
        r=statistics,
        top=statistics,
        toward=edges,
        first=edges if classes > 2 else 0,
        against=edges,
        same=used,
        across=across,
        least_same=used if decay else 0,
        least_across=decay,
        field=decay if inputs.distance is None else 0,
        slopes=shape[0] * (1 if classes == 2 else classes) * math.prod(averages_of(shape)) if kept and regions else 0,
    )


def new_maps(inputs: EdgeLossInputs, sizes: Maps) -> Maps:
    """Return new maps of so many elements."""
    short, real = ("label", "top", "first"), result_dtype(inputs.logits)
    dtypes = (torch.int16 if name in short else real for name in Maps._fields)
    maps = Maps(*(inputs.logits.new_empty(n, dtype=dtype) for n, dtype in zip(sizes, dtypes, strict=True)))
    return maps._replace(label=maps.label.view(inputs.target.shape))


def new_outputs(inputs: EdgeLossInputs) -> tuple[Tensor, ...]:
    """Return tensors of 0 for the sums, the counts and the regions."""
    numbers, logits = Numbers.of(inputs.integers, inputs.reals), inputs.logits
    counts = numbers.tables * max(2, logits.shape[1]) if numbers.count_edges else 0
    images = inputs.target.shape[0] // numbers.tables if numbers.regions else 0
    sums, *regions = (logits.new_zeros(length, dtype=torch.float64) for length in (len(SumRow), images, images))
    return sums, logits.new_zeros(counts, dtype=torch.int64), *regions


def fake(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return tensors as large as those of ``edge_loss``."""
    inputs = EdgeLossInputs(*args)
    return *new_outputs(inputs), *new_maps(inputs, map_sizes(inputs, saved=True))


def _kernels(name: str, *args: Any) -> Any:  # noqa: ANN401
    return getattr(importlib.import_module("edgeloss.triton.call"), name)(*args)


NAMESPACE = "edgeloss_triton"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_WEIGHTS = "Tensor? weight, Tensor? pixel_weight, Tensor? edge_class_weight"
_MAPS = ", ".join(f"Tensor {name}" for name in Maps._fields)
_LIBRARY.define(
    f"edge_loss(Tensor logits, Tensor target, {_WEIGHTS}, Tensor? distance, int[] integers, float[] reals) -> (Tensor"
    f" sums, Tensor edge_counts, Tensor region, Tensor region_weight, {_MAPS})"
)
_LIBRARY.define(
    f"edge_loss_backward(Tensor of_terms, Tensor? of_region, Tensor logits, {_WEIGHTS}, {_MAPS}, int[]"
    " integers, float[] reals) -> Tensor"
)
for _device in ("CUDA", "CPU"):  # on CPUs there is the interpreter
    _LIBRARY.impl("edge_loss", partial(_kernels, "forward"), _device)
    _LIBRARY.impl("edge_loss_backward", partial(_kernels, "backward"), _device)
operators = getattr(torch.ops, NAMESPACE)
