"""Random integers, a sine table and smooth noise that are the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
T = TypeVar("T")

TURN = 1024  # angle steps in a full turn
SINE = np.array([round(4096 * math.sin(2 * math.pi * k / TURN)) for k in range(TURN)], dtype=np.int64)


class Dice:
    """Random integers from the raw PCG64 stream of a key."""

    def __init__(self, *key: int) -> None:
        """Start the stream of `key`, a sequence of integers ≥ 0."""
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def between(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + (int(self._bits.random_raw()) >> 16) % (high - low + 1)

    def chance(self, percent: int) -> bool:
        """Return True in `percent` of all cases."""
        return self.between(0, 99) < percent

    def pick(self, items: Sequence[T]) -> T:
        """Return one of `items`."""
        return items[self.between(0, len(items) - 1)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return `items` in random order (Fisher-Yates)."""
        deck = list(items)
        for last in range(len(deck) - 1, 0, -1):
            other = self.between(0, last)
            deck[last], deck[other] = deck[other], deck[last]
        return deck

    def octets(self, *shape: int) -> Ints:
        """Return random bytes [*shape, 8], the same for any byte order."""
        raw = np.asarray(self._bits.random_raw(math.prod(shape)), dtype=np.uint64).reshape(*shape, 1)
        return np.asarray((raw >> np.arange(0, 64, 8, dtype=np.uint64)) & np.uint64(255), dtype=np.int64)


def sine(angle: Ints | int) -> Ints:
    """Return 4096 · sin of an angle in 1/`TURN` of a full turn."""
    return np.asarray(SINE[np.asarray(angle) % TURN])


def rotate(x: Ints, y: Ints, angle: int) -> tuple[Ints, Ints]:
    """Turn the coordinates (x, y) by `angle`."""
    c, s = int(sine(angle + TURN // 4)), int(sine(angle))
    return (x * c + y * s) >> 12, (y * c - x * s) >> 12


def hashed(a: Ints, b: Ints, salt: int) -> Ints:
    """Return a value in [0, 255] for each pair of integers, a hash of the pair."""
    h = (a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (b.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F))
    h = (h ^ np.uint64(salt)) * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return np.asarray((h * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(56), dtype=np.int64)


def clouds(dice: Dice, count: int, cell: int) -> Ints:
    """Return smooth noise in [0, 255] on count × count samples.

    It interpolates one random value per `cell` × `cell` samples.
    """
    lattice = dice.octets(count // cell + 3, count // cell + 3)[..., 0]
    at, rest = np.divmod(np.arange(count, dtype=np.int64) + dice.between(0, cell - 1), cell)
    t = (rest << 8) // cell
    t = (t * t * (768 - 2 * t)) >> 16  # smoothstep: bilinear noise would have visible creases
    rows = lattice[at] * (256 - t)[:, None] + lattice[at + 1] * t[:, None]
    return np.asarray((rows[:, at] * (256 - t) + rows[:, at + 1] * t) >> 16)
