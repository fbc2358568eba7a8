"""Values of the loss, its maps and its reductions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stateless import stateless_loss
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, loss_maps, normalizers

pytestmark = pytest.mark.usefixtures("each_backend")


def scene(*size: int, classes: int = 4, batch: int = 2, ignore: float = 0.2) -> tuple[Tensor, Tensor]:
    x = torch.randn(batch, classes, *size, dtype=torch.float64) * 3
    y = torch.randint(classes, (batch, *size))
    y[..., size[-1] // 2 :] = 1  # where the prediction alone has edges
    y[torch.rand(batch, *size) < ignore] = 255
    return x, y


def test_own_distance_field_is_read_beside_edges_only() -> None:
    x, y = torch.randn(1, 3, 4, 12), torch.zeros(1, 4, 12, dtype=torch.long)
    y[..., 0] = 1  # edge pixels in columns 0 and 1, their neighbors up to column 2
    field = torch.ones(1, 4, 12)
    expected = edge_aware_loss(x, y, decay=2.0, distance=field)
    field[..., 3:] = torch.inf
    assert edge_aware_loss(x, y, decay=2.0, distance=field) == expected


def test_own_normalizer_makes_crops_add_up() -> None:
    x, y = scene(6, 8, batch=5)
    weight = torch.tensor([1.0, 0.5, 2.0, 0.3], dtype=torch.float64)
    v = torch.rand(5, 6, 8, dtype=torch.float64)
    v[y == 255] = torch.nan  # not read
    weights = {"weight": weight, "edge_class_weight": weight.flip(0)}
    criterion = stateless_loss(**weights, ignore_index=255)
    x.requires_grad_()
    whole = criterion(x, y, pixel_weight=v)
    (expected,) = torch.autograd.grad(whole, x)
    counts = [normalizers(y[i : i + 1], **weights, ignore_index=255, pixel_weight=v[i : i + 1]) for i in range(5)]
    total = (sum(w for w, _ in counts), sum(e for _, e in counts))
    parts = [criterion(x[i : i + 1], y[i : i + 1], pixel_weight=v[i : i + 1], normalizer=total) for i in range(5)]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), x)[0], expected)
    plain = criterion(x, y, pixel_weight=v, normalizer=(float(total[0]), float(total[1])))
    torch.testing.assert_close(plain, whole)


def test_bool_labels() -> None:
    x, y = torch.randn(1, 1, 6, 6), torch.rand(1, 6, 6) < 0.5
    assert edge_aware_loss(x, y) == edge_aware_loss(x, y.long())


@pytest.mark.parametrize("size", [(7, 6), (3, 4, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_logit_equals_two_classes(size: tuple[int, ...], weighted: bool) -> None:
    x, y = scene(*size, classes=2)
    one = x[:, 1:].clone().requires_grad_()
    two = torch.cat([torch.zeros_like(x[:, 1:]), x[:, 1:]], 1).requires_grad_()
    weight = torch.tensor([0.4, 1.7]) if weighted else None
    options: dict[str, Any] = {"ignore_index": 255, "weight": weight, "label_smoothing": 0.1}
    loss, expected = edge_aware_loss(one, y, **options), edge_aware_loss(two, y, **options)
    loss.backward()
    expected.backward()
    assert loss == expected
    assert one.grad is not None
    assert two.grad is not None
    assert torch.equal(one.grad, two.grad[:, 1:])


def test_one_logit_without_edge_weight_is_binary_cross_entropy() -> None:
    x, y = torch.randn(2, 1, 6, 7) * 4, torch.randint(2, (2, 6, 7))
    expected = F.binary_cross_entropy_with_logits(x[:, 0], y.float())
    torch.testing.assert_close(edge_aware_loss(x, y, edge_weight=0.0), expected)


def test_only_logits_get_a_gradient() -> None:
    x, y = scene(6, 6)
    others = {
        "weight": torch.rand(4, requires_grad=True),
        "pixel_weight": torch.rand(2, 6, 6, requires_grad=True),
        "distance": torch.rand(2, 6, 6, requires_grad=True),
    }
    count = torch.tensor(3.0, requires_grad=True)
    loss = edge_aware_loss(x.requires_grad_(), y, ignore_index=255, decay=1.0, normalizer=(count, count), **others)
    loss.backward()
    assert x.grad is not None
    assert all(value.grad is None for value in [*others.values(), count])


def test_many_classes_are_distinguished() -> None:
    y = torch.tensor([[[256, 257, 2**24, 2**24 + 1]]])
    assert normalizers(y)[1] == 4


def test_the_map_of_the_distance_is_a_copy() -> None:
    x, y = scene(6, 6)
    y[:, :, 3:] = 1  # the outermost column is nobody's neighbor across an edge, and may be anything
    field = torch.rand(2, 6, 6, dtype=torch.float64)
    field[..., 5] = torch.inf
    for own in (field, None):
        logits = x.clone().requires_grad_()
        loss, maps = edge_aware_loss(logits, y, ignore_index=255, decay=1.0, distance=own, return_maps=True)
        (expected,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert own is None or torch.equal(maps.distance, own)
        maps.distance.zero_()
        assert torch.equal(torch.autograd.grad(loss, logits)[0], expected)
    assert field[..., 5].isinf().all()


def test_distance_map_reaches_twice_the_radius() -> None:
    y = torch.zeros(1, 1, 9, dtype=torch.long)
    y[..., 0] = 1
    maps = loss_maps(torch.zeros(1, 2, 1, 9), y, radius=(0, 2), decay=1.0, spacing=(1.0, 0.5))
    inf = torch.inf
    assert maps.distance is not None
    assert maps.distance[0, 0].tolist() == [0.5, 0.5, 1.0, 1.5, 2.0, inf, inf, inf, inf]
    assert loss_maps(torch.zeros(1, 2, 1, 9), y).distance is None


def test_maps_are_detached_and_inputs_untouched() -> None:
    x, y = scene(6, 6)
    x.requires_grad_()
    before = x.detach().clone(), y.clone()
    loss, maps, terms = EdgeAwareLoss(ignore_index=255, decay=1.0)(x, y, return_maps=True, return_terms=True)
    (loss * 3).backward()
    assert not any(value.requires_grad for value in [*maps, *terms.values()])
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_on_real_scenes(camvid: Path) -> None:
    from segkit.data import SegmentationFolder

    data = SegmentationFolder(camvid / "val", num_classes=11, ignore_index=255)
    y = torch.stack([data[i][1] for i in (0, 50)])
    x = torch.randn(2, 11, *y.shape[1:], requires_grad=True)
    loss, terms = edge_aware_loss(x, y, ignore_index=255, return_terms=True)
    loss.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (x.grad.movedim(1, -1)[y == 255] == 0).all()
    assert 0.03 < terms["edge_fraction"] < 0.15


def test_balanced_edge_class_weight() -> None:
    y = torch.zeros(2, 12, 12, dtype=torch.uint8)
    y[0, :, 6:] = 1  # 12 edge pixels of class 0 and of class 1
    y[1, 5, 5] = 2  # one of class 2, and 8 of class 0
    y[1, 0] = 255
    counts = torch.tensor([12.0 + 8, 12, 1])
    options: dict[str, Any] = {"ignore_index": 255}
    for exponent in (0.0, 0.5, 1.0):
        weight = balanced_edge_class_weight(y.split(1), 4, exponent=exponent, **options)
        torch.testing.assert_close(weight[:3] * counts**exponent, weight[2].expand(3))  # in proportion to n^-exponent
        torch.testing.assert_close((weight[:3] * counts).sum(), counts.sum())
        assert weight[3] == 1
    with pytest.raises(ValueError, match="expected labels 0 to 1, or ignore_index=255, but got 2 at 1 pixel"):
        balanced_edge_class_weight([y], 2, **options)
    with pytest.raises(ValueError, match="num_classes: expected an int, at least 2, but got 1"):
        balanced_edge_class_weight([y], 1)
    with pytest.raises(TypeError, match="target: expected class indices of dtype"):
        balanced_edge_class_weight([y.float()], 3)
    torch.testing.assert_close(balanced_edge_class_weight([], 3), torch.ones(3))
