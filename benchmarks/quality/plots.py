"""Plots of results: differences to the baseline, metrics over the epochs, and operating points."""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from baselines.recipes import RECIPES
from pictures import save_figure
from quality.scores import METRICS, SHOWN, scale_of
from quality.tables import BASELINE, Summary, by_loss, mean_scores, named
from result_table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = (RECIPES["ours"].title, RECIPES["module"].title)
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # also for color-blind readers
MARKERS = "soD^vX"


@contextmanager
def panels(
    titles: Iterable[str], losses: Iterable[str], path: Path, width: float, height: float
) -> Iterator[tuple[Sequence[Axes], dict[str, tuple[str, str]]]]:
    """Yield a panel for each title, and the color and marker of each loss; then write the figure, with a legend."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    titles, styles = [*titles], zip(cycle(COLORS), cycle(MARKERS), strict=False)
    looks = {loss: ("black", "o") if loss == BASELINE else next(styles) for loss in dict.fromkeys(losses)}
    figure = Figure(figsize=(width * len(titles) + 0.5, height), layout="constrained")
    (axes,) = figure.subplots(1, len(titles), squeeze=False)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(textwrap.fill(named(title), 50), fontsize=10 if len(title) < 25 else 6)
        axis.grid(alpha=0.3)
    yield axes, looks
    handles = [Line2D([], [], color=color, marker=marker) for color, marker in looks.values()]
    figure.legend(
        handles, [*map(named, looks)], loc="outside lower center", ncols=min(3, len(titles)), fontsize=8, frameon=False
    )
    save_figure(figure, path, 120)


def plot_sets(sets: Mapping[str, Sequence[Summary]], path: Path, *, of_classes: bool = False) -> None:
    """Draw the differences to the baseline for several data sets, or for the classes of one.

    A mark is the mean, a line its interval, a dot one seed. The axes are scaled to the dots: the interval of two seeds
    is often many times as wide. A score that no result has gets no panel.
    """
    differences = [row["differences"] for rows in sets.values() for row in rows]
    losses = [*dict.fromkeys(row["loss"] for rows in sets.values() for row in rows if row["differences"])]
    shown = [name for name in SHOWN if any(name in of_loss for of_loss in differences)]
    height = 1.6 + 0.16 * len(sets) * (len(losses) + 1)
    titles = (METRICS[name].removeprefix("m" * of_classes) for name in shown)  # a class has no mean IoU
    with panels(titles, losses, path, 4, height) as (axes, looks):
        for axis, name in zip(axes, shown, strict=True):
            drawn = [0.0]
            for at, rows in enumerate(sets.values()):
                for row in (row for row in rows if name in row["differences"]):
                    y = at + (losses.index(row["loss"]) + 1) / (len(losses) + 1) - 0.5
                    (color, marker), difference = looks[row["loss"]], row["differences"][name]
                    values = [100 * value for value in difference["values"]]
                    ends = difference["interval"] or (difference["mean"],) * 2
                    axis.plot([100 * end for end in ends], [y, y], color=color, linewidth=2)
                    axis.plot(values, [y] * len(values), ".", color=color, markersize=4, alpha=0.6)
                    axis.plot(100 * difference["mean"], y, marker, color=color, markersize=6)
                    drawn += values
                axis.axhline(at - 0.5, color="black", linewidth=0.3)
            axis.axvline(0, color="black", linewidth=0.8)
            margin = (max(drawn) - min(drawn) or 1) / 4
            axis.set(xlim=(min(drawn) - margin, max(drawn) + margin), ylim=(len(sets) - 0.5, -0.5))
            axis.set_xlabel(f"points above {BASELINE}", fontsize=8)
            axis.set_yticks(range(len(sets)), [*map(named, sets)] if axis is axes[0] else [], fontsize=9)


def plot_curves(sets: Mapping[str, Sequence[Row]], name: str, path: Path) -> None:
    """Draw a metric, the loss or the edge weight over the epochs for several data sets.

    A line is the mean over the seeds, at the epochs that all of them have; the baseline and edgeloss also show their
    range.
    """
    with_curve = {data: [row for row in rows if name in row["curve"]] for data, rows in sets.items()}  # some lack it
    groups = {data: by_loss(rows) for data, rows in with_curve.items() if rows}
    losses = (loss for of_data in groups.values() for loss in of_data)
    with panels(groups, losses, path, 2.6, 3.3) as (axes, looks):
        for axis, of_data in zip(axes, groups.values(), strict=True):
            for loss, results in of_data.items():
                at_epoch: dict[int, list[float]] = defaultdict(list)  # of the seeds
                for curve in (row["curve"] for row in results):
                    for epoch, value in zip(curve["epoch"], curve[name], strict=True):
                        at_epoch[epoch].append(value * scale_of(name))
                of_all = {epoch: values for epoch, values in at_epoch.items() if len(values) == len(results)}
                epochs, values = zip(*sorted(of_all.items()), strict=True)
                (color, _), ours = looks[loss], loss.startswith(OURS)
                axis.plot(epochs, [*map(statistics.fmean, values)], color=color, linewidth=2 if ours else 1)
                if ours or loss == BASELINE:
                    low, high = [*map(min, values)], [*map(max, values)]
                    axis.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
            axis.set_xlabel("epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
        axes[0].set_ylabel(METRICS.get(name, name) + ", %" * (scale_of(name) == 100))


def plot_offsets(groups: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draw precision against recall of borders, a line over the offsets for each loss, with one panel per group.

    A point is the mean over the seeds; the marker is at t = 0.
    """
    losses = (loss for rows in groups.values() for loss in by_loss(rows))
    with panels(groups, losses, path, 4.6, 4.9) as (axes, looks):
        for axis, rows in zip(axes, groups.values(), strict=True):
            for loss, own in by_loss(rows).items():
                precision, recall = (100 * np.array(mean_scores(own, name)) for name in ("precision_1", "recall_1"))
                (color, marker), zero = looks[loss], own[0]["offsets"].index(0)
                axis.plot(recall, precision, ".-", color=color, linewidth=1)
                axis.plot(recall[zero], precision[zero], marker, color=color, markersize=9)
            axis.set_xlabel("recall of borders at 1 px, %")
        axes[0].set_ylabel("precision of borders at 1 px, %")
        axes[0].figure.suptitle("logits - t · log u, a point per t, marker at 0", fontsize=9)
