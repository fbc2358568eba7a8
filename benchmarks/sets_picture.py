#!/usr/bin/env python3
"""Draw docs/images/sets.png and quality-classes.png: how far edgeloss and the best rival are ahead of cross-entropy.

    PYTHONPATH=. python benchmarks/sets_picture.py

The first one is of every data set, the second of the classes of CamVid, with the networks of the table on the first
page. Panels stand below each other in the files for narrow screens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from doc_figures import classes_of_set, current, with_classes
from pictures import save_figure
from quality.plots import APART, LAYOUTS, LOOKS, Look, draw_ahead
from quality.tables import Summary, is_clear, named, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
RIVAL = LOOKS["weighted CE + Dice"]  # the look of all rivals: their names stand next to their rows
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
    return {with_classes(data): of_loss for data, of_loss in current().items()}


def classes() -> Rows:
    """Return the losses by class, those first that gain most IoU."""

    def gain(row: tuple[str, Mapping[str, Summary]]) -> float:
        return float([*row[1].values()][-1]["differences"]["miou"]["mean"])

    return dict(sorted(classes_of_set("camvid").items(), key=gain, reverse=True))


DRAWINGS = {
    "sets": Drawing(sets, {"f1_1": "boundary F1", "f1_any_1": "F1 of all borders", "miou": "mIoU"}, 0.56),
    "quality-classes": Drawing(classes, {"miou": "IoU of each class"}, 0.3),
}


def print_means(axes: Axes, pairs: Sequence[Sequence[Summary]], name: str, looks: Mapping[str, Look]) -> None:
    """Print the mean of each loss at the right of its row, in bold where it is clearly not 0."""
    for row, losses in enumerate(pairs):
        for loss, y in zip(losses, (row - APART / 2, row + APART / 2), strict=True):
            ahead = loss["differences"][name]
            text = number(name, ahead["mean"], sign="+")
            look = {"color": looks[loss["loss"]][0], "weight": "bold" if is_clear(ahead) else "normal", "size": 8.5}
            place = {
                "xycoords": axes.get_yaxis_transform(),
                "textcoords": "offset points",
                "ha": "right",
                "va": "center",
            }
            axes.annotate(text, (1, y), (38, 0), **look, **place)


def draw_all(drawing: Drawing, width: float, most: int) -> Figure:
    """Draw all panels; rivals are named in the legend if they are one loss, and else to the left of their marks."""
    names, losses = zip(*drawing.rows().items(), strict=True)
    pairs = [(own, rival) for _, rival, own in (of_loss.values() for of_loss in losses)]
    rivals = [named(rival["loss"]) for _, rival in pairs]
    looks = {own["loss"]: LOOKS["edgeloss"] for own, _ in pairs} | {rival["loss"]: RIVAL for _, rival in pairs}
    one = len({*rivals}) == 1
    lines: dict[float, str] = dict(enumerate(names))
    if not one:
        lines = {row - APART / 2: name for row, name in lines.items()}
        lines |= {row + APART / 2: rival for row, rival in enumerate(rivals)}
    columns = min(most, len(drawing.panels))
    count = len(drawing.panels) // columns
    figure = Figure(figsize=(width, 0.35 + count * (0.6 + drawing.height * len(names))), layout="constrained")
    panels = [*figure.subplots(count, columns, squeeze=False).flat]
    ends = []
    for at, (axes, (name, title)) in enumerate(zip(panels, drawing.panels.items(), strict=True)):
        ends += draw_ahead(axes, pairs, name, looks)
        print_means(axes, pairs, name, looks)
        axes.set_title(title, loc="left", size=11, weight="bold")
        axes.set_yticks([*lines], lines.values() if at % columns == 0 else [""] * len(lines))
        for label in axes.get_yticklabels()[len(names) :]:
            label.set_color(RIVAL[0])
        axes.tick_params(length=0, labelsize=9)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[:].set_visible(False)
    margin = (max(ends) - min(ends)) / 20
    for axes in panels:
        axes.set(xlim=(min(ends) - margin, max(ends) + margin), ylim=(len(names) - 0.5, -0.5))
    handles = [
        Line2D([], [], color=color, marker=marker, markersize=6, markerfacecolor=inside)
        for (color, marker), inside in ((LOOKS["edgeloss"], LOOKS["edgeloss"][0]), (RIVAL, "white"))
    ]
    entries = ["edgeloss", f"{rivals[0]}, the best rival" if one else "best rival (named at the left)"]
    figure.legend(handles, entries, loc="outside upper left", ncols=most, fontsize=9.5, frameon=False)
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
