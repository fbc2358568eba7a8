"""Values of the loss, its maps, its reductions, and what comes from the labels alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batches import IGNORE, steps
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.functional import (
    balanced_edge_class_weight,
    edge_aware_loss,
    edge_weights,
    loss_maps,
    normalizers,
)

pytestmark = pytest.mark.usefixtures("each_backend")


@pytest.mark.parametrize("is_void", [False, True])
def test_without_edges_and_regions_it_is_cross_entropy(is_void: bool) -> None:
    ((x, y),) = steps(1)
    y = torch.full_like(y, IGNORE) if is_void else y
    options: dict[str, Any] = {"ignore_index": IGNORE, "label_smoothing": 0.1, "weight": torch.rand(4).double()}
    expected = F.cross_entropy(x, y, **options).nan_to_num(0.0)  # that of torch is nan for a mean over nothing
    torch.testing.assert_close(edge_aware_loss(x, y, **options, edge_weight=0.0, region_weight=0.0), expected)
    each, of_ones = (y[:, None] == torch.arange(4).view(4, 1, 1)).long(), torch.rand(4).double()
    expected = F.binary_cross_entropy_with_logits(x, each.double(), pos_weight=of_ones.view(4, 1, 1), reduction="sum")
    given: dict[str, Any] = {"multilabel": True, "weight": torch.stack([torch.ones(4), of_ones], 1)}
    given |= {"edge_weight": 0.0, "region_weight": 0.0}
    torch.testing.assert_close(edge_aware_loss(x, each, reduction="sum", **given), expected)


def test_only_logits_get_a_gradient() -> None:
    ((x, y),) = steps(1, (6, 6))
    others = {
        "weight": torch.rand(4, requires_grad=True),
        "edge_class_weight": torch.rand(4, requires_grad=True),
        "pixel_weight": torch.rand(3, 6, 6, requires_grad=True),
        "distance": torch.rand(3, 6, 6, requires_grad=True),
    }
    count = torch.tensor(3.0, requires_grad=True)
    options: dict[str, Any] = {"ignore_index": IGNORE, "decay": 1.0}
    for given in ({}, {"normalizer": (count, count)}, {"normalizer": (count, count.expand(4))}):
        edge_aware_loss(x, y, **options, **given, **others).backward()
    assert x.grad is not None
    assert all(value.grad is None for value in [*others.values(), count])


def test_maps_are_detached_copies() -> None:
    ((x, y),) = steps(1, (6, 6))
    y[:, :, 3:] = 1  # the outermost column is nobody's neighbor across an edge, and may be anything
    field = torch.rand(3, 6, 6, dtype=torch.float64)
    field[..., 5] = torch.inf
    options: dict[str, Any] = {"ignore_index": IGNORE, "decay": 1.0}
    for own in (field, None):
        logits, before = x.detach().clone().requires_grad_(), None if own is None else own.clone()
        given = {"return_maps": True, "return_terms": True, "distance": own}
        loss, maps, terms = EdgeAwareLoss(**options)(logits, y, **given)
        (expected,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert own is None or torch.equal(maps.distance, own)
        for value in [*maps, *terms.values()]:
            assert not value.requires_grad
            value.zero_()
        assert torch.equal(torch.autograd.grad(loss, logits)[0], expected)
        assert own is None or torch.equal(own, before)
        assert not any(value.requires_grad for value in loss_maps(logits, y, **options))


def test_memory_follows_the_edges() -> None:
    # No [B, K, C, *S] tensor, even of the edge pixels alone: they are a tenth of the image, K = 48 neighbors each, so
    # that a tenth of it would be 5 times the logits. What is kept for backward is 4 times them: shifted, its exp, and
    # these two again for the pixels next to the border.
    x, y = torch.randn(1, 256, 64, 64, requires_grad=True), torch.zeros(1, 64, 64, dtype=torch.long)
    y[..., 32:] = 1
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = edge_aware_loss(x, y, radius=3, region_weight=0.0)
    loss.backward()
    assert sum(kept.values()) < 4 * x.nbytes


def test_balanced_edge_class_weight() -> None:
    y = torch.zeros(2, 12, 12, dtype=torch.uint8)
    y[0, :, 6:] = 1  # 12 edge pixels of class 0 and of class 1
    y[1, 5, 5] = 2  # one of class 2, and 8 of class 0
    y[1, 0] = 255
    counts = torch.tensor([12.0 + 8, 12, 1])
    for exponent in (0.0, 0.5, 1.0):
        weight = balanced_edge_class_weight(y.split(1), 4, exponent=exponent, ignore_index=255)
        torch.testing.assert_close(weight[:3] * counts**exponent, weight[2].expand(3))  # in proportion to n^-exponent
        torch.testing.assert_close((weight[:3] * counts).sum(), counts.sum())
        assert weight[3] == 1
    torch.testing.assert_close(balanced_edge_class_weight([], 3), torch.ones(3))
    each = torch.stack([y == 1, y == 2], 1)  # 2 C classes
    weight = balanced_edge_class_weight([each], 2, multilabel=True)
    torch.testing.assert_close(weight, 33 / 4 / torch.tensor([[12.0, 12], [8, 1]]))


@pytest.mark.parametrize("multilabel", [False, True])
def test_functions_of_labels_ignore_none_or_one(multilabel: bool) -> None:
    y = torch.randint(2, (2, 3, 7, 9) if multilabel else (2, 7, 9))
    given: dict[str, Any] = {"multilabel": multilabel, "edge_class_weight": torch.tensor([1.0, 2.0, 0.5])}
    functions: list[Any] = [lambda **more: normalizers(y, **given, **more)]
    functions += [lambda **more: tuple(edge_weights(y, 3, **given, **more))]
    functions += [lambda **more: balanced_edge_class_weight([y], 3, multilabel=multilabel, **more)]
    for function in functions:
        before = function()
        torch.testing.assert_close(function(ignore_index=None), before, rtol=0, atol=0)
    y[..., :3] = 7
    before = [function(ignore_index=7) for function in functions]
    y[y == 7] = -100
    torch.testing.assert_close([function() for function in functions], before, rtol=0, atol=0)
    for function in functions:
        with pytest.raises(ValueError, match=r"target: expected labels .*, but got -100 at"):
            function(ignore_index=None)
    labels = torch.tensor([[[256, 257, 2**24, 2**24 + 1]]])  # all are distinguished
    n = normalizers(labels)[1]
    assert n.sum() == 4
    assert len(n) == 2**24 + 2
    w, n = normalizers(labels[..., :2] - 257, 2, validate="never")
    assert (w, n.tolist()) == (1, [0, 0])  # below 0 they do not count
