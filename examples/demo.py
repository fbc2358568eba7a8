#!/usr/bin/env python3
"""Train a small U-Net twice from the same seed, with cross-entropy and with EdgeAwareLoss(), and compare the two.

The images are drawn by data/make_shapes.py: shapes and thin wires on a background. Both trainings run at the same time,
with one thread each. OUTPUT gets the data, the two runs of train.py, comparison.png (the same images labeled by both),
curves.png and report.html.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Column, Table

import compare
from edgeloss import EdgeAwareLoss
from edgeloss.integrations.run_page import Row
from edgeloss.io import atomic_write
from edgeloss.viz import report
from segkit.comparison import Labeled, draw_labels, label_validation, quartiles, read_history

ROOT = Path(__file__).resolve().parents[1]
# The folders of the two runs, and the option that differs.
RUNS = {"cross-entropy": ["--model.loss.edge_weight=0", "--model.loss.region_weight=0"], "EdgeAwareLoss": []}
DRAWN = ("--merge", "--train", "96", "--val", "24", "--size", "96")
COMMON = ("--model.width=8", "--model.levels=4", "--data.workers=0", "--data.cache=true", "--page.worst=4")
COMMON += ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.logger=false")
SCORES = {
    "val/miou": "mean IoU",
    "val/iou/wire": "IoU of wires",
    "val/boundary_iou": "boundary IoU",
    "val/boundary_f1_1": "boundary F1, 1 px",
    "val/edge_accuracy": "accuracy at edges",
}
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # not loaded in a forked process


def end_with_parent() -> None:
    """In a new process, receive SIGTERM as soon as the parent ends, even if that is killed; on Linux only."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def train(name: str, output: Path, overrides: Sequence[str]) -> int:
    """Run train.py in a process of one thread, print a short line per epoch, and return its exit code."""
    command = [sys.executable, "examples/train.py", "fit", "--config", "configs/shapes.yaml"]
    command += [f"--trainer.default_root_dir={output / name}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, *COMMON, *RUNS[name], *overrides],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            figures = re.findall(r"^epoch \S+|train loss \S+|mIoU \S+|boundary IoU \S+", line)
            if line.startswith("epoch"):
                print(f"{name:>13}  {'  '.join(figures)}", flush=True)
    return process.returncode


def score_table(runs: dict[str, Row]) -> Table:
    """Return the scores of two runs, and what the second gains in percentage points."""
    table = Table(Column(no_wrap=True), *SCORES.values(), title="Validation images, after the last epoch")
    first, second = ([row[key] or 0.0 for key in SCORES] for row in runs.values())
    for name, values in zip(runs, (first, second), strict=True):
        table.add_row(name, *(f"{value:.1%}" for value in values))
    table.add_section()
    table.add_row("gain", *(f"{100 * (b - a):+.1f}" for a, b in zip(first, second, strict=True)))
    return table


def write_report(path: Path, labeled: dict[str, Labeled], index: int) -> None:
    """Write the page about one image, with the logits of both networks."""
    parts = [run.images[index] for run in labeled.values()]
    page = report(
        torch.stack([part.logits for part in parts]),
        torch.stack([part.target for part in parts]),
        image=torch.stack([part.image for part in parts]),
        criterion=EdgeAwareLoss(ignore_index=-1),
        class_names=next(iter(labeled.values())).classes,
        title=f"{parts[0].name}: {', then '.join(labeled)}",
    )
    with atomic_write(path) as file:
        file.write(page.encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "runs" / "demo", metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=30, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of both trainings; default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except KeyboardInterrupt:
        print("demo.py: interrupted; the same command starts over", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Draw the data, train both networks, and compare them."""
    console, output = Console(highlight=False, soft_wrap=True), options.output.resolve()
    data = output / "data"
    console.print("==> drawing images of shapes and wires", markup=False)
    subprocess.run([sys.executable, "data/make_shapes.py", "--out", str(data), *DRAWN], cwd=ROOT, check=True)
    console.print(f"==> training two networks for {options.epochs} epochs each, from seed {options.seed}", markup=False)
    overrides = [f"--data.root={data}", f"--trainer.max_epochs={options.epochs}", f"--seed_everything={options.seed}"]
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(lambda name: train(name, output, overrides), RUNS))
    if any(codes):
        return max(codes)
    console.print("==> comparing the two networks", markup=False)
    histories = {name: read_history(output / name) for name in RUNS}
    labeled = {name: label_validation(output / name) for name in RUNS}
    shown = quartiles(list(labeled.values()))
    draw_labels(labeled, shown).savefig(output / "comparison.png", dpi=150)
    compare.draw(histories).savefig(output / "curves.png", dpi=150)
    write_report(output / "report.html", labeled, shown[1])
    console.print(score_table({name: history[-1] for name, history in histories.items()}))
    console.print("Open these first:", markup=False)
    for name, content in {
        "comparison.png": "the same validation images, labeled by both networks",
        "report.html": "one of them, in a browser: every loss term of every pixel",
        "curves.png": "the scores after each epoch",
        "EdgeAwareLoss/report.html": "the run, with its worst images",
    }.items():
        console.print(f"  {os.path.relpath(output / name):40} {content}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
