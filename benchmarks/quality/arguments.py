"""The command line of the comparison."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from baselines.recipes import RECIPES, TITLES
from quality import ROOT
from quality.runs import SETTINGS, Run
from quality.scores import METRICS, SHOWN
from quality.tables import BASELINE

DESCRIPTION = """\
Train one network under many losses and compare them.

The tables show scores over seeds, and differences to cross-entropy. All runs of a seed share their initial weights, the
order of the images, augmentation and schedule; only the loss differs. Each run adds one row to a table, and is not run
again. A run that was killed resumes after its last complete epoch, and on the CPU ends with the same bits. The scores
are those of the last epoch: no epoch is chosen by its score.
"""
EXAMPLES = """\
examples:
  python benchmarks/quality.py run --loss ce --seeds 0 1 2
  python benchmarks/quality.py run --loss ours --option edge_weight=1 --option power=0 --seeds 0 1 2
  python benchmarks/quality.py plan configs/quality-focus.yaml --held-out   # on a fifth of the training images
  nohup nice python benchmarks/quality.py plan configs/quality-rivals.yaml --workers 2 &
  python benchmarks/quality.py plan configs/quality-sets.yaml --eval-split /elsewhere/{data}/test
  python benchmarks/quality.py plan configs/quality-sets.yaml --data-root ../shared --workers 2 --score-every 10
  python benchmarks/quality.py merge /elsewhere/quality.jsonl               # add the runs of another machine
  python benchmarks/quality.py table --split val --metrics miou boundary_iou_005 f1_1
  python benchmarks/quality.py plot --split val --plan configs/quality-sets.yaml
  python benchmarks/quality.py plot --split val --curve edge_weight         # which falls as edges are learned
  python benchmarks/quality.py offsets configs/quality-sets.yaml --at 0.3 "EdgeAwareLoss()=0.5"
  python benchmarks/quality.py crops configs/quality-pretrained.yaml --window 96 --percentile 95
  python benchmarks/quality.py cost --masks ../shared/camvid/val/masks
"""

RESULTS = ROOT / "benchmarks" / "results"
TABLE = RESULTS / "quality.jsonl"
IMAGES = ROOT / "docs" / "images"
COSTS = RESULTS / "quality-cost.json"


def option(text: str) -> tuple[str, float | None]:
    """Parse NAME=VALUE of a loss."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, but got {text!r}")
    return name, yaml.safe_load(value)


def offset_of(text: str) -> tuple[str, float]:
    """Parse T or LOSS=T."""
    loss, _, value = text.rpartition("=")
    return loss, float(value)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--results",
        type=Path,
        nargs="+",
        default=[TABLE],
        metavar="FILE",
        help=f"table of results, and others to read as well: their runs are not repeated (default: {TABLE})",
    )
    networks = argparse.ArgumentParser(add_help=False)
    networks.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with train/, val/ and classes.txt: the only data set (default: those of the plan, or camvid)",
    )
    networks.add_argument(
        "--data-root",
        type=Path,
        default=ROOT.parent / "shared",
        metavar="DIR",
        help="folder of the data sets that a plan names (default: %(default)s)",
    )
    networks.add_argument(
        "--eval-split",
        type=Path,
        metavar="DIR",
        help="folder with images/ and masks/ to score on, with {data} for the name of the data set (default: val/)",
    )
    networks.add_argument(
        "--state",
        type=Path,
        default=ROOT / "runs" / "quality",
        metavar="DIR",
        help="checkpoints, to resume runs and to score other splits (default: %(default)s)",
    )
    networks.add_argument("--device", default="cpu", help="default: %(default)s")
    add_training_commands(commands, [shared, networks])
    add_result_commands(commands, shared)
    add_offset_commands(commands, networks)
    add_picture_commands(commands, networks)
    return parser.parse_args(arguments)


Commands = Any  # argparse names no public type for it


def add_training_commands(commands: Commands, parents: Sequence[argparse.ArgumentParser]) -> None:
    """Add `run` and `plan`."""
    training = argparse.ArgumentParser(add_help=False, parents=parents)
    training.add_argument("--workers", type=int, default=1, help="runs at the same time (default: %(default)s)")
    training.add_argument("--threads", type=int, default=1, help="threads per run (default: %(default)s)")
    training.add_argument(
        "--score-every", type=int, default=1, metavar="EPOCHS", help="interval of the curves (default: %(default)s)"
    )
    run = commands.add_parser("run", parents=[training], help="train one loss")
    run.add_argument("--loss", required=True, choices=list(RECIPES))
    run.add_argument(
        "--option", type=option, action="append", default=[], metavar="NAME=VALUE", help="option of the loss"
    )
    run.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: %(default)s")
    for name in SETTINGS:
        default = getattr(Run, name)
        if isinstance(default, bool):
            kind: dict[str, Any] = {"action": "store_true"}
        elif name in ("size", "crop"):
            kind = {"type": int, "nargs": "*", "metavar": "PIXELS"}
        else:
            kind = {"type": type(default)}
        run.add_argument(f"--{name}", default=default, help="default: %(default)s", **kind)
    plan = commands.add_parser("plan", parents=[training], help="do all runs of a YAML file")
    plan.add_argument("plan", type=Path)
    for command in (run, plan):
        command.add_argument("--held-out", action="store_true", help="score on a fifth of the training images")


