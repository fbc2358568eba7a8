"""Mask heads that predict one logit per mask: the loss of chosen queries or classes, and where its gradient goes."""

from __future__ import annotations

import pytest
import torch
from packages import require
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def masks(count: int) -> Tensor:
    """Return masks [N, 64, 64] of squares."""
    found = torch.zeros(count, 64, 64, dtype=torch.bool)
    found[:, 16:40, 20:44] = True
    return found


def test_mask2former() -> None:
    require("transformers")
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = SwinConfig(
        image_size=64, embed_dim=16, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4, out_features=stages
    )
    config = Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        encoder_layers=1,
        decoder_layers=2,
        dim_feedforward=32,
        num_attention_heads=2,
        num_queries=5,
        num_labels=2,
    )
    logits = Mask2FormerForUniversalSegmentation(config)(torch.randn(2, 3, 64, 64)).masks_queries_logits
    assert logits.shape == (2, 5, 16, 16)
    logits.retain_grad()
    image, query = torch.tensor([0, 1, 1]), torch.tensor([3, 0, 2])  # as matched
    EdgeAwareLoss(upsample=True)(logits[image, query][:, None], masks(3)).backward()
    assert logits.grad.abs().sum((2, 3)).nonzero().tolist() == [[0, 3], [1, 0], [1, 2]]


def test_mask_rcnn() -> None:
    require("torchvision")
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

    head = nn.Sequential(MaskRCNNHeads(8, (8, 8), 1), MaskRCNNPredictor(8, 8, num_classes=3))
    logits = head(torch.randn(4, 8, 14, 14))
    assert logits.shape == (4, 3, 28, 28)
    logits.retain_grad()
    label = torch.tensor([1, 2, 2, 1])
    EdgeAwareLoss(upsample=True)(logits[torch.arange(4), label][:, None], masks(4)).backward()
    assert logits.grad.abs().sum((2, 3)).nonzero()[:, 1].equal(label)
