"""The cases of a command: found by name, and worked on one after another."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from edgeloss.cli.messages import printable, say
from edgeloss.cli.outputs import why_not
from edgeloss.cli.progress import Said, with_steps
from edgeloss.io import (
    ARRAY_SUFFIXES,
    IMAGE_SUFFIXES,
    LABEL_SUFFIXES,
    Folder,
    InputError,
    OutputError,
    Split,
    files_by_stem,
    find_split,
    match_files,
    pair_files,
)

_SKIP_MISSING = "; pass --skip-missing to leave out incomplete cases"


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


class Work:
    """The cases of a command, one after another. Of a folder, a case that can't be read is skipped and reported.

    Args:
        options: of the command.
        split: the part of the data set that the options name, if they name one.

    Attributes:
        cases: the files of each.
        skipped: why a case was skipped, by its name.

    Raises:
        InputError: if a folder is empty, a name is missing from a folder, or no name is in all folders.
    """

    def __init__(self, options: Namespace, split: Split | None = None) -> None:
        """Find the files."""
        self.cases = find_cases(options, split)
        self.skipped: dict[str, str] = {}
        self._by_reason: dict[str, list[str]] = {}  # the names that were skipped, by the reason without details
        self._goes_on = options.takes_folders and not options.strict

    def __iter__(self) -> Iterator[tuple[CaseFiles, Said]]:
        """Yield cases, each with a function that takes what is being computed, and show the progress."""
        yield from with_steps(self.cases, "images", lambda files: files.name)

    def outputs(self, options: Namespace, suffix: str) -> dict[str, Path]:
        """Return the file to write for each case, by its name: the output, or one in its folder.

        Raises:
            InputError: if there is a file that the command did not write.
        """
        if options.output is None:
            return {}
        if not options.takes_folders:
            return {files.name: options.output for files in self.cases}
        paths = {files.name: options.output / f"{files.name}{suffix}" for files in self.cases}
        for path in paths.values():
            if reason := why_not(path, options.command, flag=options.output_flag):
                raise InputError(reason)
        return paths

    @contextmanager
    def skipping(self, files: CaseFiles) -> Iterator[None]:
        """Skip the rest of the block where a file of the case can't be used.

        Raises:
            InputError: instead, if there are no folders, or with --strict.
        """
        try:
            with errors_named(files):
                yield
        except InputError as error:
            if not self._goes_on or isinstance(error, OutputError):
                raise
            self.skipped[files.name] = str(error)
            same = self._by_reason.setdefault(_without_details(str(error), files), [])
            same.append(files.name)
            if len(same) == 1:
                say(f"skipped: {error}")

    def finish(self) -> int:
        """Report how many cases were skipped, and return the exit code."""
        if not self.skipped:
            return 0
        for first, *others in self._by_reason.values():
            if others:
                say(f"skipped: {len(others)} more for the same reason as {printable(first)}")
        is_all = len(self.skipped) == len(self.cases)
        names = "" if is_all else ": " + ", ".join(map(printable, self.skipped))
        say(f"error: {len(self.skipped)} of {len(self.cases)} images were skipped{names}")
        return 2


def _without_details(reason: str, files: CaseFiles) -> str:
    """Return why a case was skipped, without its paths and numbers: those of cases with one reason differ."""
    for path in filter(None, files[1:]):
        reason = reason.replace(str(path), "")
    return re.sub("[0-9]+", "", reason)


@contextmanager
def errors_named(files: CaseFiles) -> Iterator[None]:
    """Turn errors of the library about the contents of files into an InputError that names them."""
    try:
        yield
    except InputError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _out_of_memory(files) from error
    except (ArithmeticError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The allocator of CPUs has no exception of its own.
        if isinstance(error, RuntimeError) and "alloc" in str(error):
            raise _out_of_memory(files) from error
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(f"{files.prediction}: {reason}") from error


def _out_of_memory(files: CaseFiles) -> InputError:
    named = " or ".join(str(path) for path in (files.mask, files.prediction, files.image) if path is not None)
    return InputError(f"{named}: expected a case that fits into memory, but got a larger one; crop or shrink it")


def read_split(options: Namespace) -> Split | None:
    """Return the part of a data set that --data names, None without it."""
    if options.data is None:
        return None
    layout, root, part = options.data
    return find_split(layout, root, part, classes=options.classes if isinstance(options.classes, str) else None)


def find_cases(options: Namespace, split: Split | None = None) -> list[CaseFiles]:
    """Match files, or the files of folders by name; hidden files and other suffixes are skipped.

    Returns:
        The cases, sorted by name, or in the order of a data set.

    Raises:
        InputError: if a folder is empty, a name is missing from a folder, or no name is in all folders.
    """
    fields = {"mask": "mask", "pred": "prediction", "first": "prediction", "second": "second", "image": "image"}
    paths = {field: path for name, field in fields.items() if (path := getattr(options, name, None)) is not None}
    if not options.takes_folders:
        return [CaseFiles(paths["prediction"].stem, **paths)]
    ends = {"mask": options.mask_suffix, "image": options.image_suffix}
    if split is not None:
        return _of_split(split, paths, options)
    pictures = (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES)
    folders = {
        field: Folder(path, pictures if field == "image" else LABEL_SUFFIXES, ends.get(field, options.pred_suffix))
        for field, path in paths.items()
    }
    found = pair_files(folders, skip_missing=options.skip_missing, advice=_SKIP_MISSING)
    return [CaseFiles(name, **files) for name, files in found.items()]


def _of_split(split: Split, paths: dict[str, Path], options: Namespace) -> list[CaseFiles]:
    """Find the predictions for the images of a data set."""
    names = [pair.name for pair in split.pairs]
    files: dict[str, dict[str, Path]] = {
        "mask": {pair.name: pair.mask for pair in split.pairs},
        "image": {pair.name: pair.image for pair in split.pairs},
    }
    for field, path in paths.items():
        listed = files_by_stem(path, LABEL_SUFFIXES, options.pred_suffix)
        # Networks store their predictions under the name of the pair, of the image or of the mask.
        ends = ["", *(Path(end).stem for end in split.ends if end)]
        renamed = [{name.removesuffix(end): file for name, file in listed.items()} for end in ends]
        files[field] = max(renamed, key=lambda found: len(found.keys() & set(names)))
    found = match_files(files, paths, names, skip_missing=options.skip_missing, advice=_SKIP_MISSING)
    if not options.shows_images:
        found = {
            name: {field: path for field, path in case.items() if field != "image"} for name, case in found.items()
        }
    return [CaseFiles(name, **case) for name, case in found.items()]
