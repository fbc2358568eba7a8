"""What `make setup` and the other tools start ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SLEEPER = "import os, time; print('edgeloss:', os.getpid(), flush=True); time.sleep(60)"
PARENT = f"import sys, progress; progress.run([sys.executable, '-c', {SLEEPER!r}])"


def is_running(process: int) -> bool:
    """Return whether a process exists and has not ended; one whose parent has not asked for its status has."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_a_command_ends_with_a_killed_parent() -> None:
    tools = str(Path(__file__).parents[2] / "tools")
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": tools}) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=30)
    end = time.monotonic() + 20
    while is_running(child):
        assert time.monotonic() < end, f"process {child} goes on without its parent"
        time.sleep(0.05)
