#!/usr/bin/env python3
"""Compare the loss with an independent computation in long doubles, on random calls.

Every number is a call: logits, labels, all options, dtypes and memory layouts follow from it. Value, terms and gradient
of the fused kernels and of the reference, and in some cases the maps of the reference, are compared with oracle.py. A
call fails where one differs by more roundings than are allowed, or raises an error. Exit status 1 if a call failed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from oracle import Answer, solve
from torch import Tensor

from edgeloss.functional import edge_aware_loss

EXAMPLES = """\
examples:
  python tests/fuzz/fuzz.py --number 1234            replay one call, with its options and errors
  python tests/fuzz/fuzz.py --first 0 --count 20000  the calls 0 to 19,999
  make fuzz MINUTES=60 JOBS=2                        as long as you like, in two processes

Errors are in roundings: of float32, or of float64 for float64 logits, in units that docs/loss.md describes. A gradient
of half precision is first compared with the exact one in half a unit of its last place.
"""

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LIMITS = {"loss": 16.0, "terms": 16.0, "gradient": 16.0, "maps": 16.0}  # roundings
COLUMNS = ("logits", "regions", "backend", "calls", "failed", *LIMITS)
AT_ONCE = 40  # calls between two messages of a process
Rng = np.random.Generator


@dataclass
class Case:
    """A call, and what is asked of it: terms, maps of the reference, a gradient."""

    number: int
    x: Tensor
    y: Tensor
    options: dict[str, Any]
    upstream: Tensor
    unread: float  # the value of logits that the loss does not depend on
    returns_terms: bool
    returns_maps: bool
    has_gradient: bool
    about: str

    @property
    def dtype(self) -> str:
        """The dtype of the logits."""
        return str(self.x.dtype).removeprefix("torch.")

    def describe(self) -> str:
        """Return one line."""
        options = {k: f"{v.dtype} {list(v.shape)}" if isinstance(v, Tensor) else v for k, v in self.options.items()}
        return (
            f"number {self.number}: {self.dtype} {list(self.x.shape)} strides {self.x.stride()}, labels"
            f" {list(self.y.shape)} {self.y.dtype}, {self.about}, {options}, upstream {self.upstream.flatten()[:1].tolist()},"
            f" terms {self.returns_terms}, gradient {self.has_gradient}"
        )


# ------------------------------------------------------------------------------------------------------------ the calls


def pick(rng: Rng, choices: dict[Any, float]) -> Any:
    """Return one of the keys, with probabilities in proportion to the values."""
    weights = np.array([*choices.values()])
    return [*choices][rng.choice(len(weights), p=weights / weights.sum())]


def make_case(number: int) -> Case:
    """Return the call of a number."""
    rng = np.random.default_rng(number)
    dtype, multilabel = pick(rng, {"float64": 2, "float32": 4, "bfloat16": 2, "float16": 2}), rng.random() < 0.25
    shape, size = pick(rng, SIZES)(rng)
    batch = int(pick(rng, {0: 0.01, 1: 0.6, 2: 0.4}))
    channels = pick(rng, {1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 9: 1, 20: 1, 150: 0.3})
    pixels = max(1, int(np.prod(size)))  # the oracle is slow with many classes
    channels = min(channels, max(1, 4000 // pixels if multilabel else math.isqrt(200_000 // pixels)))
    power = pick(rng, {0.0: 6, 1.0: 2, -1.0: 2, 0.5: 1, 3.0: 0.5, -30.0: 0.3, 0.01: 0.5, -1e-5: 0.5})
    ignore_index = pick(rng, {255: 5, -100: 2, None: 1, 1: 1})
    validate = pick(rng, {"async": 2, "sync": 1, "never": 1})
    classes = 2 if multilabel else max(2, channels)
    images = batch * (channels if multilabel else 1)
    labels, y = make_labels(rng, images, size, classes)
    unlabeled = ignore_index if ignore_index is not None else (77 if validate == "never" else 0)
    y = torch.from_numpy(np.where(y == -1, unlabeled, y))
    y = y.reshape(batch, channels, *size) if multilabel else y
    low = [int(rng.integers(1, n + 1)) for n in size] if rng.random() < 0.2 and 0 not in size else size
    logits, x = make_logits(rng, batch, channels, low, y, dtype)
    options = make_options(rng, y, channels, dtype, power, multilabel=multilabel)
    options |= {"ignore_index": ignore_index, "validate": validate, "upsample": low != size or rng.random() < 0.1}
    y = lay_out(rng, y.to(any_kind(rng, y, multilabel=multilabel)))
    x = lay_out(rng, x.to(DTYPES[dtype]))
    unread = pick(rng, {0.0: 2, np.nan: 1, np.inf: 1, -np.inf: 1})
    wide = torch.float64 if dtype == "float64" else torch.float32
    arrives = pick(rng, {1.0: 6, 0.25: 1, 65536.0: 1, -0.7: 1})
    upstream = torch.as_tensor(rng.standard_normal(y.shape) if options["reduction"] == "none" else arrives, dtype=wide)
    asked = [bool(rng.random() < p) for p in (0.5, 0.3 * bool(y.numel()), 0.95)]
    return Case(number, x, y, options, upstream, unread, *asked, f"{shape} image, {labels} labels, {logits} logits")


def sizes(name: str, *axes: tuple[int, int]) -> Callable[[Rng], tuple[str, list[int]]]:
    """Return what draws a size between bounds per axis."""
    return lambda rng: (name, [int(rng.integers(least, most + 1)) for least, most in axes])


SIZES = {
    sizes("tiny", (1, 3), (1, 3)): 15,
    sizes("small", (1, 9), (1, 9)): 25,
    sizes("regions", (7, 34), (7, 34)): 45,
    sizes("wide", (1, 12), (30, 150)): 8,
    sizes("high", (30, 150), (1, 12)): 4,
    sizes("empty", (0, 0), (1, 9)): 0.3,
    sizes("tiny", (1, 2), (1, 3), (1, 3)): 5,
    sizes("small", (1, 5), (1, 5), (1, 5)): 10,
    sizes("regions", (7, 10), (7, 10), (7, 13)): 15,
}


def make_labels(rng: Rng, batch: int, size: list[int], classes: int) -> tuple[str, np.ndarray]:
    """Return a style and labels [B, *S] with areas, thin lines or noise; -1 is ignored."""
    style = pick(rng, {"noise": 2, "halves": 2, "rare": 2, "constant": 1, "areas": 4})
    y = rng.integers(0, classes, (batch, *size))
    if style != "noise":
        y[...] = rng.integers(0, classes)
    if style == "halves":
        y[..., size[-1] // 2 :] = rng.integers(0, classes)
    elif style == "rare":
        y = np.where(rng.random(y.shape) < 0.2, rng.integers(0, classes, y.shape), y)
    for _ in range(6 if style == "areas" else 0):
        for image in y:
            ends = [sorted(rng.integers(0, n + 1, 2)) for n in size]
            image[tuple(slice(*pair) for pair in ends)] = rng.integers(-1, classes)
    if rng.random() < 0.5:
        y[rng.random(y.shape) < pick(rng, {0.1: 6, 0.5: 3, 1.0: 1})] = -1
    return style, y


def make_logits(rng: Rng, batch: int, channels: int, size: list[int], y: Tensor, dtype: str) -> tuple[str, Tensor]:
    """Return a style and logits [B, C, *S] in float64, for labels per pixel or per class."""
    style = pick(
        rng, {"normal": 3, "small": 1, "large": 1, "offset": 1, "rounded": 1, "constant": 1, "huge": 1, "sure": 6}
    )
    x = rng.standard_normal((batch, channels, *size))
    top, shape = 6e4 if dtype == "float16" else 1e30, (batch, 1, *size)
    if style == "constant":
        x[...] = 0.5
    elif style == "rounded":
        x = np.round(2 * x) / 2
    elif style == "offset":
        x += pick(rng, {1e3: 1, 1e4: 1, 1e6: 1}) * rng.standard_normal(shape)
    elif style == "sure":  # of the label, or for a share of the pixels of another class
        gap, wrong = (
            pick(rng, {3: 1, 12: 1, 20: 1, 60: 1, 200: 1, 1e30: 1}),
            pick(rng, {0.0: 2, 0.05: 2, 0.5: 1, 1.0: 1}),
        )
        classes = y.reshape(batch, math.prod(y.shape[1 : y.dim() + 2 - x.ndim]), *y.shape[2 - x.ndim :]).numpy()
        for axis, length in enumerate(size, start=2):
            classes = classes.take(np.arange(length) * classes.shape[axis] // max(1, length), axis)
        classes = np.where(rng.random(classes.shape) < wrong, classes + 1, classes)
        if y.dim() == x.ndim or channels == 1:
            is_right = 2 * (classes % 2) - 1
        else:
            is_right = np.arange(channels).reshape(1, -1, *[1] * len(size)) == classes % channels
        x = x * pick(rng, {0.0: 1, 0.1: 1, 1.0: 2}) + gap * is_right
        style = f"{style} ({gap:g}, wrong {wrong:g})"
    x *= {"small": 1e-3, "large": 30, "huge": 10.0 ** rng.uniform(2, np.log10(top))}.get(style, 1)
    return style, torch.from_numpy(np.clip(x, -top, top))


def make_options(rng: Rng, y: Tensor, channels: int, dtype: str, power: float, *, multilabel: bool) -> dict[str, Any]:
    """Return the options that do not depend on the values of labels and logits."""
    size, wide = y.shape[1 + multilabel :], torch.float64 if dtype == "float64" else torch.float32
    dims = len(size)

    def some(probability: float) -> bool:
        return bool(rng.random() < probability)

    def tensor(shape: Any) -> Tensor:
        values = rng.random(shape) * 10.0 ** rng.uniform(-2, 2) * (rng.random(shape) > 0.1)
        return lay_out(rng, torch.from_numpy(values).to(wide))

    radius = [int(pick(rng, {0: 1, 1: 6, 2: 2, 3: 1})) for _ in size]
    if np.prod(size) <= 150 and some(0.2):  # up to beyond the image
        radius = [int(rng.integers(0, 3 * n // 2 + 2)) for n in size]
    radius = radius if any(radius) else [1] * dims
    if np.prod(size) <= 150 and some(0.02):
        radius[0] = 2**62
    spacing = [float(s) for s in 10.0 ** rng.uniform(-0.5, 0.5, dims)]
    decay = float(10.0 ** rng.uniform(-1, 1)) if some(0.4) else None
    of_classes = [[channels], [channels, 2]] if multilabel else [[max(2, channels)]] * 2
    of_pixels = [[*y.shape], [y.shape[0], *size]] if multilabel else [[*y.shape]] * 2
    options = {
        "multilabel": multilabel,
        "reduction": pick(rng, {"mean": 5, "sum": 2, "none": 2}),
        "label_smoothing": pick(rng, {0.0: 7, 0.1: 2, 1.0: 1}),
        "ce_weight": pick(rng, {1.0: 3, 0.0: 1, 0.3: 1}),
        "edge_weight": pick(rng, {1.0: 5, 0.0: 1, 2.5: 3}),
        "other_side_weight": pick(rng, {1.0: 3, 0.0: 1, 0.7: 1}),
        "same_side_weight": pick(rng, {1.0: 3, 0.0: 1, 0.4: 1}),
        "region_weight": pick(rng, {0.0: 2, 3.0: 4, float(rng.uniform(0, 10)): 2}),
        "radius": pick(rng, {radius[0]: 1, tuple(radius): 1}) if len({*radius}) == 1 else tuple(radius),
        "power": power,
        "decay": decay,
        "spacing": pick(rng, {None: 2, spacing[0]: 1, tuple(spacing): 1}),
        "sync_normalizer": some(0.1),
        "normalizer": (float(rng.uniform(1, 50)), float(pick(rng, {0.0: 1, 7.5: 4}))) if some(0.1) else None,
        "weight": tensor(of_classes[rng.integers(2)]) if some(0.3) else None,
        "edge_class_weight": tensor(of_classes[rng.integers(2)]) if some(0.3) else None,
        "pixel_weight": tensor(of_pixels[rng.integers(2)]) if some(0.3) else None,
    }
    reach = pick(rng, {1.0: 2, 30.0: 1, 1000.0: 1})  # of distances, in decays
    options["distance"] = reach * (decay or 1) * tensor([*y.shape]).clamp(max=1) if decay and some(0.4) else None
    return options


def any_kind(rng: Rng, y: Tensor, *, multilabel: bool) -> torch.dtype:
    """Return one of the dtypes that hold the labels."""
    kinds = [torch.int64, torch.int32, torch.int16]
    least, most = (int(y.min()), int(y.max())) if y.numel() else (0, 0)
    kinds += [torch.uint8] * (least >= 0) + [torch.bool] * (multilabel and least >= 0 and most <= 1)
    return kinds[int(rng.integers(len(kinds)))]


def lay_out(rng: Rng, values: Tensor) -> Tensor:
    """Return the same values in another memory layout."""
    kind = rng.integers(6)
    if kind == 0 and values.dim() > 3:
        return values.movedim(1, -1).contiguous().movedim(-1, 1)
    if kind == 1 and values.dim() > 1:
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == 2:
        return torch.cat([values, values], -1)[..., : values.shape[-1]]
    return values.contiguous()


# ------------------------------------------------------------------------------------------------------- the comparison


def exact(case: Case) -> Answer:
    """Return the answer of the oracle."""
    names, dims = ("weight", "edge_class_weight", "pixel_weight", "distance"), case.x.dim() - 2
    options = {k: v.double().numpy() if isinstance(v, Tensor) else v for k, v in case.options.items()}
    assert all(name in options for name in names)
    for name, default in (("radius", 1), ("spacing", 1.0)):
        value = default if options[name] is None else options[name]
        options[name] = value if isinstance(value, tuple) else (value,) * dims
    wide = np.float64 if case.dtype == "float64" else np.float32
    return solve(case.x.double().numpy(), case.y.long().numpy(), options, case.upstream.double().numpy(), wide)


def run(case: Case, is_read: np.ndarray, backend: str) -> dict[str, Any]:
    """Return loss, terms, gradient and maps of a backend, as far as they are asked for, as arrays of float64."""
    x = torch.empty_strided(case.x.shape, case.x.stride(), dtype=case.x.dtype).copy_(case.x)
    x[~torch.from_numpy(is_read)] = case.unread
    x.requires_grad_(case.has_gradient)
    asked = {"return_terms": case.returns_terms, "return_maps": case.returns_maps and backend == "reference"}
    result = edge_aware_loss(x, case.y, **case.options, **asked, backend=backend)
    loss, *more = result if isinstance(result, tuple) else (result,)
    found = {"loss": {"loss": loss}}
    if asked["return_maps"]:
        found["maps"] = {name: values for name, values in more.pop(0)._asdict().items() if values is not None}
    if asked["return_terms"]:
        found["terms"] = more.pop(0)
    if case.has_gradient:
        found["gradient"] = {"gradient": torch.autograd.grad(loss, x, case.upstream)[0]}
    return {kind: {name: v.detach().double().numpy() for name, v in of.items()} for kind, of in found.items()}


def compare(case: Case, answer: Answer, found: dict[str, Any]) -> dict[str, float]:
    """Return the errors in roundings, by kind of result; infinite where something is missing."""
    wide = torch.finfo(torch.float64 if case.dtype == "float64" else torch.float32)
    errors = {}
    for kind, values in found.items():
        right = {kind: getattr(answer, kind)} if kind in ("loss", "gradient") else getattr(answer, kind)
        errors[kind] = 0.0 if right.keys() == values.keys() else np.inf
        for name in right.keys() & values.keys():
            off, unit = difference(values[name], right[name][0]), right[name][1]
            if kind == "gradient":
                off = of_gradient(case, answer, values[name])
            ratio = off / (unit * wide.eps + wide.tiny)
            errors[kind] = max(errors[kind], float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0)))
    return errors


def difference(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return |found - right|, 0 where they are equal, infinite ones too."""
    with np.errstate(invalid="ignore"):
        return np.where(found == right, 0, np.abs(found - right))


