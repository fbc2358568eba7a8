"""Read images, masks, predictions, class lists and palettes from files, and write files atomically.

Reading runs no code from a file: arrays are loaded without pickle, tensors with ``weights_only=True``. Every failure is
an :class:`InputError` that names the file.
"""

from __future__ import annotations

import os
import stat
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from edgeloss import inputs

__all__ = [
    "ARRAY_SUFFIXES",
    "IMAGE_SUFFIXES",
    "LABEL_PROBABILITY",
    "LABEL_SUFFIXES",
    "VOID_INDEX",
    "Classes",
    "InputError",
    "Prediction",
    "PredictionKind",
    "atomic_write",
    "check_file",
    "files_by_stem",
    "read_classes",
    "read_image",
    "read_labels",
    "read_palette",
    "read_prediction",
]

PredictionKind = Literal["logits", "probabilities", "labels"]

ARRAY_SUFFIXES = (".npy", ".npz", ".pt", ".pth")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", *ARRAY_SUFFIXES)  # lossless formats only
VOID_INDEX = 255
# The probability that a predicted label stands for; the other classes share the rest.
LABEL_PROBABILITY = 0.9
# Names of the prediction in a file of several arrays.
_PREDICTION_NAMES = ("logits", "pred", "prediction", "predictions", "prob", "probs", "probabilities")


class InputError(ValueError):
    """A file or option cannot be used; the message is one line that names it."""


class Prediction(NamedTuple):
    """The prediction for one image, as stored in a file.

    Attributes:
        kind: what the values are.
        values: [C, h, w] floating; for ``"labels"``, [h, w] int64.
        non_finite: how many values are nan or infinite.
    """

    kind: PredictionKind
    values: Tensor
    non_finite: int

    @property
    def num_classes(self) -> int | None:
        """The number of classes, 2 for one channel; None for labels, where it is unknown."""
        return None if self.kind == "labels" else max(2, len(self.values))

    def logits(self, num_classes: int) -> Tensor:
        """Return the values as logits.

        Probabilities become their logarithms; 0 counts as the smallest positive number of the dtype. A label becomes
        the logarithms of ``LABEL_PROBABILITY`` for its class and equal probabilities for the others.

        Args:
            num_classes: C, the number of classes of labels; not used otherwise.

        Returns:
            [C, h, w] floating; [1, h, w] for one channel.

        Example:
            >>> Prediction("labels", torch.tensor([[1]]), 0).logits(3).exp().flatten()
            tensor([0.0500, 0.9000, 0.0500])
        """
        if self.kind == "logits":
            return self.values
        if self.kind == "probabilities":
            limits = torch.finfo(self.values.dtype)
            least = limits.tiny * limits.eps
            p = self.values.clamp(min=least)
            return p.log() if len(p) > 1 else p.log() - (1 - self.values).clamp(min=least).log()
        others = (1 - LABEL_PROBABILITY) / (num_classes - 1)
        p = torch.full((num_classes, *self.values.shape), others)
        return p.scatter_(0, self.values[None], LABEL_PROBABILITY).log_()


class Classes(NamedTuple):
    """A class list.

    Attributes:
        names: of classes 0..C-1, in order.
        ignore_index: the label of ignored pixels; None if the list does not name one.
    """

    names: list[str]
    ignore_index: int | None


# ----------------------------------------------------------------------------------------------- images and label masks


def read_image(path: Path) -> Tensor:
    """Read an image file and turn it upright by its EXIF orientation.

    Args:
        path: an image file with 8 bits per channel, gray or color.

    Returns:
        [3, H, W] uint8.

    Raises:
        InputError: if the file cannot be read, is too large, or has more than 8 bits per channel.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "gray.png"
        ...     Image.new("L", (3, 2), 90).save(path)
        ...     image = read_image(path)
        >>> image.shape, int(image.max())
        (torch.Size([3, 2, 3]), 90)
    """
    picture = _open_image(path)
    if picture.mode.startswith(("I", "F")):
        raise InputError(f"{path}: expected 8 bits per channel, but got an image of mode {picture.mode}; convert it")
    # Cameras store the orientation as a tag; annotation tools show, and so masks match, the upright image.
    rgb = np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def read_labels(path: Path) -> Tensor:
    """Read a label mask: gray values, palette indices (not their colors), or an integer array.

    Args:
        path: a file with one of ``LABEL_SUFFIXES``.

    Returns:
        [H, W] int64.

    Raises:
        InputError: if the file cannot be read or holds something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "mask.png"
        ...     Image.fromarray(np.array([[0, 1], [1, 255]], np.uint8)).save(path)
        ...     read_labels(path)
        tensor([[  0,   1],
                [  1, 255]])
    """
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _as_labels(_read_array(path), path)
    if path.suffix.lower() not in LABEL_SUFFIXES:
        raise InputError(
            f"{path}: expected labels in one of {', '.join(LABEL_SUFFIXES)}, but got {path.suffix or 'no suffix'}"
        )
    picture = _open_image(path)
    if picture.mode not in ("1", "L", "P", "I") and not picture.mode.startswith("I;16"):
        raise InputError(f"{path}: expected one channel of class indices, but got colors (mode {picture.mode})")
    return torch.from_numpy(np.asarray(picture).astype(np.int64))


