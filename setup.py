"""The compiled library `edgeloss._C`: all kernels in one file, for every Python from 3.10 and torch from 2.10 on.

pyproject.toml holds everything else. The library uses only the stable part of torch's C++ interface and of Python's
C interface, so the versions it is built with do not matter to it later. It holds the CPU kernels, and the CUDA kernels
where there is nvcc, which is called here: torch's own helper needs a torch built for CUDA, this does not.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shlex
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command import build_ext

from toolchain import (
    CUDA_SOURCES,
    HEADERS,
    HOST_SOURCES,
    Architectures,
    Nvcc,
    Unbuildable,
    architectures,
    call,
    choice,
    find_nvcc,
    host_command,
    host_requirements,
)


class BuildLibrary(build_ext.build_ext):
    """Compiles the library, and leaves a record beside it: what was built, and why the rest was not."""

    def run(self) -> None:
        """Build into the wheel, or, for an editable install, into the source tree."""
        library = Path(self.get_ext_fullpath(self.extensions[0].name))
        library.parent.mkdir(parents=True, exist_ok=True)
        library.unlink(missing_ok=True)  # else that of an earlier build would outlive a failure
        wheel = self.get_finalized_command("bdist_wheel")
        try:
            if choice() == "none":
                raise Unbuildable("it was installed with EDGELOSS_BUILD=none")
            record, summary = build(library)
        except Unbuildable as reason:
            if choice() not in (None, "none"):
                raise SystemExit(f"edgeloss: EDGELOSS_BUILD={choice()}, but {reason}") from None
            record, summary = {"missing": str(reason)}, f"pure Python, without compiled kernels: {reason}"
            self.extensions = []
            self.distribution.ext_modules = []
            wheel.root_is_pure = True
        else:
            wheel.py_limited_api = "cp310"
        library.with_name("_build.json").write_text(json.dumps(record) + "\n")
        atexit.register(print, f"edgeloss: {summary}")  # the last line, after all that setuptools prints


def build(library: Path) -> tuple[dict[str, Any], str]:
    """Compile what has changed, link it, and return a record and a summary of what was built."""
    compiler, torch = host_requirements()
    link = [*compiler, "-shared", *shlex.split(os.environ.get("LDFLAGS", ""))]
    # No rpath: `import torch` has these two in memory before the library is loaded.
    libraries = [f"-L{torch.root / 'lib'}", "-ltorch_cpu", "-lc10"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            nvcc, archs = cuda_requirements()
            # Before the others, as they take longest.
            device = start(pool, nvcc.command(torch, archs), CUDA_SOURCES, torch.version, nvcc.version)
        except Unbuildable as reason:
            device, without_cuda = [], str(reason)
        else:
            without_cuda = None
        host = [str(job.result()) for job in start(pool, host_command(compiler, torch), HOST_SOURCES, torch.version)]
        try:
            device_objects = [str(job.result()) for job in device]
            if not without_cuda:
                call([*link, *host, *device_objects, *libraries, *nvcc.link_flags(), "-o", str(library)])
        except Unbuildable as reason:
            without_cuda = str(reason)
    if not without_cuda:
        record = {"torch": torch.version, "toolkit": nvcc.version, **archs._asdict()}
        return record, f"CPU and CUDA kernels ({archs}), built against torch {torch.version}"
    if choice() == "cuda":
        raise Unbuildable(without_cuda)
    call([*link, *host, *libraries, "-o", str(library)])
    summary = f"CPU kernels, built against torch {torch.version}"
    if choice() is None:
        summary += f"; no CUDA kernels: {without_cuda}"
    return {"torch": torch.version, "without_cuda": without_cuda}, summary


def cuda_requirements() -> tuple[Nvcc, Architectures]:
    """CUDA's compiler, and what to compile for."""
    if choice() == "cpu":
        raise Unbuildable("it was installed with EDGELOSS_BUILD=cpu")
    nvcc = find_nvcc()
    return nvcc, architectures(nvcc)


def start(pool: ThreadPoolExecutor, command: list[str], sources: list[Path], *versions: object) -> list[Future[Path]]:
    """Compile what has changed since the last time, and promise the object files."""
    # One directory a command: another compiler, flag, Python or torch starts afresh.
    key = hashlib.sha256(repr((command, versions)).encode()).hexdigest()[:12]
    headers = max((header.stat().st_mtime for header in HEADERS), default=0)

    def compile_if_changed(source: Path) -> Path:
        target = Path("build", "objects", key, source).with_suffix(".o")
        if not target.exists() or target.stat().st_mtime <= max(source.stat().st_mtime, headers):
            target.parent.mkdir(parents=True, exist_ok=True)
            call([*command, "-c", str(source), "-o", str(target)])
        return target

    return [pool.submit(compile_if_changed, source) for source in sources]


setup(
    ext_modules=[
        Extension(
            "edgeloss._C",
            sources=[str(path) for path in [*HOST_SOURCES, *CUDA_SOURCES]],
            # These make part of the source distribution, as the sources do.
            depends=[*map(str, HEADERS), *map(str, Path("tools").glob("*.*"))],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)
