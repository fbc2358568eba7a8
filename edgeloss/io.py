"""Reading images, labels, predictions and class lists from files, and writing files whole or not at all.

Nothing in a file is run: arrays are read without pickle, tensors with ``weights_only``. Whatever can't be used is an
:class:`InputError` that names the file.
"""

from __future__ import annotations

import os
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

Kind = Literal["logits", "probabilities", "labels"]

ARRAY_SUFFIXES = (".npy", ".npz", ".pt", ".pth")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", *ARRAY_SUFFIXES)  # none that loses what it stores
VOID_INDEX = 255
# What a predicted label counts for as a probability; the other classes share the rest.
LABEL_PROBABILITY = 0.9
# The arrays that hold the prediction in a file of several.
_PREDICTION_NAMES = ("logits", "pred", "prediction", "predictions", "prob", "probs", "probabilities")
# The most values that labels are made into, a number a class: 8 GiB in float32.
_MAX_VALUES = 2**31


class InputError(ValueError):
    """What a user gave can't be used; told in one line."""


class Prediction(NamedTuple):
    """What a network said of one image, as a file has it.

    Attributes:
        kind: what the values are.
        values: [C, h, w] floating; for ``"labels"`` [h, w] int64.
        broken: how many of the values are nan or inf.
    """

    kind: Kind
    values: Tensor
    broken: int

    @property
    def classes(self) -> int | None:
        """How many classes there are, 2 for one channel; None for labels, which do not tell."""
        return None if self.kind == "labels" else max(2, len(self.values))

    def logits(self, classes: int) -> Tensor:
        """The values as logits.

        The logarithm of a probability is a logit that happens to be normalised. A probability of 0 is read as the
        smallest positive number of its precision, below which it was rounded.

        Args:
            classes: C, where labels are to become [C, h, w]: ``LABEL_PROBABILITY`` for the label, and what remains
                shared among the other classes.

        Returns:
            [C, h, w] floating.
        """
        if self.kind == "logits":
            return self.values
        if self.kind == "probabilities":
            limits = torch.finfo(self.values.dtype)
            least = limits.tiny * limits.eps
            p = self.values.clamp(min=least)
            return p.log() if len(p) > 1 else p.log() - (1 - self.values).clamp(min=least).log()
        others = (1 - LABEL_PROBABILITY) / (classes - 1)
        p = torch.full((classes, *self.values.shape), others)
        return p.scatter_(0, self.values[None], LABEL_PROBABILITY).log_()


# ------------------------------------------------------------------------------------------------------------- reading


def read_image(path: Path) -> Tensor:
    """Read a picture, upright.

    Args:
        path: an image file of 8 bits a channel, grey or coloured.

    Returns:
        [3, H, W] uint8.

    Raises:
        InputError: if it can't be read, is too large, or has more than 8 bits a channel.
    """
    picture = _open_image(path)
    if picture.mode.startswith(("I", "F")):
        raise InputError(f"{path}: expected 8 bits per channel but got an image of mode {picture.mode}")
    # Cameras store "this side up" as a tag; annotation tools show, and so masks follow, the upright image.
    rgb = np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def read_labels(path: Path) -> Tensor:
    """Read a mask: grey values, the indices of a palette image rather than its colours, or an integer array.

    Args:
        path: an image file without losses, or one of ``ARRAY_SUFFIXES``.

    Returns:
        [H, W] int64.

    Raises:
        InputError: if it can't be read or holds something else.
    """
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _as_labels(_read_array(path), path)
    if path.suffix.lower() not in LABEL_SUFFIXES:
        raise InputError(f"{path}: expected labels in one of {', '.join(LABEL_SUFFIXES)}")
    picture = _open_image(path)
    if picture.mode not in ("1", "L", "P", "I") and not picture.mode.startswith("I;16"):
        raise InputError(f"{path}: expected one channel of class indices but got colours (mode {picture.mode})")
    return torch.from_numpy(np.asarray(picture).astype(np.int64))


