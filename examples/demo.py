#!/usr/bin/env python3
"""Train a small U-Net twice from the same seed, with cross-entropy and with EdgeAwareLoss(), and compare the two.

The images are drawn by data/make_shapes.py: shapes and thin wires on a background. Both trainings run at the same time,
with one thread each. OUTPUT gets the data, the two runs of train.py with their pages, demo.png (the median image under
both networks), comparison.html (all images, by the command edgeloss) and report.html (the median one, pixel by pixel).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy.ndimage import distance_transform_edt

from edgeloss.io import VOID_INDEX, read_classes
from edgeloss.viz import distinct_colors
from edgeloss.viz.coloring import picture_of_labels
from edgeloss.viz.run_page import Row

ROOT = Path(__file__).resolve().parents[1]
# The folders of the two runs, and the option that differs.
RUNS = {"cross-entropy": ["--model.loss.edge_weight=0", "--model.loss.region_weight=0"], "EdgeAwareLoss": []}
DRAWN = ("--merge", "--train", "96", "--val", "24", "--size", "96")
COMMON = ("--model.width=8", "--model.levels=4", "--data.workers=0", "--data.cache=true", "--page.worst=4")
COMMON += ("--overwrite", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.logger=false")
SCORES = {
    "val/miou": "mean IoU",
    "val/iou/wire": "IoU of wires",
    "val/boundary_iou": "boundary IoU",
    "val/boundary_f1_1": "boundary F1, 1 px",
    "val/edge_accuracy": "accuracy at edges",
}
SPECKLES = "wire pixels far from any wire"


def train(name: str, output: Path, overrides: Sequence[str]) -> int:
    """Run train.py in a process of one thread, print a short line per epoch, and return its exit code.

    If the demo is killed, a training ends when it prints its next line, since the pipe is closed.
    """
    command = [sys.executable, "examples/train.py", "fit", "--config", "configs/shapes.yaml", *COMMON, *RUNS[name]]
    command += [f"--trainer.default_root_dir={output / name}", *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch"):
                scores = re.findall(r"mIoU \S+|boundary IoU \S+", line)  # not the losses, which can't be compared
                print("  ".join([f"{name:>13}", f"epoch {line.split()[1]:>5}", *scores]), flush=True)
    return process.returncode


def score_table(runs: dict[str, Row], speckles: Sequence[int]) -> Table:
    """Return the scores of two runs, what the second gains in percentage points, and what it may lose: speckles."""
    table = Table(
        title="\nValidation images, after the last epoch\n", title_justify="left", box=SIMPLE_HEAD, show_edge=False
    )
    for name in ("", *runs, "change"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    first, second = runs.values()
    for key, name in SCORES.items():
        a, b = (row[key] or 0.0 for row in (first, second))
        table.add_row(name, f"{a:.1%}", f"{b:.1%}", f"{100 * (b - a):+.1f}")
    table.add_row(SPECKLES, *map(str, speckles), f"{speckles[1] - speckles[0]:+d}")
    return table


def draw_image(output: Path, name: str, scores: Sequence[Row]) -> Figure:
    """Draw an image, its labels, and the labels that both networks predict, with their boundary F1."""
    data = output / "data"
    files = {"true labels": data / "val" / "masks", **{run: output / run / "labels" for run in RUNS}}
    labels = {title: np.asarray(Image.open(folder / f"{name}.png")).astype(int) for title, folder in files.items()}
    void = labels["true labels"] == VOID_INDEX
    colors = distinct_colors(len(read_classes(data / "classes.txt").names))
    figure = Figure(figsize=(10, 3), layout="constrained")
    image, *others = figure.subplots(1, 4)
    image.imshow(Image.open(data / "val" / "images" / f"{name}.png"))
    image.set_title("image", loc="left")
    for axes, (title, drawn) in zip(others, labels.items(), strict=True):
        axes.imshow(picture_of_labels(np.where(void, -1, drawn), colors), interpolation="nearest")
        axes.set_title(title, loc="left")
    for axes, row in zip(others[1:], scores, strict=True):
        axes.set_xlabel(f"boundary F1, 1 px: {row['boundary_f1_1px'] or 0:.1%}", loc="left")
    for axes in (image, *others):
        axes.set(xticks=[], yticks=[])
    return figure


def run_python(*words: object) -> str:
    """Run a program of Python, and return what it prints."""
    command = [sys.executable, *map(str, words)]
    ran = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return ran.stdout


def write_pages(output: Path) -> None:
    """Write the page that compares both networks on the validation images, and picture and page of the median one."""
    data, predictions = output / "data", [output / name / "probabilities" for name in RUNS]
    images, masks, classes = data / "val" / "images", data / "val" / "masks", ("--classes", data / "classes.txt")
    for name in RUNS:
        given = "--checkpoint", output / name / "last.ckpt", "--images", images, "-o", output / name, "--device", "cpu"
        run_python("examples/predict.py", *given, "--probabilities", "--overwrite")
    given = "--image", images, "--mask", masks, *classes, "--names", *RUNS, "--json", "-o", output / "comparison.html"
    scores = json.loads(run_python("-m", "edgeloss.cli", "compare", *predictions, *given))["images"]
    key = "boundary_f1_1px"
    gains = {name: (after[key] or 0) - (before[key] or 0) for name, (before, after) in scores.items()}
    shown = sorted(gains, key=lambda name: -gains[name])[len(gains) // 2]  # as comparison.html chooses it
    given = "--image", images / f"{shown}.png", "--mask", masks / f"{shown}.png", *classes, "-o", output / "report.html"
    run_python("-m", "edgeloss.cli", "view", "--pred", predictions[1] / f"{shown}.npy", *given)
    draw_image(output, shown, scores[shown]).savefig(output / "demo.png", dpi=150)


def count_speckles(labels: Path, masks: Path, wire: int) -> int:
    """Return how many pixels are called wire more than 3 pixels away from any wire."""
    count = 0
    for path in sorted(labels.iterdir()):
        labeled, truth = (np.asarray(Image.open(folder / path.name)) for folder in (labels, masks))
        is_far = distance_transform_edt(truth != wire) > 3 if (truth == wire).any() else np.ones(truth.shape, bool)
        count += int(((labeled == wire) & (truth != VOID_INDEX) & is_far).sum())
    return count


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
    histories = {name: json.loads((output / name / "metrics.json").read_text())["epochs"] for name in RUNS}
    write_pages(output)
    last = {name: history[-1] for name, history in histories.items()}
    wire, masks = read_classes(data / "classes.txt").names.index("wire"), data / "val" / "masks"
    counts = [count_speckles(output / name / "labels", masks, wire) for name in RUNS]
    console.print(score_table(last, counts))
    picture, page = (os.path.relpath(output / name) for name in ("demo.png", "comparison.html"))
    console.print(f"\n{picture} shows the image of the median gain under both networks.", markup=False)
    console.print(
        f"Try next: open {page}, which compares them on every image, then train on your own images: docs/training.md",
        markup=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
