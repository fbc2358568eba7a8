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
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from calls import ON_GPU, random_case
from oracle import Answer
from roundings import KINDS, LIMITS, Case, compare, run

from edgeloss import library
from edgeloss.functional import edge_aware_loss
from edgeloss.options import Backend

AT_ONCE = 40  # calls of a process between two messages
# The kernels of GPUs, in Triton's interpreter, which reads it where they are defined.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKENDS: tuple[Backend, ...] = ("fused",) if INTERPRETED else ("fused", "reference")
Key = tuple[str, str, str]  # dtype of the logits, whether the region term takes part, backend
Row = tuple[Key, dict[str, float], list[str]]  # of a call and a backend: the errors, and what failed
Table = dict[Key, dict[str, float]]  # the numbers of calls and failures, and the largest errors


# ------------------------------------------------------------------------------------------------------- the comparison


def solved(number: int) -> tuple[Case, Answer]:
    """Return the call of a number, and the answer of the oracle."""
    case = random_case(number, **ON_GPU if INTERPRETED else {})
    return case, case.answer()


def check(number: int, backends: Sequence[Backend] = BACKENDS) -> list[Row]:
    """Run a call on some backends; return for each its row of the table, its errors, and what failed."""
    (case, answer), rows = solved(number), []
    limit = LIMITS[case.upstream.dtype]
    library.interprets = INTERPRETED
    for backend in backends:
        try:
            asked = replace(case, returns=tuple(k for k in case.returns if k == "terms" or backend == "reference"))
            found = run(asked, answer.is_read, partial(edge_aware_loss, backend=backend))
            by_torch = backend == "reference" or case.options["reduction"] == "none"
            errors = compare(case, answer, found, by_torch=by_torch)
            failed = [f"{kind} is {e:.3g} roundings off" for kind, e in errors.items() if not e <= limit]
        except Exception as error:  # every one is a failure of this call
            errors, failed = {}, [f"{type(error).__name__}: {error}"]
        key = str(case.x.dtype)[6:], "yes" if answer.has_regions else "no", backend
        rows.append((key, errors, [f"--number {number}, {backend}: {reason}" for reason in failed]))
    return rows


# ------------------------------------------------------------------------------------------------------------- the runs


def fuzz(first: int, count: float, minutes: float, jobs: int, failures: int) -> int:
    """Run numbers until there are enough, of them or of failures, or the time is over; return the exit status."""
    start = shown = time.monotonic()
    number, failed, table = first, 0, {}

    def progress() -> str:
        seconds, done = time.monotonic() - start, number - first
        worst = ", ".join(f"{kind} {max((row[kind] for row in table.values()), default=0):.2g}" for kind in KINDS)
        return f"{seconds:.0f} s: {done:,} calls, {done / seconds:.0f}/s, {failed} failed, next {number}; worst {worst}"

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in the background, a shell ignores Ctrl-C
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=start_process) as pool:
        try:
            while number < first + count and failed < failures and time.monotonic() - start < 60 * minutes:
                for rows in pool.map(check, range(number, int(min(first + count, number + jobs * AT_ONCE)))):
                    number, failed = number + 1, failed + add(table, rows)
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    print(progress(), flush=True)
        except KeyboardInterrupt:
            print("fuzz.py: interrupted; the figures so far:", file=sys.stderr)
    print(as_markdown(table), progress(), sep="\n")
    return int(failed > 0)


def add(table: Table, rows: list[Row]) -> bool:
    """Add the rows of a call to a table, print what failed, and return whether something did."""
    for key, errors, failed in rows:
        row = table.setdefault(key, dict.fromkeys(["calls", "failed", *KINDS], 0))
        row |= {"calls": row["calls"] + 1, "failed": row["failed"] + bool(failed)}
        row |= {kind: max(row[kind], error) for kind, error in errors.items()}
        for reason in failed:
            print(reason, flush=True)
    return any(failed for *_, failed in rows)


def as_markdown(table: Table) -> str:
    """Return the table with the largest errors."""
    lines = [
        "logits | regions | backend | calls | failed | loss | terms | gradient | maps",
        "--- | --- | ---" + " | ---:" * 6,
    ]
    for key, row in sorted(table.items()):
        counts = [f"{row[name]:,}" for name in ("calls", "failed")]
        lines.append(" | ".join([*key, *counts, *(f"{row[kind]:.2g}" for kind in KINDS)]))
    return "\n".join(f"| {line} |" for line in lines)


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
    parser.add_argument("--failures", type=int, default=5, help="stop after so many; default: %(default)s")
    arguments, table = vars(parser.parse_args()), {}
    number = arguments.pop("number")
    if number is None:
        return fuzz(**arguments)
    print(solved(number)[0])
    failed = add(table, check(number))
    print(as_markdown(table))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
