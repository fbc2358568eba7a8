"""A guard against nan: keeps the batch that broke a training, and finds out why it did."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from edgeloss import EdgeAwareLoss, diagnose
from edgeloss.io import atomic_write
from segkit.distributed import rank, sum_over_ranks, world_size

Action = Literal["stop", "skip"]


class NonFiniteLossError(RuntimeError):
    """The loss, or its gradient, became nan or infinite."""


class NanGuard:
    """Looks at the loss and the gradient of every step before they reach the weights.

    Of a step whose loss or gradient norm is not finite it leaves in ``nan/``: ``step_N.pt``, the batch with its logits;
    ``step_N.txt`` and ``step_N.json``, what `edgeloss.diagnose` says of it; and ``step_N.png``, the loss's gradient by
    pixel. Under ``torch.distributed`` all ranks decide alike, so that their weights stay equal; those whose own batch
    is to blame save it, as ``step_N_rank_R``, and all of them where none is.

    Args:
        folder: the run's folder.
        criterion: the loss, looked into as it is when a step fails.
        action: ``"stop"`` raises at the first such step; ``"skip"`` counts it and goes on without it.
        limit: how many steps are saved at most.
        in_a_row: after so many skipped steps with no good one in between, raise all the same: it is the weights, then.

    Attributes:
        skipped: steps skipped so far.
        message: about the last of them, in one line.

    Raises:
        ValueError: for an action or a number that does not fit.
    """

    def __init__(
        self, folder: Path, criterion: EdgeAwareLoss, *, action: Action = "stop", limit: int = 4, in_a_row: int = 10
    ) -> None:
        """Hold the arguments; the folder is made when there is something to put into it."""
        if action not in get_args(Action):
            raise ValueError(f"expected action to be stop or skip but got {action!r}")
        if limit < 0 or in_a_row < 1:
            raise ValueError(f"expected limit >= 0 and in_a_row >= 1 but got {limit} and {in_a_row}")
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
        """Whether to use a step. A collective under ``torch.distributed``: every rank calls it for every step.

        Args:
            step: its number, for messages and file names.
            names: of the images.
            images: [B, 3, H, W].
            logits: [B, C, *S], as the loss got them.
            target: [B, *S].
            loss: of this rank's batch.
            gradient_norm: of the parameters, averaged over ranks, unscaled and before clipping. Where a gradient scaler
                skips steps of infinite gradients by itself, any finite number: those are its way to find the scale.

        Returns:
            True to go on; False to leave this step out, with ``action="skip"``.

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

        what = f"the {bad[0]} is {values[bad[0]]}" if bad else "loss or gradient of another rank is not finite"
        self.message = f"{what} at step {step} on the images {', '.join(names)}"
        if self._saved < self.limit:
            self._saved += 1
            if (path := self._save(step, names, images, logits, target, values)) is not None:
                self.message += f"; the batch is in {path}, what is wrong with it in {path.stem}.txt"
        if self.action == "stop":
            raise NonFiniteLossError(self.message)
        self.skipped += 1
        self._row += 1
        if self._row >= self.in_a_row:
            raise NonFiniteLossError(f"{self._row} steps in a row, so it is the weights: {self.message}")
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
        """Write the batch and its diagnosis, if it is to blame; return the batch's file."""
        criterion = copy.copy(self.criterion)
        criterion.sync_normalizer = False  # a rank that diagnoses would be waited for, or wait, in vain
        report = diagnose(criterion, logits, target)
        is_fine = report.ok and math.isfinite(values["loss"])
        if any(sum_over_ranks([not is_fine])) and is_fine:
            return None
        told = str(report)
        if is_fine:
            told += f"\n{_FROM_THE_NETWORK}"
        about = {
            "step": step,
            "names": list(names),
            "loss": _for_json(values["loss"]),
            "gradient_norm": _for_json(values["gradient"]),
            "from_the_network": is_fine,
            "diagnosis": report.to_dict(),
        }
        tensors = {"images": images, "logits": logits, "target": target}

        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / (f"step_{step}" + f"_rank_{rank()}" * (world_size() > 1) + ".pt")
        with atomic_write(path) as file:  # copies, since of a view all that it looks into would be written
            torch.save(about | {key: value.detach().to("cpu", copy=True) for key, value in tensors.items()}, file)
        with atomic_write(path.with_suffix(".txt")) as file:
            file.write(f"{told}\n".encode())
        with atomic_write(path.with_suffix(".json")) as file:
            file.write(json.dumps(about, indent=1, allow_nan=False).encode())
        if report.gradient is not None:
            with atomic_write(path.with_suffix(".png")) as file:
                report.figure().savefig(file, format="png")
        return path


_FROM_THE_NETWORK = (
    "The loss of this batch and its gradient at the logits are finite, so it is the network's own backward pass that"
    " is not: look for operations without a finite derivative there, as sqrt or norm at 0 or a masked division by 0."
)


def _for_json(value: float) -> float | str:
    """Strict JSON has no nan or inf, but words."""
    return value if math.isfinite(value) else str(value)
