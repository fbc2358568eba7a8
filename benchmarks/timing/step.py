"""Time a training step, and the share of the loss in it.

The network is the U-Net of the examples, the optimizer AdamW; images are random and labels are read from masks. The
loss alone is timed on the logits of the same step, forward and backward. Medians; the two take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from edgeloss import EdgeAwareLoss
from label_maps import VOID, regions, scenes
from measure import median_seconds
from result_table import Row
from segkit.model import UNet


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    parser.add_argument("--classes", type=int, default=11, help="default: %(default)s")
    parser.add_argument("--size", type=int, nargs=2, default=[180, 240], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--batch", type=int, default=4, help="images per step (default: %(default)s)")
    parser.add_argument("--width", type=int, default=16, help="channels at full resolution (default: %(default)s)")


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield one row."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = (options.batch, tuple(options.size), options.classes)
    labels = torch.from_numpy(scenes(options.masks, *shape) if options.masks else regions(*shape, 1)).long()
    images = torch.rand(options.batch, 3, *options.size)
    network, criterion = UNet(options.classes, width=options.width), EdgeAwareLoss(ignore_index=VOID)
    optimizer = torch.optim.AdamW(network.parameters())
    logits = network(images).detach().requires_grad_()

    def step() -> None:
        criterion(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    runs = {"step": step, "loss": lambda: criterion(logits, labels).backward()}
    median_seconds(runs, 1)
    seconds = median_seconds(runs, options.rounds)
    figures = {"step_seconds": seconds["step"], "loss_seconds": seconds["loss"]}
    yield {"case": "step", "images": list(images.shape), **figures, "loss_share": seconds["loss"] / seconds["step"]}