def add_result_commands(commands: Commands, shared: argparse.ArgumentParser) -> None:
    """Add `merge`, `table`, `plot` and `cost`."""
    merge = commands.add_parser("merge", parents=[shared], help="add the runs of other tables of results")
    merge.add_argument("tables", type=Path, nargs="+", metavar="TABLE")
    shown = argparse.ArgumentParser(add_help=False, parents=[shared])
    shown.add_argument("--split", metavar="NAME", help="val, or held-out for the trials (default: all)")
    shown.add_argument(
        "--plan", type=Path, metavar="FILE", help="only the losses and settings of this plan (default: all)"
    )
    shown.add_argument(
        "--losses",
        nargs="+",
        metavar="LOSS",
        help="only these losses of the plan, as the table names them (default: all)",
    )
    table = commands.add_parser("table", parents=[shown], help="print all results as Markdown")
    table.add_argument(
        "--baseline", default=BASELINE, metavar="LOSS", help="as the table names it (default: %(default)s)"
    )
    table.add_argument(
        "--metrics",
        nargs="+",
        choices=list(METRICS),
        metavar="NAME",
        help=f"the scores to print (default: {' '.join(SHOWN)})",
    )
    plot = commands.add_parser("plot", parents=[shown], help="draw differences and curves")
    plot.add_argument(
        "--curve",
        choices=[*METRICS, "loss", "edge_weight"],
        metavar="NAME",
        help="only the curve of this metric, of loss or of edge_weight (default: the differences and boundary F1)",
    )
    plot.add_argument("--output", type=Path, default=IMAGES, metavar="DIR", help="default: %(default)s")
    cost = commands.add_parser("cost", help="measure the time and memory of every loss")
    cost.add_argument("--plan", type=Path, metavar="FILE", help="also the losses of this plan, with their options")
    cost.add_argument(
        "--shape",
        type=int,
        nargs=4,
        default=[4, 11, 180, 240],
        metavar=("B", "C", "H", "W"),
        help="shape of the logits (default: %(default)s)",
    )
    cost.add_argument("--masks", type=Path, metavar="DIR", help="label masks to tile (default: generated ones)")
    cost.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    cost.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    cost.add_argument("--output", type=Path, default=COSTS, metavar="FILE", help="default: %(default)s")


def add_offset_commands(commands: Commands, networks: argparse.ArgumentParser) -> None:
    """Add `offsets`."""
    finished = argparse.ArgumentParser(add_help=False, parents=[networks])
    finished.set_defaults(results=[TABLE])  # not read
    finished.add_argument("plan", type=Path)
    finished.add_argument("--held-out", action="store_true", help="the runs of `plan --held-out`, on their images")
    finished.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    finished.add_argument(
        "--at",
        type=offset_of,
        nargs="+",
        default=[],
        metavar="[LOSS=]T",
        help="scores at an offset chosen elsewhere, of all losses or of one",
    )
    offsets = commands.add_parser(
        "offsets", parents=[finished], help="score finished runs at logits - t · log u, for several t"
    )
    offsets.add_argument(
        "--results",
        type=Path,
        nargs=1,
        default=[RESULTS / "offsets.jsonl"],
        metavar="FILE",
        help=f"table of results (default: {RESULTS / 'offsets.jsonl'})",
    )
    offsets.add_argument(
        "--offsets",
        type=float,
        nargs="+",
        default=[step / 4 for step in range(-6, 7)],
        metavar="T",
        help="default: %(default)s",
    )
    offsets.add_argument("--losses", nargs="+", metavar="LOSS", help="as the table names them (default: all)")
    offsets.add_argument(
        "--baseline", default=BASELINE, metavar="LOSS", help="as the table names it (default: %(default)s)"
    )
    offsets.add_argument("--output", type=Path, default=IMAGES, metavar="DIR", help="default: %(default)s")


def add_picture_commands(commands: Commands, networks: argparse.ArgumentParser) -> None:
    """Add `crops`."""
    crops = commands.add_parser("crops", parents=[networks], help="draw where one loss is sharper than another")
    crops.add_argument("plan", type=Path, help="a plan whose runs are finished")
    crops.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    crops.set_defaults(results=[TABLE])  # not read
    crops.add_argument("--window", type=int, default=64, help="pixels per side (default: %(default)s)")
    crops.add_argument(
        "--losses",
        nargs="+",
        default=[TITLES[name] for name in ("ce", "weighted", "module")],
        metavar="LOSS",
        help="as the table names them: the last is compared with the first (default: %(default)s)",
    )
    crops.add_argument("--count", type=int, default=3, help="crops per figure (default: %(default)s)")
    crops.add_argument(
        "--percentile",
        type=float,
        help="draw benefit.png, one crop: at this percentile of all, sorted by how far the last loss is ahead",
    )
    crops.add_argument("--output", type=Path, default=IMAGES, metavar="DIR", help="default: %(default)s")
