"""What the kernels share: tiles of pixels, windows around them, and functions that keep all digits."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton reads it, where kernels are decorated
IGNORED = tl.constexpr(-1)  # the label of a pixel that does not count
FAR = tl.constexpr(1e38)  # a distance beyond all others; no difference of two is nan


class Size(NamedTuple):
    """Of an image; its depth is 1 unless it is a volume."""

    depth: int
    height: int
    width: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> Size:
        """Return the size of two or three axes."""
        return cls(*(1,) * (3 - len(shape)), *shape)


class Window(NamedTuple):
    """The displacements up to a radius along each axis, the center included."""

    length: int
    depth: int
    height: int
    width: int

    @classmethod
    def of(cls, radius: Sequence[int]) -> Window:
        """Return the window of a radius along three axes."""
        return cls(math.prod(2 * r + 1 for r in radius), *radius)


class Weights(NamedTuple):
    """Of pixels, [B, P], and of classes, [tables, C]; each may be None for ones."""

    pixel: Tensor | None
    of_class: Tensor | None


class Grid(NamedTuple):
    """The pixels of the labels: images, and what a kernel knows of all of them when it is compiled.

    Attributes:
        size: of an image.
        window: of the neighborhood.
        pixels: of an image.
        tables: image b has the class weights of table b % tables.
        classes: C, a constant.
        real: the type that kernels compute in, a constant.
        decay: 0 for none, a constant.
    """

    size: Size
    window: Window
    pixels: int
    tables: int
    classes: Any
    real: Any
    decay: Any


def real_type(values: Tensor) -> Any:  # noqa: ANN401
    """Return Triton's name of the type that kernels compute in."""
    return tl.constexpr(tl.float64 if values.dtype == torch.float64 else tl.float32)


def tile_of(pixels: int, on_device: int, most: int = 2**14) -> int:
    """Return how many pixels a program has; the interpreter, which takes time by operation, gets more at once."""
    return max(16, min(triton.next_power_of_2(pixels), most)) if INTERPRETED else on_device


def launch(kernel: Any, images: int, count: int, block: int, *args: Any, warps: int = 4, **options: Any) -> None:  # noqa: ANN401
    """Run a kernel over ``count`` places of each image, a program for ``block`` of them."""
    options.setdefault("enable_fp_fusion", True)
    kernel[(images * triton.cdiv(count, block),)](*args, TILE=block, num_warps=warps, **options)


@triton.jit
def tile(count, TILE: tl.constexpr):
    """Return the image of a program, the places of its tile, and which of them are among its ``count``."""
    blocks = tl.cdiv(count, TILE)
    p = tl.program_id(0) % blocks * TILE + tl.arange(0, TILE)
    return (tl.program_id(0) // blocks).to(tl.int64), p, p < count


@triton.jit
def place_of(p, size):
    """Return where pixels are along each axis."""
    return p // (size.height * size.width), p // size.width % size.height, p % size.width


@triton.jit
def displacement(n, window):
    """Return displacement n of a window along each axis."""
    rows, columns = 2 * window.height + 1, 2 * window.width + 1
    return n // (rows * columns) - window.depth, n // columns % rows - window.height, n % columns - window.width


@triton.jit
def displaced(p, mask, n, size, window):
    """Return the places at displacement n from others, which must be inside, and whether they are inside too."""
    z, y, x = place_of(p, size)
    dz, dy, dx = displacement(n, window)
    inside = mask & (z + dz >= 0) & (z + dz < size.depth) & (y + dy >= 0) & (y + dy < size.height)
    return p + (dz * size.height + dy) * size.width + dx, inside & (x + dx >= 0) & (x + dx < size.width)


@triton.jit
def neighbor(label, p, mask, n, grid):
    """Return neighbor n of pixels of an image and its label, ``IGNORED`` where there is none."""
    q, there = displaced(p, mask, n, grid.size, grid.window)
    return q, tl.load(label + q, mask=there & (q != p), other=IGNORED).to(tl.int32)


@triton.jit
def of_class(table, image, k, mask, grid):
    """Return the weights of classes k in an image."""
    return tl.load(table + image % grid.tables * grid.classes + k, mask=mask, other=0.0)


@triton.jit
def weight_of(weights, image, p, y, mask, grid):
    """Return the products of the weights of pixels and of their classes; 0 outside the mask."""
    weight = tl.where(mask, 1.0, 0.0).to(grid.real)
    if weights.pixel is not None:
        weight *= tl.load(weights.pixel + image * grid.pixels + p, mask=mask, other=0.0)
    if weights.of_class is not None:
        weight *= of_class(weights.of_class, image, y, mask, grid)
    return weight


@triton.jit
def total(values):
    """Return the sum of a tile in float64."""
    return tl.sum(values.to(tl.float64), 0)


@triton.jit
def some(condition):
    """Return whether it holds anywhere in a tile."""
    return tl.max(condition.to(tl.int32), 0) > 0


@triton.jit
def log1p(x):
    """Return log(1 + x) with all digits: 1 + x is rounded, and what that takes away comes back."""
    u = 1.0 + x
    return tl.log(u) + (x - (u - 1.0)) / u
