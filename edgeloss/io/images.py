"""From image files to images and label masks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from edgeloss.io.arrays import LABEL_NAMES, label_map, read_array
from edgeloss.io.files import ARRAY_SUFFIXES, LABEL_SUFFIXES, InputError, check_file
from edgeloss.io.palettes import Rgb


def read_image(path: str | Path) -> Tensor:
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
    picture = _open_image(Path(path))
    if picture.mode.startswith(("I", "F")):
        raise InputError(f"{path}: expected 8 bits per channel, but got an image of mode {picture.mode}; convert it")
    # Cameras store the orientation as a tag; annotation tools show, and so masks match, the upright image.
    rgb = np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def read_labels(
    path: str | Path,
    *,
    colors: Mapping[Rgb, int] | None = None,
    key: str | None = None,
    region: int | None = None,
    at: int | None = None,
) -> Tensor:
    """Read a label mask: gray values, palette indices, colors, or an integer array.

    An RGB file whose channels are equal holds gray values, unless ``colors`` has all of them. Of a file with a palette,
    the indices are the labels, not their colors.

    Args:
        path: a file with one of ``LABEL_SUFFIXES``.
        colors: the label of each color of an RGB file, such as ``color_labels("voc")``.
        key: the name of the array in a file of several. By default, one must be named "labels", "mask", "target" or
            similar.
        region: the class whose labels to take from an array [C, H, W], where classes may overlap.
        at: the slice to take from the labels of a volume, [D, H, W] in an array.

    Returns:
        [H, W] int64.

    Raises:
        InputError: if the file cannot be read or holds something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "mask.png"
        ...     Image.fromarray(np.array([[0, 1], [1, 255]], np.uint8)).save(path)
        ...     gray = read_labels(path)
        ...     Image.new("RGB", (2, 1), (128, 0, 0)).save(path)
        ...     gray, read_labels(path, colors={(128, 0, 0): 1})
        (tensor([[  0,   1],
                [  1, 255]]), tensor([[1, 1]]))
    """
    path = Path(path)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return label_map(read_array(path, LABEL_NAMES, key, region, at), path)
    if at is not None:
        raise InputError(f"{path}: expected labels [D, H, W] of a volume in one of {', '.join(ARRAY_SUFFIXES)}")
    if region is not None:
        raise InputError(f"{path}: expected labels [C, H, W] of regions in one of {', '.join(ARRAY_SUFFIXES)}")
    if path.suffix.lower() not in LABEL_SUFFIXES:
        raise InputError(
            f"{path}: expected labels in one of {', '.join(LABEL_SUFFIXES)}, but got {path.suffix or 'no suffix'}"
        )
    picture = _open_image(path)
    if picture.mode in ("RGB", "RGBA", "LA"):
        return _labels_of_colors(np.asarray(picture.convert("RGB")), colors, path)
    if picture.mode not in ("1", "L", "P", "I") and not picture.mode.startswith("I;16"):
        raise InputError(f"{path}: expected one channel of class indices, or RGB, but got mode {picture.mode}")
    return torch.from_numpy(np.asarray(picture).astype(np.int64))


def _labels_of_colors(pixels: npt.NDArray[np.uint8], colors: Mapping[Rgb, int] | None, path: Path) -> Tensor:
    """Return the labels [H, W] of colors [H, W, 3]."""
    codes = pixels.astype(np.int64) @ (1 << 16, 1 << 8, 1)
    table = {(r << 16) + (g << 8) + b: label for (r, g, b), label in (colors or {}).items()}
    found, inverse = np.unique(codes, return_inverse=True)
    unknown = [code for code in found.tolist() if code not in table]
    if not unknown:
        return torch.from_numpy(np.array([table[code] for code in found.tolist()])[inverse].reshape(codes.shape))
    if (pixels == pixels[..., :1]).all():
        return torch.from_numpy(pixels[..., 0].astype(np.int64))
    y, x = np.argwhere(codes == unknown[-1])[0]
    color = tuple(pixels[y, x].tolist())
    if colors is None:
        raise InputError(
            f"{path}: expected class indices, but got colors, {color} at [{y}, {x}]; store indices, or name the palette"
            " (edgeloss --palette)"
        )
    raise InputError(
        f"{path}: expected colors of the palette, but got {len(unknown)} unknown, such as {color} at [{y}, {x}]"
    )


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
