"""Output: JSON, files, and notes, errors and progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from edgeloss.cli.cases import CaseFiles

Said = Callable[[str], None]


def say(text: str) -> None:
    """Print one line on stderr."""
    print(printable(f"edgeloss: {text}"), file=sys.stderr)


def fail(text: str) -> NoReturn:
    """Print an error of the user on stderr, and exit."""
    say(f"error: {text}")
    sys.exit(2)


def printable(text: str) -> str:
    """Return the text as one line, with all other characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def to_json(content: Any) -> str:  # noqa: ANN401
    """Return strict JSON: numbers with six digits, and null for those that are not finite."""

    def strict(part: Any) -> Any:  # noqa: ANN401
        if isinstance(part, Mapping):
            return {key: strict(value) for key, value in part.items()}
        if isinstance(part, (list, tuple)):
            return [strict(value) for value in part]
        if isinstance(part, float):
            return rounded(part) if math.isfinite(part) else None
        return part

    return json.dumps(strict(content), indent=1, ensure_ascii=False, allow_nan=False)


def rounded(value: float) -> float:
    """Return a number to six digits: those beyond are noise of float32."""
    return float(f"{value:.6g}")


def write(path: Path, content: bytes) -> None:
    """Write an output file, whose folder is created."""
    from edgeloss.io import atomic_write

    with suppress(OSError):  # opening the file raises the same error
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(content)


def say_wrote(path: Path, others: Sequence[Path] = ()) -> None:
    """Print what was written: a file, how many others with it, and the size of all."""
    more = f" and {len(others)} page{'' if len(others) == 1 else 's'}" if others else ""
    size = sum(file.stat().st_size for file in (path, *others))
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


def with_progress(cases: Sequence[CaseFiles]) -> Iterator[tuple[CaseFiles, Said]]:
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
