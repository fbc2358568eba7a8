"""Notes, errors and progress on stderr, and output files."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloss.cli.cases import CaseFiles

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


def with_progress(cases: Sequence[CaseFiles]) -> Iterator[tuple[CaseFiles, Callable[[str], None]]]:
    """Yield cases, each with a function that takes what is being computed.

    If stderr is a terminal, it shows that, the name of the case, how many are done and the time that passes.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(cases))
        for files in cases:

            def said(text: str, name: str = files.name) -> None:
                progress.update(task, description=printable(f"{name}: {text}"))

            yield files, said
            progress.advance(task)
