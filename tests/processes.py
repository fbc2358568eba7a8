"""Whether processes that a test has started still run."""

from __future__ import annotations

import time
from pathlib import Path


def is_running(process: int) -> bool:
    """Return whether a process exists and has not ended; one whose parent has not asked for its status has."""
    state, _ = _state_and_parent(process)
    return state not in ("", "Z")


def wait_for_end(process: int, seconds: float = 30) -> None:
    """Wait until a process ends.

    Raises:
        AssertionError: if it goes on for longer.
    """
    end = time.monotonic() + seconds
    while is_running(process):
        assert time.monotonic() < end, f"process {process} goes on"
        time.sleep(0.05)


def children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    running = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [process for process in running if _state_and_parent(process)[1] == parent]


def _state_and_parent(process: int) -> tuple[str, int]:
    """Return what Linux says of a process; of one that does not exist, an empty state."""
    try:
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return state, int(parent)
