#!/usr/bin/env python3
"""Time the trainer with one process and several, and the loss's share of a step.

Each process has one thread and reads its images itself. The speed is that of the last epoch of a run of train.py, so it
includes reading and everything else; the loss is timed alone, forward and backward, on the logits of a batch.
"""

from __future__ import annotations

import argparse
import json
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

from segkit.loader import Batches  # noqa: E402
from segkit.run import build  # noqa: E402

EXAMPLE = (
    "example: python benchmarks/training.py --config configs/camvid.yaml --output benchmarks/results/training.json"
)


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; return its own options, and those of train.py."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE)
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="configuration of train.py, whose options may follow"
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes (default: 1 2)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs per run (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps to time the loss in (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_known_args()


def images_per_second(processes: int, config: Path, overrides: list[str]) -> float:
    """Return the speed of training in ``processes`` processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / "train.py"), "fit", "--config", str(config), *overrides]
        command += [f"--trainer.default_root_dir={folder}", f"--trainer.devices={processes}", "--trainer.logger=false"]
        command += ["--data.workers=0", "--page.worst=0"]
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


def step_and_loss(arguments: list[str], times: int) -> tuple[int, float, float]:
    """Return the images of a training step, its seconds, and those of the loss in it."""
    torch.set_num_threads(1)
    module, data = build(arguments)
    batch = next(iter(Batches(data.train_set, data.batch_size, 0, seed=0)))
    optimizer = torch.optim.AdamW(module.network.parameters())

    def step() -> None:
        optimizer.zero_grad()
        module.criterion(module(batch.images), batch.labels).backward()
        optimizer.step()

    logits = module(batch.images).detach().requires_grad_()
    loss = median_seconds(lambda: module.criterion(logits, batch.labels, return_terms=True)[0].backward(), times)
    return data.batch_size, median_seconds(step, times), loss


def main() -> None:
    """Time, and print a table."""
    options, overrides = parse()
    images, whole, loss = step_and_loss(["--config", str(options.config), *overrides], options.steps)
    more = [*overrides, f"--trainer.max_epochs={options.epochs}"]
    speeds = {count: images_per_second(count, options.config, more) for count in options.processes}
    result = {
        "machine": processor(),
        "torch": torch.__version__,
        "config": str(options.config),
        "overrides": overrides,
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
    print(f"\nA step of {images} images takes {whole:.3f} s, of which the loss takes {loss / whole:.1%}.")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
