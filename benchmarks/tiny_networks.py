"""Train networks of a few convolutions from scratch on generated images, under several losses and seeds.

What benchmarks of such trainings share: the losses, the training, rows of results and the table of them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgeloss import EdgeAwareLoss
from measure import processor
from result_table import Row, add_rows, markdown_table, read_rows

STEPS, BATCH, RATE = 300, 8, 1e-3
FAILED = 0.3  # Dice below which a training has failed

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A task.

    Attributes:
        name: as the table names it.
        draw: returns images and labels of so many images.
        channels: of the images.
        logits: per pixel; with labels of each channel, as many.
        layers: convolutions before the last one.
    """

    name: str
    draw: Callable[[int, torch.Generator], Batch]
    channels: int = 1
    logits: int = 2
    layers: int = 2

    @property
    def multilabel(self) -> bool:
        """Whether each channel has labels of its own."""
        return self.channels > 1


def balanced(case: Case) -> Tensor:
    """Return weights with which background and foreground have the same total, counted in 1,000 images."""
    _, labels = case.draw(1000, torch.Generator().manual_seed(0))
    return 0.5 * labels.numel() / labels.flatten().bincount(minlength=2)


def cross_entropy(case: Case, weight: Tensor | None = None) -> Loss:
    """Return the cross-entropy of a case, with weights of background and foreground if given."""
    if case.logits == 2:
        return partial(F.cross_entropy, weight=weight)
    weights = torch.ones(2) if weight is None else weight

    def loss(x: Tensor, y: Tensor) -> Tensor:
        y = y.view(x.shape)
        of_pixels = weights[y]
        mean = F.binary_cross_entropy_with_logits(x, y.to(x.dtype), of_pixels)
        return mean / of_pixels.mean()  # as nn.CrossEntropyLoss

    return loss


def with_dice(case: Case, weight: Tensor | None = None) -> Loss:
    """Return the cross-entropy plus 1 - Dice of each image and foreground class, smoothed as MONAI's."""
    first = cross_entropy(case, weight)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        p = x.softmax(1)[:, 1:] if case.logits == 2 else x.sigmoid()
        p, t = p.flatten(2), y.view(p.shape).to(p.dtype).flatten(2)
        dice = (2 * (p * t).sum(2) + 1e-5) / (p.sum(2) + t.sum(2) + 1e-5)
        return first(x, y) + (1 - dice).mean()

    return loss


LOSSES: dict[str, Callable[[Case], Loss]] = {
    "cross-entropy": cross_entropy,
    "class-weighted CE": lambda case: cross_entropy(case, balanced(case)),
    "CE + Dice": with_dice,
    "class-weighted CE + Dice": lambda case: with_dice(case, balanced(case)),
    "EdgeAwareLoss()": lambda case: EdgeAwareLoss(multilabel=case.multilabel),
    "EdgeAwareLoss(edge_focus=8)": lambda case: EdgeAwareLoss(multilabel=case.multilabel, edge_focus=8.0),
    "EdgeAwareLoss(region_weight=0)": lambda case: EdgeAwareLoss(multilabel=case.multilabel, region_weight=0.0),
}


def dice_of(case: Case, loss: str, seed: int, evaluated: int) -> float:
    """Train once, and return the least Dice of a channel, of all pixels of new images."""
    torch.manual_seed(seed)
    draw, layers = torch.Generator().manual_seed(seed), []
    for width in (case.channels, *[16] * (case.layers - 1)):
        layers += [nn.Conv2d(width, 16, 3, padding=1), nn.ReLU()]
    model, criterion = nn.Sequential(*layers, nn.Conv2d(16, case.logits, 3, padding=1)), LOSSES[loss](case)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for _ in range(STEPS):
        images, labels = case.draw(BATCH, draw)
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
    images, labels = case.draw(evaluated, draw)
    with torch.no_grad():
        output = model(images)
    found = output.argmax(1, keepdim=True) if case.logits == 2 else (output > 0).long()
    labels = labels.view(found.shape)
    both, either = (found * labels).sum((0, 2, 3)), (found + labels).sum((0, 2, 3))
    return float((2 * both / either.clamp(min=1)).min())


def run(cases: Iterable[Case], losses: Sequence[str], about: str, output: Path, evaluated: int) -> None:
    """Train every case under every loss with every seed of the command line, and print the table.

    Args:
        cases: the tasks.
        losses: names in ``LOSSES``.
        about: what the program does, for its help.
        output: the table of results, which keeps what is done.
        evaluated: the number of new images.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="trainings per loss (default: 10)")
    parser.add_argument("--output", type=Path, default=output, help=f"the table of results (default: {output.name})")
    options, cases = parser.parse_args(), [*cases]
    torch.set_num_threads(1)
    machine = {"processor": processor(), "cores": os.cpu_count(), "threads": 1, "torch": torch.__version__}
    done = {key_of(row) for row in read_rows(options.output)}
    for case in cases:
        for loss in losses:
            for seed in range(options.seeds):
                row: Row = {"case": case.name, "loss": loss, "seed": seed}
                if key_of(row) in done:
                    continue
                row |= {"dice": round(dice_of(case, loss, seed, evaluated), 4), "machine": machine}
                add_rows(options.output, [row], key_of)
                print(f"{case.name}, {loss}, seed {seed}: Dice {row['dice']:.2f}", flush=True)
    print("\n".join(table(read_rows(options.output), [case.name for case in cases], losses)))


def key_of(row: Row) -> str:
    """Return the key of a row in the table of results."""
    return f"{row['case']}, {row['loss']}, {row['seed']:3}"


def table(rows: Sequence[Row], cases: Sequence[str], losses: Sequence[str]) -> list[str]:
    """Return how many trainings failed under each loss, and the median Dice of the others, in Markdown."""

    def cell(case: str, loss: str) -> str:
        dice = [row["dice"] for row in rows if (row["case"], row["loss"]) == (case, loss)]
        good = [value for value in dice if value >= FAILED]
        return f"{len(dice) - len(good)} of {len(dice)}" + (f"; {median(good):.2f}" if good else "") if dice else "–"

    return markdown_table(
        ["failed; median Dice of the others", *(f"{loss}:" for loss in losses)],
        ([case, *(cell(case, loss) for loss in losses)] for case in cases),
    )


def results(name: str) -> Path:
    """Return the path of a table of results."""
    return Path(__file__).with_name("results") / name


def grid(size: int) -> Tensor:
    """Return the places of pixels, [2, size, size]."""
    return torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"))
