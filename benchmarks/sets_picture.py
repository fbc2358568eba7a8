#!/usr/bin/env python3
"""Draw docs/images/sets.png and quality-classes.png: how far edgeloss and the best rival are ahead of cross-entropy.

    PYTHONPATH=. python benchmarks/sets_picture.py

The first one is of every data set, the second of the classes of CamVid, with the networks of the table on the first
page. Panels stand below each other in the files for narrow screens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from doc_figures import DATA, classes_of_set, current
from pictures import save_figure
from quality.plots import APART, LAYOUTS, LOOKS, draw_ahead, looks_of, name_of
from quality.tables import Summary

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
Rows = Mapping[str, Mapping[str, Summary]]


class Drawing(NamedTuple):
    """What a picture shows.

    Attributes:
        rows: returns cross-entropy, the best rival and edgeloss, in this order, by the name of the row.
        panels: the scores, with their titles.
        height: of a row, in inches.
    """

    rows: Callable[[], Rows]
    panels: Mapping[str, str]
    height: float


def sets() -> Rows:
    """Return the losses by data set."""
    return {DATA[data].replace(", ", "\n", 1): of_loss for data, of_loss in current().items()}


def classes() -> Rows:
    """Return the losses by class, those first that gain most IoU."""

    def gain(row: tuple[str, Mapping[str, Summary]]) -> float:
        return float([*row[1].values()][-1]["differences"]["miou"]["mean"])

    return dict(sorted(classes_of_set("camvid").items(), key=gain, reverse=True))


DRAWINGS = {
    "sets": Drawing(sets, {"f1_1": "boundary F1 within 1 pixel", "miou": "mIoU"}, 0.54),
    "quality-classes": Drawing(classes, {"miou": "IoU of each class"}, 0.3),
}


def draw_all(drawing: Drawing, width: float, most: int) -> Figure:
    """Draw all panels; rivals are named in the legend if they are one loss, and else at their marks."""
    names, losses = zip(*drawing.rows().items(), strict=True)
    pairs = [(own, rival) for _, rival, own in (of_loss.values() for of_loss in losses)]
    looks, rivals = looks_of(loss["loss"] for pair in pairs for loss in pair), {rival["loss"] for _, rival in pairs}
    columns = min(most, len(drawing.panels))
    count = len(drawing.panels) // columns
    figure = Figure(figsize=(width, 0.35 + count * (0.6 + drawing.height * len(names))), layout="constrained")
    panels = [*figure.subplots(count, columns, squeeze=False).flat]
    ends = []
    for at, (axes, (name, title)) in enumerate(zip(panels, drawing.panels.items(), strict=True)):
        ends += draw_ahead(axes, pairs, name, looks)
        axes.set_title(title, loc="left", size=11, weight="bold")
        axes.set_yticks(range(len(names)), names if at % columns == 0 else [""] * len(names))
        axes.tick_params(length=0, labelsize=9)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[:].set_visible(False)
        for row, (_, rival) in enumerate(pairs if len(rivals) > 1 else []):
            axes.annotate(
                name_of(rival["loss"]), (100 * max(rival["differences"][name]["values"]), row + APART / 2), (6, -0.5),
                textcoords="offset points", va="center", size=8, color="0.3",
            )  # fmt: skip
    # A name is about 1.3 inches wide.
    span = max(ends) - min(ends)
    room = span * 1.3 / (width / columns - 2.6) if len(rivals) > 1 else 0
    for axes in panels:
        axes.set(xlim=(min(ends) - span / 20, max(ends) + span / 20 + room), ylim=(len(names) - 0.5, -0.5))
    others = ("0.45", "D"), "best rival, by name"
    if len(rivals) == 1:
        (rival,) = rivals
        others = looks[rival], f"{name_of(rival)}, the best rival"
    entries = [(LOOKS["edgeloss"], "edgeloss"), others]
    handles = [Line2D([], [], color=color, marker=marker, markersize=8) for (color, marker), _ in entries]
    names_of = [label for _, label in entries]
    figure.legend(handles, names_of, loc="outside upper left", ncols=most, fontsize=9.5, frameon=False)
    return figure


def main() -> None:
    """Write all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=IMAGES, metavar="FOLDER", help="default: %(default)s")
    folder = parser.parse_args().output
    for (name, drawing), (ending, layout) in product(DRAWINGS.items(), LAYOUTS.items()):
        save_figure(draw_all(drawing, *layout), folder / f"{name}{ending}.png", 160)


if __name__ == "__main__":
    main()
