"""Random changes to training images: image and mask change together, and reproducibly."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from small_masks import blocks, open_folder, save

from segkit.data import MEAN, STD, Augment, denormalize


def check_pair(image: torch.Tensor, mask: torch.Tensor) -> None:
    """Check that image and mask moved together.

    Where a label fills the surroundings of a pixel, the image must show it.
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
    dataset = open_folder(folder, size=size, augment=augment)
    for epoch in range(10):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            image, mask = dataset[index]
            assert mask.shape == (size or (60, 80))
            check_pair(image, mask)


def test_flip(folder: Path) -> None:
    plain = open_folder(folder)
    flipped = open_folder(folder, augment=Augment(flip=1.0, scale=(1.0, 1.0), color=0.0))
    torch.testing.assert_close(flipped[0][0], plain[0][0].flip(-1))
    assert torch.equal(flipped[0][1], plain[0][1].flip(-1))


def test_no_strength_is_no_augmentation(folder: Path) -> None:
    plain = open_folder(folder, size=(45, 60))
    still = open_folder(folder, size=(45, 60), augment=Augment(0.0, (1.0, 1.0), 0.0))
    torch.testing.assert_close(still[0][0], plain[0][0])
    assert torch.equal(still[0][1], plain[0][1])


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
    def sample(seed: int, epoch: int, index: int) -> torch.Tensor:
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
