"""Logits of lower resolution → where each pixel's logits come from; the gradient of pixels → that of these logits.

As torch does it with ``align_corners=False``. Kernels interpolate wherever they read logits, and must get the same bits
each time, since the largest one is recognized by being equal to it: they are compiled without fused multiply-add.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeloss.triton.loss import Logits
from edgeloss.triton.tiles import Size, launch, place_of, tile, tile_of

PART = 2**28  # bytes of gradients at the resolution of the labels at a time


class Taps(NamedTuple):
    """Where logits come from along an axis: two places, of which the second is not read where it has weight 0."""

    first: Tensor  # of the places of a pixel
    weight: Tensor  # of the second
    begin: Tensor  # the first pixel that reads a place
    back: Tensor  # the weight of a place in that pixel and those after it, ``most`` in all
    most: int
    step: int  # from a place to the next in memory


@lru_cache(maxsize=64)
def _taps(low: int, high: int, dtype: torch.dtype, device: torch.device) -> Taps:
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
    made = [values.to(device) for values in (first.int(), weight, begin.int(), back)]
    return Taps(made[0], made[1], made[2], made[3], most, 0)


def taps(values: Tensor, low: Size, high: Size, dtype: torch.dtype) -> tuple[Taps, ...]:
    """Return where logits [B, C, *S'] come from at the resolution of the labels, along each of three axes."""
    steps = [*(0,) * (5 - values.dim()), *values.stride()[2:]]
    axes = zip(low, high, steps, strict=True)
    return tuple(_taps(few, many, dtype, values.device)._replace(step=step) for few, many, step in axes)


@triton.jit
def pixel_of_place(axis, i, n, mask):
    """Return the n-th pixel that may be mixed from place i of an axis, and with which weight."""
    at = tl.load(axis.begin + i, mask=mask, other=0) + n
    return at, tl.load(axis.back + i * axis.most + n, mask=mask, other=0.0)


@triton.jit
def adjoint_kernel(of_pixels, g, low, high, cells, TILE: tl.constexpr):
    """Write the gradient of logits from that of what is interpolated from them, [maps, P]."""
    of_map, p, inside = tile(cells, TILE)
    depth, height, width = g.taps
    z, y, x = place_of(p, low)
    of_pixels += of_map * high.depth * high.height * high.width
    sums = tl.zeros(p.shape, g.real)
    for n in range(depth.most * height.most):
        slice_, of_slice = pixel_of_place(depth, z, n // height.most, inside)
        row, of_row = pixel_of_place(height, y, n % height.most, inside)
        line, column = of_pixels + (slice_ * high.height + row) * high.width, tl.load(width.begin + x, mask=inside)
        for k in range(width.most):
            weight = of_slice * of_row * tl.load(width.back + x * width.most + k, mask=inside, other=0.0)
            sums += weight * tl.load(line + column + k, mask=weight > 0, other=0.0)
    image, channel = of_map // (g.classes - g.one), of_map % (g.classes - g.one)
    to = g.data + image * g.image + channel * g.channel + p.to(tl.int64) * g.pixel
    tl.store(to, sums.to(g.data.dtype.element_ty), mask=inside)


def add_up(of_pixels: Tensor, g: Logits, low: Size, high: Size) -> None:
    """Write the gradient of logits from that of what is interpolated from them, [B, C, P]."""
    cells, maps = low.depth * low.height * low.width, of_pixels.shape[0] * of_pixels.shape[1]
    launch(adjoint_kernel, maps, cells, tile_of(cells, 128), of_pixels, g, low, high, cells)
