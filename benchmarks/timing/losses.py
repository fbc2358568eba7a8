"""Time the loss, forward and backward, compared with cross-entropy.

Every case runs in a process of its own, where the losses take turns, in both orders; the table shows ratios of medians
to eager ``F.cross_entropy`` on the same logits and labels, of a single logit and of classes that overlap to
``F.binary_cross_entropy_with_logits``, for logits of lower resolution after ``F.interpolate``. With one thread, times
are those of the processor in the thread, so that other programs count only where they share caches and memory; with
more they are wall times. *held* is the memory that forward adds and backward needs, of each loss.

On x86, ``ATEN_CPU_CAPABILITY=avx2`` limits torch to AVX2; tools/check_builds.py builds the kernels for AVX2.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import EdgeAwareLoss
from label_maps import VOID, edge_fraction, noise, regions, scenes
from measure import INSTRUCTIONS, alone, held_memory, median_seconds, processor
from result_table import Row, add_rows


@dataclass(frozen=True)
class Case:
    """What is timed."""

    name: str
    shape: tuple[int, ...]  # of the logits, [B, C, *S]
    aims: tuple[float | None, float | None] = (None, None)  # largest accepted ratios: defaults, region_weight=0
    options: dict[str, Any] = field(default_factory=dict)  # with upsample, labels have four times the size of logits
    dtype: torch.dtype = torch.float32  # of the logits
    loss_scale: float = 1.0  # of a GradScaler, or 1 for none
    max_threads: int = 2


NAMES = ("cross-entropy", "EdgeAwareLoss", "region_weight=0")
OTHERS = ("compiled cross-entropy", "reference")
STREET, UPSAMPLE = (4, 19, 512, 512), {"upsample": True}
CASES = {
    "table": [
        Case("19 classes", STREET, (0.40, 0.25)),
        Case("bfloat16", STREET, (0.55, 0.40), dtype=torch.bfloat16),
        Case("150 classes", (2, 150, 512, 512), (0.22, 0.18)),
        Case("2 classes", (8, 2, 512, 512), (0.80, 0.45)),
        Case("binary", (8, 1, 512, 512), (1.0, 0.70)),
        Case("volume", (1, 4, 64, 128, 128), (0.90, 0.45)),
        Case("small", (1, 19, 64, 64), (2.0, 1.6)),
        Case("large", (1, 19, 1024, 2048), (0.42, 0.22)),
        Case("11 classes, one thread", (4, 11, 120, 160), (0.70, 0.50), max_threads=1),
        Case("radius 3, decay 2", STREET, (0.50, 0.35), {"radius": 3, "decay": 2.0}),
        Case("upsampled, 19 classes", (4, 19, 128, 128), (0.30, 0.17), UPSAMPLE),
        Case("upsampled, 150 classes", (2, 150, 128, 128), (0.20, 0.12), UPSAMPLE),
        Case("upsampled, 2 classes", (8, 2, 128, 128), (0.85, 0.55), UPSAMPLE),
        Case("power -1", STREET, (0.65, 0.50), {"power": -1.0}),
    ],
    "cliffs": [  # with random labels: nearly every pixel is an edge pixel, and small images have nearly all classes
        Case("noise", (1, 19, 384, 384), (1.5, None)),
        Case("noise, 256 images", (256, 19, 12, 12), (4.0, None)),
        Case("noise, 256 smaller images", (256, 19, 7, 7), (4.0, None)),
        Case("noise, 64 volumes", (64, 14, 10, 10, 10), (8.0, None)),
        Case("noise, 1024 images", (1024, 2, 8, 8), (4.0, None)),
        Case("noise, multilabel, upsampled", (4, 20, 32, 32), (1.5, None), UPSAMPLE | {"multilabel": True}),
        Case("noise, radius 15", (1, 2, 256, 256), (3.0, None), {"radius": 15}),
    ],
    "scaled": [
        Case("19 classes, loss / 4", STREET, loss_scale=0.25),
        Case("float16, GradScaler", STREET, dtype=torch.float16, loss_scale=65536.0),
        Case("bfloat16, GradScaler", STREET, dtype=torch.bfloat16, loss_scale=65536.0),
    ],
}


def make_inputs(case: Case, masks: Path | None) -> tuple[Tensor, Tensor, float]:
    """Return logits, labels and the fraction of edge pixels of a case."""
    torch.manual_seed(0)
    batch, logit_count = case.shape[:2]
    radius, is_multilabel = case.options.get("radius", 1), "multilabel" in case.options
    is_binary, upsample = logit_count == 1 or is_multilabel, "upsample" in case.options
    size, classes = tuple(4 * n if upsample else n for n in case.shape[2:]), 2 if is_binary else logit_count
    if case in CASES["cliffs"]:
        labels = noise((batch, *([logit_count] if is_multilabel else []), *size), classes)
    elif masks is None or len(size) == 3 or case.name == "small":  # a crop of a scene may have no edge at all
        labels = regions(batch, size, classes, radius)
    else:
        labels = scenes(masks, batch, size, classes)
    if is_binary:
        labels[labels == VOID] = 0  # the binary cross-entropy of torch ignores no pixel
    logits = torch.randn(case.shape).to(case.dtype).requires_grad_()
    return logits, torch.from_numpy(labels).long(), edge_fraction(labels.reshape(-1, *size), radius)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the cross-entropy that a case is compared with."""
    size = target.shape[-(logits.dim() - 2) :]
    if logits.shape[2:] != size:
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
    if logits.shape[1] == 1 or target.dim() == logits.dim():
        return F.binary_cross_entropy_with_logits(logits.view_as(target), target.to(logits.dtype))
    return F.cross_entropy(logits, target, ignore_index=VOID)