def read_prediction(path: Path, kind: Kind | None = None) -> Prediction:
    """Read what a network said of one image.

    Args:
        path: one of ``ARRAY_SUFFIXES`` with [C, h, w], [1, C, h, w] or, for one channel, [h, w]; or labels as
            :func:`read_labels` takes them. A file of several arrays has one that is named "logits", "pred", "prob" or
            the like.
        kind: what the file holds. None finds out: integers are labels, numbers in [0, 1] that sum to 1 over the
            classes are probabilities, everything else is logits. One channel in [0, 1] is the probability of class 1.

    Returns:
        The prediction; nan and inf are counted, not refused.

    Raises:
        InputError: if the file can't be read or holds something else.
    """
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        if kind in ("logits", "probabilities"):
            raise InputError(f"{path}: expected {kind} in one of {', '.join(ARRAY_SUFFIXES)}")
        return Prediction("labels", read_labels(path), 0)
    values = _read_array(path)
    if kind == "labels" or (kind is None and not values.is_floating_point()):
        return Prediction("labels", _as_labels(values, path), 0)
    values = _squeeze(values, 3)
    values = values[None] if values.dim() == 2 else values
    if not values.is_floating_point() or values.dim() != 3:
        raise InputError(f"{path}: expected floating {kind or 'logits'} [C, H, W] but got {inputs.describe(values)}")
    looks_like = _are_probabilities(values)
    if kind == "probabilities" and not looks_like:
        raise InputError(f"{path}: expected probabilities in [0, 1] that sum to 1 over the classes, but got others")
    found: Kind = kind or ("probabilities" if looks_like else "logits")
    return Prediction(found, values, int((~values.isfinite()).sum()))


def read_classes(path: str | Path) -> tuple[list[str], int | None]:
    """Read class names from a text file with one "<index> <name>" per line.

    Blank lines are skipped. A line with index 255 or the name "void" gives the ignore index instead of a class.

    Args:
        path: the file, UTF-8.

    Returns:
        The names of classes 0..C-1 in order, and the ignore index, None without such a line.

    Raises:
        InputError: if it can't be read, a line is malformed or repeats an index or a name, or the indices are not
            0..C-1; with file and line.
    """
    names: dict[int, str] = {}
    lines: dict[int, int] = {}
    ignore_index: int | None = None
    for number, index, name in _indexed_lines(path, "<index> <name>"):
        where = f"{path}, line {number}"
        lines[index] = number
        if index == VOID_INDEX or name.lower() == "void":
            if ignore_index is not None:
                raise InputError(f"{where}: second void line, the first is line {lines[ignore_index]}")
            ignore_index = index
        elif name in names.values():
            raise InputError(f"{where}: name {name!r} occurs twice")
        else:
            names[index] = name
    if not names:
        raise InputError(f"{path}: expected at least one class but got none")
    for index in names:
        if index >= len(names):
            raise InputError(
                f"{path}, line {lines[index]}: expected the indices of {len(names)} classes to be 0 to {len(names) - 1}"
                f" without a gap but got {index}"
            )
    return [names[index] for index in range(len(names))], ignore_index


def read_palette(path: Path) -> dict[int, tuple[int, int, int]]:
    """Read colours from a text file with one "<index> <r> <g> <b>" or "<index> #rrggbb" per line.

    Commas count as spaces, what follows the colour (a name) is not read, blank lines are skipped.

    Args:
        path: the file, UTF-8.

    Returns:
        Class index to (r, g, b) in 0..255.

    Raises:
        InputError: if it can't be read, or a line is malformed or repeats an index; with file and line.
    """
    colors = {}
    form = "<index> <r> <g> <b> or <index> #rrggbb"
    for number, index, rest in _indexed_lines(path, form, commas=True):
        words = rest.split()
        try:
            if words[0].startswith("#"):
                r, g, b = bytes.fromhex(words[0][1:])
            else:
                r, g, b = bytes(int(word) for word in words[:3])  # which refuses what is not in 0..255
        except ValueError:
            raise InputError(
                f'{path}, line {number}: expected "{form}", each of r, g, b 0 to 255, but got {rest!r}'
            ) from None
        colors[index] = (r, g, b)
    return colors


