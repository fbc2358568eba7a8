"""Tables and plots of what `quality.py` has measured."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.recipes import RECIPES, TITLES, Options, defaults

Result = dict[str, Any]

RATIOS = {"boundary_iou_02": 0.02, "boundary_iou_005": 0.005}
RADII = (1, 3, 5)
METRICS = {
    "miou": "mIoU",
    **{name: f"Boundary IoU {ratio}" for name, ratio in RATIOS.items()},
    **{f"f1_{r}": f"boundary F1 {r} px" for r in RADII},
    **{f"precision_{r}": f"precision {r} px" for r in RADII},
    **{f"recall_{r}": f"recall {r} px" for r in RADII},
    **{f"trimap_{r}": f"trimap mIoU {r} px" for r in RADII},
}
BORDER_SIDES = tuple(name for name in METRICS if name.startswith(("precision", "recall")))
SCORES = tuple(name for name in METRICS if name not in BORDER_SIDES)
SHOWN = ("miou", "boundary_iou_005", "f1_1")  # in the plots

BASELINE = "cross-entropy"

# --------------------------------------------------------------------------------------------------------------- tables


def label(loss: str, options: Options) -> str:
    """What a loss is called in tables: its options where they are not the defaults."""
    known = defaults(loss)
    changed = ", ".join(f"{key} {value:g}" for key, value in options.items() if value != known.get(key, value))
    return TITLES[loss] + (f" ({changed})" if changed else "")


def read_results(folder: Path, split: str | None = None) -> dict[str, list[Result]]:
    """The results of a split, or all of them, by what they have in common: the settings and the split.

    Raises:
        ValueError: if there is none.
    """
    found = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if split not in (None, result["split"]):
            continue
        run = result["run"]
        height, width = run["size"]
        common = (
            f"{run['data']}, {result['split']}: {result['images']['train']} images at {width} × {height} for training,"
            f" {result['images']['evaluated']} for these scores; {run['epochs']} epochs in batches of {run['batch']},"
            f" U-Net of width {run['width']}, learning rate {run['lr']:g},"
            f" {run.get('precision', 'float32')}"
        )
        found[common].append(result)
    if not found:
        of_split = f" of split {split}" if split else ""
        raise ValueError(f"--results: expected files of `run` or `plan`{of_split} but got none in {folder}")
    return dict(found)


def label_of(result: Result) -> str:
    """What the loss of a result is called."""
    return label(result["run"]["loss"], result["run"]["options"])


def in_order(results: Iterable[Result]) -> list[Result]:
    """The results in the order of the recipes."""
    order = list(RECIPES)
    return sorted(results, key=lambda result: (order.index(result["run"]["loss"]), label_of(result)))


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation, which a single value has none of."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; None for a single value."""
    from scipy.stats import t

    mean, deviation = spread(values)
    if deviation is None:
        return None
    half = float(t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))
    return mean - half, mean + half


def summarise(results: Iterable[Result], baseline: str = BASELINE) -> list[Result]:
    """A row for each loss and its options, in the order of the recipes.

    Args:
        results: of one setting and split.
        baseline: the label of the loss that the others are compared with.

    Returns:
        Dicts with ``loss``, the label; ``name``, the recipe's; ``seeds``; ``failed``, the seeds that diverged;
        ``scores``, for each metric mean and standard deviation; ``differences``, for each metric those to the
        baseline, paired by seed: their values, mean and interval.
    """
    by_loss: dict[str, dict[int, Result]] = defaultdict(dict)
    for result in in_order(results):
        by_loss[label_of(result)][result["run"]["seed"]] = result
    metrics = {
        loss: {seed: result["metrics"] for seed, result in sorted(by_seed.items()) if "failed" not in result}
        for loss, by_seed in by_loss.items()
    }
    compared = metrics.get(baseline, {})
    rows = []
    for loss, by_seed in by_loss.items():
        row: Result = {
            "loss": loss,
            "name": next(iter(by_seed.values()))["run"]["loss"],
            "seeds": list(metrics[loss]),
            "failed": sorted(by_seed.keys() - metrics[loss].keys()),
            "scores": {},
            "differences": {},
        }
        for name in METRICS if metrics[loss] else ():
            row["scores"][name] = spread([values[name] for values in metrics[loss].values()])
            pairs = [values[name] - compared[seed][name] for seed, values in metrics[loss].items() if seed in compared]
            if pairs and loss != baseline:
                row["differences"][name] = {
                    "values": pairs,
                    "mean": statistics.fmean(pairs),
                    "interval": interval(pairs),
                }
        rows.append(row)
    return rows


