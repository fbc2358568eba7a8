"""Summaries of results over seeds, and Markdown tables of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from baselines.recipes import RECIPES
from quality.runs import Run, key_of, run_of
from quality.scores import METRICS, scale_of
from result_table import Row, markdown_table, read_rows

BASELINE = "cross-entropy"

SCORES_TITLE = "Mean ± standard deviation over seeds, percent where no unit is given"
DIFFERENCES = (
    "Differences to {} with the same seed, points where no unit is given: mean, bold where its interval excludes 0;"
    " 95 % interval (Student's t); p-value (Holm, over the losses); the seeds"
)

Summary = dict[str, Any]

# -------------------------------------------------------------------------------------------------------------- results


def rows_of(path: Path, runs: Iterable[Run]) -> dict[str, list[Row]]:
    """Read the results of some runs by their data sets, in the order of the runs.

    Results of other settings have names of their own: the size of a pretrained network, epochs where some differ.

    Raises:
        ValueError: if there are no results, or two settings have the same name.
    """
    rows = {key_of(row): row for row in read_rows(path)}
    grouped: dict[Any, list[Run]] = defaultdict(list)
    for key, run in {run.key: run for run in runs}.items():
        if key in rows:
            grouped[run.data, run.split, run.settings].append(run)
    names, named = [setting_of(group[0]) for group in grouped.values()], {}
    for name, group in zip(names, grouped.values(), strict=True):
        longer = f"{name}, {group[0].epochs} epochs" if names.count(name) > 1 else name
        named[longer] = [rows[run.key] for run in group]
    if not named or len(named) < len(grouped):
        what = "of one setting per data set; pass --plan" if named else "of these runs; train them with `plan`"
        raise ValueError(f"--results: expected results {what}, but got {path}")
    return named


def setting_of(run: Run) -> str:
    """Return the data set of a run, with its size and what it starts from where a plan has several."""
    if run.network == "unet":
        return run.data
    size = " × ".join(map(str, reversed(run.size or ())))
    return f"{run.data} {size}" + ", from scratch" * (not run.pretrained)


def by_loss(results: Iterable[Row]) -> dict[str, list[Row]]:
    """Group results by their losses, in the order of the recipes, and sort each by seed."""
    order, grouped = list(RECIPES), defaultdict(list)
    runs = [(run_of(row), row) for row in results]
    for run, row in sorted(runs, key=lambda pair: (order.index(pair[0].loss), pair[0].title, pair[0].seed)):
        grouped[run.title].append(row)
    return dict(grouped)


def mean_scores(results: Iterable[Row], name: str) -> list[float]:
    """Return the mean of a score over the results of a sweep, at each of its offsets."""
    return [*map(statistics.fmean, zip(*(row["scores"][name] for row in results), strict=True))]


# ------------------------------------------------------------------------------------------------------------ summaries


def summarize(results: Iterable[Row], baseline: str = BASELINE) -> list[Summary]:
    """Summarize each loss and its options over the seeds, in the order of recipes.

    Args:
        results: all with the same settings and split.
        baseline: title of the loss that the others are compared with.

    Returns:
        Dicts with ``loss``, the title; ``seeds``; ``failed``, the seeds that diverged; ``scores``, mean and standard
        deviation of each metric that the results have; ``differences``, for each of them the differences to the
        baseline with the same seed, as :func:`compare` returns them, and ``p_holm``, the p-value adjusted for the
        number of losses.
    """
    grouped = by_loss(results)
    rows = [_summary(loss, of_loss, grouped.get(baseline, []), baseline) for loss, of_loss in grouped.items()]
    for name in METRICS:
        differences = {row["loss"]: row["differences"][name] for row in rows if name in row["differences"]}
        adjusted = holm({loss: own["p"] for loss, own in differences.items() if own["p"] is not None})
        for loss, p in adjusted.items():
            differences[loss]["p_holm"] = p
    return rows


def _summary(loss: str, results: Sequence[Row], compared: Sequence[Row], baseline: str) -> Summary:
    seeds = [row["run"]["seed"] for row in results if "metrics" in row]
    failed = [row["run"]["seed"] for row in results if "metrics" not in row]
    summary: Summary = {"loss": loss, "seeds": seeds, "failed": failed, "scores": {}, "differences": {}}
    for name in METRICS:
        values, others = _values(results, name), _values(compared, name)
        if values:
            deviation = statistics.stdev(values.values()) if len(values) > 1 else None
            summary["scores"][name] = statistics.fmean(values.values()), deviation
        pairs = [value - others[seed] for seed, value in values.items() if seed in others]
        if pairs and loss != baseline:
            summary["differences"][name] = compare(pairs)
    return summary


def _values(results: Iterable[Row], name: str) -> dict[int, float]:
    """Return a metric of the seeds that have it: earlier results lack some."""
    values = {row["run"]["seed"]: row.get("metrics", {}).get(name) for row in results}
    return {seed: value for seed, value in values.items() if value is not None}


def compare(values: Sequence[float]) -> Summary:
    """Return the ``values``, their ``mean``, its 95 % ``interval`` and the two-sided ``p`` of a mean of 0.

    Interval and p are Student's; None for a single value.
    """
    from scipy.stats import t

    compared: Summary = {"values": values, "mean": statistics.fmean(values), "interval": None, "p": None}
    if len(values) > 1:
        mean, error, freedom = compared["mean"], statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1
        half = float(t.ppf(0.975, freedom)) * error
        p = 2 * float(t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
        compared |= {"interval": (mean - half, mean + half), "p": p}
    return compared


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for their number by Holm's method."""
    ranked = sorted(p_values, key=p_values.__getitem__)
    adjusted = (min(1.0, (len(ranked) - rank) * p_values[name]) for rank, name in enumerate(ranked))
    return dict(zip(ranked, accumulate(adjusted, max), strict=True))


