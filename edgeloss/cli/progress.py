"""Progress of long work on standard error: a line that changes on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from edgeloss.cli.messages import printable, say

T = TypeVar("T")
Said = Callable[[str], None]  # takes what is being computed
_SECONDS = 10.0  # between lines where there is no terminal


def with_progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield items, and show how many of them are done.

    Args:
        items: to work on.
        what: the plural of what they are, such as "images".
    """
    for item, _ in with_steps(items, what):
        yield item


def with_steps(items: Sequence[T], what: str, name: Callable[[T], str] = str) -> Iterator[tuple[T, Said]]:
    """Yield items, each with a function that takes what is being computed, and show that and how many are done.

    Args:
        items: to work on.
        what: the plural of what they are, such as "images".
        name: returns the name of an item.
    """
    # Not what rich takes for a terminal: continuous integration sets FORCE_COLOR for a log, too.
    yield from _on_terminal(items, name) if sys.stderr.isatty() else _in_lines(items, what, name)


def _on_terminal(items: Sequence[T], name: Callable[[T], str]) -> Iterator[tuple[T, Said]]:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(items))
        for item in items:

            def said(text: str, item: T = item) -> None:
                progress.update(task, description=printable(f"{name(item)}: {text}"))

            yield item, said
            progress.advance(task)


def _in_lines(items: Sequence[T], what: str, name: Callable[[T], str]) -> Iterator[tuple[T, Said]]:
    start = last = time.monotonic()
    for done, item in enumerate(items):

        def said(text: str, item: T = item, done: int = done) -> None:
            nonlocal last
            if (now := time.monotonic()) - last >= _SECONDS:
                last = now
                say(f"{done} of {len(items)} {what} after {now - start:.0f} s; {name(item)}{text and f': {text}'}")

        said("")
        yield item, said