def markdown(
    rows: Sequence[Result],
    costs: Mapping[str, Result],
    baseline: str = BASELINE,
    metrics: Sequence[str] = tuple(METRICS),
) -> str:
    """The rows as tables: scores, precision and recall, differences to the baseline. All in percent or points."""
    sides = [name for name in metrics if name in BORDER_SIDES]
    metrics = [name for name in metrics if name not in BORDER_SIDES]

    def score(row: Result, name: str) -> str:
        mean, deviation = row["scores"][name]
        return f"{mean * 100:.2f}" + ("" if deviation is None else f" ± {deviation * 100:.2f}")

    def difference(row: Result, name: str) -> str:
        found = row["differences"][name]
        if found["interval"] is None:
            return f"{found['mean'] * 100:+.2f}"
        low, high = found["interval"]
        return f"{found['mean'] * 100:+.2f} [{low * 100:+.2f}, {high * 100:+.2f}]"

    def cost(row: Result) -> list[str]:
        found = costs.get(row["loss"])
        if found is None:
            return ["–"] * 3
        return [f"{found['milliseconds']:.1f}", f"{found['ratio']:.2f}", f"{found['megabytes']:.1f}"]

    def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
        lines = [title, "", f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"

    scored = [row for row in rows if row["seeds"]]
    compared = [row for row in rows if row["differences"]]
    parts = [
        table(
            "Mean ± standard deviation over seeds, percent"
            + "; time and memory beyond the gradient of the loss, forward and backward" * bool(costs),
            ["loss", "seeds", *(METRICS[name] for name in metrics), *(["ms", "× CE", "MB"] if costs else [])],
            [
                [
                    row["loss"],
                    str(len(row["seeds"])) + (f" ({len(row['failed'])} diverged)" if row["failed"] else ""),
                    *(score(row, name) for name in metrics),
                    *(cost(row) if costs else []),
                ]
                for row in scored
            ],
        ),
        table(
            "Precision and recall of borders, percent",
            ["loss", *(METRICS[name] for name in sides)],
            [[row["loss"], *(score(row, name) for name in sides)] for row in scored],
        )
        if sides
        else "",
        table(
            f"Differences to {baseline} with the same seed: mean and its 95 % interval (Student's t), points",
            ["loss", "pairs", *(METRICS[name] for name in metrics)],
            [
                [row["loss"], str(len(row["differences"]["miou"]["values"])), *(difference(row, n) for n in metrics)]
                for row in compared
            ],
        ),
    ]
    if diverged := [row["loss"] for row in rows if not row["seeds"]]:
        parts.append(f"Diverged with every seed: {', '.join(diverged)}\n")
    return "\n".join(filter(None, parts))


def trials(rows: Sequence[Result], by: Sequence[str]) -> str:
    """The trials of every loss, the best first."""
    heads = ["loss", "seeds", f"mean of {', '.join(by)}", *(METRICS[name] for name in SCORES)]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    scored = [row for row in rows if row["seeds"]]
    criterion = {row["loss"]: statistics.fmean(row["scores"][name][0] for name in by) for row in scored}
    for name in RECIPES:
        own = sorted((row for row in scored if row["name"] == name), key=lambda row: -criterion[row["loss"]])
        for place, row in enumerate(own):
            title = f"**{row['loss']}**" if place == 0 else row["loss"]
            figures = [criterion[row["loss"]], *(row["scores"][name][0] for name in SCORES)]
            cells = [title, str(len(row["seeds"])), *(f"{figure * 100:.2f}" for figure in figures)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------- plots


def plot_bars(rows: Sequence[Result], title: str, path: Path) -> None:
    """Differences to the baseline: the mean as a bar, its interval, and each seed's as a dot.

    The axes follow the dots: the interval of two seeds is often many times as wide.
    """
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["differences"]]
    figure = Figure(figsize=(4 * len(SHOWN) + 1, 1.3 + 0.33 * len(rows)), layout="constrained")
    axes = figure.subplots(1, len(SHOWN), sharey=True)
    for axis, name in zip(axes, SHOWN, strict=True):
        most = max(abs(value) * 100 for row in rows for value in row["differences"][name]["values"])
        axis.set_xlim(-1.6 * most, 1.6 * most)
        for y, row in enumerate(rows):
            found = row["differences"][name]
            axis.barh(y, found["mean"] * 100, 0.7, color="#d62728" if row["name"] == "ours" else "#9db3c8")
            if found["interval"]:
                axis.plot([end * 100 for end in found["interval"]], [y, y], color="black", linewidth=1)
            axis.plot([value * 100 for value in found["values"]], [y] * len(found["values"]), "k.", markersize=4)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(METRICS[name], fontsize=10)
        axis.set_xlabel("points above cross-entropy", fontsize=8)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].set_yticks(
        range(len(rows)),
        [f"{row['loss']}, n = {len(row['differences'][SHOWN[0]]['values'])}" for row in rows],
        fontsize=8,
    )
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=8)
    figure.savefig(path, dpi=120)


def plot_curves(results: Sequence[Result], title: str, path: Path) -> None:
    """The metrics over the epochs: the mean over the seeds, and their range for the baseline and ours."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    values: dict[str, dict[int, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in in_order(results):
        for row in result["curve"]:
            values[label_of(result)][row["epoch"]].append(row["metrics"])

    def ends(seeds: Sequence[float]) -> tuple[float, float]:
        return min(seeds), max(seeds)

    figure = Figure(figsize=(4.3 * len(SHOWN), 4.4), layout="constrained")
    axes = figure.subplots(1, len(SHOWN))
    for axis, name in zip(axes, SHOWN, strict=True):
        for n, (loss, by_epoch) in enumerate(values.items()):
            epochs = sorted(by_epoch)
            of_seeds = [[metrics[name] * 100 for metrics in by_epoch[epoch]] for epoch in epochs]
            ours = loss.startswith(TITLES["ours"])
            color = "black" if loss == BASELINE else f"C{n % 10}"
            means = [statistics.fmean(v) for v in of_seeds]
            axis.plot(epochs, means, color=color, linewidth=2 if ours else 1, label=loss)
            if ours or loss == BASELINE:
                axis.fill_between(epochs, *zip(*map(ends, of_seeds), strict=True), color=color, alpha=0.15, linewidth=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_title(f"{METRICS[name]}, %", fontsize=10)
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=8)
    figure.savefig(path, dpi=120)
