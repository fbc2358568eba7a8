#!/usr/bin/env python3
"""Measure time and memory of boundary metrics over generated label maps: ours, MONAI's and torchmetrics'.

Each row of the printed table is one of the results, which ``--output`` adds to a file. Every metric runs in a process
of its own, one image at a time, as an evaluation does. The predictions are the labels of each image, moved by up to
three pixels, with rectangles of other classes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from label_maps import blobs
from measure import INSTRUCTIONS, added_memory, alone, processor
from result_table import Row, add_rows, markdown_table

Maps = tuple[Tensor, Tensor]
Update = Callable[[Tensor, Tensor], Any]


def images(count: int, size: int, classes: int) -> Iterator[Maps]:
    """Yield predicted and true labels [1, H, W]."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        target = next(islice(blobs((size, size), classes, seed), 150, None)).astype(np.int64)
        pred = np.roll(target, random.integers(-3, 4, 2), (0, 1))
        for _ in range(6):
            row, column = random.integers(0, size - size // 16, 2)
            pred[row : row + size // 16, column : column + size // 16] = random.integers(classes)
        yield torch.from_numpy(pred)[None], torch.from_numpy(target)[None]


def ours(name: str, classes: int, **options: Any) -> tuple[Update, Callable[[], Any]]:  # noqa: ANN401
    """Return a metric of edgeloss."""
    import edgeloss.metrics

    metric = getattr(edgeloss.metrics, name)(classes, **options)
    return metric.update, metric.compute


def monai(classes: int, names: tuple[str, ...]) -> tuple[Update, Callable[[], Any]]:
    """Return metrics of MONAI, which take one-hot labels."""
    from monai.metrics import HausdorffDistanceMetric, SurfaceDiceMetric, SurfaceDistanceMetric

    made = {
        "hd95": lambda: HausdorffDistanceMetric(include_background=True, percentile=95),
        "hd": lambda: HausdorffDistanceMetric(include_background=True),
        "assd": lambda: SurfaceDistanceMetric(include_background=True, symmetric=True),
        "nsd1": lambda: SurfaceDiceMetric([1.0] * classes, include_background=True),
        "nsd2": lambda: SurfaceDiceMetric([2.0] * classes, include_background=True),
    }
    metrics = [made[name]() for name in names]

    def update(*maps: Tensor) -> None:
        pred, target = (torch.nn.functional.one_hot(labels, classes).movedim(-1, 1) for labels in maps)
        for metric in metrics:
            metric(pred, target)

    return update, lambda: [metric.aggregate() for metric in metrics]


def torchmetrics(classes: int) -> tuple[Update, Callable[[], Any]]:
    """Return the Hausdorff distance of torchmetrics."""
    from torchmetrics.segmentation import HausdorffDistance

    metric = HausdorffDistance(classes, include_background=True, input_format="index")
    return metric.update, metric.compute


SURFACES = ("hd95", "hd", "assd", "nsd1", "nsd2")
METRICS: dict[str, Callable[[int], tuple[Update, Callable[[], Any]]]] = {
    "BoundaryScores (ten scores)": lambda c: ours("BoundaryScores", c),
    'BoundaryScores (ten scores, convention="monai")': lambda c: ours("BoundaryScores", c, convention="monai"),
    "BoundaryIoU": lambda c: ours("BoundaryIoU", c),
    "BoundaryF1(radius=5)": lambda c: ours("BoundaryF1", c, radius=5),
    "TrimapIoU(radius=3)": lambda c: ours("TrimapIoU", c, radius=3),
    "HausdorffDistance(percentile=95)": lambda c: ours("HausdorffDistance", c),
    'HausdorffDistance(percentile=95, convention="monai")': lambda c: ours("HausdorffDistance", c, convention="monai"),
    "AverageSurfaceDistance": lambda c: ours("AverageSurfaceDistance", c),
    "SurfaceDice": lambda c: ours("SurfaceDice", c),
    "MONAI: HausdorffDistanceMetric(percentile=95)": lambda c: monai(c, ("hd95",)),
    "MONAI: its five surface scores": lambda c: monai(c, SURFACES),
    "torchmetrics: HausdorffDistance": torchmetrics,
}


def measured(name: str, count: int, size: int, classes: int) -> Row:
    """Return time and memory of a metric; in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of MONAI about classes that an image lacks
    maps = list(images(count, size, classes))
    warm, _ = METRICS[name](classes)
    warm(*maps[0])
    update, compute = METRICS[name](classes)
    seconds = 0.0

    def run() -> None:
        nonlocal seconds
        start = time.process_time()  # of this process alone, on a machine that may do something else
        for pred, target in maps:
            update(pred, target)
        compute()
        seconds = time.process_time() - start

    memory = added_memory(run)
    machine = {"processor": processor(), "instructions": INSTRUCTIONS, "threads": 1, "torch": torch.__version__}
    case = {"metric": name, "images": count, "size": [size, size], "classes": classes}
    return {**case, "milliseconds": round(1e3 * seconds / count, 2), "megabytes": round(memory / 1e6, 1)} | {
        "machine": machine | versions()
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are compared."""
    from importlib.metadata import version

    return {name: version(name) for name in ("monai", "torchmetrics", "scipy")}


def main() -> None:
    """Measure, print, and add the rows to the table of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=[*METRICS], metavar="NAME")
    parser.add_argument("--output", type=Path, help="add the figures to a table of results")
    options = parser.parse_args()
    rows = []
    for name in options.metrics:
        rows.append(alone(measured, name, options.images, options.size, options.classes))
        if options.output:
            add_rows(options.output, rows[-1:], lambda row: f"{row['metric']} {row['size']}")
        print(name, rows[-1]["milliseconds"], "ms per image,", rows[-1]["megabytes"], "MB", flush=True)
    print("\n".join(markdown_table(["metric", "ms per image:", "MB:"], map(cells, rows))))


def cells(row: Row) -> list[str]:
    """Return the cells of a row of the table."""
    return [row["metric"], f"{row['milliseconds']:.1f}", f"{row['megabytes']:.0f}"]


if __name__ == "__main__":
    main()
