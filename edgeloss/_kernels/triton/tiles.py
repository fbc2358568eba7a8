"""Numbers of a program → its tile of pixels, [TILE], and their weights; what all kernels share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton reads it, where kernels are decorated
EXACT = tl.constexpr(INTERPRETED)
IGNORED = tl.constexpr(-1)  # the label of a pixel that does not count
FAR = tl.constexpr(1e38)  # a distance beyond all others; no difference of two is nan


@lru_cache(maxsize=1024, typed=True)
def constant(value: Any) -> tl.constexpr:  # noqa: ANN401
    """Return a value that kernels are compiled for, the same object each time: Triton compares others for long."""
    return tl.constexpr(value)


def constants(values: Iterable[float]) -> tuple[Any, ...]:
    """Return numbers that kernels are compiled for; the interpreter takes them as they are."""
    return tuple(values if INTERPRETED else map(constant, values))


class Size(NamedTuple):
    """Three numbers, of axes: the lengths of an image, with a depth of 1 unless it is a volume, or a radius."""

    depth: Any
    height: Any
    width: Any

    @classmethod
    def of(cls, shape: Sequence[int]) -> Size:
        """Return the size of two or three axes."""
        return cls(*(1,) * (3 - len(shape)), *shape)


class Grid(NamedTuple):
    """What kernels know of a call; what is Any is a constant, which they are compiled for."""

    size: Size  # of an image of labels
    radius: Size  # of the neighborhood, constants
    cells: Size  # of 3 pixels per axis that cover an image; the last along an axis may be in no average
    averages: Size  # of a map of averages
    pixels: int  # of an image
    window: Any  # displacements up to the radius, none included
    tables: int  # image b has the class weights of table b % tables
    pixel_weight: Tensor | None  # [B, P], None for ones
    weight: Tensor | None  # of the classes [tables, C], None for ones
    classes: Any  # C ≥ 2
    maps: Any  # of averages, of an image: of two classes, the second alone has one
    real: Any  # the type that kernels compute in
    decay: Any  # 0 for none
    smoothing: Any  # of labels


def tile_of(pixels: int, on_device: int) -> int:
    """Return how many pixels a program has; the interpreter, which takes time by operation, gets more at once."""
    return max(16, min(power_of_2(pixels), 2**14)) if INTERPRETED else on_device


def power_of_2(number: int) -> int:
    """Return the least power of 2 that is not less; Triton's own takes far longer, as does its ``cdiv``."""
    return 1 << (number - 1).bit_length()


def cdiv(number: int, parts: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // parts)


@triton.jit
def tile(count, TILE: tl.constexpr):
    """Return the image of a program, the places of its tile, and which of them are among its ``count``."""
    blocks = tl.cdiv(count, TILE)
    p = tl.program_id(0) % blocks * TILE + tl.arange(0, TILE)
    return (tl.program_id(0) // blocks).to(tl.int64), p, p < count


@triton.jit
def place_of(p, size):
    """Return where pixels are along each axis."""
    row = p // size.width
    z = row * 0
    if size.depth > 1:
        z = row // size.height
    return z, row - z * size.height, p - row * size.width


@triton.jit
def area_of(size):
    """Return how many places a size has."""
    return size.depth * size.height * size.width


@triton.jit
def of_class(table, image, k, mask, grid):
    """Return the weights of classes k in an image, 1 without a table."""
    weight = 1.0
    if table is not None:
        weight = tl.load(table + image % grid.tables * grid.classes + k, mask=mask, other=0.0)
    return weight


@triton.jit
def of_pixel(image, p, mask, grid):
    """Return the weights of pixels; 0 outside the mask."""
    weight = tl.where(mask, 1.0, 0.0).to(grid.real)
    if grid.pixel_weight is not None:
        weight = tl.load(grid.pixel_weight + image * grid.pixels + p, mask=mask, other=0.0)
    return weight


@triton.jit
def total(values):
    """Return the sum of a tile in float64."""
    return tl.sum(values.to(tl.float64))


@triton.jit
def some(condition):
    """Return whether it holds anywhere in a tile."""
    return tl.max(condition.to(tl.int32)) > 0


@triton.jit
def exp(x):
    """Return e^x; on devices, 0 for what is below the normal numbers of float32, which takes fewer instructions."""
    return tl.exp(x) if EXACT or x.dtype == tl.float64 else libdevice.fast_expf(x)


@triton.jit
def log1p(x):
    """Return log(1 + x) with all digits: 1 + x is rounded, and what that takes away comes back."""
    u = 1.0 + x
    return tl.log(u) + (x - (u - 1.0)) / u
