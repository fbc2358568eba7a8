"""Stop a training between two steps when a signal asks for it."""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from segkit.distributed import sum_over_ranks

_ONE_REQUEST = 1.0  # seconds: `timeout` and process managers send a signal twice, to a process and to its group
Handler = Any  # what signal.signal takes and returns
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # not loaded in a forked process


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A signal asked the run to stop.

    Args:
        number: the signal, or that of another process.
    """

    def __init__(self, number: int) -> None:
        """Store the signal."""
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number  # as shells report it: 130 after Ctrl-C, 143 after SIGTERM


def defer_signal(number: int, later: Handler, record: Callable[[int], object] = lambda number: None) -> None:
    """Record a signal instead of obeying it; another one, a second or more later, reaches the handler `later`."""
    first: list[float] = []

    def handle(received: int, frame: object) -> None:
        now = time.monotonic()
        if not first:
            first.append(now)
            record(received)
        elif now - first[0] >= _ONE_REQUEST:
            signal.signal(received, later)
            signal.raise_signal(received)

    signal.signal(number, handle)


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], None]]:
    """Turn Ctrl-C and SIGTERM into `Interrupted`.

    It is raised only where the loop calls the yielded function. So no optimizer step is cut in half, and all processes
    stop after the same step, whichever got the signal. A second signal, a second or more later, reaches the previous
    handler, and so ends a run that hangs.
    """
    received: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def check() -> None:
        if sum_over_ranks([len(received)])[0]:
            raise Interrupted(received[0] if received else signal.SIGTERM)

    for number, handler in previous.items():
        defer_signal(number, handler, received.append)
    try:
        yield check
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def without_sigterm() -> Iterator[None]:
    """Hold SIGTERM back, also from the processes that are started meanwhile until they unblock it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def let_main_process_stop() -> None:
    """In a worker, leave Ctrl-C and SIGTERM, which a terminal or scheduler also sends to workers, to the main process.

    A worker that ended first would be an error there, in the middle of a step. A worker that hangs can be terminated
    by a second SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    defer_signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_with_parent() -> None:
    """In a new process, receive SIGTERM as soon as the parent ends, even if that is killed; on Linux only."""
    if _LIBC is not None:
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
