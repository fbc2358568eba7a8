"""fastai: EdgeAwareLoss with what a Learner asks of its loss."""

from __future__ import annotations

from torch import Tensor

import edgeloss


class EdgeAwareLoss(edgeloss.EdgeAwareLoss):
    """EdgeAwareLoss for a ``Learner``, whose predictions are then probabilities and labels.

    The options are those of :class:`edgeloss.EdgeAwareLoss`.

    Source: fastai 2.8, ``Learner.get_preds`` and ``fastai.losses.BaseLoss``.

    Example:
        >>> import torch
        >>> loss_func = EdgeAwareLoss()
        >>> loss_func.decodes(loss_func.activation(torch.tensor([[[[0.0]], [[2.0]]]])))
        tensor([[[1]]])
    """

    def activation(self, logits: Tensor) -> Tensor:
        """Return probabilities of the shape of the logits."""
        return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)

    def decodes(self, probabilities: Tensor) -> Tensor:
        """Return the labels [B, *S] of probabilities."""
        return (probabilities[:, 0] > 0.5).long() if probabilities.shape[1] == 1 else probabilities.argmax(1)