def _indexed_lines(path: str | Path, form: str, *, commas: bool = False) -> Iterator[tuple[int, int, str]]:
    """The lines of a text file that begin with an index: line number, index and the rest."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected a text file in UTF-8 ({error})") from error
    lines: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = (line.replace(",", " ") if commas else line).split(maxsplit=1)
        if not fields:
            continue
        if len(fields) < 2 or not (fields[0].isascii() and fields[0].isdigit()):
            raise InputError(f'{path}, line {number}: expected "{form}" but got {line!r}')
        index = int(fields[0])
        if index in lines:
            raise InputError(f"{path}, line {number}: index {index} occurs twice, first in line {lines[index]}")
        lines[index] = number
        yield number, index, fields[1].strip()


def _open_image(path: Path) -> Image.Image:
    """Open and decode an image file."""
    try:
        # Pillow warns of more pixels than Image.MAX_IMAGE_PIXELS before it decodes them: the limit is there.
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")  # of metadata it can't read, which nobody here wants
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(file)
            picture.load()
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: expected at most {Image.MAX_IMAGE_PIXELS} pixels ({error})") from error
    except OSError as error:
        reason = error.strerror or f"can't be read as an image ({error})"
        raise InputError(f"{path}: {reason}") from error
    except Exception as error:  # Pillow raises SyntaxError, ValueError and more for one and the same reason
        raise InputError(f"{path}: can't be read as an image ({error})") from error
    return picture


def _read_array(path: Path) -> Tensor:
    """The one array of a file, as a tensor of a floating dtype that the loss reads or of int64."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a damaged or foreign file makes the readers say
            values = _loaded(path)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # what a damaged file makes of an unpickler or a zip reader can be any error
        reason = "is damaged, or holds something else than numbers: pickled objects are not read"
        raise InputError(f"{path}: {reason}") from error
    if values.layout != torch.strided or values.is_complex() or values.is_quantized:
        raise InputError(f"{path}: expected dense real numbers but got {inputs.describe(values)}, {values.layout}")
    if not values.numel():
        raise InputError(f"{path}: expected at least one pixel but got {inputs.describe(values)}")
    if not values.is_floating_point():
        return values.long()
    readable = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return values if values.dtype in readable else values.float()


def _loaded(path: Path) -> Tensor:
    if path.suffix.lower() in (".pt", ".pth"):
        content = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(content, Mapping):
            content = _only({name: part for name, part in content.items() if isinstance(part, Tensor)}, path)
        if not isinstance(content, Tensor):
            raise InputError(f"{path}: expected a tensor or a dict with one but got {type(content).__name__}")
        return content.detach()
    array: npt.NDArray[Any]
    if path.suffix.lower() == ".npz":
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            array = archive[_only({name: name for name in archive.files}, path)]
    else:
        array = np.lib.format.open_memmap(path, mode="r")  # tells of a truncated file before any of it is read
    kind = array.dtype.kind
    if kind not in "fiub":
        raise InputError(f"{path}: expected an array of real numbers but got dtype {array.dtype}")
    dtype = np.dtype(np.int64 if kind != "f" else np.float64 if array.dtype.itemsize > 8 else array.dtype)
    return torch.from_numpy(np.array(array, dtype=dtype.newbyteorder("=")))


def _only(parts: Mapping[str, Any], path: Path) -> Any:  # noqa: ANN401
    """The one of a file's arrays that is the prediction."""
    named = [name for name in parts if name in _PREDICTION_NAMES]
    chosen = list(parts) if len(parts) == 1 else named
    if len(chosen) != 1:
        raise InputError(
            f"{path}: expected one array, or one named {', '.join(_PREDICTION_NAMES)}, but got"
            f" {', '.join(map(str, parts)) or 'none'}"
        )
    return parts[chosen[0]]


