"""Arguments of a call → its operators: their schema, shapes and state. Triton is imported by their first call."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss._checks.inputs import result_dtype
from edgeloss._kernels.arguments import EdgeLossInputs, Numbers, new_outputs
from edgeloss._reference.region import averages_of, has_regions


class Maps(NamedTuple):
    """What kernels leave to others, [B, *S] but for the slopes and those after them; None where nothing reads them."""

    label: Any  # int16, the class of a pixel, -1 where it does not count
    m: Any  # the largest logit
    r: Any  # Σ e^(x - m) over the other classes
    top: Any  # int16, the likeliest class
    toward: Any  # A of the edge terms
    first: Any  # int16, of more than two classes, one of those with B > 0, -1 where there is none
    against: Any  # B of the other class of two, or of the first one, and then negative where there are more
    across: Any  # v / D' of edge pixels, 0 of others where their tile has some
    least_across: Any  # with decay, the distance that ``across`` counts from
    field: Any  # with decay, distances
    region_slopes: Any  # the derivative of R by the shares under each average, [B, M, *A]
    map_class: Any  # the class of each map of averages, -1 after the last one, [B, M] int16
    class_map: Any  # where the map of each class starts in those of an image, -1 where it has none, [B, C] int32
    same: Any = None  # v / D of edge pixels, 0 elsewhere; this and the next one are not left to backward
    least_same: Any = None  # with decay, the distance that ``same`` counts from


STATE = Maps._fields[: Maps._fields.index("same")]  # what forward leaves to backward


def maps_of_image(classes: int) -> int:
    """Return M, the number of maps of averages of an image: of two classes, the second alone has one."""
    return classes if classes > 2 else 1


def new_maps(inputs: EdgeLossInputs, numbers: Numbers) -> Maps:
    """Return the maps of a call."""
    shape, classes, real = inputs.target.shape, max(2, inputs.logits.shape[1]), result_dtype(inputs.logits)

    def new(exists: bool, dtype: torch.dtype = real, size: Sequence[int] = shape) -> Any:  # noqa: ANN401
        return inputs.logits.new_empty(size, dtype=dtype) if exists else None

    edges, keeps, regions = bool(numbers.edges), bool(numbers.keeps_state), bool(numbers.regions) and has_regions(shape)
    decays, several, of_maps = edges and numbers.decay > 0, edges and classes > 2, (shape[0], maps_of_image(classes))
    return Maps(
        label=new(True, torch.int16),
        m=new(keeps or regions or edges),
        r=new(keeps or regions or edges),
        top=new(keeps or regions or edges, torch.int16),
        toward=new(edges),
        first=new(several, torch.int16),
        against=new(edges),
        across=new(edges),
        least_across=new(decays),
        field=new(decays) if inputs.distance is None else inputs.distance,
        region_slopes=new(keeps and regions, size=(*of_maps, *averages_of(shape))),
        map_class=new(regions, torch.int16, of_maps),
        class_map=new(regions, torch.int32, (shape[0], classes)),
        same=new(edges),
        least_same=new(decays),
    )


def state_of(maps: Maps, inputs: EdgeLossInputs, numbers: Numbers) -> list[Tensor]:
    """Return what backward reads of the maps of a call, empty tensors for those that it does not read."""
    if inputs.logits.shape[1] <= 2:  # ``against`` is of the only other class
        maps = maps._replace(across=None, least_across=None, field=None)
    if inputs.distance is not None:
        maps = maps._replace(field=None)
    read = maps[: len(STATE)] if numbers.keeps_state else maps[:1] + (None,) * (len(STATE) - 1)
    return [inputs.logits.new_empty(0) if values is None else values for values in read]


def maps_of(state: Sequence[Tensor], distance: Tensor | None) -> Maps:
    """Return the maps of a state of labels that are not empty."""
    maps = Maps(*(values if values.numel() else None for values in state))
    return maps if distance is None else maps._replace(field=distance)


def fake(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return tensors as large as those of ``edge_loss``."""
    inputs = EdgeLossInputs(*args)
    numbers = Numbers.of(inputs.integers, inputs.reals)
    return *new_outputs(inputs, numbers), *state_of(new_maps(inputs, numbers), inputs, numbers)


def _kernels(module: str, name: str, *args: Any) -> Any:  # noqa: ANN401
    return getattr(importlib.import_module(f"edgeloss._kernels.triton.{module}"), name)(*args)


NAMESPACE = "edgeloss_triton"
# That of csrc/library.cpp.
REDUCE_SCHEMA = (
    "(Tensor sums, Tensor edge_sums, Tensor region, Tensor region_weight, Tensor? edge_class_weight, Tensor?"
    " normalizer, int tables, bool balanced, bool mean, bool wide, float ce_weight, float edge_weight, float"
    " other_side_weight, float same_side_weight, float region_weight_of_loss, float edge_focus) -> (Tensor loss, Tensor"
    " slopes, Tensor values)"
)
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_WEIGHTS = "Tensor? weight, Tensor? pixel_weight, Tensor? distance"
_STATE = ", ".join(f"Tensor {name}" for name in STATE)
_LIBRARY.define(
    f"edge_loss(Tensor logits, Tensor target, {_WEIGHTS}, int[] integers, float[] reals) -> (Tensor sums, Tensor"
    f" edge_sums, Tensor region, Tensor region_weight, Tensor maps, {_STATE})"
)
_LIBRARY.define(
    f"edge_loss_backward(Tensor? grad, Tensor slopes, Tensor? edge_pixel_weight, Tensor logits, {_WEIGHTS}, {_STATE},"
    " int[] integers, float[] reals) -> Tensor"
)
_LIBRARY.define(f"reduce{REDUCE_SCHEMA}")
for _device in ("CUDA", "CPU"):  # on CPUs there is the interpreter
    _LIBRARY.impl("edge_loss", partial(_kernels, "call", "forward"), _device)
    _LIBRARY.impl("edge_loss_backward", partial(_kernels, "call", "backward"), _device)
    _LIBRARY.impl("reduce", partial(_kernels, "sums", "reduce"), _device)
operators = getattr(torch.ops, NAMESPACE)
