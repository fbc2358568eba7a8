"""The images and labels of a data set, in batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgeloss.io import read_classes
from quality.runs import Run
from segkit.data import SegmentationDataset
from segkit.layouts import Split, pair_folders

HELD_OUT = 5  # one of this many training images


def read_labels(data: Path) -> tuple[list[str], int]:
    """Read the names of the classes of a data set, and its void label."""
    classes, void = read_classes(data / "classes.txt")
    return classes, 255 if void is None else void


def open_folder(
    root: Path,
    num_classes: int,
    void: int,
    *,
    masks: str = "masks",
    **options: Any,  # noqa: ANN401
) -> SegmentationDataset:
    """Open a folder with images/ and masks/, or masks of another name; the options are those of the data set."""
    pairs = pair_folders(root / "images", root / masks)
    return SegmentationDataset(Split(pairs, [str(c) for c in range(num_classes)], void), **options)


def split_training(run: Run, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Split the indices of the training images into those to train on and those that are held out."""
    everything = np.arange(count)
    if not run.held_out:
        return everything, everything[:0]
    order = everything[::-1] if run.contiguous else np.random.default_rng(0).permutation(everything)
    held_out = np.sort(order[: count // HELD_OUT])
    return np.setdiff1d(everything, held_out), held_out


def split_indices(index: np.ndarray, size: int) -> list[np.ndarray]:
    """Split the indices of images into batches."""
    return [index[start : start + size] for start in range(0, len(index), size)]


def load_batch(dataset: SegmentationDataset, index: Iterable[int], device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Load images [B, 3, H, W] and their labels [B, H, W]."""
    images, labels = zip(*(dataset[int(i)] for i in index), strict=True)
    return torch.stack(images).to(device), torch.stack(labels).to(device)
