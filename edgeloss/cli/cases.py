"""Prediction, mask and image that belong together: found by name, and read as the options of files say."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import Tensor

from edgeloss import inputs
from edgeloss.cli.commands import OF_LOSS, check_class_count
from edgeloss.cli.messages import printable, say
from edgeloss.io import (
    ARRAY_SUFFIXES,
    IMAGE_SUFFIXES,
    LABEL_PROBABILITY,
    LABEL_SUFFIXES,
    VOID_INDEX,
    InputError,
    Prediction,
    Rgb,
    color_labels,
    files_by_stem,
    read_classes,
    read_image,
    read_labels,
    read_palette,
    read_prediction,
    remap_labels,
)
from edgeloss.io.readers import read_array
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.arrays import Said

# The largest number of logits that labels are expanded to: 8 GiB in float32.
_MAX_VALUES = 2**31


class CaseFiles(NamedTuple):
    """The files of one case.

    Attributes:
        name: without suffix.
        mask: the true labels.
        prediction: logits, probabilities or labels.
        image: the picture, if there is one.
        second: those of another network, if there is one.
    """

    name: str
    mask: Path
    prediction: Path
    image: Path | None = None
    second: Path | None = None


def find_cases(options: Namespace) -> list[CaseFiles]:
    """Match files, or the files of folders by name; hidden files and other suffixes are skipped.

    Returns:
        The cases, sorted by name.

    Raises:
        InputError: if a folder is empty, a name is missing from a folder, or no name is in all folders.
    """
    fields = {"pred": "prediction", "first": "prediction", "second": "second", "mask": "mask", "image": "image"}
    paths = {fields[name]: path for name, path in vars(options).items() if name in fields and path is not None}
    if not options.takes_folders:
        return [CaseFiles(paths["prediction"].stem, **paths)]
    pictures = IMAGE_SUFFIXES if options.slice is None else (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES)
    files = {
        field: files_by_stem(folder, pictures if field == "image" else LABEL_SUFFIXES)
        for field, folder in paths.items()
    }
    every, common = set().union(*files.values()), set(files["mask"])
    for field, folder in paths.items():
        common &= set(files[field])
        if not common:
            raise InputError(f"{folder}: expected names as in {paths['mask']}, but got none that is in all folders")
        if (missing := sorted(every - set(files[field]))) and not options.skip_missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InputError(
                f"{folder}: expected a file for each name, but got none for {', '.join(missing[:3])}{more}; pass"
                " --skip-missing to leave out incomplete cases"
            )
    return [CaseFiles(name, **{field: found[name] for field, found in files.items()}) for name in sorted(common)]


def with_progress(cases: Sequence[CaseFiles]) -> Iterator[tuple[CaseFiles, Said]]:
    """Yield cases, each with a function that takes what is being computed.

    If stderr is a terminal, it shows that, the name of the case, how many are done and the time that passes.
    """
    console = Console(stderr=True)
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(cases))
        for files in cases:

            def said(text: str, name: str = files.name) -> None:
                progress.update(task, description=printable(f"{name}: {text}"))

            yield files, said
            progress.advance(task)


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn errors of the library about the contents of a file into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: {error}") from error


class Case(NamedTuple):
    """The contents of the files of one case, as arguments of the loss.

    Attributes:
        name: of the files, without suffix.
        logits: [B, C, h, w] floating, of one image, or of B slices of a volume.
        target: [B, H, W] int64, h ≤ H and w ≤ W.
        image: [B, 3, H, W] uint8, if there is one.
        interpretation: how the prediction was read, in words.
        slices: the names of the slices, None of an image.
    """

    name: str
    logits: Tensor
    target: Tensor
    image: Tensor | None
    interpretation: str
    slices: list[str] | None = None

    @property
    def classes(self) -> int:
        """The number of classes, 2 for one logit."""
        return max(2, self.logits.shape[1])

    def pictures(self) -> list[npt.NDArray[np.uint8] | None]:
        """Return the images, each [H, W, 3], or None for each."""
        if self.image is None:
            return [None] * len(self.target)
        return [one.permute(1, 2, 0).numpy() for one in self.image]


class Reader:
    """How to read files, from the options of a command.

    Attributes:
        num_classes: C. None takes the number of channels or, of labels, as many classes as occur.
        names: of the classes, if they are known.
        ignore_index: the label of ignored pixels.

    Args:
        options: of the command.
        needs_finite: refuse predictions with values that are not finite.

    Raises:
        InputError: if --region is out of range, or the file of --classes or --palette cannot be used.
    """

    def __init__(self, options: Namespace, *, needs_finite: bool = False) -> None:
        """Read what the options name."""
        self._options, self._needs_finite = options, needs_finite
        self.num_classes, self.names, void = _read_classes(options.classes)
        self._region = None
        if options.region is not None:
            self._region = _parse_region(options.region, self.names, self.num_classes)
            self.names = ["other", options.region if self.names is None else self.names[self._region]]
            self.num_classes = 2
        given = options.ignore_index
        self.ignore_index: int = given if given is not None else VOID_INDEX if void is None else void
        self._colors = None if options.palette is None else color_labels(options.palette)
        self._palette = None if options.palette is None else read_palette(options.palette)
        self._remap = options.remap or ()

    @property
    def criterion(self) -> EdgeAwareLoss:
        """The loss that the options ask for; a command has no steps, so it neither counts classes nor focuses."""
        stateless: dict[str, Any] = {"edge_class_weight": None, "edge_focus": 0.0}
        given = {name: getattr(self._options, name) for name in OF_LOSS}
        return EdgeAwareLoss(ignore_index=self.ignore_index, upsample=True, **stateless, **given)

    def palette(self, classes: int) -> list[Rgb] | None:
        """Return the colors of the classes, None if they are not known."""
        if (colors := self._palette) is None:
            return None
        if missing := [str(c) for c in range(classes) if c not in colors]:
            path = self._options.palette
            raise InputError(f"{path}: expected {classes} colors, but got none for class {', '.join(missing)}")
        return [colors[c] for c in range(classes)]

    def read(self, files: CaseFiles) -> Case:
        """Read the files of one case, with a note about non-finite values and about masks without a usable label.

        Raises:
            InputError: if a file cannot be used, or sizes, classes or labels do not fit.
        """
        if (slices := self._options.slice) is None:
            return self._read(files, None)
        parts = [self._read(files, at) for at in slices]
        images = [part.image for part in parts if part.image is not None]
        taken = f"slice {slices[0]}" if len(slices) == 1 else f"slices {slices[0]} to {slices[-1]}"
        return parts[0]._replace(
            logits=torch.cat([part.logits for part in parts]),
            target=torch.cat([part.target for part in parts]),
            image=torch.cat(images) if images else None,
            interpretation=f"{parts[0].interpretation}, {taken}",
            slices=[f"slice {at}" for at in slices],
        )

    def _read(self, files: CaseFiles, at: int | None) -> Case:
        """Read an image, or slice ``at`` of a volume."""
        taken: dict[str, Any] = {"colors": self._colors, "region": self._region, "at": at}
        kind = None if self._options.pred_kind == "auto" else self._options.pred_kind
        prediction = read_prediction(files.prediction, kind, key=self._options.key, **taken)
        mask = remap_labels(read_labels(files.mask, key=self._options.mask_key, **taken), self._remap)
        image = None if files.image is None else _read_image(files.image, at)
        _check_sizes(files, prediction.values, mask, image)
        if prediction.num_classes is None:
            prediction, channels = self._labels(prediction, mask, files)
        elif self.num_classes not in (None, prediction.num_classes):
            raise InputError(
                f"{files.prediction}: expected {self.num_classes} classes, but got {prediction.num_classes}; classes"
                " come first, [C, H, W]"
            )
        else:
            channels = prediction.num_classes
        _check_labels(mask, channels, self.ignore_index, files.mask)
        logits, size = prediction.logits(channels), prediction.values.shape[-2:]
        is_stretched = not _have_one_aspect(size, mask.shape)
        if is_stretched:
            say(
                f"note: {files.prediction}: {size[0]} × {size[1]} cells have another aspect ratio than the"
                f" {mask.shape[0]} × {mask.shape[1]} pixels of {files.mask}; they are stretched over it"
            )
        self._say_what_is_odd(files, prediction.non_finite, logits, mask)
        return Case(
            name=files.name,
            logits=logits[None],
            target=mask[None],
            image=None if image is None else image[None],
            interpretation=_interpretation(prediction, mask.shape, is_stretched=is_stretched),
        )

    def _labels(self, prediction: Prediction, mask: Tensor, files: CaseFiles) -> tuple[Prediction, int]:
        """Return predicted labels after the replacements, and the number of classes."""
        values, void = remap_labels(prediction.values, self._remap), mask == self.ignore_index
        if values.shape == mask.shape:  # labels of ignored pixels are not read, as logits are not
            values = values.masked_fill(void, 0)
        channels = self.num_classes or max(2, 1 + int(values.max()), 1 + int(mask.masked_fill(void, 0).max()))
        _check_labels(values, channels, None, files.prediction)
        if channels * values.numel() > _MAX_VALUES:
            size = " × ".join(map(str, values.shape))
            raise InputError(
                f"{files.prediction}: expected labels of few classes, but got {channels} for {size} pixels; pass logits"
            )
        return prediction._replace(values=values), channels

    def _say_what_is_odd(self, files: CaseFiles, non_finite: int, logits: Tensor, mask: Tensor) -> None:
        if non_finite and self._needs_finite:
            raise InputError(
                f"{files.prediction}: expected finite values, but got {non_finite} of {logits.numel()} that are not;"
                " edgeloss diagnose names them"
            )
        if non_finite:
            say(f"note: {files.prediction}: {non_finite} of {logits.numel()} values are not finite")
        ignored, void = self.ignore_index, mask == self.ignore_index
        if void.all():
            say(f"note: {files.mask}: all pixels have the label {ignored}, which is ignored: no loss, no score")
        elif len(logits) <= 2 and void.any() and not (mask[~void] != 0).any():
            say(f"note: {files.mask}: holds only 0 and {ignored}, which is ignored; for class 1, --remap {ignored}:1")


def _interpretation(prediction: Prediction, shape: torch.Size, *, is_stretched: bool) -> str:
    """Return how a prediction was read, in words."""
    text: str = prediction.kind
    if prediction.kind == "labels":
        text += f", as one-hot smoothed to {LABEL_PROBABILITY}"
    if (size := prediction.values.shape[-2:]) != shape:
        text += f" of {size[0]} × {size[1]} pixels, {'stretched' if is_stretched else 'upsampled'}"
    return text


def _have_one_aspect(size: torch.Size, shape: torch.Size) -> bool:
    """Return whether h × w cells can be those of a network's stride on H × W pixels, give or take a cell per axis."""
    ratios = [(length / (cells + 1), length / max(cells - 1, 0.5)) for cells, length in zip(size, shape, strict=True)]
    return max(low for low, _ in ratios) < min(high for _, high in ratios)


