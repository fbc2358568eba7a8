"""Time a training step, and the share of the loss in it.

The network is the U-Net of the examples, the optimizer AdamW; images are random and labels are read from masks. The
loss alone is timed on the logits of the same step, forward and backward. Medians; the two take turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from edgeloss import EdgeAwareLoss
from label_maps import VOID, regions, scenes
from measure import median_seconds, processor
from segkit.model import UNet


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this mode."""
    parser.add_argument("--masks", type=Path, metavar="DIR", help="label masks to tile, *.png (default: generated)")
    parser.add_argument("--classes", type=int, default=11, help="default: %(default)s")
    parser.add_argument("--size", type=int, nargs=2, default=[180, 240], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--batch", type=int, default=4, help="images per step (default: %(default)s)")
    parser.add_argument("--width", type=int, default=16, help="channels at full resolution (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write all figures as JSON")


def run(options: argparse.Namespace) -> None:
    """Time, and print a sentence."""
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
    result = {
        "machine": processor(),
        "torch": torch.__version__,
        "threads": options.threads,
        "images": list(images.shape),
        "step_seconds": seconds["step"],
        "loss_seconds": seconds["loss"],
        "loss_share": seconds["loss"] / seconds["step"],
    }
    print(
        f"{result['machine']}, torch {result['torch']}: a step of {options.batch} images takes {seconds['step']:.3f} s,"
        f" of which the loss takes {result['loss_share']:.1%}"
    )
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
