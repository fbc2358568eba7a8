"""Notes, errors and progress on stderr, and output files."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
PICTURE_SUFFIXES = (".png", ".pdf", ".svg")  # of Matplotlib's formats


def say(text: str) -> None:
    """Print one line on stderr."""
    print(printable(f"edgeloss: {text}"), file=sys.stderr)


def printable(text: str) -> str:
    """Return the text as one line, with all other characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def write(path: Path, content: bytes) -> None:
    """Write an output file, whose folder is created."""
    from edgeloss.io import atomic_write

    with suppress(OSError):  # opening the file raises the same error
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(content)


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Check that an output file has one of the suffixes, which name its format.

    Raises:
        InputError: if it has none of them.
    """
    from edgeloss.io import InputError

    if path.suffix.lower() not in suffixes:
        got = path.suffix or "no suffix"
        raise InputError(f"{path}: expected an output in one of {', '.join(suffixes)}, but got {got}")


def say_wrote(path: Path, size: int, others: int = 0) -> None:
    """Print what was written: a file, and how many others with it, of ``size`` bytes together."""
    more = f" and {others} page{'' if others == 1 else 's'}" if others else ""
    unit, divisor = ("MB", 1e6) if size >= 99_950 else ("kB", 1e3)
    say(f"wrote {path}{more} ({size / divisor:.1f} {unit})")


def open_page(path: Path) -> None:
    """Open a page in the browser."""
    if not webbrowser.open(path.resolve().as_uri()):
        say(f"note: no browser found; open {path} yourself")


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn errors of the library about the contents of a file into an InputError that names the file."""
    from edgeloss.io import InputError

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


@contextmanager
def with_clock(name: str) -> Iterator[Callable[[str], None]]:
    """Show a name, what is being computed and the time that passes, if stderr is a terminal: for one long item.

    Yields:
        A function that takes what is being computed.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(printable(name), total=None)
        yield lambda text: progress.update(task, description=printable(f"{name}: {text}"))
