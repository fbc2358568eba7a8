"""The commands that compile and link the library, and what they need: compilers, torch, Python, CUDA."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CHOICES = ("cuda", "cpu", "none")
OLDEST_TORCH = (2, 10)

HOST_SOURCES = sorted(Path("csrc").rglob("*.cpp"))
CUDA_SOURCES = sorted(Path("csrc").rglob("*.cu"))
HEADERS = sorted([*Path("csrc").rglob("*.h"), *Path("csrc").rglob("*.cuh")])

DEFINES = ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DPy_LIMITED_API=0x030a0000"]
# No loop is vectorized around calls that might set errno or trap. Unlike fast-math, neither flag changes a result.
VECTORIZE = ["-fno-math-errno", "-fno-trapping-math"]
HOST_FLAGS = ["-std=c++17", "-O3", *VECTORIZE, "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *DEFINES]
# --expt-relaxed-constexpr: std::max and the like work on the device. --threads: compile architectures in parallel.
CUDA_FLAGS = ["-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall", "--expt-relaxed-constexpr"]
CUDA_FLAGS += ["--threads=0", "-DUSE_CUDA", *DEFINES]

# The default, of those that nvcc knows: kernels for sm_80 run on 8.x devices, those for sm_90 on 9.x and so on, and PTX
# of the last is compiled by the driver, at the first call, for all that come after.
DEFAULT_ARCHITECTURES = (80, 90, 100, 120)
WHEEL_ARCHITECTURES = "75;80;86;89;90;100;120+PTX"
OLDEST_NVCC = (12, 0)  # torch from 2.10 on is itself built for CUDA 12 and later


_PROBE = """
import importlib.metadata, importlib.util
print(importlib.metadata.version("torch"), importlib.util.find_spec("torch").origin, sep="\\n")
"""


class Unbuildable(Exception):  # noqa: N818 - no error: the package then works without what can't be built
    """The reason why the library, or its CUDA part, can't be built here."""


class Torch(NamedTuple):
    """An installed torch that the library can be built against."""

    version: str
    root: Path  # the directory of the package, which holds include/ and lib/


class Architectures(NamedTuple):
    """What nvcc compiles for, numbered as compute capabilities without their dot: 90 is 9.0."""

    cubins: list[int]  # machine code
    ptx: list[int]  # code that the driver compiles on any newer device

    @property
    def flags(self) -> list[str]:
        """The options of nvcc."""
        cubins = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in self.cubins]
        return cubins + [f"-gencode=arch=compute_{arch},code=compute_{arch}" for arch in self.ptx]

    def __str__(self) -> str:
        """As the build's last line names them."""
        return ", ".join([f"sm_{arch}" for arch in self.cubins] + ["PTX"] * bool(self.ptx))


class Nvcc(NamedTuple):
    """CUDA's compiler."""

    path: str
    version: tuple[int, int]

    def command(self, torch: Torch, architectures: Architectures) -> list[str]:
        """Return the command that compiles a .cu source, without the files."""
        flags = [*CUDA_FLAGS, *architectures.flags, *_includes(torch)]
        compiler = find_compiler()
        # nvcc takes one program for the host's part; NVCC_CCBIN is its own variable for that.
        if compiler and len(compiler) == 1 and "NVCC_CCBIN" not in os.environ:
            flags.append(f"-ccbin={compiler[0]}")
        return [self.path, *flags, *shlex.split(os.environ.get("NVCCFLAGS", ""))]

    def link_flags(self) -> list[str]:
        """Return the flags that link the CUDA runtime statically.

        The library then needs no libcudart, and its runtime may be of another major version than torch's:
        both reach the device through the driver, whose contexts and streams they share. The driver must serve the newer
        of the two; `edgeloss.backends` compares it with the toolkit recorded here.
        """
        # nvcc reports where its libraries are, in the packages of NVIDIA, distributions, conda and pip.
        output = _run([self.path, "--dryrun", "-x", "cu", os.devnull]).stdout
        found = re.search(r"^#\$ LIBRARIES=(.*)$", output, re.MULTILINE)
        return [*shlex.split(found[1] if found else ""), "-lcudart_static", "-ldl", "-lrt", "-lpthread"]


def choice() -> str | None:
    """Return the value of EDGELOSS_BUILD; None builds what the machine supports."""
    value = os.environ.get("EDGELOSS_BUILD") or None
    if value not in (None, *CHOICES):
        allowed = ", ".join(map(repr, CHOICES))
        raise SystemExit(f"EDGELOSS_BUILD: expected one of {allowed}, but got {value!r}")
    return value


