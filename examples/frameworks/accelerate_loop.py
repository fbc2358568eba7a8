"""Train in a loop of Hugging Face Accelerate with EdgeAwareLoss and gradient accumulation.

accelerate launch --num_processes 2 examples/frameworks/accelerate_loop.py

The gradient of a step is that of one batch of all its images, for any number of processes and of accumulated batches:
the denominators of the loss come from the labels of the whole step. It needs: pip install accelerate
"""

from __future__ import annotations

import argparse
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import nn
from torch.utils.data import DataLoader

from edgeloss import EdgeAwareLoss
from edgeloss.functional import normalizers
from squares import squares

CLASSES = 2
IMAGES = 16  # of a step, in all processes


def main(accumulated: int = 4, epochs: int = 3) -> nn.Module:
    """Train, and return the network."""
    # The batches of a step are read before it begins, so the end of the loader does not show the end of a step.
    plugin = GradientAccumulationPlugin(num_steps=accumulated, sync_with_dataloader=False)
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, CLASSES, 3, padding=1))
    criterion = EdgeAwareLoss(sync_normalizer=True).to(accelerator.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(squares(64), IMAGES // accumulated // accelerator.num_processes)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    for epoch in range(epochs):
        remaining = iter(loader)
        while batches := list(islice(remaining, accumulated)):  # of a step
            w, n = zip(*(normalizers(labels, CLASSES) for _, labels in batches), strict=True)
            losses = []
            for images, labels in batches:
                with accelerator.accumulate(network):
                    loss = criterion(network(images), labels, normalizer=(sum(w), sum(n)))
                    accelerator.backward(loss * accelerator.gradient_accumulation_steps)  # which it divides by
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.detach())
        total = accelerator.reduce(torch.stack(losses).sum(), "mean")
        accelerator.print(f"{accelerator.num_processes} processes, epoch {epoch + 1}: loss {total.item():.5f}")
    return accelerator.unwrap_model(network)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accumulated", type=int, default=4, help="batches of a step")
    main(parser.parse_args().accumulated)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a process that ends while another communicates may take it along
        torch.distributed.destroy_process_group()
