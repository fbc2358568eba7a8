"""The factors of docs/migration.md by which the losses of other libraries differ from a plain cross-entropy of ours."""

from __future__ import annotations

import pytest
import torch
from packages import require
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss.adapters import Adapted

pytestmark = pytest.mark.filterwarnings("default")
PLAIN = {"edge_weight": 0.0, "region_weight": 0.0}


def batch(classes: int) -> tuple[Tensor, Tensor]:
    """Return logits and labels, a third of which are ignored."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, classes, 12, 10, generator=generator)
    labels = torch.randint(max(classes, 2), (2, 12, 10), generator=generator)
    labels[:, :4] = 255
    return logits, labels


def test_soft_cross_entropy_of_smp_divides_by_all_pixels() -> None:
    require("segmentation_models_pytorch")
    from segmentation_models_pytorch.losses import SoftCrossEntropyLoss

    logits, labels = batch(4)
    for smoothing in (0.0, 0.1):
        theirs = SoftCrossEntropyLoss(smooth_factor=smoothing, ignore_index=255)(logits, labels)
        ours = EdgeAwareLoss(ignore_index=255, label_smoothing=smoothing, **PLAIN)(logits, labels)
        factor = labels.numel() / int((labels != 255).sum())
        assert factor == 1.5
        torch.testing.assert_close(ours, factor * theirs)


def test_binary_cross_entropy_of_smp_smooths_by_half() -> None:
    require("segmentation_models_pytorch")
    from segmentation_models_pytorch.losses import SoftBCEWithLogitsLoss

    logits, labels = batch(1)
    masks = labels.clamp(max=1)[:, None].float()
    for smoothing in (0.0, 0.1):
        theirs = SoftBCEWithLogitsLoss(smooth_factor=smoothing, ignore_index=None)(logits, masks)
        ours = Adapted(EdgeAwareLoss(label_smoothing=2 * smoothing, **PLAIN))(logits, masks)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("one_hot", [False, True])
def test_dice_ce_of_monai_divides_one_hot_labels_by_pixels(one_hot: bool) -> None:
    from monai.losses import DiceCELoss

    logits, labels = batch(3)
    labels = labels.clamp(max=2)
    weight = torch.tensor([1.0, 2.0, 5.0])
    target = nn.functional.one_hot(labels, 3).movedim(-1, 1).float() if one_hot else labels[:, None]
    theirs = DiceCELoss(softmax=True, to_onehot_y=not one_hot, weight=weight, lambda_dice=0)(logits, target)
    ours = EdgeAwareLoss(weight, **PLAIN)(logits, labels)
    torch.testing.assert_close(theirs, ours * weight[labels].mean() if one_hot else ours)


def test_a_mean_over_nothing_is_zero_and_nan_in_torch() -> None:
    logits, labels = batch(3)
    nothing, logits = torch.full_like(labels, 255), logits.requires_grad_()
    assert nn.CrossEntropyLoss(ignore_index=255)(logits, nothing).isnan()
    loss = EdgeAwareLoss(ignore_index=255)(logits, nothing)
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient.any()
