"""Data sets of images: what they read, change at random and cache, and which files and options they reject."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_masks import blocks, gray, open_folder, pixels, save
from torch import Tensor
from torch.utils.data import DataLoader

from segkit.data import MEAN, STD, Augment, denormalize

SHAPES = Path(__file__).resolve().parents[2] / "data" / "shapes"


def test_loads_the_set() -> None:
    dataset = open_folder(SHAPES / "val")
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


def test_other_suffixes_and_hidden_files(folder: Path) -> None:
    (folder / "images" / "a.png").rename(folder / "images" / "a.PNG")
    (folder / "masks" / "b.png").rename(folder / "masks" / "b.Png")
    (folder / "images" / "c.png").unlink()
    Image.fromarray(gray(blocks())).save(folder / "images" / "c.JPG", quality=95)
    (folder / "images" / ".DS_Store").write_bytes(b"")
    dataset = open_folder(folder)
    assert dataset.names == ["a", "b", "c"]
    torch.testing.assert_close(dataset[2][0], dataset[0][0], atol=0.2, rtol=0)  # JPEG is lossy
    assert torch.equal(dataset[2][1], dataset[0][1])


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


# -------------------------------------------------------------------------------------------------------- augmentation


@pytest.mark.parametrize("size", [None, (60, 80), (45, 90), (80, 64)])
def test_image_and_mask_move_together(size: tuple[int, int] | None, folder: Path) -> None:
    """Where a label fills the surroundings of a pixel, the image must show it.

    Enlarging f times blends the image over f / 2 pixels on both sides of a border, so 3 × 3 serve to f = 2.
    """
    dataset = open_folder(folder, size=size, augment=Augment(flip=0.5, scale=(0.5, 1.5), color=0.0))
    for epoch in range(10):
        dataset.set_epoch(epoch)
        for image, mask in map(dataset.__getitem__, range(3)):
            assert mask.shape == (size or (60, 80))
            shown = (denormalize(image)[0] * 255 / 25).round().long()[1:-1, 1:-1]
            around, labels = mask.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2), mask[1:-1, 1:-1]
            inside = (around == around[..., :1]).all(dim=-1) & (labels != 255)
            assert inside.float().mean() > 0.05
            assert torch.equal(labels[inside], shown[inside])
            assert torch.equal((image == 0).all(dim=0), mask == 255)  # padding alone has exactly the mean color


@pytest.mark.parametrize(("flip", "size"), [(1.0, None), (0.0, (45, 60))])
def test_flips_and_nothing_else(flip: float, size: tuple[int, int] | None, folder: Path) -> None:
    plain = open_folder(folder, size=size)[0]
    image, mask = open_folder(folder, size=size, augment=Augment(flip, (1.0, 1.0), 0.0))[0]
    torch.testing.assert_close(image.flip(-1) if flip else image, plain[0])
    assert torch.equal(mask.flip(-1) if flip else mask, plain[1])


@pytest.mark.parametrize(("factor", "padding"), [(0.5, 60 * 80 - 30 * 40), (1.0, 0), (2.0, 0)])
def test_shrinking_pads_and_enlarging_crops(factor: float, padding: int, folder: Path) -> None:
    augment = Augment(flip=0.0, scale=(factor, factor), color=0.0)
    _, mask = open_folder(folder, ignore_index=77, augment=augment)[0]
    assert int((mask == 77).sum()) == padding


def test_color_varies_brightness_contrast_and_saturation(tmp_path: Path) -> None:
    # Mid-gray with little variation, so that nothing is clipped and the factors can be read back from the result.
    noise = np.random.default_rng(0).integers(110, 130, (60, 80, 3), dtype=np.uint8)
    save(tmp_path, "a", blocks(), noise)
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    plain = open_folder(tmp_path)
    colored = open_folder(tmp_path, augment=Augment(flip=0.0, scale=(1.0, 1.0), color=0.4))
    before = denormalize(plain[0][0])
    gray_before = (luma * before).sum(dim=0)
    factors = []
    for epoch in range(30):
        colored.set_epoch(epoch)
        assert torch.equal(colored[0][1], plain[0][1])
        after = denormalize(colored[0][0])
        gray_after = (luma * after).sum(dim=0)
        brightness = gray_after.mean() / gray_before.mean()
        contrast = gray_after.std() / gray_before.std() / brightness
        saturation = (after - gray_after).std() / (before - gray_before).std() / brightness / contrast
        factors.append(torch.stack([brightness, contrast, saturation]))
    low, high = torch.stack(factors).aminmax(dim=0)
    assert ((low > 0.599) & (low < 0.8)).all()
    assert ((high > 1.2) & (high < 1.401)).all()


def test_color_stays_within_range(tmp_path: Path) -> None:
    save(tmp_path, "a", blocks(), np.random.default_rng(0).choice(np.array([0, 255], dtype=np.uint8), (60, 80, 3)))
    dataset = open_folder(tmp_path, augment=Augment(scale=(1.0, 1.0), color=1.0))
    for epoch in range(10):
        dataset.set_epoch(epoch)
        rgb = dataset[0][0] * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
        assert rgb.min() > -1e-6
        assert rgb.max() < 1 + 1e-6


def test_augmentation_depends_on_seed_epoch_and_index_only(folder: Path) -> None:
    def sample(seed: int, epoch: int, index: int) -> Tensor:
        dataset = open_folder(folder, augment=Augment(), seed=seed)
        dataset.set_epoch(epoch)
        return dataset[index][0]

    first = sample(0, 0, 1)
    used = open_folder(folder, augment=Augment(), seed=0)
    for epoch in (3, 0):  # with another past: other epochs, other samples, another state of the global generators
        used.set_epoch(epoch)
        for index in (2, 0, 1):
            torch.rand(3)
            last = used[index][0]
    assert torch.equal(last, first)
    # All three files hold the same picture, so every difference is one of the augmentation.
    for other in (sample(1, 0, 1), sample(0, 1, 1), sample(0, 0, 2)):
        assert not torch.equal(other, first)


# --------------------------------------------------------------------------------------------------------------- cache

STARTS = [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]


@pytest.mark.skipif(sys.platform != "linux", reason="start methods differ elsewhere")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
@pytest.mark.parametrize(("workers", "start"), STARTS)
@pytest.mark.parametrize(("size", "augment"), [((30, 50), None), (None, Augment())], ids=["plain", "augmented"])
def test_a_cache_gives_the_same_without_the_files(
    workers: int, start: str | None, size: tuple[int, int] | None, augment: Augment | None, folder: Path
) -> None:
    save(folder, "b", blocks(70, 90))  # images of two sizes
    plain, cached = (open_folder(folder, size=size, augment=augment, cache=cache) for cache in (False, True))
    loader = DataLoader(
        cached, num_workers=workers, multiprocessing_context=start, persistent_workers=workers > 0
    )  # of workers that live on
    expected = []
    for epoch in range(2):
        plain.set_epoch(epoch)
        expected.append([part[None] for index in range(3) for part in plain[index]])
    shutil.rmtree(folder / "images")
    for epoch in range(2):
        cached.set_epoch(epoch)
        for part, wanted in zip([part for batch in loader for part in batch], expected[epoch], strict=True):
            assert torch.equal(part, wanted)


def test_a_cache_keeps_large_labels_and_is_not_changed_by_a_sample(tmp_path: Path) -> None:
    save(tmp_path, "a", blocks(classes=2))
    Image.fromarray(blocks(classes=2).astype(np.uint16) * 300).save(tmp_path / "masks" / "a.png")
    dataset = open_folder(tmp_path, num_classes=301, ignore_index=-100, cache=True)
    for _ in range(2):
        image, labels = dataset[0]
        assert torch.equal(labels, torch.from_numpy(blocks(classes=2)).long() * 300)
        assert image.any()
        image.zero_()
        labels.zero_()


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / "images").rename(f / "elsewhere"),
            "{folder}/images: no such folder, expected {folder}/images and {folder}/masks",
        ),
        (lambda f: (f / "masks/b.png").unlink(), "{folder}/images/b.png: has no mask, expected {folder}/masks/b.png"),
        (lambda f: (f / "images/b.png").unlink(), "{folder}/masks/b.png: has no image, expected one of its name in"),
        (lambda f: [path.unlink() for path in (f / "images").iterdir()], "{folder}/images: expected .png, .jpg,"),
        (lambda f: (f / "images/b.jpg").touch(), "{folder}/images/b.png: expected one file per name, but got"),
    ],
)
def test_construction_refuses_an_inconsistent_folder(
    damage: Callable[[Path], object], message: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=re.escape(message.format(folder=folder))):
        open_folder(folder)


def _label(row: int, column: int, label: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        mask = pixels(path).copy()
        mask[row, column : column + 3] = label
        Image.fromarray(mask).save(path)

    return damage


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:99]), "images/b.png", ": can't be read as an image ("),
        (lambda path: Image.new("L", (80, 59)).save(path), "masks/b.png", ": expected 80 x 60 pixels as in"),
        (
            _label(7, 30, 10),
            "masks/b.png",
            ": expected labels 0 to 9 or 255, but got 10 at 3 pixels, first at row 7, column 30",
        ),
    ],
)
def test_reading_refuses_a_bad_file(damage: Callable[[Path], None], name: str, message: str, folder: Path) -> None:
    dataset = open_folder(folder)
    damage(folder / name)
    with pytest.raises(ValueError, match=re.escape(f"{folder / name}{message}")):
        dataset[1]
    with pytest.raises(ValueError, match=re.escape(f"{folder / name}{message}")):
        open_folder(folder, cache=True)
    assert dataset[0][1].shape == (60, 80)  # its neighbors are still readable


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
    with pytest.raises(ValueError, match="epoch: expected an integer >= 0, but got -1"):
        open_folder(folder).set_epoch(-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"flip": 1.5}, "flip: expected a probability in [0, 1], but got 1.5"),
        ({"scale": (1.0, 0.5)}, "scale: expected (low, high) with 0 < low <= high, but got (1.0, 0.5)"),
        ({"scale": (0.0, 1.0)}, "scale: expected (low, high) with 0 < low <= high, but got (0.0, 1.0)"),
        ({"color": -0.1}, "color: expected a number in [0, 1], but got -0.1"),
        ({"crop": (0, 8)}, "crop: expected (height, width), both >= 1, but got (0, 8)"),
    ],
)
def test_bad_augmentation(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Augment(**arguments)  # type: ignore[arg-type]
