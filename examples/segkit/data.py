"""Images and label masks as training samples, with reproducible augmentation.

`segkit.layouts` finds the files. A file that can't be used raises an error that names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from edgeloss.io import read_image, read_labels
from segkit.layouts import Split

MEAN = (0.485, 0.456, 0.406)  # ImageNet, RGB in [0, 1]
STD = (0.229, 0.224, 0.225)

Pixels = npt.NDArray[np.uint8]  # RGB, [H, W, 3]
Labels = npt.NDArray[Any]  # integers, [H, W]

# The loader's workers run in parallel: OpenCV's own threads would compete with them, and can hang after a fork.
cv2.setNumThreads(0)


@dataclass(frozen=True)
class Augment:
    """Strength of the random changes to an image and its mask.

    Attributes:
        flip: Probability of a left-right flip.
        scale: Smallest and largest factor of a random resize, after which a random crop or padding restores the size.
        color: Strength of the brightness, contrast and saturation jitter: each factor lies in [1 - color, 1 + color].
        crop: (H, W) of a random crop of the resized image, which becomes the sample; None restores the size instead.
    """

    flip: float = 0.5
    scale: tuple[float, float] = (0.75, 1.5)
    color: float = 0.3
    crop: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.flip <= 1:
            raise ValueError(f"flip: expected a probability in [0, 1], but got {self.flip}")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] < float("inf"):
            raise ValueError(f"scale: expected (low, high) with 0 < low <= high, but got {self.scale}")
        if not 0 <= self.color <= 1:
            raise ValueError(f"color: expected a number in [0, 1], but got {self.color}")
        if self.crop is not None and (len(self.crop) != 2 or min(self.crop) < 1):
            raise ValueError(f"crop: expected (height, width), both >= 1, but got {self.crop}")


class AugmentedDataset(Dataset[tuple[Tensor, Tensor]], ABC):
    """Samples whose random changes depend on a seed, an epoch and their index.

    They are drawn from ``np.random.default_rng((seed, epoch, index))``: a sample depends neither on the workers nor on
    the order of access, so a resumed run sees the same samples as an uninterrupted one.

    Args:
        names: Names of the samples.
        ignore_index: The label of void pixels in samples, padding included.
        seed: Seed of the augmentation, ≥ 0.
        cache: Decode all files now, into memory that all workers share.

    Raises:
        ValueError: The seed is out of range, or a file to cache can't be used.
    """

    def __init__(self, names: Sequence[str], ignore_index: int, seed: int, cache: bool) -> None:
        """Begin with epoch 0."""
        if seed < 0:
            raise ValueError(f"seed: expected an integer >= 0, but got {seed}")
        self.names, self.ignore_index, self.seed = list(names), ignore_index, seed
        # In shared memory, so that set_epoch also reaches workers that live on from epoch to epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._cache: list[_Packed] = []
        if cache:
            with ThreadPoolExecutor() as pool:
                decoded = list(pool.map(self._decode, range(len(self.names))))
            self._cache = [_Packed(arrays) for arrays in zip(*decoded, strict=True)]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.names)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, ≥ 0, of the augmentation of the next samples."""
        if epoch < 0:
            raise ValueError(f"epoch: expected an integer >= 0, but got {epoch}")
        self._epoch.fill_(epoch)

    @abstractmethod
    def _decode(self, index: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Read the image and the labels of a sample, as they are before its random changes."""

    def _read(self, i: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], np.random.Generator]:
        """Return what `_decode` does, which must not be modified, and the generator of the random changes."""
        index = range(len(self))[i]  # negative indices, and IndexError beyond the end
        rng = np.random.default_rng((self.seed, int(self._epoch), index))
        image, labels = [part[index] for part in self._cache] or self._decode(index)
        return image, labels, rng


class _Packed:
    """Arrays of several shapes in one tensor: as such, workers share it however they are started."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Copy them."""
        self._shapes = [array.shape for array in arrays]
        self._values = torch.cat([torch.from_numpy(np.ascontiguousarray(array)).flatten() for array in arrays])
        self._starts = np.cumsum([0, *(array.size for array in arrays)]).tolist()

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        """Return an array."""
        return self._values[self._starts[i] : self._starts[i + 1]].view(self._shapes[i]).numpy()


class SegmentationDataset(AugmentedDataset):
    """Pairs of an image and its label mask.

    Args:
        split: The files, and the meaning of the numbers in the masks.
        size: (H, W) of every sample. None keeps each image's own size.
        augment: Random changes; None for none.
        seed: Seed of the augmentation, ≥ 0.
        cache: Keep decoded images in memory that all workers share. Without augmentation they have their final size;
            with it, that of the file, since every epoch resizes them differently.

    Attributes:
        names: Names of the images, in the order of the samples.
        classes: Names of classes 0..C-1.
        ignore_index: The label of void pixels in samples, padding included.

    Raises:
        ValueError: An argument is out of range, or a file to cache can't be used.
    """

    def __init__(
        self,
        split: Split,
        *,
        size: tuple[int, int] | None = None,
        augment: Augment | None = None,
        seed: int = 0,
        cache: bool = False,
    ) -> None:
        """Check the options; without a cache, images are read later."""
        if not split.classes:
            raise ValueError("classes: expected at least one, but got none")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"size: expected (height, width), both >= 1, but got {size}")
        self.classes = list(split.classes)
        self.size = None if size is None else (size[0], size[1])
        self.augment = augment
        self._pairs = split.pairs
        self._labels = split.labels or {label: label for label in (*range(len(self.classes)), split.ignore_index)}
        super().__init__([pair.name for pair in split.pairs], split.ignore_index, seed, cache)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Read one pair.

        Args:
            i: Index into `names`.

        Returns:
            The image, float32 [3, H, W], normalized by `MEAN` and `STD`, and its labels, int64 [H, W].

        Raises:
            ValueError: A file can't be read, the sizes differ, or the mask has an unknown label.
        """
        image, mask, rng = self._read(i)
        if self.augment is None:
            return normalize(image), torch.from_numpy(mask.astype(np.int64))

        height, width = self.size or mask.shape
        if rng.random() < self.augment.flip:
            image, mask = image[:, ::-1], mask[:, ::-1]
        factor = rng.uniform(*self.augment.scale)
        # From the file's size to the final one in one step: resampling twice would blur the image.
        rows, columns = max(1, round(height * factor)), max(1, round(width * factor))
        image, mask = resize(image, rows, columns), _resize_mask(mask, rows, columns)
        height, width = self.augment.crop or (height, width)
        (rows_from, rows_to), (columns_from, columns_to) = (
            place_axis(have, want, rng) for have, want in zip(mask.shape, (height, width), strict=True)
        )
        labels = np.full((height, width), self.ignore_index, dtype=np.int64)
        labels[rows_to, columns_to] = mask[rows_from, columns_from]
        pixels = _jitter(_unit(image[rows_from, columns_from]), self.augment.color, rng)
        padded = torch.zeros(3, height, width)  # zero is the mean color, once normalized
        padded[:, rows_to, columns_to] = _to_tensor(pixels)
        return padded, torch.from_numpy(labels)

    def labels(self, i: int) -> Tensor:
        """Read the labels of one pair, without augmentation.

        Args:
            i: Index into `names`.

        Returns:
            Int64 [H, W], of the size of the samples.

        Raises:
            ValueError: The mask can't be read, or has an unknown label.
        """
        path = self._pairs[i].mask
        mask = _relabel(read_labels(path).numpy(), self._labels, path)
        if self.size is not None:
            mask = _resize_mask(mask, *self.size)
        return torch.from_numpy(mask.astype(np.int64))

    def _decode(self, index: int) -> tuple[Pixels, Labels]:
        """Read a pair; without augmentation, in its final size."""
        _, image_path, mask_path = self._pairs[index]
        image, mask = read_image(image_path).permute(1, 2, 0).numpy(), read_labels(mask_path).numpy()
        if image.shape[:2] != mask.shape:
            (h, w), (mask_h, mask_w) = image.shape[:2], mask.shape
            raise ValueError(f"{mask_path}: expected {w} x {h} pixels as in {image_path}, but got {mask_w} x {mask_h}")
        mask = _relabel(mask, self._labels, mask_path)
        if self.augment is None and self.size is not None:
            image, mask = resize(image, *self.size), _resize_mask(mask, *self.size)
        return image, mask


def normalize(image: Pixels) -> Tensor:
    """Convert pixels to the input of the network.

    Args:
        image: RGB in 0..255, [H, W, 3].

    Returns:
        Float32 [3, H, W], normalized by `MEAN` and `STD`.
    """
    return _to_tensor(_unit(image))


def denormalize(image: Tensor) -> Tensor:
    """Undo `normalize`, up to the range.

    Args:
        image: Normalized images, [..., 3, H, W].

    Returns:
        RGB in [0, 1], of the same shape.
    """
    mean, std = (image.new_tensor(v)[:, None, None] for v in (MEAN, STD))
    return (image * std + mean).clamp(0, 1)


def _relabel(mask: Labels, labels: Mapping[int, int], path: Path) -> Labels:
    """Replace the numbers of a mask by their labels.

    Raises:
        ValueError: A number has no label.
    """
    unknown = np.iinfo(np.int32).min
    largest = min(max(labels), 2**16)  # a mask has 16 bits
    table = np.full(largest + 2, unknown, dtype=np.int32)
    for number, label in labels.items():
        if 0 <= number <= largest:
            table[number] = label
    relabeled = table[np.minimum(mask, largest + 1)]
    if (wrong := relabeled == unknown).any():
        row, column = np.argwhere(wrong)[0]
        number = mask[row, column]
        raise ValueError(
            f"{path}: expected labels {_ranges(labels)}, but got {number}"
            f" at {int((mask == number).sum())} pixels, first at row {row}, column {column}"
        )
    fits = min(labels.values()) >= 0 and max(labels.values()) <= 255
    return relabeled.astype(np.uint8) if fits else relabeled


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers in words, such as "0 to 10 or 255"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " or ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """Resize an image with the filter used for samples."""
    rows, columns = image.shape[:2]
    if (rows, columns) == (height, width):
        return image
    # INTER_AREA averages when shrinking, but turns pixels into blocks when enlarging.
    smooth = cv2.INTER_AREA if height <= rows and width <= columns else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(np.ascontiguousarray(image), (width, height), interpolation=smooth), dtype=np.uint8)


def _resize_mask(mask: Labels, height: int, width: int) -> Labels:
    """Resize a mask so that its pixel centers match those of a resized image."""
    rows, columns = mask.shape
    if (rows, columns) == (height, width):
        return mask
    # The old pixel that contains the center of the new one: (k + 1/2) · old / new. OpenCV's INTER_NEAREST omits the
    # 1/2, which moves borders by up to half a pixel, and its INTER_NEAREST_EXACT leaves ties to rounding.
    row = (2 * np.arange(height) + 1) * rows // (2 * height)
    column = (2 * np.arange(width) + 1) * columns // (2 * width)
    return np.asarray(mask[row[:, None], column])


def place_axis(have: int, want: int, rng: np.random.Generator | None) -> tuple[slice, slice]:
    """Crop or pad an axis at random, or around its center; return where to read and where to write."""
    rest = have - want
    offset = rest // 2 if rng is None else int(rng.integers(min(0, rest), max(0, rest), endpoint=True))
    length = min(have, want)
    return slice(max(offset, 0), max(offset, 0) + length), slice(max(-offset, 0), max(-offset, 0) + length)


def _unit(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Map [0, 255] to [0, 1]."""
    return np.divide(image, 255, dtype=np.float32)


def _jitter(image: npt.NDArray[np.float32], strength: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Vary brightness, contrast and saturation of RGB in [0, 1], [H, W, 3]."""
    luma = np.array([0.299, 0.587, 0.114], dtype=np.float32)
    brightness, contrast, saturation = 1 + strength * rng.uniform(-1, 1, size=3).astype(np.float32)
    image = image * brightness
    mean = (image @ luma).mean()
    image = mean + contrast * (image - mean)
    gray = (image @ luma)[..., None]
    image = gray + saturation * (image - gray)
    return np.clip(image, 0, 1)


def _to_tensor(image: npt.NDArray[np.float32]) -> Tensor:
    """Normalize RGB in [0, 1], [H, W, 3], to a tensor [3, H, W]."""
    normalized = (image - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
    return torch.from_numpy(np.ascontiguousarray(normalized.transpose(2, 0, 1)))
