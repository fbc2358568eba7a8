"""The pictures of the first page."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import first_page


@pytest.mark.parametrize("name", first_page.DRAWN)
def test_pictures_are_what_the_script_draws(name: str) -> None:
    path = first_page.IMAGES / f"{name}.png"
    drawn = np.asarray(first_page.DRAWN[name](first_page.read_windows()))
    np.testing.assert_array_equal(np.asarray(Image.open(path).convert("RGB")), drawn)
    assert path.stat().st_size < 500_000
