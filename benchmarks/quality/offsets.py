"""Scores of finished networks at several operating points: logits - t · log u, with u the balance of the edges.

u > 1 for a class with few edge pixels. t > 0 takes back what a balanced loss adds to the logits of rare classes, t < 0
adds it to a network that was trained without a balance: a balance shifts the prior of the classes, and this measures
what a loss gains beyond such a shift.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from edgeloss.functional import balanced_edge_class_weight
from edgeloss.metrics.functional import (
    boundary_f1_counts,
    boundary_iou_counts,
    f1_from_counts,
    iou_from_counts,
    label_maps,
)
from quality.data import read_labels, read_targets, scored_batches, scored_set, training_set, voxel_shape
from quality.runs import Place, Run, key_of
from quality.scores import METRICS
from quality.tables import markdown, title_of
from quality.training import load_network
from result_table import Row, add_rows, read_rows
from segkit.checkpoint import CheckpointError

RADIUS, RATIO = 1, 0.005
CRITERION = "f1_1"  # the best offset has the highest mean over the seeds
POINTS = (CRITERION, "precision_1", "recall_1", "boundary_iou_005", "miou")

# --------------------------------------------------------------------------------------------------------------- counts


def log_balance(run: Run, place: Place) -> Tensor:
    """Compute log u [C] of the balanced edge class weights of the labels that a run is trained on."""
    classes, void = read_labels(place.data_of(run))
    return balanced_edge_class_weight(read_targets(run, place), len(classes), ignore_index=void).log()


@torch.no_grad()
def count_images(run: Run, place: Place, offsets: Sequence[float], log_u: Tensor) -> Tensor:
    """Count what the scores are made of, for a finished run.

    Args:
        run: the run, whose checkpoint is loaded.
        place: where to read it and the images.
        offsets: the values of t.
        log_u: [C].

    Returns:
        int64 [T, N, 8, C] of offsets, images and classes: the four counts of borders, then intersection and union of
        the bands of Boundary IoU, and of the regions.
    """
    classes, void = read_labels(place.data_of(run))
    network = load_network(run, place.state, len(classes), place.device)
    shifts = (torch.tensor(offsets)[:, None] * log_u).to(place.device)
    spacing, counts = voxel_shape(scored_set(run, place)), []
    for images, target in scored_batches(run, place):
        for logits, labels in zip(network(images.to(place.device)), target.to(place.device), strict=True):
            for shift in shifts:
                predicted = (logits - shift.view(-1, *[1] * labels.dim())).argmax(0)
                y = label_maps(predicted[None], labels[None], len(classes), void, validate=False)
                counts.append(_count(y, len(classes), spacing))
    return torch.stack(counts).unflatten(0, (-1, len(offsets))).transpose(0, 1).cpu()


def count_if_finished(run: Run, place: Place, offsets: Sequence[float], log_u: Tensor) -> Tensor | None:
    """Return `count_images`; if the run is not finished, print so and return None."""
    try:
        return count_images(run, place, offsets, log_u)
    except CheckpointError as error:
        print(f"left out: {error}", file=sys.stderr)
        return None


def _count(y: Tensor, num_classes: int, spacing: Sequence[float] | None = None) -> Tensor:
    """Count borders, bands and regions of label maps [2, 1, *S]: [8, C]."""
    pred, target = y[:, y[1] >= 0].long()
    both, predicted, true = (
        torch.bincount(labels, minlength=num_classes) for labels in (pred[pred == target], pred, target)
    )
    borders = boundary_f1_counts(y, num_classes, RADIUS, spacing, class_agnostic=False, per_image=False)
    regions = torch.stack([both, predicted + true - both])
    return torch.cat([borders, boundary_iou_counts(y, num_classes, RATIO, spacing), regions])


def scores_of(counts: Tensor, void: int) -> dict[str, float]:
    """Compute the scores POINTS of a set of images from the sum of their counts [8, C]."""

    def boundary(score: Any) -> Tensor:  # noqa: ANN401
        return f1_from_counts(counts[:4], score, "macro", void, per_image=False)

    values = {
        "f1_1": boundary("f1"),
        "precision_1": boundary("precision"),
        "recall_1": boundary("recall"),
        "boundary_iou_005": iou_from_counts(counts[4:6], "macro", void),
        "miou": iou_from_counts(counts[6:8], "macro", void),
    }
    return {name: round(value.item(), 6) for name, value in values.items()}


# ---------------------------------------------------------------------------------------------------------------- sweep


def sweep(runs: Sequence[Run], place: Place, offsets: Sequence[float]) -> list[Row]:
    """Score the finished runs at all offsets, add their rows to the table, and return the rows.

    A run whose row has all offsets is not scored again.

    Raises:
        CheckpointError: if no run is finished.
    """
    table = {key_of(row): row for row in read_rows(place.results)}
    balances: dict[str, Tensor] = {}
    rows = []
    for number, run in enumerate(runs, start=1):
        row = table.get(place.key(run), {"offsets": []})
        if not set(offsets) <= set(row["offsets"]):
            same = replace(run, loss="ce", options={}, seed=0, epochs=1)  # what the balance depends on
            start = time.perf_counter()
            if place.key(same) not in balances:
                balances[place.key(same)] = log_balance(run, place)
            counts = count_if_finished(run, place, offsets, balances[place.key(same)])
            if counts is None:
                continue
            row = _row_of(run, place, offsets, counts)
            add_rows(place.results, [row], key_of)
            print(f"{number}/{len(runs)}  {run.data}  {run.slug}  {time.perf_counter() - start:.0f} s", file=sys.stderr)
        rows.append(row)
    if not rows:
        raise CheckpointError(f"--state: expected finished runs of the plan, but got none in {place.state}")
    return rows


def _row_of(run: Run, place: Place, offsets: Sequence[float], counts: Tensor) -> Row:
    classes, void = read_labels(place.data_of(run))
    scores = [scores_of(of_offset, void) for of_offset in counts.sum(1)]
    return {
        "run": asdict(run),
        "split": place.split_name(run),
        "images": {"train": len(training_set(run, place)[1]), "evaluated": counts.shape[1]},
        "classes": classes,
        "offsets": list(offsets),
        "scores": {name: [of_offset[name] for of_offset in scores] for name in POINTS},
    }


# --------------------------------------------------------------------------------------------------------------- points


def at_offsets(rows: Iterable[Row], offsets: Mapping[str, float]) -> list[Row]:
    """Return results with the metrics at one offset per loss, by title."""
    results = []
    for row in rows:
        place = row["offsets"].index(offsets[title_of(row)])
        results.append({**row, "metrics": {name: values[place] for name, values in row["scores"].items()}})
    return results


def best_offsets(rows: Iterable[Row], offsets: Iterable[float]) -> dict[str, float]:
    """Return for each loss, by title, the offset with the highest mean of CRITERION over the seeds."""
    by_loss = defaultdict(list)
    for row in rows:
        by_loss[title_of(row)].append(dict(zip(row["offsets"], row["scores"][CRITERION], strict=True)))
    return {
        loss: max(offsets, key=lambda t: statistics.fmean(scores[t] for scores in of_loss))
        for loss, of_loss in by_loss.items()
    }


def report(rows: Sequence[Row], offsets: Sequence[float], given: Mapping[str, float], baseline: str) -> str:
    """Write the scores and differences at t = 0, at given offsets and at the best ones, as Markdown.

    Args:
        rows: of ``sweep``, all with the same settings and split.
        offsets: those to choose the best from.
        given: offsets by title, or under "" for all other losses; none are left out.
        baseline: title of the loss that the others are compared with.
    """
    losses = dict.fromkeys(map(title_of, rows))
    best = best_offsets(rows, offsets)
    parts = {"t = 0": dict.fromkeys(losses, 0.0)}
    if given:
        chosen = {loss: given.get(loss, given.get("", 0.0)) for loss in losses}
        parts[f"given: {_listed(chosen)}"] = chosen
    parts[f"best {METRICS[CRITERION]}, chosen on the same images: {_listed(best)}"] = best
    return "\n".join(
        f"**{title}**\n\n{markdown({title: at_offsets(rows, chosen)}, baseline, POINTS)}"
        for title, chosen in parts.items()
    )


def _listed(offsets: Mapping[str, float]) -> str:
    return "; ".join(f"{loss}: t = {t:g}" for loss, t in offsets.items())
