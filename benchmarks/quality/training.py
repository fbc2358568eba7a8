"""Train the network of a run, score it, and add its row to the table of results."""

from __future__ import annotations

import math
import operator
import platform
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from itertools import takewhile
from traceback import print_exception
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from baselines.common import at_size
from baselines.recipes import Module, Progress, make
from measure import INSTRUCTIONS, processes, processor
from quality.data import load_batch, open_part, read_targets, scored_batches, split_indices, work_of
from quality.efficientnet import EfficientUNet
from quality.runs import Place, Run, key_of
from quality.scores import METRICS, SHOWN, evaluate, is_complete, thin_class
from result_table import Row, add_rows, read_rows
from segkit.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from segkit.model import UNet

WEIGHT_DECAY = 1e-4
WARMUP = 1  # epochs in which the learning rate rises linearly
POWER = 0.9  # of its polynomial fall to 0
SLOWER = 1.2  # how much longer than its second epoch the others may take, with their scores


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
        self.train_set, self.chosen = open_part(run, place, augmented=True)
        self.classes, self.void = self.train_set.classes, self.train_set.ignore_index
        self.evaluated = [(x.to(place.device), y.to(place.device)) for x, y in scored_batches(run, place)]
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
            device=place.device,
        )
        parts = {"model": self.model, "optimizer": self.optimizer, "criterion": self.criterion}
        self.parts: dict[str, Any] = {name: part for name, part in parts.items() if hasattr(part, "state_dict")}
        self.epoch = 0  # number of complete epochs
        self.curve: list[Row] = []
        self.checkpoint = place.checkpoint(run)
        if self.checkpoint.exists():
            state = load_checkpoint(self.checkpoint, map_location=place.device)
            self.epoch, self.curve = state["epoch"], state["curve"]
            for name, part in self.parts.items():
                part.load_state_dict(state[name])

    def train(self) -> bool:
        """Train the remaining epochs; save after each of them.

        Returns:
            Whether all are done: not if two epochs show that the others would not end in time.

        Raises:
            DivergedError: if the loss becomes nan or infinite.
        """
        second = self.epoch + 2  # the first one also pays for the start of the device
        while self.epoch < self.run.epochs:
            start = time.perf_counter()
            loss = self.train_epoch()
            seconds = time.perf_counter() - start
            self.epoch += 1
            scores = ""
            if self.epoch % self.place.score_every == 0 or self.epoch == self.run.epochs:
                about = {"epoch": self.epoch, "loss": round(loss, 6), "seconds": round(seconds, 1)}
                metrics = self.score(SHOWN)
                self.curve.append({**about, "metrics": metrics})
                scores = "  ".join(f"{METRICS[name]} {metrics[name]:.2%}" for name in SHOWN)
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            state = {name: part.state_dict() for name, part in self.parts.items()}
            save_checkpoint(self.checkpoint, state | {"epoch": self.epoch, "curve": self.curve})
            progress = f"{self.epoch}/{self.run.epochs}"
            print(f"{self.run.data}  {self.run.key}  {progress}  {loss:.4f}  {scores}  {seconds:.1f} s", flush=True)
            needed = SLOWER * (time.perf_counter() - start) * (self.run.epochs - self.epoch)
            if self.epoch == second and time.time() + needed > self.place.end:
                print(f"{self.run.data}  {self.run.key}  left for the next call: it would take {needed:.0f} s more")
                return False
        return True

    def score(self, metrics: Collection[str] = tuple(METRICS)) -> Row:
        """Return some scores of the network as it is now."""
        about = len(self.classes), self.void, self.place.device
        return evaluate(self.model, self.evaluated, *about, metrics=metrics, thin=self.thin)

    def train_epoch(self) -> float:
        """Train one epoch and return its mean loss.

        Raises:
            DivergedError: if the loss becomes nan or infinite.
        """
        run = self.run
        steps_per_epoch = run.crops * math.ceil(len(self.chosen) / run.batch)
        steps = run.epochs * steps_per_epoch
        self.model.train()
        losses, sizes = [], []
        for step, (images, labels) in enumerate(self._batches(), start=self.epoch * steps_per_epoch):
            rise = min(1.0, (step + 1) / (WARMUP * steps_per_epoch))
            for group in self.optimizer.param_groups:
                group["lr"] = run.lr * rise * (1 - step / steps) ** POWER
            with torch.autocast(self.place.device, torch.bfloat16, enabled=run.precision == "bfloat16"):
                logits = self.model(images)
            logits = logits.float()
            if not isinstance(self.criterion, Module):  # which accepts a lower resolution
                logits = at_size(logits, labels.shape[1:])
            try:
                loss = self.criterion(logits, labels, Progress(step, steps, self.epoch))
            except torch.linalg.LinAlgError as error:  # of logits that are nan, by RMI
                raise DivergedError(f"{error} in step {step + 1} of {steps}, epoch {self.epoch + 1}") from error
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
            sizes.append(len(images))
        values = torch.stack(losses).tolist()  # not after each step, which would wait for the device
        for step, value in enumerate(values, start=self.epoch * steps_per_epoch + 1):
            if not math.isfinite(value):
                raise DivergedError(f"the loss is {value} in step {step} of {steps}, epoch {self.epoch + 1}")
        return sum(map(operator.mul, values, sizes)) / (run.crops * len(self.chosen))

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Load the batches of an epoch: `crops` passes over the images, each in its own order with its own samples."""
        for number in range(self.epoch * self.run.crops, (self.epoch + 1) * self.run.crops):
            self.train_set.epoch = number
            order = np.random.default_rng((self.run.seed, number)).permutation(self.chosen)
            for index in split_indices(order, self.run.batch):
                yield load_batch(self.train_set, index, self.place.device)


def finish(run: Run, place: Place, threads: int = 1) -> None:
    """Train what is left of a run, score it, and add its row to the table.

    A run that diverged has a row, too. One that would not end in time has none; its last epoch is kept.
    """
    torch.set_num_threads(threads)
    training = Training(run, place)
    row: Row = {
        "run": asdict(run),
        "split": run.split,
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
    try:
        if not training.train():
            return
        row["metrics"] = training.score()
    except DivergedError as error:
        row["failed"] = str(error)
    # A list of values per name, of the metrics in SHOWN only, takes less space. Points of an earlier version lack some.
    points = [{**point.pop("metrics"), **point} for point in map(dict, training.curve)]
    names = [name for name in ("epoch", "loss", "seconds", *SHOWN) if all(name in point for point in points)]
    row["curve"] = {name: [point[name] for point in points] for name in names if points}
    add_rows(place.results, [row], key_of)


def left_of(plans: Sequence[Sequence[Run]], place: Place) -> list[Run]:
    """Return the runs without a row: the shortest plan first, in it the seeds in turn, of each the short runs first.

    With ``place.rescore``, a row that lacks scores does not count.
    """
    rows = read_rows(place.results)
    known = {key_of(row) for row in rows if not place.rescore or is_complete(row)}
    ordered = []
    for runs in plans:
        left = [(run, work_of(run, place)) for run in runs if run.key not in known and not run.is_earlier]
        left.sort(key=lambda pair: (pair[0].seed, pair[1]))
        ordered.append((sum(work for _, work in left), [run for run, _ in left]))
    ordered.sort(key=lambda pair: pair[0])
    return [*{run.key: run for _, runs in ordered for run in runs}.values()]


def execute(plans: Sequence[Sequence[Run]], place: Place, *, workers: int, threads: int) -> int:
    """Do the runs of plans that have no row in the table yet; return how many of them failed.

    More than one worker are processes, which share the device. What a killed process has left resumes in another call.
    """
    left, failed = left_of(plans, place), 0
    print(f"{sum(map(len, plans))} runs, {len(left)} of them to do", flush=True)
    runs = takewhile(lambda run: time.time() < place.end, left)
    if workers == 1:
        for run in runs:
            finish(run, place, threads)
    else:
        failed = _share(runs, place, workers, threads)
    if time.time() >= place.end and (left := left_of(plans, place)):
        print(f"the time is up before {len(left)} runs; the same command goes on", flush=True)
    return failed


def _share(runs: Iterator[Run], place: Place, workers: int, threads: int) -> int:
    """Give runs to processes, to each the next one when it is done; return how many of them failed."""
    failed, busy = 0, {}
    with ExitStack() as pools:
        free = [pools.enter_context(processes(1)) for _ in range(workers)]
        while True:
            while free and (run := next(runs, None)):
                pool = free.pop()
                busy[pool.submit(finish, run, place, threads)] = pool
            if not busy:
                return failed
            for done in wait(busy, return_when=FIRST_COMPLETED).done:
                pool = busy.pop(done)
                if error := done.exception():
                    failed += 1
                    print_exception(error)
                    pool = pools.enter_context(processes(1))  # a process that was killed has broken its pool
                free.append(pool)


def load_network(run: Run, place: Place) -> nn.Module:
    """Load the network of a finished run.

    Raises:
        CheckpointError: if there is no checkpoint, or the run is not finished.
    """
    path = place.checkpoint(run)
    checkpoint = load_checkpoint(path, map_location=place.device)
    if (epoch := checkpoint["epoch"]) != run.epochs:
        raise CheckpointError(f"{path}: expected {run.epochs} epochs, but got {epoch}; finish the run with `plan`")
    network = make_network(run, len(open_part(run, place)[0].classes)).to(place.device).eval()
    network.load_state_dict(checkpoint["model"])
    return network
