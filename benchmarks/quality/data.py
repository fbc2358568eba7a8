"""The images and labels of a data set, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgeloss.io import read_classes
from quality.runs import Place, Run
from segkit.data import Augment, SegmentationDataset
from segkit.layouts import Split, pair_folders, volumes

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
    """Open a folder of volumes, or one with images/ and masks/ of this or another name.

    The options are those of the data set.
    """
    pairs = volumes(root) if any(root.glob("*.npz")) else pair_folders(root / "images", root / masks)
    return SegmentationDataset(Split(pairs, [str(c) for c in range(num_classes)], void), **options)


def augmentation(run: Run) -> Augment:
    """Return the random changes to the training images of a run."""
    return Augment(crop=run.crop, color=0.2 if run.dims == 3 else 0.3)


def training_set(run: Run, place: Place, **options: Any) -> tuple[SegmentationDataset, np.ndarray]:  # noqa: ANN401
    """Open the training images of a run, and return the indices of those to train on."""
    classes, void = read_labels(place.data_of(run))
    root = place.data_of(run) / "train"
    dataset = open_folder(root, len(classes), void, masks=run.masks, size=run.size, **options)
    return dataset, split_training(run, len(dataset))[0]


def read_targets(run: Run, place: Place) -> Iterator[Tensor]:
    """Read the labels [1, *S] of the images that a run is trained on, without augmentation."""
    dataset, chosen = training_set(run, place)
    for i in chosen:
        yield dataset[int(i)][1][None]


def scored_set(run: Run, place: Place) -> SegmentationDataset:
    """Open the images to score a run on; with held-out images, they are some of the training images."""
    classes, void = read_labels(place.data_of(run))
    root = place.data_of(run) / "train" if run.held_out else place.split_of(run)
    return open_folder(root, len(classes), void, size=run.size)


def scored_batches(run: Run, place: Place) -> list[tuple[Tensor, Tensor]]:
    """Load the images to score a run on, and their labels."""
    dataset = scored_set(run, place)
    index = split_training(run, len(dataset))[1] if run.held_out else np.arange(len(dataset))
    # Images of their own sizes do not fit in a batch.
    return [load_batch(dataset, part) for part in split_indices(index, 8 if run.size else 1)]


def voxel_shape(samples: SegmentationDataset) -> tuple[float, ...] | None:
    """Return the size of a voxel along each axis in units of the smallest, for losses and metrics.

    Radii and decays then stay numbers of pixels. None for images, cubes, and volumes of unknown spacing.
    """
    spacing = samples.spacing
    if spacing is None or min(spacing) == max(spacing):
        return None
    return tuple(size / min(spacing) for size in spacing)


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
    """Load images [B, 3, H, W] or volumes [B, 1, D, H, W], and their labels [B, *S]."""
    images, labels = zip(*(dataset[int(i)] for i in index), strict=True)
    return torch.stack(images).to(device), torch.stack(labels).to(device)
