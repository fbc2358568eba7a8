#!/usr/bin/env python3
"""Draw the windows of quality-crops.png, in this folder, for the first page: for wide and for narrow screens.

    python benchmarks/first_page.py

`quality.py crops --output benchmarks` draws that picture, from trained networks. Its windows are those of the largest,
the median and the smallest difference in boundary F1 between the last loss and cross-entropy. Their colors are read
from its pixels, so that lines and text have the size of this picture; a window's score is that of these colors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from edgeloss.metrics.counts import score_f1
from edgeloss.viz import distinct_colors
from edgeloss.viz.coloring import color_bytes
from edgeloss.viz.drawing import find_borders
from edgeloss.viz.palette import VOID
from quality.crops import count

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LEFT, TOP, ACROSS, DOWN, DRAWN_SIDE = 19.5, 96.5, 346.8, 398.1, 326  # of the first window, to the next ones, of each
PIXELS, SCALE = 80, 3  # of a window's side, and how large each is here
SIDE = PIXELS * SCALE + 2  # with a frame
FRAME, LINE = (118,) * 3, (30,) * 3
COLUMNS = ("image", "true labels", "cross-entropy", "weighted CE\n+ Dice", "edgeloss")
FIRST_PREDICTION = 2  # of these columns
ROWS = ("largest gain", "median", "largest loss")
CLASSES = ("sky", "building", "pole", "road", "sidewalk", "tree")
CLASSES += ("sign", "fence", "car", "pedestrian", "bicyclist", "void")
COLORS = color_bytes(np.vstack([distinct_colors(len(CLASSES) - 1), VOID]))


Pixels = npt.NDArray[Any]  # [H, W, 3] of 8 bits, labels [H, W], or lines [N, 2, 2]


class Drawn(NamedTuple):
    """A window, and its score where it is a prediction."""

    window: Image.Image
    score: str = ""


class Sheet(NamedTuple):
    """A picture that is being made, with the size of its text and the name of the score."""

    image: Image.Image
    size: int
    score: str

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
            self.write((place[0], place[1] - 6), f"{self.score} {drawn.score}", anchor="ld")

    def add_key(self, top: int, columns: int, left: int = 0) -> None:
        """Write the names of the classes next to their colors."""
        across = (self.image.width - left) // columns
        for at, (name, color) in enumerate(zip(CLASSES, COLORS, strict=True)):
            x, y = left + at % columns * across, top + at // columns * (self.size + 12)
            box = (x, y + 3, x + self.size - 2, y + self.size + 1)
            ImageDraw.Draw(self.image).rectangle(box, tuple(color.tolist()), "black")
            self.write((x + self.size + 8, y), name)


def read_windows() -> list[list[Drawn]]:
    """Return the windows, by row."""
    drawn = np.asarray(Image.open(Path(__file__).with_name("quality-crops.png")).convert("RGB"))
    centers = (np.arange(PIXELS) + 0.5) * DRAWN_SIDE / PIXELS  # of pixels, where no line is
    rows = []
    for top in TOP + DOWN * np.arange(len(ROWS)):
        of_row = drawn[(top + centers).astype(int)]
        image, truth, *predictions = (of_row[:, (LEFT + ACROSS * k + centers).astype(int)] for k in range(len(COLUMNS)))
        rows.append([Drawn(draw_window(image)), Drawn(draw_window(truth))])
        labels, void = read_labels(truth), len(CLASSES) - 1
        borders = find_borders(np.where(labels == void, -1, labels))
        for prediction in predictions:
            found = count(torch.as_tensor(read_labels(prediction)), torch.as_tensor(labels), void, void)
            score = f"{100 * score_f1(found).item():.0f} %"
            rows[-1].append(Drawn(draw_window(prediction, borders), score))
    return rows


def read_labels(colors: Pixels) -> Pixels:
    """Return the class of each pixel of a window.

    Raises:
        ValueError: if a color is that of no class.
    """
    found = (colors[:, :, None] == COLORS).all(-1)
    if not found.any(-1).all():
        raise ValueError(
            "quality-crops.png: expected the colors of classes, but got others; correct the places of windows"
        )
    return found.argmax(-1)


def draw_window(colors: Pixels, borders: Pixels | None = None) -> Image.Image:
    """Draw the pixels of a window and the lines of `find_borders`, in a frame."""
    window = Image.new("RGB", (SIDE, SIDE), FRAME)
    window.paste(Image.fromarray(colors.repeat(SCALE, 0).repeat(SCALE, 1)), (1, 1))
    for start, stop in [] if borders is None else (SCALE * (borders + 0.5)).tolist():
        ImageDraw.Draw(window).line([*start, *stop], LINE)
    return window


def blank(width: int, height: int) -> Image.Image:
    """Return a white picture."""
    return Image.new("RGB", (width, height), "white")


def draw_wide(windows: Sequence[Sequence[Drawn]]) -> Image.Image:
    """Draw a row for each window."""
    left, gap, below, head = 0, 14, 38, 64
    sheet = Sheet(blank(5 * SIDE + 4 * gap, head + 3 * (SIDE + below) + 2 * 30 + 60), 24, "boundary F1")
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
    sheet = Sheet(blank(3 * SIDE + 2 * gap, head + 5 * (SIDE + text) + 3 * 34 + 200), 29, "F1")
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
