#!/usr/bin/env python3
"""Train one network under many losses and compare: scores over seeds, and differences to cross-entropy.

All runs of a seed share their initial weights, the order of the images, augmentation and schedule; only the loss
differs. A run leaves one JSON file, and what has its file is not run again. A run that was killed goes on after its
last complete epoch, and on the CPU ends with the same bits. What counts is the last epoch: none is chosen by its score.

`tune` trains on four fifths of the training images and scores on the fifth, with as many trials for every loss as for
every other: the validation split has no part in any choice.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import math
import os
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from baselines.recipes import RECIPES, TITLES, Options, Progress, completed, make
from quality_crops import Split, choose, plot_crops, summary, windows
from quality_report import (
    BASELINE,
    METRICS,
    RADII,
    RATIOS,
    SHOWN,
    Result,
    label,
    markdown,
    plot_bars,
    plot_curves,
    read_results,
    summarise,
    trials,
)
from speed import INSTRUCTIONS, Labels, alone, forget_peak, processor, regions, resident, scenes, stopwatch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "examples"))

from edgeloss.io import atomic_write  # noqa: E402
from segkit.checkpoint import CheckpointError, load_checkpoint, load_weights, save_checkpoint  # noqa: E402
from segkit.data import Augment, SegmentationFolder, denormalize, read_classes  # noqa: E402
from segkit.model import UNet  # noqa: E402

EXAMPLES = """\
examples:
  python benchmarks/quality.py run --loss ce --seeds 0 1 2
  python benchmarks/quality.py run --loss ours --option edge_weight=1 --option power=0 --seeds 0 1 2
  python benchmarks/quality.py tune configs/quality-tune.yaml               # on a held-out fifth of the training images
  nohup nice python benchmarks/quality.py plan configs/quality.yaml --workers 2 &
  python benchmarks/quality.py plan configs/quality.yaml --eval-split /elsewhere/test
  python benchmarks/quality.py table --split val --metrics miou boundary_iou_005 f1_1
  python benchmarks/quality.py plot
  python benchmarks/quality.py crops configs/quality.yaml --losses cross-entropy "CE + CPG" edgeloss
  python benchmarks/quality.py cost --masks ../shared/camvid/val/masks
