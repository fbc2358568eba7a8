"""The command line of the comparison."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from baselines.recipes import RECIPES
from parsers import Option, make_parser
from quality import ROOT
from quality.crops import Split, at_percentiles, plot_crops, summary, windows
from quality.data import open_part, scored_batches
from quality.offsets import report, sweep
from quality.plots import plot_curves, plot_offsets, plot_sets
from quality.runs import Place, Run, key_of, pick, read_plan, run_of
from quality.scores import METRICS, SHOWN, is_complete
from quality.tables import BASELINE, by_loss, classes_table, markdown, rows_of, summarize
from quality.training import execute, load_network
from result_table import add_rows, read_rows
from segkit.checkpoint import CheckpointError
from segkit.data import denormalize

DESCRIPTION = """\
Train one network under many losses and compare them.

The tables show scores over seeds, and differences to cross-entropy. All runs of a seed share their initial weights, the
order of the images, augmentation and schedule; only the loss differs. Each run adds one row to a table, and is not run
again. A run that was killed resumes after its last complete epoch, and on the CPU ends with the same bits. The scores
are those of the last epoch: no epoch is chosen by its score. The runs of several plans begin with the shortest plan.
"""
EXAMPLES = """\
examples:
  python benchmarks/quality.py plan configs/quality-focus.yaml --held-out   # on a fifth of the training images
  python benchmarks/quality.py plan configs/quality-sets.yaml --data-root ../shared --workers 2 --score-every 10
  python benchmarks/quality.py plan configs/quality-sets.yaml configs/quality-rivals.yaml --device cuda --workers 16 \
      --minutes 9                                                           # of a machine that is lent for ten
  python benchmarks/quality.py plan configs/quality-borders.yaml --rescore --workers 2     # rows that lack some scores
  python benchmarks/quality.py merge /elsewhere/quality.jsonl               # add the runs of another machine
  python benchmarks/quality.py table --plan configs/quality-sets.yaml --metrics miou boundary_iou_005 f1_1
  python benchmarks/quality.py table --plan configs/quality-pretrained.yaml --classes     # IoU and F1 of each class
  python benchmarks/quality.py plot --plan configs/quality-sets.yaml
  python benchmarks/quality.py plot --plan configs/quality-sets.yaml --curve edge_weight  # falls as edges are learned
  python benchmarks/quality.py offsets configs/quality-sets.yaml
  python benchmarks/quality.py crops configs/quality-pretrained.yaml --window 96