def of_gradient(case: Case, answer: Answer, found: np.ndarray) -> np.ndarray:
    """Return the difference of a gradient beyond its last rounding, and beyond what may be lost."""
    stored, right = torch.finfo(case.x.dtype), answer.gradient[0]
    found, right = (np.clip(values, -stored.max, stored.max) for values in (found, right))
    off = difference(found, right)
    if stored.bits == 16:
        exponent = np.frexp(np.maximum(np.abs(found), np.abs(right)).astype(np.longdouble))[1]
        off = off - np.maximum(np.ldexp(stored.eps, exponent - 2), stored.tiny * stored.eps / 2)
    off = np.where(answer.is_rough & np.isfinite(off), 0, np.maximum(off - answer.lost, 0))
    return np.where(~answer.is_read & (found != 0), np.inf, off)


# ------------------------------------------------------------------------------------------------------------- the runs


Table = dict[
    tuple[str, ...], Counter
]  # by logits, regions and backend: the numbers of calls and failures, the worst errors


def check(case: Case) -> tuple[Table, list[str]]:
    """Run a call on both backends, and return its rows of the table and what failed."""
    answer, table, failures = exact(case), {}, []
    for backend in ("fused", "reference"):
        try:
            errors = compare(case, answer, run(case, answer.is_read, backend))
            failed = [f"{kind} is {e:.3g} roundings off" for kind, e in errors.items() if not e <= LIMITS[kind]]
        except Exception as error:  # every one is a failure of this call
            errors, failed = {}, [f"{type(error).__name__}: {error}"]
        regions = "yes" if answer.has_regions else "no"
        table[case.dtype, regions, backend] = Counter({"calls": 1, "failed": bool(failed)} | errors)
        failures += [f"{backend}: {reason}" for reason in failed]
    return table, failures


