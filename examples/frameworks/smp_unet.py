"""Train a U-Net of segmentation_models.pytorch with Dice and EdgeAwareLoss.

python examples/frameworks/smp_unet.py --mode binary

The network starts from random weights, so that the example needs no download. It needs:
pip install segmentation-models-pytorch
"""

from __future__ import annotations

import argparse

import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from edgeloss import EdgeAwareLoss
from edgeloss.adapters import Adapted
from edgeloss.metrics import boundary_f1
from squares import squares

# What smp's own losses take in each mode: [N, 1, H, W] of 0 and 1, or [N, H, W] class indices.
LOSSES = {
    "binary": (1, Adapted(EdgeAwareLoss())),
    "multiclass": (2, EdgeAwareLoss()),
}


def main(mode: str = "multiclass", epochs: int = 3) -> float:
    """Train, and return the boundary F1 of images that were not trained on."""
    torch.manual_seed(0)
    classes, edges = LOSSES[mode]
    network = smp.Unet("resnet18", encoder_weights=None, classes=classes)
    dice = smp.losses.DiceLoss(mode)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for images, labels in DataLoader(squares(64), 8, shuffle=True):
            target = labels[:, None].float() if mode == "binary" else labels
            logits = network(images)
            loss = dice(logits, target) + edges(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    images, labels = squares(16).tensors
    score = float(boundary_f1(predict(network.eval(), images, mode), labels, 2))
    print(f"boundary F1: {score:.3f}")
    return score


@torch.no_grad()
def predict(network: nn.Module, images: Tensor, mode: str) -> Tensor:
    """Return labels [N, H, W]."""
    logits = network(images)
    return logits.argmax(1) if mode == "multiclass" else (logits[:, 0] > 0).long()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=LOSSES, default="multiclass")
    main(parser.parse_args().mode)