def _open_image(path: Path) -> Image.Image:
    """Open and decode an image file."""
    check_file(path)
    try:
        # Pillow warns of more than Image.MAX_IMAGE_PIXELS pixels before it decodes them: that is the limit here.
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")  # about unreadable metadata, which is not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(file)
            picture.load()
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: expected at most {Image.MAX_IMAGE_PIXELS} pixels, but got more ({error})") from error
    except OSError as error:
        message = str(error).partition(" <")[0]  # without the file object
        raise InputError(f"{path}: " + (error.strerror or f"can't be read as an image ({message})")) from error
    except Exception as error:  # Pillow raises SyntaxError, ValueError and others for the same reason
        raise InputError(f"{path}: can't be read as an image ({error})") from error
    return picture


# ---------------------------------------------------------------------------------------------------------- predictions


def read_prediction(path: Path, kind: PredictionKind | None = None) -> Prediction:
    """Read the prediction for one image.

    Args:
        path: a file with one of ``ARRAY_SUFFIXES`` that holds [C, h, w], [1, C, h, w] or, for one channel, [h, w]; or
            labels as for :func:`read_labels`. Among several arrays, one must be named "logits", "pred", "prob" or
            similar.
        kind: what the file holds. None infers it: integers are labels, values in [0, 1] that sum to 1 over the classes
            are probabilities, all others are logits. One channel in [0, 1] is the probability of class 1.

    Returns:
        The prediction. Values of nan and infinity are counted, not rejected.

    Raises:
        InputError: if the file cannot be read or holds something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "prediction.npy"
        ...     np.save(path, np.full((4, 2, 3), 0.25, np.float32))
        ...     prediction = read_prediction(path)
        >>> prediction.kind, prediction.num_classes, prediction.values.shape
        ('probabilities', 4, torch.Size([4, 2, 3]))
    """
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        if kind in ("logits", "probabilities"):
            raise InputError(
                f"{path}: expected {kind} in one of {', '.join(ARRAY_SUFFIXES)}, but got {path.suffix or 'no suffix'}"
            )
        return Prediction("labels", read_labels(path), 0)
    values = _read_array(path)
    if kind == "labels" or (kind is None and not values.is_floating_point()):
        return Prediction("labels", _as_labels(values, path), 0)
    values = _squeeze(values, 3)
    values = values[None] if values.dim() == 2 else values
    if not values.is_floating_point() or values.dim() != 3:
        raise InputError(f"{path}: expected floating {kind or 'logits'} [C, H, W], but got {inputs.describe(values)}")
    in_range = _are_probabilities(values)
    if kind == "probabilities" and not in_range:
        raise InputError(f"{path}: expected probabilities in [0, 1] that sum to 1 over the classes, but got others")
    inferred: PredictionKind = "probabilities" if in_range else "logits"
    return Prediction(kind or inferred, values, int((~values.isfinite()).sum()))


def _read_array(path: Path) -> Tensor:
    """Read the only array of a file, as int64 or a floating dtype that the loss supports."""
    check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from the readers, about damaged files
            values = _load(path)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged file can make an unpickler or a zip reader raise anything
        reason = "is damaged, or holds something other than numbers; pickled objects are not read"
        raise InputError(f"{path}: {reason}") from error
    if values.layout != torch.strided or values.is_complex() or values.is_quantized:
        raise InputError(f"{path}: expected dense real numbers, but got {inputs.describe(values)}, {values.layout}")
    if not values.numel():
        raise InputError(f"{path}: expected at least one pixel, but got {inputs.describe(values)}")
    if not values.is_floating_point():
        return values.long()
    supported = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return values if values.dtype in supported else values.float()