def find_compiler() -> list[str] | None:
    """Return the command of the C++ compiler: CXX, or the first of the usual ones."""
    if "CXX" in os.environ:
        return shlex.split(os.environ["CXX"])
    return next(([path] for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def compiler_cache() -> list[str]:
    """Return the command to put before a compiler's: ccache where there is one."""
    return [path] if (path := shutil.which("ccache")) else []


def find_torch() -> Torch | None:
    """Find the torch to build against: that of this process, or of the environment that the build is for."""
    for python, env in _environments():
        try:
            found = subprocess.run([python, "-c", _PROBE], env=env, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        version, origin = found.stdout.splitlines()
        if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH:
            return Torch(version, Path(origin).parent)
    return None


def host_requirements() -> tuple[list[str], Torch]:
    """Return the C++ compiler and the torch to build with.

    Raises:
        Unbuildable: if there are none, or if this is no place for the kernels.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise Unbuildable("the kernels are for Linux on x86-64 and aarch64")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Unbuildable("a free-threaded Python does not load abi3 libraries")
    compiler = find_compiler()
    if compiler is None:
        raise Unbuildable("no C++ compiler was found when it was installed")
    torch = find_torch()
    if torch is None:
        raise Unbuildable("no torch from 2.10 on was found when it was installed")
    return compiler, torch


def host_command(compiler: Sequence[str], torch: Torch) -> list[str]:
    """Return the command that compiles a .cpp source, without the files."""
    return [*compiler, *HOST_FLAGS, *_includes(torch), *shlex.split(os.environ.get("CXXFLAGS", ""))]


def link_command(compiler: Sequence[str], torch: Torch) -> tuple[list[str], list[str]]:
    """Return the command that links a library: what comes before the objects, and what comes after them.

    EDGELOSS_GLIBC, such as "2.28", makes a library that this release of glibc can load and all after it: zig has the
    symbols of each, whereas a compiler takes the newest of its own system.
    """
    flags = ["-shared", *shlex.split(os.environ.get("LDFLAGS", ""))]
    # No rpath: `import torch` has these two in memory before the library is loaded.
    libraries = [f"-L{torch.root / 'lib'}", "-ltorch_cpu", "-lc10"]
    glibc = os.environ.get("EDGELOSS_GLIBC")
    if not glibc:
        return [*compiler, *flags], libraries
    # The C++ library of the objects, not zig's own; after torch's, which export what older ones lack.
    names = ("libstdc++.so.6", "libgcc_s.so.1")
    runtime = [_run([*compiler, f"-print-file-name={name}"]).stdout.strip() for name in names]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-gnu.{glibc}", "-O2", "-s"]
    return [*zig, *flags, "tools/glibc.c"], [*libraries, *runtime]


def find_nvcc() -> Nvcc:
    """Find the CUDA compiler: in CUDA_HOME or CUDA_PATH if set, else on PATH or in /usr/local/cuda.

    Raises:
        Unbuildable: if there is none, or it is too old.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(name):
            path = shutil.which("nvcc", path=Path(home, "bin"))
            where = f" in {name}={home}"
            break
    else:
        path = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
        where = ""
    if path is None:
        raise Unbuildable(f"no nvcc was found{where}")
    found = re.search(r"release (\d+)\.(\d+)", _run([path, "--version"]).stdout)
    if found is None:
        raise Unbuildable(f"{path} --version does not report its version")
    version = int(found[1]), int(found[2])
    if version < OLDEST_NVCC:
        raise Unbuildable(f"nvcc {_dotted(version)} is older than {_dotted(OLDEST_NVCC)}")
    return Nvcc(path, version)


def architectures(nvcc: Nvcc) -> Architectures:
    """Return the architectures of EDGELOSS_CUDA_ARCHS; the device of the build machine plays no role.

    Raises:
        Unbuildable: if nvcc can't compile for one of them.
        SystemExit: if the variable is not valid.
    """
    listed = _run([nvcc.path, "--list-gpu-code"]).stdout
    known = {int(arch) for arch in re.findall(r"^sm_(\d+)\s*$", listed, re.MULTILINE)}
    if not (text := os.environ.get("EDGELOSS_CUDA_ARCHS")):
        usual = [arch for arch in DEFAULT_ARCHITECTURES if arch in known]
        return Architectures(usual, usual[-1:])
    chosen = parse_architectures(text)
    unknown = sorted({*chosen.cubins, *chosen.ptx} - known)
    if unknown:
        names = ", ".join(f"sm_{arch}" for arch in unknown)
        raise Unbuildable(f"nvcc {_dotted(nvcc.version)} can't compile for {names}; EDGELOSS_CUDA_ARCHS chooses")
    return chosen


def parse_architectures(text: str) -> Architectures:
    """Parse a list such as "80;90+PTX".

    Raises:
        SystemExit: if it is not valid.
    """
    words = (WHEEL_ARCHITECTURES if text == "all" else text).split(";")
    if not all(re.fullmatch(r"\d{2,3}(\+PTX)?", word) for word in words):
        raise SystemExit(f"EDGELOSS_CUDA_ARCHS: expected 'all' or a list as '80;90+PTX', but got {text!r}")
    pairs = {int(word.removesuffix("+PTX")): word.endswith("+PTX") for word in words}
    return Architectures(sorted(pairs), sorted(arch for arch, with_ptx in pairs.items() if with_ptx))


def call(command: Sequence[str]) -> None:
    """Show a command of a compiler, run it, and show what it says; its first error is the reason for a failure.

    Raises:
        Unbuildable: if it fails.
    """
    print(f"{shlex.join(command)}\n", end="", flush=True)
    done = _run(command)
    sys.stderr.write(done.stdout)
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "error" in line]
        what = errors[0] if errors else f"{command[0]} ended with status {done.returncode}"
        raise Unbuildable(f"it did not compile: {what}")


def _environments() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield interpreters with their variables, in the order in which to look for torch."""
    yield sys.executable, os.environ
    # pip isolates by these variables only; its interpreter is that of the environment it installs into.
    outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    yield sys.executable, outside
    # `python -m build` runs this in a separate environment, as a child of the Python that has torch.
    try:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:  # no such file where the system is not Linux
        return
    if Path(parent).name.startswith("python"):
        yield parent, outside


def _includes(torch: Torch) -> list[str]:
    # System headers: their warnings can't be fixed here.
    return ["-isystem", str(torch.root / "include"), "-isystem", sysconfig.get_path("include")]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise Unbuildable(f"{command[0]} can't be run: {error}") from None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
