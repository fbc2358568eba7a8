"""From picture and array files to labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from edgeloss._checks.remap import Rule
from edgeloss.io.arrays import Array, Choice, read_array, squeeze
from edgeloss.io.class_lists import Rgb
from edgeloss.io.files import ARRAY_SUFFIXES, IMAGE_SUFFIXES, LABEL_SUFFIXES, InputError, wrong_suffix
from edgeloss.io.images import Note, no_note, open_picture

# Names that are looked for in a file of several arrays.
LABEL_NAMES = ("labels", "label", "mask", "masks", "target", "targets", "gt", "ground_truth")
VOLUME = (
    "; of a volume [C, D, H, W], with labels [D, H, W], take slice N along D by --slice N, or score all by metrics"
    " --volumes"
)


def read_labels(
    path: str | Path,
    *,
    colors: Mapping[Rgb, int] | None = None,
    key: str | None = None,
    region: int | None = None,
    at: int | None = None,
    page: int | None = None,
    note: Note = no_note,
) -> Tensor:
    """Read a label mask: gray values, palette indices, colors, or an array of whole numbers, also one-hot.

    An RGB file whose channels are equal holds gray values, unless ``colors`` has all of them. Of a file with a palette,
    the indices are the labels, unless ``colors`` has all of its colors. The EXIF orientation of a mask is not applied.

    Args:
        path: a file with one of ``LABEL_SUFFIXES``.
        colors: the label of each color, such as ``color_labels("voc")``.
        key: the name of the array in a file of several. By default, one must be named "labels", "mask", "target" or
            similar.
        region: the class whose labels to take from an array [C, H, W], where classes may overlap.
        at: the slice to take from the labels of a volume, [D, H, W] in an array.
        page: the page of a TIFF of several, from 0.
        note: takes a line about how the file was read, if that is not plain.

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
        return labels_of_array(read_array(path, Choice(LABEL_NAMES, key, region, at)), path)
    if at is not None:
        raise wrong_suffix(path, "labels [D, H, W] of a volume", ARRAY_SUFFIXES)
    if region is not None:
        raise wrong_suffix(path, "labels [C, H, W] of regions", ARRAY_SUFFIXES)
    if path.suffix.lower() not in LABEL_SUFFIXES:
        hint = "; lossy compression changes labels: store a .png" if path.suffix.lower() in IMAGE_SUFFIXES else ""
        raise wrong_suffix(path, "labels", LABEL_SUFFIXES, hint)
    return _labels_of_picture(path, colors, page, note)


def _labels_of_picture(path: Path, colors: Mapping[Rgb, int] | None, page: int | None, note: Note) -> Tensor:
    """Read the labels of a picture file."""
    picture, turned = open_picture(path, page, upright=False)
    if turned > 1:
        note(f"{path}: its EXIF orientation {turned} is not applied, since it is a mask")
    if picture.mode in ("RGB", "RGBA", "LA"):
        return _labels_of_colors(np.asarray(picture.convert("RGB")), colors, path)
    if picture.mode == "P" and colors and (labels := _labels_of_palette(picture, colors, path, note)) is not None:
        return labels
    if picture.mode == "F":
        return labels_of_array(
            Array(torch.from_numpy(np.array(picture)), f"float32 {[picture.height, picture.width]}"), path
        )
    if picture.mode not in ("1", "L", "P", "I") and not picture.mode.startswith("I;16"):
        raise InputError(f"{path}: expected one channel of class indices, or RGB, but got mode {picture.mode}")
    return torch.from_numpy(np.asarray(picture).astype(np.int64))


def labels_of_array(array: Array, path: Path) -> Tensor:
    """Return an array as labels [H, W] int64: whole numbers, or one-hot over the first or the last axis."""
    values = squeeze(array.values, 2)
    if values.dim() == 3 and (hot := one_hot_axis(values)) is not None:
        return values.argmax(hot)
    if values.dim() != 2 or not are_whole(values):
        of_floats = "; logits and probabilities are predictions, not labels (edgeloss --pred)"
        hint = "" if values.dim() < 3 else VOLUME if array.is_integer else of_floats
        odd = "fractions" if values.isfinite().all() else "values that are not finite"
        got = array.text if values.dim() != 2 else f"{array.text} with {odd}"
        raise InputError(f"{path}: expected integer labels [H, W], but got {got}{hint}")
    return values.long()


def one_hot_axis(values: Tensor) -> int | None:
    """Return the axis, first or last, along which exactly one number is 1 and the others are 0; None without one."""
    if not ((values == 0) | (values == 1)).all():
        return None
    return next((axis for axis in (0, -1) if values.shape[axis] > 1 and (values.sum(axis) == 1).all()), None)


def are_whole(values: Tensor) -> bool:
    """Return whether all numbers are integers that a label can be."""
    if not values.is_floating_point():
        return True
    return bool(values.isfinite().all() and (values == values.round()).all() and values.abs().max() < 2**31)


def remap_labels(labels: Tensor, rules: Sequence[Rule]) -> Tensor:
    """Replace labels by all rules at once.

    Args:
        labels: integers of any shape.
        rules: those of :func:`edgeloss._checks.remap.parse_remap`.

    Example:
        >>> from edgeloss._checks.remap import parse_remap
        >>> remap_labels(torch.tensor([0, 1, 2]), parse_remap("0:255,1-150:0"))
        tensor([255,   0,   1])
    """
    replaced = labels
    for first, last, to in rules:
        replaced = torch.where((labels >= first) & (labels <= last), labels + (to - first), replaced)
    return replaced


def _labels_of_palette(picture: Image.Image, colors: Mapping[Rgb, int], path: Path, note: Note) -> Tensor | None:
    """Return the labels of a picture with a palette by its colors; None if some are not among those of the labels."""
    indices = np.asarray(picture)
    used = np.unique(indices)
    rows = np.asarray(picture.convert("RGB"))
    table = np.zeros(256, np.int64)
    for index in used.tolist():
        y, x = np.argwhere(indices == index)[0]
        r, g, b = rows[y, x].tolist()
        if (label := colors.get((r, g, b))) is None:
            return None
        table[index] = label
    if (table[used] != used).any():
        note(f"{path}: labels are those of its colors, not the indices of its palette, which differ")
    return torch.from_numpy(table[indices])


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
        advice = "store indices, or name the palette (edgeloss --palette)"
        if len(found) > 256:
            advice = "is it a photograph (edgeloss --image), or a mask that was stored as JPEG, which changes labels?"
        raise InputError(f"{path}: expected class indices, but got colors, such as {color} at [{y}, {x}]; {advice}")
    raise InputError(
        f"{path}: expected colors of the palette, but got {len(unknown)} unknown, such as {color} at [{y}, {x}];"
        " name another palette, or a file that lists the colors (edgeloss --palette)"
    )
