"""Compile the kernels by other compilers, or for other devices, than the build: without a warning, and without running.

Usage, from the repository's root: python tools/check_compilers.py {clang,nvcc}

clang: the CPU kernels, for x86-64 and for aarch64, by zig, which is a clang with the headers of both.
nvcc: the CUDA kernels, for sm_80 and sm_90. A spilled register goes through memory at every use, so that is a warning.
It needs nvcc, not a device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from toolchain import CUDA_SOURCES, HOST_SOURCES, Architectures, Torch, Unbuildable, find_nvcc, find_torch, host_command

MACHINES, ARCHITECTURES = ("x86_64", "aarch64"), (80, 90)
# Loops that clang leaves as they are cost time, not correctness.
CLANG = ["-O1", "-Werror", "-Wno-pass-failed"]
NVCC = ["-Xptxas=-warn-spills,-Werror", "-Werror=all-warnings", "-Xcompiler=-Werror"]


def commands(compiler: str, torch: Torch) -> dict[str, list[str]]:
    """Return a command for each source and target, by their names."""
    if compiler == "nvcc":
        nvcc = find_nvcc()
        return {
            f"sm_{architecture} {source}": [
                *nvcc.command(torch, Architectures([architecture], [])),
                *NVCC,
                "-c",
                str(source),
            ]
            for architecture, source in product(ARCHITECTURES, CUDA_SOURCES)
        }
    zig = [sys.executable, "-m", "ziglang", "c++", "-target"]
    return {
        f"{machine} {source}": [*host_command([*zig, f"{machine}-linux-gnu"], torch), *CLANG, "-c", str(source)]
        for machine, source in product(MACHINES, HOST_SOURCES)
    }


def compile_one(name: str, command: list[str]) -> str:
    """Compile a source and return what the compiler says if it fails."""
    with tempfile.TemporaryDirectory() as directory:  # zig does not write to /dev/null
        done = subprocess.run([*command, "-o", f"{directory}/object.o"], capture_output=True, text=True)
    print(f"    {name}", flush=True)
    return f"{done.stdout}{done.stderr}" if done.returncode else ""


def main() -> None:
    """Compile everything, and end with the errors."""
    (compiler,) = sys.argv[1:]
    torch = find_torch()
    if torch is None:
        raise SystemExit("there is no torch whose headers the sources could be compiled with")
    try:
        jobs = commands(compiler, torch)
    except Unbuildable as reason:
        print(f"==> skipped, the CUDA kernels are not checked: {reason}")
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if errors := "".join(pool.map(compile_one, jobs, jobs.values())):
            raise SystemExit(errors)


if __name__ == "__main__":
    main()
