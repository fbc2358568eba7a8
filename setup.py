"""The compiled library `edgeloss._C`: all kernels in one file, for every Python from 3.10 and torch from 2.10 on.

pyproject.toml holds everything else. The library uses only the stable part of torch's C++ interface and of Python's
C interface, so the versions it is built with do not matter to it later. It holds the CPU kernels, and those of
neighbor_nll for CUDA where there is nvcc, which is called here: torch's own helper needs a torch built for CUDA, this
does not.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

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
    compiler_cache,
    find_nvcc,
    host_command,
    host_requirements,
    link_command,
)


class BuildLibrary(build_ext.build_ext):
    """Compile the library, and write a record next to it: what was built, and why the rest was not."""

    def run(self) -> None:
        """Build into the wheel, or, for an editable install, into the source tree."""
        library = Path(self.get_ext_fullpath(self.extensions[0].name))
        library.parent.mkdir(parents=True, exist_ok=True)
        library.unlink(missing_ok=True)  # else a failed build would leave that of an earlier one
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
    link, libraries = link_command(compiler, torch)
    host = [Unit.of(source, host_command(compiler, torch), torch.version) for source in HOST_SOURCES]
    device, without_cuda = [], None
    try:
        nvcc, archs = cuda_requirements()
        device = [Unit.of(path, nvcc.command(torch, archs), torch.version, nvcc.version) for path in CUDA_SOURCES]
    except Unbuildable as reason:
        without_cuda = str(reason)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # The device's before the others, as they take longest.
        jobs = start(pool, [*device, *host])
        host_objects = [str(job.result()) for job in jobs[len(device) :]]
        try:
            device_objects = [str(job.result()) for job in jobs[: len(device)]]
            if not without_cuda:
                call([*link, *host_objects, *device_objects, *libraries, *nvcc.link_flags(), "-o", str(library)])
        except Unbuildable as reason:
            without_cuda = str(reason)
    if not without_cuda:
        record = {"torch": torch.version, "toolkit": nvcc.version, **archs._asdict()}
        return record, f"CPU and CUDA kernels ({archs}), built against torch {torch.version}"
    if choice() == "cuda":
        raise Unbuildable(without_cuda)
    call([*link, *host_objects, *libraries, "-o", str(library)])
    summary = f"CPU kernels, built against torch {torch.version}"
    if choice() is None:
        summary += f"; no CUDA kernels: {without_cuda}"
    return {"torch": torch.version, "without_cuda": without_cuda}, summary


def cuda_requirements() -> tuple[Nvcc, Architectures]:
    """Return the CUDA compiler and the architectures to compile for."""
    if choice() == "cpu":
        raise Unbuildable("it was installed with EDGELOSS_BUILD=cpu")
    nvcc = find_nvcc()
    return nvcc, architectures(nvcc)


class Unit(NamedTuple):
    """A source, what it is compiled to, and by which command."""

    source: Path
    target: Path
    command: list[str]

    @classmethod
    def of(cls, source: Path, command: list[str], *versions: object) -> Unit:
        """Choose the target: another compiler, flag, Python or torch needs another directory."""
        key = hashlib.sha256(repr((command, versions)).encode()).hexdigest()[:12]
        target = Path("build", "objects", key, source).with_suffix(".o")
        return cls(source, target, [*command, "-c", str(source), "-o", str(target)])

    def is_stale(self) -> bool:
        """Whether the source or a header has changed since it was compiled."""
        newest = max(path.stat().st_mtime for path in (self.source, *HEADERS))
        return not self.target.exists() or self.target.stat().st_mtime <= newest


def start(pool: ThreadPoolExecutor, units: list[Unit]) -> list[Future[Path]]:
    """Compile what has changed since the last time, and promise the object files."""
    stale = [unit for unit in units if unit.is_stale()]

    def compile_if_stale(unit: Unit) -> Path:
        if unit in stale:
            # With its end in one string, as other threads print too.
            print(f"edgeloss: compiling {unit.source} ({stale.index(unit) + 1} of {len(stale)})\n", end="", flush=True)
            unit.target.parent.mkdir(parents=True, exist_ok=True)
            call([*compiler_cache(), *unit.command])
        return unit.target

    return [pool.submit(compile_if_stale, unit) for unit in units]


def index_page() -> str:
    """Return the README without what lives next to it: pictures with their captions, and links to other files."""
    text = re.sub(r"<picture>.*?</picture>\s*(\*[^*]+\*\s*)?", "", Path("README.md").read_text(), flags=re.DOTALL)
    return re.sub(r"\[([^\]]*)\]\((?!http|#)[^)]*\)", r"\g<1>", text)


setup(
    long_description=index_page(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "edgeloss._C",
            sources=[str(path) for path in [*HOST_SOURCES, *CUDA_SOURCES]],
            # Part of the source distribution, as the sources are.
            depends=[*map(str, HEADERS), *map(str, Path("tools").glob("*.*"))],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)