"""

WEIGHT_DECAY = 1e-4
WARMUP = 1  # epochs of linear rise of the learning rate
POWER = 0.9  # of its polynomial fall to 0
HELD_OUT = 5  # one training image of so many
PRECISIONS = ("float32", "bfloat16")
RESULTS = ROOT / "benchmarks" / "results"


# ---------------------------------------------------------------------------------------------------------------- a run


@dataclass(frozen=True)
class Run:
    """A training: whatever its weights depend on.

    Attributes:
        loss: name of a recipe.
        options: of the loss, completed by their defaults.
        seed: of the initial weights, the order of the images and their augmentation.
        data: name of the data set.
        held_out: leave a fifth of the training images out, to be scored on.
        epochs: passes over the training images.
        batch: images a step.
        size: (height, width) that images are brought to.
        width: channels of the U-Net at full resolution.
        lr: highest learning rate.
        precision: float32, or bfloat16 for training under autocast; the loss and the scores are of float32 always.
    """

    loss: str
    options: Options
    seed: int
    data: str = "camvid"
    held_out: bool = False
    epochs: int = 15
    batch: int = 4
    size: tuple[int, int] = (180, 240)
    width: int = 8
    lr: float = 3e-3
    precision: str = "float32"

    def __post_init__(self) -> None:
        """Complete the options, so that equal runs are equal however they are written.

        Raises:
            ValueError: for a precision that is not known.
        """
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: expected one of {PRECISIONS}, but got {self.precision!r}")
        object.__setattr__(self, "options", completed(self.loss, self.options))
        object.__setattr__(self, "size", tuple(self.size))

    @property
    def slug(self) -> str:
        """A name of its own."""
        values = json.dumps(asdict(self), sort_keys=True)
        return f"{self.loss}-seed{self.seed}-{hashlib.sha256(values.encode()).hexdigest()[:8]}"


SETTINGS = [field.name for field in fields(Run) if field.name not in ("loss", "options", "seed", "data", "held_out")]


@dataclass(frozen=True)
class Place:
    """Where a run finds and leaves things, of which its weights do not depend.

    Attributes:
        data: folder with train/, val/ and classes.txt.
        split: folder with images/ and masks/ to score on.
        results: folder of the result files.
        state: folder of the checkpoints.
        device: to train on.
        score_every: epochs from one scoring to the next; the last epoch always has one.
    """

    data: Path
    split: Path
    results: Path
    state: Path
    device: str = "cpu"
    score_every: int = 1

    def split_name(self, run: Run) -> str:
        """What the run is scored on."""
        return "held-out" if run.held_out else self.split.name

    def result(self, run: Run) -> Path:
        """The file that tells that the run is done."""
        return self.results / f"{run.slug}-{self.split_name(run)}.json"


class RoundedConv2d(nn.Conv2d):
    """A convolution under bfloat16 autocast that rounds as the processor's instructions for it do, and sums in float32.

    Without such instructions PyTorch takes ten times as long as this, and as float32.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Convolve; without autocast as ever."""
        if not torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        bias = None if self.bias is None else _rounded(self.bias)
        with torch.autocast("cpu", enabled=False):
            return self._conv_forward(_rounded(x), _rounded(self.weight), bias).bfloat16()


def _rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def labels_of(data: Path) -> tuple[list[str], int]:
    """The classes of a data set and its label of void."""
    classes, void = read_classes(data / "classes.txt")
    return classes, 255 if void is None else void


def checkpoint_of(run: Run, state: Path) -> Path:
    """Where the run keeps what it has learnt."""
    return state / f"{run.slug}.pt"


class DivergedError(ArithmeticError):
    """The loss is not finite any more."""


def finish(run: Run, place: Place) -> None:
    """Train and score, from where an earlier attempt left off, and write the result.

    A loss that diverges is a result too.
    """
    training = Training(run, place)
    result: Result = {
        "run": asdict(run),
        "split": place.split_name(run),
        "images": {"train": len(training.chosen), "evaluated": sum(len(labels) for _, labels in training.evaluated)},
        "classes": training.classes,
        "machine": {
            "processor": processor() if place.device == "cpu" else torch.cuda.get_device_name(place.device),
            "instructions": INSTRUCTIONS,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "edgeloss", "kornia", "monai", "numpy")},
        },
    }
    try:
        training.to_the_end()
    except DivergedError as error:
        result["failed"] = str(error)
    else:
        result["metrics"] = training.curve[-1]["metrics"]
    result["curve"] = training.curve
    place.results.mkdir(parents=True, exist_ok=True)
    with atomic_write(place.result(run)) as file:
        file.write((json.dumps(result) + "\n").encode())


class Training:
    """A network on its way.

    Args:
        run: what to train.
        place: where.
    """

    def __init__(self, run: Run, place: Place) -> None:
        """Open the data, and the checkpoint where there is one."""
        self.run, self.place = run, place
        self.classes, self.void = labels_of(place.data)

        def folder(root: Path, augment: Augment | None = None) -> SegmentationFolder:
            options = {"size": run.size, "augment": augment, "seed": run.seed, "cache": augment is not None}
            return SegmentationFolder(root, num_classes=len(self.classes), ignore_index=self.void, **options)

        self.train_set = folder(place.data / "train", Augment())
        everything = np.arange(len(self.train_set))
        held_out = np.sort(np.random.default_rng(0).permutation(everything)[: len(everything) // HELD_OUT])
        self.chosen = np.setdiff1d(everything, held_out) if run.held_out else everything
        scored = folder(place.data / "train" if run.held_out else place.split)
        self.evaluated = [
            _stacked(scored, index, "cpu")
            for index in _batches(held_out if run.held_out else np.arange(len(scored)), 8)
        ]

        torch.manual_seed(run.seed)
        self.model = UNet(len(self.classes), width=run.width).to(place.device)
        if run.precision == "bfloat16" and place.device == "cpu" and INSTRUCTIONS != "AVX512":
            for module in self.model.modules():
                if isinstance(module, nn.Conv2d):
                    module.__class__ = RoundedConv2d
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=run.lr, weight_decay=WEIGHT_DECAY)
        plain = folder(place.data / "train")
        self.criterion = make(
            run.loss,
            run.options,
            self.void,
            targets=(plain[int(i)][1][None] for i in self.chosen),
            num_classes=len(self.classes),
            device=place.device,
        )
        self.epoch = 0  # how many are complete
        self.curves: dict[str, list[Result]] = {}  # by the split they are of
        self.checkpoint = checkpoint_of(run, place.state)
        if self.checkpoint.exists():
            state = load_checkpoint(self.checkpoint, map_location=place.device)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.epoch, self.curves = state["epoch"], state["curves"]
        self.curve = self.curves.setdefault(place.split_name(run), [])

    def to_the_end(self) -> None:
        """Train what is left, scoring and saving after every epoch.

        Raises:
            DivergedError: if the loss becomes nan or infinite.
        """
        while self.epoch < self.run.epochs:
            start = time.perf_counter()
            loss = self._train_epoch()
            seconds = time.perf_counter() - start
            self.epoch += 1
            is_scored = self.epoch % self.place.score_every == 0 or self.epoch == self.run.epochs
            if is_scored:
                self._score(loss=loss, seconds=round(seconds, 1))
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            save_checkpoint(self.checkpoint, state | {"epoch": self.epoch, "curves": self.curves})
            found = self.curve[-1]["metrics"] if is_scored else {}
            scores = "  ".join(f"{METRICS[name]} {found[name]:.2%}" for name in SHOWN if name in found)
            progress = f"{self.epoch}/{self.run.epochs}"
            print(f"{self.run.slug}  {progress}  {loss:.4f}  {scores}  {seconds:.0f} s", flush=True)
        if not self.curve or self.curve[-1]["epoch"] < self.epoch:  # trained before, and scored on another split
            self._score()

    def _train_epoch(self) -> float:
        run = self.run
        steps_an_epoch = math.ceil(len(self.chosen) / run.batch)
        steps = run.epochs * steps_an_epoch
        self.train_set.set_epoch(self.epoch)
        order = np.random.default_rng((run.seed, self.epoch)).permutation(self.chosen)
        self.model.train()
        total = 0.0
        for step, index in enumerate(_batches(order, run.batch), start=self.epoch * steps_an_epoch):
            images, labels = _stacked(self.train_set, index, self.place.device)
            rise = min(1.0, (step + 1) / (WARMUP * steps_an_epoch))
            for group in self.optimizer.param_groups:
                group["lr"] = run.lr * rise * (1 - step / steps) ** POWER
            with torch.autocast(self.place.device, torch.bfloat16, enabled=run.precision == "bfloat16"):
                logits = self.model(images)
            loss = self.criterion(logits.float(), labels, Progress(step, steps, self.epoch))
            value = loss.item()
            if not math.isfinite(value):
                raise DivergedError(f"the loss is {value} in step {step + 1} of {steps}, epoch {self.epoch + 1}")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += value * len(index)
        return total / len(self.chosen)

    def _score(self, **about: float) -> None:
        scores = evaluate(self.model, self.evaluated, len(self.classes), self.void, self.place.device)
        self.curve.append({"epoch": self.epoch, **about, "metrics": scores})


def _batches(index: np.ndarray, size: int) -> list[np.ndarray]:
    return [index[start : start + size] for start in range(0, len(index), size)]


def _stacked(dataset: SegmentationFolder, index: Iterable[int], device: str) -> tuple[Tensor, Tensor]:
    images, labels = zip(*(dataset[int(i)] for i in index), strict=True)
    return torch.stack(images).to(device), torch.stack(labels).to(device)


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], num_classes: int, void: int, device: str
) -> dict[str, Any]:
    """All metrics over a split, and ``iou``, the list of those of the classes, None where one does not occur."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassJaccardIndex

    from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU

    labels = {"num_classes": num_classes, "ignore_index": void}
    collection = MetricCollection(
        {
            "iou": MulticlassJaccardIndex(average="none", zero_division=math.nan, **labels),
            **{name: BoundaryIoU(ratio=ratio, **labels) for name, ratio in RATIOS.items()},
            **{
                f"{s}_{r}": BoundaryF1(radius=r, score=s, **labels)
                for s in ("f1", "precision", "recall")
                for r in RADII
            },
            **{f"trimap_{r}": TrimapIoU(radius=r, **labels) for r in RADII},
        }
    ).to(device)
    model.eval()
    for images, target in batches:
        collection.update(model(images.to(device)).argmax(1), target.to(device))
    values = collection.compute()
    return {
        "miou": round(values["iou"].nanmean().item(), 6),
        **{name: round(values[name].item(), 6) for name in METRICS if name != "miou"},
        "iou": [None if math.isnan(value) else round(value, 6) for value in values["iou"].tolist()],
    }


