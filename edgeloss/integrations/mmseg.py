"""mmsegmentation: EdgeAwareLoss in the registry, for configuration files."""

from __future__ import annotations

from typing import Any, cast

import torch
from mmseg.registry import MODELS
from torch import Tensor

import edgeloss


@MODELS.register_module()
class EdgeAwareLoss(edgeloss.EdgeAwareLoss):
    """EdgeAwareLoss as a ``loss_decode`` of mmsegmentation.

    ``ignore_index`` is that of the head.

    Args:
        loss_weight: factor of the loss.
        loss_name: name in the log; it begins with ``loss_``, or the loss is not trained on.
        weight: class weights of the cross-entropy, a list in a configuration.
        **options: those of :class:`edgeloss.EdgeAwareLoss`.

    Source: mmsegmentation 1.2.2, ``BaseDecodeHead.loss_by_feat`` and ``CrossEntropyLoss``.

    Example:
        >>> MODELS.build({"type": "EdgeAwareLoss", "loss_weight": 0.4}).loss_name
        'loss_edge_aware'
    """

    def __init__(
        self,
        loss_weight: float = 1.0,
        loss_name: str = "loss_edge_aware",
        weight: list[float] | Tensor | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        super().__init__(torch.tensor(weight) if isinstance(weight, list) else weight, **options)
        self.loss_weight = loss_weight
        self.loss_name = loss_name

    def forward(  # type: ignore[override]
        self,
        cls_score: Tensor,
        label: Tensor,
        weight: Tensor | None = None,
        avg_factor: float | None = None,
        reduction_override: edgeloss._checks.options.Reduction | None = None,
        ignore_index: int = 255,
    ) -> Tensor:
        """Compute the loss.

        Args:
            cls_score: logits [N, C, *S].
            label: class indices [N, *S].
            weight: of pixels [N, *S].
            avg_factor: divides the sum over pixels, in place of the denominators of the mean.
            reduction_override: in place of ``reduction``.
            ignore_index: label of pixels to ignore.
        """
        if avg_factor is not None and (reduction := reduction_override or self.reduction) != "mean":
            raise ValueError(f"avg_factor: expected reduction 'mean' with it, but got {reduction!r}; leave it out")
        configured, self.ignore_index = self.reduction, ignore_index
        self.reduction = "sum" if avg_factor is not None else reduction_override or configured
        try:
            loss = cast("Tensor", super().forward(cls_score, label, pixel_weight=weight))
        finally:
            self.reduction = configured
        return self.loss_weight * (loss if avg_factor is None else loss / avg_factor)
