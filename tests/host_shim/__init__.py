"""Build the CUDA kernels for the host, where `cuda_runtime.h` of this folder steps their threads."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import torch

from edgeloss import fused

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
FLAGS = [
    *["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden"],
    *["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"],  # `#pragma unroll` is for nvcc
    *["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DPy_LIMITED_API=0x030a0000"],
]


def compiler() -> list[str] | None:
    """Return the command of the C++ compiler, or None."""
    if "CXX" in os.environ:
        return shlex.split(os.environ["CXX"])
    return next(([path] for name in ("c++", "g++") if (path := shutil.which(name))), None)


def build(command: list[str]) -> Path:
    """Compile the library unless it exists; its directory is named by a hash of sources and command."""
    sources = sorted([*ROOT.glob("csrc/*.cpp"), *ROOT.glob("csrc/**/*.cu")])
    headers = sorted([*ROOT.glob("csrc/**/*.h"), *FOLDER.glob("*.h")])
    torch_root = Path(torch.__file__).parent
    includes = [f"-I{FOLDER}", "-isystem", str(torch_root / "include"), "-isystem", sysconfig.get_path("include")]
    # The command's own optimization, such as that of a test with contracted products, comes first and counts.
    flags = [flag for flag in FLAGS if flag != "-O1" or not any(word.startswith("-O") for word in command)]
    command = [*command, *flags, *includes, "-include", "cuda_runtime.h"]
    content = b"".join(path.read_bytes() for path in (*sources, *headers))
    key = hashlib.sha256(repr((command, torch.__version__)).encode() + content).hexdigest()[:12]
    folder = ROOT / "build" / "host_shim" / key
    library = folder / "_C.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the workers of a test run, one builds and the others wait
        if not library.exists():
            _compile(command, sources, library)
    return library


def _compile(command: list[str], sources: list[Path], library: Path) -> None:
    cache = [path] if (path := shutil.which("ccache")) else []
    objects = {source: library.with_name("-".join(source.relative_to(ROOT).parts) + ".o") for source in sources}

    def run(*arguments: str | Path) -> None:
        done = subprocess.run([*map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(map(str, arguments))}\n{done.stderr}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda item: run(*cache, *command, "-c", item[0], "-o", item[1]), objects.items()))
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
    linked = library.with_suffix(".part")
    run(command[0], "-shared", *objects.values(), *libraries, "-o", linked)
    linked.rename(library)


def load(library: Path) -> ModuleType:
    """Load the library, and register its operators as `torch.ops.edgeloss_host`."""
    loader = importlib.machinery.ExtensionFileLoader("edgeloss_host._C", str(library))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    fused.register("edgeloss_host")
    return module
