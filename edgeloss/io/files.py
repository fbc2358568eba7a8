"""Check, open and write files."""

from __future__ import annotations

import os
import stat
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ARRAY_SUFFIXES = (".npy", ".npz", ".pt", ".pth")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", *ARRAY_SUFFIXES)  # lossless formats only
VOID_INDEX = 255


class InputError(ValueError):
    """A file or option cannot be used; the message is one line that names it."""


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
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        # Pillow's messages end with the file object.
        raise InputError(f"{path}: {reason or failed.format(str(error).partition(' <')[0])}") from error


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` only once it is complete and on disk.

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
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected a file to write to, but got something else, such as a folder")
    # In the same folder, since a rename is atomic within one file system only; with a short name, however long that of
    # the file; and always the same name, so that the next write replaces what a killed process left behind.
    temporary = path.with_name(f".edgeloss-{zlib.crc32(path.name.encode(errors='surrogateescape')):08x}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
