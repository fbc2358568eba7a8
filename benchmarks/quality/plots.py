"""Plots of results: differences to the baseline, metrics over the epochs, and operating points."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
Look = tuple[str, str]  # color and marker
Curve = dict[int, list[float]]  # the values of the seeds at each epoch
# A loss has the same color and marker in all pictures. The colors differ for red-green-blind readers too.
LOOKS: dict[str, Look] = {
    BASELINE: ("black", "s"),
    "edgeloss": ("#0072b2", "o"),
    "edgeloss, balance of the data set": ("#0072b2", "o"),
    "edgeloss (version 0.3)": ("#56b4e9", "o"),
    "weighted CE + Dice": ("#d55e00", "D"),
    "CE + Dice": ("#009e73", "^"),
    "CE + RMI": ("#aa4499", "v"),
    "weighted CE": ("#e69f00", "X"),
}
LAYOUTS = {"": (8.6, 3), "-narrow": (3.8, 1)}  # the width of a picture in inches, and its most columns
APART = 0.4  # of the losses of a row, where rows are 1 apart
END = 0.6  # the part of the epochs from which on another panel shows the curves, on a scale of its own
OTHERS: tuple[Look, ...] = (("0.35", "P"), ("#8c564b", "*"), ("0.65", "d"))


def looks_of(losses: Iterable[str]) -> dict[str, Look]:
    """Return color and marker of each loss; those without looks of their own get some in their order."""
    others = cycle(OTHERS)
    return {loss: LOOKS.get(named(loss)) or next(others) for loss in dict.fromkeys(losses)}


def draw_panels(
    titles: Iterable[str],
    losses: Iterable[str],
    path: Path,
    height: float,
    draw: Callable[[Sequence[Axes], Mapping[str, Look]], None],
) -> None:
    """Draw a panel of this height in inches for each title, side by side, and below each other for narrow screens.

    ``draw`` fills the panels; it gets the looks of the losses, of which there is a legend.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    titles, looks = [*titles], looks_of(losses)
    handles = [Line2D([], [], color=color, marker=marker) for color, marker in looks.values()]
    for ending, (width, most) in LAYOUTS.items():
        columns = min(most, len(titles))
        rows = math.ceil(len(titles) / columns)
        figure = Figure(figsize=(width, 0.3 + height * rows), layout="constrained")
        axes = [*figure.subplots(rows, columns, squeeze=False).flat]
        for unused in axes[len(titles) :]:
            unused.set_axis_off()
        for axis, title in zip(axes, titles, strict=False):
            axis.set_title(textwrap.fill(named(title), 50), loc="left", weight="bold", fontsize=10)
            axis.grid(alpha=0.3)
            axis.tick_params(length=0, labelsize=9)
            axis.spines[:].set_visible(False)
        draw(axes[: len(titles)], looks)
        figure.legend(handles, [*map(named, looks)], loc="outside upper left", ncols=most, fontsize=9, frameon=False)
        save_figure(figure, path.with_stem(f"{path.stem}{ending}"), 160)


def draw_ahead(axes: Axes, rows: Iterable[Sequence[Summary]], name: str, looks: Mapping[str, Look]) -> list[float]:
    """Draw how far losses are ahead of the baseline in a score, and return the ends of what is drawn.

    A mark is the mean over the seeds, filled if the loss is edgeloss, a tick one seed, a line their range.
    Each row has a height of 1.
    """
    ends = [0.0]
    for row, losses in enumerate(rows):
        for at, loss in enumerate(losses):
            if name not in loss["differences"]:
                continue
            (color, marker), ahead = looks[loss["loss"]], loss["differences"][name]
            y = row + APART * (at - (len(losses) - 1) / 2)
            points = sorted(100 * value for value in ahead["values"])
            axes.plot(points, [y] * len(points), "|-", color=color, linewidth=1.5, markersize=9)
            inside, edge = (color, "white") if loss["loss"].startswith(OURS) else ("white", color)
            mark = {"markersize": 6, "markerfacecolor": inside, "markeredgecolor": edge, "markeredgewidth": 1.2}
            axes.plot(100 * ahead["mean"], y, marker, **mark)
            ends += [points[0], points[-1]]
        if row:
            axes.axhline(row - 0.5, color="0.85", linewidth=0.8)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlabel(f"points above {BASELINE}", size=9)
    axes.xaxis.get_major_locator().set_params(integer=True, steps=[1, 2, 5, 10])
    return [min(ends), max(ends)]


def plot_sets(sets: Mapping[str, Sequence[Summary]], path: Path) -> None:
    """Draw the differences to the baseline for several data sets; a score that no result has gets no panel."""
    compared = [[row for row in rows if row["differences"]] for rows in sets.values()]
    losses = [row["loss"] for rows in compared for row in rows]
    shown = [name for name in SHOWN if any(name in row["differences"] for rows in compared for row in rows)]
    height = 0.8 + 0.17 * len(sets) * (len({*losses}) + 0.7)

    def draw(panels: Sequence[Axes], looks: Mapping[str, Look]) -> None:
        for axes, name in zip(panels, shown, strict=True):
            low, high = draw_ahead(axes, compared, name, looks)
            margin = (high - low or 1) / 20
            axes.set(xlim=(low - margin, high + margin), ylim=(len(sets) - 0.5, -0.5))
            axes.grid(visible=False, axis="y")
            first = axes.get_subplotspec().is_first_col()
            axes.set_yticks(range(len(sets)), [*map(named, sets)] if first else [""] * len(sets))

    draw_panels([METRICS[name].removesuffix(" ↑") for name in shown], losses, path, height, draw)


