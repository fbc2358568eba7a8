"""The commands of the comparison."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from baselines.recipes import RECIPES, Options
from edgeloss.io import check_file
from label_maps import regions, scenes
from measure import INSTRUCTIONS, processor
from quality.arguments import parse
from quality.cost import costs_of
from quality.crops import Split, at_percentile, choose, plot_crops, summary, windows
from quality.data import open_folder, read_labels, scored_batches
from quality.offsets import report, sweep
from quality.plots import plot_curves, plot_offsets, plot_sets
from quality.runs import SETTINGS, Place, Run, key_of, loss_title, pick, runs_of
from quality.scores import SHOWN
from quality.tables import (
    BASELINE,
    by_data,
    group,
    markdown,
    read_results,
    summarize,
    title_of,
)
from quality.training import execute, load_network
from result_table import Row, add_rows, read_rows
from segkit.checkpoint import CheckpointError
from segkit.data import denormalize

# ------------------------------------------------------------------------------------------------------------- training


def read_plan(path: Path, **options: Any) -> list[Run]:  # noqa: ANN401
    """Read the runs of a YAML file; the options are those of `runs_of`."""
    check_file(path)
    return runs_of(yaml.safe_load(path.read_text()), **options)


def place_of(options: argparse.Namespace) -> tuple[Place, str | None]:
    """Return where to read and write, and the name of the only data set, if there is one."""
    data = options.data and options.data.resolve()
    root, name = (data.parent, data.name) if data else (options.data_root.resolve(), None)
    split = options.eval_split and options.eval_split.resolve()
    table, *others = options.results
    return Place(root, split, table, options.state, options.device, others=tuple(others)), name


def do_runs(options: argparse.Namespace) -> None:
    """Execute `run` or `plan`."""
    place, data = place_of(options)
    place = replace(place, score_every=options.score_every)
    if options.command == "run":
        settings = {name: getattr(options, name) for name in (*SETTINGS, "held_out")} | {"data": data or Run.data}
        runs = [Run(options.loss, dict(options.option), seed, **settings) for seed in options.seeds]
    else:
        runs = read_plan(options.plan, data=data, held_out=options.held_out)
    execute(runs, place, workers=options.workers, threads=options.threads)


# -------------------------------------------------------------------------------------------------------------- results


def do_merge(options: argparse.Namespace) -> None:
    """Execute `merge`."""
    for path in options.tables:
        rows = read_rows(path)
        if not rows:
            raise ValueError(f"merge: expected a table of results, but got {path}; pass a file that `plan` wrote")
        add_rows(options.results[0], rows, key_of)


def read_chosen(options: argparse.Namespace, *others: str) -> dict[str, list[Row]]:
    """Read the results of `table` and `plot`: with a plan those of its losses and of others, by title."""
    plan = read_plan(options.plan) if options.plan else []
    chosen = {*others, *(pick(plan, options.losses) if options.losses else (run.title for run in plan))}
    results = read_results(options.results, options.split, plan)
    return {
        settings: [row for row in rows if not plan or title_of(row) in chosen] for settings, rows in results.items()
    }


def do_table(options: argparse.Namespace) -> None:
    """Execute `table`."""
    print(markdown(read_chosen(options, options.baseline), options.baseline, options.metrics or SHOWN))


def do_plot(options: argparse.Namespace) -> None:
    """Execute `plot`."""
    sets = by_data(read_chosen(options, BASELINE))
    if options.curve:
        plot_curves(sets, options.curve, options.output / f"quality-{options.curve}.png")
        return
    plot_sets({data: summarize(rows) for data, rows in sets.items()}, options.output / "quality-data.png")
    plot_curves(sets, "f1_1", options.output / "quality-data-curves.png")


def do_offsets(options: argparse.Namespace) -> None:
    """Execute `offsets`."""
    torch.set_num_threads(options.threads)
    place, data = place_of(options)
    given = dict(options.at)
    offsets = sorted({*options.offsets, 0.0})
    runs = read_plan(options.plan, data=data, held_out=options.held_out)
    if options.losses:
        chosen = pick(runs, options.losses)
        runs = [run for run in runs if run.title in chosen]
    results = group(sweep(runs, place, sorted({*offsets, *given.values()})))
    for settings, rows in results.items():
        print(f"{settings}\n\n{report(rows, offsets, given, options.baseline)}")
    plot_offsets(results, offsets, options.output / "quality-offsets.png")


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


@torch.no_grad()
def compare(options: argparse.Namespace) -> tuple[Split, str]:
    """Predict a split with the networks of the chosen losses; return it with their names, the data and the seed."""
    place, data = place_of(options)
    runs = read_plan(options.plan, data=data)
    if options.seed not in (seeds := sorted({run.seed for run in runs})):
        raise ValueError(f"--seed: expected one of {seeds}, the seeds of the plan, but got {options.seed}")
    same = runs[0].data, runs[0].settings
    runs = [run for run in runs if run.seed == options.seed and (run.data, run.settings) == same]
    chosen = pick(runs, options.losses)
    classes, void = read_labels(place.data_of(runs[0]))
    names = open_folder(place.split_of(runs[0]), len(classes), void).names
    batches, targets = zip(*scored_batches(runs[0], place), strict=True)
    predictions = {}
    for title, run in chosen.items():
        network = load_network(run, options.state, len(classes), options.device)
        predictions[title] = torch.cat([network(images.to(options.device)).argmax(1).cpu() for images in batches])
    split = Split(names, denormalize(torch.cat(batches)), torch.cat(targets), predictions, classes, void)
    baseline, *_, ours = chosen
    return split, f"{ours} against {baseline}; {runs[0].data}, {place.split_name(runs[0])}, seed {options.seed}"


def do_crops(options: argparse.Namespace) -> None:
    """Execute `crops`."""
    split, settings = compare(options)
    scored = windows(split, options.window)
    about = f"{settings}: {summary(scored)}"
    print(about)
    if options.percentile is None:
        figures = choose(scored, options.count)
    else:
        figures = {f"at percentile {options.percentile:g}": [at_percentile(scored, options.percentile)]}
    for kind, rows in figures.items():
        name = "benefit" if options.percentile is not None else f"quality-crops-{kind}"
        plot_crops(split, rows, kind, about, options.output / f"{name}.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command line."""
    options = parse(arguments)
    commands = {
        "merge": do_merge,
        "table": do_table,
        "plot": do_plot,
        "crops": do_crops,
        "cost": do_cost,
        "offsets": do_offsets,
    }
    try:
        commands.get(options.command, do_runs)(options)
    except (CheckpointError, ImportError, OSError, TypeError, ValueError) as error:
        print(f"quality.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("quality.py: interrupted; the same command continues from the last epochs", file=sys.stderr)
        return 130
    return 0
