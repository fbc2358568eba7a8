"""The compiled library `edgeloss._C`: all kernels in one file, for every Python from 3.10 and torch from 2.10 on.

pyproject.toml holds everything else. The library uses only the stable part of torch's C++ interface and of Python's
C interface, so the versions it is built with do not matter to it later.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command import build_ext

from build_backend import Torch, choice, find_compiler, find_torch

SOURCES = sorted(Path("csrc").rglob("*.cpp"))
HEADERS = sorted(Path("csrc").rglob("*.h"))
# No loop vectorises around calls that might set errno or trap; neither changes a result, as fast-math would.
VECTORIZE = ["-fno-math-errno", "-fno-trapping-math"]
FLAGS = ["-std=c++17", "-O3", *VECTORIZE, "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
DEFINES = ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DPy_LIMITED_API=0x030a0000"]


class Unbuildable(Exception):  # noqa: N818 - no error: the package then works without the library
    """Why the library can't be built here."""


class BuildLibrary(build_ext.build_ext):
    """Compiles the library, or, where that can't be done, leaves a note with the reason in its place."""

    def run(self) -> None:
        """Build into the wheel, or, for an editable install, into the source tree."""
        library = Path(self.get_ext_fullpath(self.extensions[0].name))
        note = library.with_name("_build.txt")
        # What an earlier build left here would otherwise outlive a change of the reason.
        library.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        wheel = self.get_finalized_command("bdist_wheel")
        try:
            version = build(library)
        except Unbuildable as reason:
            if choice() not in (None, "none"):
                raise SystemExit(f"edgeloss: EDGELOSS_BUILD={choice()}, but {reason}") from None
            note.write_text(f"{reason}\n")
            self.extensions = []
            self.distribution.ext_modules = []
            wheel.root_is_pure = True
            summary = f"pure Python, without compiled kernels: {reason}"
        else:
            wheel.py_limited_api = "cp310"
            summary = f"CPU kernels, built against torch {version}"
        atexit.register(print, f"edgeloss: {summary}")  # the last line, after all that setuptools prints


def build(library: Path) -> str:
    """Compile what has changed, link it, and return the version of the torch that served."""
    compiler, torch = requirements()
    python = sysconfig.get_path("include")
    # Headers of others are system headers: their warnings are not ours to mend.
    includes = ["-Icsrc", "-isystem", str(torch.root / "include"), "-isystem", python]
    command = [*compiler, *FLAGS, *DEFINES, *includes, *shlex.split(os.environ.get("CXXFLAGS", ""))]
    # One directory a command: another compiler, flag, Python or torch starts afresh.
    key = hashlib.sha256(repr((command, torch.version)).encode()).hexdigest()[:12]
    objects = {source: Path("build", "objects", key, source).with_suffix(".o") for source in SOURCES}
    headers = max((header.stat().st_mtime for header in HEADERS), default=0)

    def compile_if_changed(source: Path) -> None:
        target = objects[source]
        if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime, headers):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        call([*command, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_if_changed, SOURCES))

    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", *shlex.split(os.environ.get("LDFLAGS", ""))]
    # No rpath: `import torch` has these two in memory before the library is loaded.
    link = [f"-L{torch.root / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(library)]
    call([*compiler, *flags, *map(str, objects.values()), *link])
    return torch.version


def requirements() -> tuple[list[str], Torch]:
    """The compiler and the torch to build with."""
    if choice() == "none":
        raise Unbuildable("it was installed with EDGELOSS_BUILD=none")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unbuildable("the kernels are for Linux on x86-64")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Unbuildable("a free-threaded Python does not load abi3 libraries")
    compiler = find_compiler()
    if compiler is None:
        raise Unbuildable("no C++ compiler was found when it was installed")
    torch = find_torch()
    if torch is None:
        raise Unbuildable("no torch from 2.10 on was found when it was installed")
    return compiler, torch


def call(command: list[str]) -> None:
    """Run a compiler; the first error it prints is the reason for a failure."""
    print(shlex.join(command), flush=True)
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise Unbuildable(f"the C++ compiler can't be run: {error}") from None
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        what = errors[0] if errors else f"{command[0]} ended with status {done.returncode}"
        raise Unbuildable(f"it did not compile when it was installed: {what}")


setup(
    ext_modules=[
        Extension(
            "edgeloss._C",
            sources=[str(path) for path in SOURCES],
            # These make part of the source distribution, as the sources do.
            depends=[*map(str, HEADERS), "tools/build_backend.py"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)