def _as_labels(values: Tensor, path: Path) -> Tensor:
    """An array as labels [H, W] int64."""
    values = _squeeze(values, 2)
    if values.is_floating_point() or values.dim() != 2:
        raise InputError(f"{path}: expected integer labels [H, W] but got {inputs.describe(values)}")
    return values


def _squeeze(values: Tensor, dims: int) -> Tensor:
    """The values without leading axes of length 1, as long as there are more axes than asked for."""
    while values.dim() > dims and len(values) == 1:
        values = values[0]
    return values


def _are_probabilities(values: Tensor) -> bool:
    """Whether [C, h, w] is in [0, 1] and, for several channels, sums to 1; at pixels without nan, if there are any."""
    x = values.flatten(1).float()
    x = x[:, ~x.isnan().any(0)]
    # Each number is rounded by up to eps / 2 of itself, so their sum by no more; the rest is for sums and resizing.
    tolerance = max(1e-3, 2 * torch.finfo(values.dtype).eps)
    if not x.numel() or x.min() < -tolerance or x.max() > 1 + tolerance:
        return False
    return len(x) == 1 or bool(((x.sum(0) - 1).abs() <= tolerance).all())


# ----------------------------------------------------------------------------------------------------- what fits what


class Files(NamedTuple):
    """The files of one image.

    Attributes:
        name: without suffix.
        prediction: what a network said.
        mask: the labels.
        image: the picture, if there is one.
    """

    name: str
    prediction: Path
    mask: Path
    image: Path | None


def match(prediction: Path, mask: Path, image: Path | None = None, *, skip_missing: bool = False) -> list[Files]:
    """Pair files, or the files of folders by name; hidden files and those of other kinds are not looked at.

    Args:
        prediction: a file or a folder of them.
        mask: likewise.
        image: likewise, or None.
        skip_missing: leave out the names that are missing from one of the folders.

    Returns:
        One element an image, by name.

    Raises:
        InputError: if files and folders are mixed, a folder is empty, a name is missing from one of them, or no name is
            in all of them.
    """
    kinds = {prediction: LABEL_SUFFIXES, mask: LABEL_SUFFIXES} | ({} if image is None else {image: IMAGE_SUFFIXES})
    for path in kinds:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        if path.is_dir() != prediction.is_dir():
            raise InputError(f"{path}: expected folders for all, or files for all, as {prediction}")
    if not prediction.is_dir():
        return [Files(prediction.stem, prediction, mask, image)]
    found = {folder: files_by_stem(folder, suffixes) for folder, suffixes in kinds.items()}
    names = sorted(set().union(*found.values()))
    for folder, files in found.items():
        missing = [name for name in names if name not in files]
        if missing and not skip_missing:
            raise InputError(
                f"{folder}: expected a file for each name but got none for {_listed(missing)}; --skip-missing leaves"
                " out names that are not everywhere"
            )
    names = [name for name in names if all(name in files for files in found.values())]
    if not names:
        raise InputError(f"{prediction}: expected names as in {mask} but got none that is in all folders")
    return [
        Files(name, found[prediction][name], found[mask][name], None if image is None else found[image][name])
        for name in names
    ]


