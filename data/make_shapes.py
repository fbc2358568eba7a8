#!/usr/bin/env python3
"""Draw a small segmentation data set whose class borders are hard to get right.

Each class is a texture. Color helps but can't be trusted: classes share their favorite colors, and at times borrow
their neighbors'. Objects touch and overlap, thin structures cross them, shadows and uneven light draw edges where no
class changes, and blur, noise and low contrast hide edges where one does. Part of most images is void, as in real
annotations: thin rims around objects, strips along the frame, small smudges.

    OUT/classes.txt                     one "<index> <name>" per line
    OUT/{train,val}/images/NNN.png      RGB, 8 bits
    OUT/{train,val}/masks/NNN.png       one channel, 8 bits: the class index, 255 for void

The same seed gives the same pixels on every machine. That rests on three things. Random numbers are the raw PCG64
stream, which NumPy promises never to change (it makes no such promise for the distributions built upon it). All drawing
is integer arithmetic on 3 × 3 samples per pixel, with no drawing or filtering library. And the one table computed in
floating point, the sine, is rounded to 1/4096, far coarser than any two math libraries differ. The PNG *bytes* do
depend on the zlib at hand, so ``--check`` compares decoded pixels.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

CLASSES = ("background", "plain", "stripe", "check", "dot", "brick", "chevron", "scale", "grain", "wire")
VOID = 255
WIRE = CLASSES.index("wire")
SPLITS = ("train", "val")

SAMPLES = 3  # per pixel and axis; odd, so that the middle sample is the pixel's center, where its label is read
PX = (
    2 * SAMPLES
)  # lengths are counted in ticks: PX to a pixel, 2 between samples, so that samples sit on odd whole ticks
TURN = 1024  # angle steps in a full turn
SINE = np.array([round(4096 * math.sin(2 * math.pi * k / TURN)) for k in range(TURN)], dtype=np.int64)

PALETTE = (
    (214, 116, 92),  # terracotta
    (226, 178, 92),  # ochre
    (240, 222, 180),  # sand
    (136, 170, 110),  # moss
    (78, 138, 128),  # teal
    (112, 166, 204),  # sky
    (88, 104, 168),  # indigo
    (164, 118, 168),  # mauve
    (222, 158, 168),  # rose
    (150, 120, 96),  # umber
    (182, 190, 196),  # mist
    (108, 118, 128),  # slate
)


class Dice:
    """Random integers from the raw PCG64 stream of one key."""

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
        """Return eight random bytes per element, [*shape, 8], independent of the machine's byte order."""
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
    """Return a value in [0, 255] for each integer pair, the same wherever the pair occurs."""
    h = (a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (b.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F))
    h = (h ^ np.uint64(salt)) * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return np.asarray((h * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(56), dtype=np.int64)


def clouds(dice: Dice, count: int, cell: int) -> Ints:
    """Return smooth noise in [0, 255] on count × count samples, with one random lattice value per `cell` samples."""
    lattice = dice.octets(count // cell + 3, count // cell + 3)[..., 0]
    at, rest = np.divmod(np.arange(count, dtype=np.int64) + dice.between(0, cell - 1), cell)
    t = (rest << 8) // cell
    t = (t * t * (768 - 2 * t)) >> 16  # smoothstep: bilinear noise would show its lattice as creases
    rows = lattice[at] * (256 - t)[:, None] + lattice[at + 1] * t[:, None]
    return np.asarray((rows[:, at] * (256 - t) + rows[:, at + 1] * t) >> 16)


# Textures: the tone in [0, 256] between an object's dark and light color at (p, q), for a period, all in ticks.


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
TEXTURED = tuple(CLASSES.index(name) for name in TEXTURES)


# Outlines: True inside, for coordinates relative to the center, in ticks, and a radius in ticks.


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
    """A five-pointed star: the points that lie within at least four of the pentagram's five half planes."""
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


class Scene:
    """A canvas of samples on which objects are laid, each over those before it."""

    def __init__(self, dice: Dice, size: int) -> None:
        """Start with nothing but background on size × size pixels."""
        self.dice = dice
        self.size = size
        self.extent = size * PX
        self.count = size * SAMPLES
        self.y, self.x = (2 * v + 1 for v in np.indices((self.count, self.count), dtype=np.int64))
        self.owner = np.zeros((self.count, self.count), dtype=np.int64)
        self.color = np.zeros((self.count, self.count, 3), dtype=np.int64)
        self.light = np.full((self.count, self.count), 256, dtype=np.int64)
        self.labels: list[int] = []  # of the objects, in the order in which they were laid
        self.rimmed: list[bool] = []
        self.palette = dice.shuffled(PALETTE)[:4]  # few enough that neighbors often share a color
        self.deck: list[int] = []
        self.cover(np.ones_like(self.owner, dtype=bool), CLASSES.index("background"))

    def next_class(self) -> int:
        """Draw from a shuffled deck of the textured classes, so that none is rare."""
        self.deck = self.deck or self.dice.shuffled(TEXTURED)
        return self.deck.pop()

    def tints(self, label: int) -> Sequence[tuple[int, int, int]]:
        """Return the colors a class chooses from: mostly its two favorites, which others favor too, at times any."""
        own = [PALETTE[(label + step) % len(PALETTE)] for step in (0, 5)]
        return own if self.dice.chance(80 if label else 50) else self.palette

    def cover(self, mask: Bools, label: int, *, shadow: bool = False) -> None:
        """Lay an object of class `label` on the samples in `mask`; `shadow` darkens what lies beside it."""
        dice = self.dice
        light = np.array(dice.pick(self.tints(label)), dtype=np.int64)
        dark = light * dice.between(90, 150) >> 8
        if label not in (0, WIRE) and dice.chance(15):
            dark = np.array(dice.pick(self.palette), dtype=np.int64) * dice.between(130, 190) >> 8
        if label == 0:
            coarse, fine = clouds(dice, self.count, 14 * SAMPLES), clouds(dice, self.count, 5 * SAMPLES)
            tone = (coarse + fine)[mask] >> 1
        elif label == WIRE:  # black or white as a rule, and now and then lost among its surroundings
            light = np.array(dice.pick((*3 * ((38, 40, 48), (252, 250, 244)), dice.pick(self.palette))), dtype=np.int64)
            tone = np.full(int(mask.sum()), 256)
        else:
            p, q = rotate(self.x[mask], self.y[mask], dice.between(-TURN // 16, TURN // 16))
            tone = TEXTURES[CLASSES[label]](p, q, dice.between(7 * PX, 9 * PX), dice.between(0, 2**31))
        if shadow:
            step = dice.between(2, 4) * SAMPLES
            cast = np.zeros_like(mask)
            cast[step:, step:] = mask[:-step, :-step]
            self.light[cast & ~mask] = self.light[cast & ~mask] * 160 >> 8
            self.light[mask] = 256
        self.owner[mask] = len(self.labels)
        self.color[mask] = dark + ((light - dark) * tone[:, None] >> 8)
        self.labels.append(label)
        self.rimmed.append(label not in (0, WIRE) and dice.chance(25))

    def outline(self, x: int, y: int, r: int) -> Bools:
        """Return a random outline of radius `r` at (x, y)."""
        p, q = rotate(self.x - x, self.y - y, self.dice.between(0, TURN - 1))
        return self.dice.pick(OUTLINES)(p, q, r)

    def share(self, thousandths: int) -> int:
        """Return that share of the image's side, in ticks."""
        return self.extent * thousandths // 1000

    def somewhere(self, margin: int) -> int:
        """Return a coordinate at least `margin` thousandths of the side away from the frame."""
        return self.share(self.dice.between(margin, 1000 - margin))

    # Layouts of the large objects

    def scatter(self) -> None:
        """Objects strewn over each other."""
        shadow = self.dice.chance(60)
        for spot in self.dice.shuffled(range(9))[: self.dice.between(6, 8)]:
            x, y = (self.share(170 + 330 * v + self.dice.between(-90, 90)) for v in divmod(spot, 3))
            mask = self.outline(x, y, self.share(self.dice.between(130, 240)))
            self.cover(mask, self.next_class(), shadow=shadow)

    def mosaic(self) -> None:
        """Cells that tile the image and share every border, with an object or two on top."""
        dice = self.dice
        bend = self.share(dice.between(0, 25))
        x = self.x + (bend * sine(self.y * TURN // self.share(dice.between(200, 500))) >> 12)
        y = self.y + (bend * sine(self.x * TURN // self.share(dice.between(200, 500))) >> 12)
        spots = dice.shuffled(range(9))[: dice.between(6, 8)]
        sites = [[self.share(170 + 330 * v + dice.between(-120, 120)) for v in divmod(spot, 3)] for spot in spots]
        nearest = np.argmin(np.stack([(x - a) ** 2 + (y - b) ** 2 for a, b in sites]), axis=0)
        for cell in range(1, len(sites)):  # the first stays background
            self.cover(nearest == cell, self.next_class())
        for _ in range(dice.between(1, 2)):
            mask = self.outline(self.somewhere(250), self.somewhere(250), self.share(dice.between(90, 150)))
            self.cover(mask, self.next_class(), shadow=dice.chance(50))

    def layers(self) -> None:
        """Hills behind hills, with a few objects standing on them."""
        dice = self.dice
        count = dice.between(3, 4)
        for k in range(count):
            base = self.share(260 + 620 * k // count + dice.between(-30, 30))
            wave = sine(self.x * TURN // self.share(dice.between(500, 1100)) + dice.between(0, TURN - 1))
            ripple = sine(self.x * TURN // self.share(dice.between(150, 300)) + dice.between(0, TURN - 1))
            line = base + (self.share(dice.between(30, 80)) * wave + self.share(dice.between(0, 18)) * ripple >> 12)
            self.cover(self.y > line, self.next_class())
        for _ in range(dice.between(2, 4)):
            mask = self.outline(self.somewhere(120), self.somewhere(250), self.share(dice.between(100, 170)))
            self.cover(mask, self.next_class(), shadow=dice.chance(30))

    def nests(self) -> None:
        """Objects inside objects, and objects made of two or three classes."""
        dice = self.dice
        for spot in dice.shuffled(range(4))[: dice.between(3, 4)]:
            x, y = (self.share(260 + 480 * v + dice.between(-60, 60)) for v in divmod(spot, 2))
            angle, r = dice.between(0, TURN - 1), self.share(dice.between(220, 290))
            p, q = rotate(self.x - x, self.y - y, angle)
            shape = dice.pick((disc, box, ellipse, drop))
            self.cover(shape(p, q, r), self.next_class(), shadow=dice.chance(50))
            if dice.chance(50):
                self.cover(dice.pick((disc, box, plus, star))(p, q, r * 6 // 10), self.next_class())
            else:
                edge = (r * sine(q * TURN // r) >> 14) * dice.between(0, 1)  # straight or wavy
                self.cover(shape(p, q, r) & (p > edge), self.next_class())

    # Thin structures

    def stroke(self, points: Sequence[tuple[int, int]], width: int) -> Bools:
        """Return the samples within `width` / 2 of the line through `points`, all in ticks."""
        mask = np.zeros_like(self.owner, dtype=bool)
        for (ax, ay), (bx, by) in pairwise(points):
            dx, dy = bx - ax, by - ay
            px, py = self.x - ax, self.y - ay
            along, across, length = px * dx + py * dy, px * dy - py * dx, dx * dx + dy * dy
            mask |= (along >= 0) & (along <= length) & (4 * across * across <= width * width * length)
            mask |= 4 * (px * px + py * py) <= width * width  # a round joint
        return mask

    def cable(self, a: tuple[int, int], b: tuple[int, int], sag: int, width: int) -> Bools:
        """Return a line from `a` to `b` that hangs through by `sag`."""
        (ax, ay), (bx, by) = a, b
        steps = range(13)
        points = [(ax + (bx - ax) * k // 12, ay + (by - ay) * k // 12 + sag * k * (12 - k) // 36) for k in steps]
        return self.stroke(points, width)

    def width(self) -> int:
        """Return a line width of 1 to 3 pixels, in ticks."""
        return self.dice.between(3, 6) * PX // 2

    def lines(self) -> None:
        """Straight lines that cross the image and each other."""
        for _ in range(self.dice.between(2, 3)):
            a, b = (-PX, self.somewhere(50)), (self.extent + PX, self.somewhere(50))
            if self.dice.chance(50):
                a, b = a[::-1], b[::-1]
            self.cover(self.stroke((a, b), self.width()), WIRE)

    def hoops(self) -> None:
        """Interlocked thin rings."""
        dice = self.dice
        x, y, r = self.somewhere(300), self.somewhere(300), self.share(dice.between(90, 170))
        for _ in range(dice.between(2, 4)):
            p, q, width = self.x - x, self.y - y, self.width()
            self.cover(disc(p, q, r + width // 2) & ~disc(p, q, r - width // 2), WIRE)
            x, y = x + dice.between(-r, r), y + dice.between(-r, r)

    def masts(self) -> None:
        """Poles with crossbars and the cables between them."""
        dice = self.dice
        xs = [self.share(dice.between(60, 240)), self.share(dice.between(430, 570)), self.share(dice.between(760, 940))]
        xs = dice.pick((xs, xs, xs[::2], xs[1:]))
        top, width, arm = self.share(dice.between(80, 260)), self.width(), self.share(dice.between(35, 70))
        tops = [top + self.share(dice.between(-40, 40)) for _ in xs]
        mask = np.zeros_like(self.owner, dtype=bool)
        for x, y in zip(xs, tops, strict=True):
            foot = self.share(dice.between(700, 960))
            mask |= self.stroke(((x, y - PX * 3), (x, foot)), max(width, 2 * PX))
            mask |= self.stroke(((x - arm, y), (x + arm, y)), width)
        sag, posts = self.share(dice.between(30, 110)), list(zip(xs, tops, strict=True))
        posts = [(-PX - arm, tops[0]), *posts, (self.extent + PX + arm, tops[-1])]
        for a, b in pairwise(posts):
            for side in (-arm, arm):
                mask |= self.cable((a[0] + side, a[1]), (b[0] + side, b[1]), sag, PX)
        self.cover(mask, WIRE)

    def fence(self) -> None:
        """Upright bars on two rails."""
        dice = self.dice
        left, top = self.somewhere(150) // 2, self.somewhere(250)
        width, height = self.share(dice.between(350, 600)), self.share(dice.between(120, 220))
        gap, bar = dice.between(6, 10) * PX, dice.between(3, 4) * PX // 2
        across, down = self.x - left, self.y - top
        inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
        rails = (np.abs(down - height // 5) <= bar // 2) | (np.abs(down - height * 4 // 5) <= bar // 2)
        self.cover(inside & ((across % gap < bar) | rails), WIRE)

    # From the canvas to what a camera and an annotator make of it

    def mask(self) -> Bytes:
        """Return the label at each pixel's center, [size, size], with void where an annotator would not decide."""
        dice = self.dice
        middle = SAMPLES // 2
        owner = self.owner[middle::SAMPLES, middle::SAMPLES]
        mask = np.array(self.labels, dtype=np.uint8)[owner]
        around = np.pad(owner, 1, mode="edge")
        border = np.zeros_like(owner, dtype=bool)
        for dy, dx in ((0, 1), (2, 1), (1, 0), (1, 2)):
            border |= around[dy : dy + self.size, dx : dx + self.size] != owner
        mask[border & np.array(self.rimmed)[owner]] = VOID
        for _ in range(dice.pick((0, 0, 1, 2))):
            x, y, r = self.somewhere(100), self.somewhere(100), dice.between(3, 6) * PX
            p, q = rotate(self.x - x, self.y - y, dice.between(0, TURN - 1))
            smudge = ellipse(p, q, r)
            self.color[smudge] = (self.color[smudge] + self.color[smudge].sum(axis=-1, keepdims=True)) >> 3
            mask[smudge[middle::SAMPLES, middle::SAMPLES]] = VOID
        if dice.chance(30):
            sides = dice.between(1, 4)
            for side in dice.shuffled(range(4))[:sides]:
                np.rot90(mask, side)[: dice.between(2, 5)] = VOID  # a view, so this writes into the mask
        return mask

    def photo(self) -> Bytes:
        """Return the image, [size, size, 3]: lit unevenly, seen through a lens, recorded by a noisy sensor."""
        dice = self.dice
        dim = dice.between(170, 250)
        lit = dim + (clouds(dice, self.count, self.count * dice.between(40, 90) // 100) * (350 - dim) >> 8)
        if dice.chance(30):  # the shadow of something outside the image
            p = rotate(self.x - self.somewhere(200), self.y - self.somewhere(200), dice.between(0, TURN - 1))[0]
            lit = np.where((p > 0) & (p < self.share(dice.between(150, 500))), lit * 150 >> 8, lit)
        gain = np.array([dice.between(240, 275) for _ in range(3)], dtype=np.int64)
        image = self.color * (self.light * lit >> 8)[..., None] * gain >> 16
        image = image.reshape(self.size, SAMPLES, self.size, SAMPLES, 3).sum(axis=(1, 3)) // SAMPLES**2
        image = soften(image, dice.pick((0, 0, 1)))
        if dice.chance(35):  # out of focus toward one side
            y, x = np.indices((self.size, self.size), dtype=np.int64) * PX - self.extent // 2
            p = rotate(x, y, dice.between(0, TURN - 1))[0]
            far = np.clip(128 + p * 256 // self.extent, 0, 256)[..., None]
            image = image * (256 - far) + soften(image, 3) * far >> 8
        bell = dice.octets(*image.shape).sum(axis=-1) - 1020  # near normal, of standard deviation 209
        image = image + bell * dice.between(2, 5) * (image + 96) // (209 * 192)
        # Six bits a channel: the steps drown in the noise, and the files shrink by a third.
        return np.asarray(np.clip(image, 0, 255) // 4 * 4 + 2, dtype=np.uint8)


def soften(image: Ints, times: int) -> Ints:
    """Blur [H, W, 3] with the kernel (1, 2, 1) / 4 along both axes, `times` over."""
    for _ in range(times):
        p = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
        p = p[:-2] + 2 * p[1:-1] + p[2:]
        image = (p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:] + 8) >> 4
    return image


def draw(seed: int, split: int, index: int, size: int) -> tuple[Bytes, Bytes]:
    """Draw one image and its mask.

    Args:
        seed: The data set's seed, ≥ 0.
        split: Index into `SPLITS`.
        index: The image's number in its split; also chooses the layout, so that all occur equally often.
        size: Side length in pixels.

    Returns:
        The image [size, size, 3] and the mask [size, size], both uint8.
    """
    dice = Dice(seed, split, index)
    scene = Scene(dice, size)
    (scene.scatter, scene.mosaic, scene.layers, scene.nests)[index % 4]()
    thin = (scene.lines, scene.hoops, scene.masts, scene.fence)
    for add in dice.shuffled(thin)[: dice.between(1, 2)]:
        add()
    mask = scene.mask()  # before the photo: smudges are seen, too
    return scene.photo(), mask


def pictures(seed: int, counts: Sequence[int], size: int) -> Iterator[tuple[str, Bytes]]:
    """Yield the path below the output folder and the pixels of every file, in order."""
    for split, count in enumerate(counts):
        for index in range(count):
            image, mask = draw(seed, split, index, size)
            yield f"{SPLITS[split]}/images/{index:03d}.png", image
            yield f"{SPLITS[split]}/masks/{index:03d}.png", mask


def classes_text() -> str:
    """Return the content of classes.txt."""
    return "".join(f"{index} {name}\n" for index, name in [*enumerate(CLASSES), (VOID, "void")])


def write(out: Path, seed: int, counts: Sequence[int], size: int) -> None:
    """Write the data set to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "classes.txt").write_text(classes_text(), encoding="utf-8", newline="\n")
    for name, pixels in pictures(seed, counts, size):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(out / name, optimize=True)


def difference(out: Path, seed: int, counts: Sequence[int], size: int) -> str | None:
    """Say which file in `out` is the first that is not what `write` would write, and how; None if all are."""
    wanted = {"classes.txt"}
    path = out / "classes.txt"
    if not path.is_file():
        return f"{path}: missing"
    if path.read_text(encoding="utf-8") != classes_text():
        return f"{path}: other classes"
    for name, pixels in pictures(seed, counts, size):
        wanted.add(name)
        path = out / name
        if not path.is_file():
            return f"{path}: missing"
        try:
            with Image.open(path) as file:
                found = np.asarray(file)
        except (OSError, SyntaxError) as error:  # Pillow reports a broken PNG chunk as a SyntaxError
            return f"{path}: unreadable ({error})"
        if found.shape != pixels.shape or found.dtype != pixels.dtype:
            return f"{path}: expected {pixels.dtype} {list(pixels.shape)}, but got {found.dtype} {list(found.shape)}"
        if (found != pixels).any():
            return f"{path}: {int((found != pixels).sum())} of {pixels.size} values differ"
    for path in sorted(out.rglob("*.png")):
        if path.relative_to(out).as_posix() not in wanted:
            return f"{path}: not part of the set"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        description="Draw a small segmentation data set of textured shapes with hard borders, or check one.",
        epilog="Example: python data/make_shapes.py --out /tmp/big --train 1000 --val 200 --seed 7",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def at_least(least: int) -> Callable[[str], int]:
        def parse(text: str) -> int:
            if int(text) < least:
                raise argparse.ArgumentTypeError(f"expected at least {least}, but got {text}")
            return int(text)

        parse.__name__ = "int"  # argparse prints it: "invalid int value"
        return parse

    here = Path(__file__).resolve().parent / "shapes"
    parser.add_argument("--out", type=Path, default=here, metavar="DIR", help="folder of the set")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="same seed, same pixels")
    parser.add_argument("--train", type=at_least(0), default=64, metavar="N", help="images to train on")
    parser.add_argument("--val", type=at_least(0), default=16, metavar="N", help="images to validate on")
    parser.add_argument("--size", type=at_least(64), default=128, metavar="PX", help="side length of an image")
    parser.add_argument("--check", action="store_true", help="write nothing; compare DIR with what would be written")
    options = parser.parse_args(arguments)

    counts = (options.train, options.val)
    if options.check:
        found = difference(options.out, options.seed, counts, options.size)
        print(
            found or f"{options.out}: {sum(counts)} images and masks as generated",
            file=sys.stderr if found else sys.stdout,
        )
        return int(found is not None)
    write(options.out, options.seed, counts, options.size)
    print(f"wrote {sum(counts)} images and masks to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
