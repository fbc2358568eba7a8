"""Cases: prediction, mask and image that belong together, found by name and read as arguments of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from edgeloss import inputs
from edgeloss.io import (
    IMAGE_SUFFIXES,
    LABEL_PROBABILITY,
    LABEL_SUFFIXES,
    VOID_INDEX,
    InputError,
    Prediction,
    PredictionKind,
    Rgb,
    files_by_stem,
    read_image,
    read_labels,
    read_prediction,
)

# The largest number of logits that labels are expanded to: 8 GiB in float32.
_MAX_VALUES = 2**31


class CaseFiles(NamedTuple):
    """The files of one case.

    Attributes:
        name: without suffix.
        prediction: logits, probabilities or labels.
        mask: the true labels.
        image: the picture, if there is one.
    """

    name: str
    prediction: Path
    mask: Path
    image: Path | None


def match_files(
    prediction: Path, mask: Path, image: Path | None = None, *, skip_missing: bool = False
) -> list[CaseFiles]:
    """Match files, or the files of folders by name; hidden files and other suffixes are skipped.

    Args:
        prediction: a file or a folder.
        mask: the same.
        image: the same, or None.
        skip_missing: leave out names that are missing from a folder.

    Returns:
        One element per case, sorted by name.

    Raises:
        InputError: if files and folders are mixed, a folder is empty, a name is missing from a folder, or no name is in
            all folders.
    """
    suffixes = {prediction: LABEL_SUFFIXES, mask: LABEL_SUFFIXES} | ({} if image is None else {image: IMAGE_SUFFIXES})
    for path in suffixes:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        if path.is_dir() != prediction.is_dir():
            raise InputError(f"{path}: expected only folders or only files, but got both, see {prediction}")
    if not prediction.is_dir():
        return [CaseFiles(prediction.stem, prediction, mask, image)]
    files = {folder: files_by_stem(folder, accepted) for folder, accepted in suffixes.items()}
    names = sorted(set().union(*files.values()))
    if not skip_missing:
        _check_complete(files, names)
    names = [name for name in names if all(name in in_folder for in_folder in files.values())]
    if not names:
        raise InputError(f"{prediction}: expected names as in {mask}, but got none that is in all folders")
    return [
        CaseFiles(name, files[prediction][name], files[mask][name], None if image is None else files[image][name])
        for name in names
    ]


def _check_complete(files: Mapping[Path, Mapping[str, Path]], names: Sequence[str], most: int = 3) -> None:
    """Check that every folder has a file for every name; the message lists at most ``most`` of them."""
    for folder, in_folder in files.items():
        missing = [name for name in names if name not in in_folder]
        if missing:
            more = f" and {len(missing) - most} more" if len(missing) > most else ""
            raise InputError(
                f"{folder}: expected a file for each name, but got none for {', '.join(missing[:most])}{more}; pass"
                " --skip-missing to leave out incomplete cases"
            )


class Case(NamedTuple):
    """The contents of the files of one case, as arguments of the loss.

    Attributes:
        name: of the files, without suffix.
        logits: [1, C, h, w] floating.
        target: [1, H, W] int64, h ≤ H and w ≤ W.
        image: [1, 3, H, W] uint8, if there is one.
        interpretation: how the prediction was read, in words.
        non_finite: how many values of the prediction are nan or infinite.
    """

    name: str
    logits: Tensor
    target: Tensor
    image: Tensor | None
    interpretation: str
    non_finite: int


class Relabel(NamedTuple):
    """A rule that replaces the labels first, first + 1, ..., last by to, to + 1, ..."""

    first: int
    last: int
    to: int


def read_case(
    files: CaseFiles,
    *,
    kind: PredictionKind | None,
    num_classes: int | None,
    ignore_index: int,
    colors: Mapping[Rgb, int] | None = None,
    remap: Sequence[Relabel] = (),
    key: str | None = None,
    mask_key: str | None = None,
    region: int | None = None,
) -> Case:
    """Read the files of one case and check that they fit each other.

    Args:
        files: the files.
        kind: what the prediction holds, see :func:`edgeloss.io.read_prediction`.
        num_classes: C. None takes the number of channels or, for labels, as many classes as occur.
        ignore_index: the label of ignored pixels.
        colors: the label of each color of masks and predicted labels in RGB.
        remap: the labels to replace in masks and predicted labels, all at once.
        key: the name of the prediction in a file of several arrays.
        mask_key: the name of the labels in such a file.
        region: the class to take from a prediction and a mask [C, H, W], as a binary case.

    Returns:
        The case.

    Raises:
        InputError: if a file cannot be used, or sizes, classes or labels do not fit.
    """
    prediction = read_prediction(files.prediction, kind, colors=colors, key=key, region=region)
    mask = _replaced(read_labels(files.mask, colors=colors, key=mask_key, region=region), remap)
    image = None if files.image is None else read_image(files.image)
    _check_sizes(files, prediction.values, mask, image)
    (height, width), (h, w) = mask.shape, prediction.values.shape[-2:]
    values, void = prediction.values, mask == ignore_index
    channels = prediction.num_classes
    if channels is None:
        values = _replaced(values, remap)
        if (h, w) == (height, width):  # labels of ignored pixels are not read, as logits are not
            values = values.masked_fill(void, 0)
        channels = num_classes or max(2, 1 + int(values.max()), 1 + int(mask.masked_fill(void, 0).max()))
        _check_labels(values, channels, None, files.prediction)
        if channels * values.numel() > _MAX_VALUES:
            raise InputError(
                f"{files.prediction}: expected labels of few classes, but got {channels} for {h} × {w} pixels; pass"
                " logits"
            )
    elif num_classes not in (None, channels):
        raise InputError(
            f"{files.prediction}: expected {num_classes} classes, but got {channels}; classes come first, [C, H, W]"
        )
    _check_labels(mask, channels, ignore_index, files.mask)
    return Case(
        name=files.name,
        logits=prediction._replace(values=values).logits(channels)[None],
        target=mask[None],
        image=None if image is None else image[None],
        interpretation=_interpretation(prediction, is_upsampled=(h, w) != (height, width)),
        non_finite=prediction.non_finite,
    )


def _interpretation(prediction: Prediction, *, is_upsampled: bool) -> str:
    """Return how a prediction was read, in words."""
    text: str = prediction.kind
    if prediction.kind == "labels":
        text += f", as one-hot smoothed to {LABEL_PROBABILITY}"
    if is_upsampled:
        text += " of {} × {} pixels, upsampled".format(*prediction.values.shape[-2:])
    return text


def _replaced(labels: Tensor, rules: Sequence[Relabel]) -> Tensor:
    replaced = labels
    for first, last, to in rules:
        replaced = torch.where((labels >= first) & (labels <= last), labels + (to - first), replaced)
    return replaced


def _check_sizes(files: CaseFiles, values: Tensor, mask: Tensor, image: Tensor | None) -> None:
    (height, width), (h, w) = mask.shape, values.shape[-2:]
    if image is not None and image.shape[1:] != mask.shape:
        raise InputError(
            f"{files.image}: expected {height} × {width} pixels as in {files.mask}, but got"
            f" {image.shape[1]} × {image.shape[2]}"
        )
    # Rounding can stretch a few cells up to twice; more than that means axes in another order.
    if h > height or w > width or not 0.5 <= (height * w) / (width * h) <= 2:
        raise InputError(
            f"{files.prediction}: expected the {height} × {width} pixels of {files.mask}, or the same picture in lower"
            f" resolution, but got {h} × {w}; classes come first, [C, H, W]"
        )


def _check_labels(labels: Tensor, num_classes: int, ignore_index: int | None, path: Path) -> None:
    try:
        inputs.check_labels(labels, num_classes, ignore_index, name=str(path))
    except ValueError as error:
        # The ignore index 255 in int8.
        hint = "; if -1 marks void, pass --remap -1:255" if ignore_index == VOID_INDEX and (labels == -1).any() else ""
        raise InputError(f"{error}{hint}") from error
