"""Scores as a text: tables of shares and of distances, and what each score is."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence

Scores = Mapping[str, float]  # by metric
Rows = Sequence[tuple[str, Scores]]
_HEAD = 10  # characters that a line of a head may have at least
_SPELLED = {"iou": "IoU", "f1": "F1", "hausdorff": "Hausdorff", "dice": "Dice"}
_ABOUT = {
    "IoU": "overlap of predicted and true areas",
    "boundary IoU": "overlap of strips along borders, 2 % of the diagonal",
    "boundary F1": "precision and recall of borders within that distance",
    "trimap IoU": "IoU of the pixels within that distance of a border",
    "Hausdorff distance": "largest distance of two outlines, or a percentile",
    "average surface distance": "average distance of two outlines",
    "surface Dice": "share of outlines within that distance of the other",
    "mean": "of the classes that occur; others have -",
}


def scores_as_text(rows: Rows, mean: Scores, spacing: object) -> str:
    """Return the scores of classes and their means as a text for a terminal.

    Args:
        rows: the scores of each class.
        mean: their means; its keys are the scores to show.
        spacing: the size of a pixel, None where lengths are in pixels.
    """
    shares = [key for key in mean if not _is_distance(key)]
    distances = [key for key in mean if _is_distance(key)]
    parts = ["scores in %, 100 is best", _table([*rows, ("mean", mean)], shares)]
    if distances:
        unit = "pixels" if spacing is None else "units of --spacing"
        parts += [f"distances in {unit}, 0 is best", _table([*rows, ("mean", mean)], distances)]
    names = [*dict.fromkeys(_name_and_size(key)[0] for key in (*shares, *distances)), "mean"]
    width = max(map(len, names))
    abouts = [f"{name:<{width}}  {_ABOUT[name]}" for name in names]
    return "\n\n".join([*parts, "\n".join(abouts)])


def _table(rows: Rows, keys: Sequence[str]) -> str:
    """Return aligned columns with a line per row, shares in percent; nan is a dash."""
    width = max(len("class"), *(len(name) for name, _ in rows))
    blocks = [[text.ljust(width) for text in ("class", *(name for name, _ in rows))]]
    for name, group in itertools.groupby(keys, lambda key: _name_and_size(key)[0]):
        blocks.append(
            _block(name, [[_name_and_size(key)[1], *(_shown(key, of[key]) for _, of in rows)] for key in group])
        )
    height = max(map(len, blocks))
    filled = [[" " * len(block[0])] * (height - len(block)) + block for block in blocks]
    for block in filled:
        rule = "-" * len(block[0])
        block[-1:-1] = [rule]  # above the mean
        block[-len(rows) - 1 : -len(rows) - 1] = [rule]  # below the head
    return "\n".join("  ".join(line) for line in zip(*filled, strict=True))


def _block(name: str, columns: Sequence[Sequence[str]]) -> list[str]:
    """Return columns of one score for several sizes, which begin with the sizes, below its name; all lines as wide."""
    widths = [max(map(len, column)) for column in columns]
    lines = ["  ".join(map(str.rjust, line, widths)) for line in zip(*columns, strict=True)]
    head = textwrap.wrap(name, max(len(lines[0]), _HEAD))
    is_shared = len(columns) > 1
    width = max(*map(len, lines), *(len(line) + 4 * is_shared for line in head))
    if is_shared:
        head = [f" {line} ".center(width, "-") for line in head]
    lines = [*head, *(lines if any(column[0] for column in columns) else lines[1:])]
    return [line.rjust(width) for line in lines]


def score_title(key: str) -> str:
    """Return how a score is named, as on the pages.

    Example:
        >>> score_title("boundary_f1_3px"), score_title("hausdorff_distance_95")
        ('boundary F1 (3 px)', 'Hausdorff distance (95th percentile)')
    """
    name, size = _name_and_size(key)
    return f"{name} ({size})" if size else name


def _name_and_size(key: str) -> tuple[str, str]:
    """Return the name of a score, and the tolerance, radius or percentile of it, empty where it has none."""
    name, size, unit = re.fullmatch(r"(.+?)(?:_([0-9.]+)(px)?)?", key).groups()  # type: ignore[union-attr]
    title = " ".join(_SPELLED.get(word, word) for word in name.split("_"))
    if size is None:
        return title, ""
    if _is_distance(key):
        return title, "largest" if size == "100" else f"{size}th percentile"
    return title, f"{size}{' px' if unit else ''}"


def _shown(key: str, value: float) -> str:
    """Return a distance, or a share in percent."""
    return "-" if math.isnan(value) else f"{value if _is_distance(key) else 100 * value:.2f}"


def _is_distance(key: str) -> bool:
    """Return whether a score is a length, not a share."""
    return "distance" in key
