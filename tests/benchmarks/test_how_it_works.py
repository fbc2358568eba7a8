"""The pictures of docs/how-it-works.md show what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import how_it_works
from how_it_works import WIRE, make_labels, make_logits, step
from pictures import LIMIT


def test_the_edge_terms_spend_their_step_on_thin_structures() -> None:
    labels = make_labels()
    logits = make_logits(labels)
    wire = labels == WIRE
    plain = step(logits, labels, edge_weight=0.0)[wire].mean()
    edges = step(logits, labels, ce_weight=0.0)[wire].mean()
    assert edges > 2 * plain > 0


def test_pictures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["how_it_works.py", "--output", str(tmp_path)])
    how_it_works.main()
    page = (Path(how_it_works.__file__).parents[1] / "docs" / "how-it-works.md").read_text()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    shown = re.findall(r"images/(\S+)\.png", page)
    assert sizes.keys() == {f"{name}{width}.png" for name in shown for width in ("", "-narrow")}
    assert max(sizes.values()) < LIMIT
