#!/usr/bin/env python3
"""Measure which pixels carry the gradient of each term of the loss in training.

A network is trained as in quality.py, under cross-entropy unless another loss is chosen, with a fifth of the training
images held out. At several stages of the training, the gradient of each term alone is computed for its logits of some
held-out images; q is the exponent of the mean over neighbors:

  CE     mean cross-entropy
  CE|E   mean cross-entropy over the edge pixels E: what the control, edge-weighted cross-entropy, adds
  S, O   the same-side and the other-side term

Some complete losses of baselines/recipes.py follow. A pixel's part of a gradient is the sum of |∂/∂x(c)| over its
classes. For each term the tables show

  strength   its whole gradient relative to that of CE: how strong a weight of 1 makes it
  effective  the number of pixels that carry it, (Σg)² / Σg², divided by |E|
  to label   the share of the increased logits that belongs to the pixel's own label
  cos        cosine of the angle to the gradient of CE, of CE|E, and of the same term with the first q
  shares     its parts on pixels grouped by distance to the nearest border, by prediction, by structure, and by label

A "leak" is a wrong prediction of a class that is a label in the 3×3 or 5×5 pixels around. "thin" pixels are in no 5×5
square of their class; "next to thin" are the edge pixels across their border; all other pixels of E are "long border".
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from baselines.recipes import RECIPES, Options, Progress, make
from edgeloss.fields import boundary_distance
from edgeloss.io import atomic_write
from edgeloss.neighborhoods import find_edges, within_reach
from edgeloss.reference import cross_entropy_map, labels, neighbor_pairs, side_terms
from measure import processor
from quality import ROOT
from quality.arguments import RESULTS, option
from quality.runs import Place, Run, loss_title
from quality.training import Training
from segkit.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

EXAMPLES = """\
examples:
  nice python benchmarks/gradient_shares.py                # trains if runs/gradient-shares/ is empty
  python benchmarks/gradient_shares.py --loss ours --option edge_weight=2 --output /tmp/shares.json
  python benchmarks/gradient_shares.py --stages 2 6 --powers 1 0.5 0 -1 -4 --output /tmp/shares.json
  python benchmarks/gradient_shares.py --data data/shapes --size 32 32 --epochs 2 --stages 1 2 --output /tmp/shares.json
