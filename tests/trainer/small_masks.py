"""Small masks with images that show them, and volumes, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from segkit.data import SegmentationDataset
from segkit.layouts import Split, pair_folders, volumes

Bytes = npt.NDArray[np.uint8]


def pixels(path: Path) -> Bytes:
    """Read an image file."""
    with Image.open(path) as image:
        return np.asarray(image)


def gray(mask: Bytes, step: int = 25) -> Bytes:
    """Return the image [H, W, 3] that shows each label as a gray value."""
    return np.repeat((mask * step).astype(np.uint8)[..., None], 3, axis=2)


def save(root: Path, name: str, mask: Bytes, image: Bytes | None = None) -> None:
    """Write a mask and its image, by default the one that shows the mask."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.fromarray(gray(mask) if image is None else image).save(root / "images" / f"{name}.png")
    Image.fromarray(mask).save(root / "masks" / f"{name}.png")


def save_volume(root: Path, name: str, labels: npt.NDArray[Any], **arrays: Any) -> None:
    """Write a volume whose intensities show its labels."""
    np.savez(root / f"{name}.npz", image=labels * 80, label=labels, **arrays)


def blocks(height: int = 60, width: int = 80, classes: int = 10) -> Bytes:
    """Return a mask of 10 × 10 blocks without any symmetry."""
    labels = np.random.default_rng(0).integers(0, classes, (height // 10, width // 10), dtype=np.uint8)
    return labels.repeat(10, axis=0).repeat(10, axis=1)


def open_folder(root: Path, num_classes: int = 10, ignore_index: int = 255, **options: Any) -> SegmentationDataset:
    """Open a folder of `save`; the options are those of the data set."""
    pairs = pair_folders(root / "images", root / "masks")
    return SegmentationDataset(Split(pairs, [str(c) for c in range(num_classes)], ignore_index), **options)


def open_volumes(root: Path, num_classes: int = 3, ignore_index: int = 255, **options: Any) -> SegmentationDataset:
    """Open a folder of `save_volume`; the options are those of the data set."""
    return SegmentationDataset(Split(volumes(root), [str(c) for c in range(num_classes)], ignore_index), **options)
