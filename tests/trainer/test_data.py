"""Data sets of images and volumes: what they read, change at random, cache and reject."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data_trees import H, W, write_tree
from PIL import Image
from small_data import blocks, gray, open_folder, open_volumes, pixels, save, save_volume
from torch import Tensor
from torch.utils.data import DataLoader

from edgeloss.io import find_split
from segkit.data import MEAN, STD, Augment, SegmentationDataset, denormalize

SHAPES = Path(__file__).resolve().parents[2] / "data" / "shapes"
STILL = {"flip": 0.0, "scale": (1.0, 1.0), "color": 0.0}
OPEN = {"images": open_folder, "volumes": open_volumes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three pairs, 60 × 80, and of three volumes, 5 × 8 × 6, each with the same content."""
    for name in ("a", "b", "c"):
        save(tmp_path, name, blocks())
    for name in ("v0", "v1", "v2"):
        save_volume(tmp_path, name, np.random.default_rng(0).integers(0, 3, (5, 8, 6)))
    return tmp_path


def test_a_sample_of_an_image() -> None:
    dataset = open_folder(SHAPES / "val")
    assert dataset.names == [f"{index:03d}" for index in range(16)]
    for index in (3, -1):
        image, mask = dataset[index]
        name = f"{dataset.names[index]}.png"
        assert (image.dtype, mask.dtype) == (torch.float32, torch.int64)
        np.testing.assert_array_equal(mask.numpy(), pixels(SHAPES / "val" / "masks" / name))
        rgb = pixels(SHAPES / "val" / "images" / name).astype(np.float64) / 255
        expected = (rgb - np.array(MEAN)) / np.array(STD)
        np.testing.assert_allclose(image.numpy(), expected.transpose(2, 0, 1), atol=1e-6)
        np.testing.assert_allclose(denormalize(image).numpy(), rgb.transpose(2, 0, 1), atol=1e-6)
    with pytest.raises(IndexError):
        dataset[16]


def test_labels_by_colors_and_by_rules(tmp_path: Path) -> None:
    """As --palette and --remap of the command read them."""
    numbers = np.array([[0, 1, 2], [255, 2, 1]], np.uint8)
    save(tmp_path, "a", numbers)
    colors = {0: (0, 0, 0), 1: (200, 10, 10), 2: (10, 10, 200), 255: (255, 255, 255)}
    Image.fromarray(np.array([[colors[k] for k in row] for row in numbers.tolist()], np.uint8)).save(
        tmp_path / "masks" / "a.png"
    )
    (tmp_path / "colors.txt").write_text("".join(f"{k} {r} {g} {b}\n" for k, (r, g, b) in colors.items()))
    palette = str(tmp_path / "colors.txt")
    with pytest.raises(ValueError, match=r"a\.png: expected class indices, but got colors, such as"):
        _ = open_folder(tmp_path, 3)[0]
    for dataset, change in (
        (open_folder(tmp_path, 3, palette=palette), {}),
        (open_folder(tmp_path, 2, palette=palette, remap="0:255,1-2:0"), {0: 255, 1: 0, 2: 1}),
    ):
        expected = [[change.get(k, k) for k in row] for row in numbers.tolist()]
        assert dataset[0][1].tolist() == dataset.labels(0).tolist() == expected
    with pytest.raises(ValueError, match=r"data\.remap: expected FROM:TO or FIRST-LAST:TO"):
        open_folder(tmp_path, remap="1=2")
    save_volume(tmp_path, "v", np.zeros((2, 2, 2), int))
    with pytest.raises(ValueError, match="palette: expected one for images, but got voc for volumes"):
        open_volumes(tmp_path, palette="voc")


def test_rules_replace_those_of_a_layout(tmp_path: Path) -> None:
    """Train ids of Cityscapes, say, in place of its ids."""
    write_tree("cityscapes", tmp_path)
    split = find_split("cityscapes", tmp_path, "train")
    assert SegmentationDataset(split).labels(0)[0, :3].tolist() == [0, 18, 255]
    dataset = SegmentationDataset(split, remap="0:255,7:1,29-33:2")
    assert dataset.labels(0)[0, :6].tolist() == [1, 6, 255, 6, 2, 255]


