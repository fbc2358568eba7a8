"""The command line of the comparison."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from baselines.recipes import RECIPES
from quality import ROOT
from quality.crops import Split, at_percentiles, plot_crops, summary, windows
from quality.data import read_labels, scored_batches, scored_set
from quality.offsets import report, sweep
from quality.plots import plot_curves, plot_offsets, plot_sets
from quality.runs import Place, key_of, pick, read_plan, run_of
from quality.scores import METRICS, SHOWN
from quality.tables import BASELINE, markdown, rows_of, summarize
from quality.training import execute, load_network
from result_table import Row, add_rows, read_rows
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
  python benchmarks/quality.py merge /elsewhere/quality.jsonl               # add the runs of another machine
  python benchmarks/quality.py table --split val --metrics miou boundary_iou_005 f1_1
  python benchmarks/quality.py plot --split val --plan configs/quality-sets.yaml
  python benchmarks/quality.py plot --split val --curve edge_weight         # which falls as edges are learned
  python benchmarks/quality.py offsets configs/quality-sets.yaml
  python benchmarks/quality.py crops configs/quality-pretrained.yaml --window 96 --percentile 95
"""
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"

# ----------------------------------------------------------------------------------------------------------- arguments


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str, *groups: Sequence[str]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about)
        for option in [option for options in groups for option in options]:
            added.add_argument(option, **OPTIONS[option])
        return added

    plan = command("plan", "do all runs of YAML files", ("--results",), NETWORKS)
    plan.add_argument("plans", type=Path, nargs="+", metavar="PLAN")
    plan.add_argument("--held-out", action="store_true", help="score on a fifth of the training images")
    plan.add_argument("--workers", type=int, default=1, help="runs at the same time (default: %(default)s)")
    limit = "begin no run that would not end in this time (default: no limit)"
    plan.add_argument("--minutes", type=float, default=math.inf, help=limit)
    every = "interval of the curves (default: %(default)s)"
    plan.add_argument("--score-every", type=int, default=1, metavar="EPOCHS", help=every)
    merge = command("merge", "add the runs of other tables of results", ("--results",))
    merge.add_argument("tables", type=Path, nargs="+", metavar="TABLE")
    table = command("table", "print all results as Markdown", SHOWN_RUNS, ("--baseline",))
    scores = f"the scores to print (default: {' '.join(SHOWN)})"
    table.add_argument("--metrics", nargs="+", choices=list(METRICS), default=SHOWN, metavar="NAME", help=scores)
    plot = command("plot", "draw differences and curves", SHOWN_RUNS, ("--output",))
    curve = "only the curve of this metric, of loss or of edge_weight (default: the differences and boundary F1)"
    plot.add_argument("--curve", choices=[*SHOWN, "loss", "edge_weight"], metavar="NAME", help=curve)
    offsets = ("plan", "--results", "--losses", "--baseline", "--output")
    offsets = command("offsets", "score finished runs at logits - t · log u, for several t", offsets, NETWORKS)
    offsets.set_defaults(results=RESULTS / "offsets.jsonl")
    crops = command("crops", "draw where one loss is sharper", ("plan", "--losses", "--output"), NETWORKS)
    crops.set_defaults(losses=[RECIPES[name].title for name in ("ce", "weighted", "module")], results=RESULTS)
    crops.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    size = "the networks of images of this size (default: of the first in the plan)"
    crops.add_argument("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help=size)
    crops.add_argument("--window", type=int, default=64, help="pixels per side (default: %(default)s)")
    ahead = "the crops at these percentiles, by how far the last loss is ahead of the first (default: 100 50 0)"
    crops.add_argument("--percentile", type=float, nargs="+", default=[100.0, 50.0, 0.0], metavar="P", help=ahead)
    return parser.parse_args(arguments)


OPTIONS = {
    "plan": {"type": Path},
    "--results": {
        "type": Path,
        "default": RESULTS / "quality.jsonl",
        "metavar": "FILE",
        "help": "table of results (default: quality.jsonl, or offsets.jsonl of `offsets`, in benchmarks/results)",
    },
    "--data-root": {
        "type": Path,
        "default": ROOT.parent / "shared",
        "metavar": "DIR",
        "help": "folder of the data sets, each with train/, val/ and classes.txt (default: %(default)s)",
    },
    "--state": {
        "type": Path,
        "default": ROOT / "runs" / "quality",
        "metavar": "DIR",
        "help": "checkpoints, from which runs resume (default: %(default)s)",
    },
    "--device": {"default": "cpu", "help": "default: %(default)s"},
    "--threads": {"type": int, "default": 1, "help": "threads per run (default: %(default)s)"},
    "--split": {"choices": ("val", "held-out"), "default": "val", "help": "held-out for trials (default: %(default)s)"},
    "--plan": {"type": Path, "metavar": "FILE", "help": "only the losses and settings of this plan (default: all)"},
    "--losses": {
        "nargs": "+",
        "metavar": "LOSS",
        "help": "only these losses of the plan, as the table names them (default: all)",
    },
    "--baseline": {"default": BASELINE, "metavar": "LOSS", "help": "as the table names it (default: %(default)s)"},
    "--output": {"type": Path, "default": IMAGES, "metavar": "DIR", "help": "default: %(default)s"},
}
NETWORKS = ("--data-root", "--state", "--device", "--threads")
SHOWN_RUNS = ("--results", "--split", "--plan", "--losses")


def place_of(options: argparse.Namespace) -> Place:
    """Return where to read and write."""
    return Place(options.data_root.resolve(), options.results, options.state, options.device)


# ------------------------------------------------------------------------------------------------------------ commands


def do_plan(options: argparse.Namespace) -> None:
    """Train what is left of plans."""
    end = time.time() + 60 * options.minutes
    place = replace(place_of(options), score_every=options.score_every, end=end)
    plans = [read_plan(path, held_out=options.held_out) for path in options.plans]
    if failed := execute(plans, place, workers=options.workers, threads=options.threads):
        raise ValueError(
            f"plan: {failed} runs ended before their time; the same command continues from the last epochs"
        )


def do_merge(options: argparse.Namespace) -> None:
    """Add the rows of other tables."""
    for path in options.tables:
        rows = read_rows(path)
        if not rows:
            raise ValueError(f"merge: expected a table of results, but got {path}; pass a file that `plan` wrote")
        add_rows(options.results, rows, key_of)


def read_chosen(options: argparse.Namespace, baseline: str) -> dict[str, list[Row]]:
    """Read the results of `table` and `plot`, of the chosen losses and the baseline."""
    if options.plan:
        runs = read_plan(options.plan, held_out=options.split == "held-out")
    else:
        runs = [run for run in map(run_of, read_rows(options.results)) if run.split == options.split]
    if options.losses:
        chosen = {baseline, *pick(runs, options.losses)}
        runs = [run for run in runs if run.title in chosen]
    return rows_of(options.results, runs)


def do_table(options: argparse.Namespace) -> None:
    """Print the results."""
    print(markdown(read_chosen(options, options.baseline), options.baseline, options.metrics))


def do_plot(options: argparse.Namespace) -> None:
    """Draw the results."""
    sets = read_chosen(options, BASELINE)
    if options.curve:
        plot_curves(sets, options.curve, options.output / f"quality-{options.curve}.png")
        return
    plot_sets({data: summarize(rows) for data, rows in sets.items()}, options.output / "quality-data.png")
    plot_curves(sets, "f1_1", options.output / "quality-data-curves.png")


def do_offsets(options: argparse.Namespace) -> None:
    """Score finished runs at several operating points."""
    torch.set_num_threads(options.threads)
    runs = read_plan(options.plan)
    if options.losses:
        chosen = pick(runs, options.losses)
        runs = [run for run in runs if run.title in chosen]
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
    names, labels = scored_set(first, place)[0].names, read_labels(place.root / first.data)
    split = Split(names, denormalize(images), target, predictions, *labels)
    baseline, *_, ours = chosen
    return split, f"{ours} against {baseline}; {first.data}, {first.split}, seed {options.seed}"


def do_crops(options: argparse.Namespace) -> None:
    """Draw crops of predictions."""
    split, settings = predict(options)
    scored = windows(split, options.window)
    about = f"{settings}: {summary(scored)}"
    print(about)
    rows = at_percentiles(scored, options.percentile)
    plot_crops(split, rows, about, options.output / ("benefit.png" if len(rows) == 1 else "quality-crops.png"))


COMMANDS = {
    "plan": do_plan,
    "merge": do_merge,
    "table": do_table,
    "plot": do_plot,
    "offsets": do_offsets,
    "crops": do_crops,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command line."""
    options = parse(arguments)
    try:
        COMMANDS[options.command](options)
    except (CheckpointError, ImportError, OSError, TypeError, ValueError) as error:
        print(f"quality.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("quality.py: interrupted; the same command continues from the last epochs", file=sys.stderr)
        return 130
    return 0
