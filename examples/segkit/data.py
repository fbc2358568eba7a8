"""Images and label masks as training samples, with augmentation that can be replayed; `segkit.layouts` finds the files.

Whatever does not fit is an error that names the file; nothing is skipped.
"""

from __future__ import annotations

import functools
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from edgeloss.io import VOID_INDEX, read_image, read_labels
from edgeloss.io import read_classes as read_classes
from segkit import layouts
from segkit.layouts import Split

MEAN = (0.485, 0.456, 0.406)  # ImageNet, RGB in [0, 1]
STD = (0.229, 0.224, 0.225)

T = TypeVar("T")
Pixels = npt.NDArray[np.uint8]  # RGB, [H, W, 3]
Labels = npt.NDArray[Any]  # integers, [H, W]

# The loader's workers are the parallelism: OpenCV's own threads would compete with them, and can hang after a fork.
cv2.setNumThreads(0)


@dataclass(frozen=True)
class Augment:
    """How much to vary an image and its mask.

    Attributes:
        flip: Probability of a left-right flip.
        scale: Smallest and largest factor of a random resize, after which a random crop or padding restores the size.
        color: Strength of the brightness, contrast and saturation jitter: each factor lies in [1 - color, 1 + color].
    """

    flip: float = 0.5
    scale: tuple[float, float] = (0.75, 1.5)
    color: float = 0.3

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.flip <= 1:
            raise ValueError(f"expected flip in [0, 1] but got {self.flip}")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] < float("inf"):
            raise ValueError(f"expected scale to be (low, high) with 0 < low <= high but got {self.scale}")
        if not 0 <= self.color <= 1:
            raise ValueError(f"expected color in [0, 1] but got {self.color}")


class SegmentationDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of an image and its label mask.

    Augmentation draws from ``np.random.default_rng((seed, epoch, index))``: what a sample looks like depends on neither
    the workers nor the order of access, so a resumed run sees exactly what an uninterrupted one would have seen.

    Args:
        split: The files, and what the numbers in the masks mean.
        size: (H, W) of every sample. None keeps each image's own size.
        augment: Random variation, or None for none.
        seed: Seed of the augmentation, ≥ 0.
        cache: Keep what was decoded in memory that all workers share, `cache_bytes` of it, taken at once. That is the
            finished size without augmentation, and the file's own with it, since every epoch resizes to another.

    Attributes:
        names: Of the images, in the order of the samples.
        classes: Names of classes 0..C-1.
        ignore_index: The one further label in samples: of pixels that do not count, padding among them.

    Raises:
        ValueError: An argument is out of range, or the cache does not fit.
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
        """Open nothing yet; for a cache of images of their own sizes read these."""
        if not split.classes:
            raise ValueError("expected at least one class but got none")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"expected size to be (height, width), both >= 1, but got {size}")
        if seed < 0:
            raise ValueError(f"expected seed >= 0 but got {seed}")
        self.names = [pair.name for pair in split.pairs]
        self.classes = list(split.classes)
        self.ignore_index = split.ignore_index
        self.size = None if size is None else (size[0], size[1])
        self.augment = augment
        self.seed = seed
        self._pairs = split.pairs
        self._labels = split.labels or {label: label for label in (*range(len(self.classes)), self.ignore_index)}
        # In shared memory, so that set_epoch also reaches workers that live on from epoch to epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._cache = _Cache(self._pixel_counts, self._label_dtype) if cache else None

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._pairs)

    @property
    def epoch(self) -> int:
        """The epoch whose augmentation the next samples get."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, ≥ 0, whose augmentation the next samples get."""
        if epoch < 0:
            raise ValueError(f"expected epoch >= 0 but got {epoch}")
        self._epoch.fill_(epoch)

    @property
    def cache_bytes(self) -> int:
        """The memory that a cache takes, or would take: for a pixel 3 bytes of color and 1 of label, or 4 beyond 255.

        Raises:
            ValueError: An image can't be read, whose own size counts.
        """
        return sum(self._pixel_counts) * (3 + self._label_dtype.itemsize)

    @property
    def _label_dtype(self) -> torch.dtype:
        labels = self._labels.values()
        return torch.uint8 if min(labels) >= 0 and max(labels) <= 255 else torch.int32

    @functools.cached_property
    def _pixel_counts(self) -> list[int]:
        """Of each pair, as the cache keeps it."""
        if self.size is not None and self.augment is None:
            return [self.size[0] * self.size[1]] * len(self)
        return [_count_pixels(pair.image) for pair in self._pairs]

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Read one pair.

        Args:
            i: Index into `names`.

        Returns:
            The image, float32 [3, H, W], normalized by `MEAN` and `STD`, and its labels, int64 [H, W].

        Raises:
            ValueError: A file can't be read, the two differ in size, or the mask holds a number that is no label.
        """
        index = range(len(self))[i]  # negative indices, and IndexError beyond the end
        found = None if self._cache is None else self._cache.get(index)
        image, mask = found or self._decode(index)
        if self._cache is not None and found is None:
            self._cache.put(index, image, mask)
        if self.augment is None:
            return normalize(image), torch.from_numpy(mask.astype(np.int64))

        height, width = self.size or mask.shape
        rng = np.random.default_rng((self.seed, self.epoch, index))
        if rng.random() < self.augment.flip:
            image, mask = image[:, ::-1], mask[:, ::-1]
        factor = rng.uniform(*self.augment.scale)
        # Straight from the file's size to the final one: resampling once keeps the image sharper than twice.
        rows, columns = max(1, round(height * factor)), max(1, round(width * factor))
        image, mask = resize(image, rows, columns), _resize_mask(mask, rows, columns)
        (rows_from, rows_to), (columns_from, columns_to) = (
            _window(have, want, rng) for have, want in zip(mask.shape, (height, width), strict=True)
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
            ValueError: The mask can't be read, or holds a number that is no label.
        """
        path = self._pairs[i].mask
        mask = _relabel(read_labels(path).numpy(), self._labels, path)
        if self.size is not None:
            mask = _resize_mask(mask, *self.size)
        return torch.from_numpy(mask.astype(np.int64))

    def _decode(self, index: int) -> tuple[Pixels, Labels]:
        """Read a pair; without augmentation in its final size."""
        _, image_path, mask_path = self._pairs[index]
        image, mask = read_image(image_path).permute(1, 2, 0).numpy(), read_labels(mask_path).numpy()
        if image.shape[:2] != mask.shape:
            (h, w), (mask_h, mask_w) = image.shape[:2], mask.shape
            raise ValueError(f"{mask_path}: expected {w} x {h} pixels as in {image_path} but got {mask_w} x {mask_h}")
        mask = _relabel(mask, self._labels, mask_path)
        if self.augment is None and self.size is not None:
            image, mask = resize(image, *self.size), _resize_mask(mask, *self.size)
        return image, mask


class SegmentationFolder(SegmentationDataset):
    """The pairs of ROOT/images/NAME.png (.jpg, .jpeg) and ROOT/masks/NAME.png, for classes without names.

    Masks have one channel, gray or palette: the class index of each pixel.

    Args:
        root: Folder with `images` and `masks`.
        num_classes: Number of classes C; labels are 0..C-1.
        ignore_index: The one further label allowed in masks, and the label of padding.
        **options: `size`, `augment`, `seed` and `cache` of a `SegmentationDataset`.

    Raises:
        FileNotFoundError: A folder, every image, or an image's mask is missing.
        ValueError: A mask has no image, two files share a name, a file is of another kind, an argument is out of range.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        num_classes: int,
        ignore_index: int = VOID_INDEX,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Pair the files; none is opened yet."""
        if num_classes < 1:
            raise ValueError(f"expected num_classes >= 1 but got {num_classes}")
        pairs = layouts.pair_folders(Path(root) / "images", Path(root) / "masks")
        super().__init__(Split(pairs, [str(c) for c in range(num_classes)], ignore_index), **options)