def test_labels_without_their_image(folder: Path) -> None:
    augmented = open_folder(folder, size=(30, 40), augment=Augment())
    assert torch.equal(augmented.labels(0), open_folder(folder, size=(30, 40))[0][1])
    assert torch.equal(open_volumes(folder, size=(2, 2, 2)).labels(0), stored(folder))


def test_images_of_other_kinds(tmp_path: Path) -> None:
    write_tree("pet", tmp_path)
    for mode, kind in (("P", "gif"), ("RGBA", "png"), ("L", "jpeg"), ("CMYK", "jpeg")):
        Image.new(mode, (W, H)).save(tmp_path / "images" / "Abyssinian_34.jpg", kind)
        image, labels = SegmentationDataset(find_split("pet", tmp_path, "test"))[0]
        assert image.shape == (3, H, W)
        assert labels.flatten()[:3].tolist() == [1, 0, 255]


def test_a_sample_of_a_volume(folder: Path) -> None:
    image, labels = open_volumes(folder)[0]
    assert (image.dtype, image.shape) == (torch.float32, (1, 5, 8, 6))
    assert torch.equal(labels, stored(folder))
    values = 80.0 * labels[None]
    torch.testing.assert_close(image, (values - values.mean()) / values.std(correction=0))
    # Two planes of padding before and one after along the first axis, a crop to the middle 4 of 8 along the second.
    image, labels = open_volumes(folder, size=(8, 4, 6), ignore_index=9)[0]
    assert torch.equal(labels[2:7], stored(folder)[:, 2:6])
    void = labels == 9
    assert void.sum() == 3 * 4 * 6
    assert torch.equal(image[0] == 0, void)


def stored(folder: Path) -> Tensor:
    return torch.from_numpy(np.load(folder / "v0.npz")["label"].astype(np.int64))


@pytest.mark.parametrize("width", [97, 23, 10])
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


# -------------------------------------------------------------------------------------------------------- augmentation


@pytest.mark.parametrize("size", [None, (45, 90), (80, 64)])
def test_image_and_mask_move_together(size: tuple[int, int] | None, folder: Path) -> None:
    """Where a label fills the surroundings of a pixel, the image must show it.

    Enlarging f times blends the image over f / 2 pixels on both sides of a border, so 3 × 3 serve to f = 2.
    """
    dataset = open_folder(folder, size=size, augment=Augment(flip=0.5, scale=(0.5, 1.5), color=0.0))
    for dataset.epoch in range(10):
        for image, mask in map(dataset.__getitem__, range(3)):
            assert mask.shape == (size or (60, 80))
            shown = (denormalize(image)[0] * 255 / 25).round().long()[1:-1, 1:-1]
            around, labels = mask.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2), mask[1:-1, 1:-1]
            inside = (around == around[..., :1]).all(dim=-1) & (labels != 255)
            assert inside.float().mean() > 0.05
            assert torch.equal(labels[inside], shown[inside])
            assert torch.equal((image == 0).all(dim=0), mask == 255)  # padding alone has exactly the mean color


@pytest.mark.parametrize(("kind", "axis"), [("images", -1), ("volumes", -3)])
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_flips_and_nothing_else(kind: str, axis: int, flip: float, folder: Path) -> None:
    plain, changed = (OPEN[kind](folder, augment=a)[0] for a in (None, Augment(**STILL | {"flip": flip})))
    for part, expected in zip(changed, plain, strict=True):
        torch.testing.assert_close(part.flip(axis) if flip else part, expected)


