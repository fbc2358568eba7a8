"""Compile the CUDA kernels as the build does, print a table of them, and fail on warnings and register spills.

Usage, from the repository's root: python tools/check_cuda.py [--require]

It needs nvcc, not a device. A spilled register goes through memory at every use: a kernel that spills is too large.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from toolchain import CUDA_SOURCES, Architectures, Nvcc, Torch, Unbuildable, call, find_nvcc, find_torch

ARCHITECTURES = (80, 90)
STRICT = ["-Xptxas=-v", "-Werror=all-warnings", "-Xcompiler=-Werror"]


@dataclass
class Kernel:
    """Resources of a kernel, or of a device function that the compiler did not inline."""

    name: str
    architecture: str
    registers: int = 0
    stack: int = 0  # bytes per thread
    spills: int = 0  # bytes of stores and loads
    shared: int = 0  # bytes per block, without what a launch adds


def parse(report: str) -> tuple[list[Kernel], list[str]]:
    """Parse the output of `ptxas -v`: return the kernels, and the warnings."""
    kernels: dict[str, Kernel] = {}
    warnings = []
    architecture, entry, function = "", "", ""
    for line in report.splitlines():
        if re.search(r"\bwarning\b", line, re.IGNORECASE):
            warnings.append(line.strip())
        elif found := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            entry, architecture = found.groups()
            kernels[entry] = Kernel(entry, architecture)
        elif found := re.search(r"Function properties for (\S+)", line):
            function = found[1]
            kernels.setdefault(function, Kernel(function, architecture))
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, stores, loads = map(int, found.groups())
            kernels[function].stack, kernels[function].spills = stack, stores + loads
        elif found := re.search(r"Used (\d+) registers", line):
            kernels[entry].registers = int(found[1])
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[entry].shared = int(shared[1]) if shared else 0
    return list(kernels.values()), warnings


def compile_for(source: Path, architecture: int, nvcc: Nvcc, torch: Torch) -> tuple[list[Kernel], list[str]]:
    """Compile a source for one architecture, so that the reports do not mix."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [*nvcc.command(torch, Architectures([architecture], [])), *STRICT]
        return parse(call([*command, "-c", str(source), "-o", f"{scratch}/kernels.o"], show=False))


def demangled(names: Sequence[str]) -> list[str]:
    """Demangle names with c++filt if it is installed, and drop the arguments."""
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if tool is None or not names:
        return list(names)
    done = subprocess.run([tool, *names], capture_output=True, text=True, check=True)
    return [_without_arguments(name) for name in done.stdout.splitlines()]


def table(rows: Iterable[Sequence[object]]) -> str:
    """Format rows as text, the first column left-aligned, the others right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    form = "  ".join([f"{{:<{first}}}", *(f"{{:>{width}}}" for width in others)])
    return "\n".join(form.format(*row) for row in cells)


def main() -> None:
    """Check all CUDA sources."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--require", action="store_true", help="fail where there is no nvcc")
    required = parser.parse_args().require
    if not CUDA_SOURCES:
        raise SystemExit("check_cuda: there is no .cu source under csrc; run it from the repository's root")
    try:
        nvcc = find_nvcc()
    except Unbuildable as reason:
        if required:
            raise SystemExit(f"check_cuda: {reason}") from None
        print(f"check_cuda: skipped, the CUDA kernels are not checked: {reason}")
        return
    torch = find_torch()
    if torch is None:
        raise SystemExit("check_cuda: no torch from 2.10 on is installed")
    print(f"check_cuda: compiling {', '.join(map(str, CUDA_SOURCES))} with nvcc {nvcc.version[0]}.{nvcc.version[1]}")
    jobs = [(source, architecture) for source in CUDA_SOURCES for architecture in ARCHITECTURES]
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            reports = list(pool.map(lambda job: compile_for(*job, nvcc, torch), jobs))
    except Unbuildable as reason:
        raise SystemExit(f"check_cuda: {reason}") from None
    kernels = [kernel for found, _ in reports for kernel in found]
    names = demangled([kernel.name for kernel in kernels])
    rows = [
        (name, k.architecture, k.registers or "-", k.stack, k.spills, k.shared)
        for name, k in sorted(zip(names, kernels, strict=True), key=lambda pair: (pair[0], pair[1].architecture))
    ]
    print(table([("kernel", "arch", "registers", "stack", "spills", "shared"), *rows]))
    problems = [line for _, warnings in reports for line in warnings]
    problems += [f"{row[0]} spills {row[4]} bytes on {row[1]}" for row in rows if row[4]]
    if not kernels:
        problems.append("the compiler reported no kernel")
    if problems:
        raise SystemExit("\n".join(["check_cuda: failed", *problems]))
    print(f"check_cuda: {len(rows)} kernels, no warning, no spill")


def _without_arguments(name: str) -> str:
    """Drop return type, anonymous namespaces and arguments from the name of a function."""
    name = name.replace("(anonymous namespace)::", "")
    depth = 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            name = name[:i]
            break
    return name.removeprefix("void ").replace("edgeloss::", "")


if __name__ == "__main__":
    main()
