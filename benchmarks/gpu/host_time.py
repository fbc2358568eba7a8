#!/usr/bin/env python3
"""Measure what Python takes to enqueue a step on a GPU, without a GPU.

Triton compiles the kernels for sm_90 and launches them as on a device, by a driver that launches nothing (stub.c). The
batched products of earlier versions cost what the allocation of their result does. Times are those of the processor in
the thread, of the forward and backward pass of a small image, the median over many; checkouts take turns, each time in
a process of its own. An earlier checkout needs no compiled library: with ``edgeloss/_C.py`` that raises ImportError, it
has none.

  python benchmarks/gpu/host_time.py
  python benchmarks/gpu/host_time.py --before 0.3.0=../edgeloss-0.3.0 --output benchmarks/results/host.jsonl
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
SHAPE = 1, 19, 64, 64
CASES: dict[str, dict[str, Any]] = {"EdgeAwareLoss": {}, "region_weight=0": {"region_weight": 0.0}}
STEPS = 300  # of a case, in each process


def build_stub(folder: Path) -> Path:
    """Compile the driver, and return its path."""
    path = folder / "libcuda.so.1"
    command = ["cc", "-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", path]
    subprocess.run([*command, Path(__file__).with_name("stub.c")], check=True)
    return path


def use_stub(path: Path) -> ctypes.CDLL:
    """Let Triton launch kernels by the driver that launches nothing; return the driver."""
    os.environ["TRITON_LIBCUDA_PATH"] = str(path.parent)
    stub = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import driver

    class Driver:
        def __init__(self) -> None:
            self.utils, self.launcher_cls = driver.CudaUtils(), driver.CudaLauncher
            self.map_python_to_cpp_type = driver.ty_to_cpp

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

    triton.runtime.driver.set_active(Driver())
    return stub


def microseconds(step: Callable[[], object]) -> float:
    """Return the median time of a step."""
    times = []
    for _ in range(STEPS):
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return round(1e6 * statistics.median(times), 1)


def measure(stub: Path) -> dict[str, dict[str, float]]:
    """Return the microseconds and launches of a step of each case, with the edgeloss that Python finds."""
    driver = use_stub(stub)
    import torch
    import torch.nn.functional as F

    import edgeloss
    from edgeloss import EdgeAwareLoss

    # By the folder: an installation in editable mode would find the module of another checkout.
    if Path(edgeloss.__file__).with_name("_kernels").is_dir():
        from edgeloss._kernels import library
    else:  # before version 0.4
        from edgeloss import library

    torch.set_num_threads(1)
    torch.bmm = lambda a, b: a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    library.interprets = True  # CPU tensors take the kernels of GPUs
    losses: dict[str, Callable[..., torch.Tensor]] = {
        name: EdgeAwareLoss(ignore_index=255, validate="never", backend="fused", **options)
        for name, options in CASES.items()
    }
    found = {}
    for name, loss in {"cross-entropy": F.cross_entropy, **losses}.items():
        shape = SHAPE if name in CASES else (1, 2, 1, 1)  # that a CPU computes in no time
        x, y = torch.zeros(shape, requires_grad=True), torch.zeros(shape[:1] + shape[2:], dtype=torch.int64)

        def step(loss: Callable[..., torch.Tensor] = loss, x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            loss(x, y).backward()
            x.grad = None

        step()
        before = driver.stub_launches()
        step()
        launches = driver.stub_launches() - before
        found[name] = {"microseconds": microseconds(step), "launches": launches}
    return found


def main() -> int:
    """Measure checkouts in turns and print a table."""
    from measure import INSTRUCTIONS, processor
    from result_table import add_rows

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", nargs="+", default=[], metavar="NAME=CHECKOUT", help="earlier versions")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each checkout (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="add the figures to a table of results")
    given = parser.parse_args()
    (version,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    checkouts = dict(word.split("=", 1) for word in given.before) | {version: str(ROOT)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        stub = build_stub(Path(folder))
        for name, checkout in [*checkouts.items()] * given.rounds:
            environment = {**os.environ, "PYTHONPATH": checkout, "EDGELOSS_STUB": str(stub), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, __file__], env=environment, check=True, capture_output=True, text=True
            )
            found[name].append(json.loads(done.stdout))
    import torch
    import triton

    machine = {"processor": processor(), "instructions": INSTRUCTIONS}
    machine |= {"torch": torch.__version__, "triton": triton.__version__}
    print(", ".join(machine.values()))
    for name, rounds in found.items():
        row = {
            case: {
                "microseconds": statistics.median(times[case]["microseconds"] for times in rounds),
                "launches": rounds[0][case]["launches"],
            }
            for case in rounds[0]
        }
        print(name, json.dumps(row))
        if given.output:
            new = {"version": name, **row, "machine": machine}
            add_rows(given.output, [new], lambda row: (row["version"], row["machine"]["instructions"]))
    return 0


if __name__ == "__main__":
    if "EDGELOSS_STUB" in os.environ:  # a process of one checkout
        print(json.dumps(measure(Path(os.environ["EDGELOSS_STUB"]))))
    else:
        sys.exit(main())
