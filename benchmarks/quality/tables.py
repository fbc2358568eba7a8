"""Summaries of results over seeds, and Markdown tables of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.recipes import RECIPES, loss_title
from quality.runs import Run, key_of
from quality.scores import METRICS, scale_of
from result_table import Row, markdown_table, read_rows

BASELINE = "cross-entropy"

SCORES_TITLE = "Mean ± standard deviation over seeds, percent where no unit is given"
DIFFERENCES = (
    "Differences to {} with the same seed: mean, its 95 % interval (Student's t) and p-value (Holm, over the losses),"
    " points where no unit is given"
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
    names, named = [setting_of(found[0]) for found in grouped.values()], {}
    for name, found in zip(names, grouped.values(), strict=True):
        longer = f"{name}, {found[0].epochs} epochs" if names.count(name) > 1 else name
        named[longer] = [rows[run.key] for run in found]
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


def title_of(result: Row) -> str:
    """Return the loss of a result as tables name it."""
    return loss_title(result["run"]["loss"], result["run"]["options"])


def by_loss(results: Iterable[Row]) -> dict[str, list[Row]]:
    """Group results by their losses, in the order of the recipes, and sort each by seed."""
    order, grouped = list(RECIPES), defaultdict(list)
    for row in sorted(results, key=lambda row: (order.index(row["run"]["loss"]), title_of(row), row["run"]["seed"])):
        grouped[title_of(row)].append(row)
    return dict(grouped)


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
        adjusted = holm({loss: found["p"] for loss, found in differences.items() if found["p"] is not None})
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

    found: Summary = {"values": values, "mean": statistics.fmean(values), "interval": None, "p": None}
    if len(values) > 1:
        mean, error, freedom = found["mean"], statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1
        half = float(t.ppf(0.975, freedom)) * error
        p = 2 * float(t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
        found |= {"interval": (mean - half, mean + half), "p": p}
    return found


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for their number by Holm's method."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted


# ------------------------------------------------------------------------------------------------------------- Markdown


def markdown(results: Mapping[str, Sequence[Row]], baseline: str, metrics: Sequence[str]) -> str:
    """Write scores and differences to the baseline as two tables with the data sets one below the other."""
    rows = [(data, row) for data, rows in results.items() for row in summarize(rows, baseline)]
    heads = [f"{METRICS[name]}:" for name in metrics]
    scores = [[data, row["loss"], _seeds(row), *(_score(row, name) for name in metrics)] for data, row in rows]
    differences = [
        [data, row["loss"], _pairs(row), *(_difference(row, name) for name in metrics)]
        for data, row in rows
        if row["differences"]
    ]
    parts = {
        SCORES_TITLE: markdown_table(["data", "loss", "seeds:", *heads], scores),
        DIFFERENCES.format(baseline): markdown_table(["data", "loss", "pairs:", *heads], differences),
    }
    return "\n".join("\n".join([title, "", *lines, ""]) for title, lines in parts.items())


def _seeds(row: Summary) -> str:
    return str(len(row["seeds"])) + (f" ({len(row['failed'])} diverged)" if row["failed"] else "")


def _pairs(row: Summary) -> str:
    return str(max(len(difference["values"]) for difference in row["differences"].values()))


def _score(row: Summary, name: str) -> str:
    if name not in row["scores"]:
        return "–"
    mean, deviation = row["scores"][name]
    scale = scale_of(name)
    return f"{mean * scale:.2f}" + ("" if deviation is None else f" ± {deviation * scale:.2f}")


def _difference(row: Summary, name: str) -> str:
    if name not in row["differences"]:
        return "–"
    difference, scale = row["differences"][name], scale_of(name)
    mean = f"{difference['mean'] * scale:+.2f}"
    if difference["interval"] is None:
        return mean
    low, high = difference["interval"]
    p = difference["p_holm"]
    return f"{mean} [{low * scale:+.2f}, {high * scale:+.2f}], p " + (f"{p:.3f}" if p >= 0.001 else "< 0.001")
