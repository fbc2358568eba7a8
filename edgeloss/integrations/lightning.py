"""Lightning: callbacks that log the terms of the loss and panels of it, and that write a page about a run."""

from __future__ import annotations

import csv
import inspect
import io
import json
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from edgeloss import EdgeAwareLoss
from edgeloss._checks.inputs import labels, plain
from edgeloss.functional import edge_aware_loss
from edgeloss.io import atomic_write
from edgeloss.viz import compute_arrays, panel
from edgeloss.viz.coloring import read_look
from edgeloss.viz.run_page import Row, best_epoch, write_run_page

_NO_LABEL = -(2**62)


class LogEdgeLoss(Callback):  # type: ignore[misc]
    """Log the terms of every EdgeAwareLoss of a LightningModule, and panels of its first images.

    The module itself needs no change. Values are those of the first call of a step, with the name of the attribute in
    front: ``criterion/other_side``, ``criterion/edge_focus`` and so on. All loggers get the values.
    TensorBoard gets the panels, and so do loggers with a method ``log_image`` as of Weights & Biases. A multilabel loss
    has a panel per class; volumes have none.

    Warns after the first epoch if its labels were one class and ignored pixels: ``ignore_index`` may be the label of
    the objects, as of masks of 0 and 255.

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
        self._seen: dict[str, Tensor] = {}  # by loss: -1 · the lowest label, the highest, and whether some are ignored
        self._due: set[str] = set()  # losses to log in their next call
        self._is_first_epoch = self._is_training = False
        self._last_step = -1

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Observe the calls of the losses."""
        for name, criterion in pl_module.named_modules():
            if isinstance(criterion, EdgeAwareLoss):
                self._seen[name] = torch.tensor([_NO_LABEL, _NO_LABEL, 0])

                def observe(called: EdgeAwareLoss, args: Any, kwargs: Any, _: Any, name: str = name) -> None:  # noqa: ANN401
                    inputs = inspect.signature(called.forward).bind(*args, **kwargs).arguments
                    if self._is_first_epoch and self._is_training:
                        labels = _seen_labels(called, inputs)
                        self._seen[name] = torch.maximum(self._seen[name].to(labels.device), labels)
                    if name in self._due:
                        self._due.remove(name)
                        self._log(trainer, name, called, inputs)

                self._hooks.append(criterion.register_forward_hook(observe, with_kwargs=True))
        self._is_first_epoch = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop observing."""
        while self._hooks:
            self._hooks.pop().remove()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """Decide whether to log; of accumulated batches, the first one."""
        step = trainer.global_step
        every = trainer.log_every_n_steps if self.every_n_steps is None else self.every_n_steps
        is_due = step != self._last_step and every > 0 and step % every == 0
        self._due = set(self._seen) if is_due else set()
        self._last_step, self._is_training = step, True

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Observe no calls between batches."""
        self._due, self._is_training = set(), False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the first epoch had one class and ignored pixels; a collective."""
        if not self._is_first_epoch:
            return
        self._is_first_epoch = False
        for name, seen in self._seen.items():
            negative, highest, ignored = trainer.strategy.reduce(seen.to(pl_module.device), reduce_op="max").tolist()
            if ignored and -negative >= highest and trainer.is_global_zero:
                got = f"only {highest}" if highest >= 0 else "none"
                warnings.warn(
                    f"{name}: expected labels of several classes in the first epoch, but got {got}, and ignored"
                    f" pixels; check that ignore_index={pl_module.get_submodule(name).ignore_index} is no label of an"
                    " object",
                    stacklevel=2,
                )

    def _log(self, trainer: Trainer, name: str, criterion: EdgeAwareLoss, inputs: dict[str, Any]) -> None:
        logits, target, step = inputs["logits"].detach(), inputs["target"], trainer.global_step
        options = {key: inputs[key] for key in ("pixel_weight", "distance") if key in inputs}
        with torch.no_grad():  # no rank waits for others; and forward calls no hooks
            result = criterion.forward(logits, target, **options, return_terms=True)
        loss, terms = cast("tuple[Tensor, dict[str, Tensor]]", result)
        values = {**terms, "loss": loss.mean()}
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
            figure = panel(x[:, c : c + 1], y[:, c], criterion=criterion.of_class(c, target))
            _log_panel(trainer, f"{name}/panel/{c}", figure)


def _seen_labels(criterion: EdgeAwareLoss, arguments: dict[str, Any]) -> Tensor:
    """Return -1 · the lowest label of a call, the highest, and whether some are ignored, without waiting for them."""
    target = plain(arguments["target"])
    y, valid = labels(target, 1 if criterion.multilabel else arguments["logits"].shape[1], criterion.ignore_index)
    if not y.numel():
        return torch.tensor([_NO_LABEL, _NO_LABEL, 0], device=y.device)
    both = torch.where(valid, torch.stack([-y, y]), _NO_LABEL).flatten(1).amax(1)
    return torch.cat([both, (~valid).any()[None].long()])


def _log_panel(trainer: Trainer, name: str, figure: Figure) -> None:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    picture = np.asarray(Image.open(file).convert("RGB"))
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, picture, trainer.global_step, dataformats="HWC")
        elif hasattr(logger, "log_image"):
            logger.log_image(name, [picture], trainer.global_step)


class WriteRunPage(Callback):  # type: ignore[misc]
    """Write the figures of a run after each epoch, and a page about it at the end.

    The best epoch of the page is that of the first ``ModelCheckpoint`` with a ``monitor``, else that of the highest
    ``val/miou``.

    ``metrics.csv`` and ``metrics.json`` in ``default_root_dir`` have a row per epoch, with everything that the module
    logs by epoch. After the last one ``report.html`` shows their curves, the scores per class, and the loss maps of the
    validation images with the highest edge loss. The rows are part of checkpoints, so a resumed run continues them.

    The module is called with images and returns logits, and has one EdgeAwareLoss of exclusive classes; batches begin
    with images [B, K, *S] and labels [B, *S], and may have ``names``. Volumes have no pictures.

    Args:
        worst: number of validation images to show.
        links: pages that the page links to, from the run's folder, by the text of the link.

    Attributes:
        history: the figures of each epoch.
    """

    def __init__(self, worst: int = 8, links: dict[str, str] | None = None) -> None:
        """Store the options."""
        self.worst, self.links = worst, links
        self.history: list[Row] = []
        self._start, self._images, self._seconds = time.perf_counter(), 0, 0.0  # _seconds: of training alone

    def state_dict(self) -> dict[str, Any]:
        """Return the figures so far."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the figures of a checkpoint."""
        self.history = list(state_dict["history"])

    def picture(self, image: Tensor) -> Tensor:
        """Return an image [K, H, W] as it is drawn, in [0, 1]; a module's normalization may be undone here."""
        low, high = image.amin(), image.amax()
        return (image - low) / (high - low).clamp(min=1e-6)

    def class_names(self, trainer: Trainer, pl_module: LightningModule) -> Sequence[str] | None:
        """Return the names of the classes; those of the module if it has ``classes``."""
        return getattr(pl_module, "classes", None)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._start, self._images, self._seconds = time.perf_counter(), 0, 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ANN401
        """Count images."""
        self._images += len(batch[0]) * trainer.world_size

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the speed of training alone."""
        self._seconds = time.perf_counter() - self._start

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the figures of an epoch."""
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        seconds = time.perf_counter() - self._start
        speed = {"seconds": seconds, "images_per_second": self._images / (self._seconds or seconds)}
        row = {"epoch": trainer.current_epoch + 1, **speed}
        row |= {name: value if math.isfinite(value) else None for name, value in sorted(figures.items())}
        self.history = [*(old for old in self.history if old["epoch"] < row["epoch"]), row]
        if trainer.is_global_zero:
            self._write(Path(trainer.default_root_dir), self.class_names(trainer, pl_module) or ())

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the page; a collective."""
        if not self.history or trainer.fast_dev_run:
            return
        worst = self._find_worst(trainer, pl_module)
        if trainer.is_global_zero:
            folder, names = Path(trainer.default_root_dir), self.class_names(trainer, pl_module)
            criterion = _criterion(pl_module).cpu()
            drawn = []
            for _, name, image, logits, target in worst:
                arrays = compute_arrays(logits, target, criterion)
                drawn.append((name, arrays, read_look(arrays, image, names, None, None)))
            config = folder / "config.yaml"
            write_run_page(
                folder,
                self.history,
                names or (),
                drawn,
                config=config.read_text("utf-8") if config.exists() else "",
                weights=criterion.options(),
                best=self.best(trainer),
                links=self.links,
            )

    def best(self, trainer: Trainer) -> tuple[str, Row]:
        """Return the figures of the epoch of the best checkpoint, and the metric by which it is the best."""
        saving = (one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint) and one.monitor)
        if (checkpoint := next(saving, None)) is None:
            return best_epoch(self.history)
        name, score = checkpoint.monitor, checkpoint.best_model_score
        saved = [row for row in self.history if score is not None and row.get(name) == float(score)]
        return (name, saved[0]) if saved else best_epoch(self.history, name, checkpoint.mode)

    def _write(self, folder: Path, names: Sequence[str]) -> None:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, list(dict.fromkeys(name for row in self.history for name in row)))
        table.writeheader()
        table.writerows(self.history)
        folder.mkdir(parents=True, exist_ok=True)
        described = {"classes": list(names), "epochs": self.history}
        for name, content in {"metrics.csv": text.getvalue(), "metrics.json": json.dumps(described, indent=1)}.items():
            with atomic_write(folder / name) as file:
                file.write(content.encode())

    @torch.no_grad()
    def _find_worst(self, trainer: Trainer, module: LightningModule) -> list[tuple[float, str, Any, Any, Any]]:
        """Return edge loss, name, picture, logits and labels of the worst images of all processes, worst first."""
        found: list[tuple[float, str, Any, Any, Any]] = []
        module.eval()
        loaders = trainer.val_dataloaders or (trainer.datamodule and trainer.datamodule.val_dataloader()) or ()
        for index, batch in enumerate(loaders if self.worst else ()):
            if batch[0].dim() != 4:
                break
            moved = trainer.strategy.batch_to_device(batch, module.device)
            with trainer.precision_plugin.forward_context():
                logits = module(moved[0])
            names = getattr(batch, "names", [f"image {k} of batch {index}" for k in range(len(logits))])
            for k, name in enumerate(names):
                one = logits[k : k + 1].float(), moved[1][k : k + 1]
                if (edge := _edge_loss(*one, _criterion(module))) is not None:
                    found.append((edge, name, self.picture(moved[0][k]).cpu(), one[0].cpu(), one[1].cpu()))
            found = _worst_of(found, self.worst)
        if not dist.is_initialized():
            return found
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, found)
        # A sampler may have given an image to two ranks, to give all ranks the same number.
        return _worst_of(list({item[1]: item for part in parts for item in part}.values()), self.worst)


def _criterion(module: LightningModule) -> EdgeAwareLoss:
    return next(part for part in module.modules() if isinstance(part, EdgeAwareLoss))


def _worst_of(found: list[Any], count: int) -> list[Any]:
    """Return the items of the highest edge loss; those that are not finite come first, and equal ones by name."""
    return sorted(found, key=lambda item: (-item[0] if math.isfinite(item[0]) else -math.inf, item[1]))[:count]


def _edge_loss(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss) -> float | None:
    """Return the mean edge loss of one image, None if it has no edge."""
    options = {**criterion.options(), "reduction": "mean", "upsample": True}
    result = edge_aware_loss(logits, target, **options, return_terms=True)
    _, terms = cast("tuple[Tensor, dict[str, Tensor]]", result)
    return float(terms["edge"]) if terms["edge_fraction"] else None
