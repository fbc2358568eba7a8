"""Logits and targets to draw, and what a figure of them shows: its axes, captions, arrays and pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.viz.arrays import Arrays, Details, examine, read_scene

PICTURES = ["image", "ground truth", "prediction", "wrong pixels"]
MAPS = ["cross-entropy", "edge map", "|gradient|", "|region gradient|"]
GRAY, MAGENTA, BLACK = (158, 158, 158), (255, 0, 255), (0, 0, 0)
MARKUP = ["road", "<b>car</b>", "</script><script>document.title='caught'</script>"]


def scene(height: int = 12, width: int = 16, classes: int = 3, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Logits and a target of large patches, so that there are edges and pixels off them; the last row is ignored."""
    target = torch.randint(classes, (batch, -(-height // 4), -(-width // 4)))
    target = target.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, :height, :width].contiguous()
    if height > 1:
        target[:, -1] = -100
    return torch.randn(batch, classes, height, width), target


def patches(height: int = 24, width: int = 36, classes: int = 3, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Logits and a target of large patches; a corner is ignored."""
    target = torch.randint(classes, (batch, -(-height // 6), -(-width // 6)))
    target = target.repeat_interleave(6, 1).repeat_interleave(6, 2)[:, :height, :width].contiguous()
    target[:, :3, :5] = -100
    return 2 * torch.randn(batch, classes, height, width), target


def large_image(kind: str) -> dict[str, Any]:
    """An image of 1024 × 2048 pixels and 19 classes."""
    generator = torch.Generator().manual_seed(0)
    coarse = (32, 64) if kind == "noise" else (8, 16)  # 23 % of edge pixels, or 5 %
    few = torch.randn(1, 19, *coarse, generator=generator)
    logits = 4 * torch.nn.functional.interpolate(few, (1024, 2048), mode="bicubic")
    target = logits.argmax(1).roll(5, 2)
    if kind == "noise":
        logits = torch.randn(logits.shape, generator=generator)
    image = torch.rand(1, 3, 1024, 2048, generator=generator)
    return {"logits": logits, "target": target, "image": image}


def examined(
    logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None, **options: Any
) -> tuple[Arrays, Details]:
    """Examine a scene with its details."""
    arrays = examine(read_scene(logits, target, criterion), **({"neighbors": 1} | options))
    assert arrays.details is not None
    return arrays, arrays.details


def pictures(figure: Figure) -> dict[str, Axes]:
    """Return the axes of a figure of one image, by caption."""
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def drawn(axes: Axes) -> np.ma.MaskedArray[Any, Any]:
    """Return the array that a map shows."""
    return np.ma.asarray(axes.images[0].get_array())


def key_of(figure: Figure) -> list[str]:
    """Return the names of the key."""
    return [legend.get_texts()[0].get_text() for legend in figure.legends]


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
