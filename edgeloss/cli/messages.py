"""Notes, errors and progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from edgeloss.io import InputError

Item = TypeVar("Item")


def say(text: str) -> None:
    """Print one line on stderr."""
    print(printable(f"edgeloss: {text}"), file=sys.stderr)


def printable(text: str) -> str:
    """Return the text as one line, with all other characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn errors of the library about the contents of a file into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: {error}") from error


def with_progress(items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items, with a progress bar if there are several and stderr is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, "", console=console, transient=True, disable=len(items) < 2 or not console.is_terminal)
