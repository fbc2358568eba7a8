"""The images and labels of a data set, in batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgeloss.io import read_classes
from segkit.data import SegmentationFolder


def read_labels(data: Path) -> tuple[list[str], int]:
    """Read the names of the classes of a data set, and its void label."""
    classes, void = read_classes(data / "classes.txt")
    return classes, 255 if void is None else void


def split_indices(index: np.ndarray, size: int) -> list[np.ndarray]:
    """Split the indices of images into batches."""
    return [index[start : start + size] for start in range(0, len(index), size)]


def load_batch(dataset: SegmentationFolder, index: Iterable[int], device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Load images [B, 3, H, W] and their labels [B, H, W]."""
    images, labels = zip(*(dataset[int(i)] for i in index), strict=True)
    return torch.stack(images).to(device), torch.stack(labels).to(device)
