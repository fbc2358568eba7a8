"""Hugging Face transformers: a Trainer whose loss is EdgeAwareLoss."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from transformers import Trainer

from edgeloss import EdgeAwareLoss
from edgeloss.functional import normalizers

_OF_LABELS = inspect.signature(normalizers).parameters  # the options that they depend on


class EdgeAwareTrainer(Trainer):  # type: ignore[misc]
    """Train a segmentation model with EdgeAwareLoss instead of its own loss.

    The gradient of a step is that of the whole step: with ``gradient_accumulation_steps``, the denominators are those
    of all its batches, which the Trainer reads before it begins. On several processes pass
    ``EdgeAwareLoss(sync_normalizer=True)``.

    Args:
        *args: those of ``transformers.Trainer``. The model has ``config.num_labels`` classes.
        criterion: the loss. Models such as SegFormer return logits of a quarter of the size: ``upsample=True``.
        **kwargs: those of ``transformers.Trainer``. The data set gives the labels [*S] as ``labels``.

    Source: transformers 5.23, ``Trainer.get_batch_samples`` and ``Trainer.compute_loss``.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, criterion: EdgeAwareLoss, **kwargs: Any) -> None:  # noqa: ANN401
        """Store the loss on the device of the model."""
        super().__init__(*args, **kwargs)
        self.criterion = criterion.to(self.args.device)
        self._normalizer: tuple[Tensor, Tensor] | None = None

    def get_batch_samples(self, *args: Any) -> Any:  # noqa: ANN401
        """Read the batches of a step, and compute the denominators of their labels."""
        batches, count = super().get_batch_samples(*args)
        options = {name: value for name, value in self.criterion.options().items() if name in _OF_LABELS}
        classes = self.model.config.num_labels
        parts = [normalizers(batch["labels"].to(self.args.device), classes, **options) for batch in batches]
        self._normalizer = None
        if parts:
            w, n = zip(*parts, strict=True)
            self._normalizer = sum(w), sum(n)
        return batches, count

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:  # noqa: ANN401
        """Return the loss of a batch, and the output if asked for."""
        output = model(**{name: values for name, values in inputs.items() if name != "labels"})
        normalizer = self._normalizer if model.training else None
        loss = self.criterion(output.logits, inputs["labels"], normalizer=normalizer)
        return (loss, output) if return_outputs else loss
