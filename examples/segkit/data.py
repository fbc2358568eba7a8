"""Images and label masks from a folder, with augmentation that can be replayed.

    ROOT/images/NAME.png (or .jpg, .jpeg)     RGB
    ROOT/masks/NAME.png                       one channel (gray or palette): the class index of each pixel

Whatever does not fit is an error that names the file; nothing is skipped. Only hidden files (".DS_Store") are ignored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

MEAN = (0.485, 0.456, 0.406)  # ImageNet, RGB in [0, 1]
STD = (0.229, 0.224, 0.225)

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
MASK_SUFFIXES = (".png",)
VOID_INDEX = 255

# The loader's workers are the parallelism: OpenCV's own threads would compete with them, and can hang after a fork.
cv2.setNumThreads(0)


def read_classes(path: str | Path) -> tuple[list[str], int | None]:
    """Read class names from a text file with one "<index> <name>" per line.

    Blank lines are skipped. A line with index 255 or the name "void" gives the ignore index instead of a class.

    Args:
        path: The file, UTF-8.

    Returns:
        The names of classes 0..C-1 in order, and the ignore index, None without such a line.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is malformed, repeats an index or a name, or the indices are not 0..C-1; with file and line.
    """
    names: dict[int, str] = {}
    lines: dict[int, int] = {}
    ignore_index: int | None = None
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), start=1):
        where = f"{path}, line {number}"
        fields = line.split(maxsplit=1)
        if not fields:
            continue
        if len(fields) < 2 or not (fields[0].isascii() and fields[0].isdigit()):
            raise ValueError(f'{where}: expected "<index> <name>" but got {line!r}')
        index, name = int(fields[0]), fields[1].strip()
        if index in lines:
            raise ValueError(f"{where}: index {index} occurs twice, first in line {lines[index]}")
        lines[index] = number
        if index == VOID_INDEX or name.lower() == "void":
            if ignore_index is not None:
                raise ValueError(f"{where}: second void line, the first is line {lines[ignore_index]}")
            ignore_index = index
        elif name in names.values():
            raise ValueError(f"{where}: name {name!r} occurs twice")
        else:
            names[index] = name
    if not names:
        raise ValueError(f"{path}: expected at least one class but got none")
    for index in names:
        if index >= len(names):
            raise ValueError(
                f"{path}, line {lines[index]}: expected the indices of {len(names)} classes to be 0 to {len(names) - 1}"
                f" without a gap but got {index}"
            )
    return [names[index] for index in range(len(names))], ignore_index


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


class SegmentationFolder(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of an image and its label mask, in the order of their names.

    Augmentation draws from ``np.random.default_rng((seed, epoch, index))``: what a sample looks like depends on neither
    the workers nor the order of access, so a resumed run sees exactly what an uninterrupted one would have seen.

    Args:
        root: Folder with `images` and `masks`.
        num_classes: Number of classes C; labels are 0..C-1.
        ignore_index: The one further label allowed in masks, and the label of padding.
        size: (H, W) of every sample. None keeps each image's own size.
        augment: Random variation, or None for none.
        seed: Seed of the augmentation, ≥ 0.

    Attributes:
        names: File names without suffix, sorted.

    Raises:
        FileNotFoundError: A folder, every image, or an image's mask is missing.
        ValueError: A mask has no image, two files share a name, a file is of another kind, an argument is out of range.
    """

    names: list[str]

    def __init__(
        self,
        root: str | Path,
        *,
        num_classes: int,
        ignore_index: int = 255,
        size: tuple[int, int] | None = None,
        augment: Augment | None = None,
        seed: int = 0,
    ) -> None:
        """Pair the files; none is opened yet."""
        if num_classes < 1:
            raise ValueError(f"expected num_classes >= 1 but got {num_classes}")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"expected size to be (height, width), both >= 1, but got {size}")
        if seed < 0:
            raise ValueError(f"expected seed >= 0 but got {seed}")
        self.root = Path(root)
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.size = None if size is None else (size[0], size[1])
        self.augment = augment
        self.seed = seed
        # In shared memory, so that set_epoch also reaches workers that live on from epoch to epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

        images = _files(self.root, "images", IMAGE_SUFFIXES)
        masks = _files(self.root, "masks", MASK_SUFFIXES)
        if not images:
            raise FileNotFoundError(
                f"{self.root / 'images'}: expected {_listed(IMAGE_SUFFIXES)} files but the folder is empty"
            )
        for name, path in images.items():
            if name not in masks:
                raise FileNotFoundError(f"{path}: has no mask, expected {self.root / 'masks' / name}.png")
        for name, path in masks.items():
            if name not in images:
                raise ValueError(
                    f"{path}: has no image, expected {name}{{{','.join(IMAGE_SUFFIXES)}}} in {self.root / 'images'}"
                )
        self.names = sorted(images)
        self._paths = [(images[name], masks[name]) for name in self.names]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.names)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, ≥ 0, whose augmentation the next samples get."""
        if epoch < 0:
            raise ValueError(f"expected epoch >= 0 but got {epoch}")
        self._epoch.fill_(epoch)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Read one pair.

        Args:
            i: Index into `names`.

        Returns:
            The image, float32 [3, H, W], normalized by `MEAN` and `STD`, and its labels, int64 [H, W].

        Raises:
            ValueError: A file can't be read, the two differ in size, or the mask holds a label out of range.
        """
        index = range(len(self))[i]  # negative indices, and IndexError beyond the end
        image_path, mask_path = self._paths[index]
        image, mask = _read_image(image_path), _read_mask(mask_path)
        if image.shape[:2] != mask.shape:
            (h, w), (mask_h, mask_w) = image.shape[:2], mask.shape
            raise ValueError(f"{mask_path}: expected {w} x {h} pixels as in {image_path} but got {mask_w} x {mask_h}")
        self._check_labels(mask, mask_path)

        height, width = self.size or mask.shape
        if self.augment is None:
            image, mask = _resize(image, mask, height, width)
            return _to_tensor(_unit(image)), torch.from_numpy(mask.astype(np.int64))

        rng = np.random.default_rng((self.seed, int(self._epoch), index))
        if rng.random() < self.augment.flip:
            image, mask = image[:, ::-1], mask[:, ::-1]
        factor = rng.uniform(*self.augment.scale)
        # Straight from the file's size to the final one: resampling once keeps the image sharper than twice.
        image, mask = _resize(image, mask, max(1, round(height * factor)), max(1, round(width * factor)))
        (rows_from, rows_to), (columns_from, columns_to) = (
            _window(have, want, rng) for have, want in zip(mask.shape, (height, width), strict=True)
        )
        labels = np.full((height, width), self.ignore_index, dtype=np.int64)
        labels[rows_to, columns_to] = mask[rows_from, columns_from]
        pixels = _jitter(_unit(image[rows_from, columns_from]), self.augment.color, rng)
        padded = torch.zeros(3, height, width)  # zero is the mean color, once normalized
        padded[:, rows_to, columns_to] = _to_tensor(pixels)
        return padded, torch.from_numpy(labels)

    def _check_labels(self, mask: npt.NDArray[np.int32], path: Path) -> None:
        """Raise a `ValueError` for the first label of `mask` [H, W] that is neither a class nor the ignore index."""
        wrong = (mask >= self.num_classes) & (mask != self.ignore_index)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            label = mask[row, column]
            raise ValueError(
                f"{path}: expected labels 0 to {self.num_classes - 1} or {self.ignore_index} but got {label}"
                f" at {int((mask == label).sum())} pixels, first at row {row}, column {column}"
            )


