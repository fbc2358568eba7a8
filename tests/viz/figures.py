"""Reading a figure: its axes, captions, arrays and pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PICTURES = ["image", "ground truth", "prediction", "errors"]
MAPS = ["cross-entropy", "edge map", "|gradient|", "|region gradient|"]
GRAY, MAGENTA, BLACK = (158, 158, 158), (255, 0, 255), (0, 0, 0)


def pictures(figure: Figure) -> dict[str, Axes]:
    """Return the axes of a figure of one image, by caption."""
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def drawn(axes: Axes) -> np.ma.MaskedArray[Any, Any]:
    """Return the array that a map shows."""
    return np.ma.asarray(axes.images[0].get_array())


def caption(axes: Axes) -> str:
    return axes.texts[0].get_text()


def render(figure: Figure) -> npt.NDArray[np.uint8]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


def color_at(paper: npt.NDArray[np.uint8], axes: Axes, row: int, column: int) -> tuple[int, ...]:
    """Return the color in the middle of a pixel of the rendered figure."""
    x, y = axes.transData.transform((column, row))
    return tuple(int(value) for value in paper[paper.shape[0] - 1 - int(y), int(x)])
