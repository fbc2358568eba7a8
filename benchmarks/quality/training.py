"""Train the network of a run, score it, and add its row to the table of results."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from baselines.common import at_size
from baselines.recipes import Module, Progress, make
from measure import INSTRUCTIONS, processes, processor
from quality.data import (
    augmentation,
    load_batch,
    read_labels,
    read_targets,
    scored_batches,
    scored_set,
    split_indices,
    training_set,
    voxel_shape,
)
from quality.efficientnet import EfficientUNet
from quality.runs import Place, Run, checkpoint_path, key_of
from quality.scores import METRICS, SHOWN, evaluate, thin_class, wanted
from result_table import Row, add_rows, read_rows
from segkit.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from segkit.model import UNet

WEIGHT_DECAY = 1e-4
WARMUP = 1  # epochs in which the learning rate rises linearly
POWER = 0.9  # of its polynomial fall to 0
REGION_TERM = "softmax shares, plain PyTorch"  # its formula, and what computes it; rows of 0.2 have no such entry


def make_network(run: Run, num_classes: int) -> nn.Module:
    """Build the network of a run: for images with three channels, or for volumes with one."""
    if run.network == "efficientnet-lite0":
        return EfficientUNet(num_classes, pretrained=run.pretrained)
    return UNet(num_classes, width=run.width, in_channels=1 if run.dims == 3 else 3, dims=run.dims)


class DivergedError(ArithmeticError):
    """Raised when the loss is no longer finite."""


class Training:
    """A network and its training.

    Args:
        run: what to train.
        place: where to read and write.
    """

    def __init__(self, run: Run, place: Place) -> None:
        """Open the data, and resume from the checkpoint if there is one."""
        self.run, self.place = run, place
        self.classes, self.void = read_labels(place.data_of(run))
        self.train_set, self.chosen = training_set(run, place, augment=augmentation(run), seed=run.seed, cache=True)
        self.evaluated, self.spacing = scored_batches(run, place), voxel_shape(scored_set(run, place))
        self.thin = thin_class(run.data, self.classes)

        torch.manual_seed(run.seed)
        self.model = make_network(run, len(self.classes)).to(place.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=run.lr, weight_decay=WEIGHT_DECAY)
        self.criterion = make(
            run.loss,
            run.options,
            self.void,
            targets=read_targets(run, place),
            num_classes=len(self.classes),
            spacing=voxel_shape(self.train_set),
            device=place.device,
        )
        self.epoch = 0  # number of complete epochs
        self.curves: dict[str, list[Row]] = {}  # per split
        self.checkpoint = checkpoint_path(run, place.state)
        if self.checkpoint.exists():
            state = load_checkpoint(self.checkpoint, map_location=place.device)
            try:
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
                if isinstance(self.criterion, nn.Module):
                    self.criterion.load_state_dict(state["criterion"])
                self.epoch, self.curves = state["epoch"], state["curves"]
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                raise CheckpointError(f"{self.checkpoint}: expected a checkpoint of this run ({error!r})") from error
        self.curve = self.curves.setdefault(place.split_name(run), [])

    def train(self) -> None:
        """Train the remaining epochs; save after each of them.

        Raises:
            DivergedError: if the loss becomes nan or infinite.
        """
        while self.epoch < self.run.epochs:
            start = time.perf_counter()
            loss = self.train_epoch()
            seconds = time.perf_counter() - start
            self.epoch += 1
            is_scored = self.epoch % self.place.score_every == 0 or self.epoch == self.run.epochs
            if is_scored:
                about = {"loss": round(loss, 6), "seconds": round(seconds, 1)}
                if isinstance(self.criterion, Module):
                    about["edge_weight"] = round(self.criterion.current_edge_weight, 6)
                self.score(**about)
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            if isinstance(self.criterion, nn.Module):
                state["criterion"] = self.criterion.state_dict()
            save_checkpoint(self.checkpoint, state | {"epoch": self.epoch, "curves": self.curves})
            metrics = self.curve[-1]["metrics"] if is_scored else {}
            scores = "  ".join(f"{METRICS[name]} {metrics[name]:.2%}" for name in SHOWN if name in metrics)
            progress = f"{self.epoch}/{self.run.epochs}"
            print(f"{self.run.data}  {self.run.slug}  {progress}  {loss:.4f}  {scores}  {seconds:.0f} s", flush=True)
        # Trained before, and scored on another split or by fewer metrics.
        scored = self.curve[-1]["metrics"] if self.curve and self.curve[-1]["epoch"] == self.epoch else {}
        if wanted(self.thin) - scored.keys():
            self.score()

    def train_epoch(self) -> float:
        """Train one epoch and return its mean loss.

        Raises:
            DivergedError: if the loss becomes nan or infinite.
        """
        run = self.run
        steps_per_epoch = run.crops * math.ceil(len(self.chosen) / run.batch)
        steps = run.epochs * steps_per_epoch
        self.model.train()
        total = 0.0
        for step, (images, labels) in enumerate(self._batches(), start=self.epoch * steps_per_epoch):
            rise = min(1.0, (step + 1) / (WARMUP * steps_per_epoch))
            for group in self.optimizer.param_groups:
                group["lr"] = run.lr * rise * (1 - step / steps) ** POWER
            with torch.autocast(self.place.device, torch.bfloat16, enabled=run.precision == "bfloat16"):
                logits = self.model(images)
            logits = logits.float()
            if not isinstance(self.criterion, Module):  # which accepts a lower resolution
                logits = at_size(logits, labels.shape[1:])
            loss = self.criterion(logits, labels, Progress(step, steps, self.epoch))
            value = loss.item()
            if not math.isfinite(value):
                raise DivergedError(f"the loss is {value} in step {step + 1} of {steps}, epoch {self.epoch + 1}")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += value * len(images)
        return total / (run.crops * len(self.chosen))

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Load the batches of an epoch: `crops` passes over the images, each in its own order with its own samples."""
        for number in range(self.epoch * self.run.crops, (self.epoch + 1) * self.run.crops):
            self.train_set.epoch = number
            order = np.random.default_rng((self.run.seed, number)).permutation(self.chosen)
            for index in split_indices(order, self.run.batch):
                yield load_batch(self.train_set, index, self.place.device)

    def score(self, **about: float) -> None:
        """Add a row to the curve: the epoch, what else is known about it, and the metrics."""
        if self.curve and self.curve[-1]["epoch"] == self.epoch:
            about = {**self.curve.pop(), **about}
        options = {"spacing": self.spacing, "slow": self.epoch == self.run.epochs, "thin": self.thin}
        scores = evaluate(self.model, self.evaluated, len(self.classes), self.void, self.place.device, **options)
        self.curve.append({"epoch": self.epoch, **about, "metrics": scores})


