"""All that training changes: what a checkpoint stores and a resumed run starts from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from segkit.checkpoint import CheckpointError, load_weights


@dataclass
class TrainingState:
    """Network, optimizer, schedules and counters of a run.

    Attributes:
        network: images to logits, without any wrapper.
        optimizer: optimizer of its parameters.
        scheduler: scheduler of the learning rate, stepped after each step of the optimizer.
        scaler: scaler of the loss, for float16; a disabled one changes nothing.
        ema: exponential moving average of the weights; None for none.
        epoch: complete epochs.
        batch: batches done in the current epoch.
        sums: sums over these batches: of figures times images, of images, of seconds and of seconds spent waiting.
        images: for each figure, the number of images in these batches that it was measured on.
        history: the figures of each complete epoch.
        best: the highest mean IoU so far.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    scaler: torch.amp.GradScaler
    ema: AveragedModel | None = None
    epoch: int = 0
    batch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    history: list[Mapping[str, float | None]] = field(default_factory=list)
    best: float = -1.0

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return self.scheduler.last_epoch

    @property
    def averaged(self) -> nn.Module:
        """The network to validate and to use, with averaged weights if there are any."""
        return self.network if self.ema is None else self.ema.module

    def end_batch(self, images: int, figures: Mapping[str, float], *, seconds: float, waiting: float) -> None:
        """Count a batch that is done.

        Args:
            images: number of images.
            figures: what was measured on them.
            seconds: time that the batch took.
            waiting: the part of it spent waiting for images.
        """
        self.batch += 1
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * images
            self.images[name] = self.images.get(name, 0) + images
        for name, value in {"images": images, "seconds": seconds, "waiting": waiting}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """Return the figures of the current epoch, averaged over its images."""
        return {name: self.sums[name] / images for name, images in self.images.items()}

    def end_epoch(self, row: Mapping[str, float | None]) -> None:
        """Count an epoch that is done, with its figures."""
        self.history.append(row)
        self.epoch, self.batch, self.sums, self.images = self.epoch + 1, 0, {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values."""
        return {
            "model": self.network.state_dict(),
            "ema": None if self.ema is None else self.ema.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "sums": self.sums,
            "images": self.images,
            "history": self.history,
            "metrics": self.history[-1] if self.history else None,
            "best": self.best,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: a state that passes `check_state`.

        Raises:
            CheckpointError: if the weights belong to another network, or the optimizer's state does not fit them.
        """
        load_weights(self.network, state["model"])
        try:
            self.optimizer.load_state_dict(state["optimizer"])
            self.scheduler.load_state_dict(state["scheduler"])
            if state["scaler"]:
                self.scaler.load_state_dict(state["scaler"])
        except Exception as error:  # of any kind: torch does not check what it loads
            raise CheckpointError(f"optimizer: expected its state, but got another ({error!r})") from error
        groups = self.optimizer.param_groups
        if not _are_numbers(group.get(name) for group in groups for name in ("lr", "initial_lr", "weight_decay")):
            raise CheckpointError("optimizer: expected numbers as options, but got others")
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                if name != "step" and getattr(value, "shape", None) != parameter.shape:
                    raise CheckpointError(f"optimizer: expected {name} of the shape of its weight, but got another")
        if self.step != state["step"]:
            raise CheckpointError(f"scheduler: expected that of step {state['step']}, but got that of step {self.step}")
        if self.ema is not None:  # a run that begins to average begins with the weights it has
            load_weights(self.ema.module, state["ema"] or state["model"])
            self.ema.n_averaged.fill_(state["step"])
        for name in ("epoch", "batch", "sums", "images", "history", "best"):
            setattr(self, name, state[name])


_TYPES = {
    **dict.fromkeys(("epoch", "batch", "step"), int),
    **dict.fromkeys(("model", "optimizer", "scheduler", "scaler", "sums", "images", "config"), dict),
    **dict.fromkeys(("classes", "history"), list),
    "ema": dict | None,
    "best": int | float,
}


def check_state(state: Mapping[str, Any]) -> None:
    """Check the plain values of a checkpoint.

    Raises:
        CheckpointError: if one is missing, or can't be right.
    """
    for name, kind in _TYPES.items():
        if name not in state:
            raise CheckpointError(f"expected a run to resume, but got a file without {name!r}")
        if not isinstance(state[name], kind) or isinstance(state[name], bool):
            expected = getattr(kind, "__name__", kind)
            raise CheckpointError(f"{name}: expected a value of type {expected}, but got {state[name]!r:.60}")
    for name in ("epoch", "batch", "step"):
        if state[name] < 0:
            raise CheckpointError(f"{name}: expected a number >= 0, but got {state[name]}")
    history, sums, images = state["history"], state["sums"], state["images"]
    rows = all(isinstance(row, dict) and _are_numbers(row.values(), or_none=True) for row in history)
    if not rows or [row.get("epoch") for row in history] != [*range(1, len(history) + 1)]:
        raise CheckpointError("history: expected the figures of each epoch, but got others")
    if len(history) != state["epoch"]:
        raise CheckpointError(f"epoch: expected {len(history)}, the length of the history, but got {state['epoch']}")
    if not _are_numbers([*sums.values(), *images.values()]) or images.keys() - sums.keys() or 0 in images.values():
        raise CheckpointError("sums, images: expected numbers for the same figures, but got others")
    if state["batch"] and not (sums.get("seconds", 0) > 0 and {"images", "waiting"} <= sums.keys()):
        raise CheckpointError(f"sums: expected those of {state['batch']} batches, but got none")


def _are_numbers(values: Iterable[object], *, or_none: bool = False) -> bool:
    return all((isinstance(x, int | float) and math.isfinite(x)) or (or_none and x is None) for x in values)
