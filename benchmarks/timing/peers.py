"""Time the losses of baselines/ alone, forward and backward, compared with cross-entropy.

The losses take turns in one process. Megabytes are what a pass adds at its peak, without the gradient, in a process of
its own for each loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch

from baselines.recipes import RECIPES, Options, Progress, loss_title, make
from label_maps import VOID, Labels, regions, scenes
from measure import added_memory, alone, median_seconds
from result_table import Row

Loss = tuple[str, Options]
LOSSES: list[Loss] = [*((name, {}) for name in RECIPES), ("abl", {"lovasz": 1.0})]


class Pass:
    """A forward and backward pass of a loss over random logits."""

    def __init__(self, loss: Loss, labels: Labels, classes: int) -> None:
        """Create the inputs."""
        torch.manual_seed(0)
        batch, height, width = labels.shape
        self.logits = torch.randn(batch, classes, height, width).requires_grad_()
        self.target = torch.from_numpy(labels).long()
        self.loss = make(*loss, VOID, targets=[self.target], num_classes=classes)

    def __call__(self) -> None:
        """Run the pass."""
        self.loss(self.logits, self.target, Progress()).backward()
        self.logits.grad = None


def measure_time(losses: list[Loss], labels: Labels, classes: int, rounds: int, threads: int) -> dict[str, float]:
    """Return the median seconds of each loss, by title."""
    torch.set_num_threads(threads)
    passes = {loss_title(*loss): Pass(loss, labels, classes) for loss in losses}
    for run in passes.values():
        run()
    return median_seconds(passes, rounds)


def measure_memory(loss: Loss, labels: Labels, classes: int, threads: int) -> int:
    """Return the bytes that a pass takes at its peak, without the gradient."""
    torch.set_num_threads(threads)
    # The first call also loads code, threads and libraries, which are not part of the pass.
    Pass(loss, np.indices((8, 8)).sum(0).astype(np.uint8)[None] % 2, classes)()
    run = Pass(loss, labels, classes)
    return added_memory(run) - run.logits.nbytes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    shape, metavar = [4, 11, 180, 240], ("B", "C", "H", "W")
    about = "of the logits (default: %(default)s)"
    parser.add_argument("--shape", type=int, nargs=4, default=shape, metavar=metavar, help=about)


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each loss."""
    batch, classes, *size = options.shape
    about = batch, tuple(size), classes
    labels = scenes(options.masks, *about) if options.masks else regions(*about, 1)
    seconds = alone(measure_time, LOSSES, labels, classes, options.rounds, options.threads)
    for loss in LOSSES:
        title = loss_title(*loss)
        ratio = seconds[title] / seconds[loss_title("ce", {})]
        megabytes = alone(measure_memory, loss, labels, classes, options.threads) / 2**20
        figures = {"milliseconds": round(1e3 * seconds[title], 3), "ratio": round(ratio, 3)}
        yield {"case": title, "logits": options.shape, **figures, "megabytes": round(megabytes, 2)}
