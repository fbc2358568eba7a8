"""The panel of docs/start.md is that of its commands."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import start_picture


def test_the_committed_panel_is_that_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["start_picture.py", "--output", str(tmp_path)])
    start_picture.main()
    for ending, width in start_picture.WIDTHS.items():
        name = f"start{ending}.png"
        with Image.open(tmp_path / name) as drawn, Image.open(start_picture.DOCS / "images" / name) as committed:
            assert drawn.width == round(220 * width)
            small = [np.asarray(image.convert("RGB").resize((96, 96)), dtype=float) for image in (drawn, committed)]
        assert np.abs(small[0] - small[1]).mean() < 6  # processors round differently
