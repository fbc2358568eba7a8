"""Prediction, mask and image that belong together, read as the options of files say."""

from __future__ import annotations

import itertools
from argparse import ArgumentTypeError, Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from edgeloss._checks import inputs
from edgeloss._checks.names import shortened
from edgeloss._checks.remap import table_rules
from edgeloss._reference.interpolate import readable_logits
from edgeloss.cli.commands import OF_LOSS, check_class_count
from edgeloss.cli.messages import say
from edgeloss.cli.work import CaseFiles
from edgeloss.io import (
    ARRAY_SUFFIXES,
    LABEL_PROBABILITY,
    PALETTES,
    VOID_INDEX,
    InputError,
    Prediction,
    Rgb,
    Size,
    Split,
    color_labels,
    limits,
    read_classes,
    read_image,
    read_labels,
    read_palette,
    read_prediction,
    remap_labels,
)
from edgeloss.io.arrays import SWAPPED, Choice, check_fits, count_slices
from edgeloss.io.images import picture_size
from edgeloss.io.labels import LABEL_NAMES
from edgeloss.io.predictions import PREDICTION_NAMES
from edgeloss.loss import EdgeAwareLoss

# The largest number of logits that labels are expanded to: 8 GiB in float32.
_MAX_VALUES = 2**31


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

    def predicted(self, valid: Tensor) -> Tensor:
        """Return the predicted labels [B, H, W], arbitrary outside of the valid pixels."""
        return readable_logits(self.logits, valid).argmax(1)

    def wrong(self, valid: Tensor) -> Tensor:
        """Return where the predicted label is not the true one, or is unknown since a logit is nan."""
        logits = readable_logits(self.logits, valid)
        return (logits.argmax(1) != self.target) | logits.isnan().any(1)

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
        split: the part of the data set that the options name, if they name one.
        needs_finite: refuse predictions with values that are not finite.

    Raises:
        InputError: if --region is out of range, or the file of --classes or --palette cannot be used.
    """

    def __init__(self, options: Namespace, split: Split | None = None, *, needs_finite: bool = False) -> None:
        """Read what the options name."""
        self._options, self._needs_finite = options, needs_finite
        if options.max_pixels is not None:
            Image.MAX_IMAGE_PIXELS = options.max_pixels
        if options.max_gigabytes is not None:
            limits.MAX_BYTES = int(options.max_gigabytes * 1e9)
        if split is None:
            self.num_classes, self.names, void = _read_classes(options.classes)
        else:
            self.num_classes, self.names, void = len(split.classes), split.classes, split.ignore_index
        self._region = None
        if options.region is not None:
            self._region = _parse_region(options.region, self.names, self.num_classes)
            self.names = ["other", options.region if self.names is None else self.names[self._region]]
            self.num_classes = 2
        given = options.ignore_index
        self.ignore_index: int = given if given is not None else VOID_INDEX if void is None else void
        self._colors = None if options.palette is None else color_labels(options.palette)
        layout = options.data[0] if options.data else None
        palette = options.palette or (layout if layout in PALETTES else None)
        self._palette = None if palette is None else read_palette(palette)
        of_data = table_rules(split.labels) if split is not None and split.labels else ()
        self._mask_rules = options.mask_remap or options.remap or of_data
        self._pred_rules = options.pred_remap or options.remap or ()
        self._notes: defaultdict[str, set[str]] = defaultdict(set)  # the files that each is about
        self._valid: list[int] = []  # the lowest and the highest label of each mask
        self._has_void = False

    @property
    def criterion(self) -> EdgeAwareLoss:
        """The loss that the options ask for."""
        given = {name: getattr(self._options, name) for name in OF_LOSS}
        return EdgeAwareLoss(ignore_index=self.ignore_index, upsample=True, **given)

    def palette(self, classes: int) -> list[Rgb] | None:
        """Return the colors of the classes, None if they are not known."""
        if (colors := self._palette) is None:
            return None
        if missing := [str(c) for c in range(classes) if c not in colors]:
            path = self._options.palette
            raise InputError(f"{path}: expected {classes} colors, but got none for class {shortened(missing)}")
        return [colors[c] for c in range(classes)]

    def read(self, files: CaseFiles) -> Case:
        """Read the files of one case, with a note about non-finite values and about masks without a usable label.

        Raises:
            InputError: if a file cannot be used, or sizes, classes or labels do not fit.
        """
        parts = [*self.parts(files)]
        if (slices := self._options.slice) is None:
            return parts[0]
        images = [part.image for part in parts if part.image is not None]
        taken = f"slice {slices[0]}" if len(slices) == 1 else f"slices {slices[0]} to {slices[-1]}"
        return parts[0]._replace(
            logits=torch.cat([part.logits for part in parts]),
            target=torch.cat([part.target for part in parts]),
            image=torch.cat(images) if images else None,
            interpretation=f"{parts[0].interpretation}, {taken}",
            slices=[f"slice {at}" for at in slices],
        )

    def parts(self, files: CaseFiles, *, volumes: bool = False) -> Iterator[Case]:
        """Read the slices of one case one by one, or the image; of ``volumes`` all slices, unless --slice names some.

        Raises:
            InputError: as in :meth:`read`, and if prediction and mask of a volume differ in the number of slices.
        """
        slices: Sequence[int | None] = self._options.slice or [None]
        if volumes and self._options.slice is None:
            count = count_slices(files.mask, Choice(LABEL_NAMES, self._options.mask_key))
            predicted = count_slices(files.prediction, Choice(PREDICTION_NAMES, self._options.key))
            if predicted != count:
                raise InputError(f"{files.prediction}: expected {count} slices as in {files.mask}, but got {predicted}")
            slices = range(count)
        for at in slices:
            yield self._read(files, at)

    def _read(self, files: CaseFiles, at: int | None) -> Case:
        """Read an image, or slice ``at`` of a volume; sizes are compared before memory is taken, where they can be."""
        options = self._options
        taken: dict[str, Any] = {"region": self._region, "at": at, "page": options.page, "note": self._note}
        mask = read_labels(files.mask, key=options.mask_key, colors=self._colors, **taken)
        mask = remap_labels(mask, self._mask_rules)
        size = Size(files.mask, *mask.shape)
        image = None if files.image is None else self._read_image(files.image, size, at)
        kind = None if options.pred_kind == "auto" else options.pred_kind
        prediction = read_prediction(files.prediction, kind, key=options.key, colors=self._colors, within=size, **taken)
        h, w = prediction.values.shape[-2:]
        check_fits(files.prediction, prediction.values.shape, size)
        prediction, channels = self._with_classes(prediction, mask, files)
        self._check_labels(files.mask, mask, channels, self.ignore_index, is_of_labels=prediction.kind == "labels")
        logits = prediction.logits(channels)
        is_stretched = not _have_one_aspect((h, w), mask.shape)
        if is_stretched:
            say(
                f"note: {files.prediction}: {h} × {w} cells have another aspect ratio than the {mask.shape[0]} ×"
                f" {mask.shape[1]} pixels of {files.mask}; they are stretched over it"
                + f"; {SWAPPED}"
                * _have_one_aspect((w, h), mask.shape)
            )
        self._say_what_is_odd(files, prediction.non_finite, logits, mask)
        return Case(
            name=files.name,
            logits=logits[None],
            target=mask[None],
            image=None if image is None else image[None],
            interpretation=_interpretation(prediction, mask.shape, is_stretched=is_stretched),
        )

    def _read_image(self, path: Path, mask: Size, at: int | None) -> Tensor:
        """Read a photograph that has the size of its mask."""
        turned = 1
        if path.suffix.lower() not in ARRAY_SUFFIXES and self._options.page is None:
            *size, turned = picture_size(path)
            _check_image(path, size, mask, turned)
        image = read_image(path, at=at, page=self._options.page, note=self._note)
        _check_image(path, image.shape[1:], mask, turned)
        return image

    def _with_classes(self, prediction: Prediction, mask: Tensor, files: CaseFiles) -> tuple[Prediction, int]:
        """Return the prediction, of labels after the replacements, and the number of classes."""
        if prediction.num_classes is None:
            return self._labels(prediction, mask, files)
        if self.num_classes not in (None, prediction.num_classes):
            given = "--region" if self._region is not None else "--classes" if self._options.data is None else "--data"
            hint = f"; pass --classes {prediction.num_classes}" if isinstance(self._options.classes, int) else ""
            if prediction.values.shape[-1] == self.num_classes:
                hint = "; classes come first, [C, H, W]"
            raise InputError(
                f"{files.prediction}: expected the {self.num_classes} classes of {given}, but got"
                f" {prediction.num_classes}{hint}"
            )
        return prediction, prediction.num_classes

    def _labels(self, prediction: Prediction, mask: Tensor, files: CaseFiles) -> tuple[Prediction, int]:
        """Return predicted labels after the replacements, and the number of classes."""
        values, void = remap_labels(prediction.values, self._pred_rules), mask == self.ignore_index
        if values.shape == mask.shape:  # labels of ignored pixels are not read, as logits are not
            values = values.masked_fill(void, 0)
        channels = self.num_classes or self._count_classes(values, mask.masked_fill(void, 0), files)
        self._check_labels(files.prediction, values, channels, None, is_of_labels=True)
        if channels * values.numel() > _MAX_VALUES:
            size = " × ".join(map(str, values.shape))
            raise InputError(
                f"{files.prediction}: expected labels of few classes, but got {channels} for {size} pixels; pass logits"
            )
        return prediction._replace(values=values), channels

    def _count_classes(self, values: Tensor, mask: Tensor, files: CaseFiles) -> int:
        """Return as many classes as labels occur, with a note where predicted labels look like no labels."""
        predicted, true = torch.unique(values), torch.unique(mask)
        strange = len(predicted) - int(torch.isin(predicted, true).sum())
        if strange > max(8, 2 * len(true)):
            say(
                f"note: {files.prediction}: {strange} of its {len(predicted)} labels, up to {int(predicted[-1])}, are"
                f" not in {files.mask}; of probabilities, pass --pred-kind probabilities"
            )
        count = max(2, 1 + int(predicted[-1]), 1 + int(true[-1]))
        if count > limits.MAX_CLASSES:
            path = files.prediction if predicted[-1] > true[-1] else files.mask
            raise InputError(
                f"{path}: expected at most {limits.MAX_CLASSES} classes, but got the label {count - 1}; pass --classes"
                " for more"
            )
        return count

    def _check_labels(
        self, path: Path, labels: Tensor, classes: int, ignore_index: int | None, *, is_of_labels: bool
    ) -> None:
        """Check the labels of a file; ``is_of_labels`` where the prediction is labels, of any number of classes."""
        try:
            inputs.check_labels(labels, classes, ignore_index, name=str(path))
        except ValueError as error:
            text = str(error).partition("; ")[0]  # its advice is about tensors
            found = [label for label in torch.unique(labels).tolist() if label != ignore_index]
            can_grow = is_of_labels and isinstance(self._options.classes, int)
            raise InputError(f"{text}{_how_to_fit(found, classes, ignore_index, can_grow=can_grow)}") from error

    def _note(self, text: str) -> None:
        """Print a note "PATH: ...", the first of its kind: of the same words up to a reason, which has numbers."""
        path, _, words = text.rpartition(": ")
        kind = words.partition(", since ")[0]
        if not self._notes[kind]:
            say(f"note: {text}")
        self._notes[kind].add(path)  # once, though a mask is read again for each slice and for a second network

    def _say_what_is_odd(self, files: CaseFiles, non_finite: int, logits: Tensor, mask: Tensor) -> None:
        if non_finite and self._needs_finite:
            raise InputError(
                f"{files.prediction}: expected finite values, but got {non_finite} of {logits.numel()} that are not;"
                " edgeloss diagnose names them"
            )
        if non_finite:
            say(f"note: {files.prediction}: {non_finite} of {logits.numel()} values are not finite")
        is_valid = mask != self.ignore_index
        if not is_valid.any():
            ignored = f"the label {self.ignore_index}, which is ignored: no loss, no score"
            say(f"note: {files.mask}: all pixels have {ignored}")
            return
        self._has_void |= not bool(is_valid.all())
        self._valid += [int(label) for label in mask[is_valid].aminmax()]

    def say_at_the_end(self) -> None:
        """Print how many files the notes are about, and warn where all masks have one class and the rest is ignored."""
        for kind, paths in self._notes.items():
            if len(paths) > 1:
                say(f"note: {len(paths) - 1} more: {kind}")
        if self.ignore_index == VOID_INDEX and self._has_void and len(set(self._valid)) == 1:
            (label,) = set(self._valid)
            say(
                f"warning: all masks hold only {label} and {VOID_INDEX}, which is ignored, maybe all foreground; where"
                f" {VOID_INDEX} is class 1, pass --mask-remap {VOID_INDEX}:1"
            )


def _interpretation(prediction: Prediction, shape: torch.Size, *, is_stretched: bool) -> str:
    """Return how a prediction was read, in words."""
    text: str = prediction.kind
    if (size := prediction.values.shape[-2:]) != shape:
        text += f" of {size[1]} × {size[0]} pixels, {'stretched' if is_stretched else 'upsampled'}"
    if prediction.kind == "labels":
        text += f", each as a probability of {LABEL_PROBABILITY}"
    return text


def _have_one_aspect(size: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether h × w cells can be those of a network's stride on H × W pixels, give or take a cell per axis."""
    ratios = [(length / (cells + 1), length / max(cells - 1, 0.5)) for cells, length in zip(size, shape, strict=True)]
    return max(low for low, _ in ratios) < min(high for _, high in ratios)


