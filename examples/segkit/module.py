"""The network of a run with its loss, its figures and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningModule, seed_everything
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import MeanMetric

import edgeloss
from edgeloss import EdgeAwareLoss
from edgeloss.io import InputError
from edgeloss.viz.run_page import SUMMANDS
from segkit.balance import data_edge_class_weight
from segkit.folder import RunOptions
from segkit.loader import MicroBatch, mixed_seed
from segkit.model import UNet
from segkit.schedule import Kind, edge_weight, lr_factor
from segkit.scores import LabelsSeen, flatten, gradient_shares, label_sums, loss_figures, validation_metrics

# What is averaged over an epoch, next to the terms of the loss.
FIGURES = ["train/loss", "lr", "edge_weight", *(f"train/gradient_share/{name}" for name in SUMMANDS)]
FIGURES += ["val/accuracy", "val/edge_accuracy", "val/interior_accuracy"]


class SegmentationModule(LightningModule):
    """A U-Net that is trained with an EdgeAwareLoss.

    The gradient of a step is that of its whole batch: the micro-batches of all processes share the denominators of the
    loss.

    Args:
        loss: The loss. Its ``ignore_index`` becomes the void label of the data.
        classes: Names of the classes.
        ignore_index: The label of void pixels.
        dims: 2 for images, 3 for volumes.
        width: Channels at full resolution, a multiple of 8; doubled at each level.
        levels: Number of resolutions.
        channels_last: Use this memory format, in which convolutions are faster.
        compile: Compile the network with torch.compile.
        lr: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup: Epochs of linear warm-up.
        power: Exponent of the polynomial decay to 0: (1 - step / steps)^power.
        edge_schedule: Rise of the edge weight from 0 to that of the loss: constant for none, linear or cosine.
        edge_warmup: Duration of this rise as a share of all steps.
        balance: Whose edge pixels the class weights of the edge terms balance: batch leaves them to the loss, which by
            default takes those of each step; data counts those of the training labels once, before the first epoch.
        shares_every: Steps between measurements of each term's share in the gradient; 0 for none.
        seed: Seed of what the network draws, such as the masks of a dropout.
    """

    def __init__(
        self,
        loss: EdgeAwareLoss,
        classes: list[str],
        ignore_index: int,
        dims: int = 2,
        width: int = 16,
        levels: int = 5,
        channels_last: bool = True,
        compile: bool = False,  # noqa: A002  (an option's name)
        lr: float = 0.003,
        weight_decay: float = 0.0001,
        warmup: float = 1.0,
        power: float = 0.9,
        edge_schedule: Kind = "constant",
        edge_warmup: float = 0.0,
        balance: Literal["batch", "data"] = "batch",
        shares_every: int = 50,
        seed: int = 0,
    ) -> None:
        """Build the network."""
        super().__init__()
        self.classes, self.shares_every, self.seed = classes, shares_every, seed
        self.options = {"width": width, "levels": levels, "dims": dims, "in_channels": 3 if dims == 2 else 1}
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        self.memory_format = formats[dims] if channels_last else torch.contiguous_format
        self.network = UNet(len(classes), **self.options).to(memory_format=self.memory_format)
        if compile:
            self.network.compile()
        loss.ignore_index, loss.sync_normalizer = ignore_index, True
        pixel = torch.zeros(1, len(classes), *[1] * dims), torch.zeros(1, *[1] * dims, dtype=torch.int64)
        _, terms = loss(*pixel, return_terms=True)  # checks, and names the terms
        self.criterion = loss
        self.full_edge_weight = loss.edge_weight
        self.weights = {name: weight for name, option in SUMMANDS.items() if (weight := getattr(loss, option))}
        self._edge_weight = partial(edge_weight, weight=loss.edge_weight, kind=edge_schedule, warmup=edge_warmup)
        self._optimizer = partial(torch.optim.AdamW, lr=lr, weight_decay=weight_decay)
        self._warmup, self._power = warmup, power
        if balance == "data" and isinstance(loss.edge_class_weight, Tensor):
            raise ValueError("model.balance: expected batch for a loss with edge_class_weight, but got data")
        self._balance = balance
        self._normalizer: tuple[Tensor, Tensor] | None = None
        self.run_options = RunOptions()  # of the command line, which knows them all
        self.last_step: tuple[MicroBatch, Tensor, Tensor] | None = None  # batch, logits and loss, for a guard
        # Their sums are in checkpoints, so the figures of a resumed epoch are those of the whole epoch.
        figures = [f"{stage}/{name}" for stage in ("train", "val") for name in terms] + FIGURES
        self.means = nn.ModuleDict({name: MeanMetric(nan_strategy="ignore") for name in figures})
        for mean in self.means.values():
            mean.persistent(True)
        self.scores = validation_metrics(len(classes), ignore_index, loss.spacing)
        self.seen = LabelsSeen(len(classes), ignore_index)

    def setup(self, stage: str) -> None:
        """Weigh the classes at edges by the training labels."""
        if self._balance == "data":
            weight, trainer = None, self.trainer
            if trainer.is_global_zero:
                cache = Path(trainer.default_root_dir) / "edge_class_weight.json"
                weight = data_edge_class_weight(trainer.datamodule.train_set, self.criterion.radius, cache)
            weight = trainer.strategy.broadcast(weight)
            del self.criterion.edge_class_weight  # the name of a rule
            self.criterion.register_buffer("edge_class_weight", weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, C, *S] of images [B, K, *S]."""
        logits: Tensor = self.network(images.contiguous(memory_format=self.memory_format))
        return logits

    # ---------------------------------------------------------------------------------------------------------- steps

    def on_train_epoch_start(self) -> None:
        """Begin new means."""
        for mean in self.means.values():
            mean.reset()

    def on_train_batch_start(self, batch: MicroBatch, batch_idx: int) -> None:
        """Make what the network draws independent of all that ran before."""
        seed_everything(mixed_seed(self.seed, self.current_epoch + 1, batch_idx, self.global_rank), verbose=False)

    def training_step(self, batch: MicroBatch, batch_idx: int) -> Tensor:
        """Return n times the loss of a micro-batch, which Lightning divides by n = accumulate_grad_batches."""
        accumulate = self.trainer.accumulate_grad_batches
        if batch.step_labels is not None:
            total = int(self.trainer.estimated_stepping_batches)
            self.criterion.edge_weight = self._edge_weight(self.trainer.global_step, total)
            self.last_step = None
            self._normalizer = None
            if accumulate > 1:  # the gradient is that of the whole batch
                w, n = zip(*(label_sums(self.criterion, y, len(self.classes)) for y in batch.step_labels), strict=True)
                self._normalizer = sum(w), sum(n)
        if self.current_epoch == 0:
            self.seen.update(batch.labels)
        logits = self(batch.images)
        with torch.autocast(self.device.type, enabled=False):
            loss, terms = self.criterion(logits, batch.labels, normalizer=self._normalizer, return_terms=True)
        if not self.criterion.region_weight:
            del terms["region"]
        if self.last_step is None or self.last_step[2].isfinite():
            self.last_step = batch, logits.detach(), loss.detach()
        self._log_step(batch, logits, terms, batch_idx)
        return accumulate * loss

    def on_train_epoch_end(self) -> None:
        """Say if the labels of the first epoch hint at a label that is ignored by mistake.

        Not earlier: a mask of background with a void rim is legal.
        """
        if self.current_epoch == 0:
            *seen, has_void = self.seen.compute().tolist()
            names = [name for name, is_seen in zip(self.classes, seen, strict=True) if is_seen]
            if len(names) < 2 and has_void and self.trainer.is_global_zero:
                ignored = self.criterion.ignore_index
                print(
                    f"warning: the training masks have no pixels but of {names[0] if names else 'no class'} and of the"
                    f" label {ignored}, which is ignored: all foreground may be ignored; if {ignored} marks class 1,"
                    f" set --data.remap={ignored}:1",
                    flush=True,
                )

    def _log_step(self, batch: MicroBatch, logits: Tensor, terms: dict[str, Tensor], batch_idx: int) -> None:
        """Add the figures of a micro-batch to the means of the epoch."""
        criterion, accumulate = self.criterion, self.trainer.accumulate_grad_batches
        images = batch.step_images
        figures = {f"train/{name}": (term * accumulate, images) for name, term in terms.items()}
        valid = (batch.labels != criterion.ignore_index).sum()
        figures["train/edge_fraction"] = terms["edge_fraction"], valid
        figures["train/loss"] = self._loss(terms) * accumulate, images
        figures["lr"] = self.optimizers().param_groups[0]["lr"], images
        figures["edge_weight"] = criterion.edge_weight, images
        if self.shares_every and batch_idx % (self.shares_every * accumulate) == 0:
            shares = gradient_shares(criterion, logits, batch.labels)
            figures |= {f"train/gradient_share/{name}": (value, images) for name, value in shares.items()}
        self._add(figures)
        for name in figures:
            self.log(name, self.means[name], on_step=False, on_epoch=True, batch_size=images)

    def _loss(self, terms: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
        """Return the loss that is made of terms, with the edge weight in full."""
        return sum(weight * terms[name] for name, weight in self.weights.items() if name in terms)

    def _add(self, figures: Mapping[str, tuple[Any, Any]]) -> None:
        """Add figures and their weights to the means of the epoch."""
        for name, (figure, weight) in figures.items():
            value = torch.as_tensor(figure, dtype=torch.float32, device=self.device).detach()
            self.means[name].update(value.where(value.isfinite(), torch.nan), weight)

    # ----------------------------------------------------------------------------------------------------- validation

    def on_validation_start(self) -> None:
        """Use the same loss in all epochs."""
        self.criterion.edge_weight = self.full_edge_weight

    def validation_step(self, batch: MicroBatch, batch_idx: int) -> None:
        """Count a batch."""
        with torch.autocast(self.device.type, enabled=False):
            logits = self(batch.images)
            figures = loss_figures(self.criterion, logits, batch.labels)
            self._add({f"val/{name}": figure for name, figure in figures.items()})
            self.scores.update(logits.argmax(1), batch.labels)

    def on_validation_epoch_end(self) -> None:
        """Log the figures of the whole set; those that it has nothing to measure for are nan."""
        means = {name: mean for name, mean in self.means.items() if name.startswith("val/") and mean.update_called}
        figures = {name.removeprefix("val/"): mean.compute() for name, mean in means.items()}
        figures["loss"] = self._loss({name: figure for name, figure in figures.items() if not figure.isnan()})
        figures |= flatten(self.scores.compute(), self.classes)
        self.log_dict({f"val/{name}": figure for name, figure in figures.items()})
        for metric in (*means.values(), self.scores):
            metric.reset()

    # ------------------------------------------------------------------------------------------------------ optimizer

    def configure_optimizers(self) -> dict[str, Any]:
        """Return AdamW, and a schedule of its learning rate by steps."""
        optimizer, total = self._optimizer(self.network.parameters()), int(self.trainer.estimated_stepping_batches)
        per_epoch = total / max(self.trainer.max_epochs or 1, 1)
        schedule = partial(lr_factor, total=total, warmup=round(self._warmup * per_epoch), power=self._power)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, schedule), "interval": "step"},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint is of this network and, to continue its run, of the same options.

        Raises:
            InputError: It is not.
        """
        path = str(self.trainer.ckpt_path)
        self.run_options.check(checkpoint.get("segmentation", {}).get("options", {}), path)
        saved = {name: value.shape for name, value in checkpoint.get("state_dict", {}).items()}
        for name, value in self.state_dict().items():
            if saved and name.startswith("network.") and saved.get(name) != value.shape:
                got = "none" if name not in saved else str(list(saved[name]))
                raise InputError(
                    f"{path}: expected the weights of this network, {name} {list(value.shape)}, but got {got}"
                )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what `segkit.checkpoint.open_network` returns."""
        data = getattr(self.trainer.datamodule, "source", {})
        checkpoint["segmentation"] = {
            "classes": list(self.classes),
            "ignore_index": self.criterion.ignore_index,
            "network": self.options,
            "data": dict(data),
            "options": self.run_options.values,
            "edgeloss": edgeloss.__version__,  # defaults of the loss change with it
        }
