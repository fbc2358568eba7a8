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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

from measure import processor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from segkit.config import Config, ConfigError, load_config
from segkit.data import Augment, SegmentationDataset, open_dataset
from segkit.loader import TimedIterator
from segkit.seeding import seed_worker

EXAMPLES = """\
examples:
  python benchmarks/loading.py --config configs/shapes.yaml
  python benchmarks/loading.py --config configs/camvid.yaml data.size=null --workers 0 1 2 4 --output loading.json
"""


def open_train_set(config: Config, *, cache: bool) -> SegmentationDataset:
    """Open the training images of a configuration."""
    data = config.data
    return open_dataset(
        data.layout,
        data.root,
        data.train,
        size=None if data.size is None else (data.size[0], data.size[1]),
        augment=None if data.augment is None else Augment(**asdict(data.augment)),
        seed=config.seed,
        classes=data.classes,
        cache=cache,
    )


def run_epoch(dataset: SegmentationDataset, batch_size: int, workers: int, epoch: int) -> tuple[float, float]:
    """Load all images; return the seconds to the first batch, and to the end."""
    dataset.set_epoch(epoch)
    loader = DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(epoch),
        worker_init_fn=seed_worker,
    )
    batches = TimedIterator(loader)
    next(batches)
    first = batches.seconds
    for _ in batches:
        pass
    return first, batches.seconds


def measure(config: Config, workers: Sequence[int], epochs: int) -> tuple[SegmentationDataset, list[dict[str, Any]]]:
    """Return the data set, and the figures of each case."""
    datasets = {cached: open_train_set(config, cache=cached) for cached in (False, True)}
    seconds: dict[tuple[bool, int], list[tuple[float, float]]] = {
        (cached, count): [] for cached in datasets for count in workers
    }
    for epoch in range(epochs + 1):
        for (cached, count), times in seconds.items():
            times.append(run_epoch(datasets[cached], config.batch_size, count, epoch))
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
    return datasets[True], rows


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file, such as configs/shapes.yaml")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="numbers of workers (default: 0 1 2)")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs per case (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write all figures as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values that override the file")
    options = parser.parse_intermixed_args()
    if options.epochs < 1:
        parser.error(f"--epochs: expected at least 1, but got {options.epochs}")
    if min(options.workers) < 0:
        parser.error(f"--workers: expected at least 0, but got {min(options.workers)}")
    return options


def main() -> int:
    """Time all cases and print the table."""
    options = parse()
    # A file or pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    torch.set_num_threads(1)  # as in a worker, for comparison
    try:
        config = load_config(options.config, options.overrides)
        dataset, rows = measure(config, options.workers, options.epochs)
    except (ConfigError, OSError, ValueError) as error:
        print(f"loading.py: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return 1
    height, width = dataset[0][1].shape
    about = {
        "processor": processor(),
        "torch": torch.__version__,
        "config": str(options.config),
        "overrides": options.overrides,
        "images": len(dataset),
        "height": height,
        "width": width,
        "batch_size": config.batch_size,
        "cache_bytes": dataset.cache_bytes,
    }
    table = Table("cached", "workers", "images/s", "first batch, s", "epoch, s")
    for row in rows:
        figures = (row["images_per_second"], row["first_batch_seconds"], row["epoch_seconds"])
        table.add_row("yes" if row["cached"] else "no", str(row["workers"]), *(f"{figure:.2f}" for figure in figures))
    console.print(f"{about['processor']}, torch {about['torch']}")
    console.print(
        f"{options.config}: {len(dataset)} images of {height} × {width}, batches of {config.batch_size};"
        f" the cache takes {dataset.cache_bytes / 2**20:.1f} MiB"
    )
    console.print(table)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"machine": about, "cases": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
