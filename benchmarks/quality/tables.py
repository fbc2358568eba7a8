"""Summaries of results over seeds, and Markdown tables of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from baselines.recipes import RECIPES
from quality.runs import Run, key_of, run_of
from quality.scores import METRICS, PER_CLASS, PER_IMAGE, scale_of
from result_table import Row, markdown_table, read_rows

BASELINE = "cross-entropy"
CONTROL = "edge-weighted CE (k 12, class_balance 1)"
WEIGHTED = "CE + Dice (weight 2, k 12, class_balance 1)"
BALANCED = "EdgeAwareLoss() (class_balance 1)"  # by the whole data set
# What pages and pictures call losses with options, and the folders of data sets.
NAMES = {
    CONTROL: "weighted CE",
    WEIGHTED: "weighted CE + Dice",
    BALANCED: "edgeloss, balance of the data set",
    "EdgeAwareLoss()": "edgeloss",
    "CE + clDice (thin_class 1)": "CE + clDice",
    "camvid": "CamVid",
    "sstem": "ssTEM",
    "topomortar": "TopoMortar",
    "dsb2018": "DSB2018",
    "| vessels |": "| DRIVE |",
    "| cracks |": "| CrackForest |",
}

SCORES_TITLE = "Mean ± standard deviation over seeds, percent where no unit is given; ↓ where less is better"
DIFFERENCES = (
    "Differences to {} with the same seed, points where no unit is given: mean, bold where its interval excludes 0;"
    " 95 % interval (Student's t); p-value (Holm, over the losses); the seeds"
)
IMAGES = (
    "Means over the images of the differences to {} of single images, in points: 95 % intervals over the seeds"
    " (Student's t), and over the images (a bootstrap of the means over the seeds)"
)
WITHOUT = "Differences to {} of the mean over the classes, with and without the two classes that gain most, in points"

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
        Dicts with ``loss``, the title; ``seeds``; ``failed``, the seeds that diverged; ``scores``, mean, standard
        deviation and number of seeds of each metric that the results have; ``differences``, for each of them the
        differences to the baseline with the same seed, as :func:`compare` returns them, and ``p_holm``, the p-value
        adjusted for the number of losses.
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
            summary["scores"][name] = statistics.fmean(values.values()), deviation, len(values)
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


# ------------------------------------------------------------------------------------------------------------- classes


def of_classes(results: Iterable[Row], classes: Iterable[int]) -> list[Row]:
    """Return results whose only metrics are the means over some classes, without those that do not occur."""
    rows, classes = [], [*classes]
    for row in results:
        metrics = {}
        for name, score in PER_CLASS.items():
            values = [value for value in _listed(row, name, classes) if value is not None]
            if values:
                metrics[score] = statistics.fmean(values)
        rows.append({**row, "metrics": metrics} if "metrics" in row else row)
    return rows


def _listed(row: Row, name: str, classes: Iterable[int]) -> list[float | None]:
    values = row.get("metrics", {}).get(name)
    return [values[index] for index in classes] if values else []


def by_class(results: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the results of each class by its name."""
    names = results[0]["classes"] if results else []
    return {name: of_classes(results, [index]) for index, name in enumerate(names)}


def without_most(results: Sequence[Row], loss: str, baseline: str, name: str, count: int = 2) -> Summary | None:
    """Return how far a loss is ahead of the baseline with and without the classes that gain most.

    Returns:
        A dict with ``all`` and ``without``, as :func:`compare` returns them; ``classes``, the mean gain of each of the
        ``count`` classes by name; and ``share``, their part of the gain of all. None if no seed has both scores.
    """
    both = [row for row in results if run_of(row).title in (loss, baseline)]

    def ahead(rows: Iterable[Row]) -> Summary | None:
        of_loss = (row["differences"].get(name) for row in summarize(rows, baseline) if row["loss"] == loss)
        return next(of_loss, None)

    gains = {each: found["mean"] for each, rows in by_class(both).items() if (found := ahead(rows))}
    if len(gains) <= count:
        return None
    names = results[0]["classes"]
    most = sorted(gains, key=gains.__getitem__, reverse=True)[:count]
    rest = of_classes(both, (index for index, each in enumerate(names) if each not in most))
    return {
        "all": ahead(of_classes(both, range(len(names)))),
        "without": ahead(rest),
        "classes": {each: gains[each] for each in most},
        "share": sum(gains[each] for each in most) / sum(gains.values()),
    }


# -------------------------------------------------------------------------------------------------------------- images

RESAMPLES = 10_000


