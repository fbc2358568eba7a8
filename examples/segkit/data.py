"""Images or volumes and their labels as training samples, with reproducible augmentation.

`edgeloss.io.find_split` finds the files. A file that can't be used raises an error that names it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from edgeloss.io import InputError, Split, check_file, color_labels, parse_remap, read_image, read_labels, remap_labels

MEAN = (0.485, 0.456, 0.406)  # ImageNet, RGB in [0, 1]
STD = (0.229, 0.224, 0.225)

Pixels = npt.NDArray[Any]  # RGB of 8 bits, [H, W, 3], or float32 [D, H, W, 1] with mean 0
Labels = npt.NDArray[Any]  # integers, [H, W] or [D, H, W]

# The loader's workers run in parallel: OpenCV's own threads would compete with them, and can hang after a fork.
cv2.setNumThreads(0)


@dataclass(frozen=True)
class Augment:
    """Strength of the random changes to a sample, next to the random place of a crop or of padding.

    Attributes:
        flip: Probability of a flip of left and right: of the last axis of an image, and of the first one of a volume,
            which is that in anatomical order.
        scale: Smallest and largest factor of a random resize of an image, after which a random crop or padding restores
            the size. Volumes are not resized, so voxels keep their size.
        color: Strength of the brightness, contrast and saturation jitter of an image: each factor lies in [1 - color,
            1 + color]. Of a volume that of contrast, and of brightness in standard deviations.
        crop: Size of a random crop of the resized image, which becomes the sample; None restores the size instead.
    """

    flip: float = 0.5
    scale: tuple[float, float] = (0.75, 1.5)
    color: float = 0.3
    crop: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.flip <= 1:
            raise ValueError(f"flip: expected a probability in [0, 1], but got {self.flip}")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] < float("inf"):
            raise ValueError(f"scale: expected (low, high) with 0 < low <= high, but got {self.scale}")
        if not 0 <= self.color <= 1:
            raise ValueError(f"color: expected a number in [0, 1], but got {self.color}")


class SegmentationDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of an image and its labels, [3, H, W] or of a volume [1, D, H, W].

    Random changes are drawn from ``np.random.default_rng((seed, epoch, index))``: a sample depends neither on the
    workers nor on the order of access, so a resumed run sees the same samples as an uninterrupted one.

    Args:
        split: The files, and the meaning of the numbers in the masks.
        size: Size of every sample: images are resized to it; volumes are cropped and padded to it, around their center
            or, with augmentation, at a random place. None keeps the size of each.
        augment: Random changes; None for none.
        seed: Seed of the augmentation, ≥ 0.
        cache: Decode all files now, and keep them in memory: without augmentation in their final size, with it in that
            of the file, since every epoch resizes them differently.
        palette: The colors of the classes in masks of colors: a key of `edgeloss.io.PALETTES`, or a file.
        remap: Rules that replace the numbers in masks, as for `edgeloss.io.parse_remap`, instead of those of the split.

    Attributes:
        names: Names of the images, in the order of the samples.
        classes: Names of classes 0..C-1.
        ignore_index: The label of void pixels in samples, padding included.
        epoch: The epoch of the augmentation of the next samples, ≥ 0. Workers know that of their start.

    Raises:
        ValueError: An argument is out of range, or a file to cache can't be used.
    """

    def __init__(
        self,
        split: Split,
        *,
        size: tuple[int, ...] | None = None,
        augment: Augment | None = None,
        seed: int = 0,
        cache: bool = False,
        palette: str | None = None,
        remap: str | None = None,
    ) -> None:
        """Check the options; without a cache, images are read later."""
        for name, value in (("size", size), ("crop", augment and augment.crop)):
            if value is not None and (len(value) != split.dims or min(value) < 1):
                raise ValueError(f"{name}: expected {split.dims} lengths, all >= 1, but got {value}")
        if seed < 0:
            raise ValueError(f"seed: expected an integer >= 0, but got {seed}")
        self.names, self.classes, self.ignore_index = [p.name for p in split.pairs], split.classes, split.ignore_index
        self.size, self.augment, self.seed, self.epoch = size, augment, seed, 0
        self._pairs, self._dims = split.pairs, split.dims
        if palette is not None and split.dims == 3:
            raise ValueError(f"palette: expected one for images, but got {palette} for volumes; leave it out")
        self._colors = None if palette is None else color_labels(palette)
        self._rules = _parse_rules(remap)
        same = {label: label for label in (*range(len(self.classes)), split.ignore_index)}
        self._labels = (split.labels if not self._rules else None) or same
        self._cache: list[tuple[Pixels, Labels]] | None = None
        if cache:
            with ThreadPoolExecutor() as pool:
                self._cache = list(pool.map(self._decode, range(len(self))))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.names)

    @functools.cached_property
    def spacing(self) -> tuple[float, ...] | None:
        """The array `spacing` of volumes, the size of a voxel along each axis, for losses and metrics; None without it.

        Raises:
            InputError: A file can't be read, has no three sizes > 0, or has other sizes than the first one.
        """
        sizes = []
        for path in [pair.image for pair in self._pairs if self._dims == 3]:
            with _opened(path) as arrays:
                size = tuple(arrays["spacing"].astype(float).tolist()) if "spacing" in arrays.files else None
            if size is not None and (len(size) != 3 or not all(0 < length < math.inf for length in size)):
                raise InputError(f"{path}: expected spacing of three numbers > 0, but got {size}")
            sizes.append(size)
            if size != sizes[0]:
                first = self._pairs[0].image
                raise InputError(
                    f"{path}: expected spacing {sizes[0]} as in {first}, but got {size}; resample the volumes"
                )
        return sizes[0] if sizes else None

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Read one pair.

        Args:
            i: Index into `names`.

        Returns:
            The image, float32, normalized by `MEAN` and `STD`, or the volume with mean 0 and standard deviation 1 over
            the file's voxels, both 0 in the padding; and the labels, int64.

        Raises:
            InputError: A file can't be read, the sizes differ, or the mask has an unknown label.
        """
        index = range(len(self))[i]  # negative indices, and IndexError beyond the end
        image, labels = self._decode(index) if self._cache is None else self._cache[index]
        if self.augment is None:
            return self._placed(image, labels, self.size or labels.shape)
        rng, size = np.random.default_rng((self.seed, self.epoch, index)), self.size or labels.shape
        if self._dims == 3:
            image, labels = _change_volume(image, labels, self.augment, rng)
        else:
            image, labels = _change_image(image, labels, size, self.augment, rng)
        return self._placed(image, labels, self.augment.crop or size, rng)

    def labels(self, i: int) -> Tensor:
        """Read the labels of one pair, int64, as without augmentation; those of a volume as a whole.

        Raises:
            InputError: The file can't be read, or has an unknown label.
        """
        _, path, mask_path = self._pairs[i]
        if self._dims == 3:
            mask = self._relabel(_read_volume(path)[1], path)
        else:
            mask = self._read_mask(mask_path)
            mask = mask if self.size is None else _resize_mask(mask, *self.size)
        return torch.from_numpy(mask.astype(np.int64))

    def label_sources(self) -> list[Any]:
        """Return what `labels` depend on: names, sizes and times of the files, and the options.

        Raises:
            OSError: A file is missing.
        """
        about = [(pair.mask, pair.mask.stat()) for pair in self._pairs]
        files = [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in about]
        colors = None if self._colors is None else [*self._colors.items()]
        return [files, self.size, colors, self._rules, [*self._labels.items()], self.ignore_index]

    def _placed(
        self, image: Pixels, labels: Labels, size: tuple[int, ...], rng: np.random.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Crop or pad a pair to a size; normalize an image, after a jitter of its colors if there is a generator."""
        places = [_place_axis(have, want, rng) for have, want in zip(labels.shape, size, strict=True)]
        read, write = zip(*places, strict=True)
        part = image[read]
        if self._dims == 2:
            part = np.divide(part, 255, dtype=np.float32)
            part = _standardize(part if rng is None else _jitter(part, self.augment.color, rng))
        sample = np.zeros((image.shape[-1], *size), dtype=np.float32)  # 0 is the mean color, once normalized
        target = np.full(size, self.ignore_index, dtype=np.int64)
        sample[(slice(None), *write)], target[write] = np.moveaxis(part, -1, 0), labels[read]
        return torch.from_numpy(sample), torch.from_numpy(target)

    def _decode(self, index: int) -> tuple[Pixels, Labels]:
        """Read a pair; without augmentation, an image in its final size."""
        _, path, mask_path = self._pairs[index]
        if self._dims == 3:
            image, numbers = _read_volume(path)
            return image, self._relabel(numbers, path)
        notes: list[str] = []  # such as of an image that was turned upright
        image, mask = read_image(path, note=notes.append).permute(1, 2, 0).numpy(), self._read_mask(mask_path)
        if image.shape[:2] != mask.shape:
            (h, w), (mask_h, mask_w) = image.shape[:2], mask.shape
            about = "; ".join([f"but got {mask_w} x {mask_h}", *notes])
            raise InputError(f"{mask_path}: expected {w} x {h} pixels as in {path}, {about}")
        if self.augment is None and self.size is not None:
            image, mask = resize(image, *self.size), _resize_mask(mask, *self.size)
        return image, mask

    def _read_mask(self, path: Path) -> Labels:
        return self._relabel(read_labels(path, colors=self._colors).numpy(), path)

    def _relabel(self, numbers: Labels, path: Path) -> Labels:
        replaced = remap_labels(torch.from_numpy(numbers), self._rules).numpy() if self._rules else numbers
        return _relabel(replaced, self._labels, path)


