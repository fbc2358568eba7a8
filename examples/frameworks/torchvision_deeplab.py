"""Train a DeepLabV3 of torchvision with EdgeAwareLoss, as its reference script does with cross-entropy.

python examples/frameworks/torchvision_deeplab.py

The network starts from random weights, so that the example needs no download. It needs: pip install torchvision
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

from edgeloss import EdgeAwareLoss
from edgeloss.adapters import Adapted
from edgeloss.metrics import boundary_f1
from squares import squares

# In the place of ``criterion`` in torchvision's references/segmentation/train.py.
main_loss = Adapted(EdgeAwareLoss(ignore_index=255), key="out")
auxiliary_loss = Adapted(EdgeAwareLoss(ignore_index=255), key="aux")


def criterion(outputs: dict[str, Tensor], target: Tensor) -> Tensor:
    """Return the loss of the output, and half of that of the auxiliary one."""
    return main_loss(outputs, target) + 0.5 * auxiliary_loss(outputs, target)


def main(epochs: int = 20) -> float:
    """Train, and return the boundary F1 (1 px) of images that were not trained on."""
    torch.manual_seed(0)
    network = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2, aux_loss=True)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # the backbone's 0.01 suits long trainings
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for epoch in range(epochs):
        for images, labels in DataLoader(squares(64, 64), 8, shuffle=True):
            loss = criterion(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    images, labels = squares(16, 64).tensors
    with torch.no_grad():
        prediction = network.eval()(images)["out"].argmax(1)
    score = float(boundary_f1(prediction, labels, 2))
    print(f"boundary F1 (1 px): {score:.3f}")
    return score


if __name__ == "__main__":
    main()
