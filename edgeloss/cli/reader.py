"""What the shared options mean for the files and the loss."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edgeloss.cli.cases import Case, CaseFiles, Relabel, match_files, read_case
from edgeloss.cli.messages import say
from edgeloss.cli.options import FileOptions, PredKind
from edgeloss.io import VOID_INDEX, InputError, PredictionKind, Rgb, color_labels, read_classes
from edgeloss.loss import EdgeAwareLoss


class Reader(NamedTuple):
    """How to read files.

    Attributes:
        kind: what predictions hold; None infers it.
        num_classes: the number of classes, if it is known.
        names: of the classes, if they are known.
        ignore_index: the label of ignored pixels.
        colors: the label of each color of color-coded masks, if there is a palette.
        remap: the labels to replace.
        key: the name of the prediction in a file of several arrays.
        mask_key: the name of the labels in such a file.
        region: the class to take from files of a map per class.
    """

    kind: PredictionKind | None
    num_classes: int | None
    names: list[str] | None
    ignore_index: int
    colors: Mapping[Rgb, int] | None
    remap: tuple[Relabel, ...]
    key: str | None
    mask_key: str | None
    region: int | None

    @classmethod
    def from_options(cls, source: FileOptions) -> Reader:
        """Return what the options ask for.

        Raises:
            InputError: if --classes or --region is out of range, --remap is malformed, or the file of --classes or
                --palette cannot be used.
        """
        classes, ignore_index, kind = source.classes, source.ignore_index, source.pred_kind
        count: int | None = None
        names, void = None, None
        if classes is not None and classes.isascii() and classes.isdigit():
            count = int(classes)
        elif classes is not None:
            names, void = read_classes(classes)
            count = len(names)
        if count is not None and not 2 <= count < 2**15:
            raise InputError(f"--classes: expected 2 to {2**15 - 1} classes, but got {count}; one logit has two")
        region = None
        if source.region is not None:
            region, count = _parse_region(source.region, names, count), 2
            names = ["other", source.region if names is None else names[region]]
        if ignore_index is None:
            ignore_index = VOID_INDEX if void is None else void
        return cls(
            kind=None if kind is PredKind.auto else kind.value,
            num_classes=count,
            names=names,
            ignore_index=ignore_index,
            colors=None if source.palette is None else color_labels(source.palette),
            remap=_parse_remap(source.remap or ""),
            key=source.key,
            mask_key=source.mask_key,
            region=region,
        )

    def read(self, files: CaseFiles) -> Case:
        """Read the files of one case, with a note about non-finite values and about masks without a usable label."""
        options = self._asdict()
        del options["names"]
        case = read_case(files, **options)
        if case.non_finite:
            say(f"note: {files.prediction}: {case.non_finite} of {case.logits.numel()} values are not finite")
        ignored = self.ignore_index
        void = case.target == ignored
        if void.all():
            say(f"note: {files.mask}: all pixels have the label {ignored}, which is ignored: no loss, no score")
        elif case.logits.shape[1] <= 2 and void.any() and not (case.target[~void] != 0).any():
            say(f"note: {files.mask}: holds only 0 and {ignored}, which is ignored; for class 1, --remap {ignored}:1")
        return case


def find_cases(source: FileOptions, image: Path | None = None) -> list[CaseFiles]:
    """Return the files of the cases, as `match_files`."""
    return match_files(source.pred, source.mask, image, skip_missing=source.skip_missing)


def make_criterion(loss: Mapping[str, Any], ignore_index: int) -> EdgeAwareLoss:
    """Return the loss that the options ask for.

    Raises:
        InputError: if an option is out of range.
    """
    try:
        stateless: dict[str, Any] = {"edge_class_weight": None, "edge_focus": 0.0}  # a command has no steps
        return EdgeAwareLoss(ignore_index=ignore_index, upsample=True, **stateless, **loss)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error


def _parse_region(text: str, names: list[str] | None, count: int | None) -> int:
    """Return the number of a class that is given by its number or its name."""
    if names is not None and text in names:
        return names.index(text)
    if not (text.isascii() and text.isdigit()) or (count is not None and int(text) >= count):
        expected = "a number" if count is None else f"0 to {count - 1}"
        raise InputError(f"--region: expected {expected}, or a name of --classes, but got {text!r}")
    return int(text)


def _parse_remap(text: str) -> tuple[Relabel, ...]:
    rules = []
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(-?[0-9]{1,9})(?:-([0-9]{1,9}))?:(-?[0-9]{1,9})", part)
        if match is None:
            raise InputError(f"--remap: expected FROM:TO or FIRST-LAST:TO, separated by commas, but got {part!r}")
        first, last, to = match.groups()
        rules.append(Relabel(int(first), int(last or first), int(to)))
    return tuple(rules)
