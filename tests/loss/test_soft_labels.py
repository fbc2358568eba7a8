"""Soft labels: the recipes of docs/training.md, and the error of a target of probabilities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss

X = torch.randn(4, 3, 9, 11, dtype=torch.float64)
LABELS = torch.randint(3, (4, 9, 11), generator=torch.Generator().manual_seed(0))
OTHERS = LABELS[[1, 2, 3, 0]]


def mixed(criterion: EdgeAwareLoss, x: Tensor, share: Tensor) -> Tensor:
    """Return the loss of mixup as the recipe computes it."""
    total = criterion.step_normalizer([LABELS, OTHERS])
    loss = 2 * criterion(x, LABELS, normalizer=total, pixel_weight=share)
    return loss + 2 * criterion(x, OTHERS, normalizer=total, pixel_weight=1 - share)


@pytest.mark.usefixtures("each_backend")
def test_mixed_cross_entropies_are_that_of_mixed_labels() -> None:
    share = torch.rand(4, 1, 1, dtype=torch.float64).expand(4, 9, 11)
    one_hot, other = (F.one_hot(y, 3).movedim(-1, 1) for y in (LABELS, OTHERS))
    soft = share[:, None] * one_hot + (1 - share[:, None]) * other
    x = X.clone().requires_grad_()
    for smoothing in (0.0, 0.1):
        loss = mixed(EdgeAwareLoss(edge_weight=0, region_weight=0, label_smoothing=smoothing), x, share)
        expected = F.cross_entropy(x, soft, label_smoothing=smoothing)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("power", [0.0, -1.0])
def test_one_share_for_all_images_mixes_two_losses(power: float) -> None:
    criterion = EdgeAwareLoss(power=power)
    for _ in range(3):
        u, edge_weight = criterion.current_edge_class_weight, criterion.current_edge_weight.item()
        loss = mixed(criterion, X, torch.full((4, 9, 11), 0.3, dtype=torch.float64))
        given = {"power": power, "edge_class_weight": u, "edge_weight": edge_weight}
        given |= {"region_weight": criterion.region_weight}
        one, other = (edge_aware_loss(X, y, **given) for y in (LABELS, OTHERS))
        torch.testing.assert_close(loss, 0.3 * one + 0.7 * other)
    assert criterion.counted_steps == 3


def test_probabilities_are_refused() -> None:
    message = (
        r"but got float64 \[4, 3, 9, 11\]; .*as_labels\(target, logits\) for one-hot.* soft labels see .*docs/training"
    )
    with pytest.raises(TypeError, match=message):
        edge_aware_loss(X, X.softmax(1))
    with pytest.raises(TypeError, match=message):
        edge_aware_loss(X, X.softmax(1), multilabel=True)
