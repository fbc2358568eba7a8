"""The pictures of the results are of the committed ones."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import sets_picture
from pictures import LIMIT
from quality.plots import LAYOUTS, LOOKS

MARKS = {marker for _, marker in LOOKS.values()}


@pytest.mark.parametrize(("name", "layout"), [*product(sets_picture.DRAWINGS, LAYOUTS.values())])
def test_marks_are_the_means_of_the_results(name: str, layout: tuple[float, int]) -> None:
    drawing = sets_picture.DRAWINGS[name]
    panels = sets_picture.draw_all(drawing, *layout).axes
    assert len(panels) == len(drawing.panels)
    rows = drawing.rows()
    assert len(rows) > 4
    losses = [loss for _, rival, own in (of_loss.values() for of_loss in rows.values()) for loss in (own, rival)]
    for axes, score in zip(panels, drawing.panels, strict=True):
        drawn = {line: np.asarray(line.get_xdata()) for line in axes.lines if line.get_marker() != "None"}
        marks = [places[0] for line, places in drawn.items() if line.get_marker() in MARKS]
        assert marks == pytest.approx([100 * loss["differences"][score]["mean"] for loss in losses])
        left, right = axes.get_xlim()
        assert all(left < x < right for places in drawn.values() for x in places)


def test_pictures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sets_picture.py", "--output", str(tmp_path)])
    sets_picture.main()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {f"{name}{ending}.png" for name in sets_picture.DRAWINGS for ending in LAYOUTS}
    assert max(sizes.values()) < LIMIT