def files_by_stem(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Return the files of a folder by their name without suffix, sorted.

    Args:
        folder: the folder. Hidden files and those with other suffixes are skipped.
        suffixes: the suffixes to accept, in lower case, such as ``IMAGE_SUFFIXES``.

    Raises:
        InputError: if two files have the same name, or if there are none.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in suffixes:
            continue
        if path.stem in found:
            raise InputError(f"{path}: same name as {found[path.stem]}, so the two can't be told apart")
        found[path.stem] = path
    if not found:
        raise InputError(f"{folder}: expected {', '.join(suffixes)} files but found none")
    return found


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class Case(NamedTuple):
    """What the files of one image hold, as the loss takes it.

    Attributes:
        name: of the files, without suffix.
        logits: [1, C, h, w] floating.
        target: [1, H, W] int64, h ≤ H and w ≤ W.
        image: [1, 3, H, W] uint8, if there is one.
        taken_for: what the prediction was taken for, in words.
        broken: how many values of the prediction are nan or inf.
    """

    name: str
    logits: Tensor
    target: Tensor
    image: Tensor | None
    taken_for: str
    broken: int


def read_case(files: Files, *, kind: Kind | None, classes: int | None, ignore_index: int) -> Case:
    """Read the files of one image, and see that they fit each other.

    Args:
        files: the files.
        kind: what the prediction is, see :func:`read_prediction`.
        classes: how many there are; None takes the channels of the prediction, or of labels as many as occur.
        ignore_index: the label that does not count.

    Returns:
        The case.

    Raises:
        InputError: if a file can't be used, or sizes, classes or labels do not fit.
    """
    prediction, mask = read_prediction(files.prediction, kind), read_labels(files.mask)
    image = None if files.image is None else read_image(files.image)
    (height, width), (h, w) = mask.shape, prediction.values.shape[-2:]
    if image is not None and image.shape[1:] != mask.shape:
        raise InputError(f"{files.image}: expected {height} × {width} pixels as in {files.mask} but got {_size(image)}")
    # Rounding can stretch a few cells up to twice; more comes of axes in another order.
    if h > height or w > width or not 0.5 <= (height * w) / (width * h) <= 2:
        raise InputError(
            f"{files.prediction}: expected the {height} × {width} pixels of {files.mask}, or the same picture in lower"
            f" resolution, but got {h} × {w}; classes come first, [C, H, W]"
        )
    values, void = prediction.values, mask == ignore_index
    channels = prediction.classes
    if channels is None:
        if (h, w) == (height, width):  # there a label under void is of no more use than logits are
            values = values.masked_fill(void, 0)
        channels = classes or max(2, 1 + int(values.max()), 1 + int(mask.masked_fill(void, 0).max()))
        _check_labels(values, channels, None, files.prediction)
        if channels * values.numel() > _MAX_VALUES:
            raise InputError(f"{files.prediction}: {channels} classes are too many to make logits out of labels")
    elif classes not in (None, channels):
        raise InputError(
            f"{files.prediction}: expected {classes} classes but got {channels}; classes come first, [C, H, W]"
        )
    _check_labels(mask, channels, ignore_index, files.mask)

    taken_for: str = prediction.kind
    if prediction.kind == "labels":
        taken_for += f", as one-hot smoothed to {LABEL_PROBABILITY}"
    if (h, w) != (height, width):
        taken_for += f" of {h} × {w} pixels, upsampled"
    logits = prediction._replace(values=values).logits(channels)
    return Case(
        files.name, logits[None], mask[None], None if image is None else image[None], taken_for, prediction.broken
    )


def _size(picture: Tensor) -> str:
    return " × ".join(map(str, picture.shape[-2:]))


def _check_labels(labels: Tensor, classes: int, ignore_index: int | None, path: Path) -> None:
    try:
        inputs.check_labels(labels, classes, ignore_index, name=str(path))
    except ValueError as error:
        raise InputError(str(error)) from error


# ------------------------------------------------------------------------------------------------------------- writing


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` only when it is written in full and on the disk.

    Args:
        path: the file to write or replace.

    Yields:
        A binary file. If the block raises, ``path`` stays as it was.

    Raises:
        InputError: if it can't be written.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected a file to write to but got something else, such as a folder")
    # In the same folder, since a rename is atomic within one file system only; short, however long the name is; and the
    # same each time, so that what a killed process leaves is written over.
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
