"""Arguments of a call → its operators: their schema, shapes and state. Triton is imported by their first call."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from edgeloss.arguments import EdgeLossInputs, Numbers, new_outputs
from edgeloss.inputs import result_dtype
from edgeloss.region import averages_of, has_regions


class Maps(NamedTuple):
    """What kernels leave to others, [B, *S] but for the slopes and those after them; None where nothing reads them."""

    label: Any  # int16, the class of a pixel, -1 where it does not count
    m: Any = None  # the largest logit
    r: Any = None  # Σ e^(x - m) over the other classes
    top: Any = None  # int16, the likeliest class
    toward: Any = None  # A of the edge terms
    first: Any = None  # int16, of more than two classes, one of those with B > 0, -1 where there is none
    against: Any = None  # B of the other class of two, or of the first one, and then negative where there are more
    across: Any = None  # v / D' of edge pixels, 0 of others where their tile has some
    least_across: Any = None  # with decay, the distance that ``across`` counts from
    field: Any = None  # with decay, distances
    region_slopes: Any = None  # the derivative of R by the shares under each average, [B, M, *A]
    map_class: Any = None  # the class of each map of averages, -1 after the last one, [B, M] int16
    class_map: Any = None  # where the map of each class starts in those of an image, -1 where it has none, [B, C] int32
    same: Any = None  # v / D of edge pixels, 0 elsewhere
    least_same: Any = None  # with decay, the distance that ``same`` counts from


class Part(NamedTuple):
    """A map of a call."""

    size: tuple[int, ...]
    dtype: torch.dtype
    is_kept: bool  # in the memory that forward leaves to backward

    @property
    def bytes(self) -> int:
        """Return how many bytes it has, up to the next part."""
        return rounded(math.prod(self.size) * self.dtype.itemsize)


def rounded(count: int) -> int:
    """Return a number of bytes after which another tensor may start."""
    return -(-count // 128) * 128


def maps_of_image(classes: int) -> int:
    """Return M, the number of maps of averages of an image: of two classes, the second alone has one."""
    return classes if classes > 2 else 1


def parts_of(inputs: EdgeLossInputs, numbers: Numbers) -> dict[str, Part]:
    """Return the maps of a call but for the labels, by the names of :class:`Maps`; the target may be the labels."""
    shape, classes, real = tuple(inputs.target.shape), max(2, inputs.logits.shape[1]), result_dtype(inputs.logits)
    edges, keeps, regions = bool(numbers.edges), bool(numbers.keeps_state), bool(numbers.regions) and has_regions(shape)
    sees, decays, several = keeps or regions or edges, edges and numbers.decay > 0, classes > 2
    of_maps = shape[0], maps_of_image(classes)
    parts = {  # whether there is one, and which
        "m": (sees, Part(shape, real, keeps)),
        "r": (sees, Part(shape, real, keeps)),
        "top": (sees, Part(shape, torch.int16, keeps)),
        "toward": (edges, Part(shape, real, keeps)),
        "first": (edges and several, Part(shape, torch.int16, keeps)),
        "against": (edges, Part(shape, real, keeps)),
        "across": (edges, Part(shape, real, keeps and several)),
        "least_across": (decays, Part(shape, real, keeps and several)),
        "field": (decays and inputs.distance is None, Part(shape, real, keeps and several)),
        "region_slopes": (keeps and regions, Part((*of_maps, *averages_of(shape)), real, keeps)),
        "map_class": (regions, Part(of_maps, torch.int16, keeps)),
        "class_map": (regions, Part((shape[0], classes), torch.int32, keeps)),
        "same": (edges, Part(shape, real, is_kept=False)),
        "least_same": (decays, Part(shape, real, is_kept=False)),
    }
    return {name: part for name, (exists, part) in parts.items() if exists}


def new_state(inputs: EdgeLossInputs, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """Return new labels, and memory for the maps that backward reads."""
    size = sum(part.bytes for part in parts_of(inputs, numbers).values() if part.is_kept)
    new = inputs.logits.new_empty
    return new(inputs.target.shape, dtype=torch.int16), new(size, dtype=torch.uint8)


def maps_in(memory: Tensor, parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """Return the maps that are in a memory."""
    maps, start = {}, 0
    for name, part in parts.items():
        if part.is_kept:
            end = start + math.prod(part.size) * part.dtype.itemsize
            maps[name] = memory[start:end].view(part.dtype).view(part.size)
            start += part.bytes
    return maps


def fake(*args: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Return tensors as large as those of ``edge_loss``."""
    inputs = EdgeLossInputs(*args)
    numbers = Numbers.of(inputs.integers, inputs.reals)
    return *new_outputs(inputs, numbers), *new_state(inputs, numbers)


@cache
def _function(module: str, name: str) -> Callable[..., Any]:
    return cast("Callable[..., Any]", getattr(importlib.import_module(f"edgeloss.triton.{module}"), name))


def _kernels(module: str, name: str, *args: Any) -> Any:  # noqa: ANN401
    return _function(module, name)(*args)


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
_STATE = "Tensor label, Tensor memory"
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