def test_random_places_of_volumes(folder: Path) -> None:
    dataset = open_volumes(folder, augment=Augment(**STILL, crop=(7, 4, 6)))
    original, seen = stored(folder), set()
    for dataset.epoch in range(40):
        labels = dataset[0][1]
        places = ((a, b) for a in range(3) for b in range(5))
        seen |= {(a, b) for a, b in places if torch.equal(labels[a : a + 5], original[:, b : b + 4])}
        assert (labels != 255).sum() == 5 * 4 * 6
    assert [{place[axis] for place in seen} for axis in range(2)] == [{0, 1, 2}, {0, 1, 2, 3, 4}]


def test_color_varies_brightness_contrast_and_saturation(tmp_path: Path) -> None:
    # Mid-gray with little variation, so that nothing is clipped and the factors can be read back from the result.
    noise = np.random.default_rng(0).integers(110, 130, (60, 80, 3), dtype=np.uint8)
    save(tmp_path, "a", blocks(), noise)
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    plain, colored = (open_folder(tmp_path, augment=a) for a in (None, Augment(**STILL | {"color": 0.4})))
    before = denormalize(plain[0][0])
    gray_before = (luma * before).sum(dim=0)
    factors = []
    for colored.epoch in range(30):
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
    save(tmp_path, "a", blocks(), 255 * (noise > 119).astype(np.uint8))
    clipped = open_folder(tmp_path, augment=Augment(**STILL | {"color": 1.0}))[0][0]
    rgb = clipped * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    assert -1e-6 < rgb.min() < rgb.max() < 1 + 1e-6


def test_color_of_volumes_varies_contrast_and_brightness(folder: Path) -> None:
    plain, dataset = open_volumes(folder)[0][0], open_volumes(folder, augment=Augment(**STILL | {"color": 0.2}))
    changes = []
    for dataset.epoch in range(30):
        image = dataset[0][0]
        contrast, brightness = image.std() / plain.std(), image.mean()
        torch.testing.assert_close(image, plain * contrast + brightness)
        changes.append((contrast - 1, brightness))
    spread = torch.tensor(changes).abs().amax(0)
    assert ((spread > 0.15) & (spread < 0.2)).all()


@pytest.mark.parametrize("kind", OPEN)
def test_augmentation_depends_on_seed_epoch_and_index_only(kind: str, folder: Path) -> None:
    def sample(seed: int, epoch: int, index: int) -> Tensor:
        dataset = OPEN[kind](folder, augment=Augment(), seed=seed)
        dataset.epoch = epoch
        return dataset[index][0]

    first = sample(0, 0, 1)
    used = OPEN[kind](folder, augment=Augment(), seed=0)
    for used.epoch in (3, 0):  # with another past: other epochs, other samples, another state of the global generators
        for index in (2, 0, 1):
            torch.rand(3)
            last = used[index][0]
    assert torch.equal(last, first)
    # All three files hold the same picture, so every difference is one of the augmentation.
    for other in (sample(1, 0, 1), sample(0, 1, 1), sample(0, 0, 2)):
        assert not torch.equal(other, first)


# --------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.skipif(sys.platform != "linux", reason="start methods differ elsewhere")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on one core
@pytest.mark.parametrize(("size", "augment"), [((30, 50), None), (None, Augment())], ids=["plain", "augmented"])
def test_a_cache_gives_the_same_without_the_files(
    size: tuple[int, int] | None, augment: Augment | None, folder: Path
) -> None:
    save(folder, "b", blocks(70, 90))  # images of two sizes
    plain, cached = (open_folder(folder, size=size, augment=augment, cache=cache) for cache in (False, True))
    plain.epoch = cached.epoch = 1
    expected = [part[None] for index in range(3) for part in plain[index]]
    shutil.rmtree(folder / "images")
    for loader in (DataLoader(cached), DataLoader(cached, num_workers=2, multiprocessing_context="fork")):
        parts = [part for batch in loader for part in batch]
        assert all(torch.equal(part, wanted) for part, wanted in zip(parts, expected, strict=True))


