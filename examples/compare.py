#!/usr/bin/env python3
"""Compare runs of train.py: draw their curves in one figure, and print a Markdown table of first and last epochs."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from edgeloss.integrations.run_page import Row, is_share, shown
from edgeloss.io import check_file

# What is drawn: a key of metrics.json, and its title.
CURVES = {
    "val/miou": "validation: mean IoU",
    "val/edge_accuracy": "validation: accuracy on edge pixels",
    "val/edge": "validation: mean edge term",
    "train/edge": "training: mean edge term",
}


def read_history(folder: Path) -> list[Row]:
    """Read the figures of each epoch of a run.

    Raises:
        ValueError: if the folder has no metrics of a run.
    """
    path = folder / "metrics.json"
    check_file(path)
    try:
        epochs: list[Row] = json.loads(path.read_text(encoding="utf-8"))["epochs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected the metrics of a run, but got an error ({error})") from error
    return epochs


def draw(runs: dict[str, list[Row]]) -> Figure:
    """Draw one picture per curve, with one line per run."""
    figure = Figure(figsize=(13, 3), layout="constrained")
    all_axes = figure.subplots(1, len(CURVES))
    for axes, (key, title) in zip(all_axes, CURVES.items(), strict=True):
        for name, epochs in runs.items():
            values = [float("nan") if row.get(key) is None else row[key] for row in epochs]
            axes.plot([row["epoch"] for row in epochs], values, marker=".", label=name)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if is_share(key):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(runs), frameon=False)
    return figure


def table(runs: dict[str, list[Row]]) -> str:
    """Return a Markdown table of the first and the last epoch of each run."""
    lines = [f"| run | epochs | {' | '.join(CURVES.values())} |", f"|---|---|{'---|' * len(CURVES)}"]
    for name, epochs in runs.items():
        ends = (" → ".join(shown(key, row.get(key)) for row in (epochs[0], epochs[-1])) for key in CURVES)
        lines.append(f"| {name} | {len(epochs)} | {' | '.join(ends)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="output folder of a run; its name becomes the label"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="figure to write: .png, .pdf or .svg"
    )
    options = parser.parse_args(arguments)
    try:
        names = [folder.resolve().name for folder in options.runs]
        if len(set(names)) < len(names):
            names = [str(folder) for folder in options.runs]
        runs = {name: read_history(folder) for name, folder in zip(names, options.runs, strict=True)}
        draw(runs).savefig(options.output, dpi=200)
    except (OSError, ValueError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
