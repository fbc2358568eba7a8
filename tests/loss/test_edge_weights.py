"""The weights that the edge terms give to pixels: those of loops, and the sums that they make of the logits."""

from __future__ import annotations

from typing import Any

import brute_force
import pytest
import torch
from pairwise import pairwise
from torch import Tensor

from edgeloss import weights
from edgeloss.functional import edge_weights, loss_maps, normalizers

SIZES = [(9, 8), (1, 7), (4, 5, 3), (1, 1)]
CASES = pairwise(SIZES, [1, 2, 3, 7], [1, 2, 9, "last axis"], [None, "search", "field"], [False, True], [False, True])


def scene(case: tuple[Any, ...]) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return logits, labels and options of a case."""
    size, classes, radius, decay, has_u, has_v = case
    x = 3 * torch.randn(2, classes, *size, dtype=torch.float64)
    y = torch.randint(max(2, classes), (2, *size))
    y[torch.rand(y.shape) < 0.2] = -100
    options: dict[str, Any] = {"radius": radius if radius != "last axis" else [*[0] * (len(size) - 1), 2]}
    if decay:
        options |= {"decay": 1.5, "spacing": [1.0, *[0.7] * (len(size) - 1)]}
    if decay == "field":
        options["distance"] = 6 * torch.rand(y.shape, dtype=torch.float64)
    if has_u:
        options["edge_class_weight"] = torch.rand(max(2, classes), dtype=torch.float64)
    if has_v:
        options["pixel_weight"] = torch.rand(y.shape, dtype=torch.float64) * (torch.rand(y.shape) < 0.9)
    return x, y, options


@pytest.mark.parametrize("part", [3, weights.PART])  # pairs at a time
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_are_those_of_loops(part: int, case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PART", part)
    x, y, options = scene(case)
    classes = max(2, x.shape[1])
    found = edge_weights(y, classes, **options)
    maps = loss_maps(x, y, **without(options, "edge_class_weight", "pixel_weight"))
    w = torch.ones_like(x[:, 0]) if maps.distance is None else torch.exp(-maps.distance / options["decay"])
    u = options.get("edge_class_weight", torch.ones(classes, dtype=torch.float64))
    vu = u[y.clamp(min=0)] * options.get("pixel_weight", torch.ones(y.shape))
    radius = options["radius"] if isinstance(options["radius"], list) else [options["radius"]] * (y.dim() - 1)
    other_side = {}
    for b in range(2):
        expected, other = brute_force.edge_weights(y[b].numpy(), w[b].numpy(), vu[b].numpy(), radius=tuple(radius))
        torch.testing.assert_close(found.same_side[b], torch.from_numpy(expected), rtol=1e-12, atol=1e-14)
        other_side |= {(b * y[0].numel() + n, k): weight for (n, k), weight in other.items() if weight}
    keys = list(zip(found.pixel.tolist(), found.other_class.tolist(), strict=True))
    assert keys == sorted(other_side)
    assert found.other_side.tolist() == pytest.approx([other_side[key] for key in keys], rel=1e-12)
    assert found.total.item() == pytest.approx(
        normalizers(y, **without(options, "decay", "spacing", "distance"))[1].item()
    )


def without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def test_multilabel_weights_are_those_of_each_class() -> None:
    y = torch.randint(2, (2, 3, 6, 5))
    u = torch.rand(3, 2)
    both = edge_weights(y, 3, multilabel=True, edge_class_weight=u, radius=2)
    for c in range(3):
        one = edge_weights(y[:, c], 2, edge_class_weight=u[c].double(), radius=2)
        torch.testing.assert_close(both.same_side[:, c], one.same_side)
        chosen = both.pixel // 30 % 3 == c
        torch.testing.assert_close(both.other_side[chosen], one.other_side)
        assert both.other_class[chosen].tolist() == one.other_class.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "num_classes: expected an int, at least 2, but got 1"),
        ({"num_classes": 3}, r"target: expected labels 0 to 2, or ignore_index=-100, but got 4 at 1 pixel"),
        ({"distance": torch.ones(1, 2, 2)}, "distance: expected decay with it"),
        ({"distance": -torch.ones(1, 2, 2), "decay": 1.0}, "distance: expected finite values ≥ 0"),
        ({"edge_class_weight": torch.ones(4)}, "edge_class_weight: expected 5 class weights, but got 4"),
        ({"pixel_weight": torch.ones(2, 2)}, r"pixel_weight: expected \[1, 2, 2\], but got \[2, 2\]"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edge_weights(torch.tensor([[[0, 1], [1, 4]]]), **{"num_classes": 5, **arguments})
