"""The loss as mmsegmentation calls it."""

from __future__ import annotations

import pytest
import torch
from packages import require
from torch import Tensor

import edgeloss

require("mmseg")

from edgeloss.integrations.mmseg import MODELS  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def batch() -> tuple[Tensor, Tensor]:
    labels = torch.randint(3, (2, 8, 8))
    labels[:, :2] = 255
    return torch.randn(2, 3, 8, 8), labels


def test_call_of_a_head() -> None:
    logits, labels = batch()
    criterion = MODELS.build({"type": "EdgeAwareLoss", "loss_weight": 0.5, "weight": [1.0, 2.0, 1.0]})
    expected = edgeloss.EdgeAwareLoss(torch.tensor([1.0, 2.0, 1.0]), ignore_index=255)(logits, labels)
    torch.testing.assert_close(criterion(logits, labels, weight=None, ignore_index=255), 0.5 * expected)
    assert criterion.loss_name.startswith("loss_")


def test_weights_and_reductions() -> None:
    logits, labels = batch()
    v = torch.rand(2, 8, 8)
    criterion = MODELS.build({"type": "EdgeAwareLoss"}).eval()
    each = criterion(logits, labels, v, reduction_override="none", ignore_index=255)
    torch.testing.assert_close(
        each, edgeloss.EdgeAwareLoss(ignore_index=255, reduction="none").eval()(logits, labels, pixel_weight=v)
    )
    total = criterion(logits, labels, v, reduction_override="sum", ignore_index=255)
    torch.testing.assert_close(total, each.sum())
    torch.testing.assert_close(criterion(logits, labels, v, avg_factor=7, ignore_index=255), total / 7)
    assert criterion.reduction == "mean"
    with pytest.raises(ValueError, match=r"avg_factor: expected reduction 'mean'"):
        criterion(logits, labels, avg_factor=7, reduction_override="sum")
