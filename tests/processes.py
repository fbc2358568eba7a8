"""Whether processes that a test has started still run."""

from __future__ import annotations

import time
from pathlib import Path


def is_running(process: int) -> bool:
    """Return whether a process exists and has not ended; one whose parent has not asked for its status has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(process: int, seconds: float = 30) -> None:
    """Wait until a process ends.

    Raises:
        AssertionError: if it goes on for longer.
    """
    end = time.monotonic() + seconds
    while is_running(process):
        assert time.monotonic() < end, f"process {process} goes on"
        time.sleep(0.05)
