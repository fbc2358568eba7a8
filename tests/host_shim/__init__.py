"""Build the CUDA kernels for the host, where `cuda_runtime.h` of this folder steps their threads."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sysconfig
from pathlib import Path

import torch

import toolchain
from edgeloss._kernels import operators

ROOT, FOLDER, TORCH = Path(__file__).parents[2], Path(__file__).parent, Path(torch.__file__).parent
SOURCES = [ROOT / "csrc" / "library.cpp", ROOT / "csrc" / "cuda" / "operators.cu"]
FLAGS = [
    *["-x", "c++", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", "-shared", *toolchain.DEFINES],
    *["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"],  # `#pragma unroll` is for nvcc
    *[f"-I{FOLDER}", "-isystem", str(TORCH / "include"), "-isystem", sysconfig.get_path("include")],
    *["-include", "cuda_runtime.h", *map(str, SOURCES)],
    *[f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10"],
]
compiler = toolchain.find_compiler


def _compile(command: list[str]) -> list[str]:
    return [command[0], "-O1", *command[1:], *FLAGS]  # an optimization of the command's own comes later and counts


def path(command: list[str]) -> Path:
    """Return the path of the library, in a folder that is named by a hash of sources and command."""
    headers = sorted([*ROOT.glob("csrc/**/*.h"), *FOLDER.glob("*.h")])
    content = b"".join(path.read_bytes() for path in (*SOURCES, *headers))
    key = hashlib.sha256(repr((_compile(command), torch.__version__)).encode() + content).hexdigest()[:12]
    return ROOT / "build" / "host_shim" / key / "_C.so"


def build(command: list[str]) -> Path:
    """Compile the library unless it exists."""
    library = path(command)
    library.parent.mkdir(parents=True, exist_ok=True)
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the workers of a test run, one builds and the others wait
        if not library.exists():
            part = library.with_suffix(".part")
            subprocess.run([*_compile(command), "-o", part], check=True)
            part.rename(library)
    return library


def load(library: Path) -> None:
    """Load the library, and register its operators as `torch.ops.edgeloss_host`."""
    torch.ops.load_library(library)
    operators.register("edgeloss_host")
