"""Compile the CPU kernels by clang, for x86-64 and for aarch64: without a warning, and without running them.

Usage, from the repository's root: python tools/check_compilers.py

zig, from a package index, is a clang with the headers of both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import toolchain

MACHINES = ("x86_64", "aarch64")
# Loops that clang leaves as they are cost time, not correctness.
FLAGS = ["-O1", "-Werror", "-Wno-pass-failed"]


def compile_for(machine: str, source: Path, torch: toolchain.Torch) -> str:
    """Compile a source and return what the compiler says."""
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", f"{machine}-linux-gnu"]
    with tempfile.TemporaryDirectory() as directory:  # zig does not write to /dev/null
        command = [*toolchain.host_command(zig, torch), *FLAGS, "-c", str(source), "-o", f"{directory}/object.o"]
        done = subprocess.run(command, capture_output=True, text=True)
    print(f"    {machine} {source}", flush=True)
    return done.stderr if done.returncode else ""


def main() -> None:
    """Compile everything, and end with the first errors."""
    torch = toolchain.find_torch()
    if torch is None:
        raise SystemExit("there is no torch whose headers the sources could be compiled with")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_for, *job, torch) for job in product(MACHINES, toolchain.HOST_SOURCES)]
        errors = [job.result() for job in jobs if job.result()]
    if errors:
        raise SystemExit("\n".join(errors))


if __name__ == "__main__":
    main()
