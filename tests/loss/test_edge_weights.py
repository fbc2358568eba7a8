"""The weights that the edge terms give to pixels, which are those of loops."""

from __future__ import annotations

from typing import Any

import brute_force
import pytest
import torch
from pairwise import pairwise

from edgeloss import weights
from edgeloss.functional import edge_weights, loss_maps, normalizers

SIZES = [(9, 8), (1, 7), (4, 5, 3), (1, 1)]
ROWS = pairwise(SIZES, [1, 2, 3, 7], [1, 2, 9, "last axis"], [None, "search", "field"], [False, True], [False, True])


@pytest.mark.parametrize("part", [3, weights.PART])  # pairs at a time
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_weights_are_those_of_loops(row: tuple[Any, ...], part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PART", part)
    size, classes, radius, decay, has_u, has_v = row
    classes, dims = max(2, classes), len(size)
    y = torch.randint(classes, (2, *size))
    y[torch.rand(y.shape) < 0.2] = -100
    reach = [0] * (dims - 1) + [2] if radius == "last axis" else [radius] * dims
    given: dict[str, Any] = {"radius": radius if isinstance(radius, int) else reach}
    field = {"decay": 1.5, "spacing": [1.0, *[0.7] * (dims - 1)]} if decay else {}
    if decay == "field":
        field["distance"] = 6 * torch.rand(y.shape, dtype=torch.float64)
    u = torch.rand(classes, dtype=torch.float64) if has_u else torch.ones(classes, dtype=torch.float64)
    v = torch.rand(y.shape, dtype=torch.float64) * (torch.rand(y.shape) < 0.9) if has_v else torch.ones(y.shape)
    of_pixels = {"edge_class_weight": u} if has_u else {}
    of_pixels |= {"pixel_weight": v} if has_v else {}
    found = edge_weights(y, classes, **given, **field, **of_pixels)
    distance = loss_maps(torch.zeros(2, classes, *size).double(), y, **given, **field).distance
    w, vu = torch.ones(y.shape).double() if distance is None else torch.exp(-distance / 1.5), u[y.clamp(min=0)] * v
    other_side = {}
    for b in range(2):
        expected, other = brute_force.edge_weights(y[b].numpy(), w[b].numpy(), vu[b].numpy(), radius=tuple(reach))
        torch.testing.assert_close(found.same_side[b], torch.from_numpy(expected), rtol=1e-12, atol=1e-14)
        other_side |= {(b * y[0].numel() + n, k): weight for (n, k), weight in other.items() if weight}
    assert list(zip(found.pixel.tolist(), found.other_class.tolist(), strict=True)) == sorted(other_side)
    assert found.other_side.tolist() == pytest.approx([other_side[key] for key in sorted(other_side)], rel=1e-12)
    assert found.total.item() == pytest.approx(normalizers(y, **given, **of_pixels)[1].item())


def test_multilabel_weights_are_those_of_each_class() -> None:
    y, u = torch.randint(2, (2, 3, 6, 5)), torch.rand(3, 2)
    both = edge_weights(y, 3, multilabel=True, edge_class_weight=u, radius=2)
    for c in range(3):
        one = edge_weights(y[:, c], 2, edge_class_weight=u[c].double(), radius=2)
        torch.testing.assert_close(both.same_side[:, c], one.same_side)
        chosen = both.pixel // 30 % 3 == c
        torch.testing.assert_close(both.other_side[chosen], one.other_side)
        assert both.other_class[chosen].tolist() == one.other_class.tolist()
