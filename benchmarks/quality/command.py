"""Train one network under many losses and compare them.

The tables show scores over seeds, and differences to cross-entropy. All runs of a seed share their initial weights, the
order of the images, augmentation and schedule; only the loss differs. Each run adds one row to a table, and is not run
again. A run that was killed resumes after its last complete epoch, and on the CPU ends with the same bits. The scores
are those of the last epoch: no epoch is chosen by its score.

`tune` trains on four fifths of the training images and scores on the fifth, with the same number of trials for every
loss: the validation split is not used to choose anything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor

from baselines.recipes import RECIPES, TITLES, Options
from label_maps import regions, scenes
from measure import INSTRUCTIONS, processor
from quality import ROOT
from quality.benefit import plot_benefit
from quality.cost import costs_of
from quality.crops import Split, at_percentile, choose, plot_crops, summary, windows
from quality.data import load_batch, open_folder, read_labels, split_indices
from quality.plots import plot_bars, plot_curves
from quality.runs import SETTINGS, Place, Run, check_trials, key_of, loss_title, pick, runs_of
from quality.scores import METRICS
from quality.tables import BASELINE, markdown, read_results, summarize, title_of, trials
from quality.training import execute, load_network
from result_table import add_rows, read_rows
from segkit.checkpoint import CheckpointError
from segkit.data import denormalize

EXAMPLES = """\
examples:
  python benchmarks/quality.py run --loss ce --seeds 0 1 2
  python benchmarks/quality.py run --loss ours --option edge_weight=1 --option power=0 --seeds 0 1 2
  python benchmarks/quality.py tune configs/quality-tune.yaml               # on a held-out fifth of the training images
  nohup nice python benchmarks/quality.py plan configs/quality.yaml --workers 2 &
  python benchmarks/quality.py plan configs/quality.yaml --eval-split /elsewhere/test
  python benchmarks/quality.py merge /elsewhere/quality.jsonl               # add the runs of another machine
  python benchmarks/quality.py table --split val --metrics miou boundary_iou_005 f1_1
  python benchmarks/quality.py plot
  python benchmarks/quality.py crops configs/quality.yaml --losses cross-entropy "CE + CPG" edgeloss
  python benchmarks/quality.py benefit configs/quality-benefit.yaml --window 96 --percentile 95
  python benchmarks/quality.py cost --masks ../shared/camvid/val/masks