def _parse_rules(remap: str | None) -> list[tuple[int, int, int]]:
    try:
        return [] if remap is None else parse_remap(remap)
    except ValueError as error:
        raise ValueError(f"data.remap: {error}") from error


def normalize(image: Pixels) -> Tensor:
    """Convert RGB in 0..255, [H, W, 3], to float32 [3, H, W], normalized by `MEAN` and `STD`."""
    return torch.from_numpy(_standardize(np.divide(image, 255, dtype=np.float32))).movedim(-1, 0).contiguous()


def denormalize(image: Tensor) -> Tensor:
    """Undo `normalize` of images [..., 3, H, W]; return RGB in [0, 1], of the same shape."""
    mean, std = (image.new_tensor(v)[:, None, None] for v in (MEAN, STD))
    return (image * std + mean).clamp(0, 1)


def _relabel(numbers: Labels, labels: Mapping[int, int], path: Path) -> Labels:
    """Replace the numbers of a mask by their labels.

    Raises:
        InputError: A number has no label.
    """
    known = np.array(sorted(labels))
    place = np.searchsorted(known, numbers).clip(max=len(known) - 1)
    if (wrong := known[place] != numbers).any():
        first = tuple(np.argwhere(wrong)[0].tolist())
        listed = list(labels)
        raise InputError(
            f"{path}: expected labels {listed[0]} to {listed[-2]} or {listed[-1]}, but got {numbers[first]} at"
            f" {int((numbers == numbers[first]).sum())} pixels, first at {list(first)}"
        )
    values = np.array([labels[number] for number in known.tolist()])
    fits = values.min() >= 0 and values.max() <= 255  # a cache holds bytes then
    return values.astype(np.uint8 if fits else np.int32)[place]


