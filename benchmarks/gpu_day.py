#!/usr/bin/env python3
"""Check the kernels of GPUs on a GPU and measure them, in half an hour.

The steps, in this order. Results are added to a table as they come, and what has succeeded there is not repeated:

  build      the first call of each form of tools/check_gpu.py, which compiles its kernels
  agreement  cases of the tests, compared with plain PyTorch in float64 on the CPU
  checks     a CUDA graph, GradScaler, backward twice, the same bits twice, and no wait for the device
  speed      the cases of benchmarks/speed.py, compared with cross-entropy, and the memory that each step adds
  bandwidth  the calls of tools/gpu_model.py, compared with the bytes they have to move and with a copy
  quality    a plan of benchmarks/quality.py, in the time that is left

`--device cpu` runs the same code on small tensors in Triton's interpreter; its times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.extend(str(ROOT / folder) for folder in ("tools", "tests", "tests/loss"))

from edgeloss import library  # noqa: E402
from gpu_steps import STEPS, CannotRunError, Place, Row  # noqa: E402
from result_table import add_rows, read_rows  # noqa: E402


def key_of(row: Row) -> str:
    """Return the key of a row in the table."""
    return json.dumps([row[name] for name in ("step", "name", "gpu", "torch", "triton")])


def run_step(name: str, place: Place, output: Path) -> int:
    """Run what a step has not done yet, and return how much of it failed."""
    triton = importlib.import_module("triton").__version__ if importlib.util.find_spec("triton") else "none"
    gpu, failed = "interpreter" if place.is_dry else torch.cuda.get_device_name(), 0
    machine = {"gpu": gpu, "torch": torch.__version__, "triton": triton}
    done = {key_of(row) for row in read_rows(output) if row["status"] == "ok"}
    for task, run in STEPS[name](place):
        row, start = {"step": name, "name": task, **machine}, time.monotonic()
        if key_of(row) in done:
            continue
        if start > place.end:
            print(f"the time is up before {name}, {task}; the same command goes on", flush=True)
            break
        try:
            row |= {"status": "ok", **run()}
        except CannotRunError as error:
            row |= {"status": "skipped", "reason": str(error)}
        except Exception as error:  # what is left is to be tried
            row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
            failed += 1
        add_rows(output, [{**row, "seconds": round(time.monotonic() - start, 1)}], key_of)
        print(json.dumps({name: value for name, value in row.items() if name not in machine}), flush=True)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    add("--minutes", type=float, default=30.0, help="begin nothing after so long (default: %(default)s)")
    add("--only", nargs="+", choices=list(STEPS), metavar="STEP", default=list(STEPS), help="some of the steps")
    add("--output", type=Path, default=ROOT / "runs/gpu_day.jsonl", metavar="FILE", help="default: %(default)s")
    add(
        "--plan",
        type=Path,
        default=ROOT / "configs/quality-pretrained.yaml",
        help="of the trainings (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    place = Place(given.device, time.monotonic() + 60 * given.minutes, given.plan)
    if len(given.only) > 1 and not place.is_dry:  # an error may leave the device unusable for a process
        words = ["--output", given.output, "--plan", given.plan, "--minutes"]
        codes = []
        for step in (step for step in STEPS if step in given.only):
            minutes = (place.end - time.monotonic()) / 60
            command = [sys.executable, __file__, "--only", step, *map(str, (*words, minutes))]
            codes.append(subprocess.run(command).returncode)
        return max(codes)
    if place.is_dry:
        os.environ["TRITON_INTERPRET"] = "1"  # as Triton reads it when it is imported
        import interpreted  # noqa: F401
    library.interprets = place.is_dry
    return min(1, sum(run_step(step, place, given.output) for step in STEPS if step in given.only))


if __name__ == "__main__":
    sys.exit(main())