def check_many(first: int) -> tuple[Table, dict[int, list[str]]]:
    """Run some numbers from the first on."""
    table, failures = {}, {}
    for number in range(first, first + AT_ONCE):
        rows, failed = check(make_case(number))
        merge(table, rows)
        if failed:
            failures[number] = failed
    return table, failures


def merge(table: Table, rows: Table) -> None:
    """Add rows to a table."""
    for key, row in rows.items():
        total = table.setdefault(key, Counter())
        for name, value in row.items():
            total[name] = total[name] + value if name in ("calls", "failed") else max(total[name], value)


def as_markdown(table: Table) -> str:
    """Return the table with a row per dtype of the logits, with or without regions, and backend."""
    lines = [" | ".join(COLUMNS), " | ".join(["---"] * 3 + ["---:"] * (len(COLUMNS) - 3))]
    for key, row in sorted(table.items()):
        lines.append(" | ".join([*key, f"{row['calls']:,}", f"{row['failed']:,}", *(f"{row[n]:.2g}" for n in LIMITS)]))
    return "\n".join(f"| {line} |" for line in lines)


def fuzz(first: int, count: float, minutes: float, jobs: int, most_failures: int) -> int:
    """Run numbers until there are enough, of them or of failures, or the time is over; return the exit status."""
    table, failed, number, start, shown = {}, 0, first, time.monotonic(), time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=start_process) as pool:
        try:
            while number < first + count and failed < most_failures and time.monotonic() - start < 60 * minutes:
                for rows, failures in pool.map(check_many, range(number, number + jobs * AT_ONCE, AT_ONCE)):
                    merge(table, rows)
                    failed += len(failures)
                    for n, reasons in failures.items():
                        print(f"FAILED --number {n}", *reasons, sep="\n  ", flush=True)
                number += jobs * AT_ONCE
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    print(progress(number, number - first, failed, shown - start, table), flush=True)
        except KeyboardInterrupt:
            print("fuzz.py: interrupted; the figures so far:", file=sys.stderr)
    print(as_markdown(table))
    print(progress(number, number - first, failed, time.monotonic() - start, table))
    return int(failed > 0)


def progress(number: int, count: int, failed: int, seconds: float, table: Table) -> str:
    """Return a line on a run."""
    worst = ", ".join(f"{name} {max((row[name] for row in table.values()), default=0):.2g}" for name in LIMITS)
    return f"{seconds:.0f} s: {count:,} calls, {count / seconds:.0f}/s, {failed} failed; worst {worst}; next {number}"


def start_process() -> None:
    """Leave Ctrl-C to the parent, and other processors to the other processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, help="run the call of this number alone")
    parser.add_argument(
        "--first", type=int, default=int(time.time()) * 1000, help="first number; default: by the clock"
    )
    parser.add_argument("--count", type=float, default=float("inf"), help="how many calls; default: no limit")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="how long to run; default: no limit")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each; default: %(default)s")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many; default: %(default)s")
    arguments = parser.parse_args()
    if arguments.number is None:
        return fuzz(arguments.first, arguments.count, arguments.minutes, arguments.jobs, arguments.failures)
    case = make_case(arguments.number)
    print(case.describe())
    table, failures = check(case)
    print(as_markdown(table), *failures or ["passed"], sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
