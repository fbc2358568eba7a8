"""Time the boundary metrics over a folder of masks of equal size.

The prediction is the same masks, shifted by two pixels. Reading them is not timed. Each metric is timed alone, in
batches, from labels to value; the fastest of the rounds counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from torchmetrics import Metric

from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU
from label_maps import VOID
from result_table import Row

SHIFT, BATCH = 2, 8


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    parser.add_argument("--classes", type=int, default=11, help="number of classes (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    parser.set_defaults(rounds=3)


def timed(metric: Metric, pred: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """Return the seconds that a metric takes for all masks, and its value."""
    metric.reset()
    start = time.perf_counter()
    for p, t in zip(pred.split(BATCH), target.split(BATCH), strict=True):
        metric.update(p, t)
    value = metric.compute().item()  # waits for the device
    return time.perf_counter() - start, value


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each metric, and one for all."""
    torch.set_num_threads(options.threads)
    files = sorted(options.masks.glob("*.png"))
    if not files:
        raise SystemExit(f"--masks: expected a folder with *.png, but got {options.masks}")
    target = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files]).to(options.device)
    pred = target.roll((SHIFT, SHIFT), (1, 2))
    pred[pred == VOID] = 0
    arguments = {"num_classes": options.classes, "ignore_index": VOID}
    metrics: dict[str, Metric] = {
        "Boundary IoU, ratio 0.02": BoundaryIoU(**arguments),
        **{f"Boundary F1, radius {r}": BoundaryF1(radius=r, **arguments) for r in (1, 3, 5)},
        **{f"trimap IoU, radius {r}": TrimapIoU(radius=r, **arguments) for r in (1, 3, 5)},
    }
    total = 0.0
    for name, metric in metrics.items():
        seconds, value = min(timed(metric.to(options.device), pred, target) for _ in range(options.rounds))
        total += seconds
        yield {"case": name, "value": value, "seconds": seconds}
    yield {"case": "all", "value": "", "seconds": total}
