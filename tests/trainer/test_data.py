"""Data sets: what they read, and which files and options they reject."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_masks import blocks, gray, open_folder, pixels, save

from edgeloss.io import read_classes
from segkit.data import MEAN, STD, Augment, denormalize, normalize

SHAPES = Path(__file__).resolve().parents[2] / "data" / "shapes"
CLASSES = 10


def test_loads_the_set() -> None:
    dataset = open_folder(SHAPES / "val", num_classes=CLASSES)
    assert dataset.names == [f"{index:03d}" for index in range(16)]
    assert len(dataset) == 16
    for index in (3, -1):
        image, mask = dataset[index]
        name = f"{dataset.names[index]}.png"
        assert image.dtype == torch.float32
        assert mask.dtype == torch.int64
        np.testing.assert_array_equal(mask.numpy(), pixels(SHAPES / "val" / "masks" / name))
        rgb = pixels(SHAPES / "val" / "images" / name).astype(np.float64) / 255
        expected = (rgb - np.array(MEAN)) / np.array(STD)
        np.testing.assert_allclose(image.numpy(), expected.transpose(2, 0, 1), atol=1e-6)
        np.testing.assert_allclose(denormalize(image).numpy(), rgb.transpose(2, 0, 1), atol=1e-6)
    with pytest.raises(IndexError):
        dataset[16]


def test_normalize_undoes_denormalize() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    back = (denormalize(normalize(pixels)) * 255).round().to(torch.uint8)
    np.testing.assert_array_equal(back.permute(1, 2, 0).numpy(), pixels)


def test_denormalize_takes_batches_and_clips() -> None:
    batch = torch.stack([torch.zeros(3, 2, 2), torch.full((3, 2, 2), 9.0)])
    mean = torch.tensor(MEAN)[:, None, None].expand(3, 2, 2)
    torch.testing.assert_close(denormalize(batch), torch.stack([mean, torch.ones(3, 2, 2)]))


def test_loads_camvid(camvid: Path) -> None:
    names, ignore_index = read_classes(camvid / "classes.txt")
    assert len(names) == 11
    assert ignore_index == 255
    dataset = open_folder(camvid / "val", num_classes=11, ignore_index=255, size=(180, 240), augment=Augment())
    assert len(dataset) == 101
    for index in (0, 100):
        image, mask = dataset[index]
        assert image.shape == (3, 180, 240)
        assert mask.shape == (180, 240)
        assert set(np.unique(mask.numpy()).tolist()) <= {*range(11), 255}


def test_suffixes_and_hidden_files(folder: Path) -> None:
    (folder / "images" / "a.png").rename(folder / "images" / "a.PNG")
    (folder / "masks" / "b.png").rename(folder / "masks" / "b.Png")
    (folder / "images" / "c.png").unlink()
    Image.fromarray(gray(blocks())).save(folder / "images" / "c.JPG", quality=95)
    (folder / "images" / ".DS_Store").write_bytes(b"")
    dataset = open_folder(folder)
    assert dataset.names == ["a", "b", "c"]
    torch.testing.assert_close(dataset[2][0], dataset[0][0], atol=0.2, rtol=0)  # JPEG is lossy
    assert torch.equal(dataset[2][1], dataset[0][1])


def test_palette_masks_give_indices(folder: Path) -> None:
    image = Image.fromarray(blocks()).convert("L")
    palette = Image.new("P", image.size)
    palette.putpalette([value for label in range(256) for value in (255 - label, label * 7 % 256, 128)])
    palette.putdata(list(image.tobytes()))
    palette.save(folder / "masks" / "b.png")
    assert pixels(folder / "masks" / "b.png").ndim == 2
    dataset = open_folder(folder)
    assert torch.equal(dataset[1][1], dataset[0][1])


def test_bilevel_and_16_bit_masks(tmp_path: Path) -> None:
    mask = blocks(classes=2)
    save(tmp_path, "a", mask)
    Image.fromarray(mask.astype(bool)).save(tmp_path / "masks" / "a.png")
    save(tmp_path, "b", mask)
    Image.fromarray(mask.astype(np.uint16) * 300).save(tmp_path / "masks" / "b.png")
    dataset = open_folder(tmp_path, num_classes=301)
    assert torch.equal(dataset[0][1], torch.from_numpy(mask).long())
    assert torch.equal(dataset[1][1], torch.from_numpy(mask).long() * 300)


def test_images_are_turned_upright(folder: Path) -> None:
    sideways = Image.fromarray(np.rot90(gray(blocks())))  # a quarter turn to the left ...
    exif = Image.Exif()
    exif[0x0112] = 6  # ... and the orientation tag that says so
    sideways.save(folder / "images" / "b.png", exif=exif)
    dataset = open_folder(folder)
    assert torch.equal(dataset[1][0], dataset[0][0])


@pytest.mark.parametrize("width", [97, 64, 40, 23, 20, 10])
def test_resize_keeps_pixel_centers_in_register(width: int, tmp_path: Path) -> None:
    # Both files hold the column's number, so the resized image says at which column the resized mask should have
    # looked: the pixel it picks is centered at most half a pixel away. A resize that ignores centers errs by up to one.
    mask = np.tile(np.arange(40, dtype=np.uint8), (8, 1))
    save(tmp_path, "a", mask, gray(mask, step=6))
    image, labels = open_folder(tmp_path, num_classes=40, size=(8, width))[0]
    columns = denormalize(image)[0] * 255 / 6
    rounding = 0.51 / 6  # the resized image is rounded to 8 bits
    centers = ((torch.arange(width) + 0.5) * 40 / width - 0.5).clamp(0, 39)
    assert (labels - centers).abs().max() <= 0.5
    # Averaging over a fraction of a pixel bends the ramp by up to an eighth; repeating pixels would make it steps.
    assert (columns - centers).abs().max() <= 0.125 + rounding


def test_shrinking_averages(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    save(tmp_path, "a", np.zeros((40, 60), dtype=np.uint8), noise)
    image, _ = open_folder(tmp_path, num_classes=1, size=(10, 20))[0]
    mean = noise.reshape(10, 4, 20, 3, 3).mean(axis=(1, 3)).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(denormalize(image).numpy(), mean, atol=0.51 / 255)


def _remove(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def _move_away(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).rename(folder / "elsewhere")

    return damage


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (
            _move_away("images"),
            FileNotFoundError,
            "{folder}/images: no such folder, expected {folder}/images and {folder}/masks",
        ),
        (
            _move_away("masks"),
            FileNotFoundError,
            "{folder}/masks: no such folder, expected {folder}/images and {folder}/masks",
        ),
        (
            _remove("masks/b.png"),
            FileNotFoundError,
            "{folder}/images/b.png: has no mask, expected {folder}/masks/b.png",
        ),
        (
            _remove("images/b.png"),
            ValueError,
            "{folder}/masks/b.png: has no image, expected b{{.png,.jpg,.jpeg}} in {folder}/images",
        ),
        (
            _remove(*(f"images/{n}.png" for n in "abc")),
            FileNotFoundError,
            "{folder}/images: expected .png or .jpg or .jpeg files, but",
        ),
        (
            lambda f: (f / "images/b.jpg").touch(),
            ValueError,
            "{folder}/images/b.png: expected one file per name, but got {folder}/images/b.jpg too",
        ),
        (
            lambda f: (f / "images/d.tif").touch(),
            ValueError,
            "{folder}/images/d.tif: expected only .png or .jpg or .jpeg files",
        ),
        (lambda f: (f / "masks/b.jpg").touch(), ValueError, "{folder}/masks/b.jpg: expected only .png files"),
        (lambda f: (f / "masks/d.png").mkdir(), ValueError, "{folder}/masks/d.png: expected only .png files"),
    ],
)
def test_construction_refuses_an_inconsistent_folder(
    damage: Callable[[Path], None], kind: type[Exception], message: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(kind, match=re.escape(message.format(folder=folder))):
        open_folder(folder)


def test_construction_refuses_a_missing_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'nowhere'}: no such folder, expected")):
        open_folder(tmp_path / "nowhere")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _label(row: int, column: int, label: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        mask = pixels(path).copy()
        mask[row, column : column + 3] = label
        Image.fromarray(mask).save(path)

    return damage


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (_truncate, "images/b.png", ": can't be read as an image ("),
        (_truncate, "masks/b.png", ": can't be read as an image ("),
        (
            lambda path: path.write_text("no picture"),
            "images/b.png",
            ": can't be read as an image (cannot identify image file)",
        ),
        (lambda path: path.write_bytes(b""), "masks/b.png", ": can't be read as an image (cannot identify image file)"),
        (lambda path: path.unlink(), "masks/b.png", ": No such file"),
        (lambda path: Image.new("L", (80, 59)).save(path), "masks/b.png", ": expected 80 x 60 pixels as in"),
        (
            lambda path: Image.new("RGB", (80, 60), (200, 10, 10)).save(path),
            "masks/b.png",
            ": expected class indices, but got colors, (200, 10, 10) at [0, 0]; store indices",
        ),
        (
            lambda path: Image.new("I;16", (80, 60)).save(path),
            "images/b.png",
            ": expected 8 bits per channel, but got an image of mode I;16",
        ),
        (
            _label(7, 30, 10),
            "masks/b.png",
            ": expected labels 0 to 9 or 255, but got 10 at 3 pixels, first at row 7, column 30",
        ),
        (
            _label(59, 77, 254),
            "masks/b.png",
            ": expected labels 0 to 9 or 255, but got 254 at 3 pixels, first at row 59, column 77",
        ),
    ],
)
@pytest.mark.parametrize("augment", [None, Augment()], ids=["plain", "augmented"])
def test_reading_refuses_a_bad_file(
    damage: Callable[[Path], None], name: str, message: str, augment: Augment | None, folder: Path
) -> None:
    dataset = open_folder(folder, augment=augment)
    damage(folder / name)
    with pytest.raises(ValueError, match=re.escape(f"{folder / name}{message}")):
        dataset[1]
    assert dataset[0][1].shape == (60, 80)  # its neighbors are still readable


def test_unreadable_file_keeps_the_cause(folder: Path) -> None:
    dataset = open_folder(folder)
    _truncate(folder / "images" / "b.png")
    with pytest.raises(ValueError, match=r"b\.png") as error:
        dataset[1]
    assert isinstance(error.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "classes: expected at least one, but got none"),
        ({"size": (0, 4)}, "size: expected (height, width), both >= 1, but got (0, 4)"),
        ({"size": (4,)}, "size: expected (height, width), both >= 1, but got (4,)"),
        ({"seed": -1}, "seed: expected an integer >= 0, but got -1"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        open_folder(folder, **arguments)  # type: ignore[arg-type]


def test_bad_epoch(folder: Path) -> None:
    with pytest.raises(ValueError, match="epoch: expected an integer >= 0, but got -1"):
        open_folder(folder).set_epoch(-1)
