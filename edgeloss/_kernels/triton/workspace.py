"""The tensors that the kernels of Triton leave to each other, and to backward. It does not import Triton."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss._checks.inputs import result_dtype
from edgeloss._kernels.arguments import Arguments
from edgeloss._reference.region import averages_of, has_regions


class Workspace(NamedTuple):
    """What kernels leave to others, [B, *S] but for the slopes and those after them; None where nothing reads them."""

    label: Any  # int16, the class of a pixel, -1 where it does not count
    m: Any = None  # the largest logit
    r: Any = None  # Σ e^(x - m) over the other classes
    top: Any = None  # int16, the likeliest class
    same_side: Any = None  # A of the edge terms
    other_class: Any = None  # int16, of more than two classes, one of those with B > 0, -1 where there is none
    other_side: Any = None  # B of the other class of two, or of ``other_class``, and then negative where there are more
    other_scale: Any = None  # v / D' of edge pixels, 0 of others where their tile has some
    other_least: Any = None  # with decay, the distance that ``other_scale`` counts from
    field: Any = None  # with decay, distances
    region_slopes: Any = None  # the derivative of R by the shares under each average, [B, M, *A]
    average_class: Any = None  # the class of each map of averages, -1 after the last one, [B, M] int16
    average_start: Any = None  # where the averages of a class start in an image, -1 for none, [B, C] int32
    same_scale: Any = None  # v / D of edge pixels, 0 elsewhere
    same_least: Any = None  # with decay, the distance that ``same_scale`` counts from


class Part(NamedTuple):
    """A tensor of the workspace of a call."""

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


def parts_of(arguments: Arguments) -> dict[str, Part]:
    """Return the tensors of a call but for the labels, by the names of :class:`Workspace`; the target may be labels."""
    shape, classes = tuple(arguments.target.shape), max(2, arguments.logits.shape[1])
    real, edges, keeps = result_dtype(arguments.logits), arguments.edges, arguments.keeps_state
    regions, decays, several = arguments.regions and has_regions(shape), edges and arguments.decay > 0, classes > 2
    sees, of_maps = keeps or regions or edges, (shape[0], maps_of_image(classes))
    parts = {  # whether there is one, and which
        "m": (sees, Part(shape, real, keeps)),
        "r": (sees, Part(shape, real, keeps)),
        "top": (sees, Part(shape, torch.int16, keeps)),
        "same_side": (edges, Part(shape, real, keeps)),
        "other_class": (edges and several, Part(shape, torch.int16, keeps)),
        "other_side": (edges, Part(shape, real, keeps)),
        "other_scale": (edges, Part(shape, real, keeps and several)),
        "other_least": (decays, Part(shape, real, keeps and several)),
        "field": (decays and arguments.distance is None, Part(shape, real, keeps and several)),
        "region_slopes": (keeps and regions, Part((*of_maps, *averages_of(shape)), real, keeps)),
        "average_class": (regions, Part(of_maps, torch.int16, keeps)),
        "average_start": (regions, Part((shape[0], classes), torch.int32, keeps)),
        "same_scale": (edges, Part(shape, real, is_kept=False)),
        "same_least": (decays, Part(shape, real, is_kept=False)),
    }
    return {name: part for name, (exists, part) in parts.items() if exists}


def new_state(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """Return new labels, and memory for what backward reads."""
    size = sum(part.bytes for part in parts_of(arguments).values() if part.is_kept)
    new = arguments.logits.new_empty
    return new(arguments.target.shape, dtype=torch.int16), new(size, dtype=torch.uint8)


def read_state(memory: Tensor, parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """Return the tensors that are in a memory."""
    found, start = {}, 0
    for name, part in parts.items():
        if part.is_kept:
            end = start + math.prod(part.size) * part.dtype.itemsize
            found[name] = memory[start:end].view(part.dtype).view(part.size)
            start += part.bytes
    return found
