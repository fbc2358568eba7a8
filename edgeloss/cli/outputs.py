"""Writing of outputs: which files may be replaced, and a mark by which a command knows its own."""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from edgeloss.cli.messages import say

_PNG = b"\x89PNG\r\n\x1a\n"
_HEADER_END = 33  # of a PNG: its signature and its first chunk
_ENDS = 4096  # bytes at both ends of a file that a mark is looked for in


def why_not(path: Path, command: str, *, flag: str = "--output") -> str:
    """Return why a command may not write a file, nothing if it may: what exists must be its own earlier output.

    Args:
        path: to write.
        command: its name.
        flag: the option that names the output.
    """
    try:
        about = path.stat()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    if path.is_dir():
        return f"{path}: expected a file to write to, but got a folder"
    # Pipes, devices and the file of standard output are written through.
    if not path.is_file() or not about.st_size or _is_standard_output(about):
        return ""
    try:
        with path.open("rb") as file:
            ends = file.read(_ENDS)
            file.seek(max(0, about.st_size - _ENDS))
            ends += file.read()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if _mark(command) in ends or (command == "metrics" and _is_table(ends)):
        return ""
    return (
        f"{path}: expected a new file or an output of edgeloss {command}, but got another file; delete it, or choose"
        f" another {flag}"
    )


def inside(path: Path, folders: Collection[Path]) -> Path | None:
    """Return the folder that a path lies in, or is; None if there is none."""
    real = Path(os.path.realpath(path))
    return next((folder for folder in folders if real.is_relative_to(os.path.realpath(folder))), None)


def write(path: Path, content: bytes, command: str = "") -> None:
    """Write an output file, whose folder is created, with the mark of the command that its format allows."""
    from edgeloss.io import atomic_write

    with suppress(OSError):  # opening the file raises the same error
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(_marked(content, path.suffix.lower(), command))


def say_wrote(path: Path, others: Sequence[Path] = ()) -> None:
    """Print what was written: a file, how many others with it, and the size of all."""
    if not path.is_file():
        return
    more = f" and {len(others)} page{'' if len(others) == 1 else 's'}" if others else ""
    size = sum(file.stat().st_size for file in (path, *others))
    unit, divisor = ("MB", 1e6) if size >= 99_950 else ("kB", 1e3)
    say(f"wrote {path}{more} ({size / divisor:.1f} {unit})")


def _mark(command: str) -> bytes:
    return f"edgeloss {command}".encode()


def _marked(content: bytes, suffix: str, command: str) -> bytes:
    """Return the content of a file with a mark: in a PNG as text, in pages and drawings as a last comment."""
    if suffix == ".png" and content.startswith(_PNG):
        chunk = b"tEXt" + b"Source\0" + _mark(command)
        chunk = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        return content[:_HEADER_END] + chunk + content[_HEADER_END:]
    if suffix == ".pdf":
        return content.rstrip(b"\n") + b"\n% " + _mark(command) + b"\n"
    if suffix in (".html", ".svg"):
        return content.rstrip(b"\n") + b"\n<!-- " + _mark(command) + b" -->\n"
    return content


def _is_table(content: bytes) -> bool:
    """Return whether a file has scores in one of the formats of the command ``metrics``."""
    begin = re.match(rb"\s*(class|\{|[0-9]+ (image|volume)s?; scores in %)", content)
    return bool(begin) and b"boundary" in content and b"iou" in content.lower()


def _is_standard_output(about: os.stat_result) -> bool:
    with suppress(OSError):  # it may be closed
        return os.path.samestat(about, os.fstat(1))
    return False
