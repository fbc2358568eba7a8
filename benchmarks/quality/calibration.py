"""Calibration: how far the confidence of a prediction is from how often it is right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss.neighborhoods import find_edges

BINS = 15  # of equal width


class Calibration:
    """Accumulate the expected calibration error (ECE) and the negative log-likelihood (NLL) over batches.

    Both are over all valid pixels, and over those that have another label next to them. The ECE is
    Σ_b |number right - sum of confidences| / number of pixels, over bins b of the confidence max_c p(c).

    Args:
        void: the ignored label.
    """

    def __init__(self, void: int) -> None:
        """Start with no pixels."""
        self.void = void
        self.excess = torch.zeros(2, BINS, dtype=torch.float64)  # of all pixels and of edges: right - confidence
        self.nll = torch.zeros(2, dtype=torch.float64)
        self.pixels = torch.zeros(2, dtype=torch.float64)

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add logits [B, C, *S] and their labels [B, *S]."""
        valid = target != self.void
        nll = F.cross_entropy(logits, target, ignore_index=self.void, reduction="none")
        confidence, predicted = logits.softmax(1).max(1)
        excess = (predicted == target).double() - confidence
        index = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        for row, mask in enumerate((valid, find_edges(target, valid, (1,) * (target.dim() - 1)))):
            self.excess[row] += torch.bincount(index[mask], excess[mask], BINS).cpu()
            self.nll[row] += nll[mask].double().sum().cpu()
            self.pixels[row] += mask.sum().cpu()

    def compute(self) -> dict[str, float]:
        """Return ``ece``, ``ece_edge``, ``nll`` and ``nll_edge``; nan where there is no pixel."""
        ece, ece_edge = (self.excess.abs().sum(1) / self.pixels).tolist()
        nll, nll_edge = (self.nll / self.pixels).tolist()
        return {"ece": ece, "ece_edge": ece_edge, "nll": nll, "nll_edge": nll_edge}
