"""Text files whose lines begin with an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edgeloss.io.files import InputError, check_file


class IndexedLine(NamedTuple):
    """A line of a text file that begins with an index."""

    number: int
    key: int
    rest: str


def indexed_lines(path: str | Path, form: str, *, commas: bool = False) -> Iterator[IndexedLine]:
    """Yield the lines of a text file, each of which begins with an index; ``form`` describes them in messages."""
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
        yield IndexedLine(number, index, fields[1].strip())
