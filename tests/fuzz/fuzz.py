#!/usr/bin/env python3
"""Compare the loss with an independent computation in long doubles, on random calls.

Every number is a call: its logits, labels, options, dtypes and memory layouts follow from it. Loss, terms and gradient
of the fused kernels and of the reference, and in some calls the maps of the reference, are compared with oracle.py. A
call fails where one raises an error or differs by more than is allowed, as roundings.py counts it. The exit status is
then 1.

  make fuzz MINUTES=60 JOBS=2                               as long as you like
  python tests/fuzz/fuzz.py --first 0 --count 1e6 --jobs 2  a million calls in two processes
  python tests/fuzz/fuzz.py --number 1234                   one call again, with its arguments and errors
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from calls import ON_GPU, random_case
from oracle import Answer
from roundings import KINDS, LIMITS, Case, compare, run

from edgeloss._checks.options import BackendChoice
from edgeloss._kernels import library
from edgeloss.functional import edge_aware_loss

AT_ONCE = 40  # calls of a process between two messages
# The kernels of GPUs, in Triton's interpreter, which reads it where they are defined.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    sys.path.append(str(Path(__file__).parents[1]))
    import interpreted  # noqa: F401
BACKENDS: tuple[BackendChoice, ...] = ("fused",) if INTERPRETED else ("fused", "reference")
Errors = dict[str, float]  # the largest, of each kind of result


# ------------------------------------------------------------------------------------------------------- the comparison


def solved(number: int) -> tuple[Case, Callable[[int], Answer]]:
    """Return the call of a number, and the answers of the oracle."""
    case = random_case(number, **ON_GPU if INTERPRETED else {})
    return case, cache(case.answer)


def check(number: int, backends: Sequence[BackendChoice] = BACKENDS) -> tuple[Errors, list[str]]:
    """Run a call on some backends; return its errors, and what failed."""
    (case, answer), largest, failed = solved(number), dict.fromkeys(KINDS, 0.0), []
    limit = LIMITS[case.upstream.dtype]
    library.interprets = INTERPRETED
    for backend in backends:
        try:
            asked = replace(case, returns=tuple(k for k in case.returns if k == "terms" or backend == "reference"))
            found = run(asked, answer(0).is_read, partial(edge_aware_loss, backend=backend))
            by_torch = backend == "reference" or (INTERPRETED and case.options["reduction"] == "none")
            errors = compare(case, answer, found, by_torch=by_torch)
            reasons = [f"{kind} is {e:.3g} roundings off" for kind, e in errors.items() if not e <= limit]
        except Exception as error:  # every one is a failure of this call
            errors, reasons = {}, [f"{type(error).__name__}: {error}"]
        largest |= {kind: max(largest[kind], e) for kind, e in errors.items()}
        failed += [f"--number {number}, {backend}: {reason}" for reason in reasons]
    return largest, failed


# ------------------------------------------------------------------------------------------------------------- the runs


def fuzz(first: int, count: float, minutes: float, jobs: int, failures: int, backends: Sequence[BackendChoice]) -> int:
    """Run numbers until there are enough, of them or of failures, or the time is over; return the exit status."""
    start = shown = time.monotonic()
    number, failed, largest = first, 0, dict.fromkeys(KINDS, 0.0)

    def progress() -> str:
        seconds, done = time.monotonic() - start, number - first
        worst = ", ".join(f"{kind} {error:.2g}" for kind, error in largest.items())
        return f"{seconds:.0f} s: {done:,} calls, {done / seconds:.0f}/s, {failed} failed, next {number}; worst {worst}"

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in the background, a shell ignores Ctrl-C
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=start_process) as pool:
        try:
            while number < first + count and failed < failures and time.monotonic() - start < 60 * minutes:
                numbers = range(number, int(min(first + count, number + jobs * AT_ONCE)))
                for errors, reasons in pool.map(partial(check, backends=backends), numbers):
                    number, failed = number + 1, failed + bool(reasons)
                    largest = {kind: max(error, errors[kind]) for kind, error in largest.items()}
                    print(*reasons, sep="\n", end="\n" * bool(reasons), flush=True)
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    print(progress(), flush=True)
        except KeyboardInterrupt:
            print("fuzz.py: interrupted; the figures so far:", file=sys.stderr)
    print(progress())
    return int(failed > 0)


def start_process() -> None:
    """Leave Ctrl-C to the parent, and other processors to the other processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def main() -> int:
    """Run the command."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser, clock = argparse.ArgumentParser(description=__doc__, formatter_class=formatter), int(time.time()) * 1000
    parser.add_argument("--number", type=int, help="run the call of this number alone")
    parser.add_argument("--first", type=int, default=clock, help="the first number; default: by the clock")
    parser.add_argument("--count", type=float, default=math.inf, help="how many calls; default: no limit")
    parser.add_argument("--minutes", type=float, default=math.inf, help="how long to run; default: no limit")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each; default: %(default)s")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="default: %(default)s")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many; default: %(default)s")
    arguments = vars(parser.parse_args())
    number = arguments.pop("number")
    if number is None:
        return fuzz(**arguments)
    errors, reasons = check(number, arguments["backends"])
    print(solved(number)[0], f"worst: {errors}", *reasons, sep="\n")
    return int(bool(reasons))


if __name__ == "__main__":
    sys.exit(main())
