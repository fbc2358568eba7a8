"""Train a 3-D network of MONAI with Dice and EdgeAwareLoss, from its transforms to its sliding window.

python examples/frameworks/monai_volumes.py

In the place of DiceCELoss(to_onehot_y=True, softmax=True): its Dice part, and the loss for its cross-entropy. The
volumes are drawn at random, so that the example runs anywhere. It needs: pip install monai
"""

from __future__ import annotations

import torch
from monai.data import DataLoader, Dataset
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureTyped, RandFlipd, RandSpatialCropd
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss.adapters import Adapted
from edgeloss.metrics import boundary_f1

CLASSES = 2
SPACING = (2.0, 1.0, 1.0)  # mm


def volumes(count: int) -> list[dict[str, Tensor]]:
    """Return noisy volumes [1, D, H, W] with a box in each, and labels as MONAI stores them: floating, a channel."""
    samples = []
    for z, y, x in torch.randint(2, 8, (count, 3)).tolist():
        label = torch.zeros(1, 16, 24, 24)
        label[:, z : z + 6, y : y + 12, x : x + 12] = 1
        samples.append({"image": label + 0.5 * torch.randn_like(label), "label": label})
    return samples


class DiceAndEdges(nn.Module):
    """The sum of both losses, for labels [B, 1, D, H, W]."""

    def __init__(self) -> None:
        """Create the losses; neighbors within a slice and in the next slices count by their distance in mm."""
        super().__init__()
        self.dice = DiceLoss(to_onehot_y=True, softmax=True)
        self.edges = Adapted(EdgeAwareLoss(decay=2.0, spacing=SPACING))

    def forward(self, logits: Tensor, label: Tensor) -> Tensor:
        """Compute the sum."""
        loss: Tensor = self.dice(logits, label) + self.edges(logits, label)
        return loss


def main(epochs: int = 4) -> float:
    """Train, and return the boundary F1 of a volume that was not trained on."""
    torch.manual_seed(0)
    crop = [RandSpatialCropd(["image", "label"], (16, 16, 16), random_size=False), RandFlipd(["image", "label"], 0.5)]
    loader = DataLoader(Dataset(volumes(16), Compose([*crop, EnsureTyped(["image", "label"])])), batch_size=4)
    network = UNet(3, in_channels=1, out_channels=CLASSES, channels=(8, 16), strides=(2,), num_res_units=1)
    criterion = DiceAndEdges()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for epoch in range(epochs):
        for batch in loader:
            loss = criterion(network(batch["image"]).as_tensor(), batch["label"].as_tensor())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    (sample,) = volumes(1)
    with torch.no_grad():
        logits = sliding_window_inference(sample["image"][None], (16, 16, 16), 4, network.eval())
    score = boundary_f1(logits.argmax(1), sample["label"].long(), CLASSES, spacing=SPACING)
    print(f"boundary F1: {float(score):.3f}")
    return float(score)


if __name__ == "__main__":
    main()
