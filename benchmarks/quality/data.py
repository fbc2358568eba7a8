"""The images and labels of a data set, in batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from edgeloss.io import find_split
from quality.runs import Place, Run
from segkit.data import Augment, SegmentationDataset

HELD_OUT = 5  # one of this many training images


def open_part(
    run: Run, place: Place, *, scored: bool = False, augmented: bool = False
) -> tuple[SegmentationDataset, np.ndarray]:
    """Open the images that a run is trained on, or scored on, which may be some of the training images.

    Returns:
        The data set, which is in memory if its images are changed at random, and the indices in it.
    """
    augment = Augment(crop=run.crop, color=0.2 if run.dims == 3 else 0.3) if augmented else None
    part = "val" if scored and not run.held_out else "train"
    files = find_split("volumes" if run.dims == 3 else "folder", place.root / run.data, part)
    dataset = SegmentationDataset(files, size=run.size, augment=augment, seed=run.seed, cache=augmented)
    everything = np.arange(len(dataset))
    if not run.held_out:
        return dataset, everything
    order = everything[::-1] if run.contiguous else np.random.default_rng(0).permutation(everything)
    held_out = np.sort(order[: len(dataset) // HELD_OUT])
    return dataset, held_out if scored else np.setdiff1d(everything, held_out)


def read_targets(run: Run, place: Place) -> Iterator[Tensor]:
    """Read the labels [1, *S] of the images that a run is trained on."""
    dataset, chosen = open_part(run, place)
    return (dataset[int(i)][1][None] for i in chosen)


def scored_batches(run: Run, place: Place) -> list[tuple[Tensor, Tensor]]:
    """Load the images to score a run on, and their labels."""
    dataset, index = open_part(run, place, scored=True)
    # Images of their own sizes do not fit in a batch.
    return [load_batch(dataset, part) for part in split_indices(index, 8 if run.size else 1)]


def split_indices(index: np.ndarray, size: int) -> list[np.ndarray]:
    """Split the indices of images into batches."""
    return [index[start : start + size] for start in range(0, len(index), size)]


def load_batch(dataset: SegmentationDataset, index: Iterable[int], device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Load images [B, 3, H, W] or volumes [B, 1, D, H, W], and their labels [B, *S]."""
    images, labels = map(torch.stack, zip(*(dataset[int(i)] for i in index), strict=True))
    if device == "cpu":
        return images, labels
    # From pinned memory, the copies do not wait for what the device does.
    return images.pin_memory().to(device, non_blocking=True), labels.pin_memory().to(device, non_blocking=True)


def work_of(run: Run, place: Place) -> float:
    """Return how much there is to compute in a run, in proportion to its time on a CPU."""
    images = len(open_part(run, place)[1])
    return float(run.epochs * run.crops * images * math.prod(run.crop or run.size or (1,)))
