"""A guard against nan: saves the batch that produced it, and a diagnosis."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from edgeloss import EdgeAwareLoss, diagnose
from edgeloss.io import atomic_write
from segkit.checkpoint import save_checkpoint
from segkit.distributed import rank, sum_over_ranks, world_size

Action = Literal["stop", "skip"]


class NonFiniteLossError(RuntimeError):
    """The loss, or its gradient, became nan or infinite."""


class NanGuard:
    """Check loss and gradient of every step before they reach the weights.

    For a step whose loss or gradient norm is not finite, it writes to ``nan/``: ``step_N.pt``, the batch with its
    logits; ``step_N.txt`` and ``step_N.json``, the diagnosis of `edgeloss.diagnose`; and ``step_N.png``, the gradient
    of the loss per pixel. Under ``torch.distributed`` all ranks decide the same, so that their weights stay equal; the
    ranks whose batch is the cause save it, as ``step_N_rank_R``, or all ranks if no batch is.

    Args:
        folder: the run's folder.
        criterion: the loss, diagnosed as it is when a step fails.
        action: ``"stop"`` raises at the first such step; ``"skip"`` counts it and continues without it.
        limit: maximum number of steps to save.
        in_a_row: raise after this many skipped steps without a good one in between: then the weights are the cause.

    Attributes:
        skipped: steps skipped so far.
        message: one line about the last of them.

    Raises:
        ValueError: for an unknown action or a number out of range.
    """

    def __init__(
        self, folder: Path, criterion: EdgeAwareLoss, *, action: Action = "stop", limit: int = 4, in_a_row: int = 10
    ) -> None:
        """Store the options; the folder is created with the first file."""
        if action not in get_args(Action):
            raise ValueError(f"action: expected stop or skip, but got {action!r}")
        if limit < 0 or in_a_row < 1:
            raise ValueError(f"limit, in_a_row: expected limit >= 0 and in_a_row >= 1, but got {limit} and {in_a_row}")
        self.folder = folder / "nan"
        self.criterion = criterion
        self.action = action
        self.limit = limit
        self.in_a_row = in_a_row
        self.skipped = 0
        self.message = ""
        self._saved = 0
        self._row = 0  # steps skipped since the last good one

    def check(
        self,
        step: int,
        names: Sequence[str],
        images: Tensor,
        logits: Tensor,
        target: Tensor,
        loss: Tensor | float,
        gradient_norm: Tensor | float,
    ) -> bool:
        """Return whether to use a step; a collective that every rank calls.

        Args:
            step: number of the step, for messages and file names.
            names: names of the images.
            images: [B, 3, H, W].
            logits: [B, C, *S], as passed to the loss.
            target: [B, *S].
            loss: loss of this rank's batch.
            gradient_norm: norm of the parameters' gradient, averaged over ranks, unscaled and before clipping. With a
                gradient scaler, which skips infinite gradients itself, any finite number.

        Returns:
            True to use the step; False to skip it, with ``action="skip"``.

        Raises:
            NonFiniteLossError: with ``action="stop"``, or for too many skipped steps in a row.
        """
        values = {
            name: float(value.item() if isinstance(value, Tensor) else value)
            for name, value in {"loss": loss, "gradient": gradient_norm}.items()
        }
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if not any(sum_over_ranks([len(bad)])):
            self._row = 0
            return True

        cause = f"the {bad[0]} is {values[bad[0]]}" if bad else "loss or gradient of another rank is not finite"
        self.message = f"{cause} at step {step} on the images {', '.join(names)}"
        if self._saved < self.limit:
            self._saved += 1
            if (path := self._save(step, names, images, logits, target, values)) is not None:
                self.message += f"; the batch is in {path}, the diagnosis in {path.stem}.txt"
        if self.action == "stop":
            raise NonFiniteLossError(self.message)
        self.skipped += 1
        self._row += 1
        if self._row >= self.in_a_row:
            raise NonFiniteLossError(f"{self._row} steps in a row, so the weights are the cause: {self.message}")
        return False

    def _save(
        self,
        step: int,
        names: Sequence[str],
        images: Tensor,
        logits: Tensor,
        target: Tensor,
        values: dict[str, float],
    ) -> Path | None:
        """Write the batch and its diagnosis if it is the cause; return its file."""
        criterion = copy.copy(self.criterion)
        criterion.sync_normalizer = False  # only some ranks diagnose: a collective would wait forever
        diagnosis = diagnose(criterion, logits, target)
        is_fine = diagnosis.ok and math.isfinite(values["loss"])
        if any(sum_over_ranks([not is_fine])) and is_fine:
            return None
        text = str(diagnosis)
        if is_fine:
            text += f"\n{_FROM_THE_NETWORK}"
        details = {
            "step": step,
            "names": list(names),
            "loss": _for_json(values["loss"]),
            "gradient_norm": _for_json(values["gradient"]),
            "from_the_network": is_fine,
            "diagnosis": diagnosis.to_dict(),
        }
        tensors = {"images": images, "logits": logits, "target": target}

        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / (f"step_{step}" + f"_rank_{rank()}" * (world_size() > 1) + ".pt")
        # Copies, since of a view all of its storage would be written.
        save_checkpoint(path, details | {key: value.detach().to("cpu", copy=True) for key, value in tensors.items()})
        with atomic_write(path.with_suffix(".txt")) as file:
            file.write(f"{text}\n".encode())
        with atomic_write(path.with_suffix(".json")) as file:
            file.write(json.dumps(details, indent=1, allow_nan=False).encode())
        if diagnosis.gradient is not None:
            with atomic_write(path.with_suffix(".png")) as file:
                diagnosis.figure().savefig(file, format="png")
        return path


_FROM_THE_NETWORK = (
    "The loss of this batch and its gradient at the logits are finite, so the nan or inf comes from the network's own"
    " backward pass: look for operations without a finite derivative, such as sqrt or norm at 0, or a masked division"
    " by 0."
)


def _for_json(value: float) -> float | str:
    """Return nan and inf as words, which strict JSON can store."""
    return value if math.isfinite(value) else str(value)
