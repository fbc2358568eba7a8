"""The generated data set, its generator, and the loader of the examples."""

from __future__ import annotations

import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import make_shapes
from edgeloss.io import read_classes
from segkit.data import (
    MEAN,
    STD,
    Augment,
    SegmentationFolder,
    _Cache,
    denormalize,
    normalize,
    seed_worker,
    waited,
)

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "data" / "shapes"
SPLITS = ("train", "val")
COUNTS = {"train": 64, "val": 16}
CLASSES = 10

Bytes = npt.NDArray[np.uint8]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="start methods differ elsewhere")
# Python 3.12 and later
fork_warns = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def pixels(path: Path) -> Bytes:
    with Image.open(path) as image:
        return np.asarray(image)


def masks(split: str) -> Bytes:
    return np.stack([pixels(path) for path in sorted((SHAPES / split / "masks").iterdir())])


# The data set and its generator


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("index", range(4))  # one of each layout
def test_generator_draws_what_is_on_disk(split: str, index: int) -> None:
    image, mask = make_shapes.draw(0, SPLITS.index(split), index, 128)
    np.testing.assert_array_equal(image, pixels(SHAPES / split / "images" / f"{index:03d}.png"))
    np.testing.assert_array_equal(mask, pixels(SHAPES / split / "masks" / f"{index:03d}.png"))


@pytest.mark.slow
def test_whole_set_is_as_generated() -> None:
    assert make_shapes.main(["--check"]) == 0


@pytest.mark.parametrize("split", SPLITS)
def test_masks_hold_every_class_and_void_and_nothing_else(split: str) -> None:
    found = masks(split)
    assert found.shape == (COUNTS[split], 128, 128)
    assert set(np.unique(found).tolist()) == {*range(CLASSES), 255}


@pytest.mark.parametrize("split", SPLITS)
def test_every_class_is_frequent_enough_to_be_learned(split: str) -> None:
    found = masks(split)
    for label in range(CLASSES):
        assert (found == label).any(axis=(1, 2)).mean() > 0.7, f"share of images with class {label}"
        assert (found == label).mean() > 0.03, f"share of pixels of class {label}"


def test_set_is_small() -> None:
    assert sum(path.stat().st_size for path in SHAPES.rglob("*") if path.is_file()) < 3_000_000


def test_train_and_val_share_no_image() -> None:
    seen = {pixels(path).tobytes() for split in SPLITS for path in (SHAPES / split / "images").iterdir()}
    assert len(seen) == sum(COUNTS.values())


def test_seed_changes_the_pictures() -> None:
    assert (make_shapes.draw(0, 0, 0, 64)[0] != make_shapes.draw(1, 0, 0, 64)[0]).any()


@pytest.mark.parametrize("size", [64, 101, 200])  # the smallest, an odd one, one beyond the default
def test_generator_draws_other_sizes(size: int) -> None:
    image, mask = make_shapes.draw(0, 0, 2, size)
    assert image.shape == (size, size, 3)
    assert mask.shape == (size, size)
    assert len(np.unique(mask)) >= 4


def _change_a_pixel(path: Path) -> None:
    changed = pixels(path).copy()
    changed[0, 0] ^= 4
    Image.fromarray(changed).save(path)


