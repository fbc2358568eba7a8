"""What `make setup` and the other tools start: where it looks for packages, and that it ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import is_running, wait_for_end

import progress

SLEEPER = "import os, time; print('edgeloss:', os.getpid(), flush=True); time.sleep(60)"
PARENT = f"import sys, progress; progress.run([sys.executable, '-c', {SLEEPER!r}])"


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
    wait_for_end(child)


def test_uv_looks_where_pip_is_set_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one.example/simple https://two.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/some/wheels /other/wheels")
    monkeypatch.setenv("PIP_INDEX_URL", "https://first.example/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://chosen.example/simple")
    settings = progress.settings_for_uv()
    assert settings["UV_INDEX"] == "https://one.example/simple https://two.example/simple"
    assert settings["UV_FIND_LINKS"] == "/some/wheels,/other/wheels"
    assert settings["UV_DEFAULT_INDEX"] == "https://chosen.example/simple"
