"""Train a Learner of fastai with EdgeAwareLoss, and get probabilities from it.

python examples/frameworks/fastai_learner.py

The data are drawn at random, so that the example runs anywhere. It needs: pip install fastai
"""

from __future__ import annotations

import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn

from edgeloss.integrations.fastai import EdgeAwareLoss
from edgeloss.metrics import boundary_f1
from squares import squares


def main(epochs: int = 3) -> float:
    """Train, and return the boundary F1 of the validation images."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1))
    loaders = DataLoaders.from_dsets(squares(64), squares(16), bs=8, num_workers=0)
    learner = Learner(loaders, network, loss_func=EdgeAwareLoss(ignore_index=255), lr=1e-2)
    learner.fit(epochs)
    probabilities, labels, prediction = learner.get_preds(with_decoded=True)
    score = float(boundary_f1(prediction, labels, 2))
    print(f"boundary F1: {score:.3f}, mean probability of the most likely class: {probabilities.amax(1).mean():.3f}")
    return score


if __name__ == "__main__":
    main()
