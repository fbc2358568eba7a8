"""From NumPy and torch files to tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss import inputs
from edgeloss.io.files import InputError, check_file

# Names that are looked for in a file of several arrays.
PREDICTION_NAMES = ("logits", "pred", "prediction", "predictions", "prob", "probs", "probabilities", "out")
LABEL_NAMES = ("labels", "label", "mask", "masks", "target", "targets", "gt", "ground_truth")

# The ends of messages about volumes and other integers.
VOLUME = "; of a volume [C, D, H, W], with labels [D, H, W], take slice N along D by --slice N"
ONE_HOT = "; of one-hot labels [C, H, W], store their argmax over the classes"
QUANTIZED = "; store logits or probabilities [C, H, W] in a floating dtype"


class Array(NamedTuple):
    """An array of a file.

    Attributes:
        values: int64, or a floating dtype that the loss supports.
        text: dtype and shape in the file, for messages.
    """

    values: Tensor
    text: str


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
    check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from the readers, about damaged files
            values, text = _load(path, names, key, at)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged file can make an unpickler or a zip reader raise anything
        reason = "is damaged, or holds something other than numbers; pickled objects are not read"
        raise InputError(f"{path}: {reason}") from error
    if values.layout != torch.strided or values.is_complex() or values.is_quantized:
        raise InputError(f"{path}: expected dense real numbers, but got {text}, {values.layout}")
    if not values.numel():
        raise InputError(f"{path}: expected at least one pixel, but got {text}")
    if region is not None:
        values = squeeze(values, 3)
        if values.dim() != 3 or region >= len(values):
            raise InputError(f"{path}: expected [C, H, W] with class {region} to take, but got {text}")
        values = values[region]
    if not values.is_floating_point():
        return Array(values.long(), text)
    supported = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return Array(values if values.dtype in supported else values.float(), text)


def label_map(array: Array, path: Path) -> Tensor:
    """Return an array as labels [H, W] int64."""
    values = squeeze(array.values, 2)
    if values.is_floating_point() or values.dim() != 2:
        hint = "" if values.is_floating_point() or values.dim() < 3 else VOLUME + ONE_HOT
        raise InputError(f"{path}: expected integer labels [H, W], but got {array.text}{hint}")
    return values


def squeeze(values: Tensor, dims: int) -> Tensor:
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