def resampled(results: Iterable[Row], loss: str, baseline: str, name: str) -> Summary | None:
    """Return how far a loss is ahead of the baseline in a score of single images, with a bootstrap over the images.

    The mean over the seeds is taken first: the interval is over other images, and that of :func:`compare` over seeds.

    Args:
        results: all with the same settings and split.
        loss: the title of the loss.
        baseline: the title of the loss that it is compared with.
        name: one of PER_IMAGE.

    Returns:
        A dict with ``seeds``, as :func:`compare` returns them for the means over the images; ``images``, their number;
        and ``interval``, the 2.5th and 97.5th percentiles of the mean over RESAMPLES draws of as many images. None if
        no seed has both scores.
    """
    lists = {
        title: {row["run"]["seed"]: row["metrics"][name] for row in rows if name in row.get("metrics", {})}
        for title, rows in by_loss(results).items()
    }
    ours, others = lists.get(loss, {}), lists.get(baseline, {})
    pairs = [(ours[seed], others[seed]) for seed in sorted(ours.keys() & others.keys())]
    if not pairs:
        return None
    differences = np.array([np.array(a, dtype=float) - np.array(b, dtype=float) for a, b in pairs])
    images = np.nanmean(differences[:, ~np.isnan(differences).all(0)], 0)  # an image without borders has no score
    draws = np.random.default_rng(0).integers(len(images), size=(RESAMPLES, len(images)))
    low, high = np.percentile(images[draws].mean(1), (2.5, 97.5)).tolist()
    return {"seeds": compare(np.nanmean(differences, 1).tolist()), "images": len(images), "interval": (low, high)}


# ------------------------------------------------------------------------------------------------------------- Markdown


def markdown(results: Mapping[str, Sequence[Row]], baseline: str, metrics: Sequence[str]) -> str:
    """Write scores and differences to the baseline as tables with the data sets one below the other.

    The differences are also those of single images, and with and without the classes that gain most.
    """
    rows = [(data, row) for data, rows in results.items() for row in summarize(rows, baseline)]
    ahead = [(data, row) for data, row in rows if row["differences"]]
    compared = [(data, results[data], row["loss"]) for data, row in ahead]
    parts = {
        SCORES_TITLE: scores_table(rows, metrics),
        DIFFERENCES.format(baseline): differences_table(ahead, metrics),
        IMAGES.format(baseline): images_table(compared, baseline),
        WITHOUT.format(baseline): without_table(compared, baseline),
    }
    filled = {title: lines for title, lines in parts.items() if len(lines) > 2 or title == SCORES_TITLE}
    return "\n".join("\n".join([title, "", *lines, ""]) for title, lines in filled.items())


def named(text: str) -> str:
    """Return a text with the names that pages and pictures give to losses and data sets."""
    for title, name in NAMES.items():
        text = text.replace(title, name)
    return text


def scores_table(rows: Iterable[tuple[str, Summary]], metrics: Iterable[str]) -> list[str]:
    """Return a table of the scores of losses, each with the name of its data set."""
    cells = ([data, row["loss"], _seeds(row), *(_score(row, name) for name in metrics)] for data, row in rows)
    return markdown_table(["data", "loss", "seeds:", *(f"{METRICS[name]}:" for name in metrics)], cells)


def differences_table(rows: Iterable[tuple[str, Summary]], metrics: Iterable[str]) -> list[str]:
    """Return a table of differences to a baseline, each with the name of its data set."""
    cells = ([data, row["loss"], _pairs(row), *(_difference(row, name) for name in metrics)] for data, row in rows)
    return markdown_table(["data", "loss", "pairs:", *(f"{METRICS[name]}:" for name in metrics)], cells)


def images_table(compared: Iterable[tuple[str, Sequence[Row], str]], baseline: str) -> list[str]:
    """Return a table of differences in the scores of single images, with the intervals over seeds and over images.

    Args:
        compared: data set, its results, and the loss to compare with the baseline; those without such scores are left
            out.
        baseline: title of a loss.
    """
    cells = []
    for data, results, loss in compared:
        found = {score: resampled(results, loss, baseline, name) for name, score in PER_IMAGE.items()}
        if all(found.values()):
            first = next(iter(found.values()))
            row = [data, loss, str(len(first["seeds"]["values"])), str(first["images"])]
            for score, own in found.items():
                row += [ranged(score, own["seeds"]), interval(score, own["interval"])]
            cells.append(row)
    titles = [f"{METRICS[score]}, [seeds]: | [images]:" for score in PER_IMAGE.values()]
    return markdown_table(["data", "loss", "pairs:", "images:", *" | ".join(titles).split(" | ")], cells)