def open_dataset(
    layout: str,
    root: str | Path,
    split: str,
    *,
    size: tuple[int, int] | None = None,
    augment: Augment | None = None,
    seed: int = 0,
    ignore_index: int | None = None,
    classes: str | Path | None = None,
    cache: bool = False,
) -> SegmentationDataset:
    """Open a part of a data set in the layout that its archives have.

    Args:
        layout: "folder", "camvid", "cityscapes", "voc" or "pet"; `segkit.layouts` says what each expects.
        root: Where the archives were unpacked.
        split: The part, such as "train".
        size: (H, W) of every sample. None keeps each image's own size.
        augment: Random variation, or None for none.
        seed: Seed of the augmentation, ≥ 0.
        ignore_index: The label that samples have where the masks say void. None keeps the data set's own.
        classes: The class list of a "folder", if it isn't ROOT/classes.txt.
        cache: Keep what was decoded in memory that all workers share.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: A folder or file is missing, or there is nothing.
        ValueError: There is no such layout, a list does not have the form, or an argument is out of range.
    """
    found = layouts.find(layout, root, split, classes=classes)
    count, void = len(found.classes), found.ignore_index
    if ignore_index is not None and ignore_index != void:
        if 0 <= ignore_index < count:
            raise ValueError(f"expected ignore_index to be none of the classes 0 to {count - 1} but got {ignore_index}")
        labels = found.labels or {label: label for label in (*range(count), void)}
        labels = {number: ignore_index if label == void else label for number, label in labels.items()}
        found = replace(found, ignore_index=ignore_index, labels=labels)
    return SegmentationDataset(found, size=size, augment=augment, seed=seed, cache=cache)