def _change_image(
    image: Pixels, mask: Labels, size: tuple[int, ...], augment: Augment, rng: np.random.Generator
) -> tuple[Pixels, Labels]:
    """Flip an image at random, and resize it to a random multiple of a size."""
    if rng.random() < augment.flip:
        image, mask = cv2.flip(image, 1), mask[:, ::-1]
    factor = rng.uniform(*augment.scale)
    # From the file's size to the final one in one step: resampling twice would blur the image.
    rows, columns = (max(1, round(length * factor)) for length in size)
    return resize(image, rows, columns), _resize_mask(mask, rows, columns)


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """Resize an image with the filter used for samples."""
    rows, columns = image.shape[:2]
    if (rows, columns) == (height, width):
        return image
    # INTER_AREA averages when shrinking, but turns pixels into blocks when enlarging.
    smooth = cv2.INTER_AREA if height <= rows and width <= columns else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=smooth), dtype=np.uint8)


def _resize_mask(mask: Labels, height: int, width: int) -> Labels:
    """Resize a mask so that its pixel centers match those of a resized image."""
    rows, columns = mask.shape
    if (rows, columns) == (height, width):
        return mask
    # The old pixel that contains the center of the new one: (k + 1/2) · old / new. OpenCV's INTER_NEAREST omits the
    # 1/2, which moves borders by up to half a pixel, and its INTER_NEAREST_EXACT leaves ties to rounding.
    row = (2 * np.arange(height) + 1) * rows // (2 * height)
    column = (2 * np.arange(width) + 1) * columns // (2 * width)
    return mask.take(row, 0).take(column, 1)


def _place_axis(have: int, want: int, rng: np.random.Generator | None) -> tuple[slice, slice]:
    """Crop or pad an axis at random, or around its center; return where to read and where to write."""
    rest = have - want
    offset = rest // 2 if rng is None else int(rng.integers(min(0, rest), max(0, rest), endpoint=True))
    length = min(have, want)
    return slice(max(offset, 0), max(offset, 0) + length), slice(max(-offset, 0), max(-offset, 0) + length)


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


def _standardize(image: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Normalize RGB in [0, 1], [H, W, 3]."""
    return (image - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)


def _read_volume(path: Path) -> tuple[Pixels, Labels]:
    """Read the arrays `image` and `label` of a file.

    Returns:
        The image with mean 0 and standard deviation 1, and the numbers of the labels.

    Raises:
        InputError: The file can't be read, or its arrays do not fit together.
    """
    with _opened(path) as arrays:
        image, labels = arrays["image"].astype(np.float32), arrays["label"].astype(np.int64)
    if labels.ndim != 3 or image.shape != labels.shape:
        raise InputError(
            f"{path}: expected image and label of one shape [D, H, W], but got {image.shape} and {labels.shape}"
        )
    return ((image - image.mean()) / max(float(image.std()), 1e-6))[..., None], labels


def _change_volume(image: Pixels, labels: Labels, augment: Augment, rng: np.random.Generator) -> tuple[Pixels, Labels]:
    """Flip a volume along its first axis at random, and vary its contrast and brightness."""
    if rng.random(3)[0] < augment.flip:  # a draw per axis, but in anatomical order only the first one is symmetric
        image, labels = image[::-1], labels[::-1]
    contrast, brightness = augment.color * rng.uniform(-1, 1, 2).astype(np.float32)
    return image * (1 + contrast) + brightness, labels


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; any error of reading its arrays names it."""
    check_file(path)
    try:
        with np.load(path) as arrays:
            yield arrays
    except Exception as error:  # NumPy raises OSError, ValueError, KeyError and more
        raise InputError(f"{path}: can't be read as a volume ({error})") from error
