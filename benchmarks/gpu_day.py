#!/usr/bin/env python3
"""Test and measure edgeloss on a GPU, in steps of at most nine minutes each.

Each step is one command. Its output goes to NAME.log in the output folder, and a line to steps.jsonl when it ends, so
that at most one step is lost when this program is stopped. Steps that have passed are skipped when it is called again;
a step that ran out of time goes on where it can. Nothing is downloaded: packages and data must be there.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
EXAMPLES = """\
examples:
  python benchmarks/gpu_day.py --list                          # the steps, in the order of their value
  python benchmarks/gpu_day.py --minutes 28                    # as many as fit, from the first that has not passed
  python benchmarks/gpu_day.py --only speed-19 ncu             # these, again if they have passed
  python benchmarks/gpu_day.py --skip install --data ../shared # where edgeloss is installed; data in ../shared/camvid
  python benchmarks/gpu_day.py --device cpu --tiny             # try the steps without a GPU
"""
PASSED, FAILED, CUT_OFF, ABSENT = "passed", "failed", "out of time", "not there"


@dataclass(frozen=True)
class Step:
    """A command, what it is for, and the minutes that it may take."""

    name: str
    about: str
    minutes: float
    command: Sequence[str]


def pytest(*words: str) -> list[str]:
    """Return the command of a test run that does not stop at failures."""
    return [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words]


def checks(device: str, tiny: bool) -> list[Step]:
    """Return the steps that show whether the kernels are right."""
    calls = [PYTHON, "tests/host_shim/races.py", device]
    device_tests = ["tests/kernels/test_labels.py", *(["tests/kernels/test_cuda.py"] if device == "cuda" else [])]
    on = "cuda and not stepped" if device == "cuda" else "cpu and not compile and not one_graph"
    kernel_tests = pytest("tests/kernels/test_upsample.py" if tiny else "tests/kernels", "-n", "0" if tiny else "8")
    tools = ("memcheck", "racecheck", "initcheck", "synccheck")
    under = [f"compute-sanitizer --tool {tool} --error-exitcode 9 {shlex.join(calls)} || code=1" for tool in tools]
    sanitizer = ["bash", "-c", "; ".join(["code=0", *under, "exit $code"])]
    steps = [
        Step("install", "compile the kernels for this GPU", 9, install(device)),
        Step("smoke", "small calls with all options", 2, calls),
        Step("device-tests", "streams, graphs, threads, memory, wrong labels", 6, pytest(*device_tests, "-n", "0")),
        Step("kernel-tests", "the kernels compared with the reference", 9, [*kernel_tests, "-k", on]),
    ]
    if device == "cuda":
        loss_tests = pytest("tests/loss", "-n", "8", "-k", on)
        steps.append(Step("loss-tests", "the tests of the loss, carried to the device", 9, loss_tests))
        steps.append(Step("sanitizer", "memory, races and barriers, by compute-sanitizer", 9, sanitizer))
    return steps


def install(device: str) -> list[str]:
    """Return the command that compiles edgeloss for the GPU that is here, without a network and other packages."""
    state = "import edgeloss; print(edgeloss.__file__, edgeloss.backends())"
    if device == "cpu":
        return [PYTHON, "-c", state]
    arch = "import torch; print('%d%d' % torch.cuda.get_device_capability())"
    pip = "pip install --no-build-isolation --no-deps --no-index -e ."
    script = f'export EDGELOSS_BUILD=cuda; EDGELOSS_CUDA_ARCHS=$({PYTHON} -c "{arch}") {PYTHON} -m {pip}'
    return ["bash", "-c", f"{script} && {PYTHON} -c '{state}'"]


def measurements(device: str, output: Path, tiny: bool) -> list[Step]:
    """Return the steps that measure time and memory."""
    steps = []
    table = ["--output", str(output / "speed.jsonl"), "--device", device]
    rounds = ["--rounds", "1" if tiny else "21"]
    cases = ["small"] if tiny else ["19 classes", "2 classes", "150 classes"] if device == "cuda" else ["19 classes"]
    for words in cases:
        command = [PYTHON, "benchmarks/speed.py", *table, *rounds, "--only", words]
        name = f"speed-{words.split()[0]}"
        about = f"time and memory, {words}: eager, compiled, replayed"
        steps.append(Step(name, about, 9, command))
    if not tiny:
        command = [PYTHON, "benchmarks/speed.py", "--upsample", *table, *rounds]
        steps.append(Step("speed-upsample", "logits of lower resolution", 9, command))
    if device == "cuda":
        calls = f"{PYTHON} tests/host_shim/races.py cuda large"
        profile = (
            f"ncu --set full --kernel-name regex:kernel --launch-count 60 --force-overwrite -o {output}/kernels {calls}"
        )
        shown = f"ncu --import {output}/kernels.ncu-rep --page details --csv > {output}/kernels.csv"
        steps.append(Step("ncu", "what bounds each kernel", 9, ["bash", "-c", f"{profile} && {shown}"]))
    return steps


def quality(device: str, output: Path, data: Path, plans: Sequence[Path], tiny: bool) -> list[Step]:
    """Return the trainings, which go on at the next call until all runs have a row."""
    steps = []
    for plan in plans:
        command = [PYTHON, "benchmarks/quality.py", "plan", str(plan), "--data-root", str(data), "--device", device]
        command += ["--workers", "1" if tiny else "5", "--score-every", "20"]
        command += ["--results", str(output / "quality.jsonl"), "--state", str(output / "quality")]
        steps.append(Step(plan.stem, "trainings, all losses of a seed before the next seed", 9, command))
    return steps


def all_steps(options: argparse.Namespace) -> list[Step]:
    """Return the steps in the order of their value."""
    plans = options.plans or sorted(ROOT.glob("configs/quality-gpu-*.yaml"), reverse=True)
    steps = checks(options.device, options.tiny)
    steps += measurements(options.device, options.output, options.tiny)
    return steps + quality(options.device, options.output, options.data, plans, options.tiny)


def run(step: Step, output: Path, minutes: float) -> dict[str, object]:
    """Run a step for these minutes at most, with its output in a log, and return its status."""
    start, env = time.monotonic(), os.environ | {"PYTHONUNBUFFERED": "1"}
    tools = [word for word in ("compute-sanitizer", "ncu") if any(word in part for part in step.command)]
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        return {"step": step.name, "status": ABSENT, "missing": missing, "seconds": 0.0}
    with (output / f"{step.name}.log").open("a") as log:
        # In a session of its own, so that all of its processes can be stopped.
        process = subprocess.Popen(
            step.command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            stop(process)
    status = CUT_OFF if code is None else FAILED if code else PASSED
    return {"step": step.name, "status": status, "code": code, "seconds": round(time.monotonic() - start, 1)}


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a step and its processes: those that write results get ten seconds to finish."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the steps and what is known of them, and end")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these steps, also if they have passed")
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME", help="not these steps")
    parser.add_argument("--minutes", type=float, default=600, help="in all; no step is started that has under one left")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "runs" / "gpu", metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared",
        metavar="DIR",
        help="folder of camvid (default: %(default)s)",
    )
    parser.add_argument(
        "--plans", nargs="+", type=Path, metavar="FILE", help="trainings (default: configs/quality-gpu-*)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the steps without a GPU")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to try the steps")
    options = parser.parse_args()
    options.output, options.data = options.output.resolve(), options.data.resolve()
    return options


def main() -> int:
    """Run the steps, and return 1 if one of them failed."""
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    table = options.output / "steps.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    last = {row["step"]: row for row in rows}
    steps = all_steps(options)
    names = [step.name for step in steps]
    if unknown := sorted({*(options.only or []), *options.skip} - set(names)):
        print(f"gpu_day: expected some of {names}, but got {unknown}", file=sys.stderr)
        return 2
    if options.list:
        for step in steps:
            state = last.get(step.name, {}).get("status", "")
            print(f"{step.name:22} {step.minutes:2g} min  {state:12} {step.about}")
        return 0
    end, failed = time.monotonic() + 60 * options.minutes, False
    for step in steps:
        passed = last.get(step.name, {}).get("status") == PASSED
        if step.name in options.skip or (step.name not in options.only if options.only else passed):
            continue
        if (left := (end - time.monotonic()) / 60) < 1:
            print(f"gpu_day: {step.name}: no time is left; the same command continues here", flush=True)
            return 1
        print(f"==> {step.name}: {step.about}", flush=True)
        row = run(step, options.output, min(step.minutes, left))
        with table.open("a") as file:
            file.write(json.dumps(row) + "\n")
        log = options.output / f"{step.name}.log"
        tail = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else []
        print("\n".join([*tail, f"==> {step.name}: {row['status']} after {row['seconds']} s"]), flush=True)
        failed |= row["status"] == FAILED
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