def _check_image(path: Path, size: Sequence[int], mask: Size, turned: int) -> None:
    """Check that an image has the size of its mask."""
    if tuple(size) == mask[1:]:
        return
    about = f", turned upright by its EXIF orientation {turned}" if turned > 1 else ""
    stored = "; the mask fits the pixels as they are stored" if about and tuple(size)[::-1] == mask[1:] else ""
    raise InputError(
        f"{path}: expected {mask.height} × {mask.width} pixels as in {mask.path}, but got {size[0]} × {size[1]}"
        f"{about}{stored}"
    )


def _how_to_fit(found: Sequence[int], classes: int, void: int | None, *, can_grow: bool) -> str:
    """Return the option for labels that are out of range, sorted: more classes, other numbers, or void.

    Args:
        found: the labels of a file.
        classes: C.
        void: the label to ignore of a mask, None of a prediction.
        can_grow: whether --classes may be larger.

    Example:
        >>> _how_to_fit([0, 1, 2], 2, 255, can_grow=True)
        '; pass --classes 3 if there are as many'
        >>> _how_to_fit([0, 128, 254], 3, 255, can_grow=True)
        '; if these are its classes, pass --mask-remap 128:1,254:2'
        >>> _how_to_fit([0, 4, 255], 10, None, can_grow=True)
        '; 255 marks void in masks, where a prediction has a class, too'
        >>> _how_to_fit([0, 1, 2, 3], 2, 255, can_grow=False)
        '; to ignore those beyond, pass --mask-remap 2-3:255'
    """
    first, last, flag = found[0], found[-1], "--pred-remap" if void is None else "--mask-remap"
    if first < 0:
        return "" if void is None else f"; if {first} marks void, pass {flag} {first}:{void}"
    if can_grow and last < 2 * len(found):
        return f"; pass --classes {last + 1} if there are as many"
    beyond = [label for label in found if label >= classes]
    is_void = beyond == [VOID_INDEX] and len(found) > 2
    if void is None and is_void:
        return f"; {VOID_INDEX} marks void in masks, where a prediction has a class, too"
    if 2 <= len(found) <= classes and not is_void:  # gray levels, or labels that do not begin at 0
        runs = [[*run] for _, run in itertools.groupby(enumerate(found), lambda pair: pair[1] - pair[0])]
        rules = [_rule(run[0][1], run[-1][1], run[0][0]) for run in runs if run[0][0] != run[0][1]]
        return f"; if these are its classes, pass {flag} {','.join(rules)}"
    if void is None:
        is_map = len(found) > max(8, 2 * classes)
        return "; if they are probabilities, pass --pred-kind probabilities" if is_map else ""
    return f"; to ignore those beyond, pass {flag} {_rule(beyond[0], last, void)}"


def _rule(first: int, last: int, to: int) -> str:
    """Return the rule that replaces a range of labels."""
    return f"{first}:{to}" if first == last else f"{first}-{last}:{to}"


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