def _load(path: Path) -> Tensor:
    if path.suffix.lower() in (".pt", ".pth"):
        content = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(content, Mapping):
            content = _select({name: part for name, part in content.items() if isinstance(part, Tensor)}, path)
        if not isinstance(content, Tensor):
            raise InputError(f"{path}: expected a tensor, or a dict with one, but got {type(content).__name__}")
        return content.detach()
    array: npt.NDArray[Any]
    if path.suffix.lower() == ".npz":
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            array = archive[_select({name: name for name in archive.files}, path)]
    else:
        array = np.lib.format.open_memmap(path, mode="r")  # fails on a truncated file before reading any of it
    kind = array.dtype.kind
    if kind not in "fiub":
        raise InputError(f"{path}: expected an array of real numbers, but got dtype {array.dtype}")
    dtype = np.dtype(np.int64 if kind != "f" else np.float64 if array.dtype.itemsize > 8 else array.dtype)
    return torch.from_numpy(np.array(array, dtype=dtype.newbyteorder("=")))


def _select(arrays: Mapping[str, Any], path: Path) -> Any:  # noqa: ANN401
    """Return the array of a file that is the prediction."""
    candidates = list(arrays) if len(arrays) == 1 else [name for name in arrays if name in _PREDICTION_NAMES]
    if len(candidates) != 1:
        raise InputError(
            f"{path}: expected one array, or one named {', '.join(_PREDICTION_NAMES)}, but got"
            f" {', '.join(map(str, arrays)) or 'none'}"
        )
    return arrays[candidates[0]]


def _as_labels(values: Tensor, path: Path) -> Tensor:
    """Return an array as labels [H, W] int64."""
    values = _squeeze(values, 2)
    if values.is_floating_point() or values.dim() != 2:
        raise InputError(f"{path}: expected integer labels [H, W], but got {inputs.describe(values)}")
    return values


def _squeeze(values: Tensor, dims: int) -> Tensor:
    """Remove leading axes of length 1 while there are more than ``dims`` axes."""
    while values.dim() > dims and len(values) == 1:
        values = values[0]
    return values


def _are_probabilities(values: Tensor) -> bool:
    """Whether [C, h, w] is in [0, 1] and, for several channels, sums to 1; pixels with nan are left out."""
    x = values.flatten(1).float()
    x = x[:, ~x.isnan().any(0)]
    # Rounding changes each value, and so their sum, by a relative eps / 2 at most; the rest is for sums and resizing.
    tolerance = max(1e-3, 2 * torch.finfo(values.dtype).eps)
    if not x.numel() or x.min() < -tolerance or x.max() > 1 + tolerance:
        return False
    return len(x) == 1 or bool(((x.sum(0) - 1).abs() <= tolerance).all())


# --------------------------------------------------------------------------------------------- class lists and palettes


def read_classes(path: str | Path) -> Classes:
    r"""Read class names from a text file with one "<index> <name>" per line.

    Blank lines are skipped. A line with index 255 or the name "void" is the ignore index instead of a class.

    Args:
        path: the file, in UTF-8.

    Returns:
        The names and the ignore index.

    Raises:
        InputError: if the file cannot be read, a line is malformed or repeats an index or a name, or the indices are
            not 0..C-1. The message names file and line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "classes.txt"
        ...     _ = path.write_text("0 road\n1 car\n255 void\n")
        ...     read_classes(path)
        Classes(names=['road', 'car'], ignore_index=255)
    """
    names: dict[int, str] = {}
    line_numbers: dict[int, int] = {}
    ignore_index: int | None = None
    for number, index, name in _indexed_lines(path, "<index> <name>"):
        where = f"{path}, line {number}"
        line_numbers[index] = number
        if index == VOID_INDEX or name.lower() == "void":
            if ignore_index is not None:
                raise InputError(f"{where}: second void line, the first is line {line_numbers[ignore_index]}")
            ignore_index = index
        elif name in names.values():
            raise InputError(f"{where}: name {name!r} occurs twice")
        else:
            names[index] = name
    if not names:
        raise InputError(f"{path}: expected at least one class, but got none")
    for index in names:
        if index >= len(names):
            raise InputError(
                f"{path}, line {line_numbers[index]}: expected the indices of {len(names)} classes to be 0 to"
                f" {len(names) - 1} without a gap, but got {index}"
            )
    return Classes([names[index] for index in range(len(names))], ignore_index)


