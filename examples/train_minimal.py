#!/usr/bin/env python3
"""Train a small network with EdgeAwareLoss in plain PyTorch, to read and to copy from.

The data folder has train/images, train/masks, val/images and val/masks, with the same file names in images and masks,
and classes.txt with a line "INDEX NAME" for each class. All images have the same size.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss.io import VOID_INDEX, read_classes, read_image, read_labels
from edgeloss.metrics import boundary_f1


def load(folder: Path) -> tuple[Tensor, Tensor]:
    """Read all images, [N, 3, H, W] in [-1, 1], and masks, [N, H, W] class indices."""
    images = [read_image(path) for path in sorted((folder / "images").glob("*.*"))]
    masks = [read_labels(path) for path in sorted((folder / "masks").glob("*.*"))]
    return torch.stack(images) / 127.5 - 1, torch.stack(masks)


def make_network(num_classes: int) -> nn.Module:
    """Build a small network with a stride of 4, whose logits have the size of the image."""
    layers: list[nn.Module] = []
    channels = 3
    for width, stride, dilation in [(16, 2, 1), (32, 1, 1), (64, 2, 1), (64, 1, 2), (64, 1, 4), (64, 1, 1)]:
        layers += [nn.Conv2d(channels, width, 3, stride, padding=dilation, dilation=dilation, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, num_classes, 1), nn.Upsample(scale_factor=4, mode="bilinear"))


def main() -> None:
    """Train, and print the loss and a validation score after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/shapes"), help="data folder (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the images (default: %(default)s)")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classes, void = read_classes(options.data / "classes.txt")
    void = VOID_INDEX if void is None else void  # pixels with this label are ignored
    images, masks = load(options.data / "train")
    val_images, val_masks = load(options.data / "val")

    network = make_network(len(classes)).to(device)
    # The edges of rare classes matter as much as those of frequent ones.
    criterion = EdgeAwareLoss(ignore_index=void).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)

    for epoch in range(1, options.epochs + 1):
        network.train()
        total = 0.0
        for batch in torch.randperm(len(images)).split(8):
            logits = network(images[batch].to(device))  # [B, C, H, W]
            loss = criterion(logits, masks[batch].to(device))  # labels [B, H, W]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)

        network.eval()
        with torch.no_grad():
            prediction = torch.cat([network(part.to(device)).argmax(1).cpu() for part in val_images.split(8)])
        score = boundary_f1(prediction, val_masks, len(classes), ignore_index=void, radius=1)
        print(f"epoch {epoch}/{options.epochs}  loss {total / len(images):.3f}  boundary F1 (1 px) {score:.1%}")


if __name__ == "__main__":
    main()
