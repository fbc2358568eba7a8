"""Time a training step, and the share of the loss in it.

The network is the U-Net of the examples, the optimizer AdamW; images are random and labels are read from masks. The
loss alone is timed on the logits of the same step, forward and backward. Medians; the two take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from edgeloss import EdgeAwareLoss
from label_maps import VOID
from measure import make_pass, median_seconds
from result_table import Row
from segkit.model import UNet
from timing.losses import Case, make_inputs


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Yield one row."""
    torch.set_num_threads(options.threads)
    batch, classes, *size = options.shape
    _, labels, _ = make_inputs(Case("step", tuple(options.shape)), options.masks)
    images = torch.rand(batch, 3, *size)
    network, criterion = UNet(classes), EdgeAwareLoss(ignore_index=VOID)
    optimizer = torch.optim.AdamW(network.parameters())
    logits = network(images).detach().requires_grad_()

    def step() -> None:
        criterion(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = median_seconds({"step": step, "loss": make_pass(criterion, logits, labels)}, options.rounds)
    figures = {"step_seconds": seconds["step"], "loss_seconds": seconds["loss"]}
    yield {"case": "step", "images": list(images.shape), **figures, "loss_share": seconds["loss"] / seconds["step"]}
