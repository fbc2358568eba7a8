"""Write figures as small files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:  # slow to import, and not needed where nothing is drawn
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Write a figure as a PNG with 256 colours, chosen for it: about a third of the size with all colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
