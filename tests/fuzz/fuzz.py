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
from typing import Any

import numpy as np
import torch
from oracle import Answer
from roundings import KINDS, LIMITS, Case, compare, laid_out, run
from torch import Tensor

from edgeloss import library
from edgeloss.functional import edge_aware_loss
from edgeloss.options import Backend

AT_ONCE = 40  # calls of a process between two messages
SLOW = 150  # pixels, from which on windows are at most of radius 3
SIZES = {  # bounds of the size along each axis, and how often they are drawn; where all reach 7 there are regions
    ((1, 3), (1, 3)): 15,
    ((1, 9), (1, 9)): 25,
    ((7, 34), (7, 34)): 45,
    ((1, 12), (30, 150)): 8,
    ((30, 150), (1, 12)): 4,
    ((1, 2), (300, 700)): 2,
    ((7, 9), (60, 170)): 3,
    ((0, 0), (1, 9)): 0.3,
    ((1, 2), (1, 3), (1, 3)): 5,
    ((1, 5), (1, 5), (1, 5)): 10,
    ((7, 10), (7, 10), (7, 13)): 15,
}
CHOICES = {  # of options, and how often they are drawn
    "ignore_index": {255: 5, -100: 2, None: 1, 1: 1},
    "reduction": {"mean": 5, "sum": 2, "none": 2},
    "label_smoothing": {0.0: 7, 0.1: 2, 1.0: 1},
    "ce_weight": {1.0: 3, 0.0: 1, 0.3: 1},
    "edge_weight": {1.0: 5, 0.0: 1, 2.5: 3},
    "other_side_weight": {1.0: 3, 0.0: 1, 0.7: 1},
    "same_side_weight": {1.0: 3, 0.0: 1, 0.4: 1},
    "region_weight": {0.0: 2, 3.0: 4, 0.7: 1, 10.0: 1},
    "power": {0.0: 6, 1.0: 2, -1.0: 2, 0.5: 1, 3.0: 0.5, -30.0: 0.3, 0.01: 0.5, -1e-5: 0.5},
    "decay": {None: 6, 0.1: 1, 0.7: 1, 2.0: 1, 9.0: 1},
    "sync_normalizer": {False: 9, True: 1},
    "normalizer": {None: 9, (20.0, 7.5): 1, (0.3, 0.0): 0.3},
    "validate": {"async": 2, "sync": 1, "never": 1},
}
# The kernels of GPUs, in Triton's interpreter, which reads it where they are defined; for power 0, and sums.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    CHOICES |= {"power": {0.0: 1}, "reduction": {"mean": 5, "sum": 2}}
BACKENDS: tuple[Backend, ...] = ("fused",) if INTERPRETED else ("fused", "reference")
LAYOUTS = ["channels last", "transposed", "padded", *["contiguous"] * 3]
Rng = np.random.Generator
Key = tuple[str, str, str]  # dtype of the logits, whether the region term takes part, backend
Row = tuple[Key, dict[str, float], list[str]]  # of a call and a backend: the errors, and what failed
Table = dict[Key, dict[str, float]]  # the numbers of calls and failures, and the largest errors


# ------------------------------------------------------------------------------------------------------------ the calls


def pick(rng: Rng, choices: dict[Any, float]) -> Any:
    """Return one of the keys, with probabilities in proportion to the values."""
    weights = np.array([*choices.values()])
    return [*choices][rng.choice(len(weights), p=weights / weights.sum())]


