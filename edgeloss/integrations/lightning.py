"""Lightning: a callback that logs the terms of the loss and panels of it."""

from __future__ import annotations

import inspect
from io import BytesIO
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss.viz import panel


class LogEdgeLoss(Callback):  # type: ignore[misc]
    """Log the terms of every EdgeAwareLoss of a LightningModule, and panels of its first images.

    The module itself needs no change. Values are those of the first batch of a step, in training, with the name of the
    attribute in front: ``criterion/other_side``, ``criterion/edge_weight`` and so on. All loggers get the values.
    TensorBoard gets the panels, and so do loggers with a method ``log_image`` as of Weights & Biases. A multilabel loss
    has a panel per class; volumes have none.

    Args:
        every_n_steps: distance between logged steps; ``log_every_n_steps`` of the Trainer if None.
        panel_every_n_steps: distance between steps with a panel, a multiple of the former; 0 for no panels.
        images: how many images of the batch a panel shows.

    Example:
        >>> trainer = Trainer(callbacks=[LogEdgeLoss(panel_every_n_steps=100)])  # doctest: +SKIP
    """

    def __init__(self, every_n_steps: int | None = None, panel_every_n_steps: int = 500, images: int = 2) -> None:
        """Store the options."""
        self.every_n_steps = every_n_steps
        self.panel_every_n_steps = panel_every_n_steps
        self.images = images
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._is_due = False
        self._last_step = -1

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Observe the calls of the losses."""
        for name, criterion in pl_module.named_modules():
            if isinstance(criterion, EdgeAwareLoss):

                def observe(called: EdgeAwareLoss, args: Any, kwargs: Any, name: str = name) -> None:  # noqa: ANN401
                    if self._is_due and called.training:
                        inputs = inspect.signature(called.forward).bind(*args, **kwargs).arguments
                        self._log(trainer, name, called, inputs)

                self._hooks.append(criterion.register_forward_pre_hook(observe, with_kwargs=True))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop observing."""
        while self._hooks:
            self._hooks.pop().remove()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """Decide whether to log; of accumulated batches, the first one."""
        step = trainer.global_step
        every = trainer.log_every_n_steps if self.every_n_steps is None else self.every_n_steps
        self._is_due = step != self._last_step and every > 0 and step % every == 0
        self._last_step = step

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Log no calls between batches."""
        self._is_due = False

    def _log(self, trainer: Trainer, name: str, criterion: EdgeAwareLoss, inputs: dict[str, Any]) -> None:
        logits, target, step = inputs["logits"].detach(), inputs["target"], trainer.global_step
        options = {key: inputs[key] for key in ("pixel_weight", "distance") if key in inputs}
        with torch.no_grad():  # such calls count nothing, and forward calls no hooks
            result = criterion.forward(logits, target, **options, return_terms=True)
        loss, terms = cast("tuple[Tensor, dict[str, Tensor]]", result)
        values = {**terms, "loss": loss.mean(), "edge_weight": criterion.current_edge_weight}
        for logger in trainer.loggers:
            logger.log_metrics({f"{name}/{term}": float(value) for term, value in values.items()}, step=step)
        is_drawn = self.panel_every_n_steps and step % self.panel_every_n_steps == 0 and logits.dim() == 4
        if not (is_drawn and trainer.is_global_zero):
            return
        x, y = logits[: self.images], target[: self.images]
        if not criterion.multilabel:
            _log_panel(trainer, f"{name}/panel", panel(x, y, criterion=criterion))
            return
        for c in range(x.shape[1]):
            _log_panel(trainer, f"{name}/panel/{c}", panel(x[:, c : c + 1], y[:, c], criterion=criterion.of_class(c)))


def _log_panel(trainer: Trainer, name: str, figure: Figure) -> None:
    file = BytesIO()
    figure.savefig(file, format="png")
    picture = np.asarray(Image.open(file).convert("RGB"))
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, picture, trainer.global_step, dataformats="HWC")
        elif hasattr(logger, "log_image"):
            logger.log_image(name, [picture], trainer.global_step)
