#!/usr/bin/env python3
"""Time the data loader of a training configuration alone.

A training loop that is faster than this waits for its images. An epoch is timed as the trainer runs it: its workers
start and end with it. The cases take turns, epoch by epoch, so that a change of clock rate affects all of them; the
table shows medians. A first epoch is not timed: it fills the caches of the data set and of the file system.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from measure import processor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from segkit.data import SegmentationDataset
from segkit.data_module import SegmentationData
from segkit.loader import Batches
from segkit.run import build

EXAMPLES = """\
examples:
  python benchmarks/loading.py --config configs/shapes.yaml
  python benchmarks/loading.py --config configs/camvid.yaml --data.size=null --workers 0 1 2 4 --output loading.json
"""


def run_epoch(dataset: SegmentationDataset, batch_size: int, workers: int, epoch: int) -> tuple[float, float]:
    """Load all images; return the seconds to the first batch, and to the end."""
    start = time.perf_counter()
    batches = iter(Batches(dataset, batch_size, workers, seed=0, position=lambda: (epoch, 0)))
    next(batches)
    first = time.perf_counter() - start
    for _ in batches:
        pass
    return first, time.perf_counter() - start


def measure(data: dict[bool, SegmentationData], workers: Sequence[int], epochs: int) -> list[dict[str, Any]]:
    """Return the figures of each case; the data are with and without a cache."""
    datasets = {cached: module.train_set for cached, module in data.items()}
    seconds: dict[tuple[bool, int], list[tuple[float, float]]] = {
        (cached, count): [] for cached in datasets for count in workers
    }
    for epoch in range(epochs + 1):
        for (cached, count), times in seconds.items():
            times.append(run_epoch(datasets[cached], data[cached].batch_size, count, epoch))
    rows = []
    for (cached, count), times in seconds.items():
        first, whole = (statistics.median(values) for values in zip(*times[1:], strict=True))
        rows.append(
            {
                "cached": cached,
                "workers": count,
                "images_per_second": len(datasets[cached]) / whole,
                "first_batch_seconds": first,
                "epoch_seconds": whole,
            }
        )
    return rows


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; return its own options, and those of train.py."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="YAML file, such as configs/shapes.yaml; other options are those of train.py",
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="numbers of workers (default: 0 1 2)")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs per case (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write all figures as JSON")
    options, overrides = parser.parse_known_args()
    if options.epochs < 1:
        parser.error(f"--epochs: expected at least 1, but got {options.epochs}")
    if min(options.workers) < 0:
        parser.error(f"--workers: expected at least 0, but got {min(options.workers)}")
    return options, overrides


def main() -> int:
    """Time all cases and print the table."""
    options, overrides = parse()
    # A file or pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    torch.set_num_threads(1)  # as in a worker, for comparison
    try:
        data = {
            cached: build(["--config", options.config, *overrides, f"--data.cache={cached}"])[1]
            for cached in (False, True)
        }
        rows = measure(data, options.workers, options.epochs)
        dataset = data[True].train_set
    except (OSError, ValueError) as error:
        print(f"loading.py: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return 1
    height, width = dataset[0][1].shape
    about = {
        "processor": processor(),
        "torch": torch.__version__,
        "config": str(options.config),
        "overrides": overrides,
        "images": len(dataset),
        "height": height,
        "width": width,
        "batch_size": data[True].batch_size,
        "cache_bytes": dataset.cache_bytes,
    }
    table = Table("cached", "workers", "images/s", "first batch, s", "epoch, s")
    for row in rows:
        figures = (row["images_per_second"], row["first_batch_seconds"], row["epoch_seconds"])
        table.add_row("yes" if row["cached"] else "no", str(row["workers"]), *(f"{figure:.2f}" for figure in figures))
    console.print(f"{about['processor']}, torch {about['torch']}")
    console.print(
        f"{options.config}: {len(dataset)} images of {height} × {width}, batches of {data[True].batch_size};"
        f" the cache takes {dataset.cache_bytes / 2**20:.1f} MiB"
    )
    console.print(table)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"machine": about, "cases": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
