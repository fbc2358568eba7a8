#!/usr/bin/env python3
"""Does a small network, trained from scratch, end inverted?

Three convolutions, 300 steps of 8 noisy maps of blobs, 32 × 32, with one logit, two logits, and three labels per pixel.
A training has failed where the least Dice of a channel on 32 new maps is below 0.3.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tiny_networks import Batch, Case, results, run


def blobs(count: int, draw: torch.Generator, *, channels: int) -> Batch:
    """Return labels of 0 and 1 with noise, [B, channels, 32, 32], and the labels, 30 % of them 1."""
    noise = torch.randn(count, channels, 32, 32, generator=draw)
    smooth = F.avg_pool2d(F.pad(noise, (4, 4, 4, 4), mode="reflect"), 9, 1)
    labels: Tensor = smooth > smooth.flatten(2).quantile(0.7, 2)[..., None, None]
    images = labels + 0.5 * torch.randn(labels.shape, generator=draw)
    return images, (labels if channels > 1 else labels[:, 0]).long()


CASES = (
    Case("one logit", partial(blobs, channels=1), logits=1),
    Case("two logits", partial(blobs, channels=1)),
    Case("three labels per pixel", partial(blobs, channels=3), channels=3, logits=3),
)

if __name__ == "__main__":
    run(CASES, ["cross-entropy", "CE + Dice", "EdgeAwareLoss()"], str(__doc__), results("inversion.jsonl"), 32)
