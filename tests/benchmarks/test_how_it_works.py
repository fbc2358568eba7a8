"""The pictures of docs/how-it-works.md show what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import how_it_works
from how_it_works import AREA, BACKGROUND, DOT, GAP, OF_A, OF_B, WIRE, make_labels, make_logits, step, weight_maps
from pictures import LIMIT


def test_weights_are_the_largest_where_the_page_says_so() -> None:
    labels = make_labels()
    same, other = weight_maps(labels)
    (x, y), _ = OF_A["wire"]
    assert labels[y, x] == WIRE
    assert same.max() > same[y, x] > 1.2 * same[labels == AREA].max()
    assert same[labels == WIRE].median() > same[labels == AREA].max()
    assert same[DOT] == 0
    (x, y), _ = OF_B["corner"]
    assert labels[y, x] == BACKGROUND
    assert other[y, x] == other.max() > other[DOT] > other[(labels == WIRE) & (same > 0)].max()
    _, others = other.flatten().topk(11)  # ten steps, then the dot
    assert others[-1] == DOT[0] * labels.shape[1] + DOT[1]


def test_the_edge_terms_spend_their_step_on_thin_structures() -> None:
    labels = make_labels()
    logits = make_logits(labels)
    wire = labels == WIRE
    plain = step(logits, labels, edge_weight=0.0)[wire].mean()
    edges = step(logits, labels, ce_weight=0.0)[wire].mean()
    assert edges > 2 * plain > 0


def test_only_the_step_of_the_edge_terms_brings_the_missing_part_back() -> None:
    labels = make_labels()
    logits = make_logits(labels)
    missing = (labels == WIRE) & (logits.softmax(1)[0, WIRE] < 0.03)
    assert missing.sum() > 5
    assert missing[GAP[::-1]]
    assert step(logits, labels, edge_weight=0.0)[missing].max() < 0.1
    assert step(logits, labels, ce_weight=0.0)[missing].min() > 0.5


@pytest.mark.slow
def test_pictures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["how_it_works.py", "--output", str(tmp_path)])
    how_it_works.main()
    page = (Path(how_it_works.__file__).parents[1] / "docs" / "how-it-works.md").read_text()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    shown = re.findall(r'src="images/(\S+)\.png"', page)
    assert sizes.keys() == {f"{name}{width}.png" for name in shown for width in ("", "-narrow")}
    assert max(sizes.values()) < LIMIT
