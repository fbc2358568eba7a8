"""From NumPy and torch files to tensors, within a limit of memory that is checked before it is taken."""

from __future__ import annotations

import functools
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from edgeloss._checks import inputs
from edgeloss._checks.names import shortened
from edgeloss.io import limits
from edgeloss.io.files import ARRAY_SUFFIXES, InputError, reading, wrong_suffix

_NO_NUMBERS = (
    "expected numbers as numpy.save or torch.save write them, but got a damaged file or other objects; pickled objects"
    " are not read"
)
SWAPPED = "if its axes are [C, W, H], swap them, as by numpy.swapaxes(prediction, -1, -2)"


class Array(NamedTuple):
    """An array of a file."""

    values: Tensor  # integers, or a floating dtype that the loss supports
    text: str  # dtype and shape in the file, for messages

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return not self.values.is_floating_point()


class Size(NamedTuple):
    """The pixels of a file."""

    path: Path
    height: int
    width: int


class Choice(NamedTuple):
    """What to read of a file.

    Attributes:
        names: those to look for in a file of several arrays.
        key: the name in such a file, if the user has given it.
        region: the class whose map to take out of [C, H, W].
        at: the slice to take from a volume [..., D, H, W].
        within: the mask, which a prediction has at most as many pixels as, if it is known.
    """

    names: Sequence[str]
    key: str | None = None
    region: int | None = None
    at: int | None = None
    within: Size | None = None


def read_array(path: Path, choice: Choice) -> Array:
    """Read an array of a file: the one named ``key``, the only one, or the only one with one of the names."""
    with reading(path, _NO_NUMBERS):
        values, text = _load(path, choice)
    if values.layout != torch.strided or values.is_complex() or values.is_quantized:
        raise InputError(f"{path}: expected dense real numbers, but got {text}, {values.layout}")
    if not values.numel():
        raise InputError(f"{path}: expected at least one pixel, but got {text}")
    if (region := choice.region) is not None:
        values = squeeze(values, 3)
        if values.dim() != 3 or region >= len(values):
            raise InputError(f"{path}: expected [C, H, W] with class {region} to take, but got {text}")
        values = values[region]
    if values.is_floating_point() and values.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        values = values.float()
    return Array(values, text)


def count_slices(path: Path, choice: Choice) -> int:
    """Return the number of slices of a volume [..., D, H, W]."""
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise wrong_suffix(path, "a volume [..., D, H, W]", ARRAY_SUFFIXES)
    with reading(path, _NO_NUMBERS):
        shape = _open(path, choice._replace(at=0)).shape
    if len(shape) < 3 or 0 in shape:
        raise InputError(f"{path}: expected a volume [..., D, H, W], but got {list(shape)}")
    return shape[-3]


def squeeze(values: Tensor, dims: int) -> Tensor:
    """Remove leading axes of length 1 while there are more than ``dims`` axes."""
    while values.dim() > dims and len(values) == 1:
        values = values[0]
    return values


def _load(path: Path, choice: Choice) -> tuple[Tensor, str]:
    """Return the array or its slice, with the dtype and shape in the file."""
    array = _open(path, choice)
    if isinstance(array, Tensor):
        content = array
        if content.layout == torch.strided:
            content = _slice(content, choice.at, path)
            content = content.to(torch.uint8) if content.dtype == torch.bool else content
            content = content.long() if content.dtype in (torch.uint16, torch.uint32, torch.uint64) else content
        return content, inputs.describe(array)
    kind = array.dtype.kind
    if kind not in "fiub":
        raise InputError(f"{path}: expected an array of real numbers, but got dtype {array.dtype}")
    # torch has no operations on unsigned integers beyond 8 bits.
    wide = np.int64 if kind == "u" and array.dtype.itemsize > 1 else array.dtype
    dtype = np.dtype(np.float64 if kind == "f" and array.dtype.itemsize > 8 else wide)
    values = torch.from_numpy(np.array(_slice(array, choice.at, path), dtype=dtype.newbyteorder("=")))
    return values.to(torch.uint8) if kind == "b" else values, f"{array.dtype.name} {list(array.shape)}"


def _open(path: Path, choice: Choice) -> npt.NDArray[Any] | Tensor:
    """Return the whole array of a file, which is mapped where its format allows that, and not read."""
    suffix = path.suffix.lower()
    if suffix in (".pt", ".pth"):
        return _open_tensor(path, choice)
    if suffix == ".npz":
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            name, about = _choose(archive.files, choice, path), os.fstat(file.fileno())
            _check_member(archive.zip, name, path, choice)
            if choice.at is not None:
                return _read_member(path, name, about.st_mtime_ns, about.st_size)
            whole: npt.NDArray[Any] = archive[name]
            return whole
    array = np.lib.format.open_memmap(path, mode="r")  # fails on a truncated file before reading any of it
    _check_shape(array.shape, array.dtype.itemsize, path, choice)
    return array


