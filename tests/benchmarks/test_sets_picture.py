"""The picture of the results is of the committed ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import sets_picture
from doc_figures import current
from pictures import LIMIT


@pytest.mark.parametrize(("name", "layout"), sets_picture.LAYOUTS.items())
def test_marks_are_the_means_of_the_results(name: str, layout: tuple[tuple[float, float], int, int, float]) -> None:
    panels = sets_picture.draw_all(*layout).axes
    assert len(panels) == len(sets_picture.PANELS)
    for axes, score in zip(panels, sets_picture.PANELS, strict=True):
        drawn = {line: np.asarray(line.get_xdata()) for line in axes.lines if line.get_marker() != "None"}
        marks = [places[0] for line, places in drawn.items() if line.get_marker() != "."]
        losses = [loss for _, rival, own in (of.values() for of in current().values()) for loss in (own, rival)]
        assert marks == pytest.approx([100 * loss["differences"][score]["mean"] for loss in losses])
        left, right = axes.get_xlim()
        assert all(left < x < right for places in drawn.values() for x in places)


def test_pictures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sets_picture.py", "--output", str(tmp_path)])
    sets_picture.main()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"sets.png", "sets-narrow.png"}
    assert max(sizes.values()) < LIMIT
