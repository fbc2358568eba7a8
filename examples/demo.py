#!/usr/bin/env python3
"""Train a small U-Net twice from the same seed, with cross-entropy and with EdgeAwareLoss(), and compare the two.

The images are drawn by data/make_shapes.py: shapes and thin wires on a background. Both trainings run at the same time,
with one thread each. OUTPUT gets the data, the two runs of train.py with their pages, comparison.html (all images, by
the command edgeloss), demo.png (the median one under both networks), report.html (the median one, pixel by pixel) and
images/index.html (all of them under the loss, pixel by pixel).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from PIL import Image
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from edgeloss.cli.progress import shown_time
from edgeloss.io import VOID_INDEX, read_classes
from edgeloss.viz import distinct_colors
from edgeloss.viz.coloring import color_bytes, compared_errors, error_picture, picture_of_labels
from edgeloss.viz.comparison import choose_examples, choose_windows
from edgeloss.viz.drawing import draw_true_borders, find_borders
from edgeloss.viz.palette import BETTER, RIGHT, VOID, WORSE, WRONG_IN_BOTH
from edgeloss.viz.run_page import Row
from edgeloss.viz.scores import ABOUT_STRAY, compute_scores, shown, shown_change, shown_growth

Pixels = npt.NDArray[Any]

ROOT = Path(__file__).resolve().parents[1]
# The folders of the two runs, and the option that differs.
RUNS = {"cross-entropy": ["--model.loss.edge_weight=0", "--model.loss.region_weight=0"], "EdgeAwareLoss": []}
INDEX = "images/index.html"  # of the second
DRAWN = ("--merge", "--train", "96", "--val", "24", "--size", "96")
COMMON = ("--model.width=8", "--model.levels=4", "--data.workers=0", "--data.cache=true", "--page.worst=4")
COMMON += ("--overwrite", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.logger=false")
SCORES = {
    "val/boundary_f1_1": "boundary F1 (1 px)",
    "val/boundary_iou": "boundary IoU",
    "val/miou": "mean IoU",
    "val/iou/wire": "IoU of wires",
    "val/edge_accuracy": "accuracy at edges",
    "val/accuracy": "accuracy of all pixels",
}
TONES = {"better": BETTER, "worse": WORSE}
BORDER = 35  # points, over the pixels across a picture: the width of the lines of borders
ABOUT = textwrap.fill(
    "Boundary IoU is the overlap of strips along the borders, 2\N{NO-BREAK SPACE}% of the diagonal wide"
    " (docs/quality.md: 0.5\N{NO-BREAK SPACE}%). Boundary F1 compares the borders, with a tolerance of 1 px. Accuracy"
    " at edges counts the pixels with another label next to them. Stray pixels are"
    f" {ABOUT_STRAY}, and counted by that class.",
    79,
)
# What OUTPUT has, in the order to look at it.
WRITTEN = {
    "comparison.html": "start here: every image under both networks",
    "demo.png": "the image of median gain under both networks",
    "report.html": "the image of median gain pixel by pixel",
    INDEX: "every image pixel by pixel",
    **{f"{name}/report.html": f"the training with {name}" for name in RUNS},
}
EPOCHS = 30
SILENT = 30  # seconds after which a line says how far the trainings are
# Figures of train.py's lines, and their names.
LINE = {"mIoU": SCORES["val/miou"], "boundary F1 (1 px)": SCORES["val/boundary_f1_1"]}


class Epochs:
    """The epochs of both trainings: a line for each that both have ended.

    Args:
        total: of each.
    """

    def __init__(self, total: int) -> None:
        """Print the head of the lines."""
        self.total = total
        self._figures: dict[str, list[list[str]]] = {name: [] for name in RUNS}
        self._begin = self._last = time.monotonic()
        self._first_end = self._begin  # of the first epoch, which takes longer than others since it has the start
        first, second = LINE.values()
        self._print("", f"{first:<31}", second)
        self._print("epoch", *self._cells([*RUNS] * 2))

    def add(self, name: str, line: str) -> None:
        """Take a line of a training, and print the epochs that are new in both."""
        before = self._done()
        # Not the losses, which can't be compared.
        found = (re.search(rf"{re.escape(key)} ([\d.]+)", line) for key in LINE)
        self._figures[name].append([f"{one[1]}\N{NO-BREAK SPACE}%" if one else "–" for one in found])
        for done in range(before + 1, self._done() + 1):
            pairs = zip(*(figures[done - 1] for figures in self._figures.values()), strict=True)
            cells = self._cells([value for pair in pairs for value in pair])
            self._print(f"{done}/{self.total}", *cells, self._shown_left(done))

    def say_if_silent(self) -> None:
        """Print what is running if there was no line for a while."""
        if (now := time.monotonic()) - self._last >= SILENT:
            done = self._done()
            doing = f"epoch {done + 1} of {self.total} is running" if done < self.total else "writing the pages"
            self._print("", f"{shown_time(now - self._begin)}: {doing}")

    def _shown_left(self, done: int) -> str:
        """Return how long the rest takes, from the second epoch to the last but one."""
        now = time.monotonic()
        if done == 1:
            self._first_end = now
        if done in (1, self.total):
            return ""
        return f"about {shown_time((now - self._first_end) / (done - 1) * (self.total - done))} left"

    def _done(self) -> int:
        return min(map(len, self._figures.values()))

    def _cells(self, values: Sequence[str]) -> list[str]:
        """Return the values of a line in columns, those of a figure closer to each other."""
        return [f"{value:>{16 if at == len(RUNS) else 13}}" for at, value in enumerate(values)]

    def _print(self, first: str, *cells: str) -> None:
        print("  ".join([f"{first:>5}", *cells]).rstrip(), flush=True)
        self._last = time.monotonic()


def train(name: str, output: Path, overrides: Sequence[str], add: Callable[[str, str], None]) -> int:
    """Run train.py in a process of one thread, hand on its line of each epoch, and return its exit code.

    If the demo is killed, a training ends when it prints its next line, since the pipe is closed.
    """
    command = [sys.executable, "examples/train.py", "fit", "--config", "configs/shapes.yaml", *COMMON, *RUNS[name]]
    links = {"Comparison of both trainings": "../comparison.html"}
    if name == [*RUNS][-1]:
        links["All images"] = f"../{INDEX}"
    command += [f"--page.links={json.dumps(links)}", f"--trainer.default_root_dir={output / name}", *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch"):
                add(name, line)
    return process.returncode


def train_both(output: Path, epochs: int, overrides: Sequence[str]) -> int:
    """Run both trainings at the same time, print how far they are, and return the higher exit code."""
    shown = Epochs(epochs)
    with ThreadPoolExecutor() as pool:
        trainings = [pool.submit(train, name, output, overrides, shown.add) for name in RUNS]
        while wait(trainings, timeout=SILENT / 10).not_done:
            shown.say_if_silent()
    return max(training.result() for training in trainings)


class Score(NamedTuple):
    """A figure of both runs, as it is printed.

    Attributes:
        name: of the figure.
        before: of the first run.
        after: of the second.
        change: from the first to the second, of the values as they are printed.
        verdict: whether that is better.
    """

    name: str
    before: str
    after: str
    change: str
    verdict: str


def compare_scores(runs: Mapping[str, Row], stray: Mapping[str, Sequence[int]]) -> list[Score]:
    """Return the scores of two runs, what the second gains in percentage points, and what it may lose: stray pixels.

    Args:
        runs: the last epoch of both.
        stray: the numbers of stray pixels of both, of all classes and of some.
    """
    scores = []
    for key, name in SCORES.items():
        before, after = (row[key] or 0.0 for row in runs.values())
        change = shown_change(before, after, ".1%", is_score=True)
        scores.append(Score(name, *_percent(before, after), f"{change['text']} points", change["tone"] or "same"))
    for name, counts in stray.items():
        growth = shown_growth(*counts)
        scores.append(Score(name, *(f"{count:,}" for count in counts), growth["text"], growth["tone"] or "same"))
    return scores


def _percent(*values: float) -> list[str]:
    """Return scores as text."""
    return [shown(value, ".1%") for value in values]


def score_table(scores: Sequence[Score], seed: int) -> Table:
    """Return the table of the figures of two runs."""
    table = Table(
        title="\nValidation images, after the last epoch\n",
        title_justify="left",
        caption=f"\nOne training each, from seed {seed}, on drawn images.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
    )
    for name in ("", *RUNS, "change"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in scores:
        table.add_row(*one)
    return table


def draw_image(output: Path, name: str, scores: Sequence[Row], totals: Sequence[float], count: int) -> Figure:
    """Draw the median image, where two networks differ, and the labels and what both predict, with two parts enlarged.

    The parts and their numbers are those of comparison.html. Lines are the borders of the labels. The picture is as
    narrow as a phone can show it.

    Args:
        output: the folder of the demo.
        name: of the image.
        scores: of the image, of each network.
        totals: boundary F1 of each network over all images.
        count: of the images of which this is the median.
    """
    data = output / "data"
    folders = [data / "val" / "masks", *(output / run / "labels" for run in RUNS)]
    truth, *predictions = (np.asarray(Image.open(folder / f"{name}.png")).astype(int) for folder in folders)
    truth[truth == VOID_INDEX] = -1
    photo = np.asarray(Image.open(data / "val" / "images" / f"{name}.png"))
    classes = read_classes(data / "classes.txt").names
    colors = distinct_colors(len(classes))
    maps = [picture_of_labels(np.where(truth < 0, -1, labels), colors) for labels in (truth, *predictions)]
    difference = error_picture(truth, truth, photo)
    for color, mask in compared_errors(truth, *predictions).items():
        difference[mask] = color_bytes(color)
    windows, valid = choose_windows(truth, *predictions), truth >= 0

    figure = Figure(figsize=(5.8, 6.3 + 2.5 * len(windows)), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.03))
    before, after = RUNS
    values = [one["boundary_f1_1px"] or 0.0 for one in scores]
    change = shown_change(*values, ".1%", is_score=True)
    title = (
        f"The same network, trained with {before} and with {after}: boundary F1"
        f" {' → '.join(_percent(*values))} in the image of median gain, {' → '.join(_percent(*totals))} in all {count}"
    )
    figure.suptitle(textwrap.fill(title, 56) + "\n", x=0.01, ha="left", weight="bold", size=10)
    grid = figure.subplots(2 + len(windows), 3)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
    for axes, heading, picture in zip(grid[0], (f"image {name}", "difference"), (photo, difference), strict=False):
        _fill(axes, picture, heading)
    _add_key(grid[0, 2], classes, colors)
    wrong = [np.count_nonzero(valid & (labels != truth)) for labels in predictions]
    grid[0, 1].set_xlabel(f"{wrong[0]:,} → {wrong[1]:,} wrong pixels", loc="left", size=10)
    grid[0, 1].xaxis.label.set(color=TONES.get(shown_growth(*wrong)["tone"], "black"), weight="bold")
    abouts = [f"boundary F1 {value}" for value in _percent(*values)]
    _draw_row(grid[1], "ground truth", maps, truth, abouts, f"{change['text']} points", change["tone"])
    for axes in (*grid[0, :2], *grid[1]):
        for letter, window in windows.items():
            _mark(axes, letter, *window.place)
    headings = {"A": "A: largest gain", "B": "B: largest loss"}
    for row, (letter, window) in zip(grid[2:], windows.items(), strict=True):
        was, now = window.wrong
        parts = [picture[window.place] for picture in maps]
        abouts = [f"{wrong:,} of {window.pixels:,} wrong" for wrong in window.wrong]
        fewer, tone = (f"{was - now:,} fewer", "better") if now < was else (f"{now - was:,} more", "worse")
        _draw_row(row, headings[letter], parts, truth[window.place], abouts, fewer, tone)
    rule = f"The image is the median of {count} by gain in boundary F1 (1 px)."
    if windows:
        rows, _ = next(iter(windows.values())).place
        side = rows.stop - rows.start
        rule += (
            f" Of all squares of {side} × {side} pixels, A is where {after} removes the most wrong pixels, and B, which"
            " does not overlap A, where it adds the most."
        )
    figure.supxlabel(textwrap.fill(rule, 68), x=0.01, ha="left", size=10)
    return figure


def _fill(axes: Axes, picture: Pixels, heading: str) -> None:
    """Draw a picture below its heading."""
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(heading, loc="left", size=10, weight="bold", pad=4)


def _draw_row(
    row: Sequence[Axes],
    name: str,
    maps: Sequence[Pixels],
    truth: Pixels,
    abouts: Sequence[str],
    change: str,
    tone: str,
) -> None:
    """Draw the true labels, below the name of the row, and both predictions, with the true borders over them.

    Below the predictions are lines about them, and the change; ``tone`` is "better", "worse" or empty.
    """
    for axes, heading, picture in zip(row, (name, *RUNS), maps, strict=True):
        _fill(axes, picture, heading)
    for axes, about in zip(row[1:], abouts, strict=True):
        draw_true_borders(axes, find_borders(truth), BORDER / len(truth))
        axes.set_xlabel(about, loc="left", size=10)
    axes = row[-1]
    axes.set_xlabel(f"{axes.get_xlabel()}\n{tone or 'same'}: {change}", loc="left", size=10, weight="bold")
    axes.xaxis.label.set(color=TONES.get(tone, "black"))


def _add_key(axes: Axes, classes: Sequence[str], colors: Pixels) -> None:
    """Write what colors and lines mean into free axes."""
    before, after = RUNS
    meanings = {
        **dict(zip(classes, colors, strict=True)),
        "ignored": VOID,
        f"only {before}\nis wrong": BETTER,
        f"only {after}\nis wrong": WORSE,
        "both are wrong": WRONG_IN_BOTH,
        "both are right": RIGHT,
    }
    handles: list[Artist] = [Patch(facecolor=color, edgecolor="black", linewidth=0.5) for color in meanings.values()]
    handles.append(Line2D([], [], color="black", linewidth=1))
    axes.set_axis_off()
    names = [*meanings, "true borders"]
    close = {"borderpad": 0, "borderaxespad": 0, "handlelength": 1, "labelspacing": 0.25}
    axes.legend(handles, names, loc="upper left", frameon=False, fontsize=10, **close)


def _mark(axes: Axes, letter: str, rows: slice, columns: slice) -> None:
    """Draw the frame of a window and its letter."""
    top, left = rows.start, columns.start
    size = columns.stop - left, rows.stop - top
    for color, width in (("white", 3), ("black", 1.5)):
        frame = Rectangle((left - 0.5, top - 0.5), *size, fill=False, edgecolor=color, linewidth=width)
        axes.add_patch(frame)
    box = {"facecolor": "white", "edgecolor": "black", "boxstyle": "square,pad=0.15"}
    axes.text(left, top, letter, ha="left", va="top", fontsize=10, weight="bold", bbox=box)


def run_python(*words: object) -> str:
    """Run a program of Python, and return what it prints."""
    command = [sys.executable, *map(str, words)]
    ran = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return ran.stdout


def write_pages(output: Path, totals: Sequence[float]) -> str:
    """Write the page that compares both networks on the validation images, and picture and page of the median one.

    ``totals`` are those of :func:`draw_image`. Returns what the comparison says.
    """
    data, predictions = output / "data", [output / name / "probabilities" for name in RUNS]
    images, masks, classes = data / "val" / "images", data / "val" / "masks", ("--classes", data / "classes.txt")
    for name in RUNS:
        print(f"    predictions of {name}", flush=True)
        given = "--checkpoint", output / name / "last.ckpt", "--images", images, "-o", output / name, "--device", "cpu"
        run_python("examples/predict.py", *given, "--probabilities", "--overwrite")
    print("    the pages of all images", flush=True)
    given = "--image", images, "--mask", masks, *classes, "--format", "html", "-o", (output / INDEX).parent
    run_python("-m", "edgeloss", "view", "--pred", predictions[1], *given)
    print("    the page that compares both networks, which links to them", flush=True)
    given = "--image", images, "--mask", masks, *classes, "--names", *RUNS, "--json", "-o", output / "comparison.html"
    found = json.loads(run_python("-m", "edgeloss", "compare", *predictions, *given))
    scores = found["images"]
    key = "boundary_f1_1px"
    gains = {name: (after[key] or 0) - (before[key] or 0) for name, (before, after) in scores.items()}
    (median,) = choose_examples(gains)["median"]
    print("    the page and the picture of the median image", flush=True)
    given = "--image", images / f"{median}.png", "--mask", masks / f"{median}.png", *classes
    prediction = predictions[1] / f"{median}.npy"
    run_python("-m", "edgeloss", "view", "--pred", prediction, *given, "-o", output / "report.html")
    draw_image(output, median, scores[median], totals, len(scores)).savefig(output / "demo.png", dpi=200)
    return str(found["verdict"])


def count_stray(labels: Path, masks: Path, classes: int) -> npt.NDArray[np.int64]:
    """Return how many stray pixels of each class the predictions of a folder have."""
    count = np.zeros(classes, np.int64)
    for path in sorted(labels.iterdir()):
        found, truth = (np.asarray(Image.open(folder / path.name), int)[None] for folder in (labels, masks))
        count += compute_scores(np.where(truth == VOID_INDEX, -1, truth), found, classes).stray
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "runs" / "demo", metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=EPOCHS, metavar="N", help="default: %(default)s")
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
    data, begin = output / "data", time.monotonic()
    console.print("==> drawing images of shapes and wires", markup=False)
    subprocess.run([sys.executable, "data/make_shapes.py", "--out", str(data), *DRAWN], cwd=ROOT, check=True)
    about = f"{options.epochs} epochs each, from seed {options.seed}"
    console.print(f"==> training two networks for {about}", markup=False)
    overrides = [f"--data.root={data}", f"--trainer.max_epochs={options.epochs}", f"--seed_everything={options.seed}"]
    if code := train_both(output, options.epochs, overrides):
        return code
    console.print("==> comparing the two networks", markup=False)
    histories = {name: json.loads((output / name / "metrics.json").read_text())["epochs"] for name in RUNS}
    last = {name: history[-1] for name, history in histories.items()}
    verdict = write_pages(output, [row["val/boundary_f1_1"] or 0.0 for row in last.values()])
    classes, masks = read_classes(data / "classes.txt").names, data / "val" / "masks"
    counts = np.stack([count_stray(output / name / "labels", masks, len(classes)) for name in RUNS])
    of_each = {f"– as {name}": of_class for name, of_class in zip(classes, counts.T.tolist(), strict=True)}
    scores = compare_scores(last, {"stray pixels": counts.sum(1).tolist(), **of_each})
    console.print("\n" + verdict.replace(". ", ".\n"), markup=False)
    console.print(score_table(scores, options.seed))
    console.print(f"\n{ABOUT}\n", markup=False)
    for name, about in WRITTEN.items():
        console.print(f"{about:<46}{(output / name).as_uri()}", markup=False)
    took = time.monotonic() - begin
    console.print(f"\nTrainings and pages took {took:.0f} s. Longer trainings shrink the difference: docs/quality.md")
    console.print("Next, train on your own images: docs/training.md", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
