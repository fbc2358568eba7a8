"""Stop a training between two steps when a signal asks for it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from segkit.distributed import sum_over_ranks


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A signal asked the run to stop."""


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], None]]:
    """Turn Ctrl-C and SIGTERM into `Interrupted`.

    It is raised only where the loop calls the yielded function. So no optimizer step is cut in half, and all processes
    stop after the same step, whichever got the signal. A second signal reaches the previous handler, and so ends a run
    that hangs.
    """
    received: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, previous[signal.Signals(number)])

    def check() -> None:
        if sum_over_ranks([len(received)])[0]:
            raise Interrupted

    for number in previous:
        signal.signal(number, record)
    try:
        yield check
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