"""

CONFIDENT = 0.9
SQUARE = (2, 2)  # around its center: 5×5
NEXT = (1, 1)
EDGE_CE = "CE|E"
BY_POWER = " q="
LOSSES: list[tuple[str, Options]] = [
    ("weighted", {}),
    *(("ours", {"edge_weight": weight, "power": power}) for weight in (0.5, 2.0) for power in (1.0, 0.0)),
]

Groups = dict[str, dict[str, Tensor]]  # masks [B, H, W] by kind and name; each kind partitions the valid pixels
Row = dict[str, Any]


# --------------------------------------------------------------------------------------------------------------- pixels


def one_hot(y: Tensor, valid: Tensor, classes: int) -> Tensor:
    """Return where each class is the label, bool [B, C, H, W]."""
    return (torch.where(valid, y, -1)[:, None] == torch.arange(classes, device=y.device).view(-1, 1, 1)).contiguous()


def grown(masks: Tensor, radius: Sequence[int]) -> Tensor:
    """Dilate masks [B, C, H, W] by a radius."""
    return within_reach(masks.flatten(0, 1), radius).view_as(masks)


def thin(own: Tensor, valid: Tensor) -> Tensor:
    """Return the pixels of each class that an opening by the square removes.

    Void pixels and those outside the image count as any class, so that nothing is thin because they cut it off.

    Args:
        own: ``one_hot`` of the labels.
        valid: [B, H, W] bool.

    Returns:
        [B, C, H, W] bool.
    """
    others = valid[:, None] & ~own
    return own & ~grown(~grown(others, SQUARE), SQUARE)


def groups_of(x: Tensor, y: Tensor, valid: Tensor, void: int, classes: Sequence[str]) -> Groups:
    """Group the pixels by distance, state, structure and class."""
    own, edges = one_hot(y, valid, len(classes)), find_edges(y, valid, NEXT)
    d = boundary_distance(torch.where(valid, y, void), ignore_index=void)

    predicted = x.argmax(1)
    right = valid & (predicted == y)
    confident = right & (cross_entropy_map(x, y, valid, None, 0.0)[1] < -math.log(CONFIDENT))

    def leak(radius: Sequence[int]) -> Tensor:
        return valid & ~right & grown(own, radius).gather(1, predicted[:, None]).squeeze(1)

    near, wider = leak(NEXT), leak(SQUARE)
    slender = thin(own, valid)
    is_thin = slender.any(1)
    next_to_thin = valid & ~is_thin & (grown(slender, NEXT) & ~own).any(1)
    return {
        # d is 1 or √2 exactly on E.
        "distance": {
            "E": edges,
            "2 px": valid & (d >= 2) & (d < 3),
            "3-4 px": valid & (d >= 3) & (d < 5),
            "farther": valid & (d >= 5),
        },
        "state": {
            "right, p > 0.9": confident,
            "right, unsure": right & ~confident,
            "leak 3×3": near,
            "leak 5×5": wider & ~near,
            "third class": valid & ~right & ~wider,
        },
        "structure": {
            "thin": is_thin,
            "next to thin": next_to_thin,
            "long border": edges & ~is_thin & ~next_to_thin,
            "inside": valid & ~edges & ~is_thin,
        },
        "class": {name: own[:, k] for k, name in enumerate(classes)},
    }


# ---------------------------------------------------------------------------------------------------------------- terms


def gradients_of(x: Tensor, y: Tensor, valid: Tensor, void: int, powers: Sequence[float]) -> dict[str, Tensor]:
    """Compute the gradient [B, C, H, W] of each term and complete loss."""
    x = x.detach().requires_grad_()
    edges = find_edges(y, valid, NEXT)
    size = edges.sum().clamp(min=1)
    ce = cross_entropy_map(x, y, valid, None, 0.0)[1]
    at_edges = neighbor_pairs(x, y, valid, edges, None, NEXT)

    def edge_term(side: int, q: float) -> Tensor:
        return side_terms(at_edges, at_edges.t, q)[side].sum() / size

    terms: dict[str, Callable[[], Tensor]] = {
        "CE": lambda: ce.sum() / valid.sum().clamp(min=1),
        EDGE_CE: lambda: ce[edges].sum() / size,
    }
    for side, name in enumerate("SO"):
        for q in powers:
            terms[f"{name}{BY_POWER}{q:g}"] = partial(edge_term, side, q)
    for name, options in LOSSES:
        terms[loss_title(name, options)] = partial(make(name, options, void), x, y, Progress())
    return {name: torch.autograd.grad(term(), x, retain_graph=True)[0] for name, term in terms.items()}


def shares_of(g: Tensor, groups: Groups) -> dict[str, dict[str, float]]:
    """Return the share of each group in a map g ≥ 0 [B, H, W]; 0 if the map is 0."""
    total = g.sum(dtype=torch.float64).item() or 1.0
    return {
        kind: {name: g[mask].sum(dtype=torch.float64).item() / total for name, mask in masks.items()}
        for kind, masks in groups.items()
    }


def describe(gradients: Mapping[str, Tensor], y: Tensor, valid: Tensor, groups: Groups) -> dict[str, Row]:
    """Return the figures of the pixels alone, then of each term."""
    edges = groups["distance"]["E"].sum().item()
    rows: dict[str, Row] = {"pixels": {"shares": shares_of(valid.double(), groups)}}
    own = one_hot(y, valid, next(iter(gradients.values())).shape[1])
    whole = {name: gradient.double() for name, gradient in gradients.items()}
    first: dict[str, str] = {}

    def cosine(name: str, other: str) -> float:
        return F.cosine_similarity(whole[name].flatten(), whole[other].flatten(), dim=0).item()

    for name, gradient in whole.items():
        g = gradient.abs().sum(1)
        total = g.sum().item()
        rows[name] = {
            "strength": total / (whole["CE"].abs().sum().item() or 1.0),
            "effective": total**2 / (g.square().sum().item() or 1.0) / max(edges, 1),
            # The gradient of a pixel sums to 0 over the classes: half of its norm increases logits.
            "to_label": -gradient[own].sum().item() / (total / 2 or 1.0),
            "cos_ce": cosine(name, "CE"),
            "cos_edge_ce": cosine(name, EDGE_CE),
            "cos_first_q": cosine(name, first.setdefault(name.partition(BY_POWER)[0], name)),
            "shares": shares_of(g, groups),
        }
    return rows


# --------------------------------------------------------------------------------------------------------------- stages


class Staged(Training):
    """A training that saves the network of every epoch."""

    def stage(self, epoch: int) -> Path:
        """Return the path of an epoch's checkpoint."""
        return self.checkpoint.with_name(f"{self.run.slug}-epoch{epoch}.pt")

    def score(self, **about: float) -> None:
        """Add a row to the curve, and save the network."""
        super().score(**about)
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.stage(self.epoch), {"model": self.model.state_dict(), "scores": self.curve[-1]})


@torch.no_grad()
def predict(training: Staged, epoch: int, images: Tensor) -> tuple[Tensor, Row]:
    """Return the logits [B, C, H, W] of a stage, and its scores."""
    state = load_checkpoint(training.stage(epoch))
    training.model.load_state_dict(state["model"])
    training.model.eval()
    return torch.cat([training.model(part) for part in images.split(8)]), state["scores"]["metrics"]