def denormalize(image: Tensor) -> Tensor:
    """Undo the normalization of `SegmentationFolder`.

    Args:
        image: Normalized images, [..., 3, H, W].

    Returns:
        RGB in [0, 1], of the same shape.
    """
    mean, std = (image.new_tensor(v)[:, None, None] for v in (MEAN, STD))
    return (image * std + mean).clamp(0, 1)


def _listed(suffixes: Collection[str]) -> str:
    return " or ".join(suffixes)


def _files(root: Path, kind: str, suffixes: Collection[str]) -> dict[str, Path]:
    """Return the files of one folder by stem."""
    folder = root / kind
    for path in (root, folder):
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such folder, expected {root / 'images'} and {root / 'masks'}")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.suffix.lower() not in suffixes or not path.is_file():
            raise ValueError(f"{path}: expected nothing but {_listed(suffixes)} files in {folder}")
        if path.stem in found:
            raise ValueError(f"{path}: same name as {found[path.stem]}, so the two can't be told apart")
        found[path.stem] = path
    return found


def _read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Read RGB pixels [H, W, 3]."""
    image = _open(path)
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"{path}: expected 8 bits per channel but got an image of mode {image.mode}")
    # Cameras store "this side up" as a tag; annotation tools show, and so masks follow, the upright image.
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def _read_mask(path: Path) -> npt.NDArray[np.int32]:
    """Read labels [H, W]: gray values, or the indices of a palette image rather than its colors."""
    image = _open(path)
    if image.mode not in ("1", "L", "P", "I") and not image.mode.startswith("I;16"):
        raise ValueError(f"{path}: expected one channel of class indices but got colors (mode {image.mode})")
    return np.asarray(image).astype(np.int32)


def _open(path: Path) -> Image.Image:
    """Open and decode an image file."""
    try:
        with path.open("rb") as file:
            image = Image.open(file)
            image.load()
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and more for one and the same reason
        raise ValueError(f"{path}: can't be read as an image ({error})") from error
    return image


def _resize(
    image: npt.NDArray[np.uint8], mask: npt.NDArray[np.int32], height: int, width: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Resize both, so that pixel centers stay in register."""
    rows, columns = mask.shape
    if (rows, columns) == (height, width):
        return image, mask
    # INTER_AREA averages when it shrinks, but turns pixels into blocks when it enlarges.
    smooth = cv2.INTER_AREA if height <= rows and width <= columns else cv2.INTER_LINEAR
    image = cv2.resize(np.ascontiguousarray(image), (width, height), interpolation=smooth).astype(np.uint8, copy=False)
    # The old pixel in which the new one's center lies: (k + 1/2) · old / new. OpenCV's INTER_NEAREST leaves out
    # the 1/2, which moves borders by up to half a pixel, and its INTER_NEAREST_EXACT leaves ties to rounding.
    row = (2 * np.arange(height) + 1) * rows // (2 * height)
    column = (2 * np.arange(width) + 1) * columns // (2 * width)
    return image, mask[row[:, None], column]


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