# ------------------------------------------------------------------------------------------------------------- Markdown


def markdown(results: Mapping[str, Sequence[Row]], baseline: str, metrics: Sequence[str]) -> str:
    """Write scores and differences to the baseline as two tables with the data sets one below the other."""
    rows = [(data, row) for data, rows in results.items() for row in summarize(rows, baseline)]
    parts = {
        SCORES_TITLE: scores_table(rows, metrics),
        DIFFERENCES.format(baseline): differences_table([pair for pair in rows if pair[1]["differences"]], metrics),
    }
    return "\n".join("\n".join([title, "", *lines, ""]) for title, lines in parts.items())


def scores_table(rows: Iterable[tuple[str, Summary]], metrics: Iterable[str]) -> list[str]:
    """Return a table of the scores of losses, each with the name of its data set."""
    cells = ([data, row["loss"], _seeds(row), *(_score(row, name) for name in metrics)] for data, row in rows)
    return markdown_table(["data", "loss", "seeds:", *(f"{METRICS[name]}:" for name in metrics)], cells)


def differences_table(rows: Iterable[tuple[str, Summary]], metrics: Iterable[str]) -> list[str]:
    """Return a table of differences to a baseline, each with the name of its data set."""
    cells = ([data, row["loss"], _pairs(row), *(_difference(row, name) for name in metrics)] for data, row in rows)
    return markdown_table(["data", "loss", "pairs:", *(f"{METRICS[name]}:" for name in metrics)], cells)


def _seeds(row: Summary) -> str:
    return str(len(row["seeds"])) + (f" ({len(row['failed'])} diverged)" if row["failed"] else "")


def _pairs(row: Summary) -> str:
    return str(max(len(difference["values"]) for difference in row["differences"].values()))


def _score(row: Summary, name: str) -> str:
    if name not in row["scores"]:
        return "–"
    mean, deviation = row["scores"][name]
    return number(name, mean) + ("" if deviation is None else f" ± {number(name, deviation)}")


def _difference(row: Summary, name: str) -> str:
    if name not in row["differences"]:
        return "–"
    difference = row["differences"][name]
    mean = number(name, difference["mean"], sign="+")
    if difference["interval"] is None:
        return mean
    low, high = difference["interval"]
    mean = f"**{mean}**" if low > 0 or high < 0 else mean
    p = f"p {difference['p_holm']:.3f}" if difference["p_holm"] >= 0.001 else "p < 0.001"
    values = ", ".join(number(name, value) for value in difference["values"])
    return f"{mean} [{number(name, low)}, {number(name, high)}], {p} ({values})"


def number(name: str, value: float, sign: str = "-") -> str:
    """Return a value of a metric as tables show it: percent and points with one digit, what has a unit with two."""
    scale = scale_of(name)
    text = f"{value * scale:{sign}.{1 if scale == 100 else 2}f}"
    return text if text.strip("-0.") else text.lstrip("-")
