"""Runs: what a training depends on, plans of many runs, and where runs are stored."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from baselines.recipes import RECIPES, Options, completed, loss_title
from edgeloss.io import check_file
from result_table import Row

PRECISIONS = ("float32", "bfloat16")
NETWORKS = ("unet", "efficientnet-lite0")


@dataclass(frozen=True)
class Run:
    """A training: everything its weights depend on.

    Attributes:
        loss: name of a recipe.
        options: of the loss; the defaults complete them.
        seed: of the initial weights, the order of the images and their augmentation.
        data: name of the data set.
        held_out: train without a fifth of the training images, and score on that fifth.
        epochs: of ``crops`` passes over the training images each.
        batch: images per step.
        size: (height, width) that images are resized to, or (depth, height, width) that volumes are cropped and padded
            to; None keeps their own.
        width: channels of the U-Net at full resolution.
        lr: highest learning rate.
        precision: float32, or bfloat16 for training under autocast; the loss and the scores are always in float32.
        crop: size of random crops to train on; None trains on whole images. Scores are of whole images. A size or crop
            of three numbers is one of volumes.
        crops: samples of each training image per epoch.
        contiguous: hold out the last training images, not random ones: neighboring sections look the same.
        network: unet, or efficientnet-lite0, which has a size of its own and takes images only.
        pretrained: start efficientnet-lite0 from ImageNet weights.
    """

    loss: str
    options: Options
    seed: int
    data: str = "camvid"
    held_out: bool = False
    epochs: int = 15
    batch: int = 4
    size: tuple[int, ...] | None = (180, 240)
    width: int = 8
    lr: float = 3e-3
    precision: str = "float32"
    crop: tuple[int, ...] | None = None
    crops: int = 1
    contiguous: bool = False
    network: str = "unet"
    pretrained: bool = False

    def __post_init__(self) -> None:
        """Complete the options, so that equal runs compare equal however they are written.

        Raises:
            ValueError: if the precision or the network is unknown, the network has no pretrained weights, or there are
                no crops.
        """
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: expected one of {PRECISIONS}, but got {self.precision!r}")
        if self.network not in NETWORKS:
            raise ValueError(f"network: expected one of {NETWORKS}, but got {self.network!r}")
        if self.pretrained and self.network != "efficientnet-lite0":
            raise ValueError(f"pretrained: expected false for network {self.network}, but got true")
        if self.crops < 1:
            raise ValueError(f"crops: expected an int >= 1, but got {self.crops}")
        object.__setattr__(self, "options", completed(self.loss, self.options))
        for name in ("size", "crop"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if value else None)

    @property
    def split(self) -> str:
        """The name of the images that the run is scored on."""
        return "held-out" if self.held_out else "val"

    @property
    def key(self) -> str:
        """A unique name, of its checkpoint and of its row in the table of results."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.loss}-seed{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def is_earlier(self) -> bool:
        """Whether an earlier version computed the loss in another way, so that it can't be trained again."""
        return bool(self.options.keys() & RECIPES[self.loss].earlier.keys())

    @property
    def dims(self) -> int:
        """Number of axes of an image: 2, or 3 for volumes."""
        return len(self.crop or self.size or (0, 0))

    @property
    def settings(self) -> tuple[Any, ...]:
        """The values of SETTINGS, which the runs of a plan share."""
        return tuple(getattr(self, name) for name in SETTINGS)

    @property
    def title(self) -> str:
        """The loss as tables name it."""
        return loss_title(self.loss, self.options)


SETTINGS = [field.name for field in fields(Run) if field.name not in ("loss", "options", "seed", "data", "held_out")]


def run_of(row: Row) -> Run:
    """Return the run of a row of the table of results."""
    return Run(**row["run"])


def key_of(row: Row) -> str:
    """Return the key of a row of the table of results."""
    return run_of(row).key


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes; its weights do not depend on this.

    Attributes:
        root: folder of the data sets, each a folder with train/, val/ and classes.txt.
        results: the table of results.
        state: folder of the checkpoints.
        device: to train on.
        score_every: number of epochs between scores; the last epoch is always scored.
        rescore: whether a run whose row lacks scores is done again, from its checkpoint if there is one.
        end: time when no run is begun, and none goes on that two epochs have shown to take longer.
    """

    root: Path
    results: Path
    state: Path
    device: str = "cpu"
    score_every: int = 1
    rescore: bool = False
    end: float = math.inf

    def checkpoint(self, run: Run) -> Path:
        """Return the path of the run's checkpoint."""
        return self.state / f"{run.key}.pt"


# ---------------------------------------------------------------------------------------------------------------- plans


def read_plan(path: Path, *, held_out: bool = False) -> list[Run]:
    """Read the runs of a YAML file."""
    check_file(path)
    return runs_of(yaml.safe_load(path.read_text()), held_out=held_out)


def runs_of(plan: Mapping[str, Any] | Sequence[Any], *, held_out: bool = False) -> list[Run]:
    """Return the runs of a plan, all losses of one seed before those of the next.

    Args:
        plan: settings that all runs share; ``runs``, a list of ``loss``, ``seeds`` and optionally ``options``; and
            optionally ``data``, the data sets by name, each with the settings that differ there. Or a list of such
            plans.
        held_out: score on a part of the training images.

    Raises:
        ValueError: if a key is unknown or missing.
    """
    runs = []
    for part in [plan] if isinstance(plan, Mapping) else plan:
        shared = {key: value for key, value in part.items() if key not in ("runs", "data")}
        for name, own in (part.get("data") or {Run.data: None}).items():
            settings = shared | (own or {})
            if wrong := settings.keys() - set(SETTINGS):
                raise ValueError(f"plan: expected runs, data and some of {SETTINGS}, but got {sorted(wrong)}")
            for entry in part.get("runs") or []:
                if not {"loss", "seeds"} <= entry.keys() <= {"loss", "seeds", "options"}:
                    raise ValueError(f"plan: expected runs with loss, seeds and optionally options, but got {entry}")
                what = entry["loss"], entry.get("options") or {}
                runs += [Run(*what, seed, data=name, held_out=held_out, **settings) for seed in entry["seeds"]]
    if not runs:
        raise ValueError("plan: expected a list of runs, but got none")
    return sorted(runs, key=lambda run: run.seed)


def pick(runs: Iterable[Run], names: Iterable[str]) -> dict[str, Run]:
    """Return the runs with these names, by title.

    A name without options is enough if only one run has that loss.

    Raises:
        ValueError: if a name fits no run or several, or there is nothing to compare.
    """
    known = {run.title: run for run in runs}
    picked = {}
    for name in names:
        fit = [title for title in known if title == name] or [title for title in known if title.startswith(f"{name} (")]
        if len(fit) != 1:
            raise ValueError(f"--losses: expected some of {list(known)}, but got {name!r}")
        picked[fit[0]] = known[fit[0]]
    if len(picked) < 2:
        raise ValueError(f"--losses: expected two or more, but got {list(picked)}")
    return picked