# ----------------------------------------------------------------------------------------------------------- many runs


def runs_of(plan: Mapping[str, Any], *, data: str, held_out: bool = False) -> list[Run]:
    """The runs of a plan, all losses of one seed before those of the next.

    Args:
        plan: settings that all runs share, and ``runs``, a list of ``loss``, ``seeds`` and, maybe, ``options``.
        data: name of the data set.
        held_out: score on a part of the training images.

    Raises:
        ValueError: for a key that is not known or missing.
    """
    settings = {key: value for key, value in plan.items() if key != "runs"}
    if wrong := settings.keys() - set(SETTINGS):
        raise ValueError(f"plan: expected runs and some of {SETTINGS}, but got {sorted(wrong)}")
    runs = []
    for entry in plan.get("runs") or []:
        if not {"loss", "seeds"} <= entry.keys() <= {"loss", "seeds", "options"}:
            raise ValueError(f"plan: expected runs with loss, seeds and, maybe, options, but got {entry}")
        for seed in entry["seeds"]:
            options = entry.get("options") or {}
            runs.append(Run(entry["loss"], options, seed, data=data, held_out=held_out, **settings))
    if not runs:
        raise ValueError("plan: expected a list of runs but got none")
    return sorted(runs, key=lambda run: run.seed)


def check_trials(runs: Iterable[Run]) -> None:
    """Every loss that has options is to have as many trials as every other.

    Raises:
        ValueError: if that is not so.
    """
    trials = Counter(run.loss for run in runs if run.options)
    if len(set(trials.values())) > 1:
        raise ValueError(f"plan: expected as many trials of every loss, but got {dict(trials)}")