"""
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
PLANS = ROOT / "configs"


def place_of(options: argparse.Namespace) -> Place:
    """Return where to read and write."""
    return Place(options.data_root.resolve(), options.results, options.state, options.device)


# ------------------------------------------------------------------------------------------------------------ commands


def do_plan(options: argparse.Namespace) -> None:
    """Train what is left of plans."""
    end = time.time() + 60 * options.minutes
    place = replace(place_of(options), score_every=options.score_every, rescore=options.rescore, end=end)
    plans = [read_plan(path, held_out=options.held_out) for path in options.plans]
    if failed := execute(plans, place, workers=options.workers, threads=options.threads):
        raise ValueError(
            f"plan: {failed} runs ended before their time; the same command continues from the last epochs"
        )


def do_merge(options: argparse.Namespace) -> None:
    """Add the rows of other tables, of the runs that some plan has.

    A row that lacks scores does not replace one that has all.
    """
    plans = [read_plan(path, held_out=on) for path in PLANS.glob("quality*.yaml") for on in (False, True)]
    planned = {run.key for runs in plans for run in runs}
    for path in options.tables:
        rows = read_rows(path)
        if not rows:
            raise ValueError(f"merge: expected a table of results, but got {path}; pass a file that `plan` wrote")
        kept = [row for row in rows if key_of(row) in planned]
        complete = {key_of(row) for row in read_rows(options.results) if is_complete(row)}
        add_rows(options.results, [row for row in kept if is_complete(row) or key_of(row) not in complete], key_of)
        print(f"{path}: {len(kept)} rows, and {len(rows) - len(kept)} left out, whose runs are in no plan of {PLANS}")


def chosen_runs(options: argparse.Namespace, baseline: str = BASELINE) -> list[Run]:
    """Return the runs of a plan, or of the table of results, with the chosen losses and the baseline."""
    split = vars(options).get("split", "val")
    if options.plan:
        runs = read_plan(options.plan, held_out=split == "held-out")
    else:
        runs = [run for run in map(run_of, read_rows(options.results)) if run.split == split]
    chosen = {baseline, *(pick(runs, options.losses) if options.losses else {run.title for run in runs})}
    return [run for run in runs if run.title in chosen]


def do_table(options: argparse.Namespace) -> None:
    """Print the results."""
    results = rows_of(options.results, chosen_runs(options, options.baseline))
    if not options.classes:
        print(markdown(results, options.baseline, options.metrics))
        return
    for setting, rows in results.items():
        print(
            "\n".join(
                [f"{setting}: IoU / boundary F1 1 px of each class", "", *classes_table(rows, [*by_loss(rows)]), ""]
            )
        )


def do_plot(options: argparse.Namespace) -> None:
    """Draw the results."""
    sets = rows_of(options.results, chosen_runs(options))
    if options.curve:
        plot_curves(sets, options.curve, options.output / f"quality-{options.curve}.png")
        return
    plot_sets({data: summarize(rows) for data, rows in sets.items()}, options.output / "quality-data.png")
    plot_curves(sets, "f1_1", options.output / "quality-data-curves.png")


def do_offsets(options: argparse.Namespace) -> None:
    """Score finished runs at several operating points."""
    torch.set_num_threads(options.threads)
    runs = chosen_runs(options, options.baseline)
    sweep(runs, place_of(options))
    results = rows_of(options.results, runs)
    for settings, rows in results.items():
        print(f"{settings}\n\n{report(rows, options.baseline)}")
    plot_offsets(results, options.output / "quality-offsets.png")


@torch.no_grad()
def predict(options: argparse.Namespace) -> tuple[Split, str]:
    """Predict the images with the networks of the chosen losses; return it with their names, the data and the seed."""
    place, runs = place_of(options), read_plan(options.plan)
    if options.seed not in (seeds := sorted({run.seed for run in runs})):
        raise ValueError(f"--seed: expected one of {seeds}, the seeds of the plan, but got {options.seed}")
    size = tuple(options.size or ()) or runs[0].size
    first = next((run for run in runs if run.size == size), None)
    if first is None:
        raise ValueError(f"--size: expected that of runs of the plan, but got {options.size}")
    same = (options.seed, first.data, first.settings)
    chosen = pick((run for run in runs if (run.seed, run.data, run.settings) == same), options.losses)
    images, target = (torch.cat(parts) for parts in zip(*scored_batches(first, place), strict=True))
    predictions = {}
    for title, run in chosen.items():
        network = load_network(run, place)
        batches = [network(batch.to(options.device)).argmax(1).cpu() for batch in images.split(8)]
        predictions[title] = torch.cat(batches)
    dataset, _ = open_part(first, place, scored=True)
    about = dataset.classes, dataset.ignore_index
    split = Split(dataset.names, denormalize(images), target, predictions, *about)
    baseline, *_, ours = chosen
    return split, f"{ours} against {baseline}; {first.data}, {first.split}, seed {options.seed}"


def do_crops(options: argparse.Namespace) -> None:
    """Draw crops of predictions."""
    split, settings = predict(options)
    scored = windows(split, options.window)
    about = f"{settings}: {summary(scored)}"
    print(about)
    plot_crops(split, at_percentiles(scored, options.percentile), about, options.output / "quality-crops.png")


# ----------------------------------------------------------------------------------------------------------- arguments

COMMANDS = {
    "plan": (do_plan, "do all runs of YAML files"),
    "merge": (do_merge, "add the runs of other tables of results that some plan has"),
    "table": (do_table, "print all results as Markdown"),
    "plot": (do_plot, "draw differences and curves"),
    "offsets": (do_offsets, "score finished runs at logits - t · log u, for several t"),
    "crops": (do_crops, "draw where one loss is sharper"),
}
PATH: dict[str, Any] = {"type": Path, "metavar": "PATH"}
COUNT: dict[str, Any] = {"type": int, "metavar": "N"}
LOSSES = [RECIPES[name].title for name in ("ce", "weighted", "module")]
# The commands that take an option, its name, default, meaning, and kind.
OPTIONS: list[Option] = [
    ("plan", "plans", None, "plans of runs", PATH | {"nargs": "+"}),
    ("merge", "tables", None, "tables of results", PATH | {"nargs": "+"}),
    ("offsets crops", "plan", None, "a plan of finished runs", PATH),
    ("plan merge table plot crops", "--results", RESULTS / "quality.jsonl", "table of results", PATH),
    ("offsets", "--results", RESULTS / "offsets.jsonl", "table of results", PATH),
    ("plan offsets crops", "--data-root", ROOT.parent / "shared", "its folders: train/, val/ and classes.txt", PATH),
    ("plan offsets crops", "--state", ROOT / "runs/quality", "checkpoints, from which runs resume", PATH),
    ("plan offsets crops", "--device", "cpu", "to train and to predict on", {}),
    ("plan offsets crops", "--threads", 1, "threads per run", COUNT),
    ("plan", "--held-out", False, "score on a fifth of the training images", {"action": "store_true"}),
    ("plan", "--workers", 1, "runs at the same time, on one device", COUNT),
    ("plan", "--minutes", math.inf, "begin no run that would not end in this time", {"type": float, "metavar": "N"}),
    ("plan", "--score-every", 1, "epochs between the points of the curves", COUNT),
    ("plan", "--rescore", False, "also the runs whose rows lack scores of today", {"action": "store_true"}),
    ("table plot", "--split", "val", "held-out for trials", {"choices": ("val", "held-out")}),
    ("table plot", "--plan", None, "only the losses and settings of this plan", PATH),
    ("table plot offsets", "--losses", None, "only these, as the table names them", {"nargs": "+", "metavar": "LOSS"}),
    ("crops", "--losses", LOSSES, "from the baseline to the one compared with it", {"nargs": "+", "metavar": "LOSS"}),
    ("table offsets", "--baseline", BASELINE, "as the table names it", {"metavar": "LOSS"}),
    ("table", "--classes", False, "of each class", {"action": "store_true"}),
    ("table", "--metrics", SHOWN, "the scores to print", {"nargs": "+", "choices": [*METRICS], "metavar": "NAME"}),
    ("plot", "--curve", None, "only that of", {"choices": [*SHOWN, "loss", "edge_weight"]}),
    ("plot offsets crops", "--output", IMAGES, "folder of the pictures", PATH),
    ("crops", "--seed", 0, "of the networks", COUNT),
    ("crops", "--size", None, "of the images, not that of the plan's first run", {"type": int, "nargs": 2}),
    ("crops", "--window", 64, "pixels per side", COUNT),
    ("crops", "--percentile", [100.0, 50.0, 0.0], "by how far the last loss is ahead", {"type": float, "nargs": "+"}),
]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    commands = {command: about for command, (_, about) in COMMANDS.items()}
    return make_parser(DESCRIPTION, EXAMPLES, commands, OPTIONS).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command line."""
    options = parse(arguments)
    try:
        COMMANDS[options.command][0](options)
    except (CheckpointError, ImportError, OSError, TypeError, ValueError) as error:
        print(f"quality.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("quality.py: interrupted; the same command continues from the last epochs", file=sys.stderr)
        return 130
    return 0
