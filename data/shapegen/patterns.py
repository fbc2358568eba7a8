"""Textures and outlines of objects.

Lengths are counted in ticks: `PX` per pixel, 2 between samples, so that samples have odd whole coordinates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shapegen.dice import TURN, Ints, hashed, sine

Bools = npt.NDArray[np.bool_]

SAMPLES = 3  # per pixel and axis; odd, so that the middle sample is the center of the pixel, where its label is read
PX = 2 * SAMPLES

# Textures: the tone in [0, 256] between the dark and the light color of an object at (p, q); lengths in ticks.


def plain(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """One tone."""
    return np.full(p.shape, 150 + salt % 107)


def stripe(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """Straight parallel bands."""
    return 256 * (p % period < period // 2)


def check(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """Squares of alternating tone."""
    half = period * 2 // 3
    return 256 * ((p // half + q // half) & 1)


def dot(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """Round spots in staggered rows."""
    p = (p + (q // period & 1) * (period // 2)) % period - period // 2
    q = q % period - period // 2
    return 256 * (9 * (p * p + q * q) < period * period)


def brick(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """Staggered courses of slightly different bricks in mortar."""
    row, y = np.divmod(q, period)
    column, x = np.divmod(p + (row & 1) * period, 2 * period)
    return np.where((x < PX) | (y < PX), 0, 150 + hashed(row, column, salt) * 106 // 255)


def chevron(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """Bands folded into a zigzag."""
    return 256 * ((p + np.abs(q % (2 * period) - period)) % period < period // 2)


def scale(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """Overlapping fish scales: each row of half discs hides the tops of the next."""
    radius = period * 3 // 4
    row, y = np.divmod(q, radius)
    shift = (row & 1) * radius
    near = ((p + shift) % (2 * radius) - radius) ** 2 + y * y
    below = ((p + radius - shift) % (2 * radius) - radius) ** 2 + (y - radius) ** 2
    depth = np.where(near < radius * radius, near, below) * 256 // (radius * radius)
    return np.asarray(np.clip(256 - depth, 0, 256))


def grain(p: Ints, q: Ints, period: int, salt: int) -> Ints:
    """Coarse speckle, well above the sensor noise."""
    return hashed(p // 9, q // 9, salt)


TEXTURES: dict[str, Callable[[Ints, Ints, int, int], Ints]] = {
    f.__name__: f for f in (plain, stripe, check, dot, brick, chevron, scale, grain)
}


# Outlines: True inside, for coordinates relative to the center and a radius, in ticks.


def disc(p: Ints, q: Ints, r: int) -> Bools:
    """A disc."""
    return p * p + q * q < r * r


def ellipse(p: Ints, q: Ints, r: int) -> Bools:
    """An ellipse of axes 1 : 0.6."""
    return 9 * p * p + 25 * q * q < 9 * r * r


def box(p: Ints, q: Ints, r: int) -> Bools:
    """A rectangle of sides 1 : 0.7 with rounded corners."""
    x, y = np.maximum(np.abs(p) - r * 6 // 10, 0), np.maximum(np.abs(q) - r * 3 // 8, 0)
    return np.asarray(16 * (x * x + y * y) < r * r)


def triangle(p: Ints, q: Ints, r: int) -> Bools:
    """An equilateral triangle."""
    return (2 * q < r) & (112 * np.abs(p) < 64 * (q + r))


def star(p: Ints, q: Ints, r: int) -> Bools:
    """A five-pointed star: inside at least four half planes of a pentagram."""
    turns = [k * TURN // 5 for k in range(5)]
    inside = [p * int(sine(k)) + q * int(sine(k + TURN // 4)) < 1266 * r for k in turns]  # 1266 = 4096 · cos 72°
    return np.asarray(np.sum(inside, axis=0) >= 4)


def crescent(p: Ints, q: Ints, r: int) -> Bools:
    """A disc with a bite."""
    return disc(p, q, r) & ~disc(p - r // 2, q, r * 3 // 4)


def half(p: Ints, q: Ints, r: int) -> Bools:
    """Half a disc."""
    return disc(p, q - r // 3, r) & (q < r // 3)


def ring(p: Ints, q: Ints, r: int) -> Bools:
    """A broad ring."""
    return disc(p, q, r) & ~disc(p, q, r * 5 // 9)


def plus(p: Ints, q: Ints, r: int) -> Bools:
    """A cross with broad arms."""
    x, y = np.abs(p), np.abs(q)
    return (np.maximum(x, y) < r * 9 // 10) & (np.minimum(x, y) * 3 < r)


def drop(p: Ints, q: Ints, r: int) -> Bools:
    """Two discs of different size that flow into each other (metaballs)."""
    large = ((r * r * 3 // 8) << 12) // (p * p + (q - r // 3) ** 2 + 1)
    small = ((r * r // 8) << 12) // (p * p + (q + r * 5 // 9) ** 2 + 1)
    return large + small > 4096


OUTLINES = (disc, ellipse, box, triangle, star, crescent, half, ring, plus, drop)