def execute(runs: Sequence[Run], place: Place, *, workers: int, threads: int) -> None:
    """Do the runs that have no result yet."""
    torch.set_num_threads(threads)
    left = [run for run in runs if not place.result(run).exists()]
    print(f"{len(runs)} runs, {len(left)} of them to do", flush=True)
    if workers == 1:
        for run in left:
            finish(run, place)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        list(pool.map(finish, left, repeat(place)))


# ---------------------------------------------------------------------------------------------------------------- crops


def pick(runs: Sequence[Run], names: Iterable[str]) -> dict[str, Run]:
    """The runs that the names mean: what a table calls the loss, without the options where one run alone fits.

    Raises:
        ValueError: for a name that means none or several, or nothing to compare.
    """
    known = {label(run.loss, run.options): run for run in runs}
    picked = {}
    for name in names:
        fit = [title for title in known if title == name] or [title for title in known if title.startswith(f"{name} (")]
        if len(fit) != 1:
            raise ValueError(f"--losses: expected some of {list(known)}, but got {name!r}")
        picked[fit[0]] = known[fit[0]]
    if len(picked) < 2:
        raise ValueError(f"--losses: expected two or more, but got {list(picked)}")
    return picked


@torch.no_grad()
def predict(run: Run, state: Path, batches: Iterable[Tensor], num_classes: int, device: str) -> Tensor:
    """The labels [N, H, W] that a finished run gives the images.

    Raises:
        CheckpointError: if there is no checkpoint, or the run is not finished.
    """
    path = checkpoint_of(run, state)
    checkpoint = load_checkpoint(path, map_location=device)
    if checkpoint["epoch"] != run.epochs:
        done = checkpoint["epoch"]
        raise CheckpointError(f"{path}: expected {run.epochs} epochs, but got {done}; `plan` goes on with it")
    model = UNet(num_classes, width=run.width).to(device).eval()
    load_weights(model, checkpoint["model"])
    return torch.cat([model(images.to(device)).argmax(1).cpu() for images in batches])


