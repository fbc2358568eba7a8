#!/usr/bin/env python3
"""Compare the loss with an independent computation in long doubles, on random calls.

Every case has a number, from which its shapes, values, options, dtypes and memory layouts follow: logits, labels and
neighbors, and several calls with them, which differ in all that the oracle can take from the same terms. Even numbers
have a second case, with labels per class, and one number in eight has one with wide windows. It compares loss, maps and
gradient of the fused kernels, and in some cases those of the reference, with oracle.py, and stops with status 1 if one
differs by more than rounding explains.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle import Answer, Problem, solve
from torch import Tensor

from edgeloss.functional import edge_aware_loss

EXAMPLES = """\
examples:
  make fuzz MINUTES=60              # as long as you like
  python tests/fuzz/fuzz.py --case 1234   # one case, with its options and errors
"""

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CALLS = 8  # of a case
KINDS = {"plain": (), "multilabel": (0,), "wide": (0, 0, 1)}  # of cases, by what follows the number in their seeds
LIMITS = {2: 8, 3: 4}  # of sizes, by dimensions
WIDE_LIMITS = {2: 24, 3: 7}
# By the calls of a case.
SHARED = ("ignore_index", "multilabel", "radius", "power", "decay", "spacing")
REFERENCE_EVERY = 4  # cases, one call each: the reference takes several times as long as the kernels
MULTILABEL_EVERY = 2  # numbers, a case with labels per class
WIDE_EVERY = 8  # numbers, a case of wide windows: it takes a fifth of the time
FAILURES = 5  # after so many it stops
ROW = ("logits", "labels", "backend")  # what a row of the table is of
# How often the rounding of one operation may add up in a result: twice what was measured. In sums over wider windows
# than of radius 3 it grows with the neighbors: where they are nearly equal, their roundings have the same sign.
ROUNDINGS = 16
NARROW = 49


@dataclass
class Case:
    """A call: tensors, options, and what its options need as keywords of the loss."""

    number: int
    kind: str
    x: Tensor
    y: Tensor
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    normalizer: tuple[float, float] | None
    upstream: Tensor
    style: str
    returns_maps: bool = True

    @property
    def upsample(self) -> bool:
        """Whether the logits have a lower resolution than the labels."""
        return self.x.shape[2:] != self.y.shape[2 - self.x.dim() :]

    @property
    def row(self) -> tuple[str, str]:
        """The dtype of the logits and the shape of the labels, for the table."""
        return str(self.x.dtype).removeprefix("torch."), "[B, C, *S]" if self.options["multilabel"] else "[B, *S]"

    def describe(self) -> str:
        """Return one line."""
        given = {name: list(values.shape) for name, values in self.tensors.items()}
        return (
            f"case {self.number}, {self.kind}: {self.row[0]} {list(self.x.shape)} strides"
            f" {self.x.stride()}, labels {list(self.y.shape)} {self.y.dtype}, {self.style} logits, {self.options},"
            f" tensors {given}, normalizer {self.normalizer}{'' if self.returns_maps else ', without maps'}"
        )


@dataclass
class Errors:
    """The largest errors of a row of the table, and the number of calls."""

    calls: int = 0
    largest: dict[str, float] = field(default_factory=lambda: defaultdict(float))


Table = dict[tuple[str, ...], Errors]  # by the names in ROW


# ------------------------------------------------------------------------------------------------------------ the cases


def make_case(number: int, kind: str = "plain") -> Case:
    """Return the case of a number and kind: labels per class with "multilabel", wide windows with "wide"."""
    rng, multilabel = np.random.default_rng([number, *KINDS[kind]]), kind == "multilabel"
    dtype = str(rng.choice([*DTYPES], p=[0.2, 0.4, 0.2, 0.2]))
    dims = int(rng.choice([2, 3], p=[0.75, 0.25]))
    limit = (WIDE_LIMITS if kind == "wide" else LIMITS)[dims]
    size = [int(n) for n in rng.integers(1, limit + 1, dims)]
    batch = int(rng.integers(1, 3))
    if multilabel:
        channels = int(rng.choice([1, 2, 3, 5], p=[0.2, 0.4, 0.3, 0.1]))
        y = torch.stack([make_labels(rng, batch, size, 2) for _ in range(channels)], 1)
        ignore_index = [255, -100, None, 1][rng.choice(4, p=[0.5, 0.2, 0.2, 0.1])]
        y = torch.where(y == 255, 0 if ignore_index is None else ignore_index, y)
    else:
        channels = int(rng.choice([1, 2, 3, 4, 5, 9, 20], p=[0.15, 0.15, 0.2, 0.15, 0.15, 0.15, 0.05]))
        y, ignore_index = make_labels(rng, batch, size, max(2, channels)), 255
    low = [int(rng.integers(1, n + 1)) for n in size] if rng.random() < 0.2 else size
    upsample = low != size
    style, x = make_logits(rng, batch, channels, low, y, dtype, upsample=upsample)
    options, tensors, normalizer = make_options(rng, y, channels, dtype, upsample=upsample, kind=kind)
    options["ignore_index"] = ignore_index
    x = lay_out(rng, x.to(DTYPES[dtype]))
    if not upsample and rng.random() < 0.3:
        x = with_bad_logits(rng, x, ignored_logits(y, options))
    labels = any_kind(rng, y, multilabel=multilabel)
    return Case(number, kind, x, labels, options, tensors, normalizer, make_upstream(rng, y, dtype), style)


def ignored_logits(y: Tensor, options: dict[str, Any]) -> Tensor:
    """Return where no logits are read, in their shape or [B, 1, *S]."""
    ignored = torch.from_numpy(y.numpy() == options["ignore_index"])
    return ignored if options["multilabel"] else ignored[:, None]


def make_cases(number: int) -> list[Case]:
    """Return the cases of a number."""
    every = {"plain": 1, "multilabel": MULTILABEL_EVERY, "wide": WIDE_EVERY}
    return [make_case(number, kind) for kind in KINDS if number % every[kind] == 0]


def make_calls(case: Case) -> list[Case]:
    """Return a case and others with its logits, labels and neighbors."""
    calls, y, dtype = [case], case.y.long(), case.row[0]
    for call in range(1, CALLS):
        rng = np.random.default_rng([case.number, *KINDS[case.kind], call])
        drawn = make_options(rng, y, case.x.shape[1], dtype, upsample=case.upsample, kind=case.kind)
        options, tensors, normalizer = drawn
        options |= {name: case.options[name] for name in SHARED}
        tensors.pop("distance", None)
        tensors |= {name: values for name, values in case.tensors.items() if name == "distance"}
        x, upstream = lay_out(rng, case.x), make_upstream(rng, y, dtype)
        labels = any_kind(rng, y, multilabel=case.options["multilabel"])
        arguments = (options, tensors, normalizer, upstream)
        calls.append(Case(case.number, case.kind, x, labels, *arguments, case.style, returns_maps=rng.random() < 0.5))
    return calls


def make_upstream(rng: np.random.Generator, y: Tensor, dtype: str) -> Tensor:
    """Return what arrives at the loss of each pixel."""
    return torch.from_numpy(rng.standard_normal(y.shape)).to(torch.float64 if dtype == "float64" else torch.float32)


def any_kind(rng: np.random.Generator, y: Tensor, *, multilabel: bool) -> Tensor:
    """Return labels in one of the dtypes that hold them."""
    kinds = [torch.int64, torch.int32, torch.int16, *([torch.uint8] if y.min() >= 0 else [])]
    if y.min() >= 0 and y.max() <= 1 and multilabel:
        kinds.append(torch.bool)
    return y.to(kinds[int(rng.integers(len(kinds)))])


def make_labels(rng: np.random.Generator, batch: int, size: list[int], classes: int) -> Tensor:
    """Return labels [B, *S] with regions, thin lines or noise; 255 is ignored."""
    y = rng.integers(0, classes, (batch, *size))
    kind = rng.integers(4)
    if kind == 0:  # halves
        y[...] = rng.integers(0, classes)
        y[..., size[-1] // 2 :] = rng.integers(0, classes)
    elif kind == 1:  # mostly one class
        y[rng.random(y.shape) < 0.8] = rng.integers(0, classes)
    elif kind == 2:  # no edge
        y[...] = rng.integers(0, classes)
    if rng.random() < 0.6:
        y[rng.random(y.shape) < rng.choice([0.1, 0.5, 1.0], p=[0.6, 0.35, 0.05])] = 255
    return torch.from_numpy(y)


def make_logits(
    rng: np.random.Generator, batch: int, channels: int, size: list[int], y: Tensor, dtype: str, *, upsample: bool
) -> tuple[str, Tensor]:
    """Return a style and logits [B, C, *S] in float64, for labels per pixel or per class."""
    x = rng.standard_normal((batch, channels, *size))
    top = 6e4 if dtype == "float16" else 1e30
    styles = ["normal", "small", "large", "offset", "rounded", "constant"]
    if not upsample:
        styles += ["huge", "right", "wrong"]
    style = str(rng.choice(styles))
    if style == "small":
        x *= 1e-3
    elif style == "large":
        x *= 30
    elif style == "offset":
        x += 1000 * rng.standard_normal((batch, 1, *size))
    elif style == "rounded":
        x = np.round(2 * x) / 2
    elif style == "constant":
        x[...] = 0.5
    elif style == "huge":
        x = np.clip(x * 10.0 ** rng.uniform(2, np.log10(top)), -top, top)
    elif style in ("right", "wrong") and (channels > 1 or y.dim() == x.ndim):
        label = torch.where(y == 255, 0, y).numpy() + (style == "wrong")
        gap = min(top, 10.0 ** rng.uniform(0.5, 9))
        if y.dim() == x.ndim:
            x += gap * (2 * (label % 2) - 1)
        else:
            x += gap * (np.arange(channels).reshape(1, -1, *[1] * len(size)) == (label % channels)[:, None])
    return style, torch.from_numpy(x)


def make_options(
    rng: np.random.Generator, y: Tensor, channels: int, dtype: str, *, upsample: bool, kind: str
) -> tuple[dict[str, Any], dict[str, Tensor], tuple[float, float] | None]:
    """Return scalar options, tensors and a normalizer."""
    multilabel, wide = kind == "multilabel", torch.float64 if dtype == "float64" else torch.float32
    dims = y.dim() - 1 - multilabel

    def some(probability: float) -> bool:
        return bool(rng.random() < probability)

    if kind == "wide":  # up to beyond the image
        radius = [int(rng.integers(0, 3 * n // 2 + 2)) for n in y.shape[1:]]
    else:
        radius = [int(r) for r in rng.choice([0, 1, 2, 3], dims, p=[0.1, 0.6, 0.2, 0.1])]
    radius = radius if any(radius) else [1] * dims
    if some(0.02):
        radius[0] = 2**62
    decay = float(10.0 ** rng.uniform(-1, 1)) if some(0.4) else None
    options: dict[str, Any] = {
        "ignore_index": 255,
        "multilabel": multilabel,
        "reduction": str(rng.choice(["mean", "sum", "none"])),
        "label_smoothing": float(rng.choice([0.0, 0.1, 1.0], p=[0.7, 0.25, 0.05])),
        "ce_weight": float(rng.choice([1.0, 0.0, 0.3])),
        "edge_weight": float(rng.choice([1.0, 0.0, 2.5], p=[0.6, 0.1, 0.3])),
        "other_side_weight": float(rng.choice([1.0, 0.0, 0.7])),
        "same_side_weight": float(rng.choice([1.0, 0.0, 0.4])),
    }
    if not upsample:
        rng.choice(2)  # so that the cases of tests/fuzz/test_fuzz.py stay what they are
    options |= {
        "radius": radius,
        "power": float(rng.choice([0.0, 1.0, -1.0, 0.5, 3.0, 0.01, -1e-5], p=[0.4, 0.2, 0.15, 0.1, 0.05, 0.05, 0.05])),
        "decay": decay,
        "spacing": [float(s) for s in 10.0 ** rng.uniform(-0.5, 0.5, dims)] if some(0.5) else [1.0] * dims,
    }
    tensors = {}
    for name in ("weight", "edge_class_weight"):
        if some(0.3):
            shape = [max(2, channels)]
            if multilabel:
                shape = [channels, 2] if some(0.5) else [channels]
            values = rng.random(shape) * 10.0 ** rng.uniform(-2, 2)
            tensors[name] = torch.from_numpy(values * (rng.random(shape) > 0.1)).to(wide)
    if some(0.3):
        shape = [y.shape[0], *y.shape[2:]] if multilabel and some(0.5) else [*y.shape]
        tensors["pixel_weight"] = torch.from_numpy(rng.random(shape)).to(wide)
    if decay is not None and some(0.3):
        tensors["distance"] = torch.from_numpy(4 * rng.random(tuple(y.shape))).to(wide)
    normalizer = (float(rng.uniform(1, 50)), float(rng.uniform(1, 50))) if some(0.1) else None
    return options, tensors, normalizer


def lay_out(rng: np.random.Generator, x: Tensor) -> Tensor:
    """Return the same logits in another memory layout."""
    kind = rng.integers(5)
    if kind == 0:
        return x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    if kind == 1:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == 2:
        return torch.cat([x, x], -1)[..., : x.shape[-1]]
    return x.contiguous()


def with_bad_logits(rng: np.random.Generator, x: Tensor, ignored: Tensor) -> Tensor:
    """Return logits that are nan or infinite on ignored pixels, in the same layout."""
    bad = float(rng.choice([np.nan, np.inf, -np.inf]))
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.masked_fill(ignored, bad))


# ------------------------------------------------------------------------------------------------------- the comparison


def oracle(calls: list[Case]) -> list[Answer]:
    """Return the answers of the oracle to the calls of a case."""
    case = calls[0]
    x = case.x if case.upsample else torch.where(ignored_logits(case.y, case.options), 0.0, case.x)
    arrays = x.double().numpy(), case.y.long().numpy()
    wide = np.float64 if case.x.dtype == torch.float64 else np.float32
    problems = []
    for call in calls:
        tensors = {name: values.double().numpy() for name, values in call.tensors.items()}
        problems.append(Problem(*arrays, call.options, tensors, call.normalizer, call.upstream.double().numpy(), wide))
    return solve(problems)


def run(case: Case, backend: str, device: str) -> dict[str, Any]:
    """Return loss, gradient and maps of a backend, as arrays of float64."""
    x = torch.empty_strided(case.x.shape, case.x.stride(), dtype=case.x.dtype, device=device).copy_(case.x)
    x.requires_grad_()
    tensors: dict[str, Any] = {name: values.to(device) for name, values in case.tensors.items()}
    if case.normalizer is not None:
        tensors["normalizer"] = case.normalizer
    y, options = case.y.to(device), case.options | {"upsample": case.upsample, "backend": backend}
    upstream = case.upstream.to(device) if case.options["reduction"] == "none" else None
    loss = edge_aware_loss(x, y, **tensors, **options)
    (gradient,) = torch.autograd.grad(loss, x, upstream)
    found = {"loss": loss, "gradient": gradient}
    if case.returns_maps:
        _, maps = edge_aware_loss(x, y, **tensors, **options, return_maps=True)
        found |= {name: values for name, values in maps._asdict().items() if values is not None}
    return {name: values.detach().double().cpu().numpy() for name, values in found.items()}


def compare(case: Case, answer: Answer, found: dict[str, Any]) -> tuple[dict[str, float], float]:
    """Return the errors of loss, maps and gradient, in units of what is computed, and what is allowed.

    The unit of a value is 1 + |value|, and 1 / |q| more where exponents of a power mean reach 1; that of a gradient is
    the sum, without signs, of what adds up in it. Both grow with the condition of the call: a power mean magnifies
    roundings by |q| max |t|, a decay by max d / decay, and interpolation by the logits.
    """
    wide = np.finfo(np.float64 if case.x.dtype == torch.float64 else np.float32)
    condition, least = answer.condition, 1 + answer.floor
    if case.upsample:
        condition += float(case.x.double().abs().max()) if case.x.numel() else 0.0
    stored = torch.finfo(case.x.dtype).eps
    weights = max([1.0, *(float(values.max()) for name, values in case.tensors.items() if name != "distance")])
    count = case.y.numel() if case.options["reduction"] == "sum" else 1
    errors = {"loss": worst(found["loss"] - answer.loss, (least + np.abs(answer.loss)) * condition * weights * count)}
    errors["maps"] = 0.0
    for name, exact in answer.maps.items() if case.returns_maps else ():
        # Infinite at the same pixels.
        off = np.where(found[name] == exact, 0, found[name] - np.where(np.isfinite(exact), exact, 0))
        is_mean = name in ("same_side", "other_side")
        unit = ((least if is_mean else 1) + np.abs(exact)) * condition * (weights if name == "cross_entropy" else 1)
        errors["maps"] = max(errors["maps"], worst(off, unit))
    got, exact = found["gradient"], answer.gradient
    rounded = np.abs(exact) * (stored if stored > wide.eps else 0) + float(torch.finfo(case.x.dtype).smallest_normal)
    off = np.maximum(np.abs(got - exact) - rounded - answer.slack, 0)
    off = np.where(np.isfinite(got), off, np.nan)
    if condition > 1e-2 / (ROUNDINGS * wide.eps):  # roundings of the terms decide which neighbor counts
        off = np.where(np.isfinite(off), 0, np.nan)
    errors["gradient"] = worst(off, answer.scale * condition + float(wide.tiny / wide.eps))
    if not case.upsample and got[np.broadcast_to(ignored_logits(case.y, case.options).numpy(), got.shape)].any():
        errors["gradient"] = np.inf  # it is exactly 0 there
    radius = case.options["radius"]
    neighbors = math.prod(min(2 * r + 1, n) for r, n in zip(radius, case.y.shape[-len(radius) :], strict=True))
    return errors, ROUNDINGS * float(wide.eps) * max(1, neighbors / NARROW)


def worst(difference: Any, unit: Any) -> float:
    """Return the largest |difference| / unit; inf where it is not a number."""
    with np.errstate(invalid="ignore"):
        ratio = np.abs(difference) / unit
    return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0))


def check(case: Case, device: str, errors: Table, *, verbose: bool) -> list[str]:
    """Run a case by its backends, add its errors to the table, and return what failed."""
    calls, failures = make_calls(case), []
    for call, answer in zip(calls, oracle(calls), strict=True):
        with_reference = device == "cpu" and (verbose or (call is case and case.number % REFERENCE_EVERY == 0))
        if verbose:
            print(call.describe())
        for backend in ["fused", "reference"] if with_reference else ["fused"]:
            failed, row = [], errors[(*case.row, backend)]
            row.calls += 1
            try:
                results, allowed = compare(call, answer, run(call, backend, device))
            except Exception as error:  # every one is a failure of this case
                results, failed = {}, [f"{backend}: {type(error).__name__}: {error}"]
            for name, error in results.items():
                row.largest[name] = max(row.largest[name], error)
                if verbose:
                    print(f"  {backend:9} {name:8} error {error:.2e}, allowed {allowed:.2e}")
                if not error <= allowed:
                    failed.append(f"{backend}: {name} differs by {error:.3g}, allowed {allowed:.3g}")
            failures += [call.describe(), *failed] if failed else []
    return failures


# ---------------------------------------------------------------------------------------------------------- the command


def table(errors: Table) -> str:
    """Return the largest errors as a table in Markdown."""
    figures = ("loss", "maps", "gradient")
    lines = [" | ".join([*ROW, "calls", *figures]), " | ".join(["---"] * len(ROW) + ["---:"] * (1 + len(figures)))]
    for names, row in sorted(errors.items()):
        lines.append(" | ".join([*names, f"{row.calls:,}", *(f"{row.largest[name]:.1e}" for name in figures)]))
    return "\n".join(f"| {line} |" for line in lines)


def save(path: Path, number: int, errors: Table) -> None:
    """Write the number of the next case and the errors as JSON, in one step."""
    rows = [dict(zip(ROW, k, strict=True)) | {"calls": e.calls} | e.largest for k, e in sorted(errors.items())]
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps({"next": number, "errors": rows}, indent=1) + "\n")
    partial.replace(path)


def resume(path: Path) -> tuple[int, Table]:
    """Return what ``save`` wrote."""
    saved, errors = json.loads(path.read_text()), defaultdict(Errors)
    for row in saved["errors"]:
        key = tuple(row.pop(name) for name in ROW)
        errors[key] = Errors(row.pop("calls"), defaultdict(float, row))
    return saved["next"], errors


def fuzz(first: int, minutes: float, device: str, output: Path | None) -> int:
    """Run cases until the time is over, enough have failed, or Ctrl-C; return the exit status."""
    errors: Table = defaultdict(Errors)
    if output is not None and output.exists():
        first, errors = resume(output)
    start = shown = time.monotonic()
    number, failed, interrupted = first, 0, False
    try:
        while time.monotonic() - start < 60 * minutes and failed < FAILURES:
            failures = [line for case in make_cases(number) for line in check(case, device, errors, verbose=False)]
            if failures:
                failed += 1
                print(*failures, sep="\n  ")
                print(f"  again: python tests/fuzz/fuzz.py --case {number}", flush=True)
            number += 1
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                rate = (number - first) / (shown - start)
                total = sum(row.calls for row in errors.values())
                progress = f"{rate:.0f} numbers/s, {total:,} calls, {number:,} is next, {failed} failed"
                print(f"{shown - start:.0f} s: {progress}", flush=True)
                if output is not None:
                    save(output, number, errors)
    except KeyboardInterrupt:  # within a case, so that a later run goes on from what was saved before
        interrupted = True
        print(f"fuzz.py: interrupted at {number}; the figures so far:", file=sys.stderr)
    print(table(errors))
    calls = sum(row.calls for row in errors.values())
    print(f"{number - first:,} numbers from {first} on, {calls:,} calls, {failed} failed")
    if output is not None and not interrupted:
        save(output, number, errors)
    return 130 if interrupted else int(failed > 0)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to run; default: %(default)s")
    parser.add_argument("--first", type=int, help="number of the first case; default: by the clock")
    parser.add_argument("--case", type=int, help="run the cases of this number alone")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the table as JSON while it runs; an earlier run's goes on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.case is None:
        first = int(time.time()) * 1000 if arguments.first is None else arguments.first
        return fuzz(first, arguments.minutes, arguments.device, arguments.output)
    cases, errors = make_cases(arguments.case), defaultdict(Errors)
    failures = [line for case in cases for line in check(case, arguments.device, errors, verbose=True)]
    print("\n".join(failures) or "passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
