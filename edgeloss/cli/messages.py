"""Output: JSON, files, and notes and errors on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn


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
