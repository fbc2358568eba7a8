"""From image, NumPy and torch files to images, labels and predictions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from edgeloss import inputs
from edgeloss.io.class_lists import Rgb
from edgeloss.io.files import ARRAY_SUFFIXES, LABEL_SUFFIXES, InputError, reading
from edgeloss.remap import Rule

# Names that are looked for in a file of several arrays.
_PREDICTION_NAMES = ("logits", "pred", "prediction", "predictions", "prob", "probs", "probabilities", "out")
_LABEL_NAMES = ("labels", "label", "mask", "masks", "target", "targets", "gt", "ground_truth")

# The ends of messages about volumes and other integers.
_VOLUME = "; of a volume [C, D, H, W], with labels [D, H, W], take slice N along D by --slice N"
_ONE_HOT = "; of one-hot labels [C, H, W], store their argmax over the classes"
_QUANTIZED = "; store logits or probabilities [C, H, W] in a floating dtype"

PredictionKind = Literal["logits", "probabilities", "labels"]
# The probability that a predicted label stands for; the other classes share the rest.
LABEL_PROBABILITY = 0.9


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
        return _label_map(read_array(path, _LABEL_NAMES, key, region, at), path)
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


def remap_labels(labels: Tensor, rules: Sequence[Rule]) -> Tensor:
    """Replace labels by all rules at once.

    Args:
        labels: integers of any shape.
        rules: those of :func:`edgeloss.remap.parse_remap`.

    Example:
        >>> from edgeloss.remap import parse_remap
        >>> remap_labels(torch.tensor([0, 1, 2]), parse_remap("0:255,1-150:0"))
        tensor([255,   0,   1])
    """
    replaced = labels
    for first, last, to in rules:
        replaced = torch.where((labels >= first) & (labels <= last), labels + (to - first), replaced)
    return replaced


def _open_image(path: Path) -> Image.Image:
    """Open and decode an image file."""
    with reading(path, "can't be read as an image ({})"), path.open("rb") as file:
        # Pillow warns of more than Image.MAX_IMAGE_PIXELS pixels before it decodes them: that is the limit here.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            picture = Image.open(file)
            picture.load()
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            most = Image.MAX_IMAGE_PIXELS
            raise InputError(f"{path}: expected at most {most} pixels, but got more ({error})") from error
    return picture


# --------------------------------------------------------------------------------------------------------- predictions


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

        Probabilities become their logarithms, in float32 or float64; 0 counts as the smallest positive number of the
        stored dtype. A label becomes the logarithms of ``LABEL_PROBABILITY`` for its class and equal probabilities for
        the others.

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
            # The dtype of a file of probabilities is not that of the network's logits.
            values = self.values if self.values.dtype == torch.float64 else self.values.float()
            p = values.clamp(min=least)
            return p.log() if len(p) > 1 else p.log() - (1 - values).clamp(min=least).log()
        others = (1 - LABEL_PROBABILITY) / (num_classes - 1)
        p = torch.full((num_classes, *self.values.shape), others)
        return p.scatter_(0, self.values[None], LABEL_PROBABILITY).log_()


def read_prediction(
    path: str | Path,
    kind: PredictionKind | None = None,
    *,
    colors: Mapping[Rgb, int] | None = None,
    key: str | None = None,
    region: int | None = None,
    at: int | None = None,
) -> Prediction:
    """Read the prediction for one image.

    Args:
        path: a file with one of ``ARRAY_SUFFIXES`` that holds [C, h, w], [1, C, h, w] or, for one channel, [h, w]; or
            labels as for :func:`read_labels`.
        kind: what the file holds. None infers it: integers are labels, values in [0, 1] that sum to 1 over the classes
            are probabilities, all others are logits. One channel in [0, 1] is the probability of class 1.
        colors: the label of each color, as for :func:`read_labels`.
        key: the name of the array in a file of several. By default, one must be named "logits", "pred", "prob", "out"
            or similar.
        region: the class to take from [C, h, w], as a binary prediction of its own.
        at: the slice to take from the prediction of a volume, [C, D, h, w].

    Returns:
        The prediction. Values of nan and infinity are counted, not rejected.

    Raises:
        InputError: if the file cannot be read or holds something else.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "prediction.npy"
        ...     np.save(path, np.full((4, 2, 3), 0.25, np.float32))
        ...     prediction = read_prediction(path)
        >>> prediction.kind, prediction.num_classes, prediction.values.shape
        ('probabilities', 4, torch.Size([4, 2, 3]))
    """
    path = Path(path)
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        if kind in ("logits", "probabilities"):
            raise InputError(
                f"{path}: expected {kind} in one of {', '.join(ARRAY_SUFFIXES)}, but got {path.suffix or 'no suffix'}"
            )
        return Prediction("labels", read_labels(path, colors=colors, region=region, at=at), 0)
    array = read_array(path, _PREDICTION_NAMES, key, region, at)
    is_integer = not array.values.is_floating_point()
    values = _squeeze(array.values, 3)
    values = values[None] if values.dim() == 2 else values
    if kind == "labels" or (kind is None and is_integer and len(values) == 1):
        return Prediction("labels", _label_map(array, path), 0)
    if is_integer or values.dim() != 3:
        expected = "labels [H, W] or floating logits" if is_integer and kind is None else f"floating {kind or 'logits'}"
        hint = (_VOLUME if values.dim() > 3 else "") + (_QUANTIZED if is_integer else "")
        raise InputError(f"{path}: expected {expected} [C, H, W], but got {array.text}{hint}")
    in_range = _are_probabilities(values)
    if kind == "probabilities" and not in_range:
        raise InputError(f"{path}: expected probabilities in [0, 1] that sum to 1 over the classes, but got others")
    inferred: PredictionKind = "probabilities" if in_range else "logits"
    return Prediction(kind or inferred, values, int((~values.isfinite()).sum()))


def _are_probabilities(values: Tensor) -> bool:
    """Whether [C, h, w] is in [0, 1] and, for several channels, sums to 1; pixels with nan are left out."""
    x = values.flatten(1).float()
    x = x[:, ~x.isnan().any(0)]
    # Rounding changes each value, and so their sum, by a relative eps / 2 at most; the rest is for sums and resizing.
    tolerance = max(1e-3, 2 * torch.finfo(values.dtype).eps)
    if not x.numel() or x.min() < -tolerance or x.max() > 1 + tolerance:
        return False
    return len(x) == 1 or bool(((x.sum(0) - 1).abs() <= tolerance).all())


# --------------------------------------------------------------------------------------------------------------- arrays


class Array(NamedTuple):
    """An array of a file."""

    values: Tensor  # int64, or a floating dtype that the loss supports
    text: str  # dtype and shape in the file, for messages


def read_array(
    path: Path,
    names: Sequence[str],
    key: str | None = None,
    region: int | None = None,
    at: int | None = None,
) -> Array:
    """Read an array of a file: the one named ``key``, the only one, or the only one with one of the names.

    With ``region`` the map of that class is read, out of [C, H, W]; with ``at`` that slice of a volume [..., D, H, W].
    """
    with reading(path, "is damaged, or holds something other than numbers; pickled objects are not read"):
        values, text = _load(path, names, key, at)
    if values.layout != torch.strided or values.is_complex() or values.is_quantized:
        raise InputError(f"{path}: expected dense real numbers, but got {text}, {values.layout}")
    if not values.numel():
        raise InputError(f"{path}: expected at least one pixel, but got {text}")
    if region is not None:
        values = _squeeze(values, 3)
        if values.dim() != 3 or region >= len(values):
            raise InputError(f"{path}: expected [C, H, W] with class {region} to take, but got {text}")
        values = values[region]
    if not values.is_floating_point():
        return Array(values.long(), text)
    supported = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return Array(values if values.dtype in supported else values.float(), text)


def _label_map(array: Array, path: Path) -> Tensor:
    """Return an array as labels [H, W] int64."""
    values = _squeeze(array.values, 2)
    if values.is_floating_point() or values.dim() != 2:
        hint = "" if values.is_floating_point() or values.dim() < 3 else _VOLUME + _ONE_HOT
        raise InputError(f"{path}: expected integer labels [H, W], but got {array.text}{hint}")
    return values


def _squeeze(values: Tensor, dims: int) -> Tensor:
    """Remove leading axes of length 1 while there are more than ``dims`` axes."""
    while values.dim() > dims and len(values) == 1:
        values = values[0]
    return values


def _load(path: Path, names: Sequence[str], key: str | None, at: int | None) -> tuple[Tensor, str]:
    """Return the array, with its dtype and shape in the file."""
    if path.suffix.lower() in (".pt", ".pth"):
        content = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(content, Mapping):
            tensors = {str(name): part for name, part in content.items() if isinstance(part, Tensor)}
            content = tensors[_choose(tensors, names, key, path)]
        if not isinstance(content, Tensor):
            raise InputError(f"{path}: expected a tensor, or a dict with one, but got {type(content).__name__}")
        return _slice(content.detach(), at, path), inputs.describe(content)
    array: npt.NDArray[Any]
    if path.suffix.lower() == ".npz":
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            array = archive[_choose(archive.files, names, key, path)]
    else:
        array = np.lib.format.open_memmap(path, mode="r")  # fails on a truncated file before reading any of it
    kind = array.dtype.kind
    if kind not in "fiub":
        raise InputError(f"{path}: expected an array of real numbers, but got dtype {array.dtype}")
    dtype = np.dtype(np.int64 if kind != "f" else np.float64 if array.dtype.itemsize > 8 else array.dtype)
    values = torch.from_numpy(np.array(_slice(array, at, path), dtype=dtype.newbyteorder("=")))
    return values, f"{array.dtype.name} {list(array.shape)}"


def _slice(values: Any, at: int | None, path: Path) -> Any:  # noqa: ANN401
    """Return a slice of a volume [..., D, H, W], a tensor or an array."""
    if at is None:
        return values
    if values.ndim < 3 or at >= values.shape[-3]:
        shape = list(values.shape)
        raise InputError(f"{path}: expected a volume [..., D, H, W] with slice {at} along D, but got {shape}")
    return values[..., at, :, :]


def _choose(found: Mapping[str, Any] | Sequence[str], names: Sequence[str], key: str | None, path: Path) -> str:
    """Return the name of the array to read."""
    listed = ", ".join(found) or "none"
    if key is not None:
        if key not in found:
            raise InputError(f"{path}: expected an array named {key}, but got {listed}")
        return key
    candidates = list(found) if len(found) == 1 else [name for name in found if name in names]
    if len(candidates) != 1:
        raise InputError(
            f"{path}: expected one array, or one named {', '.join(names)}, but got {listed}; choose one with --key"
        )
    return candidates[0]
