"""Plots of results: differences as bars, and metrics over the epochs."""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from baselines.recipes import TITLES
from pictures import save_figure
from quality.scores import METRICS, SHOWN, scale_of
from quality.tables import BASELINE, Summary, in_order, title_of
from result_table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = (TITLES["ours"], TITLES["module"])
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # also for color-blind readers
MARKERS = "soD^vX"


def plot_sets(sets: Mapping[str, Sequence[Summary]], path: Path) -> None:
    """Draw the differences to the baseline for several data sets: a mark is the mean, a line its interval.

    A dot is one seed. The axes are scaled to the dots: the interval of two seeds is often many times as wide.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    losses = list(dict.fromkeys(row["loss"] for rows in sets.values() for row in rows if row["differences"]))
    looks = [(COLORS[n % len(COLORS)], MARKERS[n % len(MARKERS)]) for n in range(len(losses))]
    figure = Figure(figsize=(4 * len(SHOWN) + 1, 1.6 + 0.22 * len(sets) * (len(losses) + 1)), layout="constrained")
    axes = figure.subplots(1, len(SHOWN), sharey=True)
    for axis, name in zip(axes, SHOWN, strict=True):
        for at, rows in enumerate(sets.values()):
            for row in rows:
                if name not in row["differences"]:
                    continue
                difference = row["differences"][name]
                n = losses.index(row["loss"])
                y = at + (n + 1) / (len(losses) + 1) - 0.5
                color, marker = looks[n]
                for end in (difference["interval"],) if difference["interval"] else ():
                    axis.plot([value * 100 for value in end], [y, y], color=color, linewidth=2)
                values = [value * 100 for value in _values(row, name)]
                axis.plot(values, [y] * len(values), ".", color=color, markersize=4, alpha=0.6)
                axis.plot(difference["mean"] * 100, y, marker, color=color, markersize=6)
        _scale_to_dots(axis, [row for rows in sets.values() for row in rows], name)
        axis.axvline(0, color="black", linewidth=0.8)
        for at in range(1, len(sets)):
            axis.axhline(at - 0.5, color="black", linewidth=0.3)
        axis.set_title(METRICS[name], fontsize=10)
        axis.set_xlabel("points above cross-entropy", fontsize=8)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(sets)), list(sets), fontsize=9)
    axes[0].set_ylim(len(sets) - 0.5, -0.5)
    figure.legend(
        [Line2D([], [], color=color, marker=marker) for color, marker in looks],
        losses,
        loc="outside lower center",
        ncols=len(losses),
        fontsize=8,
        frameon=False,
    )
    save_figure(figure, path, 120)


def _scale_to_dots(axis: Axes, rows: Iterable[Summary], name: str) -> None:
    most = max((abs(value) * 100 for row in rows for value in _values(row, name)), default=0)
    axis.set_xlim(-1.5 * (most or 1), 1.5 * (most or 1))


def _values(row: Summary, name: str) -> list[float]:
    """Return the differences of the seeds to the baseline."""
    return row["differences"][name]["values"] if name in row["differences"] else []


def plot_curves(sets: Mapping[str, Sequence[Row]], name: str, path: Path) -> None:
    """Draw a metric, the loss or the edge weight over the epochs for several data sets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * max(len(sets), 2) + 0.5, 3.3), layout="constrained")
    (axes,) = figure.subplots(1, len(sets), squeeze=False)
    for axis, (data, results) in zip(axes, sets.items(), strict=True):
        _draw_curves(axis, results, name)
        axis.set_title(textwrap.fill(data, 50), fontsize=10 if len(data) < 20 else 6)
        axis.set_xlabel("epoch")
    axes[0].set_ylabel(METRICS.get(name, name) + ", %" * (scale_of(name) == 100))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save_figure(figure, path, 120)


def _draw_curves(axis: Axes, results: Sequence[Row], name: str) -> None:
    """Draw a metric over the epochs.

    A line is the mean over the seeds; the baseline and edgeloss also show their range.
    """
    from matplotlib.ticker import MaxNLocator

    curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in in_order(results):
        curve = result["curve"]
        if name in curve:  # not where a run diverged before its first score, and some losses and older rows lack it
            for epoch, value in zip(curve["epoch"], curve[name], strict=True):
                curves[title_of(result)][epoch].append(value * scale_of(name))
    for n, (loss, of_epoch) in enumerate(curves.items()):
        epochs = sorted(of_epoch)
        values = [of_epoch[epoch] for epoch in epochs]  # of the seeds
        ours = loss.startswith(OURS)
        color, _ = _look(loss, n)
        axis.plot(epochs, [*map(statistics.fmean, values)], color=color, linewidth=2 if ours else 1, label=loss)
        if ours or loss == BASELINE:
            axis.fill_between(epochs, [*map(min, values)], [*map(max, values)], color=color, alpha=0.15, linewidth=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)


def plot_offsets(groups: Mapping[str, Sequence[Row]], offsets: Sequence[float], path: Path) -> None:
    """Draw precision against recall of borders, a line over the offsets for each loss, with one panel per group.

    A point is the mean over the seeds; the marker is at t = 0.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(groups) + 0.6, 4.9), layout="constrained")
    (axes,) = figure.subplots(1, len(groups), squeeze=False)
    losses = list(dict.fromkeys(title_of(row) for rows in groups.values() for row in in_order(rows)))
    labels = {}
    for axis, (title, rows) in zip(axes, groups.items(), strict=True):
        by_loss: dict[str, list[Row]] = defaultdict(list)
        for row in in_order(rows):
            by_loss[title_of(row)].append(row)
        for loss, own in by_loss.items():
            precision, recall = (
                [statistics.fmean(row["scores"][name][row["offsets"].index(t)] * 100 for row in own) for t in offsets]
                for name in ("precision_1", "recall_1")
            )
            color, marker = _look(loss, losses.index(loss))
            axis.plot(recall, precision, ".-", color=color, linewidth=1)
            zero = list(offsets).index(0)
            labels[loss], *_ = axis.plot(recall[zero], precision[zero], marker, color=color, markersize=9)
        axis.set_title(textwrap.fill(f"{title}; {min(map(len, by_loss.values()))} seeds", 70), fontsize=7)
        axis.set_xlabel("recall of borders at 1 px, %")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("precision of borders at 1 px, %")
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(f"logits - t · log u, t from {min(offsets):g} to {max(offsets):g}, marker at 0", fontsize=9)
    save_figure(figure, path, 120)


def _look(loss: str, n: int) -> tuple[str, str]:
    """Return the color and marker of the n-th loss, the baseline included."""
    # Those of plot_sets, which has no baseline.
    return ("black", "o") if loss == BASELINE else (COLORS[(n - 1) % len(COLORS)], MARKERS[(n - 1) % len(MARKERS)])
