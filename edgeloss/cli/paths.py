"""Checks of the paths of a command line, before torch is imported: what is read exists, and what is written may be."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from edgeloss._checks.names import did_you_mean, no_such_path
from edgeloss.cli.messages import fail
from edgeloss.cli.outputs import inside, why_not

PALETTE_NAMES = ("ade20k", "camvid", "cityscapes", "voc")  # of edgeloss.io, which imports torch
# The suffixes of edgeloss.io of files that are read.
READ_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"),
    *(".npy", ".npz", ".pt", ".pth"),
)


def check_paths(options: Namespace) -> None:
    """Exit with an error if a path can't be used; set ``takes_folders``."""
    given = vars(options)
    names = ("pred", "first", "second", "mask", "image")
    sources = [given[name] for name in names if given.get(name) is not None]
    root = given["data"] and Path(given["data"][1])
    folders = [_is_folder(path) for path in sources]
    options.takes_folders = bool(root) or (bool(folders) and folders[0])
    options.shows_images = bool(given.get("image")) or options.run.endswith(("view", "compare"))
    for path, is_folder in zip(sources, folders, strict=True):
        if is_folder != options.takes_folders:
            first, kinds = root or sources[0], ("a folder", "a file")
            one, other = kinds if is_folder else kinds[::-1]
            fail(f"{path}: expected only folders or only files, but got {one}, while {first} is {other}")
    if root and not _is_folder(root):
        fail(f"{root}: expected the folder of a data set, but got a file")
    lists = [Path(given[name]) for name in ("classes", "palette") if isinstance(given.get(name), str)]
    for path in lists:
        if str(path) not in PALETTE_NAMES:
            _check_list(path, is_palette=str(path) == given.get("palette"))
    if (titles := given.get("names")) and titles[0] == titles[1]:
        fail(f"--names: expected two different names, but got {titles[0]} twice")
    if given.get("output") is not None:
        _check_output(options, [*sources, *([root] if root else []), *lists])


def _exists(path: Path) -> bool:
    """Return whether a path exists; exit if it is not known, as in a folder that may not be entered."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        fail(f"{path}: {getattr(error, 'strerror', None) or error}")
    return True


def _is_folder(path: Path) -> bool:
    if not _exists(path):
        fail(no_such_path(path))
    return path.is_dir()


def _check_list(path: Path, *, is_palette: bool) -> None:
    if _exists(path):
        return
    if path.suffix or len(path.parts) > 1:
        fail(no_such_path(path))
    if is_palette:
        names = ", ".join(PALETTE_NAMES)
        fail(f"--palette: expected a file, or one of {names}, but got {path}{did_you_mean(str(path), PALETTE_NAMES)}")
    fail(f"--classes: expected the number of classes, or a file of their names, but got {path}")


def _check_output(options: Namespace, sources: list[Path]) -> None:
    """Exit with an error if the path to write can't be used, or would replace what the command did not write."""
    given: dict[str, Any] = vars(options)
    output, suffixes, flag = given["output"], given.get("suffixes"), given["output_flag"]
    exists = _exists(output)
    if any(os.path.realpath(output) == os.path.realpath(path) for path in sources):
        fail(f"{output}: expected a path other than the inputs, but got one of them; choose another {flag}")
    fills_folder = given["takes_folders"] and "fills_folder" in given
    if exists and fills_folder != output.is_dir():
        kinds = ("folder", "file") if fills_folder else ("file", "folder")
        fail(f"{output}: expected a {kinds[0]} to write to, but got a {kinds[1]}")
    parent = next(path for path in output.absolute().parents if _exists(path))
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        fail(f"{output}: expected a path in a folder that can be written to, but got one in {parent}")
    suffix = output.suffix.lower()
    if suffixes and not fills_folder and suffix not in suffixes:
        first, *others = filter(None, suffixes)
        known = f"one of {', '.join([first, *others])}" if others else first
        fail(f"{output}: expected an output in {known}, but got {suffix or 'no suffix'}; choose another {flag}")
    if fills_folder and suffix in (*READ_SUFFIXES, *(suffixes or ())):
        form = " --format html" if suffix == ".html" else ""
        fail(f"{output}: expected a folder, but got a name that ends in {suffix}; pass {flag} {output.stem}{form}")
    is_read = fills_folder or suffix in READ_SUFFIXES
    if is_read and (folder := inside(output, [path for path in sources if path.is_dir()])):
        fail(f"{output}: expected a path outside of {folder}, whose files are read; choose another {flag}")
    if not fills_folder and (reason := why_not(output, options.command, flag=flag)):
        fail(reason)
