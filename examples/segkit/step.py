"""One optimizer step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from edgeloss import EdgeAwareLoss
from segkit.distributed import sum_over_ranks, world_size
from segkit.guard import NanGuard
from segkit.loader import MicroBatch
from segkit.placement import Placement
from segkit.scores import gradient_shares
from segkit.state import TrainingState


class _Part(NamedTuple):
    """What the forward pass of a micro-batch returned: the logits, and 0-d tensors to add up over micro-batches."""

    logits: Tensor
    figures: dict[str, Tensor]


@dataclass
class TrainStep:
    """Take optimizer steps, each with the gradient of a whole batch: of all micro-batches of all processes.

    Attributes:
        state: what a step changes.
        model: the network of `state`, or the DistributedDataParallel around it.
        criterion: the loss, with ``sync_normalizer=True`` where there are several processes.
        placement: where and how to compute.
        guard: checks loss and gradient before they reach a weight. With a gradient scaler it checks the loss only: for
            an infinite gradient the step is skipped, and the scale of the next one is smaller.
        clip: largest norm of the gradient; None leaves it as it is.
    """

    state: TrainingState
    model: nn.Module
    criterion: EdgeAwareLoss
    placement: Placement
    guard: NanGuard
    clip: float | None = None

    def __call__(
        self, micro_batches: Sequence[MicroBatch], *, number: int, shares: bool = False
    ) -> dict[str, float] | None:
        """Take a step.

        Args:
            micro_batches: the part of the batch that belongs to this process.
            number: number of the batch, from 1 over all epochs, skipped ones included; for the guard.
            shares: measure each term's share in the gradient, on the last micro-batch of every process.

        Returns:
            The loss and its terms, of the whole batch; None if the guard skipped the step.

        Raises:
            NonFiniteLossError: on every process, when `guard` raises it.
        """
        state = self.state
        self.model.train()
        state.optimizer.zero_grad()
        targets = [batch.labels.to(self.placement.device, non_blocking=True) for batch in micro_batches]
        parts = self._backward(micro_batches, targets)
        state.scaler.unscale_(state.optimizer)
        norm = nn.utils.clip_grad_norm_(state.network.parameters(), math.inf if self.clip is None else self.clip)

        names = list(parts[0].figures)
        table = torch.stack([torch.stack(list(part.figures.values())) for part in parts])  # [micro-batches, figures]
        *losses, gradient_norm = torch.stack([*table[:, names.index("loss")], norm]).tolist()
        own = dict(zip(names, table.sum(0).tolist(), strict=True))
        # The micro-batch to blame: the first whose loss is not finite, or any, if it is the network's own gradient.
        worst = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), 0)
        image_names, images, _ = micro_batches[worst]
        checked_norm = 0.0 if state.scaler.is_enabled() else gradient_norm
        figures = _of_all_ranks(own)
        if not self.guard.check(
            number, image_names, images, parts[worst].logits, targets[worst], own["loss"], checked_norm
        ):
            return None
        if shares:
            measured = gradient_shares(self.criterion, parts[-1].logits, targets[-1])
            figures |= {f"gradient_share/{name}": value for name, value in measured.items()}
        self._update(gradient_norm)
        return figures

    def _backward(self, micro_batches: Sequence[MicroBatch], targets: Sequence[Tensor]) -> list[_Part]:
        """Add up the gradients of all micro-batches, and those of all processes."""
        # Denominators of the whole batch, so that the losses of the parts add up to its loss.
        normalizer = self.criterion.step_normalizer(targets) if len(targets) > 1 else None
        parts = []
        for i, (batch, target) in enumerate(zip(micro_batches, targets, strict=True), start=1):
            # The processes exchange gradients once per step, when the last micro-batch has added its own.
            exchanges = i == len(targets) or not isinstance(self.model, DistributedDataParallel)
            with nullcontext() if exchanges else self.model.no_sync():
                logits = self.placement.run(self.model, batch.images)
                loss, terms = self.criterion(logits, target, normalizer=normalizer, return_terms=True)
                self.state.scaler.scale(loss).backward()
            valid = (target != self.criterion.ignore_index).sum()
            edge_pixels = terms.pop("edge_fraction") * valid
            if not self.criterion.region_weight:
                del terms["region"]
            figures = {"loss": loss.detach(), **terms, "edge_pixels": edge_pixels, "valid_pixels": valid}
            parts.append(_Part(logits.detach(), figures))
        return parts

    def _update(self, gradient_norm: float) -> None:
        """Change the weights, unless the gradient overflowed."""
        state = self.state
        if math.isfinite(gradient_norm):
            state.scaler.step(state.optimizer)
            state.scheduler.step()
            if state.ema is not None:
                state.ema.update_parameters(state.network)
        state.scaler.update()


def _of_all_ranks(own: dict[str, float]) -> dict[str, float]:
    """Return the figures of the whole batch from those of this process."""
    whole = dict(zip(own, sum_over_ranks(list(own.values())), strict=True))
    edge_pixels, valid_pixels = whole.pop("edge_pixels"), whole.pop("valid_pixels")
    # DDP averages over processes, so the loss of each is its part of the whole batch's times their number.
    figures = {name: value / world_size() for name, value in whole.items()}
    return figures | {"edge_fraction": edge_pixels / max(valid_pixels, 1)}
