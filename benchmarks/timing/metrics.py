"""Time the boundary metrics over a folder of masks.

The prediction is the same masks, shifted by some pixels. Reading them is not timed. Each metric is timed alone, in
batches, from labels to value.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torchmetrics import Metric

from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU
from measure import processor


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    parser.add_argument("--masks", type=Path, required=True, metavar="DIR", help="label masks of equal size, *.png")
    parser.add_argument("--classes", type=int, required=True, help="number of classes")
    parser.add_argument("--void", type=int, default=255, help="void label (default: %(default)s)")
    parser.add_argument("--shift", type=int, default=2, help="shift down and right in pixels (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="images per batch (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")


def timed(metric: Metric, pred: torch.Tensor, target: torch.Tensor, batch: int) -> tuple[float, float]:
    """Return the seconds that a metric takes for all masks, and its value."""
    metric.reset()
    start = time.perf_counter()
    for p, t in zip(pred.split(batch), target.split(batch), strict=True):
        metric.update(p, t)
    value = metric.compute().item()  # waits for the device
    return time.perf_counter() - start, value


def run(options: argparse.Namespace) -> None:
    """Time all metrics and print a table."""
    torch.set_num_threads(options.threads)
    files = sorted(options.masks.glob("*.png"))
    if not files:
        raise SystemExit(f"--masks: expected a folder with *.png, but got {options.masks}")
    target = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files]).to(options.device)
    pred = target.roll((options.shift, options.shift), (1, 2))
    pred[pred == options.void] = 0
    arguments = {"num_classes": options.classes, "ignore_index": options.void}
    metrics: dict[str, Metric] = {
        "Boundary IoU, ratio 0.02": BoundaryIoU(**arguments),
        **{f"Boundary F1, radius {r}": BoundaryF1(radius=r, **arguments) for r in (1, 3, 5)},
        **{f"trimap IoU, radius {r}": TrimapIoU(radius=r, **arguments) for r in (1, 3, 5)},
    }
    table = Table("metric", "value", "s", "ms per image", caption=f"{list(target.shape)}, batches of {options.batch}")
    total = 0.0
    for name, metric in metrics.items():
        metric.to(options.device)
        seconds, value = min(timed(metric, pred, target, options.batch) for _ in range(options.rounds))
        table.add_row(name, f"{value:.4f}", f"{seconds:.2f}", f"{seconds / len(files) * 1e3:.1f}")
        total += seconds
    table.add_row("all", "", f"{total:.2f}", f"{total / len(files) * 1e3:.1f}")
    console = Console()
    console.print(f"{processor()}, {options.device}, {options.threads} threads, torch {torch.__version__}")
    console.print(table)