class _Cache:
    """Decoded pairs in memory that workers, forked or spawned, share: each is written by whoever first has it.

    Two that write the same pair at once write the same bytes.

    Args:
        pixels: how many each pair has.
        label_dtype: in which labels are kept.
    """

    def __init__(self, pixels: Sequence[int], label_dtype: torch.dtype) -> None:
        """Take the memory."""
        self._starts = np.cumsum([0, *pixels]).tolist()
        total = self._starts[-1]
        needed, shared = total * (3 + label_dtype.itemsize), Path("/dev/shm")  # where Linux has shared memory
        if shared.is_dir() and needed > (free := shutil.disk_usage(shared).free):
            raise ValueError(
                f"the cache takes {needed / 2**30:.1f} GiB of shared memory but {shared} has {free / 2**30:.1f} GiB;"
                " go without it, or make the samples smaller"
            )
        self._images = torch.empty(total, 3, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._labels = torch.empty(total, dtype=label_dtype).share_memory_()  # type: ignore[no-untyped-call]
        # Height and width of each pair; 0 until it is there.
        self._shapes = torch.zeros(len(pixels), 2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def get(self, index: int) -> tuple[Pixels, Labels] | None:
        """A pair, not to be written into, if it is there."""
        height, width = self._shapes[index].tolist()
        if not width:
            return None
        place = slice(*self._starts[index : index + 2])
        return self._images[place].view(height, width, 3).numpy(), self._labels[place].view(height, width).numpy()

    def put(self, index: int, image: Pixels, labels: Labels) -> None:
        """Keep a pair."""
        start, stop = self._starts[index : index + 2]
        if labels.size != stop - start:  # the file was exchanged for one of another size
            return
        self._images[start:stop] = torch.from_numpy(np.ascontiguousarray(image).reshape(-1, 3))
        self._labels[start:stop] = torch.from_numpy(labels.reshape(-1))
        self._shapes[index] = torch.tensor(labels.shape)  # last: it says that the rest is there


def seed_worker(worker: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch in a loader's worker; its ``worker_init_fn``.

    The samples of a `SegmentationDataset` need none of them. Whatever else draws from them in a worker then depends on
    the data set's seed and epoch and on the worker alone, and not on what the main process has drawn before.

    Args:
        worker: The worker's number.
    """
    info = get_worker_info()
    assert info is not None, "not a loader's worker"
    dataset: Any = info.dataset
    sequence = np.random.SeedSequence((dataset.seed, dataset.epoch), spawn_key=(worker,))
    python, numpy, pytorch = sequence.generate_state(3).tolist()
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(pytorch)


class waited(Iterator[T]):  # noqa: N801  (it is called like enumerate)
    """What an iterable gives, and how long one waited for it.

    A loader whose workers keep up costs next to no waiting; where ``seconds`` is a good part of an epoch, the loader is
    what limits it.

    Args:
        iterable: such as a loader, once.

    Attributes:
        seconds: spent in the iterable until now; also what it takes to start and to end it.
    """

    def __init__(self, iterable: Iterable[T]) -> None:
        """Start nothing yet."""
        self._iterable = iterable
        self._iterator: Iterator[T] | None = None
        self.seconds = 0.0

    def __next__(self) -> T:
        """Return the next element."""
        start = time.perf_counter()
        try:
            if self._iterator is None:
                self._iterator = iter(self._iterable)
            return next(self._iterator)
        finally:
            self.seconds += time.perf_counter() - start


def normalize(image: Pixels) -> Tensor:
    """Turn pixels into what the network takes.

    Args:
        image: RGB in 0..255, [H, W, 3].

    Returns:
        Float32 [3, H, W], normalized by `MEAN` and `STD`.
    """
    return _to_tensor(_unit(image))


def denormalize(image: Tensor) -> Tensor:
    """Undo `normalize`, but for the range.

    Args:
        image: Normalized images, [..., 3, H, W].

    Returns:
        RGB in [0, 1], of the same shape.
    """
    mean, std = (image.new_tensor(v)[:, None, None] for v in (MEAN, STD))
    return (image * std + mean).clamp(0, 1)


def _count_pixels(path: Path) -> int:
    """The number of pixels that an image file says it has."""
    try:
        with Image.open(path) as image:
            return int(np.prod(image.size))
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more for one and the same reason
        raise ValueError(f"{path}: can't be read as an image ({error})") from error


def _relabel(mask: Labels, labels: Mapping[int, int], path: Path) -> Labels:
    """Replace the numbers of a mask by their labels, or raise a `ValueError` for the first that has none."""
    unknown = np.iinfo(np.int32).min
    largest = min(max(labels), 2**16)  # a mask has 16 bits
    table = np.full(largest + 2, unknown, dtype=np.int32)
    for number, label in labels.items():
        if 0 <= number <= largest:
            table[number] = label
    found = table[np.minimum(mask, largest + 1)]
    if (wrong := found == unknown).any():
        row, column = np.argwhere(wrong)[0]
        number = mask[row, column]
        raise ValueError(
            f"{path}: expected labels {_ranges(labels)} but got {number}"
            f" at {int((mask == number).sum())} pixels, first at row {row}, column {column}"
        )
    return found


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers in words, such as "0 to 10 or 255"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " or ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """Resize an image as samples are resized."""
    rows, columns = image.shape[:2]
    if (rows, columns) == (height, width):
        return image
    # INTER_AREA averages when it shrinks, but turns pixels into blocks when it enlarges.
    smooth = cv2.INTER_AREA if height <= rows and width <= columns else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(np.ascontiguousarray(image), (width, height), interpolation=smooth), dtype=np.uint8)


def _resize_mask(mask: Labels, height: int, width: int) -> Labels:
    """Resize a mask, so that its pixel centers stay in register with those of a resized image."""
    rows, columns = mask.shape
    if (rows, columns) == (height, width):
        return mask
    # The old pixel in which the new one's center lies: (k + 1/2) · old / new. OpenCV's INTER_NEAREST leaves out
    # the 1/2, which moves borders by up to half a pixel, and its INTER_NEAREST_EXACT leaves ties to rounding.
    row = (2 * np.arange(height) + 1) * rows // (2 * height)
    column = (2 * np.arange(width) + 1) * columns // (2 * width)
    return np.asarray(mask[row[:, None], column])


def _window(have: int, want: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """Place an axis of length `have` on one of length `want` at random; return where to read and where to write."""
    offset = int(rng.integers(min(0, have - want), max(0, have - want), endpoint=True))
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
