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
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    save_png(buffer.getvalue(), path)


def save_png(content: bytes, path: Path) -> None:
    """Write a PNG, reduced to 256 colors if it exceeds 500 kB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(content) > LIMIT:
        picture = Image.open(BytesIO(content)).convert("RGB")
        picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    else:
        path.write_bytes(content)
