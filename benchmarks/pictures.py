"""Write figures as small files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:  # slow to import, and not needed where nothing is drawn
    from matplotlib.figure import Figure

LIMIT = 500_000  # bytes


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Write a figure as a PNG, reduced to 256 colors if it exceeds 500 kB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    if buffer.tell() > LIMIT:
        Image.open(buffer).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    else:
        path.write_bytes(buffer.getvalue())
