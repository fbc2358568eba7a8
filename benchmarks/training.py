#!/usr/bin/env python3
"""Time the trainer with one process and several, and the loss's share of a step.

Each process has one thread and reads its images itself. The speed is that of the last epoch of a run of train.py, so it
includes reading and everything else; the loss is timed alone, forward and backward, on the logits of a batch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from measure import call, processor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from segkit.build import make_criterion, make_state, open_data  # noqa: E402
from segkit.config import Config, load_config  # noqa: E402
from segkit.guard import NanGuard  # noqa: E402
from segkit.loader import load_batches  # noqa: E402
from segkit.placement import find_device, find_placement  # noqa: E402
from segkit.step import TrainStep  # noqa: E402

EXAMPLE = (
    "example: python benchmarks/training.py --config configs/camvid.yaml --output benchmarks/results/training.json"
)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration of train.py")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes (default: 1 2)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs per run (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps to time the loss in (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for train.py")
    return parser.parse_intermixed_args()


def images_per_second(processes: int, config: Path, overrides: list[str]) -> float:
    """Return the speed of training in ``processes`` processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        command += [str(ROOT / "examples" / "train.py"), "--config", str(config), *overrides]
        command += [f"output={folder}", "overwrite=true", "panels=0", "data.workers=0"]
        call(command, os.environ | {"OMP_NUM_THREADS": "1"})
        rate: float = json.loads((Path(folder) / "metrics.json").read_text())["epochs"][-1]["images_per_second"]
        return rate


def median_seconds(call: Callable[[], object], times: int) -> float:
    """Return the median time of a call, after one call that is not timed."""
    seconds = []
    for _ in range(times + 1):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def step_and_loss(config: Config, times: int) -> tuple[float, float]:
    """Return the seconds of a training step, and of the loss in it."""
    torch.set_num_threads(1)
    device = find_device(config.device)
    placement = find_placement(config, device)
    dataset, _ = open_data(config)
    classes = len(dataset.classes)
    criterion = make_criterion(config.loss, classes, dataset.ignore_index).to(device)
    state = make_state(config, classes, placement, math.ceil(len(dataset) / config.batch_size))
    batch = next(load_batches(dataset, config.batch_size, 0, seed=config.seed, accumulate=config.accumulate))
    pairs = [
        (placement.run(state.network, part.images).detach().requires_grad_(), part.labels.to(device)) for part in batch
    ]

    def loss_alone() -> None:
        for logits, labels in pairs:
            criterion(logits, labels, return_terms=True)[0].backward()

    with tempfile.TemporaryDirectory() as folder:
        step = TrainStep(state, state.network, criterion, placement, NanGuard(Path(folder), criterion))
        return median_seconds(lambda: step(batch, number=1), times), median_seconds(loss_alone, times)


def main() -> None:
    """Time, and print a table."""
    options = parse()
    config = load_config(options.config, options.overrides)
    whole, loss = step_and_loss(config, options.steps)
    overrides = [*options.overrides, f"epochs={options.epochs}"]
    speeds = {count: images_per_second(count, options.config, overrides) for count in options.processes}
    result = {
        "machine": processor(),
        "torch": torch.__version__,
        "config": str(options.config),
        "overrides": options.overrides,
        "images_per_second": speeds,
        "step_seconds": whole,
        "loss_seconds": loss,
        "loss_share": loss / whole,
    }
    print(f"\n{result['machine']}, torch {result['torch']}, {options.config}\n")
    print("| processes | images/s | relative to one |\n|---|---|---|")
    first = next(iter(speeds.values()))
    for count, speed in speeds.items():
        print(f"| {count} | {speed:.1f} | {speed / first:.2f} × |")
    print(f"\nA step of {config.batch_size} images takes {whole:.3f} s, of which the loss takes {loss / whole:.1%}.")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
