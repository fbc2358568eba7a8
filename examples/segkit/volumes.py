"""Volumes and their labels in .npz files as training samples, with reproducible augmentation."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss.io import VOID_INDEX, check_file
from segkit.data import AugmentedDataset, place_axis

Volume = npt.NDArray[np.float32]  # [D, H, W]
Labels = npt.NDArray[np.int64]  # [D, H, W]


@dataclass(frozen=True)
class VolumeAugment:
    """Strength of the random changes to a volume and its labels, next to the random place of a crop or of padding.

    Attributes:
        flip: Probability of a flip along each axis. By default only the first axis is flipped: in anatomical order it
            runs from left to right, and bodies are symmetric along no other.
        intensity: Strength of the contrast and brightness jitter, in standard deviations of the volume: intensities are
            multiplied by a factor in [1 - intensity, 1 + intensity], and moved by up to ± intensity.
        crop: (D, H, W) of the sample, a random crop of the volume; None restores the size instead.
    """

    flip: tuple[float, float, float] = (0.5, 0.0, 0.0)
    intensity: float = 0.2
    crop: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        if len(self.flip) != 3 or not all(0 <= p <= 1 for p in self.flip):
            raise ValueError(f"flip: expected three probabilities in [0, 1], but got {self.flip}")
        if not 0 <= self.intensity <= 1:
            raise ValueError(f"intensity: expected a number in [0, 1], but got {self.intensity}")
        _check_size("crop", self.crop)


class VolumeFolder(AugmentedDataset):
    """The files ROOT/NAME.npz, each with the arrays `image` and `label` [D, H, W], and optionally `spacing` [3].

    A sample has one channel with mean 0 and standard deviation 1 over the file's voxels, and 0 in the padding.

    Args:
        root: Folder of the files.
        num_classes: Number of classes C; labels are 0..C-1.
        ignore_index: The label of void voxels in the files, and of padding.
        size: (D, H, W) of every sample: volumes are cropped and padded to it, around their center or, with
            augmentation, at a random place. They are not resized, so voxels keep their size. None keeps each volume's
            own size.
        augment: Random changes; None for none.
        seed: Seed of the augmentation, ≥ 0.
        cache: Keep decoded volumes in memory that all workers share.

    Attributes:
        names: Names of the volumes, in the order of the samples.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        num_classes: int,
        ignore_index: int = VOID_INDEX,
        size: tuple[int, int, int] | None = None,
        augment: VolumeAugment | None = None,
        seed: int = 0,
        cache: bool = False,
    ) -> None:
        """List the files; without a cache, they are opened later."""
        self._paths = sorted(Path(root).glob("*.npz"))
        if not self._paths:
            raise FileNotFoundError(f"{root}: expected NAME.npz files, but there are none")
        if num_classes < 1:
            raise ValueError(f"num_classes: expected an integer >= 1, but got {num_classes}")
        _check_size("size", size)
        self.num_classes, self.size, self.augment = num_classes, size, augment
        super().__init__([path.stem for path in self._paths], ignore_index, seed, cache)

    @functools.cached_property
    def spacing(self) -> tuple[float, ...] | None:
        """The size of a voxel along each axis, for losses and metrics; None if the files do not have it.

        Raises:
            ValueError: A file can't be read, has no three sizes > 0, or has other sizes than the first one.
        """
        sizes = [_read_spacing(path) for path in self._paths]
        for path, size in zip(self._paths, sizes, strict=True):
            if size != sizes[0]:
                raise ValueError(
                    f"{path}: expected spacing {sizes[0]} as in {self._paths[0]}, but got {size}; resample the volumes"
                )
        return sizes[0]

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Read one volume.

        Args:
            i: Index into `names`.

        Returns:
            The volume, float32 [1, D, H, W], and its labels, int64 [D, H, W].

        Raises:
            ValueError: The file can't be read, its arrays do not fit together, or it has an unknown label.
        """
        image, labels, rng = self._read(i)
        if self.augment is not None:
            axes = np.flatnonzero(rng.random(3) < self.augment.flip)
            image, labels = np.flip(image, axes), np.flip(labels, axes)
            contrast, brightness = self.augment.intensity * rng.uniform(-1, 1, 2).astype(np.float32)
            image = image * (1 + contrast) + brightness

        size = (self.augment and self.augment.crop) or self.size or labels.shape
        places = [place_axis(*lengths, self.augment and rng) for lengths in zip(labels.shape, size, strict=True)]
        read, write = zip(*places, strict=True)
        placed = np.zeros(size, dtype=np.float32), np.full(size, self.ignore_index, dtype=np.int64)
        placed[0][write], placed[1][write] = image[read], labels[read]
        return torch.from_numpy(placed[0])[None], torch.from_numpy(placed[1])

    def labels(self, i: int) -> Tensor:
        """Read the labels of one volume, without augmentation, in its own size: int64 [D, H, W]."""
        return torch.from_numpy(self._decode(i)[1])

    def _decode(self, index: int) -> tuple[Volume, Labels]:
        """Read a file and normalize the intensities."""
        path = self._paths[index]
        with _opened(path) as arrays:
            image, labels = arrays["image"].astype(np.float32), arrays["label"].astype(np.int64)
        if labels.ndim != 3 or image.shape != labels.shape:
            raise ValueError(
                f"{path}: expected image and label of one shape [D, H, W], but got {image.shape} and {labels.shape}"
            )
        unknown = ((labels < 0) | (labels >= self.num_classes)) & (labels != self.ignore_index)
        if unknown.any():
            raise ValueError(
                f"{path}: expected labels 0 to {self.num_classes - 1} or {self.ignore_index},"
                f" but got {labels[unknown][0]} at {unknown.sum()} voxels"
            )
        return (image - image.mean()) / max(float(image.std()), 1e-6), labels


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; any error of reading its arrays names it."""
    check_file(path)
    try:
        with np.load(path) as arrays:
            yield arrays
    except Exception as error:  # NumPy raises OSError, ValueError, KeyError and more
        raise ValueError(f"{path}: can't be read as a volume ({error})") from error


def _read_spacing(path: Path) -> tuple[float, ...] | None:
    """Read the array `spacing` of a file, if it has one."""
    with _opened(path) as arrays:
        if "spacing" not in arrays.files:
            return None
        size = tuple(arrays["spacing"].astype(float).tolist())
    if len(size) != 3 or not all(0 < length < math.inf for length in size):
        raise ValueError(f"{path}: expected spacing of three numbers > 0, but got {size}")
    return size


def _check_size(name: str, size: tuple[int, int, int] | None) -> None:
    if size is not None and (len(size) != 3 or min(size) < 1):
        raise ValueError(f"{name}: expected (depth, height, width), all >= 1, but got {size}")
