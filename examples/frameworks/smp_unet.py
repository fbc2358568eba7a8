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

LOSSES = {
    "binary": Adapted(EdgeAwareLoss()),
    "multiclass": EdgeAwareLoss(),
    "multilabel": Adapted(EdgeAwareLoss(multilabel=True)),
}


def masks(labels: Tensor, mode: str) -> Tensor:
    """Return what smp's own losses take in a mode: [N, H, W] class indices, or [N, C, H, W] of 0 and 1."""
    if mode == "multiclass":
        return labels
    square = labels[:, None].float()
    surroundings = torch.nn.functional.max_pool2d(square, 9, stride=1, padding=4)  # with the square in them
    return square if mode == "binary" else torch.cat([square, surroundings], 1)


def main(mode: str = "multiclass", epochs: int = 6) -> float:
    """Train, and return the boundary F1 of images that were not trained on."""
    torch.manual_seed(0)
    network = smp.Unet("resnet18", encoder_weights=None, classes=1 if mode == "binary" else 2)
    dice, edges = smp.losses.DiceLoss(mode), LOSSES[mode]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for images, labels in DataLoader(squares(64), 8, shuffle=True):
            target = masks(labels, mode)
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
    """Return labels [N, H, W] of squares."""
    logits = network(images)
    return logits.argmax(1) if mode == "multiclass" else (logits[:, 0] > 0).long()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=LOSSES, default="multiclass")
    main(parser.parse_args().mode)