"""

RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
COSTS = RESULTS / "quality-cost.json"


# --------------------------------------------------------------------------------------------------------------- parser


def option(text: str) -> tuple[str, float | None]:
    """Parse NAME=VALUE of a loss."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, but got {text!r}")
    return name, yaml.safe_load(value)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--results",
        type=Path,
        default=RESULTS / "quality.jsonl",
        metavar="FILE",
        help="table of results (default: %(default)s)",
    )
    networks = argparse.ArgumentParser(add_help=False)
    networks.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "camvid",
        metavar="DIR",
        help="folder with train/, val/ and classes.txt (default: %(default)s)",
    )
    networks.add_argument(
        "--eval-split", type=Path, metavar="DIR", help="folder with images/ and masks/ to score on (default: val/)"
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
    add_picture_commands(commands, networks)
    return parser.parse_args(arguments)


Commands = Any  # argparse names no public type for it


def add_training_commands(commands: Commands, parents: Sequence[argparse.ArgumentParser]) -> None:
    """Add `run`, `plan` and `tune`."""
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
            kind = {"type": int, "nargs": "+", "metavar": "PIXELS"}
        else:
            kind = {"type": type(default)}
        run.add_argument(f"--{name}", default=default, help="default: %(default)s", **kind)
    plan = commands.add_parser("plan", parents=[training], help="do all runs of a YAML file")
    plan.add_argument("plan", type=Path)
    for command in (run, plan):
        command.add_argument("--held-out", action="store_true", help="score on a fifth of the training images")
    tune = commands.add_parser("tune", parents=[training], help="do trials on the training images alone")
    tune.add_argument("plan", type=Path)
    tune.add_argument(
        "--by",
        nargs="+",
        choices=list(METRICS),
        default=["miou", "f1_1"],
        help="rank by the mean of these metrics (default: %(default)s)",
    )


def add_result_commands(commands: Commands, shared: argparse.ArgumentParser) -> None:
    """Add `merge`, `table`, `plot` and `cost`."""
    merge = commands.add_parser("merge", parents=[shared], help="add the runs of other tables of results")
    merge.add_argument("tables", type=Path, nargs="+", metavar="TABLE")
    shown = argparse.ArgumentParser(add_help=False, parents=[shared])
    shown.add_argument("--split", metavar="NAME", help="val, or held-out for the trials (default: all)")
    shown.add_argument(
        "--plan", type=Path, metavar="FILE", help="only the losses and settings of this plan (default: all)"
    )
    table = commands.add_parser("table", parents=[shown], help="print all results as Markdown")
    table.add_argument(
        "--baseline", default=BASELINE, metavar="LOSS", help="as the table names it (default: %(default)s)"
    )
    table.add_argument(
        "--metrics",
        nargs="+",
        choices=list(METRICS),
        default=list(METRICS),
        metavar="NAME",
        help="the scores to print (default: %(default)s)",
    )
    table.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    table.add_argument("--cost", type=Path, default=COSTS, metavar="FILE", help="from `cost` (default: %(default)s)")
    plot = commands.add_parser("plot", parents=[shown], help="draw bars and curves")
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


def add_picture_commands(commands: Commands, networks: argparse.ArgumentParser) -> None:
    """Add `crops` and `benefit`."""
    picture = argparse.ArgumentParser(add_help=False, parents=[networks])
    picture.add_argument("plan", type=Path, help="a plan whose runs are finished")
    picture.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    picture.add_argument("--window", type=int, default=64, help="pixels per side (default: %(default)s)")
    crops = commands.add_parser("crops", parents=[picture], help="draw where one loss is sharper than another")
    benefit = commands.add_parser("benefit", parents=[picture], help="draw one crop, with the edge maps")
    for command, names in ((crops, ("ce", "weighted", "ours")), (benefit, ("ce", "ours"))):
        command.add_argument(
            "--losses",
            nargs="+",
            default=[TITLES[name] for name in names],
            metavar="LOSS",
            help="as the table names them: the last is compared with the first (default: %(default)s)",
        )
    crops.add_argument("--count", type=int, default=3, help="crops per figure (default: %(default)s)")
    crops.add_argument("--output", type=Path, default=IMAGES, metavar="DIR", help="default: %(default)s")
    benefit.add_argument(
        "--percentile",
        type=float,
        default=50,
        help="which of all crops, sorted by how far the last loss is ahead of the first (default: %(default)s)",
    )
    benefit.add_argument(
        "--output", type=Path, default=IMAGES / "benefit.png", metavar="FILE", help="default: %(default)s"
    )


# ------------------------------------------------------------------------------------------------------------- training


def read_plan(path: Path, *, data: str = "", held_out: bool = False) -> list[Run]:
    """Read the runs of a YAML file."""
    return runs_of(yaml.safe_load(path.read_text()), data=data, held_out=held_out)


def folders(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the folders of the data and of the split to score on."""
    data = options.data.resolve()
    return data, (options.eval_split or data / "val").resolve()


def do_runs(options: argparse.Namespace) -> None:
    """Execute `run`, `plan` or `tune`."""
    data, split = folders(options)
    place = Place(data, split, options.results, options.state, options.device, options.score_every)
    tuning = options.command == "tune"
    if options.command == "run":
        settings = {name: getattr(options, name) for name in (*SETTINGS, "held_out")}
        runs = [Run(options.loss, dict(options.option), seed, data=data.name, **settings) for seed in options.seeds]
    else:
        runs = read_plan(options.plan, data=data.name, held_out=tuning or options.held_out)
    if tuning:
        check_trials(runs)
    execute(runs, place, workers=options.workers, threads=options.threads)
    if tuning:
        rows = {key_of(row): row for row in read_rows(place.results)}
        print(trials(summarize(rows[place.key(run)] for run in runs), options.by))


# -------------------------------------------------------------------------------------------------------------- results


def do_merge(options: argparse.Namespace) -> None:
    """Execute `merge`."""
    for path in options.tables:
        rows = read_rows(path)
        if not rows:
            raise ValueError(f"merge: expected a table of results, but got {path}; pass a file that `plan` wrote")
        add_rows(options.results, rows, key_of)


def do_table(options: argparse.Namespace) -> None:
    """Execute `table`."""
    costs = json.loads(options.cost.read_text())["losses"] if options.cost.exists() else {}
    plan = read_plan(options.plan) if options.plan else []
    results = read_results(options.results, options.split, plan)
    tables = {settings: summarize(rows, options.baseline) for settings, rows in results.items()}
    if plan:
        planned = {run.title for run in plan}
        tables = {settings: [row for row in rows if row["loss"] in planned] for settings, rows in tables.items()}
    for settings, rows in tables.items():
        print(f"{settings}\n\n{markdown(rows, costs, options.baseline, options.metrics)}")
    if options.json:
        options.json.write_text(json.dumps(tables, indent=1) + "\n")


def do_plot(options: argparse.Namespace) -> None:
    """Execute `plot`."""
    plan = read_plan(options.plan) if options.plan else []
    planned = {run.title for run in plan}
    results = read_results(options.results, options.split, plan)
    for settings, own in results.items():
        rows = [row for row in own if not plan or title_of(row) in planned]
        suffix = "" if len(results) == 1 else "-" + hashlib.sha256(settings.encode()).hexdigest()[:6]
        summaries = summarize(rows)
        if any(summary["differences"] for summary in summaries):
            plot_bars(summaries, settings, options.output / f"quality-bars{suffix}.png")
        plot_curves(rows, settings, options.output / f"quality-curves{suffix}.png")


def do_cost(options: argparse.Namespace) -> None:
    """Execute `cost`."""
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of the processes that measure
    losses: list[tuple[str, Options]] = [(name, {}) for name in RECIPES] + [("abl", {"lovasz": 1.0})]
    if options.plan:
        losses += [(run.loss, run.options) for run in read_plan(options.plan)]
    losses = list({loss_title(name, own): (name, own) for name, own in losses}.values())
    batch, classes, *size = options.shape
    labels = (
        regions(batch, tuple(size), classes, 1)
        if options.masks is None
        else scenes(options.masks, batch, tuple(size), classes)
    )
    costs = costs_of(losses, labels, classes, options.rounds)
    machine = {
        "processor": processor(),
        "instructions": INSTRUCTIONS,
        "threads": options.threads,
        "torch": torch.__version__,
        "logits": options.shape,
        "labels": "regions" if options.masks is None else "scenes",
    }
    options.output.write_text(json.dumps({"machine": machine, "losses": costs}, indent=1) + "\n")
    print("| loss | ms | × CE | MB |\n|---|---:|---:|---:|")
    for loss, cost in costs.items():
        print(f"| {loss} | {cost['milliseconds']:.1f} | {cost['ratio']:.2f} | {cost['megabytes']:.1f} |")


# ------------------------------------------------------------------------------------------------------------- pictures


class Comparison(NamedTuple):
    """Finished runs and their predictions.

    Attributes:
        runs: by title.
        split: the images and predictions.
        batches: the images as the networks see them.
        settings: the losses, the data and the seed.
    """

    runs: dict[str, Run]
    split: Split
    batches: Sequence[Tensor]
    settings: str


@torch.no_grad()
def compare(options: argparse.Namespace) -> Comparison:
    """Predict a split with the networks of the chosen losses."""
    data, folder = folders(options)
    runs = read_plan(options.plan, data=data.name)
    if options.seed not in (seeds := sorted({run.seed for run in runs})):
        raise ValueError(f"--seed: expected one of {seeds}, the seeds of the plan, but got {options.seed}")
    chosen = pick([run for run in runs if run.seed == options.seed], options.losses)
    classes, void = read_labels(data)
    dataset = open_folder(folder, len(classes), void, size=runs[0].size)
    batches, targets = zip(
        *(load_batch(dataset, index) for index in split_indices(np.arange(len(dataset)), 8)), strict=True
    )
    predictions = {}
    for title, run in chosen.items():
        network = load_network(run, options.state, len(classes), options.device)
        predictions[title] = torch.cat([network(images.to(options.device)).argmax(1).cpu() for images in batches])
    split = Split(dataset.names, denormalize(torch.cat(batches)), torch.cat(targets), predictions, classes, void)
    baseline, *_, ours = chosen
    return Comparison(
        chosen, split, batches, f"{ours} against {baseline}; {data.name}, {folder.name}, seed {options.seed}"
    )


def do_crops(options: argparse.Namespace) -> None:
    """Execute `crops`."""
    comparison = compare(options)
    scored = windows(comparison.split, options.window)
    figures = choose(scored, options.count)
    about = f"{comparison.settings}: {summary(scored)}"
    print(about)
    for kind, rows in figures.items():
        plot_crops(comparison.split, rows, kind, about, options.output / f"quality-crops-{kind}.png")


@torch.no_grad()
def do_benefit(options: argparse.Namespace) -> None:
    """Execute `benefit`."""
    runs, split, batches, settings = compare(options)
    scored = windows(split, options.window)
    window = at_percentile(scored, options.percentile)
    image = torch.cat(list(batches))[window.image][None].to(options.device)
    logits = {
        title: load_network(run, options.state, len(split.classes), options.device)(image).cpu()
        for title, run in runs.items()
    }
    print(f"{settings}: {summary(scored)}")
    about = (
        f"{settings}: the crop at percentile {options.percentile:g} of {len(scored)} by difference in boundary F1"
        f" ({window.difference * 100:+.0f} points);"
        f" {split.names[window.image]}, row {window.top}, column {window.left}"
    )
    print(about)
    plot_benefit(split, window, logits, about, options.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command line."""
    options = parse(arguments)
    commands = {
        "merge": do_merge,
        "table": do_table,
        "plot": do_plot,
        "crops": do_crops,
        "benefit": do_benefit,
        "cost": do_cost,
    }
    try:
        commands.get(options.command, do_runs)(options)
    except (CheckpointError, OSError, TypeError, ValueError) as error:
        print(f"quality.py: {error}", file=sys.stderr)
        return 1
    return 0