@pytest.mark.parametrize("kind", OPEN)
def test_a_cache_keeps_large_labels_and_is_not_changed_by_a_sample(kind: str, tmp_path: Path) -> None:
    labels = blocks(classes=2).astype(np.uint16) * 300
    save(tmp_path, "a", blocks(classes=2))
    Image.fromarray(labels).save(tmp_path / "masks" / "a.png")
    save_volume(tmp_path, "a", labels[None])
    dataset = OPEN[kind](tmp_path, num_classes=301, ignore_index=-100, cache=True)
    for _ in range(2):
        image, mask = dataset[0]
        np.testing.assert_array_equal(mask.squeeze(0).numpy(), labels)
        assert image.any()
        image.zero_()
        mask.zero_()


# ------------------------------------------------------------------------------------------------------------- spacing


def test_spacing_is_that_of_all_files(folder: Path) -> None:
    assert open_folder(folder).spacing is open_volumes(folder).spacing is None
    for name in ("v0", "v1", "v2"):
        save_volume(folder, name, stored(folder).numpy(), spacing=(3, 1, 1.5))
    assert open_volumes(folder).spacing == (3, 1, 1.5)
    for size, message in {
        (1.0, 2.0, 3.0): r"v1.npz: expected spacing \(3.0, 1.0, 1.5\) as in .*v0.npz, but got \(1.0, 2.0, 3.0\)",
        (1.0, 2.0): r"v1.npz: expected spacing of three numbers > 0, but got \(1.0, 2.0\)",
    }.items():
        save_volume(folder, "v1", stored(folder).numpy(), spacing=size)
        with pytest.raises(ValueError, match=message):
            open_volumes(folder).spacing  # noqa: B018


# -------------------------------------------------------------------------------------------------------------- errors


def _turn(path: Path) -> None:
    """Write an image of the stored size of its mask, that is turned when it is read."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 60)).save(path, exif=exif)


def _label(path: Path) -> None:
    mask = pixels(path).copy()
    mask[7, 30:33] = 10
    Image.fromarray(mask).save(path)


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:99]), "images/b.png", ": can't be read as an image ("),
        (lambda path: Image.new("L", (80, 59)).save(path), "masks/b.png", ": expected 80 x 60 pixels as in"),
        (_turn, "images/b.png", ": turned upright by its EXIF orientation 6"),
        (_label, "masks/b.png", ": expected labels 0 to 9 or 255, but got 10 at 3 pixels, first at [7, 30]"),
        (lambda path: save_volume(path.parent, "v1", np.zeros((4, 4))), "v1.npz", ": expected image and label of one"),
        (lambda path: np.savez(path, image=np.zeros((4, 4))), "v1.npz", ": can't be read as a volume ("),
    ],
)
def test_reading_refuses_a_bad_file(damage: Callable[[Path], None], name: str, message: str, folder: Path) -> None:
    of_kind = OPEN["volumes" if name.endswith(".npz") else "images"]
    dataset = of_kind(folder)
    damage(folder / name)
    with pytest.raises(ValueError, match=re.escape(f"{folder / name}{message}")):
        dataset[1]
    with pytest.raises(ValueError, match=re.escape(f"{folder / name}{message}")):
        of_kind(folder, cache=True)
    assert dataset[0][1].any()  # its neighbors are still readable


def test_bad_options(folder: Path) -> None:
    for wrong, message in (
        (lambda: open_folder(folder, size=(0, 4)), "size: expected 2 lengths, all >= 1, but got (0, 4)"),
        (lambda: open_volumes(folder, augment=Augment(crop=(4, 4))), "crop: expected 3 lengths, all >= 1, but got"),
        (lambda: open_folder(folder, seed=-1), "seed: expected an integer >= 0, but got -1"),
        (lambda: Augment(flip=1.5), "flip: expected a probability in [0, 1], but got 1.5"),
        (lambda: Augment(scale=(1.0, 0.5)), "scale: expected (low, high) with 0 < low <= high, but got (1.0, 0.5)"),
        (lambda: Augment(color=-0.1), "color: expected a number in [0, 1], but got -0.1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            wrong()
