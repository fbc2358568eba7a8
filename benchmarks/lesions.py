#!/usr/bin/env python3
"""Which loss finds objects of a few pixels?

Images of 64 × 64 pixels with noise and at most two bright disks, four convolutions, 300 steps of 8 images. Sizes and
rates were chosen before any result. A training has failed where Dice of all pixels of 64 new images is below 0.3.
"""

from __future__ import annotations

from functools import partial

import torch

from tiny_networks import LOSSES, Batch, Case, grid, results, run

SIZE = 64


def lesions(count: int, draw: torch.Generator, *, largest: float, rate: float) -> Batch:
    """Return images [B, 1, H, W] and labels [B, H, W], with disks of a radius from 0.9 on, each there at a rate."""
    place = torch.randint(4, SIZE - 4, (count, 2, 2), generator=draw)
    radius = 0.9 + (largest - 0.9) * torch.rand(count, 2, generator=draw)
    there = torch.rand(count, 2, generator=draw) < rate
    squares = (grid(SIZE) - place[..., None, None]).square().sum(2)
    labels = ((squares <= radius[..., None, None] ** 2) & there[..., None, None]).any(1)
    return (1.2 * labels + 0.5 * torch.randn(labels.shape, generator=draw))[:, None], labels.long()


CASES = (
    Case("1 to 21 pixels, two logits", partial(lesions, largest=2.6, rate=0.6), layers=3),
    Case("1 to 21 pixels, one logit", partial(lesions, largest=2.6, rate=0.6), layers=3, logits=1),
    Case("1 to 9 pixels", partial(lesions, largest=1.7, rate=0.6), layers=3),
    Case("1 to 9 pixels, one logit", partial(lesions, largest=1.7, rate=0.6), layers=3, logits=1),
    Case("1 to 21 pixels, rarer", partial(lesions, largest=2.6, rate=0.2), layers=3),
    Case("1 to 21 pixels, rarer, one logit", partial(lesions, largest=2.6, rate=0.2), layers=3, logits=1),
    Case("1 to 9 pixels, rarer, one logit", partial(lesions, largest=1.7, rate=0.2), layers=3, logits=1),
)

if __name__ == "__main__":
    run(CASES, [*LOSSES], str(__doc__), results("lesions.jsonl"), 64)
