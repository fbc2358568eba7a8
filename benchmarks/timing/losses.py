"""Time the loss, forward and backward, compared with cross-entropy.

Every case runs in a process of its own, where the losses take turns, in both orders; the table shows ratios of medians
to eager ``F.cross_entropy`` on the same logits and labels, of a single logit and of classes that overlap to
``F.binary_cross_entropy_with_logits``, for logits of lower resolution after ``F.interpolate``. With one thread, times
are those of the processor in the thread, so that other programs count only where they share caches and memory; with
more they are wall times. Held bytes are what forward adds and backward needs. Of each row, the figures are those of
cross-entropy, of the default and of ``region_weight=0``.

On x86, ``ATEN_CPU_CAPABILITY=avx2`` limits torch to AVX2; tools/check_builds.py builds the kernels for AVX2.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import EdgeAwareLoss
from label_maps import VOID, edge_fraction, noise, regions, scenes
from measure import alone, held_memory, make_pass, median_seconds
from result_table import Row


@dataclass(frozen=True)
class Case:
    """What is timed."""

    name: str
    shape: tuple[int, ...]  # of the logits, [B, C, *S]
    options: dict[str, Any] = field(default_factory=dict)  # with upsample, labels have four times the size of logits
    dtype: torch.dtype = torch.float32  # of the logits
    max_threads: int = 2


NAMES = ("cross-entropy", "EdgeAwareLoss", "region_weight=0")
OTHERS = ("compiled cross-entropy",)
STREET, UPSAMPLE = (4, 19, 512, 512), {"upsample": True}
CASES = {
    "table": [
        Case("19 classes", STREET),
        Case("bfloat16", STREET, dtype=torch.bfloat16),
        Case("150 classes", (2, 150, 512, 512)),
        Case("2 classes", (8, 2, 512, 512)),
        Case("binary", (8, 1, 512, 512)),
        Case("volume", (1, 4, 64, 128, 128)),
        Case("small", (1, 19, 64, 64)),
        Case("large", (1, 19, 1024, 2048)),
        Case("11 classes, one thread", (4, 11, 120, 160), max_threads=1),
        Case("radius 3, decay 2", STREET, {"radius": 3, "decay": 2.0}),
        Case("upsampled, 19 classes", (4, 19, 128, 128), UPSAMPLE),
        Case("upsampled, 150 classes", (2, 150, 128, 128), UPSAMPLE),
        Case("upsampled, 2 classes", (8, 2, 128, 128), UPSAMPLE),
        Case("power -1", STREET, {"power": -1.0}),
        Case("a map, reduction none", STREET, {"reduction": "none"}),
    ],
    "cliffs": [  # with random labels: nearly every pixel is an edge pixel, and small images have nearly all classes
        Case("noise", (1, 19, 384, 384)),
        Case("noise, 256 images", (256, 19, 12, 12)),
        Case("noise, 256 smaller images", (256, 19, 7, 7)),
        Case("noise, 64 volumes", (64, 14, 10, 10, 10)),
        Case("noise, 1024 images", (1024, 2, 8, 8)),
        Case("noise, multilabel, upsampled", (4, 20, 32, 32), UPSAMPLE | {"multilabel": True}),
        Case("noise, radius 15", (1, 2, 256, 256), {"radius": 15}),
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


def cross_entropy(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy that a case is compared with."""
    size = target.shape[-(logits.dim() - 2) :]
    if logits.shape[2:] != size:
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
    if logits.shape[1] == 1 or target.dim() == logits.dim():
        return F.binary_cross_entropy_with_logits(logits.view_as(target), target.to(logits.dtype), reduction=reduction)
    return F.cross_entropy(logits, target, ignore_index=VOID, reduction=reduction)


def make_losses(case: Case, names: tuple[str, ...]) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Return the losses by name."""
    criterion = partial(EdgeAwareLoss, ignore_index=VOID, backend="fused", **case.options)
    plain = partial(cross_entropy, reduction=case.options.get("reduction", "mean"))
    known = {NAMES[0]: plain, NAMES[1]: criterion(), NAMES[2]: criterion(region_weight=0)}
    return {name: known[name] if name in known else torch.compile(plain) for name in names}


def measure(case: Case, masks: Path | None, threads: int, rounds: int) -> Row:
    """Return the fraction of edge pixels, and the median milliseconds and the held bytes of each loss."""
    torch.set_num_threads(threads)
    logits, target, fraction = make_inputs(case, masks)

    losses = make_losses(case, NAMES)
    runs = {name: make_pass(loss, logits, target) for name, loss in losses.items()}
    rounds = max(rounds // 2, min(16 * rounds, rounds * 2**24 // (case.shape[1] * target.numel())))
    seconds = median_seconds(runs, max(1, rounds), clock=time.thread_time if threads == 1 else time.perf_counter)
    return {
        "edge_fraction": round(fraction, 4),
        "milliseconds": {name: round(1e3 * time_of_one, 3) for name, time_of_one in seconds.items()},
        "held_bytes": {name: held_memory(partial(loss, logits, target)) for name, loss in losses.items()},
        "rounds": rounds,
    }


def chosen(options: argparse.Namespace) -> list[Case]:
    """Return the cases that a command line names."""
    groups = CASES if options.case else options.groups or ["table"]
    return [case for group in groups for case in CASES[group] if not options.case or case.name in options.case]


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each case."""
    for case in chosen(options):
        threads, dtype = min(options.threads, case.max_threads), str(case.dtype).removeprefix("torch.")
        result = alone(measure, case, options.masks, threads, options.rounds)
        plain = result["milliseconds"][NAMES[0]]
        ratio = {name: round(ms / plain, 3) for name, ms in result["milliseconds"].items()}
        yield {"case": case.name, "logits": case.shape, "dtype": dtype, **result, "ratio": ratio, "threads": threads}