def finish(run: Run, place: Place) -> None:
    """Train what is left of a run, score it, and add its row to the table.

    A run that diverged has a row, too.
    """
    training = Training(run, place)
    row: Row = {
        "run": asdict(run),
        "split": place.split_name(run),
        "images": {"train": len(training.chosen), "evaluated": sum(len(labels) for _, labels in training.evaluated)},
        "classes": training.classes,
        "machine": {
            "processor": processor() if place.device == "cpu" else torch.cuda.get_device_name(place.device),
            "instructions": INSTRUCTIONS,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "edgeloss", "kornia", "monai", "numpy") if find_spec(name)},
        },
    }
    if run.options.get("region_weight"):
        row["region_term"] = REGION_TERM
    try:
        training.train()
    except DivergedError as error:
        row["failed"] = str(error)
    else:
        row["metrics"] = training.curve[-1]["metrics"]
    row["curve"] = _columns(training.curve)
    add_rows(place.results, [row], key_of)


def _columns(curve: Sequence[Row]) -> dict[str, list[Any]]:
    """Return a curve as a list of values per name, which takes half the space, without what only some points have."""
    points = [{**{name: point[name] for name in point if name != "metrics"}, **point["metrics"]} for point in curve]
    names = [name for name in points[0] if all(name in point for point in points)] if points else []
    return {name: [point[name] for point in points] for name in names}


def execute(runs: Sequence[Run], place: Place, *, workers: int, threads: int) -> None:
    """Do the runs that have no row in the table yet."""
    torch.set_num_threads(threads)
    done = set(map(key_of, read_rows(place.results, *place.others)))
    left = [run for run in runs if place.key(run) not in done]
    print(f"{len(runs)} runs, {len(left)} of them to do", flush=True)
    if workers == 1:
        for run in left:
            finish(run, place)
        return
    with processes(workers, partial(torch.set_num_threads, threads)) as pool:
        list(pool.map(finish, left, repeat(place)))


def load_network(run: Run, state: Path, num_classes: int, device: str) -> nn.Module:
    """Load the network of a finished run.

    Raises:
        CheckpointError: if there is no checkpoint, or the run is not finished.
    """
    path = checkpoint_path(run, state)
    checkpoint = load_checkpoint(path, map_location=device)
    if checkpoint["epoch"] != run.epochs:
        epoch = checkpoint["epoch"]
        raise CheckpointError(f"{path}: expected {run.epochs} epochs, but got {epoch}; finish the run with `plan`")
    network = make_network(run, num_classes).to(device).eval()
    try:
        network.load_state_dict(checkpoint["model"])
    except RuntimeError as error:
        raise CheckpointError(f"{path}: expected a checkpoint of this run ({error!r})") from error
    return network
