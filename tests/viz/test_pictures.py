"""The small pictures of pages: to the pixel, and small."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgeloss.viz.palette import RIGHT, VOID, WRONG
from edgeloss.viz.pictures import encode_png, error_overlay, photo_picture, photograph, picture


def decoded(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("colors", [1, 5, 256, 257])
def test_pngs_are_lossless(channels: int, colors: int) -> None:
    random = np.random.default_rng(0)
    table = random.integers(0, 256, (4 * colors, channels), np.uint8)
    table = np.unique(table, axis=0)[:colors]
    pixels = table[np.append(np.arange(colors), random.integers(0, colors, 64 * 40 - colors)).reshape(40, 64)]
    content = encode_png(pixels)
    np.testing.assert_array_equal(decoded(content)[..., :channels], pixels)
    assert Image.open(io.BytesIO(content)).mode == ("P" if colors <= 256 else "RGB" if channels == 3 else "RGBA")


def test_a_smaller_picture_has_pixels_of_the_larger_one() -> None:
    row = np.arange(90, dtype=np.uint8)
    pixels = np.stack(np.broadcast_arrays(row, row[:60, None], 7), -1).astype(np.uint8)
    made = picture(pixels, 30, "a caption", base="gray")
    assert (made["caption"], made["base"], made["size"]) == ("a caption", "gray", (30, 20))
    small = decoded(base64.b64decode(made["source"].partition(",")[2]))
    np.testing.assert_array_equal(small[..., 0], np.tile(row[1::3], (20, 1)))
    np.testing.assert_array_equal(small[..., 1], np.tile(row[1:60:3, None], (1, 30)))
    assert picture(pixels, 400, "")["size"] == (90, 60)  # never larger


def test_errors_are_marked_over_a_photograph_and_without_one() -> None:
    target, prediction = np.array([[0, 1, -1]]), np.array([[0, 2, 1]])
    of_photo, alone = (error_overlay(target, prediction, on_photo=is_there) for is_there in (True, False))
    wrong, void, right = (np.rint(255 * np.array(color)).tolist() for color in (WRONG, VOID, RIGHT))
    assert of_photo[0, :, 3].tolist() == [0, 255, 255]
    assert of_photo[0, 1:, :3].tolist() == [wrong, void]
    assert alone[0].tolist() == [[*right, 255], [*wrong, 255], [*void, 255]]


def test_photographs() -> None:
    image = np.full((50, 100, 3), 200, np.uint8)
    content = base64.b64decode(photograph(image, 40).removeprefix("data:image/jpeg;base64,"))
    assert Image.open(io.BytesIO(content)).size == (40, 20)
    assert photograph(None, 40) == ""
    assert photo_picture(image, image.shape[:2])["caption"] == "image"
    assert photo_picture(None, (50, 100)) == {
        "source": "",
        "caption": "no image given",
        "about": "",
        "base": "photo",
        "size": [100, 50],
    }
