"""How far long work is, on stderr."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")
SECONDS = 10.0  # between lines


def with_progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield items, and show how many are done: by a bar on a terminal, elsewhere by a line every 10 s."""
    if sys.stderr.isatty():  # not Console.is_terminal, which FORCE_COLOR makes true for files
        yield from track(items, what, console=Console(stderr=True, markup=False), transient=True)
        return
    shown = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - shown >= SECONDS:
            shown = time.monotonic()
            print(f"{what}: {done} of {len(items)}", file=sys.stderr, flush=True)
        yield item
