"""Time the losses of baselines/ alone, forward and backward, compared with cross-entropy.

The losses take turns in one process. Megabytes are what a pass adds at its peak, without the gradient, in a process of
its own for each loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from baselines.recipes import RECIPES, Options, Progress, loss_title, make
from label_maps import VOID
from measure import added_memory, alone, make_pass, median_seconds
from result_table import Row
from timing.losses import Case, make_inputs

LIBRARIES = ("monai", "kornia")  # whose losses are among them
LOSSES: list[tuple[str, Options]] = [*((name, {}) for name in RECIPES), ("abl", {"lovasz": 1.0})]


def pass_of(logits: Tensor, target: Tensor, name: str, options: Options) -> Callable[[], None]:
    """Return a forward and backward pass of a recipe."""
    loss = make(name, options, VOID, targets=[target], num_classes=logits.shape[1])
    return make_pass(loss, logits, target, Progress())


def measure_time(shape: Sequence[int], masks: Path | None, rounds: int, threads: int) -> dict[str, float]:
    """Return the median seconds of each loss, by title."""
    torch.set_num_threads(threads)
    logits, target, _ = make_inputs(Case("peers", tuple(shape)), masks)
    return median_seconds({loss_title(*loss): pass_of(logits, target, *loss) for loss in LOSSES}, rounds)


def measure_memory(shape: Sequence[int], masks: Path | None, loss: tuple[str, Options], threads: int) -> int:
    """Return the bytes that a pass takes at its peak, without the gradient."""
    torch.set_num_threads(threads)
    # The first call also loads code, threads and libraries, which are not part of the pass.
    small, (logits, target, _) = (1, shape[1], 8, 8), make_inputs(Case("peers", tuple(shape)), masks)
    pass_of(*make_inputs(Case("small", small), None)[:2], *loss)()
    return added_memory(pass_of(logits, target, *loss)) - logits.nbytes


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each loss."""
    inputs = options.shape, options.masks
    seconds = alone(measure_time, *inputs, options.rounds, options.threads)
    for loss in LOSSES:
        title = loss_title(*loss)
        ratio = seconds[title] / seconds[loss_title("ce", {})]
        megabytes = alone(measure_memory, *inputs, loss, options.threads) / 2**20
        figures = {"milliseconds": round(1e3 * seconds[title], 3), "ratio": round(ratio, 3)}
        yield {"case": title, "logits": options.shape, **figures, "megabytes": round(megabytes, 2)}