def curve_of(results: Sequence[Row], name: str) -> Curve:
    """Return the values of a metric, one per seed, at the epochs that all of these results have."""
    at_epoch: Curve = defaultdict(list)
    for curve in (row["curve"] for row in results):
        for epoch, value in zip(curve["epoch"], curve[name], strict=True):
            at_epoch[epoch].append(value * scale_of(name))
    return {epoch: values for epoch, values in sorted(at_epoch.items()) if len(values) == len(results)}


def with_ends(sets: Mapping[str, Mapping[str, Curve]]) -> dict[str, Mapping[str, Curve]]:
    """Return the curves of each data set, each followed by its end, where lines meet, if that has three points."""
    panels: dict[str, Mapping[str, Curve]] = {}
    for data, curves in sets.items():
        panels[data] = curves
        epochs = sorted({epoch for curve in curves.values() for epoch in curve})
        end = [epoch for epoch in epochs if epoch >= END * epochs[-1]]
        if len(end) > 2:
            parts = {loss: {epoch: curve[epoch] for epoch in end if epoch in curve} for loss, curve in curves.items()}
            panels[f"{data}, from epoch {end[0]}"] = {loss: part for loss, part in parts.items() if part}
    return panels


def label_ends(axes: Axes, curves: Iterable[tuple[str, int, float]]) -> None:
    """Write the last values of curves, given as color, epoch and value, to their right, one above the other."""
    low, high = axes.get_ylim()
    line, place = (high - low) / 11, low  # a line of text, in units of the axis
    for color, epoch, value in sorted(curves, key=lambda curve: curve[2]):
        place = max(value, place + line)
        text = {"textcoords": axes.get_yaxis_transform(), "color": color, "size": 9, "va": "center"}
        axes.annotate(f"{value:.1f}", (epoch, value), (1.02, place), annotation_clip=False, **text)


def plot_curves(sets: Mapping[str, Sequence[Row]], name: str, path: Path) -> None:
    """Draw a metric, the loss or the edge weight over the epochs for several data sets, and the ends of the curves.

    A line is the mean over the seeds, at the epochs that all of them have; the baseline and edgeloss also show their
    range. Where only two epochs were scored, they are points, those of the losses next to each other. Numbers at the
    right of the end of the curves are their last values.
    """
    with_curve = {data: [row for row in rows if name in row["curve"]] for data, rows in sets.items()}  # some lack it
    groups = {data: by_loss(rows) for data, rows in with_curve.items() if rows}
    panels = with_ends(
        {data: {loss: curve_of(rows, name) for loss, rows in losses.items()} for data, losses in groups.items()}
    )
    unit = METRICS.get(name, name.replace("_", " ")).removesuffix(" ↑") + ", %" * (scale_of(name) == 100)

    def draw(shown: Sequence[Axes], looks: Mapping[str, Look]) -> None:
        for axes, (title, curves) in zip(shown, panels.items(), strict=True):
            ends = []
            axes.xaxis.get_major_locator().set_params(integer=True)
            for at, (loss, curve) in enumerate(curves.items()):
                epochs = [*curve]
                (color, marker), ours = looks[loss], loss.startswith(OURS)
                means, low, high = ([*map(of, curve.values())] for of in (statistics.fmean, min, max))
                has_range = ours or loss == BASELINE
                if len(epochs) > 2:
                    axes.plot(
                        epochs, means, marker, linestyle="-", color=color, linewidth=2 if ours else 1.5, markersize=4
                    )
                    if has_range:
                        axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
                    ends.append((color, epochs[-1], means[-1]))
                    continue
                apart = (at - (len(curves) - 1) / 2) * epochs[-1] / 40
                places = [epoch + apart for epoch in epochs]
                axes.plot(places, means, marker, color=color, markersize=5)
                if has_range:
                    axes.vlines(places, low, high, color=color, linewidth=1.5)
                axes.set(xticks=epochs, xlim=(0, 1.25 * epochs[-1]))
            if title not in groups:
                label_ends(axes, ends)
            axes.set_xlabel("epoch", size=9)
            if axes.get_subplotspec().is_first_col():
                axes.set_ylabel(unit, size=9)

    draw_panels(panels, (loss for losses in groups.values() for loss in losses), path, 2.3, draw)


def plot_offsets(groups: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draw precision against recall of borders, a line over the offsets for each loss, with one panel per group.

    A point is the mean over the seeds; the large marker is at t = 0. Signs at the ends are those of t.
    """
    losses = (loss for rows in groups.values() for loss in by_loss(rows))

    def draw(panels: Sequence[Axes], looks: Mapping[str, Look]) -> None:
        for axes, rows in zip(panels, groups.values(), strict=True):
            for loss, own in by_loss(rows).items():
                precision, recall = (100 * np.array(mean_scores(own, name)) for name in ("precision_1", "recall_1"))
                (color, marker), zero = looks[loss], own[0]["offsets"].index(0)
                axes.plot(recall, precision, ".-", color=color, linewidth=1)
                axes.plot(recall[zero], precision[zero], marker, color=color, markersize=9)
                axes.margins(0.07)  # for the signs
                for end, sign in ((0, "−"), (-1, "+")):
                    place = (recall[end], precision[end])
                    axes.annotate(
                        sign, place, (-4, -4), textcoords="offset points", color=color, size=13, ha="right", va="center"
                    )
            axes.set_xlabel("recall of borders at 1 px, %", size=9)
            if axes.get_subplotspec().is_first_col():
                axes.set_ylabel("precision of borders at 1 px, %", size=9)

    draw_panels(groups, losses, path, 3.7, draw)
