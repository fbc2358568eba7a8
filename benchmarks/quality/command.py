"""The commands of the comparison."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from baselines.recipes import RECIPES, Options
from edgeloss.io import check_file
from label_maps import regions, scenes
from measure import INSTRUCTIONS, processor
from quality.arguments import parse
from quality.benefit import plot_benefit
from quality.cost import costs_of
from quality.crops import Split, at_percentile, choose, plot_crops, summary, windows
from quality.data import open_folder, read_labels, scored_batches
from quality.offsets import report, sweep
from quality.plots import plot_bars, plot_curves, plot_offsets, plot_set_curves, plot_sets
from quality.runs import SETTINGS, Place, Run, key_of, loss_title, pick, runs_of
from quality.scores import METRICS, SHOWN
from quality.tables import (
    BASELINE,
    by_data,
    group,
    markdown,
    markdown_by_data,
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
    results = read_chosen(options, options.baseline)
    if options.by == "data":
        print(markdown_by_data(results, options.baseline, options.metrics or SHOWN))
        return
    measured = json.loads(options.cost.read_text()) if options.cost.exists() else None
    tables = {settings: summarize(rows, options.baseline) for settings, rows in results.items()}
    for settings, rows in tables.items():
        # The costs are those of one shape of logits; next to results of another they would mislead.
        same = measured and list(Run(**results[settings][0]["run"]).size or ()) == measured["machine"]["logits"][2:]
        costs = measured["losses"] if same else {}
        print(f"{settings}\n\n{markdown(rows, costs, options.baseline, options.metrics or tuple(METRICS))}")
    if options.json:
        options.json.write_text(json.dumps(tables, indent=1) + "\n")


def suffix_of(settings: str, results: Collection[str]) -> str:
    """Return the part of a file name that differs between settings: the data set and a hash of the settings."""
    name = f"-{settings.partition(',')[0]}-{hashlib.sha256(settings.encode()).hexdigest()[:6]}"
    return "" if len(results) == 1 else name


def do_plot(options: argparse.Namespace) -> None:
    """Execute `plot`."""
    results = read_chosen(options, *[BASELINE] * (options.by == "data"))
    if options.by == "data" and not options.curve:
        sets = by_data(results)
        plot_sets({data: summarize(rows) for data, rows in sets.items()}, options.output / "quality-data.png")
        plot_set_curves(sets, options.output / "quality-data-curves.png")
        return
    for settings, rows in results.items():
        suffix = suffix_of(settings, results)
        if options.curve:
            plot_curves(rows, settings, options.output / f"quality-{options.curve}{suffix}.png", names=[options.curve])
            continue
        summaries = summarize(rows)
        if any(summary["differences"] for summary in summaries):
            plot_bars(summaries, settings, options.output / f"quality-bars{suffix}.png")
        plot_curves(rows, settings, options.output / f"quality-curves{suffix}.png")


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
    place, data = place_of(options)
    runs = read_plan(options.plan, data=data)
    if options.seed not in (seeds := sorted({run.seed for run in runs})):
        raise ValueError(f"--seed: expected one of {seeds}, the seeds of the plan, but got {options.seed}")
    runs = [run for run in runs if run.seed == options.seed and run.data == runs[0].data]
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
    return Comparison(
        chosen,
        split,
        batches,
        f"{ours} against {baseline}; {runs[0].data}, {place.split_name(runs[0])}, seed {options.seed}",
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