def _add_a_file(path: Path) -> None:
    path.with_name("999.png").write_bytes(path.read_bytes())


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (_change_a_pixel, "train/images/001.png", "train/images/001.png: 3 of 12288 values differ"),
        (_change_a_pixel, "val/masks/000.png", "val/masks/000.png: 1 of 4096 values differ"),
        (lambda path: path.unlink(), "train/masks/000.png", "train/masks/000.png: missing"),
        (lambda path: path.write_bytes(b"no picture"), "val/images/000.png", "val/images/000.png: unreadable"),
        (lambda path: Image.new("RGB", (9, 7)).save(path), "val/images/000.png", "but got uint8 [7, 9, 3]"),
        (_add_a_file, "val/images/000.png", "val/images/999.png: not part of the set"),
        (lambda path: path.unlink(), "classes.txt", "classes.txt: missing"),
        (lambda path: path.write_text("0 sky\n"), "classes.txt", "classes.txt: other classes"),
    ],
)
def test_check_names_the_file_that_differs(
    damage: Callable[[Path], None], name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path), "--train", "2", "--val", "1", "--size", "64"]
    assert make_shapes.main(arguments) == 0
    assert make_shapes.main([*arguments, "--check"]) == 0
    capsys.readouterr()
    damage(tmp_path / name)
    assert make_shapes.main([*arguments, "--check"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--seed", "-1"), ("--size", "63"), ("--train", "few")])
def test_generator_refuses_bad_options(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        make_shapes.main([option, value])
    assert exit_.value.code == 2
    assert option in capsys.readouterr().err


# Class lists


def test_read_classes_of_the_set() -> None:
    assert read_classes(SHAPES / "classes.txt") == (list(make_shapes.CLASSES), 255)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 b\n\n0 a\n", (["a", "b"], None)),
        ("0 traffic light\r\n255 void\r\n", (["traffic light"], 255)),
        ("\ufeff0 a\n1 Void\n", (["a"], 1)),
        ("0 a\n255 unlabeled", (["a"], 255)),
    ],
)
def test_read_classes(text: str, expected: tuple[list[str], int | None], tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_classes(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 a\nb 1\n", """, line 2: expected "<index> <name>", but got 'b 1'"""),
        ("0\n", """, line 1: expected "<index> <name>", but got '0'"""),
        ("-1 a\n", """, line 1: expected "<index> <name>", but got '-1 a'"""),
        ("0 a\n0 b\n", ", line 2: index 0 occurs twice, first in line 1"),
        ("0 a\n1 a\n", ", line 2: name 'a' occurs twice"),
        ("0 a\n255 void\n7 void\n", ", line 3: second void line, the first is line 2"),
        ("0 a\n2 b\n", ", line 2: expected the indices of 2 classes to be 0 to 1 without a gap, but got 2"),
        ("255 void\n", ": expected at least one class, but got none"),
    ],
)
def test_read_classes_names_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        read_classes(path)


def test_read_classes_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.txt: No such file"):
        read_classes(tmp_path / "nowhere.txt")


# The loader: what it reads


def gray(mask: Bytes, step: int = 25) -> Bytes:
    """Return the image [H, W, 3] that shows each label as a gray value, so that it can be read back from the image."""
    return np.repeat((mask * step).astype(np.uint8)[..., None], 3, axis=2)


def save(root: Path, name: str, mask: Bytes, image: Bytes | None = None) -> None:
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.fromarray(gray(mask) if image is None else image).save(root / "images" / f"{name}.png")
    Image.fromarray(mask).save(root / "masks" / f"{name}.png")


def blocks(height: int = 60, width: int = 80, classes: int = 10) -> Bytes:
    """Return a mask of 10 × 10 blocks without any symmetry."""
    labels = np.random.default_rng(0).integers(0, classes, (height // 10, width // 10), dtype=np.uint8)
    return labels.repeat(10, axis=0).repeat(10, axis=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three pairs, 60 × 80."""
    for name in ("a", "b", "c"):
        save(tmp_path, name, blocks())
    return tmp_path


def test_loads_the_set() -> None:
    dataset = SegmentationFolder(SHAPES / "val", num_classes=CLASSES)
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
    dataset = SegmentationFolder(camvid / "val", num_classes=11, ignore_index=255, size=(180, 240), augment=Augment())
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
    dataset = SegmentationFolder(folder, num_classes=10)
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
    dataset = SegmentationFolder(folder, num_classes=10)
    assert torch.equal(dataset[1][1], dataset[0][1])


def test_bilevel_and_16_bit_masks(tmp_path: Path) -> None:
    mask = blocks(classes=2)
    save(tmp_path, "a", mask)
    Image.fromarray(mask.astype(bool)).save(tmp_path / "masks" / "a.png")
    save(tmp_path, "b", mask)
    Image.fromarray(mask.astype(np.uint16) * 300).save(tmp_path / "masks" / "b.png")
    dataset = SegmentationFolder(tmp_path, num_classes=301)
    assert torch.equal(dataset[0][1], torch.from_numpy(mask).long())
    assert torch.equal(dataset[1][1], torch.from_numpy(mask).long() * 300)


def test_images_are_turned_upright(folder: Path) -> None:
    sideways = Image.fromarray(np.rot90(gray(blocks())))  # a quarter turn to the left ...
    exif = Image.Exif()
    exif[0x0112] = 6  # ... and the orientation tag that says so
    sideways.save(folder / "images" / "b.png", exif=exif)
    dataset = SegmentationFolder(folder, num_classes=10)
    assert torch.equal(dataset[1][0], dataset[0][0])


@pytest.mark.parametrize("width", [97, 64, 40, 23, 20, 10])
def test_resize_keeps_pixel_centers_in_register(width: int, tmp_path: Path) -> None:
    # Both files hold the column's number, so the resized image says at which column the resized mask should have
    # looked: the pixel it picks is centered at most half a pixel away. A resize that ignores centers errs by up to one.
    mask = np.tile(np.arange(40, dtype=np.uint8), (8, 1))
    save(tmp_path, "a", mask, gray(mask, step=6))
    image, labels = SegmentationFolder(tmp_path, num_classes=40, size=(8, width))[0]
    columns = denormalize(image)[0] * 255 / 6
    rounding = 0.51 / 6  # the resized image is rounded to 8 bits
    centers = ((torch.arange(width) + 0.5) * 40 / width - 0.5).clamp(0, 39)
    assert (labels - centers).abs().max() <= 0.5
    # Averaging over a fraction of a pixel bends the ramp by up to an eighth; repeating pixels would make it steps.
    assert (columns - centers).abs().max() <= 0.125 + rounding


def test_shrinking_averages(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    save(tmp_path, "a", np.zeros((40, 60), dtype=np.uint8), noise)
    image, _ = SegmentationFolder(tmp_path, num_classes=1, size=(10, 20))[0]
    mean = noise.reshape(10, 4, 20, 3, 3).mean(axis=(1, 3)).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(denormalize(image).numpy(), mean, atol=0.51 / 255)


# The loader: augmentation


def check_pair(image: torch.Tensor, mask: torch.Tensor) -> None:
    """Check that image and mask moved alike: where a label fills a pixel's surroundings, the image must show it.

    Enlarging f times blends the image over f / 2 pixels on both sides of a border, so 3 × 3 serve to f = 2.
    """
    shown = (denormalize(image)[0] * 255 / 25).round().long()
    around = mask.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2)
    uniform = (around == around[..., :1]).all(dim=-1)
    labels, shown = mask[1:-1, 1:-1], shown[1:-1, 1:-1]
    inside = uniform & (labels != 255)
    assert inside.float().mean() > 0.05
    assert torch.equal(labels[inside], shown[inside])
    assert torch.equal((image == 0).all(dim=0), mask == 255)  # padding, and nothing else, has exactly the mean color


@pytest.mark.parametrize("size", [None, (60, 80), (45, 90), (80, 64)])
def test_image_and_mask_move_together(size: tuple[int, int] | None, folder: Path) -> None:
    augment = Augment(flip=0.5, scale=(0.5, 1.5), color=0.0)
    dataset = SegmentationFolder(folder, num_classes=10, size=size, augment=augment)
    for epoch in range(10):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            image, mask = dataset[index]
            assert mask.shape == (size or (60, 80))
            check_pair(image, mask)


def test_flip(folder: Path) -> None:
    plain = SegmentationFolder(folder, num_classes=10)
    flipped = SegmentationFolder(folder, num_classes=10, augment=Augment(flip=1.0, scale=(1.0, 1.0), color=0.0))
    torch.testing.assert_close(flipped[0][0], plain[0][0].flip(-1))
    assert torch.equal(flipped[0][1], plain[0][1].flip(-1))


def test_no_strength_is_no_augmentation(folder: Path) -> None:
    plain = SegmentationFolder(folder, num_classes=10, size=(45, 60))
    still = SegmentationFolder(folder, num_classes=10, size=(45, 60), augment=Augment(0.0, (1.0, 1.0), 0.0))
    torch.testing.assert_close(still[0][0], plain[0][0])
    assert torch.equal(still[0][1], plain[0][1])


@pytest.mark.parametrize(("factor", "padding"), [(0.5, 60 * 80 - 30 * 40), (1.0, 0), (2.0, 0)])
def test_shrinking_pads_and_enlarging_crops(factor: float, padding: int, folder: Path) -> None:
    augment = Augment(flip=0.0, scale=(factor, factor), color=0.0)
    _, mask = SegmentationFolder(folder, num_classes=10, ignore_index=77, augment=augment)[0]
    assert int((mask == 77).sum()) == padding


def test_color_varies_brightness_contrast_and_saturation(tmp_path: Path) -> None:
    # Mid-gray with little variation, so that nothing is clipped and the factors can be read back from the result.
    noise = np.random.default_rng(0).integers(110, 130, (60, 80, 3), dtype=np.uint8)
    save(tmp_path, "a", blocks(), noise)
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    plain = SegmentationFolder(tmp_path, num_classes=10)
    colored = SegmentationFolder(tmp_path, num_classes=10, augment=Augment(flip=0.0, scale=(1.0, 1.0), color=0.4))
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
    dataset = SegmentationFolder(tmp_path, num_classes=10, augment=Augment(scale=(1.0, 1.0), color=1.0))
    for epoch in range(10):
        dataset.set_epoch(epoch)
        rgb = dataset[0][0] * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
        assert rgb.min() > -1e-6
        assert rgb.max() < 1 + 1e-6


def test_augmentation_depends_on_seed_epoch_and_index_only(folder: Path) -> None:
    def sample(seed: int, epoch: int, index: int) -> torch.Tensor:
        dataset = SegmentationFolder(folder, num_classes=10, augment=Augment(), seed=seed)
        dataset.set_epoch(epoch)
        return dataset[index][0]

    first = sample(0, 0, 1)
    used = SegmentationFolder(folder, num_classes=10, augment=Augment(), seed=0)
    for epoch in (3, 0):  # with another past: other epochs, other samples, another state of the global generators
        used.set_epoch(epoch)
        for index in (2, 0, 1):
            torch.rand(3)
            last = used[index][0]
    assert torch.equal(last, first)
    # All three files hold the same picture, so every difference is one of the augmentation.
    for other in (sample(1, 0, 1), sample(0, 1, 1), sample(0, 0, 2)):
        assert not torch.equal(other, first)


@on_linux
@fork_warns
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_set_epoch_reaches_workers_that_live_on(start: str, folder: Path) -> None:
    dataset = SegmentationFolder(folder, num_classes=10, augment=Augment())
    loader = DataLoader(dataset, batch_size=3, num_workers=1, persistent_workers=True, multiprocessing_context=start)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        (image, mask), *_ = loader
        for index in range(3):
            assert torch.equal(image[index], dataset[index][0])
            assert torch.equal(mask[index], dataset[index][1])


# The loader: workers, cache and clock


def load(dataset: SegmentationFolder, workers: int, start: str | None = None) -> list[torch.Tensor]:
    """All images and labels of an epoch, in order."""
    loader = DataLoader(
        dataset, num_workers=workers, multiprocessing_context=start if workers else None, worker_init_fn=seed_worker
    )
    return [part for batch in loader for part in batch]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@on_linux
@fork_warns
@pytest.mark.parametrize(
    ("workers", "start"), [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("size", [None, (30, 50)])
@pytest.mark.parametrize("augment", [None, Augment()], ids=["plain", "augmented"])
def test_cache_gives_the_same_without_reading_again(
    workers: int, start: str | None, size: tuple[int, int] | None, augment: Augment | None, folder: Path
) -> None:
    save(folder, "b", blocks(70, 90))  # images of two sizes
    plain = SegmentationFolder(folder, num_classes=10, size=size, augment=augment)
    cached = SegmentationFolder(folder, num_classes=10, size=size, augment=augment, cache=True)
    expected = []
    for epoch in range(2):
        plain.set_epoch(epoch)
        expected.append(load(plain, 0))
    assert same(load(cached, workers, start), expected[0])
    for kind in ("images", "masks"):
        shutil.rmtree(folder / kind)
    cached.set_epoch(1)
    assert same(load(cached, workers, start), expected[1])  # what other processes have read


def test_cache_is_filled_when_asked_for(folder: Path) -> None:
    dataset = SegmentationFolder(folder, num_classes=10, cache=True)
    first = dataset[1][0]
    (folder / "images" / "b.png").unlink()
    assert torch.equal(dataset[1][0], first)
    (folder / "images" / "c.png").unlink()
    with pytest.raises(ValueError, match=r"c\.png: No such file"):
        dataset[2]


def test_what_a_sample_changes_stays_out_of_the_cache(folder: Path) -> None:
    dataset = SegmentationFolder(folder, num_classes=10, cache=True)
    image, labels = (part.clone() for part in dataset[0])
    for _ in range(2):
        again = dataset[0]
        assert torch.equal(again[0], image)
        assert torch.equal(again[1], labels)
        again[0].zero_()
        again[1].zero_()


@pytest.mark.parametrize(
    ("options", "pixels", "label_bytes"),
    [
        ({}, 2 * 60 * 80 + 70 * 90, 1),
        ({"size": (30, 50)}, 3 * 30 * 50, 1),
        ({"size": (30, 50), "augment": Augment()}, 2 * 60 * 80 + 70 * 90, 1),  # every epoch resizes to another size
        ({"num_classes": 300}, 2 * 60 * 80 + 70 * 90, 4),
        ({"ignore_index": -100}, 2 * 60 * 80 + 70 * 90, 4),
    ],
)
@pytest.mark.parametrize("cache", [False, True])
def test_cache_tells_its_memory_before_it_takes_it(
    options: dict[str, Any], pixels: int, label_bytes: int, cache: bool, folder: Path
) -> None:
    save(folder, "b", blocks(70, 90))
    dataset = SegmentationFolder(folder, **{"num_classes": 10, "cache": cache, **options})
    assert dataset.cache_bytes == pixels * (3 + label_bytes)
    if cache:
        assert dataset._cache is not None
        assert dataset._cache._images.nbytes + dataset._cache._labels.nbytes == dataset.cache_bytes


def test_cache_keeps_large_and_negative_labels(tmp_path: Path) -> None:
    save(tmp_path, "a", blocks(classes=2))
    Image.fromarray(blocks(classes=2).astype(np.uint16) * 300).save(tmp_path / "masks" / "a.png")
    dataset = SegmentationFolder(tmp_path, num_classes=301, ignore_index=-100, cache=True)
    assert torch.equal(dataset[0][1], torch.from_numpy(blocks(classes=2)).long() * 300)
    assert torch.equal(dataset[0][1], dataset[0][1])


def test_cache_leaves_out_what_does_not_fit_its_place(folder: Path) -> None:
    """A file that was exchanged for one of another size since the memory was taken."""
    dataset = SegmentationFolder(folder, num_classes=10, cache=True)
    neighbors = dataset[0][0], dataset[2][0]
    save(folder, "b", blocks(70, 90))
    assert dataset[1][1].shape == dataset[1][1].shape == (70, 90)
    assert torch.equal(dataset[0][0], neighbors[0])
    assert torch.equal(dataset[2][0], neighbors[1])


def test_cache_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("shared memory is no file system here")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    with pytest.raises(
        ValueError, match=re.escape("the cache takes 4.0 GiB of shared memory but /dev/shm has 1.0 GiB")
    ):
        _Cache([2**20] * 1024, torch.uint8)


def test_cache_names_the_image_whose_size_it_can_not_read(folder: Path) -> None:
    (folder / "images" / "b.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"b\.png: can't be read as an image"):
        SegmentationFolder(folder, num_classes=10, cache=True)


class Drawing(SegmentationFolder):
    """Samples that draw from the global generators, as a transform may."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: D105
        drawn = (random.random(), float(np.random.random()), float(torch.rand(())))
        return torch.tensor(drawn, dtype=torch.float64), torch.tensor(i)


@on_linux
@fork_warns
def test_workers_draw_by_seed_epoch_and_worker_alone(folder: Path) -> None:
    def drawn(seed: int, epoch: int) -> torch.Tensor:
        dataset = Drawing(folder, num_classes=10, seed=seed)
        dataset.set_epoch(epoch)
        return torch.stack(load(dataset, 2, "fork")[::2]).flatten(
            1
        )  # samples 0 and 2 from one worker, 1 from the other

    first = drawn(0, 0)
    torch.rand(3)  # from which torch alone would seed its workers
    assert torch.equal(drawn(0, 0), first)
    assert first.unique().numel() == 9  # no two generators, workers or samples alike
    for other in (drawn(1, 0), drawn(0, 1)):
        assert not (other == first).any()


def test_waited_counts_the_time_in_the_iterable_alone() -> None:
    def slow() -> Iterator[int]:
        time.sleep(0.02)
        for i in range(3):
            time.sleep(0.02)
            yield i
        time.sleep(0.02)

    elements = waited(slow())
    assert elements.seconds == 0
    found = []
    for element in elements:
        found.append(element)
        time.sleep(0.1)
    assert found == [0, 1, 2]
    assert 0.1 <= elements.seconds < 0.3  # five naps here, three long ones outside
    assert list(waited([1, 2])) == [1, 2]


# The loader: what it refuses


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
            "{folder}/images: expected .png or .jpg or .jpeg files but",
        ),
        (
            lambda f: (f / "images/b.jpg").touch(),
            ValueError,
            "{folder}/images/b.png: same name as {folder}/images/b.jpg",
        ),
        (
            lambda f: (f / "images/d.tif").touch(),
            ValueError,
            "{folder}/images/d.tif: expected nothing but .png or .jpg or .jpeg files",
        ),
        (lambda f: (f / "masks/b.jpg").touch(), ValueError, "{folder}/masks/b.jpg: expected nothing but .png files"),
        (lambda f: (f / "masks/d.png").mkdir(), ValueError, "{folder}/masks/d.png: expected nothing but .png files"),
    ],
)
def test_construction_refuses_an_inconsistent_folder(
    damage: Callable[[Path], None], kind: type[Exception], message: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(kind, match=re.escape(message.format(folder=folder))):
        SegmentationFolder(folder, num_classes=10)


def test_construction_refuses_a_missing_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'nowhere'}: no such folder, expected")):
        SegmentationFolder(tmp_path / "nowhere", num_classes=10)


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
        (lambda path: path.write_text("no picture"), "images/b.png", ": can't be read as an image (cannot identify"),
        (lambda path: path.write_bytes(b""), "masks/b.png", ": can't be read as an image (cannot identify"),
        (lambda path: path.unlink(), "masks/b.png", ": No such file"),
        (lambda path: Image.new("L", (80, 59)).save(path), "masks/b.png", ": expected 80 x 60 pixels as in"),
        (
            lambda path: Image.new("RGB", (80, 60)).save(path),
            "masks/b.png",
            ": expected one channel of class indices, but got colours (mode RGB)",
        ),
        (
            lambda path: Image.new("I;16", (80, 60)).save(path),
            "images/b.png",
            ": expected 8 bits per channel, but got an image of mode I;16",
        ),
        (
            _label(7, 30, 10),
            "masks/b.png",
            ": expected labels 0 to 9 or 255 but got 10 at 3 pixels, first at row 7, column 30",
        ),
        (
            _label(59, 77, 254),
            "masks/b.png",
            ": expected labels 0 to 9 or 255 but got 254 at 3 pixels, first at row 59, column 77",
        ),
    ],
)
@pytest.mark.parametrize("augment", [None, Augment()], ids=["plain", "augmented"])
def test_reading_refuses_a_bad_file(
    damage: Callable[[Path], None], name: str, message: str, augment: Augment | None, folder: Path
) -> None:
    dataset = SegmentationFolder(folder, num_classes=10, augment=augment)
    damage(folder / name)
    with pytest.raises(ValueError, match=re.escape(f"{folder / name}{message}")):
        dataset[1]
    assert dataset[0][1].shape == (60, 80)  # its neighbors are still readable


def test_unreadable_file_keeps_the_cause(folder: Path) -> None:
    dataset = SegmentationFolder(folder, num_classes=10)
    _truncate(folder / "images" / "b.png")
    with pytest.raises(ValueError, match=r"b\.png") as error:
        dataset[1]
    assert isinstance(error.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "expected num_classes >= 1 but got 0"),
        ({"size": (0, 4)}, "expected size to be (height, width), both >= 1, but got (0, 4)"),
        ({"size": (4,)}, "expected size to be (height, width), both >= 1, but got (4,)"),
        ({"seed": -1}, "expected seed >= 0 but got -1"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SegmentationFolder(folder, **{"num_classes": 10, **arguments})  # type: ignore[arg-type]


def test_bad_epoch(folder: Path) -> None:
    with pytest.raises(ValueError, match="expected epoch >= 0 but got -1"):
        SegmentationFolder(folder, num_classes=10).set_epoch(-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"flip": 1.5}, "expected flip in [0, 1] but got 1.5"),
        ({"scale": (1.0, 0.5)}, "expected scale to be (low, high) with 0 < low <= high but got (1.0, 0.5)"),
        ({"scale": (0.0, 1.0)}, "expected scale to be (low, high) with 0 < low <= high but got (0.0, 1.0)"),
        ({"color": -0.1}, "expected color in [0, 1] but got -0.1"),
    ],
)
def test_bad_augmentation(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Augment(**arguments)  # type: ignore[arg-type]
