"""Scores of finished networks at several operating points: logits - t · log u, with u the balance of the edges.

u > 1 for a class with few edge pixels. t > 0 takes back what a balanced loss adds to the logits of rare classes, t < 0
adds it to a network that was trained without a balance: a balance shifts the prior of the classes, and this measures
what a loss gains beyond such a shift.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from edgeloss.functional import balanced_edge_class_weight
from quality.data import open_part, read_targets, scored_batches
from quality.runs import Place, Run, key_of, run_of
from quality.scores import METRICS, evaluate
from quality.tables import by_loss, markdown, mean_scores
from quality.training import load_network
from result_table import Row, add_rows, read_rows
from segkit.checkpoint import CheckpointError

OFFSETS = tuple(step / 4 for step in range(-6, 7))  # the values of t
CRITERION = "f1_1"  # the best offset has the highest mean over the seeds
POINTS = (CRITERION, "precision_1", "recall_1", "boundary_iou_005", "miou")

# ---------------------------------------------------------------------------------------------------------------- sweep


def log_balance(run: Run, place: Place) -> Tensor:
    """Compute log u [C] of the balanced edge class weights of the labels that a run is trained on."""
    dataset, _ = open_part(run, place)
    classes, void = len(dataset.classes), dataset.ignore_index
    return balanced_edge_class_weight(read_targets(run, place), classes, ignore_index=void).log()


@torch.no_grad()
def scores_at(run: Run, place: Place, log_u: Tensor, offsets: Sequence[float]) -> dict[str, list[float]]:
    """Compute the scores POINTS of a finished run at each offset."""
    dataset, _ = open_part(run, place)
    network, about = load_network(run, place), (len(dataset.classes), dataset.ignore_index, place.device)
    batches = [(network(images.to(place.device)).cpu(), target) for images, target in scored_batches(run, place)]
    scores = []
    for t in offsets:
        shifted = [(logits - t * log_u.view(-1, *[1] * (logits.dim() - 2)), target) for logits, target in batches]
        scores.append(evaluate(torch.nn.Identity(), shifted, *about, metrics=POINTS))
    return {name: [at[name] for at in scores] for name in POINTS}


def sweep(runs: Sequence[Run], place: Place) -> None:
    """Score the finished runs at all offsets, and add their rows to the table; a run that has one is left out."""
    known, balances = {key_of(row) for row in read_rows(place.results)}, {}
    for number, run in enumerate(runs, start=1):
        if run.key in known:
            continue
        start, same = time.perf_counter(), (run.data, run.split, run.settings)
        if same not in balances:
            balances[same] = log_balance(run, place)
        try:
            scores = scores_at(run, place, balances[same], OFFSETS)
        except CheckpointError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        (dataset, train), (_, evaluated) = (open_part(run, place, scored=scored) for scored in (False, True))
        row = {"run": asdict(run), "split": run.split, "images": {"train": len(train), "evaluated": len(evaluated)}}
        row |= {"classes": dataset.classes, "offsets": list(OFFSETS), "scores": scores}
        add_rows(place.results, [row], key_of)
        print(f"{number}/{len(runs)}  {run.data}  {run.key}  {time.perf_counter() - start:.0f} s", file=sys.stderr)


# --------------------------------------------------------------------------------------------------------------- points


def at_offsets(rows: Iterable[Row], offsets: Mapping[str, float]) -> list[Row]:
    """Return results with the metrics at one offset per loss, by title."""
    results = []
    for row in rows:
        place = row["offsets"].index(offsets[run_of(row).title])
        results.append({**row, "metrics": {name: values[place] for name, values in row["scores"].items()}})
    return results


def best_offsets(rows: Iterable[Row]) -> dict[str, float]:
    """Return for each loss, by title, the offset with the highest mean of CRITERION over the seeds."""
    best = {}
    for loss, of_loss in by_loss(rows).items():
        means = mean_scores(of_loss, CRITERION)
        best[loss] = of_loss[0]["offsets"][means.index(max(means))]
    return best


def report(rows: Sequence[Row], baseline: str) -> str:
    """Write the scores and differences at t = 0 and at the best offsets as Markdown.

    Args:
        rows: of ``sweep``, all with the same settings and split.
        baseline: title of the loss that the others are compared with.
    """
    best = best_offsets(rows)
    data, listed = rows[0]["run"]["data"], "; ".join(f"{loss}: t = {t:g}" for loss, t in best.items())
    about = f"best {METRICS[CRITERION]}, chosen on the same images: {listed}"
    parts = []
    for title, chosen in {"t = 0": dict.fromkeys(best, 0.0), about: best}.items():
        parts.append(f"**{title}**\n\n{markdown({data: at_offsets(rows, chosen)}, baseline, POINTS)}")
    return "\n".join(parts)
