"""From picture files to tensors: photographs in color, and what other readers decode."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, TiffImagePlugin, UnidentifiedImageError
from torch import Tensor

from edgeloss.io.arrays import Choice, read_array, squeeze
from edgeloss.io.files import ARRAY_SUFFIXES, InputError, reading

Note = Callable[[str], None]  # takes one line about how a file was read
_ORIENTATION = 0x0112
# What turns a picture upright, by the value of that tag.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BACK = {6: 8, 8: 6}  # the others are their own opposites


def no_note(text: str) -> None:
    """Take a note about how a file was read, and drop it."""


def read_image(path: str | Path, *, at: int | None = None, page: int | None = None, note: Note = no_note) -> Tensor:
    """Read a photograph: a picture turned upright by its EXIF orientation, or an array.

    A picture of more than 8 bits per channel, and an array [H, W], is gray, from black at its lowest value to white at
    its highest. Arrays of 8 bits [3, H, W] and [H, W, 3] hold colors.

    Args:
        path: a file with one of ``IMAGE_SUFFIXES`` or ``ARRAY_SUFFIXES``.
        at: the slice to take from a volume [D, H, W] in an array.
        page: the page of a TIFF of several, from 0.
        note: takes a line about how the file was read, if that is not plain.

    Returns:
        [3, H, W] uint8.

    Raises:
        InputError: if the file cannot be read, is too large, or holds something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "gray.png"
        ...     Image.new("L", (3, 2), 90).save(path)
        ...     image = read_image(path)
        >>> image.shape, int(image.max())
        (torch.Size([3, 2, 3]), 90)
    """
    path = Path(path)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _image_of_array(path, at)
    # Cameras store the orientation as a tag; annotation tools show, and so masks match, the upright image.
    picture, turned = open_picture(path, page, upright=True)
    if turned > 1:
        note(f"{path}: turned upright by its EXIF orientation {turned}")
    if picture.mode.startswith(("I", "F")):
        note(f"{path}: its values, in mode {picture.mode}, are drawn in gray from the lowest to the highest")
        return _gray(torch.from_numpy(np.asarray(picture).astype(np.float64)))
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()


def picture_size(path: Path) -> tuple[int, int, int]:
    """Return height, width and EXIF orientation of a picture by its header, as if turned upright.

    Raises:
        InputError: as :func:`read_image`.
    """
    with reading(path, "can't be read as an image ({})"), path.open("rb") as file:
        picture = _opened(path, file)
        turned, (width, height) = orientation(picture), picture.size
        if isinstance(picture, TiffImagePlugin.TiffImageFile):  # some versions of Pillow say its size once turned
            width, height = picture.tag_v2[TiffImagePlugin.IMAGEWIDTH], picture.tag_v2[TiffImagePlugin.IMAGELENGTH]
    return (width, height, turned) if turned >= 5 else (height, width, turned)


def orientation(picture: Image.Image) -> int:
    """Return the EXIF orientation of a picture, 1 without one or if it is damaged."""
    value = picture.getexif().get(_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def open_picture(path: Path, page: int | None = None, *, upright: bool) -> tuple[Image.Image, int]:
    """Open and decode a picture file, turned upright or as it is stored; return its EXIF orientation, too.

    Raises:
        InputError: if the file cannot be read, has too many pixels, or has several pages of which none is chosen.
    """
    with reading(path, "can't be read as an image ({})"), path.open("rb") as file:
        picture = _opened(path, file)
        _choose_page(picture, path, page)
        turned = orientation(picture)
        picture.load()
    is_upright = turned == 1 or picture.format == "TIFF"  # Pillow turns a TIFF itself
    if upright != is_upright and turned > 1:
        picture = picture.transpose(_TURNS[turned if upright else _BACK.get(turned, turned)])
    return picture, turned


def _opened(path: Path, file: IO[bytes]) -> Image.Image:
    """Open a picture without decoding it."""
    # Pillow warns of more than Image.MAX_IMAGE_PIXELS pixels before it decodes them: that is the limit here.
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        return Image.open(file)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        most = Image.MAX_IMAGE_PIXELS
        raise InputError(
            f"{path}: expected at most {most} pixels, but got more ({error}); pass --max-pixels to read it"
        ) from error
    except UnidentifiedImageError as error:
        if bands := _count_bands(file):
            raise InputError(f"{path}: expected 1, 3 or 4 channels, but got {bands}; store three of them") from error
        raise


def _count_bands(file: IO[bytes]) -> int:
    """Return the samples per pixel of a TIFF that Pillow can't read, 0 of another file."""
    file.seek(0)
    header = file.read(8)
    if header[:4] not in (b"II*\0", b"MM\0*"):
        return 0
    directory = TiffImagePlugin.ImageFileDirectory_v2(header)
    file.seek(struct.unpack(("<" if header[:2] == b"II" else ">") + "L", header[4:])[0])
    directory.load(file)
    bands = directory.get(TiffImagePlugin.SAMPLESPERPIXEL, 0)
    return bands if isinstance(bands, int) and bands > 4 else 0


def _choose_page(picture: Image.Image, path: Path, page: int | None) -> None:
    """Go to a page of a TIFF; of other files, photographs and animations, the first picture is the one to read."""
    count = getattr(picture, "n_frames", 1) if picture.format == "TIFF" else 1
    if page is None and count > 1:
        raise InputError(f"{path}: expected one page, but got {count}; choose one by --page 0 to {count - 1}")
    if page is not None and count > 1:
        if page >= count:
            raise InputError(
                f"{path}: expected page {page}, but got {count} pages; choose one by --page 0 to {count - 1}"
            )
        picture.seek(page)


def _image_of_array(path: Path, at: int | None) -> Tensor:
    """Read an array as a photograph."""
    values = squeeze(read_array(path, Choice(("image", "images"), at=at)).values, 3)
    if values.dim() == 2:
        return _gray(values.double()) if at is not None or values.dtype != torch.uint8 else values.expand(3, -1, -1)
    if at is not None:
        raise InputError(f"{path}: expected a volume [D, H, W] in gray, but got slices {list(values.shape)}")
    if values.dim() != 3 or values.dtype != torch.uint8 or 3 not in (values.shape[0], values.shape[-1]):
        raise InputError(
            f"{path}: expected an image [H, W], or [3, H, W] in 8 bits, but got {values.dtype} {list(values.shape)}; of"
            " a volume, take slice N along D by --slice N"
        )
    return values if len(values) == 3 else values.permute(2, 0, 1).contiguous()


def _gray(values: Tensor) -> Tensor:
    """Return numbers [H, W] as gray levels [3, H, W], from black to white by their range."""
    values = values.nan_to_num(posinf=float("inf"), neginf=float("-inf"))
    finite = values[values.isfinite()]
    low, high = finite.aminmax() if len(finite) else (values.new_zeros(()), values.new_ones(()))
    scaled = (values.clamp(low, high) - low) / (high - low).clamp(min=1e-12) * 255
    return scaled.round().to(torch.uint8).expand(3, -1, -1)