def examine(training: Staged, epoch: int, count: int, powers: Sequence[float]) -> Row:
    """Compute all figures of a stage, from ``count`` of the held-out images."""
    images, targets = (torch.cat(parts) for parts in zip(*training.evaluated, strict=True))
    # Evenly spaced, since neighboring frames of a video look similar.
    chosen = torch.linspace(0, len(images) - 1, min(count, len(images))).long()
    x, scores = predict(training, epoch, images[chosen])
    y, valid = labels(targets[chosen], x.shape[1], training.void)
    groups = groups_of(x, y, valid, training.void, training.classes)
    rows = describe(gradients_of(x, y, valid, training.void, powers), y, valid, groups)
    return {"epoch": epoch, "images": len(chosen), "miou": scores["miou"], "f1_1": scores["f1_1"], "terms": rows}


def rounded(figures: Any) -> Any:  # noqa: ANN401
    """Round all figures to four digits."""
    if isinstance(figures, dict):
        return {key: rounded(value) for key, value in figures.items()}
    if isinstance(figures, list):
        return [rounded(value) for value in figures]
    return float(f"{figures:.4g}") if isinstance(figures, float) else figures


# --------------------------------------------------------------------------------------------------------------- tables


def markdown(stage: Row) -> str:
    """Write the tables of a stage as Markdown."""
    terms: dict[str, Row] = stage["terms"]
    lines = [f"after epoch {stage['epoch']}: held-out mIoU {stage['miou']:.1%}, Boundary F1 (1 px) {stage['f1_1']:.1%}"]
    lines += ["", "| term | strength | effective | to label | cos CE | cos CE\\|E | cos q |", "|---|" + "--:|" * 6]
    for name, row in terms.items():
        if name != "pixels":
            keys = "strength", "effective", "to_label", "cos_ce", "cos_edge_ce", "cos_first_q"
            lines.append(f"| {escaped(name)} | {' | '.join(f'{row[key]:.2f}' for key in keys)} |")
    for kinds in (("distance", "state", "structure"), ("class",)):
        heads = [name for kind in kinds for name in terms["pixels"]["shares"][kind]]
        lines += ["", f"| share, % | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
        for name, row in terms.items():
            shares = [share for kind in kinds for share in row["shares"][kind].values()]
            lines.append(f"| {escaped(name)} | {' | '.join(f'{share * 100:.0f}' for share in shares)} |")
    return "\n".join(lines)


def escaped(name: str) -> str:
    """Escape a term's name for a cell of a table."""
    return name.replace("|", "\\|")


# ------------------------------------------------------------------------------------------------------------- commands


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "camvid",
        metavar="DIR",
        help="folder with train/ and classes.txt (default: %(default)s)",
    )
    parser.add_argument("--images", type=int, default=16, help="held-out images to examine (default: %(default)s)")
    parser.add_argument(
        "--stages", type=int, nargs="+", default=[1, 4, 8], metavar="EPOCH", help="epochs to examine (default: 1 4 8)"
    )
    parser.add_argument("--powers", type=float, nargs="+", default=[1, 0, -1], metavar="Q", help="default: 1 0 -1")
    parser.add_argument("--loss", default="ce", choices=list(RECIPES), help="loss to train with (default: %(default)s)")
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help="of that loss")
    parser.add_argument("--epochs", type=int, default=8, help="epochs to train (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--size", type=int, nargs=2, default=[120, 160], metavar=("HEIGHT", "WIDTH"), help="default: 120 160"
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=ROOT / "runs" / "gradient-shares",
        metavar="DIR",
        help="checkpoints, to resume a killed run (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "gradient-shares.json", metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args(arguments)
    if wrong := [stage for stage in options.stages if not 1 <= stage <= options.epochs]:
        parser.error(f"--stages: expected epochs from 1 to {options.epochs}, but got {wrong}")
    if options.images < 1:
        parser.error(f"--images: expected at least 1, but got {options.images}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, examine the stages, print the tables and write the figures."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    data = options.data.resolve()
    settings = {"epochs": options.epochs, "size": options.size, "precision": "bfloat16"}
    try:
        run = Run(options.loss, dict(options.option), options.seed, data=data.name, held_out=True, **settings)
        training = Staged(run, Place(data.parent, None, options.state, options.state))
        training.train()
        stages = [examine(training, epoch, options.images, options.powers) for epoch in options.stages]
        machine = {"processor": processor(), "threads": options.threads, "torch": torch.__version__}
        result = {"machine": machine, "run": asdict(run), "stages": rounded(stages)}
        with atomic_write(options.output) as file:
            file.write((json.dumps(result, ensure_ascii=False) + "\n").encode())
    except (CheckpointError, OSError, TypeError, ValueError) as error:
        print(f"gradient_shares.py: {error}", file=sys.stderr)
        return 1
    print(f"\n{machine['processor']}, torch {machine['torch']}, {run.slug}, {stages[0]['images']} held-out images")
    for stage in stages:
        print(f"\n{markdown(stage)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
