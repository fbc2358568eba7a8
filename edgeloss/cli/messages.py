"""Output: JSON, and notes and errors on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn


def say(text: str) -> None:
    """Print one line on stderr."""
    with suppress(OSError):  # standard error is closed, or its disk is full
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

    return json.dumps(strict(content), indent=1, allow_nan=False)


def rounded(value: float) -> float:
    """Return a number to six digits: those beyond are noise of float32."""
    return float(f"{value:.6g}")
