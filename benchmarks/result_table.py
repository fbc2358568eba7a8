"""Tables of results: files with one JSON object per line."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgeloss.io import atomic_write, check_file

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a table; a file that does not exist has none."""
    check_file(path)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_rows(path: Path, rows: Iterable[Row], key: Callable[[Row], str]) -> None:
    """Add rows to a table; each replaces a row with the same key.

    The table stays sorted by key. Several processes may add to the same table at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        table = {key(row): row for row in (*read_rows(path), *rows)}
        with atomic_write(path) as file:
            file.writelines((json.dumps(table[name]) + "\n").encode() for name in sorted(table))


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table in Markdown; heads that end in a colon have their columns aligned to the right."""
    heads = [*heads]
    lines = ("--:" if head.endswith(":") else "---" for head in heads)
    cells = [[head.removesuffix(":") for head in heads], *rows]
    first, *others = (f"| {' | '.join(row)} |" for row in cells)
    return [first, f"|{'|'.join(lines)}|", *others]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process holds the lock of a folder, and hold it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # this releases the lock
