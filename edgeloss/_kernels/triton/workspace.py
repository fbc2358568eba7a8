"""The tensors that the kernels of Triton leave to each other, and to backward. It does not import Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss._checks.inputs import result_dtype
from edgeloss._kernels.arguments import Arguments
from edgeloss._reference.region import averages_of, has_regions


class Workspace(NamedTuple):
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


STATE = Workspace._fields[: Workspace._fields.index("same")]  # what forward leaves to backward


def maps_of_image(classes: int) -> int:
    """Return M, the number of maps of averages of an image: of two classes, the second alone has one."""
    return classes if classes > 2 else 1


def new_workspace(arguments: Arguments) -> Workspace:
    """Return the workspace of a call."""
    logits, shape, given = arguments.logits, arguments.target.shape, arguments.distance
    classes, real = max(2, logits.shape[1]), result_dtype(logits)

    def new(exists: bool, dtype: torch.dtype = real, size: Sequence[int] = shape) -> Any:  # noqa: ANN401
        return logits.new_empty(size, dtype=dtype) if exists else None

    edges, keeps, regions = arguments.edges, arguments.keeps_state, arguments.regions and has_regions(shape)
    decays, several, of_maps = edges and arguments.decay > 0, edges and classes > 2, (shape[0], maps_of_image(classes))
    return Workspace(
        label=new(True, torch.int16),
        m=new(keeps or regions or edges),
        r=new(keeps or regions or edges),
        top=new(keeps or regions or edges, torch.int16),
        toward=new(edges),
        first=new(several, torch.int16),
        against=new(edges),
        across=new(edges),
        least_across=new(decays),
        field=new(decays) if given is None else given,
        region_slopes=new(keeps and regions, size=(*of_maps, *averages_of(shape))),
        map_class=new(regions, torch.int16, of_maps),
        class_map=new(regions, torch.int32, (shape[0], classes)),
        same=new(edges),
        least_same=new(decays),
    )


def state_of(workspace: Workspace, arguments: Arguments) -> list[Tensor]:
    """Return what backward reads of the workspace of a call, empty tensors for what it does not read."""
    if arguments.logits.shape[1] <= 2:  # ``against`` is of the only other class
        workspace = workspace._replace(across=None, least_across=None, field=None)
    if arguments.distance is not None:
        workspace = workspace._replace(field=None)
    read = workspace[: len(STATE)] if arguments.keeps_state else workspace[:1] + (None,) * (len(STATE) - 1)
    return [arguments.logits.new_empty(0) if values is None else values for values in read]


def workspace_of(state: Sequence[Tensor], distance: Tensor | None) -> Workspace:
    """Return the workspace of a state of labels that are not empty."""
    workspace = Workspace(*(values if values.numel() else None for values in state))
    return workspace if distance is None else workspace._replace(field=distance)
