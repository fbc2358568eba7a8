#!/usr/bin/env python3
"""Lay out the windows of quality-crops.png, in this folder, for the first page: for wide and for narrow screens.

    python benchmarks/first_page.py

`quality.py crops --output benchmarks` draws that picture, from trained networks. Its windows are those of the largest,
the median and the smallest difference in boundary F1 between the last loss and cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from edgeloss.viz import distinct_colors
from edgeloss.viz.coloring import color_bytes
from edgeloss.viz.palette import VOID

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LEFTS, TOPS, DRAWN_SIDE = (19, 366, 713, 1060, 1406), (96, 494, 893), 328  # of the windows, with their frames
SIDE = 242  # of the windows here
SCORE = (0, -18, 115, -3)  # the box of the score above a window, from the window's corner
COLUMNS = ("image", "true labels", "cross-entropy", "weighted CE\n+ Dice", "edgeloss")
FIRST_PREDICTION = 2  # of these columns
ROWS = ("largest gain", "median", "largest loss")
CLASSES = ("sky", "building", "pole", "road", "sidewalk", "tree")
CLASSES += ("sign", "fence", "car", "pedestrian", "bicyclist", "void")


class Drawn(NamedTuple):
    """A window, and its score where it is a prediction: what the picture has above it, at twice the size."""

    window: Image.Image
    score: Image.Image | None


class Sheet(NamedTuple):
    """A picture that is being made, with the size of its text."""

    image: Image.Image
    size: int

    def write(self, place: tuple[int, int], text: str, *, bold: bool = False, anchor: str = "la") -> None:
        """Write a text, by default from its upper left corner."""
        path = font_manager.findfont(font_manager.FontProperties(weight="bold" if bold else "normal"))
        font, draw = ImageFont.truetype(path, self.size), ImageDraw.Draw(self.image)
        if "\n" in text:
            draw.multiline_text(place, text, "black", font, anchor, spacing=2)
        else:
            draw.text(place, text, "black", font, anchor)

    def paste(self, drawn: Drawn, place: tuple[int, int]) -> None:
        """Draw a window from its upper left corner, and its score above it."""
        self.image.paste(drawn.window, place)
        if drawn.score:
            self.image.paste(drawn.score, (place[0], place[1] - drawn.score.height))

    def add_key(self, top: int, columns: int, left: int = 0) -> None:
        """Write the names of the classes next to their colors."""
        colors = np.vstack([distinct_colors(len(CLASSES) - 1), VOID])
        across = (self.image.width - left) // columns
        for at, (name, color) in enumerate(zip(CLASSES, colors, strict=True)):
            x, y = left + at % columns * across, top + at // columns * (self.size + 12)
            box = (x, y + 3, x + self.size - 2, y + self.size + 1)
            ImageDraw.Draw(self.image).rectangle(box, tuple(color_bytes(color).tolist()), "black")
            self.write((x + self.size + 8, y), name)


def read_windows() -> list[list[Drawn]]:
    """Return the windows, by row."""
    drawn = Image.open(Path(__file__).with_name("quality-crops.png")).convert("RGB")

    def read(column: int, x: int, y: int) -> Drawn:
        window = drawn.crop((x, y, x + DRAWN_SIDE, y + DRAWN_SIDE)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        left, top, right, bottom = SCORE
        score = drawn.crop((x + left, y + top, x + right, y + bottom))
        size = (2 * score.width, 2 * score.height)
        return Drawn(window, score.resize(size, Image.Resampling.LANCZOS) if column >= FIRST_PREDICTION else None)

    return [[read(column, x, y) for column, x in enumerate(LEFTS)] for y in TOPS]


def blank(width: int, height: int) -> Image.Image:
    """Return a white picture."""
    return Image.new("RGB", (width, height), "white")


def draw_wide(windows: Sequence[Sequence[Drawn]]) -> Image.Image:
    """Draw a row for each window."""
    left, gap, below, head = 0, 14, 38, 64
    sheet = Sheet(blank(5 * SIDE + 4 * gap, head + 3 * (SIDE + below) + 2 * 30 + 60), 24)
    for column, name in enumerate(COLUMNS):
        x = left + column * (SIDE + gap)
        sheet.write((x, head - 8), name, bold=column == 4, anchor="ld")
        for row, of_row in enumerate(windows):
            y = head + below + row * (SIDE + below + 10)  # below the title of the row
            sheet.paste(of_row[column], (x, y))
            if column == 0:
                sheet.write((x, y - 34), ROWS[row], bold=True)
    sheet.add_key(sheet.image.height - 76, 6)
    return sheet.image


def draw_narrow(windows: Sequence[Sequence[Drawn]]) -> Image.Image:
    """Draw a column for each window."""
    gap, head, text = 14, 44, 48
    sheet = Sheet(blank(3 * SIDE + 2 * gap, head + 5 * (SIDE + text) + 3 * 34 + 200), 29)
    for row, name in enumerate(ROWS):
        sheet.write((row * (SIDE + gap), 4), name, bold=True)
    y = head
    for column, name in enumerate(COLUMNS):
        sheet.write((0, y + 6), name.replace("\n", " "), bold=column == 4)
        y += text + (34 if column >= FIRST_PREDICTION else 0)  # below the scores
        for row, of_row in enumerate(windows):
            x = row * (SIDE + gap)
            sheet.paste(of_row[column], (x, y))
        y += SIDE
    sheet.add_key(y + 26, 3)
    return sheet.image


DRAWN = {"first-page": draw_wide, "first-page-narrow": draw_narrow}


def main() -> None:
    """Write both pictures."""
    windows = read_windows()
    for name, draw in DRAWN.items():
        draw(windows).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
