"""Check, open and write files."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from edgeloss._checks.names import no_such_path

ARRAY_SUFFIXES = (".npy", ".npz", ".pt", ".pth")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", *ARRAY_SUFFIXES)  # lossless formats only
VOID_INDEX = 255


class InputError(ValueError):
    """A file or option cannot be used; the message is one line that names it."""


def wrong_suffix(path: Path, expected: str, suffixes: Sequence[str], hint: str = "") -> InputError:
    """Return the error about a file of another format than one that can hold what is expected."""
    return InputError(
        f"{path}: expected {expected} in one of {', '.join(suffixes)}, but got {path.suffix or 'no suffix'}{hint}"
    )


class OutputError(InputError):
    """A file cannot be written, and so maybe no other: the disk is full, or the folder may not be written to."""


def check_file(path: str | Path) -> None:
    """Check that a path to read, if it exists, is a regular file: reading a pipe or device may never end.

    Raises:
        InputError: if it is a folder, pipe, device or socket.

    Example:
        >>> check_file("classes.txt")
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # opening the file raises the same error
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise InputError(f"{path}: expected a regular file, but got {kind}")


@contextmanager
def reading(path: Path, failed: str) -> Iterator[None]:
    """Raise an InputError instead of any exception of the block, which reads the file by a library.

    Of a damaged file libraries raise exceptions of many types. ``failed`` is the message; ``{}`` in it is replaced by
    that of the exception.
    """
    check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged files, and metadata that is not used
            yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(no_such_path(path)) from error
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        # Pillow's messages end with the file object.
        raise InputError(f"{path}: {reason or failed.format(str(error).partition(' <')[0])}") from error


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` only once it is complete and on disk.

    Of a link, the file that it points to is replaced. Pipes, terminals and other character devices are written through,
    and so is the file of standard output, such as ``/dev/stdout``. A file that is replaced keeps its permissions.

    Args:
        path: the file to write or replace.

    Yields:
        A binary file. If the block raises, ``path`` remains unchanged.

    Raises:
        InputError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "table.txt"
        ...     with atomic_write(path) as file:
        ...         _ = file.write(b"done")
        ...     path.read_bytes()
        b'done'
    """
    path = Path(path)
    try:
        if (through := _open_through(path)) is not None:
            with through as file:
                yield file
            return
        # A rename is atomic within one file system only; and it would replace a link, not what the link points to.
        target = Path(os.path.realpath(path))
        _remove_leftovers(target.parent)
        temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    try:
        with temporary.open("xb") as file:  # a new file, with the permissions of new files
            if target.exists():
                shutil.copymode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


_TEMPORARY = ".edgeloss-"  # the names of files that are being written begin so
_OLD = 24 * 3600.0  # seconds


def _unwritable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else None
    return error if isinstance(error, InputError) else OutputError(f"{path}: can't be written ({reason or error})")


def _open_through(path: Path) -> IO[bytes] | None:
    """Open what must not be replaced: a pipe, a character device, and the file of standard output."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(about.st_mode) or stat.S_ISSOCK(about.st_mode) or stat.S_ISBLK(about.st_mode):
        raise InputError(f"{path}: expected a file to write to, but got something else, such as a folder")
    with suppress(OSError):  # a closed standard output
        if os.path.samestat(about, os.fstat(1)):
            return os.fdopen(os.dup(1), "wb")
    if stat.S_ISREG(about.st_mode):
        return None
    # Without O_NONBLOCK, opening a pipe without a reader waits for one, maybe forever.
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


@functools.lru_cache
def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder, once per process."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _OLD:
                path.unlink()