# ----------------------------------------------------------------------------------------------------------------- cost


def costs_of(chosen: Sequence[tuple[str, Options]], labels: Labels, classes: int, rounds: int) -> dict[str, Result]:
    """What a forward and backward pass of each loss takes, by its label: time, ratio to cross-entropy, and memory."""
    seconds = alone(measure_time, chosen, labels, classes, rounds)
    found = {}
    for name, options in chosen:
        loss = label(name, options)
        found[loss] = {
            "milliseconds": round(seconds[loss] * 1e3, 3),
            "ratio": round(seconds[loss] / seconds[BASELINE], 3),
            "megabytes": round(alone(measure_memory, name, options, labels, classes) / 2**20, 2),
        }
    return found


class Pass:
    """A forward and backward pass of a loss over random logits."""

    def __init__(self, name: str, options: Options, labels: Labels, classes: int) -> None:
        """Make the inputs."""
        torch.manual_seed(0)
        batch, height, width = labels.shape
        self.logits = torch.randn(batch, classes, height, width).requires_grad_()
        self.target = torch.from_numpy(labels).long()
        self.loss = make(name, options, 255, targets=[self.target], num_classes=classes)

    def __call__(self) -> None:
        """Pass."""
        self.loss(self.logits, self.target, Progress()).backward()
        self.logits.grad = None


def measure_time(chosen: Sequence[tuple[str, Options]], labels: Labels, classes: int, rounds: int) -> dict[str, float]:
    """The median seconds of each loss, in turn, round after round."""
    seconds_of = stopwatch("cpu")
    passes = {label(name, options): Pass(name, options, labels, classes) for name, options in chosen}
    for run in passes.values():
        run()
    times = [{loss: seconds_of(run) for loss, run in passes.items()} for _ in range(rounds)]
    return {loss: statistics.median(time[loss] for time in times) for loss in passes}


def measure_memory(name: str, options: Options, labels: Labels, classes: int) -> int:
    """The bytes that a pass takes at its peak, beyond the gradient."""
    # Code, threads and libraries that come with the first call are not the pass's.
    Pass(name, options, np.indices((8, 8)).sum(0).astype(np.uint8)[None] % 2, classes)()
    run = Pass(name, options, labels, classes)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    forget_peak()
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before - run.logits.nbytes


# ------------------------------------------------------------------------------------------------------------- commands