def _read_image(path: Path, at: int | None) -> Tensor:
    """Read an image, or a slice of a volume in gray, from black to white by its values; [3, H, W] uint8."""
    if at is None or path.suffix.lower() not in ARRAY_SUFFIXES:
        return read_image(path)
    values = read_array(path, ("image", "images"), at=at).values.double()
    if values.dim() != 2:
        raise InputError(f"{path}: expected a volume [D, H, W] in gray, but got slices {list(values.shape)}")
    low, high = values.aminmax()
    return ((values - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8).expand(3, -1, -1)


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


# ---------------------------------------------------------------------------------------------------- options


def _read_classes(given: int | str | None) -> tuple[int | None, list[str] | None, int | None]:
    """Return the number of classes, their names and the index to ignore, as far as --classes has them."""
    if not isinstance(given, str):
        return given, None, None
    names, void = read_classes(given)
    try:
        return check_class_count(len(names)), names, void
    except ArgumentTypeError as error:
        raise InputError(f"{given}: {error}") from error


def _parse_region(text: str, names: list[str] | None, count: int | None) -> int:
    """Return the number of a class that is given by its number or its name."""
    if names is not None and text in names:
        return names.index(text)
    if not (text.isascii() and text.isdigit()) or (count is not None and int(text) >= count):
        expected = "a number" if count is None else f"0 to {count - 1}"
        raise InputError(f"--region: expected {expected}, or a name of --classes, but got {text!r}")
    return int(text)
