"""From text files with one class per line to class names, and what other files of indices share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edgeloss.io.files import VOID_INDEX, InputError, check_file


class Classes(NamedTuple):
    """A class list.

    Attributes:
        names: of classes 0..C-1, in order.
        ignore_index: the label of ignored pixels; None if the list does not name one.
    """

    names: list[str]
    ignore_index: int | None


def read_classes(path: str | Path) -> Classes:
    r"""Read class names from a text file with one "<index> <name>" per line.

    Blank lines are skipped. A line with index 255 or the name "void" is the ignore index instead of a class.

    Args:
        path: the file, in UTF-8.

    Returns:
        The names and the ignore index.

    Raises:
        InputError: if the file cannot be read, a line is malformed or repeats an index or a name, or the indices are
            not 0..C-1. The message names file and line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "classes.txt"
        ...     _ = path.write_text("0 road\n1 car\n255 void\n")
        ...     read_classes(path)
        Classes(names=['road', 'car'], ignore_index=255)
    """
    names: dict[int, str] = {}
    line_numbers: dict[int, int] = {}
    ignore_index: int | None = None
    for number, index, name in indexed_lines(path, "<index> <name>"):
        where = f"{path}, line {number}"
        line_numbers[index] = number
        if index == VOID_INDEX or name.lower() == "void":
            if ignore_index is not None:
                raise InputError(f"{where}: second void line, the first is line {line_numbers[ignore_index]}")
            ignore_index = index
        elif name in names.values():
            raise InputError(f"{where}: name {name!r} occurs twice")
        else:
            names[index] = name
    if not names:
        raise InputError(f"{path}: expected at least one class, but got none")
    for index in names:
        if index >= len(names):
            raise InputError(
                f"{path}, line {line_numbers[index]}: expected the indices of {len(names)} classes to be 0 to"
                f" {len(names) - 1} without a gap, but got {index}"
            )
    return Classes([names[index] for index in range(len(names))], ignore_index)


def indexed_lines(path: str | Path, form: str, *, commas: bool = False) -> Iterator[tuple[int, int, str]]:
    """Yield number, index and rest of each line of a text file; ``form`` describes the lines in messages."""
    check_file(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected a text file in UTF-8, but got other bytes ({error})") from error
    line_numbers: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = (line.replace(",", " ") if commas else line).split(maxsplit=1)
        if not fields:
            continue
        if len(fields) < 2 or not (fields[0].isascii() and fields[0].isdigit()):
            raise InputError(f'{path}, line {number}: expected "{form}", but got {line!r}')
        index = int(fields[0])
        if index in line_numbers:
            raise InputError(f"{path}, line {number}: index {index} occurs twice, first in line {line_numbers[index]}")
        line_numbers[index] = number
        yield number, index, fields[1].strip()
