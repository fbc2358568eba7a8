"""Summaries of results over seeds, and Markdown tables of them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.recipes import RECIPES
from quality.intervals import holm, interval, p_value, spread
from quality.runs import Run, loss_title
from quality.scores import METRICS, scale_of
from result_table import Row, read_rows

BASELINE = "cross-entropy"

SCORES_TITLE = "Mean ± standard deviation over seeds, percent where no unit is given"
DIFFERENCES = (
    "Differences to {} with the same seed: mean, its 95 % interval (Student's t) and p-value (Holm, over the losses),"
    " points where no unit is given"
)

Summary = dict[str, Any]

# -------------------------------------------------------------------------------------------------------------- results


def read_results(paths: Sequence[Path], split: str | None = None, plan: Iterable[Run] = ()) -> dict[str, list[Row]]:
    """Read results, grouped by their settings.

    Args:
        paths: tables of results.
        split: only results of this split.
        plan: only results with the settings of these runs, if there are any.

    Returns:
        The results by a sentence on their settings and split, in the order of the plan.

    Raises:
        ValueError: if there is none.
    """
    plan = [*plan]
    planned = {run.settings for run in plan}
    rows = [
        row
        for row in read_rows(*paths)
        if split in (None, row["split"]) and (not planned or Run(**row["run"]).settings in planned)
    ]
    order = {name: n for n, name in enumerate(dict.fromkeys(run.data for run in plan))}
    rows.sort(key=lambda row: order.get(row["run"]["data"], len(order)))
    if not rows:
        of_split, tables = f" of split {split}" if split else "", ", ".join(map(str, paths))
        raise ValueError(f"--results: expected results of `run` or `plan`{of_split}, but got none in {tables}")
    return group(rows)


def group(results: Iterable[Row]) -> dict[str, list[Row]]:
    """Group results by a sentence on their settings and split."""
    grouped = defaultdict(list)
    for result in results:
        grouped[describe(result)].append(result)
    return dict(grouped)


def describe(result: Row) -> str:
    """Return the settings and the split of a result as a sentence."""
    run, images = Run(**result["run"]), result["images"]
    size = "their own sizes" if run.size is None else _pixels(run.size)
    crops = f", in {run.crops} crops of {_pixels(run.crop)} per epoch" if run.crop else ""
    masks = f", with {run.masks}" if run.masks != "masks" else ""
    network = f"U-Net of width {run.width}" if run.network == "unet" else run.network + ", pretrained" * run.pretrained
    return (
        f"{run.data}, {result['split']}: {images['train']} images at {size} for training{crops}{masks},"
        f" {images['evaluated']} for these scores; {run.epochs} epochs in batches of {run.batch},"
        f" {network}, learning rate {run.lr:g}, {run.precision}"
    )


def _pixels(size: tuple[int, ...]) -> str:
    return " × ".join(map(str, reversed(size)))


def by_data(results: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    """Name groups of results by their data sets, or by their settings where several have the same data set."""
    names = [rows[0]["run"]["data"] for rows in results.values()]
    return {
        settings if names.count(name) > 1 else name: rows
        for name, (settings, rows) in zip(names, results.items(), strict=True)
    }


def title_of(result: Row) -> str:
    """Return the loss of a result as tables name it."""
    return loss_title(result["run"]["loss"], result["run"]["options"])


def in_order(results: Iterable[Row]) -> list[Row]:
    """Sort results by their losses, in the order of the recipes."""
    order = list(RECIPES)
    return sorted(results, key=lambda result: (order.index(result["run"]["loss"]), title_of(result)))


# ------------------------------------------------------------------------------------------------------------ summaries


def summarize(results: Iterable[Row], baseline: str = BASELINE) -> list[Summary]:
    """Summarize each loss and its options over the seeds, in the order of recipes.

    Args:
        results: all with the same settings and split.
        baseline: title of the loss that the others are compared with.

    Returns:
        Dicts with ``loss``, the title; ``name``, the recipe; ``seeds``; ``failed``, the seeds that diverged;
        ``scores``, mean and standard deviation of each metric that the results have; ``differences``, for each of them
        the differences to the baseline paired by seed: their values, mean, interval, ``p``, and ``p_holm``
        adjusted for the number of losses compared; the last three need two pairs.
    """
    by_loss: dict[str, dict[int, Row]] = defaultdict(dict)
    for result in in_order(results):
        by_loss[title_of(result)][result["run"]["seed"]] = result
    metrics = {
        loss: {seed: result["metrics"] for seed, result in sorted(by_seed.items()) if "failed" not in result}
        for loss, by_seed in by_loss.items()
    }
    compared = metrics.get(baseline, {})
    rows = []
    for loss, by_seed in by_loss.items():
        row: Summary = {
            "loss": loss,
            "name": next(iter(by_seed.values()))["run"]["loss"],
            "seeds": list(metrics[loss]),
            "failed": sorted(by_seed.keys() - metrics[loss].keys()),
            "scores": {},
            "differences": {},
        }
        for name in METRICS:
            values = _values(metrics[loss], name)
            if values:
                row["scores"][name] = spread([*values.values()])
            others = _values(compared, name)
            pairs = [value - others[seed] for seed, value in values.items() if seed in others]
            if pairs and loss != baseline:
                row["differences"][name] = {
                    "values": pairs,
                    "mean": statistics.fmean(pairs),
                    "interval": interval(pairs),
                    "p": p_value(pairs),
                }
        rows.append(row)
    for name in METRICS:
        compared_rows = {row["loss"]: row["differences"][name] for row in rows if name in row["differences"]}
        p_values = {loss: difference["p"] for loss, difference in compared_rows.items() if difference["p"] is not None}
        for loss, p in holm(p_values).items():
            compared_rows[loss]["p_holm"] = p
    return rows


def _values(by_seed: Mapping[int, Mapping[str, float | None]], name: str) -> dict[int, float]:
    """Return a metric of the seeds that have it: earlier results lack some."""
    return {seed: value for seed, metrics in by_seed.items() if (value := metrics.get(name)) is not None}


# ------------------------------------------------------------------------------------------------------------- Markdown


def markdown(results: Mapping[str, Sequence[Row]], baseline: str, metrics: Sequence[str]) -> str:
    """Write scores and differences to the baseline as two tables with the data sets one below the other."""
    tables = {data: summarize(rows, baseline) for data, rows in by_data(results).items()}
    return "\n".join(
        [
            _table(
                SCORES_TITLE,
                ["data", "loss", "seeds", *(METRICS[name] for name in metrics)],
                [
                    [data, row["loss"], _seeds(row), *(_score(row, name) for name in metrics)]
                    for data, rows in tables.items()
                    for row in rows
                ],
            ),
            _table(
                DIFFERENCES.format(baseline),
                ["data", "loss", "pairs", *(METRICS[name] for name in metrics)],
                [
                    [data, row["loss"], _pairs(row), *(_difference(row, name) for name in metrics)]
                    for data, rows in tables.items()
                    for row in rows
                    if row["differences"]
                ],
            ),
        ]
    )


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [title, "", f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


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
    difference = row["differences"][name]
    scale = scale_of(name)
    mean = f"{difference['mean'] * scale:+.2f}"
    if difference["interval"] is None:
        return mean
    low, high = difference["interval"]
    p = difference["p_holm"]
    return f"{mean} [{low * scale:+.2f}, {high * scale:+.2f}], p " + (f"{p:.3f}" if p >= 0.001 else "< 0.001")