def option(text: str) -> tuple[str, float | None]:
    """NAME=VALUE of a loss."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE but got {text!r}")
    return name, yaml.safe_load(value)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--results", type=Path, default=RESULTS / "quality", metavar="DIR", help="result files (default: %(default)s)"
    )
    networks = argparse.ArgumentParser(add_help=False)
    networks.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "camvid",
        metavar="DIR",
        help="with train/, val/ and classes.txt (default: %(default)s)",
    )
    networks.add_argument(
        "--eval-split", type=Path, metavar="DIR", help="images/ and masks/ to score on (default: val/ of the data)"
    )
    networks.add_argument(
        "--state",
        type=Path,
        default=ROOT / "runs" / "quality",
        metavar="DIR",
        help="checkpoints, from which runs go on and other splits are scored (default: %(default)s)",
    )
    networks.add_argument("--device", default="cpu", help="default: %(default)s")
    training = argparse.ArgumentParser(add_help=False, parents=[shared, networks])
    training.add_argument("--workers", type=int, default=1, help="runs at a time (default: %(default)s)")
    training.add_argument("--threads", type=int, default=1, help="of each run (default: %(default)s)")
    training.add_argument(
        "--score-every", type=int, default=1, metavar="EPOCHS", help="for the curves (default: %(default)s)"
    )

    run = commands.add_parser("run", parents=[training], help="train one loss")
    run.add_argument("--loss", required=True, choices=list(RECIPES))
    run.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help="of the loss")
    run.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: %(default)s")
    for name in SETTINGS:
        default = getattr(Run, name)
        many = {"nargs": 2, "metavar": ("HEIGHT", "WIDTH")} if name == "size" else {}
        kind = int if name == "size" else type(default)
        run.add_argument(f"--{name}", type=kind, default=default, help="default: %(default)s", **many)
    plan = commands.add_parser("plan", parents=[training], help="do all runs of a YAML file")
    plan.add_argument("plan", type=Path)
    for command in (run, plan):
        command.add_argument("--held-out", action="store_true", help="score on a fifth of the training images")
    tune = commands.add_parser("tune", parents=[training], help="do trials on the training images alone")
    tune.add_argument("plan", type=Path)
    tune.add_argument(
        "--by", nargs="+", choices=list(METRICS), default=["miou", "f1_1"], help="mean of these (default: %(default)s)"
    )

    images = ROOT / "docs" / "images"
    cost_file = RESULTS / "quality-cost.json"
    shown = argparse.ArgumentParser(add_help=False, parents=[shared])
    shown.add_argument("--split", metavar="NAME", help="val, or held-out for the trials (default: all)")
    table = commands.add_parser("table", parents=[shown], help="Markdown of all results")
    table.add_argument(
        "--baseline", default=BASELINE, metavar="LOSS", help="as the table names it (default: %(default)s)"
    )
    table.add_argument("--plan", type=Path, metavar="FILE", help="only the losses of this plan (default: all)")
    table.add_argument(
        "--metrics",
        nargs="+",
        choices=list(METRICS),
        default=list(METRICS),
        metavar="NAME",
        help="the scores to print (default: %(default)s)",
    )
    table.add_argument("--json", type=Path, metavar="FILE", help="write the figures, too")
    table.add_argument("--cost", type=Path, default=cost_file, metavar="FILE", help="of `cost` (default: %(default)s)")
    plot = commands.add_parser("plot", parents=[shown], help="draw bars and curves")
    plot.add_argument("--output", type=Path, default=images, metavar="DIR", help="default: %(default)s")
    crops = commands.add_parser("crops", parents=[networks], help="draw where a loss is sharper than another")
    crops.add_argument("plan", type=Path, help="of runs that are finished")
    crops.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    crops.add_argument(
        "--losses",
        nargs="+",
        default=[TITLES[name] for name in ("ce", "weighted", "ours")],
        metavar="LOSS",
        help="as the table names them: the last is compared with the first (default: %(default)s)",
    )
    crops.add_argument("--count", type=int, default=3, help="crops a figure (default: %(default)s)")
    crops.add_argument("--window", type=int, default=64, help="pixels along a side (default: %(default)s)")
    crops.add_argument("--output", type=Path, default=images, metavar="DIR", help="default: %(default)s")

    cost = commands.add_parser("cost", help="time and memory of every loss")
    cost.add_argument("--plan", type=Path, help="measure the losses of this plan, with their options")
    cost.add_argument(
        "--shape", type=int, nargs=4, default=[4, 11, 180, 240], metavar=("B", "C", "H", "W"), help="%(default)s"
    )
    cost.add_argument("--masks", type=Path, metavar="DIR", help="label masks to tile; generated ones if absent")
    cost.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    cost.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    cost.add_argument("--output", type=Path, default=cost_file, metavar="FILE", help="default: %(default)s")
    return parser.parse_args(arguments)


def folders(options: argparse.Namespace) -> tuple[Path, Path]:
    """The data and the split to score on."""
    data = options.data.resolve()
    return data, (options.eval_split or data / "val").resolve()


def do_runs(options: argparse.Namespace) -> None:
    """The commands `run`, `plan` and `tune`."""
    data, split = folders(options)
    place = Place(data, split, options.results, options.state, options.device, options.score_every)
    if options.command == "run":
        settings = {name: getattr(options, name) for name in (*SETTINGS, "held_out")}
        runs = [Run(options.loss, dict(options.option), seed, data=data.name, **settings) for seed in options.seeds]
    else:
        tuning = options.command == "tune"
        runs = runs_of(yaml.safe_load(options.plan.read_text()), data=data.name, held_out=tuning or options.held_out)
        if tuning:
            check_trials(runs)
    execute(runs, place, workers=options.workers, threads=options.threads)
    if options.command == "tune":
        results = [json.loads(place.result(run).read_text()) for run in runs]
        print(trials(summarise(results), options.by))


def do_table(options: argparse.Namespace) -> None:
    """The command `table`."""
    costs = json.loads(options.cost.read_text())["losses"] if options.cost.exists() else {}
    found = read_results(options.results, options.split)
    rows = {common: summarise(results, options.baseline) for common, results in found.items()}
    if options.plan:
        planned = {label(run.loss, run.options) for run in runs_of(yaml.safe_load(options.plan.read_text()), data="")}
        rows = {common: [row for row in own if row["loss"] in planned] for common, own in rows.items()}
    for common, own in rows.items():
        print(f"{common}\n\n{markdown(own, costs, options.baseline, options.metrics)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def do_plot(options: argparse.Namespace) -> None:
    """The command `plot`."""
    results = read_results(options.results, options.split)
    options.output.mkdir(parents=True, exist_ok=True)
    for common, own in results.items():
        suffix = "" if len(results) == 1 else "-" + hashlib.sha256(common.encode()).hexdigest()[:6]
        rows = summarise(own)
        if any(row["differences"] for row in rows):
            plot_bars(rows, common, options.output / f"quality-bars{suffix}.png")
        plot_curves(own, common, options.output / f"quality-curves{suffix}.png")


def do_crops(options: argparse.Namespace) -> None:
    """The command `crops`."""
    data, folder = folders(options)
    runs = runs_of(yaml.safe_load(options.plan.read_text()), data=data.name)
    if options.seed not in (seeds := sorted({run.seed for run in runs})):
        raise ValueError(f"--seed: expected one of {seeds}, as the plan has, but got {options.seed}")
    chosen = pick([run for run in runs if run.seed == options.seed], options.losses)
    classes, void = labels_of(data)
    dataset = SegmentationFolder(folder, num_classes=len(classes), ignore_index=void, size=runs[0].size)
    batches = [_stacked(dataset, index, "cpu") for index in _batches(np.arange(len(dataset)), 8)]
    images, targets = zip(*batches, strict=True)
    split = Split(
        dataset.names,
        denormalize(torch.cat(images)),
        torch.cat(targets),
        {name: predict(run, options.state, images, len(classes), options.device) for name, run in chosen.items()},
        classes,
        void,
    )
    found = windows(split, options.window)
    figures = choose(found, options.count)
    baseline, *_, ours = chosen
    about = f"{ours} against {baseline}; {data.name}, {folder.name}, seed {options.seed}: {summary(found)}"
    print(about)
    options.output.mkdir(parents=True, exist_ok=True)
    for kind, rows in figures.items():
        plot_crops(split, rows, kind, about, options.output / f"quality-crops-{kind}.png")


def do_cost(options: argparse.Namespace) -> None:
    """The command `cost`."""
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of the processes that measure
    chosen: list[tuple[str, Options]] = [(name, {}) for name in RECIPES] + [("abl", {"lovasz": 1.0})]
    if options.plan:
        runs = runs_of(yaml.safe_load(options.plan.read_text()), data="")
        chosen += [(run.loss, run.options) for run in runs]
    chosen = list({label(name, own): (name, own) for name, own in chosen}.values())
    batch, classes, *size = options.shape
    labels = (
        regions(batch, tuple(size), classes, 1)
        if options.masks is None
        else scenes(options.masks, batch, tuple(size), classes)
    )
    found = costs_of(chosen, labels, classes, options.rounds)
    about = {
        "processor": processor(),
        "instructions": INSTRUCTIONS,
        "threads": options.threads,
        "torch": torch.__version__,
        "logits": options.shape,
        "labels": "regions" if options.masks is None else "scenes",
    }
    options.output.write_text(json.dumps({"machine": about, "losses": found}, indent=1) + "\n")
    print("| loss | ms | × CE | MB |\n|---|---:|---:|---:|")
    for loss, cost in found.items():
        print(f"| {loss} | {cost['milliseconds']:.1f} | {cost['ratio']:.2f} | {cost['megabytes']:.1f} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    options = parse(arguments)
    commands = {"table": do_table, "plot": do_plot, "crops": do_crops, "cost": do_cost}
    try:
        commands.get(options.command, do_runs)(options)
    except (CheckpointError, OSError, TypeError, ValueError) as error:
        print(f"quality.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
