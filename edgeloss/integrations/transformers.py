"""Hugging Face transformers: a Trainer whose loss is EdgeAwareLoss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from edgeloss import EdgeAwareLoss

STATE = "criterion.pt"  # in the folder of a checkpoint


class EdgeAwareTrainer(Trainer):  # type: ignore[misc]
    """Train a segmentation model with EdgeAwareLoss instead of its own loss.

    The gradient of a step is that of the whole step: with ``gradient_accumulation_steps``, the denominators are those
    of all its batches, which the Trainer reads before it begins. On several processes pass
    ``EdgeAwareLoss(sync_normalizer=True)``. Checkpoints hold the state of the loss.

    Args:
        *args: those of ``transformers.Trainer``.
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
        self.add_callback(_StoreCriterion(self.criterion))

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:  # noqa: ANN401
        """Train, from a checkpoint with the state of the loss in it."""
        folder = get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        if folder:
            self.criterion.load_state_dict(torch.load(Path(folder, STATE), weights_only=True))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def get_batch_samples(self, *args: Any) -> Any:  # noqa: ANN401
        """Read the batches of a step, and begin the step with their labels."""
        batches, count = super().get_batch_samples(*args)
        labels = [batch["labels"].to(self.args.device) for batch in batches]
        self.criterion.train()  # an evaluation has called eval()
        self._normalizer = self.criterion.step_normalizer(labels) if labels else None
        return batches, count

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:  # noqa: ANN401
        """Return the loss of a batch, and the output if asked for."""
        self.criterion.train(model.training)
        output = model(**{name: values for name, values in inputs.items() if name != "labels"})
        normalizer = self._normalizer if model.training else None
        loss = self.criterion(output.logits, inputs["labels"], normalizer=normalizer)
        return (loss, output) if return_outputs else loss


class _StoreCriterion(TrainerCallback):  # type: ignore[misc]
    def __init__(self, criterion: nn.Module) -> None:
        self._criterion = criterion

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        if state.is_world_process_zero:
            torch.save(self._criterion.state_dict(), Path(args.output_dir, f"checkpoint-{state.global_step}", STATE))
