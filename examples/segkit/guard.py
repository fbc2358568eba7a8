"""A guard against nan: saves the batch that produced it, and a diagnosis."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Literal

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn

from edgeloss import diagnose
from edgeloss.io import atomic_write
from segkit.checkpoint import save_checkpoint
from segkit.module import SegmentationModule


class NanGuard(Callback):
    """Check loss and gradient of every step before they reach the weights.

    For a step whose loss or gradient norm is not finite, it writes to ``nan/``: ``step_N.pt``, the batch with its
    logits; ``step_N.txt``, the diagnosis of `edgeloss.diagnose`; and ``step_N.png``, the gradient of the loss per
    pixel. All processes decide the same; those whose batch is the cause save it, as ``step_N_rank_R``, or all of them
    if no batch is. In float16, whose scaler skips infinite gradients itself, only the loss is checked.

    Args:
        action: "stop" raises at the first such step; "skip" counts it and continues without it.
        limit: Maximum number of steps to save.
        in_a_row: Stop after this many skipped steps in a row: then the weights are the cause.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(self, action: Literal["stop", "skip"] = "stop", limit: int = 4, in_a_row: int = 10) -> None:
        """Store the options; the folder is created with the first file."""
        if limit < 0 or in_a_row < 1:
            raise ValueError(f"limit, in_a_row: expected limit >= 0 and in_a_row >= 1, but got {limit} and {in_a_row}")
        self.action, self.limit, self.in_a_row = action, limit, in_a_row
        self._saved = 0
        self._row = 0  # steps skipped since the last good one

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: SegmentationModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Check a step; a step to skip loses its gradients, so that the optimizer changes nothing.

        Raises:
            FloatingPointError: With ``action="stop"``, or for too many skipped steps in a row.
        """
        assert pl_module.last_step is not None
        batch, _, loss = pl_module.last_step
        norm = nn.utils.get_total_norm([p.grad for p in pl_module.parameters() if p.grad is not None])
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        values = {"loss": loss.item(), "gradient": 0.0 if is_scaled else norm.item()}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        is_bad = trainer.strategy.reduce_boolean_decision(bool(bad), all=False)
        self.log("skipped", float(is_bad), on_step=False, on_epoch=True, reduce_fx="sum")  # for the page of the run
        if not is_bad:
            self._row = 0
            return
        step = trainer.global_step + 1
        cause = f"the {bad[0]} is {values[bad[0]]}" if bad else "loss or gradient of another rank is not finite"
        message = f"epoch {trainer.current_epoch + 1}: {cause} at step {step} on {', '.join(batch.names)}"
        if self._saved < self.limit:
            self._saved += 1
            path = self._save(trainer, pl_module, values)
            if path is not None:
                message += f"; the batch is in {path}, the diagnosis in {path.stem}.txt"
        if self.action == "stop":
            raise FloatingPointError(message)
        self._row += 1
        if self._row >= self.in_a_row:
            raise FloatingPointError(f"{self._row} steps in a row, so the weights are the cause: {message}")
        optimizer.zero_grad()
        if trainer.is_global_zero:
            print(f"skipped a step: {message}", flush=True)

    def _save(self, trainer: Trainer, module: SegmentationModule, values: dict[str, float]) -> Path | None:
        """Write the batch and its diagnosis if it is the cause; return its file."""
        batch, logits, _ = module.last_step
        criterion = copy.copy(module.criterion)
        criterion.sync_normalizer = False  # only some ranks diagnose: a collective would wait forever
        diagnosis = diagnose(criterion, logits, batch.labels)
        is_fine = diagnosis.ok and math.isfinite(values["loss"])
        if trainer.strategy.reduce_boolean_decision(not is_fine, all=False) and is_fine:
            return None
        step = trainer.global_step + 1
        rank = f"_rank_{trainer.global_rank}" * (trainer.world_size > 1)
        path = Path(trainer.default_root_dir) / "nan" / f"step_{step}{rank}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        details = {"step": step, "names": batch.names, "loss": values["loss"], "gradient_norm": values["gradient"]}
        tensors = {"images": batch.images, "logits": logits, "target": batch.labels}
        # Copies, since of a view all of its storage would be written.
        save_checkpoint(path, details | {key: value.to("cpu", copy=True) for key, value in tensors.items()})
        with atomic_write(path.with_suffix(".txt")) as file:
            file.write(f"{diagnosis}\n{_FROM_THE_NETWORK * is_fine}".encode())
        if diagnosis.gradient is not None:
            with atomic_write(path.with_suffix(".png")) as file:
                diagnosis.figure().savefig(file, format="png")
        return path


_FROM_THE_NETWORK = (
    "The loss of this batch and its gradient at the logits are finite, so the nan or inf comes from the network's own"
    " backward pass: look for operations without a finite derivative, such as sqrt or norm at 0, or a masked division"
    " by 0.\n"
)