def make_case(number: int) -> Case:
    """Return the call of a number."""
    rng = np.random.default_rng(number)
    dtype = pick(rng, {torch.float64: 2, torch.float32: 4, torch.bfloat16: 2, torch.float16: 2})
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    size, multilabel = [int(rng.integers(a, b + 1)) for a, b in pick(rng, SIZES)], bool(rng.random() < 0.25)
    batch, channels = pick(rng, {0: 1, 1: 60, 2: 40}), pick(rng, {1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 9: 1, 20: 1, 150: 0.3})
    pixels = max(1, math.prod(size))  # the oracle is slow with many classes
    channels = min(channels, max(1, 4000 // pixels if multilabel else math.isqrt(200_000 // pixels)))
    is_low = rng.random() < 0.2 and 0 not in size
    low = [int(rng.integers(1, n + 1)) for n in size] if is_low else size
    options = {name: pick(rng, choices) for name, choices in CHOICES.items()}
    options |= {"multilabel": multilabel, "upsample": bool(is_low or rng.random() < 0.1)}
    ignored, classes = options["ignore_index"], 2 if multilabel else max(2, channels)
    y = make_labels(rng, [batch * channels if multilabel else batch, *size], classes)
    no_class = pick(rng, {77: 1, -5: 1}) if options["validate"] == "never" else 0
    y = torch.from_numpy(np.where(y < 0, no_class if ignored is None else ignored, y))
    y = y.reshape(batch, channels, *size) if multilabel else y
    x = make_logits(rng, [batch, channels, *low], y, 6e4 if dtype == torch.float16 else 1e30)
    options |= make_windows(rng, size)

    def tensor(shape: list[int], most: float, share: float) -> Tensor | None:
        values = torch.from_numpy(most * rng.random(shape) * (rng.random(shape) > 0.1))
        return lay_out(rng, values.to(wide)) if rng.random() < share else None

    for name in ("weight", "edge_class_weight"):
        table = [channels, 2] if multilabel and rng.random() < 0.5 else [channels if multilabel else classes]
        options[name] = tensor(table, 10.0 ** rng.uniform(-2, 2), 0.3)
    of_images = [batch, *size] if rng.random() < 0.5 else [*y.shape]
    options["pixel_weight"] = tensor(of_images, 10.0 ** rng.uniform(-2, 2), 0.3)
    reach = pick(rng, {1: 2, 30: 1, 1000: 1}) * (options["decay"] or 0)  # of distances, up to 1000 decays
    options["distance"] = tensor([*y.shape], reach, 0.4 * bool(reach))
    least, most = (int(y.min()), int(y.max())) if y.numel() else (0, 0)
    kinds = [torch.int64, torch.int32, torch.int16] + [torch.uint8] * (least >= 0)
    kinds += [torch.bool] * (multilabel and least >= 0 and most <= 1)
    arrives = torch.tensor(pick(rng, {1.0: 6, 0.25: 1, 65536.0: 2}))
    if options["reduction"] == "none":
        arrives = torch.from_numpy(rng.standard_normal(y.shape))
    return Case(
        x=lay_out(rng, x.to(dtype)),
        y=lay_out(rng, y.to(kinds[rng.integers(len(kinds))])),
        options=options,
        upstream=arrives.to(wide),
        unread=pick(rng, {0.0: 2, np.nan: 1, np.inf: 1, -np.inf: 1}),
        has_gradient=rng.random() < 0.95,
        returns=tuple(name for name, share in (("maps", 0.3), ("terms", 0.5)) if rng.random() < share),
    )


def make_labels(rng: Rng, shape: list[int], classes: int) -> np.ndarray:
    """Return labels [B, *S] with areas, thin lines or noise; -1 is ignored."""
    style = pick(rng, {"noise": 2, "halves": 2, "rare": 2, "constant": 1, "areas": 4})
    noise, y = rng.integers(0, classes, shape), np.full(shape, rng.integers(0, classes))
    if style == "halves":
        y[..., shape[-1] // 2 :] = rng.integers(0, classes)
    elif style in ("rare", "noise"):
        y = np.where(rng.random(shape) < (0.2 if style == "rare" else 1.0), noise, y)
    for image in np.repeat(np.arange(shape[0]), 6 if style == "areas" else 0):
        ends = [sorted(rng.integers(0, n + 1, 2)) for n in shape[1:]]
        y[(image, *(slice(*pair) for pair in ends))] = rng.integers(-1, classes)
    return np.where(rng.random(shape) < pick(rng, {0.0: 5, 0.1: 3, 0.5: 1.5, 1.0: 0.3}), -1, y)


def make_logits(rng: Rng, shape: list[int], y: Tensor, top: float) -> Tensor:
    """Return logits [B, C, *S] in float64, for labels per pixel or per class."""
    styles = {"normal": 3, "small": 1, "large": 1, "huge": 1, "rounded": 1, "constant": 1, "offset": 1, "sure": 6}
    style, x = pick(rng, styles), rng.standard_normal(shape)
    factors = {"small": 1e-3, "large": 30.0, "huge": 10.0 ** rng.uniform(2, np.log10(top)), "constant": 0.0}
    x *= factors.get(style, 1.0)
    if style == "rounded":
        x = np.round(2 * x) / 2
    elif style == "offset":
        x += 10.0 ** rng.integers(3, 7) * rng.standard_normal((shape[0], 1, *shape[2:]))
    elif style == "sure":  # of the label, or for a share of the pixels of another class
        gap, wrong = 10.0 ** rng.uniform(0.5, 2.5), pick(rng, {0.0: 2, 0.05: 2, 0.5: 1, 1.0: 1})
        gap = pick(rng, {gap: 5, top: 1})
        classes = y.numpy() if y.dim() == x.ndim else y.numpy()[:, None]
        for axis, length in enumerate(shape[2:], start=2):
            classes = classes.take(np.arange(length) * classes.shape[axis] // max(1, length), axis)
        classes = classes + (rng.random(classes.shape) < wrong)
        index = np.arange(shape[1]).reshape(1, -1, *[1] * (x.ndim - 2))
        is_right = 2 * (classes % 2) - 1 if y.dim() == x.ndim or shape[1] == 1 else index == classes % shape[1]
        x = x * pick(rng, {0.0: 1, 0.1: 1, 1.0: 2}) + gap * is_right
    return torch.from_numpy(np.clip(x, -top, top))


def make_windows(rng: Rng, size: list[int]) -> dict[str, Any]:
    """Return radius and spacing."""
    radius = [pick(rng, {0: 1, 1: 6, 2: 2, 3: 1}) for _ in size]
    if math.prod(size) <= SLOW and rng.random() < 0.2:  # up to beyond the image
        radius = [pick(rng, {int(rng.integers(0, 3 * n // 2 + 2)): 9, 2**62: 0.5}) for n in size]
    spacing = [1.0] * len(size) if rng.random() < 0.4 else 10.0 ** rng.uniform(-0.5, 0.5, len(size))
    return {"radius": radius if any(radius) else [1] * len(size), "spacing": [float(s) for s in spacing]}


def lay_out(rng: Rng, values: Tensor) -> Tensor:
    """Return the same values in another memory layout."""
    return laid_out(values, LAYOUTS[rng.integers(len(LAYOUTS))])


# ------------------------------------------------------------------------------------------------------- the comparison


def solved(number: int) -> tuple[Case, Answer]:
    """Return the call of a number, and the answer of the oracle."""
    case = make_case(number)
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
    print(make_case(number))
    failed = add(table, check(number))
    print(as_markdown(table))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