def without_table(compared: Iterable[tuple[str, Sequence[Row], str]], baseline: str) -> list[str]:
    """Return a table of differences to the baseline with and without the two classes that gain most.

    The arguments are those of :func:`images_table`; results with at most two classes are left out.
    """
    cells = []
    for data, results, loss in compared:
        for score in PER_CLASS.values():
            if found := without_most(results, loss, baseline, score):
                every, rest = found["all"], found["without"]
                classes = ", ".join(
                    f"{each} {number(score, gain, sign='+')}" for each, gain in found["classes"].items()
                )
                row = [data, loss, METRICS[score], str(len(every["values"]))]
                row += [ranged(score, own) for own in (every, rest)]
                cells.append([*row, classes, f"{100 * found['share']:.0f} %" if found["share"] > 0 else "–"])
    heads = ["data", "loss", "score", "pairs:", "all classes:", "without the two:", "the two", "their share:"]
    return markdown_table(heads, cells)


def classes_table(results: Sequence[Row], losses: Sequence[str]) -> list[str]:
    """Return a table of the mean scores of PER_CLASS of each class, with a column for each loss.

    Rows of earlier versions lack some of these scores and the pixels, which are left out then.

    Args:
        results: all with the same settings and split.
        losses: titles, in the order of the columns.
    """
    pixels = next((row["metrics"]["pixels"] for row in results if "pixels" in row.get("metrics", {})), None)
    shares = [f"{100 * count / sum(pixels):.2f}" for count in pixels] if pixels else []
    cells = []
    for index, (name, rows) in enumerate(by_class(results).items()):
        summaries = {row["loss"]: row["scores"] for row in summarize(rows)}
        of_losses = (
            " / ".join(number(score, found[score][0]) for score in PER_CLASS.values() if score in found) or "–"
            for found in (summaries[loss] for loss in losses)
        )
        cells.append([name, *shares[index : index + 1], *of_losses])
    return markdown_table(["class", *["pixels, %:"][: len(shares)], *(f"{loss}:" for loss in losses)], cells)


def ranged(name: str, difference: Summary) -> str:
    """Return the mean of a difference, bold where it is clear, and its interval, as tables show them."""
    mark = "**" * is_clear(difference)
    return f"{mark}{number(name, difference['mean'], sign='+')}{mark} {interval(name, difference['interval'])}".strip()


def interval(name: str, ends: tuple[float, float] | None) -> str:
    """Return an interval of a metric as tables show it; nothing if there is none."""
    return f"[{', '.join(_end(name, end) for end in ends)}]" if ends else ""


def _end(name: str, value: float) -> str:
    """Return an end of an interval, with the digits that show on which side of 0 it is."""
    short = number(name, value)
    return f"{value * scale_of(name):.1g}" if value and not short.strip("0.") else short


def _seeds(row: Summary) -> str:
    return str(len(row["seeds"])) + (f" ({len(row['failed'])} diverged)" if row["failed"] else "")


def _pairs(row: Summary) -> str:
    return str(max(len(difference["values"]) for difference in row["differences"].values()))


def _score(row: Summary, name: str) -> str:
    if name not in row["scores"]:
        return "–"
    mean, deviation, count = row["scores"][name]
    spread = "" if deviation is None else f" ± {number(name, deviation)}"
    return number(name, mean) + spread + (f" ({count})" if count < len(row["seeds"]) else "")


def _difference(row: Summary, name: str) -> str:
    if name not in row["differences"]:
        return "–"
    difference = row["differences"][name]
    if difference["interval"] is None:
        return ranged(name, difference)
    p = f"p {difference['p_holm']:.3f}" if difference["p_holm"] >= 0.001 else "p < 0.001"
    values = ", ".join(number(name, value) for value in difference["values"])
    return f"{ranged(name, difference)}, {p} ({values})"


def is_clear(difference: Summary) -> bool:
    """Return whether the interval of a difference excludes 0."""
    ends = difference["interval"]
    return ends is not None and (ends[0] > 0 or ends[1] < 0)


def number(name: str, value: float, sign: str = "-") -> str:
    """Return a value of a metric as tables show it: percent and points with one digit, what has a unit with two.

    What rounds to 0 has no sign.
    """
    scale = scale_of(name)
    text = f"{value * scale:{sign}.{1 if scale == 100 else 2}f}"
    return text if text.strip("+-0.") else text.lstrip("+-")
