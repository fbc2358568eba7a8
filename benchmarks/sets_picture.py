#!/usr/bin/env python3
"""Draw docs/images/sets.png: how far edgeloss and the best rival are ahead of cross-entropy on every data set.

    PYTHONPATH=. python benchmarks/sets_picture.py

A large mark is the mean over the seeds, a line their range, and a small dot one seed. The networks are those of the
table on the first page. The panels stand below each other in the file for narrow screens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from doc_figures import DATA, current
from pictures import save_figure
from quality.plots import COLORS
from quality.tables import Summary, named

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PANELS = {"f1_1": "boundary F1 within 1 pixel", "miou": "mIoU"}
LOOKS = {"edgeloss": (COLORS[0], "o"), "best rival, by name": (COLORS[1], "D")}
LAYOUTS = {"": ((8.6, 3.6), 1, 2, 9), "-narrow": ((3.8, 6.6), 2, 1, 14)}  # inches, rows, columns, points for names
APART = 0.32  # of the two losses of a data set, where data sets are 1 apart
Losses = Mapping[str, Summary]


def draw(axes: Axes, sets: Iterable[Losses], name: str) -> None:
    """Draw how far both losses are ahead in a score."""
    for row, of_loss in enumerate(sets):
        _, rival, own = of_loss.values()
        for at, ((color, marker), loss) in enumerate(zip(LOOKS.values(), (own, rival), strict=True)):
            y, ahead = row + APART * (at - 0.5), loss["differences"][name]
            points = sorted(100 * value for value in ahead["values"])
            axes.plot(points, [y] * len(points), ".-", color=color, linewidth=1.5, markersize=5)
            axes.plot(
                100 * ahead["mean"],
                y,
                marker,
                color=color,
                markersize=7.5,
                markeredgecolor="white",
                markeredgewidth=0.6,
            )
            if loss is rival:
                axes.annotate(
                    named(loss["loss"]), (points[-1], y), (6, -0.5), textcoords="offset points",
                    va="center", size=8, color=color,
                )  # fmt: skip
    axes.axvline(0, color="black", linewidth=1)


def draw_all(size: tuple[float, float], rows: int, columns: int, room: float) -> Figure:
    """Draw both scores."""
    sets = current()
    ends = [
        100 * value
        for _, *losses in (of_loss.values() for of_loss in sets.values())
        for loss in losses
        for name in PANELS
        for value in loss["differences"][name]["values"]
    ]
    figure = Figure(figsize=size, layout="constrained")
    for at, (axes, (name, title)) in enumerate(zip(figure.subplots(rows, columns).flat, PANELS.items(), strict=True)):
        draw(axes, sets.values(), name)
        axes.set_title(title, loc="left", size=11, weight="bold")
        axes.set(xlim=(min(ends) - 1, max(ends) + room), ylim=(len(sets) - 0.5, -0.5))
        axes.set_xlabel("points above cross-entropy", size=9)
        named_sets = [DATA[data].replace(", ", "\n", 1) for data in sets]
        axes.set_yticks(range(len(sets)), named_sets if columns == 1 or at == 0 else [""] * len(sets), size=9)
        axes.xaxis.get_major_locator().set_params(integer=True, steps=[5])
        axes.tick_params(length=0, labelsize=9)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[:].set_visible(False)
        for edge in range(1, len(sets)):
            axes.axhline(edge - 0.5, color="0.85", linewidth=0.8)
    handles = [Line2D([], [], color=color, marker=marker, markersize=8) for color, marker in LOOKS.values()]
    figure.legend(handles, [*LOOKS], loc="outside upper left", ncols=2, fontsize=9.5, frameon=False)
    return figure


def main() -> None:
    """Write both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=IMAGES, metavar="FOLDER", help="default: %(default)s")
    folder = parser.parse_args().output
    for ending, layout in LAYOUTS.items():
        save_figure(draw_all(*layout), folder / f"sets{ending}.png", 160)


if __name__ == "__main__":
    main()
