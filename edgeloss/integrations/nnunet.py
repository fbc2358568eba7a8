"""nnU-Net: a trainer whose loss is Dice and EdgeAwareLoss."""

from __future__ import annotations

from typing import Any

import torch
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from edgeloss.adapters import Adapted


class nnUNetTrainerEdgeAware(nnUNetTrainer):  # type: ignore[misc]  # noqa: N801
    """Train a network of nnU-Net with its Dice loss and EdgeAwareLoss in place of cross-entropy.

    With deep supervision each resolution has its loss, with nnU-Net's weights.

    nnU-Net finds trainers by their names in the folders of ``nnUNet_extTrainer``. For other options derive a class with
    another name and override :meth:`edge_aware_loss`.

    Source: nnU-Net 2.8, ``nnUNetTrainer._build_loss`` and ``find_objects.recursive_find_trainer_class_by_name``.
    """

    def edge_aware_loss(self, **options: Any) -> EdgeAwareLoss:  # noqa: ANN401
        """Return the loss of one output.

        Args:
            **options: what the plans determine; to add more, pass them on to :class:`edgeloss.EdgeAwareLoss`.
        """
        return EdgeAwareLoss(sync_normalizer=True, **options)

    def _build_loss(self) -> nn.Module:
        loss = super()._build_loss()
        is_deep = isinstance(loss, DeepSupervisionWrapper)
        (loss.loss if is_deep else loss).weight_ce = 0  # what is left is Dice
        labels = self.label_manager
        options: dict[str, Any] = {"ignore_index": labels.ignore_label, "multilabel": labels.has_regions}
        edges = Adapted(self.edge_aware_loss(**options), weights=loss.weight_factors if is_deep else None)
        return _DiceAndEdges(loss, edges.to(self.device), labels.ignore_label if labels.has_regions else None)


class _DiceAndEdges(nn.Module):
    """The sum of both losses.

    Args:
        dice: of outputs and targets of nnU-Net.
        edges: of outputs and labels.
        masked_label: label of what the last channel of a target masks; None for targets without such a channel.
    """

    def __init__(self, dice: nn.Module, edges: Adapted, masked_label: int | None) -> None:
        super().__init__()
        self.dice = dice
        self.edges = edges
        self.masked_label = masked_label

    def forward(self, output: Tensor | list[Tensor], target: Tensor | list[Tensor]) -> Tensor:
        labels = [self._labels(y) for y in target] if isinstance(target, list) else self._labels(target)
        loss: Tensor = self.dice(output, target) + self.edges(output, labels)
        return loss

    def _labels(self, target: Tensor) -> Tensor:
        if self.masked_label is None:
            return target
        return torch.where(target[:, -1:].bool(), self.masked_label, target[:, :-1].long())