def read_palette(path: Path) -> dict[int, tuple[int, int, int]]:
    r"""Read colors from a text file with one "<index> <r> <g> <b>" or "<index> #rrggbb" per line.

    Commas count as spaces, text after the color is ignored, and blank lines are skipped.

    Args:
        path: the file, in UTF-8.

    Returns:
        Class index to (r, g, b) in 0..255.

    Raises:
        InputError: if the file cannot be read, or a line is malformed or repeats an index. The message names file and
            line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "colors.txt"
        ...     _ = path.write_text("0 128 64 128 road\n1 #00008e\n")
        ...     read_palette(path)
        {0: (128, 64, 128), 1: (0, 0, 142)}
    """
    colors = {}
    form = "<index> <r> <g> <b> or <index> #rrggbb"
    for number, index, rest in _indexed_lines(path, form, commas=True):
        words = rest.split()
        try:
            if words[0].startswith("#"):
                r, g, b = bytes.fromhex(words[0][1:])
            else:
                r, g, b = bytes(int(word) for word in words[:3])  # bytes() rejects values outside 0..255
        except ValueError:
            raise InputError(
                f'{path}, line {number}: expected "{form}", each of r, g, b 0 to 255, but got {rest!r}'
            ) from None
        colors[index] = (r, g, b)
    return colors


class _IndexedLine(NamedTuple):
    """A line of a text file that begins with an index."""

    number: int
    key: int
    rest: str


def _indexed_lines(path: str | Path, form: str, *, commas: bool = False) -> Iterator[_IndexedLine]:
    """Yield the lines of a text file, each of which begins with an index; ``form`` describes them in messages."""
    check_file(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected a text file in UTF-8, but got other bytes ({error})") from error
    line_numbers: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = (line.replace(",", " ") if commas else line).split(maxsplit=1)
        if not fields:
            continue
        if len(fields) < 2 or not (fields[0].isascii() and fields[0].isdigit()):
            raise InputError(f'{path}, line {number}: expected "{form}", but got {line!r}')
        index = int(fields[0])
        if index in line_numbers:
            raise InputError(f"{path}, line {number}: index {index} occurs twice, first in line {line_numbers[index]}")
        line_numbers[index] = number
        yield _IndexedLine(number, index, fields[1].strip())


# -------------------------------------------------------------------------------------------------- folders and writing


def check_file(path: str | Path) -> None:
    """Check that a path to read, if it exists, is a regular file: reading a pipe or device may never end.

    Raises:
        InputError: if it is a folder, pipe, device or socket.

    Example:
        >>> check_file("classes.txt")
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # opening the file raises the same error
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise InputError(f"{path}: expected a regular file, but got {kind}")


def files_by_stem(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Return the files of a folder by their name without suffix, sorted.

    Args:
        folder: the folder. Hidden files and files with other suffixes are skipped.
        suffixes: the suffixes to accept, in lower case, such as ``IMAGE_SUFFIXES``.

    Raises:
        InputError: if the folder can't be read, two files have the same name, or there are none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.png", "a.PNG", "notes.txt"):
        ...         (Path(folder) / name).touch()
        ...     list(files_by_stem(Path(folder), IMAGE_SUFFIXES))
        ['a', 'b']
    """
    files: dict[str, Path] = {}
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from error
    for path in paths:
        if path.name.startswith(".") or path.suffix.lower() not in suffixes:
            continue
        if path.stem in files:
            raise InputError(f"{path}: expected one file per name, but got {files[path.stem]} too; rename one of them")
        files[path.stem] = path
    if not files:
        raise InputError(f"{folder}: expected {', '.join(suffixes)} files, but got none")
    return files


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` only once it is complete and on disk.

    Args:
        path: the file to write or replace.

    Yields:
        A binary file. If the block raises, ``path`` remains unchanged.

    Raises:
        InputError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "table.txt"
        ...     with atomic_write(path) as file:
        ...         _ = file.write(b"done")
        ...     path.read_bytes()
        b'done'
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected a file to write to, but got something else, such as a folder")
    # In the same folder, since a rename is atomic within one file system only; with a short name, however long that of
    # the file; and always the same name, so that the next write replaces what a killed process left behind.
    temporary = path.with_name(f".edgeloss-{zlib.crc32(path.name.encode(errors='surrogateescape')):08x}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
