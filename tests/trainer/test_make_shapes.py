"""The generated data set and its generator."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_data import pixels

import make_shapes
from edgeloss.io import read_classes

SHAPES = Path(__file__).resolve().parents[2] / "data" / "shapes"
SPLITS = ("train", "val")


@pytest.mark.parametrize(("split", "index"), [("train", 0), ("val", 3)])
def test_generator_draws_what_is_on_disk(split: str, index: int) -> None:
    image, mask = make_shapes.draw(0, SPLITS.index(split), index, 128)
    np.testing.assert_array_equal(image, pixels(SHAPES / split / "images" / f"{index:03d}.png"))
    np.testing.assert_array_equal(mask, pixels(SHAPES / split / "masks" / f"{index:03d}.png"))


@pytest.mark.slow
def test_whole_set_is_as_generated() -> None:
    assert make_shapes.main(["--check"]) == 0


@pytest.mark.parametrize("size", [64, 101])  # the smallest, and an odd one
def test_generator_draws_other_sizes_and_seeds(size: int) -> None:
    image, mask = make_shapes.draw(0, 0, 2, size)
    assert (image.shape, mask.shape) == ((size, size, 3), (size, size))
    assert len(np.unique(mask)) >= 4
    assert (image != make_shapes.draw(1, 0, 2, size)[0]).any()


SMALL = ("--train", "2", "--val", "1", "--size", "64")


def change_a_pixel(path: Path) -> None:
    changed = pixels(path).copy()
    changed[0, 0] ^= 4
    Image.fromarray(changed).save(path)


def test_check_names_the_file_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path), *SMALL]
    assert [make_shapes.main(words), make_shapes.main([*words, "--check"])] == [0, 0]
    for damage, name, message in (
        (change_a_pixel, "train/images/001.png", "train/images/001.png: 3 of 12288 values differ"),
        (lambda path: path.unlink(), "train/masks/000.png", "train/masks/000.png: missing"),
        (lambda path: path.write_bytes(b"no picture"), "val/images/000.png", "val/images/000.png: unreadable"),
        (lambda path: path.write_text("0 sky\n"), "classes.txt", "classes.txt: other classes"),
        (lambda path: shutil.copy(path, path.with_name("9.png")), "val/masks/000.png", "val/masks/9.png: not part of"),
    ):
        content = (tmp_path / name).read_bytes()
        damage(tmp_path / name)
        assert make_shapes.main([*words, "--check"]) == 1
        assert message in capsys.readouterr().err
        (tmp_path / name).write_bytes(content)


def test_merged_textures_are_one_class(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), *SMALL]
    assert make_shapes.main([*arguments, "--merge"]) == 0
    assert [make_shapes.main([*arguments, "--check", *merge]) for merge in (["--merge"], [])] == [0, 1]
    assert read_classes(tmp_path / "classes.txt") == (["background", "shape", "wire"], 255)
    whole, mask = make_shapes.draw(0, 0, 0, 64)[1], pixels(tmp_path / "train" / "masks" / "000.png")
    for label, of_whole in {0: whole == 0, 2: whole == make_shapes.WIRE, 255: whole == 255}.items():
        np.testing.assert_array_equal(mask == label, of_whole)
    assert set(np.unique(mask).tolist()) == {0, 1, 2, 255}
