"""CPG: match the Sobel responses of the probabilities to those of the labels."""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.common import one_hot, triples, weighted_mean
from edgeloss._reference.neighborhoods import within_reach


def cpg(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    """Compute the mean squared difference of the Sobel responses.

    The mean is over the entries, pixel, class and direction, where the response of the one-hot labels is not 0. Borders
    are replicated; entries with an ignored pixel in the window do not count.

    Source: "CPG", arXiv 2404.06704.
    """
    labels = one_hot(target, logits.shape[1], ignore_index).to(logits.dtype)
    wanted = sobel(labels)
    clean = ~within_reach(target == ignore_index, (1, 1))[:, None, None]
    return weighted_mean((sobel(logits.softmax(1)) - wanted).square(), (wanted != 0) & clean)


def sobel(x: Tensor) -> Tensor:
    """Compute responses to the right and down [B, C, 2, H, W] of maps [B, C, H, W].

    The kernel [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]] / 2 and its transpose, as a difference along one axis and a sum
    along the other: many times as fast as a convolution on the CPU.
    """

    def response(along: int, across: int) -> Tensor:
        first, _, last = triples(x, along)
        before, here, after = triples(last - first, across)
        return (before + 2 * here + after) / 2

    return torch.stack([response(-1, -2), response(-2, -1)], 2)
