"""The build backend: setuptools, with the torch of the environment that edgeloss is installed into.

A build under isolation does not see that environment. With torch among the fixed build requirements pip would fetch a
second one of gigabytes, and without it a machine that has none yet could not build. So torch is looked for where it
will be used, and is a build requirement only if it is not there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

CHOICES = ("cuda", "cpu", "none")
OLDEST_TORCH = (2, 10)

_PROBE = """
import importlib.metadata, importlib.util
print(importlib.metadata.version("torch"), importlib.util.find_spec("torch").origin, sep="\\n")
"""


class Torch(NamedTuple):
    """An installed torch that the library can be built against."""

    version: str
    root: Path  # the directory of the package, which holds include/ and lib/


def choice() -> str | None:
    """What EDGELOSS_BUILD asks for; None leaves it to what the machine has."""
    value = os.environ.get("EDGELOSS_BUILD") or None
    if value not in (None, *CHOICES):
        allowed = ", ".join(map(repr, CHOICES))
        raise SystemExit(f"EDGELOSS_BUILD: expected one of {allowed}, but got {value!r}")
    return value


def find_compiler() -> list[str] | None:
    """The command of the C++ compiler: that of CXX, else the first of the usual ones."""
    if "CXX" in os.environ:
        return shlex.split(os.environ["CXX"])
    return next(([path] for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def find_torch() -> Torch | None:
    """The torch to build against: in this process's reach, else in the environment that the build is for."""
    for python, env in _environments():
        try:
            found = subprocess.run([python, "-c", _PROBE], env=env, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        version, origin = found.stdout.splitlines()
        if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH:
            return Torch(version, Path(origin).parent)
    return None


def _environments() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Interpreters, each with its variables, in the order in which to ask them for torch."""
    yield sys.executable, os.environ
    # pip isolates by these variables alone, and its interpreter is the one of the environment it installs into.
    outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    yield sys.executable, outside
    # `python -m build` runs this in an environment of its own, as a child of the Python that has torch.
    try:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:  # no such file where the system is not Linux
        return
    if Path(parent).name.startswith("python"):
        yield parent, outside


def _requirements() -> list[str]:
    if choice() == "none" or find_compiler() is None or find_torch():
        return []
    return [f"torch>={'.'.join(map(str, OLDEST_TORCH))}"]


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """What to install before a wheel is built."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_requirements()]


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """What to install before an editable wheel is built."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_requirements()]