def make_losses(case: Case, names: tuple[str, ...]) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Return the losses by name."""
    criterion = partial(EdgeAwareLoss, ignore_index=VOID, **case.options)
    losses: dict[str, Callable[[], Callable[[Tensor, Tensor], Any]]] = {
        "cross-entropy": lambda: cross_entropy,
        "EdgeAwareLoss": lambda: criterion(backend="fused"),
        "region_weight=0": lambda: criterion(backend="fused", region_weight=0),
        "compiled cross-entropy": lambda: torch.compile(cross_entropy),
        "reference": lambda: criterion(backend="reference"),
    }
    return {name: losses[name]() for name in names}


def measure(case: Case, masks: Path | None, threads: int, rounds: int, names: tuple[str, ...]) -> Row:
    """Return the fraction of edge pixels, and the median milliseconds and the held bytes of each loss."""
    torch.set_num_threads(threads)
    logits, target, fraction = make_inputs(case, masks)
    scaler = torch.amp.GradScaler("cpu", init_scale=case.loss_scale, enabled=case.loss_scale != 1)

    def step(forward: Callable[[], Any]) -> None:
        scaler.scale(forward()).backward()
        logits.grad = None  # here, so that each loss pays for freeing its own gradient

    forwards = {name: partial(loss, logits, target) for name, loss in make_losses(case, names).items()}
    runs = {name: partial(step, forward) for name, forward in forwards.items()}
    rounds = max(rounds // 2, min(16 * rounds, rounds * 2**24 // (case.shape[1] * target.numel())))
    orders = [runs, dict(reversed(runs.items()))]  # a loss pays for what the one before it has left of cache and memory
    clock = time.thread_time if threads == 1 else time.perf_counter
    parts = [median_seconds(orders[i % 2], 1, clock=clock) for i in range(max(1, rounds) + 1)][1:]
    return {
        "edge_fraction": round(fraction, 4),
        "milliseconds": {name: round(1e3 * median(part[name] for part in parts), 3) for name in runs},
        "held_bytes": {name: held_memory(forward) for name, forward in forwards.items()},
        "rounds": rounds,
    }


def key_of(row: Row) -> str:
    """Return the key of a row in the table of results."""
    machine = [row["machine"][k] for k in ("processor", "instructions", "torch", "threads")]
    return json.dumps([row["case"], row["kernels"], *machine])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    add = parser.add_argument
    add("--masks", type=Path, metavar="DIR", help="label masks to tile, *.png (default: generated)")
    for group, cases in CASES.items():
        add(f"--{group}", action="append_const", dest="groups", const=group, help=", ".join(c.name for c in cases))
    names = [case.name for cases in CASES.values() for case in cases]
    add("--case", nargs="+", choices=names, metavar="NAME", help="time these, of any group (default: --table)")
    add("--all", action="store_true", help=f"also time {' and '.join(OTHERS)}")
    add("--threads", type=int, choices=(1, 2), default=1, help="(default: %(default)s)")
    add("--rounds", type=int, default=12, help="rounds per case with 16 million logits (default: %(default)s)")
    add("--output", type=Path, metavar="FILE.jsonl", help="add the figures to a table of results")
    add("--kernels", default=version("edgeloss"), help="their name in that table (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    """Time the cases and print a table in Markdown."""
    groups, names = CASES if options.case else options.groups or ["table"], NAMES + OTHERS * options.all
    machine = {"processor": processor(), "instructions": INSTRUCTIONS, "cores": os.cpu_count()}
    machine |= {"threads": options.threads, "torch": torch.__version__}
    print(f"{', '.join(f'{key} {value}' for key, value in machine.items())}\n")
    heads = ["case", "logits", "edges", "cross-entropy, ms", NAMES[1], "aim", NAMES[2], "aim", *names[3:], "held, MB"]
    print(f"| {' | '.join(heads)} |\n|---|---|{'--:|' * (len(heads) - 2)}")
    for case in (case for group in groups for case in CASES[group] if not options.case or case.name in options.case):
        threads, dtype = min(options.threads, case.max_threads), str(case.dtype).removeprefix("torch.")
        result = alone(measure, case, options.masks, threads, options.rounds, names)
        plain = result["milliseconds"]["cross-entropy"]
        ratio = {name: round(ms / plain, 3) for name, ms in result["milliseconds"].items()}
        if options.output:
            row = {"case": case.name, "kernels": options.kernels, "machine": machine | {"threads": threads}}
            row |= {"aims": case.aims, "logits": case.shape, "dtype": dtype, **result, "ratio": ratio}
            add_rows(options.output, [row], key_of)  # as they come: what a time limit ends keeps its results
        cells = [case.name, f"{list(case.shape)} {dtype}", f"{result['edge_fraction']:.1%}", f"{plain:.2f}"]
        for name, aim in zip(NAMES[1:], case.aims, strict=True):
            cells += [f"**{ratio[name]:.2f}**", f"{aim or '':.4}"]
        cells += [f"{ratio[name]:.2f}" for name in names[3:]]
        cells += [", ".join(f"{size / 1e6:.1f}" for size in result["held_bytes"].values())]
        print(f"| {' | '.join(cells)} |", flush=True)
