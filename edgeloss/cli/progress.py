"""Progress of long work on standard error: a line that changes on a terminal, a line every ten seconds elsewhere.

The time that is left is estimated from the items that are done. Before there is one, what is being computed is shown.
"""

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
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(items))
        for done, item in enumerate(items):

            def said(text: str, item: T = item, done: int = done) -> None:
                state = _state(name(item), text, time.monotonic() - start, done, len(items))
                progress.update(task, description=printable(state))

            said("")
            yield item, said
            progress.advance(task)


def _in_lines(items: Sequence[T], what: str, name: Callable[[T], str]) -> Iterator[tuple[T, Said]]:
    start = last = time.monotonic()
    for done, item in enumerate(items):

        def said(text: str, item: T = item, done: int = done) -> None:
            nonlocal last
            if (now := time.monotonic()) - last >= _SECONDS:
                last = now
                state = _state(name(item), text, now - start, done, len(items))
                say(f"{done} of {len(items)} {what} after {shown_time(now - start)}; {state}")

        said("")
        yield item, said


def _state(name: str, text: str, seconds: float, done: int, total: int) -> str:
    """Return the time that is left and the name of an item; of the first one what is being computed, too."""
    if done:
        return f"about {shown_time(seconds / done * (total - done))} left; {name}"
    return f"{name}: {text}" if text else name


def shown_time(seconds: float) -> str:
    """Return a time in seconds, or from a minute on in minutes.

    Example:
        >>> shown_time(41.3), shown_time(250)
        ('41 s', '4 min')
    """
    return f"{seconds:.0f} s" if seconds < 59.5 else f"{seconds / 60:.0f} min"
