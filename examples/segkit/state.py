"""All that training changes: what a checkpoint stores and a resumed run starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from segkit.checkpoint import load_weights


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

        Raises:
            CheckpointError: if the weights belong to another network.
        """
        load_weights(self.network, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:  # a run that begins to average begins with the weights it has
            load_weights(self.ema.module, state["ema"] or state["model"])
            self.ema.n_averaged.fill_(state["step"])
        for name in ("epoch", "batch", "sums", "images", "history", "best"):
            setattr(self, name, state[name])
