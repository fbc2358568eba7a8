"""Logits of lower resolution → where each pixel's logits come from; the gradient of pixels → that of these logits.

As torch does it with ``align_corners=False``. Kernels interpolate wherever they read logits, and must get the same bits
each time, since the largest one is recognized by being equal to it: which products are fused with a sum is explicit.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeloss._kernels.triton.tiles import Size, cdiv, constant, power_of_2, tile, tile_of

PART = 2**28  # bytes of gradients at the resolution of the labels at a time


class Taps(NamedTuple):
    """Where logits come from along an axis: two places, of which the second is not read where it has weight 0."""

    first: Tensor  # of the places of a pixel
    weight: Tensor  # of the second
    step: int  # from a place to the next in memory


class Adjoint(NamedTuple):
    """Which pixels a place along an axis gives logits to."""

    begin: Tensor  # the first of them
    weight: Tensor  # [most, low] of the places in that pixel and those after it
    most: Any  # a constant


@lru_cache(maxsize=64)
def _along(low: int, high: int, dtype: torch.dtype, device: torch.device) -> tuple[Taps, Adjoint]:
    place = torch.arange(high, dtype=torch.float64)
    if low != high:  # the product of two numbers of float32 is exact in float64: rounded once, as torch does
        scale = torch.tensor(low, dtype=dtype) / torch.tensor(high, dtype=dtype)
        place = (scale.double() * (place + 0.5) - 0.5).to(dtype).double().clamp(min=0)
    first = place.floor().clamp(max=low - 1)
    weight = torch.where(first == low - 1, 0.0, place - first).to(dtype)
    ends = torch.searchsorted(first, torch.arange(-1.0, low + 1, dtype=torch.float64))
    begin = ends[:-2]  # the first pixel that reads i - 1 and i
    most, i = int((ends[2:] - begin).max()), torch.arange(low)[:, None]
    pixel = begin[:, None] + torch.arange(most)
    at, exists = pixel.clamp(max=high - 1), pixel < high
    back = torch.where(first[at] == i, 1 - weight[at], torch.where(first[at] == i - 1, weight[at], 0.0)) * exists
    first, weight, begin, back = (values.to(device) for values in (first.int(), weight, begin.int(), back))
    return Taps(first, weight, 0), Adjoint(begin, back.T.contiguous(), constant(most))


def taps(values: Tensor, low: Size, high: Size, dtype: torch.dtype) -> tuple[Taps, ...]:
    """Return where logits [B, C, *S'] come from at the resolution of the labels, along each of three axes."""
    steps = [*(0,) * (5 - values.dim()), *values.stride()[2:]]
    axes = zip(low, high, steps, strict=True)
    return tuple(_along(few, many, dtype, values.device)[0]._replace(step=step) for few, many, step in axes)


@triton.jit
def adjoint_kernel(values, g, axis, lines, high, low, inner, PLACES: tl.constexpr, TILE: tl.constexpr):
    """Add up values [maps, lines, high, inner] to places [maps, lines, low, inner] along an axis."""
    block, q, inside = tile(inner, TILE)
    blocks = tl.cdiv(low, PLACES)
    line, i = block // blocks, (block % blocks).to(tl.int32) * PLACES + tl.arange(0, PLACES)[:, None]
    values += line * high * inner + (tl.load(axis.begin + i, mask=i < low, other=0) * inner + q)
    sums = tl.zeros([PLACES, TILE], g.real)
    for k in tl.static_range(axis.most):
        weight = tl.load(axis.weight + k * low + i, mask=i < low, other=0.0)
        sums += weight * tl.load(values, mask=inside & (weight > 0), other=0.0)
        values += inner
    of_map, channels = line // lines, g.classes - g.one
    to = g.data + of_map // channels * g.image + of_map % channels * g.channel
    to += ((line % lines * low + i) * inner + q) * g.pixel
    tl.store(to, sums.to(g.data.dtype.element_ty), mask=inside & (i < low))


def _axes(call: Any) -> list[int]:  # noqa: ANN401
    """Return the axes along which logits are interpolated: values of the last one are apart, on the fewest pixels."""
    return [axis for axis in range(3) if call.low[axis] != call.grid.size[axis]]


def sums_between(call: Any, images: int, channels: int) -> list[Tensor]:  # noqa: ANN401
    """Return tensors for what :func:`add_up` has of so many images after each axis but the last one."""
    size, values = [*call.grid.size], []
    for axis in _axes(call)[:-1]:
        size[axis] = call.low[axis]
        values.append(call.empty(images, channels, math.prod(size)))
    return values


def add_up(call: Any, maps: int, *values: Tensor) -> None:  # noqa: ANN401
    """Write the gradient of logits, the last of some tensors [B, C, P], from that of pixels, the first, by axes."""
    size = [*call.grid.size]
    for axis, (of_pixels, to) in zip(_axes(call), pairwise(values), strict=True):
        high, places, lines, inner = size[axis], call.low[axis], math.prod(size[:axis]), math.prod(size[axis + 1 :])
        size[axis] = places
        _, along = _along(places, high, call.dtype, to.device)
        block = tile_of(places * inner, 128)
        columns = min(block, power_of_2(inner))
        rows = block // columns
        given = of_pixels, call.logits_in(to), along, lines, high, places, inner, constant(rows)
        programs = maps * lines * cdiv(places, rows)
        call.plan.launch(adjoint_kernel, programs, inner, columns, *given, warps=1)
