"""A scene of objects: its layouts, its image and its mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shapegen.dice import TURN, Dice, Ints, clouds, rotate, sine
from shapegen.patterns import OUTLINES, PX, SAMPLES, TEXTURES, Bools, box, disc, drop, ellipse, plus, star

Bytes = npt.NDArray[np.uint8]

CLASSES = ("background", *TEXTURES, "wire")
VOID = 255
TEXTURED = tuple(CLASSES.index(name) for name in TEXTURES)
WIRE = CLASSES.index("wire")

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


class Scene:
    """A canvas of samples; each object covers the earlier ones."""

    def __init__(self, dice: Dice, size: int) -> None:
        """Start with background on size × size pixels."""
        self.dice = dice
        self.size = size
        self.extent = size * PX
        self.count = size * SAMPLES
        self.y, self.x = (2 * v + 1 for v in np.indices((self.count, self.count), dtype=np.int64))
        self.owner = np.zeros((self.count, self.count), dtype=np.int64)
        self.color = np.zeros((self.count, self.count, 3), dtype=np.int64)
        self.light = np.full((self.count, self.count), 256, dtype=np.int64)
        self.labels: list[int] = []  # of the objects, in drawing order
        self.rimmed: list[bool] = []
        self.palette = dice.shuffled(PALETTE)[:4]  # few enough that neighbors often share a color
        self.deck: list[int] = []
        self.cover(np.ones_like(self.owner, dtype=bool), CLASSES.index("background"))

    def next_class(self) -> int:
        """Draw a class from a shuffled deck, so that none is rare."""
        self.deck = self.deck or self.dice.shuffled(TEXTURED)
        return self.deck.pop()

    def tints(self, label: int) -> Sequence[tuple[int, int, int]]:
        """Return the colors to choose from: mostly the two favorites of the class."""
        own = [PALETTE[(label + step) % len(PALETTE)] for step in (0, 5)]
        return own if self.dice.chance(80 if label else 50) else self.palette

    def cover(self, mask: Bools, label: int, *, shadow: bool = False) -> None:
        """Draw an object of class `label` on `mask`, if asked for with a shadow."""
        dice = self.dice
        light = np.array(dice.pick(self.tints(label)), dtype=np.int64)
        dark = light * dice.between(90, 150) >> 8
        if label not in (0, WIRE) and dice.chance(15):
            dark = np.array(dice.pick(self.palette), dtype=np.int64) * dice.between(130, 190) >> 8
        if label == 0:
            coarse, fine = clouds(dice, self.count, 14 * SAMPLES), clouds(dice, self.count, 5 * SAMPLES)
            tone = (coarse + fine)[mask] >> 1
        elif label == WIRE:  # mostly black or white, sometimes hard to see
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
        """Return thousandths of the side of the image, in ticks."""
        return self.extent * thousandths // 1000

    def somewhere(self, margin: int) -> int:
        """Return a coordinate at least `margin` thousandths away from the frame."""
        return self.share(self.dice.between(margin, 1000 - margin))

    # Layouts of the large objects

    def scatter(self) -> None:
        """Scatter objects that may overlap."""
        shadow = self.dice.chance(60)
        for spot in self.dice.shuffled(range(9))[: self.dice.between(6, 8)]:
            x, y = (self.share(170 + 330 * v + self.dice.between(-90, 90)) for v in divmod(spot, 3))
            mask = self.outline(x, y, self.share(self.dice.between(130, 240)))
            self.cover(mask, self.next_class(), shadow=shadow)

    def mosaic(self) -> None:
        """Tile the image with cells, with one or two objects on top."""
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
        """Draw hills behind hills, with a few objects on them."""
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
        """Draw objects inside objects, and objects of two or three classes."""
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
        """Return the samples within `width` / 2 of the line through `points`."""
        mask = np.zeros_like(self.owner, dtype=bool)
        for (ax, ay), (bx, by) in pairwise(points):
            dx, dy = bx - ax, by - ay
            px, py = self.x - ax, self.y - ay
            along, across, length = px * dx + py * dy, px * dy - py * dx, dx * dx + dy * dy
            mask |= (along >= 0) & (along <= length) & (4 * across * across <= width * width * length)
            mask |= 4 * (px * px + py * py) <= width * width  # a round joint
        return mask

    def cable(self, a: tuple[int, int], b: tuple[int, int], sag: int, width: int) -> Bools:
        """Return a line from `a` to `b` that sags by `sag`."""
        (ax, ay), (bx, by) = a, b
        steps = range(13)
        points = [(ax + (bx - ax) * k // 12, ay + (by - ay) * k // 12 + sag * k * (12 - k) // 36) for k in steps]
        return self.stroke(points, width)

    def width(self) -> int:
        """Return a line width of 1 to 3 pixels, in ticks."""
        return self.dice.between(3, 6) * PX // 2

    def lines(self) -> None:
        """Draw straight lines across the image."""
        for _ in range(self.dice.between(2, 3)):
            a, b = (-PX, self.somewhere(50)), (self.extent + PX, self.somewhere(50))
            if self.dice.chance(50):
                a, b = a[::-1], b[::-1]
            self.cover(self.stroke((a, b), self.width()), WIRE)

    def hoops(self) -> None:
        """Draw interlocked thin rings."""
        dice = self.dice
        x, y, r = self.somewhere(300), self.somewhere(300), self.share(dice.between(90, 170))
        for _ in range(dice.between(2, 4)):
            p, q, width = self.x - x, self.y - y, self.width()
            self.cover(disc(p, q, r + width // 2) & ~disc(p, q, r - width // 2), WIRE)
            x, y = x + dice.between(-r, r), y + dice.between(-r, r)

    def masts(self) -> None:
        """Draw poles with crossbars, and cables between them."""
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
        """Draw upright bars on two rails."""
        dice = self.dice
        left, top = self.somewhere(150) // 2, self.somewhere(250)
        width, height = self.share(dice.between(350, 600)), self.share(dice.between(120, 220))
        gap, bar = dice.between(6, 10) * PX, dice.between(3, 4) * PX // 2
        across, down = self.x - left, self.y - top
        inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
        rails = (np.abs(down - height // 5) <= bar // 2) | (np.abs(down - height * 4 // 5) <= bar // 2)
        self.cover(inside & ((across % gap < bar) | rails), WIRE)

    # Mask and image

    def mask(self) -> Bytes:
        """Return the labels [size, size], void where an annotator would be unsure."""
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
        """Return the image [size, size, 3], with uneven light, blur and noise."""
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
        # Six bits per channel: the noise hides the steps, and files are smaller by a third.
        return np.asarray(np.clip(image, 0, 255) // 4 * 4 + 2, dtype=np.uint8)


def soften(image: Ints, times: int) -> Ints:
    """Blur [H, W, 3] `times` with the kernel (1, 2, 1) / 4 along both axes."""
    for _ in range(times):
        p = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
        p = p[:-2] + 2 * p[1:-1] + p[2:]
        image = (p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:] + 8) >> 4
    return image
