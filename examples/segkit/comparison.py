"""The same validation images, labeled by the networks of several runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from edgeloss.integrations.run_page import Row
from edgeloss.io import check_file
from edgeloss.viz import distinct_colors
from edgeloss.viz.palette import VOID
from edgeloss.viz.scores import compute_scores
from segkit.checkpoint import open_network
from segkit.data import denormalize, open_dataset


class LabeledImage(NamedTuple):
    """A validation image.

    Attributes:
        name: of its file.
        image: [3, H, W] in [0, 1].
        target: [H, W], -1 at ignored pixels.
        logits: [C, H, W].
        miou: mean IoU of the most probable classes, nan without a valid pixel.
    """

    name: str
    image: Tensor
    target: Tensor
    logits: Tensor
    miou: float


class Labeled(NamedTuple):
    """The validation images of a run.

    Attributes:
        classes: names of the classes.
        images: labeled by the network after the last epoch.
    """

    classes: list[str]
    images: list[LabeledImage]


def read_history(folder: Path) -> list[Row]:
    """Read the figures of each epoch of a run.

    Raises:
        ValueError: if the folder has no metrics of a run.
    """
    path = folder / "metrics.json"
    check_file(path)
    try:
        epochs: list[Row] = json.loads(path.read_text(encoding="utf-8"))["epochs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected the metrics of a run, but got an error ({error})") from error
    return epochs


@torch.inference_mode()
def label_validation(folder: Path) -> Labeled:
    """Label the validation images of a run with its network after the last epoch.

    Raises:
        CheckpointError: if there is no last.ckpt, or it can't be used.
    """
    network, about = open_network(folder / "last.ckpt")
    classes, data = list(about["classes"]), about["data"]
    dataset = open_dataset(data["layout"], data["root"], data["val"], classes=data["classes"], size=data["size"])
    images = []
    for name, (image, target) in zip(dataset.names, dataset, strict=True):
        logits = network(image[None])
        if logits.shape[2:] != target.shape:
            logits = torch.nn.functional.interpolate(logits, target.shape, mode="bilinear")
        target = target.masked_fill(target == dataset.ignore_index, -1)
        scores = compute_scores(target[None].numpy(), logits.argmax(1).numpy(), len(classes))
        images.append(LabeledImage(name, denormalize(image), target, logits[0], scores.means["mean IoU"]))
    return Labeled(classes, images)


def quartiles(labeled: Sequence[Labeled]) -> list[int]:
    """Return the images at the quartiles of what the last run gains over the first in mean IoU."""
    pairs = zip(labeled[0].images, labeled[-1].images, strict=True)
    gains = [b.miou - a.miou for a, b in pairs]
    order = sorted((i for i, gain in enumerate(gains) if not math.isnan(gain)), key=gains.__getitem__)
    return [order[round(share * (len(order) - 1))] for share in (0.25, 0.5, 0.75)]


def draw_labels(labeled: Mapping[str, Labeled], indices: Sequence[int]) -> Figure:
    """Draw images, one per row, with their labels and those of each run."""
    first = next(iter(labeled.values()))
    colors = np.vstack([distinct_colors(len(first.classes)), VOID])
    figure = Figure(figsize=(2.4 * (2 + len(labeled)), 2.6 * len(indices) + 0.7), layout="constrained")
    grid = figure.subplots(len(indices), 2 + len(labeled), squeeze=False)
    for axes, index in zip(grid, indices, strict=True):
        name, image, target, _, _ = first.images[index]
        axes[0].imshow(image.permute(1, 2, 0).numpy(), interpolation="nearest")
        axes[0].set_title(name, fontsize="medium")
        axes[1].imshow(colors[target.numpy()], interpolation="nearest")
        axes[1].set_title("ground truth", fontsize="medium")
        for place, (run, images) in zip(axes[2:], labeled.items(), strict=True):
            one = images.images[index]
            place.imshow(colors[one.logits.argmax(0).masked_fill(target < 0, -1).numpy()], interpolation="nearest")
            place.set_title(f"{run}: mIoU {one.miou:.1%}", fontsize="medium")
        for place in axes:
            place.set(xticks=[], yticks=[])
    handles = [Patch(color=color) for color in colors]
    figure.legend(handles, [*first.classes, "ignored"], loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle("Validation images at the quartiles of the gain in mean IoU", fontsize="medium")
    return figure