@functools.lru_cache(maxsize=2)  # those of a prediction and its mask, whose slices are read in turn
def _read_member(path: Path, name: str, *_: int) -> npt.NDArray[Any]:
    """Read a volume of an archive once for all of its slices; the other arguments say which version of the file."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        array: npt.NDArray[Any] = archive[name]
    return array


def _open_tensor(path: Path, choice: Choice) -> Tensor:
    """Return the tensor of a file."""
    is_unicode = "\\ud" not in ascii(str(path))  # torch maps no file whose name is not
    if is_unicode and zipfile.is_zipfile(path):
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    else:
        with path.open("rb") as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(content, Mapping):
        tensors = {str(name): part for name, part in content.items() if isinstance(part, Tensor)}
        content = tensors[_choose(tensors, choice, path)]
    if not isinstance(content, Tensor):
        raise InputError(f"{path}: expected a tensor, or a dict with one, but got {type(content).__name__}")
    content = content.detach()
    if content.layout == torch.strided:
        _check_shape(content.shape, content.element_size(), path, choice)
    return content


def _check_member(archive: Any, name: str, path: Path, choice: Choice) -> None:  # noqa: ANN401
    """Check what an array of an archive expands to, by its header."""
    member = name if name in archive.namelist() else f"{name}.npy"
    with archive.open(member) as file:
        shape, itemsize = _read_header(file)
    stored = archive.getinfo(member).file_size
    if math.prod(shape) * itemsize > stored:
        raise InputError(
            f"{path}: is damaged: {name} should have {math.prod(shape) * itemsize} bytes, but has {stored}"
        )
    _check_shape(shape, itemsize, path, choice)


def _read_header(file: IO[bytes]) -> tuple[Sequence[int], int]:
    """Return shape and bytes of a number of an array in NumPy's format."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype.itemsize


def _check_shape(shape: Sequence[int], itemsize: int, path: Path, choice: Choice) -> None:
    """Check an array by its shape, before memory is taken for it."""
    if choice.within is not None and len(shape) >= 2 and 0 not in shape:
        check_fits(path, shape, choice.within)
    if (most := Image.MAX_IMAGE_PIXELS) is not None and math.prod(shape[-2:]) > most:
        raise InputError(f"{path}: expected at most {most} pixels, but got {list(shape)}; pass --max-pixels to read it")
    lengths = (
        shape if choice.at is None or path.suffix.lower() == ".npz" or len(shape) < 3 else (*shape[:-3], *shape[-2:])
    )
    size = math.prod(lengths) * itemsize
    if size > limits.MAX_BYTES:
        raise InputError(
            f"{path}: expected at most {limits.MAX_BYTES / 1e9:.1f} GB of numbers, but got {size / 1e9:.1f} GB,"
            f" {list(shape)}; pass --max-gigabytes to read it"
        )


def check_fits(path: Path, shape: Sequence[int], mask: Size) -> None:
    """Check that a prediction [..., H, W] is a picture of the size of its mask, or of a lower resolution.

    Raises:
        InputError: if it has more pixels along an axis, or is stretched by more than twice.
    """
    if _fits(shape[-2:], mask):
        return
    advice = "pass the mask of this size, or resize the prediction"
    if len(shape) >= 3 and _fits(shape[-3:-1], mask):
        advice = "store it with the classes first, [C, H, W], as by numpy.moveaxis(prediction, -1, -3)"
    elif _fits(shape[:-3:-1], mask):
        advice = SWAPPED
    raise InputError(
        f"{path}: expected the {mask.height} × {mask.width} pixels of {mask.path}, or the same picture in lower"
        f" resolution, but got {' × '.join(map(str, shape[-2:]))} in {list(shape)}; {advice}"
    )


def _fits(size: Sequence[int], mask: Size) -> bool:
    (h, w), (_, height, width) = size, mask
    # Rounding can stretch a few cells up to twice; more than that means axes in another order.
    return h <= height and w <= width and 0.5 <= (height * w) / max(width * h, 1) <= 2


def _slice(values: Any, at: int | None, path: Path) -> Any:  # noqa: ANN401
    """Return a slice of a volume [..., D, H, W], a tensor or an array."""
    if at is None:
        return values
    if values.ndim < 3 or at >= values.shape[-3]:
        shape = list(values.shape)
        raise InputError(f"{path}: expected a volume [..., D, H, W] with slice {at} along D, but got {shape}")
    return values[..., at, :, :]


def _choose(found: Mapping[str, Any] | Sequence[str], choice: Choice, path: Path) -> str:
    """Return the name of the array to read."""
    listed = shortened(list(found)) or "none"
    if choice.key is not None:
        if choice.key not in found:
            raise InputError(f"{path}: expected an array named {choice.key}, but got {listed}")
        return choice.key
    candidates = list(found) if len(found) == 1 else [name for name in found if name in choice.names]
    if len(candidates) != 1:
        raise InputError(
            f"{path}: expected one array, or one named {', '.join(choice.names)}, but got {listed}; choose one with"
            " --key"
        )
    return candidates[0]
