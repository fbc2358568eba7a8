"""The neighbors of edge pixels: their order, their values and their shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scenes import examined, patches
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.viz import compute_arrays, neighbors
from edgeloss.viz.neighbors import Neighbors


def found_neighbors(
    logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None, count: int = 8
) -> Neighbors:
    return examined(logits, target, criterion, neighbors=count)[1].neighbors


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("radius", [1, 2])
@pytest.mark.parametrize("decay", [None, 1.5])
def test_neighbors_by_hand(power: float, radius: int, decay: float | None) -> None:
    """The part of each neighbor; together they are the two terms and their gradient."""
    logits, target = patches(9, 11)
    logits, target = logits.double(), target[:, :, :].clone()
    criterion = EdgeAwareLoss(power=power, radius=radius, decay=decay)
    found = found_neighbors(logits, target, criterion, count=(2 * radius + 1) ** 2 - 1)
    computed = compute_arrays(logits, target, criterion)
    p = logits.softmax(1)[0].numpy()
    labels = target[0].numpy()
    for place, (y, x) in enumerate(np.argwhere(computed.maps["edge_mask"][0])):
        parts = {}
        steps = zip(*found.step[:, :, place], found.nll[:, place], found.share[:, place], strict=True)
        for down, right, nll, share in steps:
            if (down, right) != (0, 0):
                parts[int(down), int(right)] = nll, share
        expected = {
            (down, right)
            for down in range(-radius, radius + 1)
            for right in range(-radius, radius + 1)
            if (down or right) and 0 <= y + down < 9 and 0 <= x + right < 11 and labels[y + down, x + right] >= 0
        }
        assert set(parts) == expected
        for same, name in ((True, "same_side"), (False, "other_side")):
            side = {
                step: part for step, part in parts.items() if (labels[y + step[0], x + step[1]] == labels[y, x]) == same
            }
            if not side:
                continue
            for (down, right), (nll, _) in side.items():
                at_n = p[labels[y, x], y + down, x + right]
                assert nll == pytest.approx(-math.log(at_n if same else 1 - at_n))
            assert sum(share for _, share in side.values()) == pytest.approx(1)
            if power == 0:  # then the shares are the weights of the mean
                mean = sum(nll * share for nll, share in side.values())
                assert mean == pytest.approx(computed.maps[name][0, y, x])
            if decay is None and power:
                weights = {step: math.exp(-nll) ** power for step, (nll, _) in side.items()}
                for step, (_, share) in side.items():
                    assert share == pytest.approx(weights[step] / sum(weights.values()))


def test_neighbors_of_largest_weighted_loss_come_first() -> None:
    logits, target = patches()
    every, some = found_neighbors(logits, target), found_neighbors(logits, target, count=3)
    np.testing.assert_array_equal(some.nll, every.nll[:3])
    falls = np.diff(np.nan_to_num(every.nll, nan=-1), axis=0) <= 0
    assert falls.all()


def test_edge_pixels_may_be_looked_at_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = patches(22, 18)
    criterion = EdgeAwareLoss(radius=(2, 30), decay=2.0, power=0.5)
    whole = found_neighbors(logits, target, criterion)
    monkeypatch.setattr(neighbors, "_MOST_PAIRS", 1000)
    monkeypatch.setattr("edgeloss.viz.arrays._BAND", 1)
    for expected, given in zip(whole, found_neighbors(logits, target, criterion), strict=True):
        np.testing.assert_array_equal(given, expected)


def test_a_neighbor_that_is_not_finite_comes_first() -> None:
    logits, target = patches()
    logits[0, :, 5, 5] = torch.nan
    target[0, 4:7, 4:7] = torch.tensor([[0, 1, 0], [1, 1, 0], [0, 1, 1]])
    found = found_neighbors(logits, target, EdgeAwareLoss(radius=3))
    edges = np.argwhere(compute_arrays(logits, target, EdgeAwareLoss(radius=3)).maps["edge_mask"][0])
    place = int(np.flatnonzero((edges == (4, 4)).all(1))[0])
    assert found.step[:, 0, place].tolist() == [1, 1]
    assert math.isnan(found.nll[0, place])
    assert np.isfinite(found.nll[1:, place]).all()


def test_no_edge_has_no_neighbors() -> None:
    found = found_neighbors(torch.zeros(1, 2, 9, 9), torch.zeros(1, 9, 9, dtype=torch.long))
    assert found.step.shape == (2, 8, 0)
    assert found.share.shape == (8, 0)


def test_all_edge_pixels_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = patches(22, 18)
    every = found_neighbors(logits, target)
    monkeypatch.setattr("edgeloss.viz.arrays._BAND", 1)
    for most, expected in ((3 * every.nll.shape[1] + 1, 3), (1, 1)):
        _, details = examined(logits, target, neighbors=8, most_pairs=most)
        np.testing.assert_array_equal(details.neighbors.nll, every.nll[:expected])
