#!/usr/bin/env python3
"""Time the CPU kernels on one thread: the loss with several options, forward and backward, over cross-entropy.

Every case runs in a process of its own, where the losses take turns, in both orders; the table shows ratios of medians
to eager ``F.cross_entropy`` without further options on the same logits and labels, or, for a single logit, to
``F.binary_cross_entropy_with_logits``. Times are those of the processor in the thread, so that other programs count
only where they share caches and memory. *edge_aware_loss* keeps nothing between calls; *EdgeAwareLoss* has its
defaults, which count and follow the edges.

On x86, ``ATEN_CPU_CAPABILITY=avx2`` limits the cross-entropy of torch to AVX2; for a build of the kernels for AVX2 see
tools/check_builds.py, and name its directory in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss
from label_maps import VOID, edge_fraction, regions, scenes
from measure import INSTRUCTIONS, Run, alone, median_seconds, processor
from result_table import Row, add_rows


@dataclass(frozen=True)
class Case:
    """What is timed.

    Attributes:
        name: in the table.
        shape: of the logits, [B, C, *S].
        bar: the largest accepted ratio with AVX-512.
        options: of the loss.
        dtype: of the logits.
        weighted: with class weights.
    """

    name: str
    shape: tuple[int, ...]
    bar: float
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    weighted: bool = False


STREET = (4, 19, 512, 512)
CASES = [
    Case("19 classes", STREET, 0.33),
    Case("weights, smoothing", STREET, 0.42, {"label_smoothing": 0.1}, weighted=True),
    Case("power -1", STREET, 0.45, {"power": -1.0}),
    Case("radius 2", STREET, 0.45, {"radius": 2}),
    Case("radius 3, decay 2", STREET, 0.65, {"radius": 3, "decay": 2.0}),
    Case("radius 32", (1, 19, 256, 256), 5.0, {"radius": 32}),
    Case("radius 32, decay 8", (1, 19, 256, 256), 7.0, {"radius": 32, "decay": 8.0}),
    Case("radius 32, power -1", (1, 19, 256, 256), 8.0, {"radius": 32, "power": -1.0}),
    Case("bfloat16", STREET, 0.40, dtype=torch.bfloat16),
    Case("150 classes", (2, 150, 512, 512), 0.30),
    Case("2 classes", (8, 2, 512, 512), 0.6),
    Case("binary", (8, 1, 512, 512), 0.9),
    Case("multilabel", (8, 3, 512, 512), 0.9, {"multilabel": True}),
    Case("volume", (1, 4, 64, 128, 128), 0.4),
    Case("small", (1, 19, 64, 64), 1.5),
]


def binary_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the cross-entropy of a logit for each label; the labels have no void."""
    return F.binary_cross_entropy_with_logits(logits.view_as(target), target.to(logits.dtype))


def measure(case: Case, masks: Path | None, rounds: int) -> tuple[float, dict[str, float]]:
    """Return the fraction of edge pixels and the median seconds of each loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, logit_count, *size = case.shape
    multilabel, radius = case.options.get("multilabel", False), case.options.get("radius", 1)
    classes, is_binary = logit_count + 1 if multilabel else max(2, logit_count), multilabel or logit_count == 1
    if masks is None or len(size) == 3 or case.name == "small":  # a crop of a scene may have no edge at all
        labels = regions(batch, tuple(size), classes, radius)
    else:
        labels = scenes(masks, batch, tuple(size), classes)
    if is_binary:
        labels[labels == VOID] = 0  # the binary cross-entropy of torch ignores no pixel
    if multilabel:  # each class is a part of the one before it
        labels = np.stack([labels > c for c in range(logit_count)], 1)
    logits = torch.randn(case.shape).to(case.dtype).requires_grad_()
    target = torch.from_numpy(labels).long()
    options = case.options | {"ignore_index": VOID, "backend": "fused"}
    if case.weighted:
        options["weight"] = torch.rand(classes) + 0.5
    losses = {
        "cross-entropy": binary_cross_entropy if is_binary else partial(F.cross_entropy, ignore_index=VOID),
        "edge_aware_loss": partial(edge_aware_loss, **options),
        "EdgeAwareLoss": EdgeAwareLoss(**options),
    }

    def run_of(loss: Any) -> Run:  # noqa: ANN401
        def run() -> None:
            loss(logits, target).backward()
            logits.grad = None  # here, so that each loss pays for freeing its own gradient

        return run

    runs = {name: run_of(loss) for name, loss in losses.items()}
    rounds *= max(1, min(100, 2**21 // logits.numel()))
    orders = [runs, dict(reversed(runs.items()))]  # a loss pays for what the one before it has left of cache and memory
    parts = [median_seconds(order, max(1, rounds // 2), clock=time.thread_time) for order in [runs, *orders]][1:]
    return edge_fraction(labels.reshape(-1, *size), radius), {
        name: sum(part[name] for part in parts) / 2 for name in runs
    }


def key_of(row: Row) -> str:
    """Return the key of a row in the table of results."""
    return json.dumps(
        [row["case"], row["kernels"], *(row["machine"][k] for k in ("processor", "instructions", "torch"))]
    )


def main() -> int:
    """Time the cases and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", type=Path, metavar="DIR", help="label masks to tile, *.png (default: generated)")
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[""], help="cases whose name has one of the words")
    parser.add_argument(
        "--rounds", type=int, default=16, help="rounds per case, half of them in reverse order (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="add the figures to a table of results")
    parser.add_argument(
        "--kernels", default=version("edgeloss"), help="their name in that table (default: %(default)s)"
    )
    options = parser.parse_args()
    machine = {
        "processor": processor(),
        "instructions": INSTRUCTIONS,
        "cores": os.cpu_count(),
        "threads": 1,
        "torch": torch.__version__,
    }
    print(f"{', '.join(f'{key} {value}' for key, value in machine.items())}\n")
    print("| case | logits | edge pixels | cross-entropy, ms | edge_aware_loss | EdgeAwareLoss | bar |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for case in CASES:
        if not any(word in case.name for word in options.only):
            continue
        fraction, seconds = alone(measure, case, options.masks, options.rounds)
        plain, functional, module = seconds.values()
        dtype = str(case.dtype).removeprefix("torch.")
        if options.output:
            row = {"case": case.name, "kernels": options.kernels, "machine": machine, "bar": case.bar}
            row |= {"logits": list(case.shape), "dtype": dtype, "edge_fraction": round(fraction, 4)}
            row |= {"milliseconds": {name: round(1e3 * s, 3) for name, s in seconds.items()}}
            row |= {"ratio": {name: round(s / plain, 3) for name, s in seconds.items()}, "rounds": options.rounds}
            add_rows(options.output, [row], key_of)  # as they come: what a time limit ends keeps its results
        print(
            f"| {case.name} | {list(case.shape)} {dtype} | {fraction:.1%} | {plain * 1e3:.2f}"
            f" | **{functional / plain:.2f}** | {module / plain:.2f} | {case.bar:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
