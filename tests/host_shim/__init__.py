"""Build the CUDA kernels for the host, where `cuda_runtime.h` of this folder steps their threads."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

import toolchain
from edgeloss import fused

ROOT, FOLDER, TORCH = Path(__file__).parents[2], Path(__file__).parent, Path(torch.__file__).parent
FLAGS = [
    *["-x", "c++", "-std=c++17", "-fPIC", "-fvisibility=hidden", *toolchain.DEFINES],
    *["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"],  # `#pragma unroll` is for nvcc
    *[f"-I{FOLDER}", "-isystem", str(TORCH / "include"), "-isystem", sysconfig.get_path("include")],
    *["-include", "cuda_runtime.h"],
]
compiler = toolchain.find_compiler


def _sources() -> list[Path]:
    return sorted([*ROOT.glob("csrc/*.cpp"), *ROOT.glob("csrc/**/*.cu")])


def _compile(command: list[str]) -> list[str]:
    return [command[0], "-O1", *command[1:], *FLAGS]  # an optimization of the command's own comes later and counts


def path(command: list[str]) -> Path:
    """Return the path of the library, in a folder that is named by a hash of sources and command."""
    headers = sorted([*ROOT.glob("csrc/**/*.h"), *FOLDER.glob("*.h")])
    content = b"".join(path.read_bytes() for path in (*_sources(), *headers))
    key = hashlib.sha256(repr((_compile(command), torch.__version__)).encode() + content).hexdigest()[:12]
    return ROOT / "build" / "host_shim" / key / "_C.so"


def build(command: list[str]) -> Path:
    """Compile the library unless it exists."""
    sources, library = _sources(), path(command)
    folder, command = library.parent, _compile(command)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the workers of a test run, one builds and the others wait
        if not library.exists():
            objects = [folder / f"{source.name}.o" for source in sources]
            _run(*([*command, "-c", a, "-o", b] for a, b in zip(sources, objects, strict=True)))
            linked = library.with_suffix(".part")
            _run([command[0], "-shared", *objects, f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10", "-o", linked])
            linked.rename(library)
    return library


def _run(*commands: list[str | Path]) -> None:
    """Run commands at once."""
    started = [subprocess.Popen([*toolchain.compiler_cache(), *map(str, command)]) for command in commands]
    if {process.wait() for process in started} != {0}:
        raise RuntimeError("host_shim: the CUDA kernels do not compile for the host")


def load(library: Path) -> ModuleType:
    """Load the library, and register its operators as `torch.ops.edgeloss_host`."""
    loader = importlib.machinery.ExtensionFileLoader("edgeloss_host._C", str(library))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    fused.register("edgeloss_host")
    return module
