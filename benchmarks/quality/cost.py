"""Time and memory of the losses alone, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from baselines.recipes import Options, Progress, make
from label_maps import VOID, Labels
from measure import added_memory, alone, median_seconds
from quality.runs import loss_title
from quality.tables import BASELINE

Cost = dict[str, float]


def costs_of(losses: Sequence[tuple[str, Options]], labels: Labels, classes: int, rounds: int) -> dict[str, Cost]:
    """Measure a forward and backward pass of each loss.

    Returns time, ratio to cross-entropy and memory, by title.
    """
    seconds = alone(measure_time, losses, labels, classes, rounds)
    costs = {}
    for name, options in losses:
        title = loss_title(name, options)
        costs[title] = {
            "milliseconds": round(seconds[title] * 1e3, 3),
            "ratio": round(seconds[title] / seconds[BASELINE], 3),
            "megabytes": round(alone(measure_memory, name, options, labels, classes) / 2**20, 2),
        }
    return costs


class Pass:
    """A forward and backward pass of a loss over random logits."""

    def __init__(self, name: str, options: Options, labels: Labels, classes: int) -> None:
        """Create the inputs."""
        torch.manual_seed(0)
        batch, height, width = labels.shape
        self.logits = torch.randn(batch, classes, height, width).requires_grad_()
        self.target = torch.from_numpy(labels).long()
        self.loss = make(name, options, VOID, targets=[self.target], num_classes=classes)

    def __call__(self) -> None:
        """Run the pass."""
        self.loss(self.logits, self.target, Progress()).backward()
        self.logits.grad = None


def measure_time(losses: Sequence[tuple[str, Options]], labels: Labels, classes: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of each loss, by title."""
    passes = {loss_title(name, options): Pass(name, options, labels, classes) for name, options in losses}
    for run in passes.values():
        run()
    return median_seconds(passes, rounds)


def measure_memory(name: str, options: Options, labels: Labels, classes: int) -> int:
    """Return the bytes that a pass takes at its peak, without the gradient."""
    # The first call also loads code, threads and libraries, which are not part of the pass.
    Pass(name, options, np.indices((8, 8)).sum(0).astype(np.uint8)[None] % 2, classes)()
    run = Pass(name, options, labels, classes)
    return added_memory(run) - run.logits.nbytes
