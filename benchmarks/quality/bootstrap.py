"""Differences of losses over resampled images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quality.data import read_labels
from quality.offsets import POINTS, count_if_finished, log_balance, scores_of
from quality.runs import Place, Run
from quality.scores import METRICS
from segkit.checkpoint import CheckpointError

Counts = dict[str, dict[int, Tensor]]  # per loss and seed: [N, 8, C]


def count_losses(runs: Sequence[Run], place: Place, offsets: Mapping[str, float]) -> Counts:
    """Count every image for finished runs, which differ only in loss and seed; leave the others out.

    Args:
        runs: the runs.
        place: where to read them.
        offsets: the offset of each loss, by title, in the order of the table.
    """
    log_u = log_balance(runs[0], place)
    counts: Counts = {loss: {} for loss in offsets}
    for run in runs:
        of_run = count_if_finished(run, place, [offsets[run.title]], log_u)
        if of_run is not None:
            counts[run.title][run.seed] = of_run[0]
    return counts


def resample(counts: Tensor, samples: int, void: int) -> dict[str, Tensor]:
    """Score sets of as many images, drawn with replacement; the same sets in every call.

    Args:
        counts: [N, 8, C].
        samples: number of sets R.
        void: the ignored label.

    Returns:
        For each metric its scores [1 + R], first of all images.
    """
    images = len(counts)
    drawn = torch.randint(images, (samples, images), generator=torch.Generator().manual_seed(0))
    times = torch.cat([torch.ones(1, images, dtype=torch.int64), torch.zeros(samples, images, dtype=torch.int64)])
    times[1:].scatter_add_(1, drawn, torch.ones_like(drawn))
    scores = [scores_of(of_set, void) for of_set in (times @ counts.flatten(1)).unflatten(1, counts.shape[1:])]
    return {name: torch.tensor([of_set[name] for of_set in scores], dtype=torch.float64) for name in POINTS}


def bootstrap_table(counts: Counts, place: Place, run: Run, samples: int) -> str:
    """Write the differences to the first loss as Markdown, each with its interval over resampled images.

    Args:
        counts: of ``count_losses``.
        place: where to read the labels.
        run: one of the runs.
        samples: number of sets of images.

    Raises:
        CheckpointError: if no seed is finished for all losses.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in counts.values())))
    if not seeds:
        raise CheckpointError(f"--state: expected a seed finished for all losses, but got none in {place.state}")
    _, void = read_labels(place.data_of(run))
    means = {}  # over the seeds
    for loss, by_seed in counts.items():
        scores = [resample(by_seed[seed], samples, void) for seed in seeds]
        means[loss] = {name: torch.stack([of_seed[name] for of_seed in scores]).mean(0) for name in POINTS}
    baseline, *others = counts
    images = len(counts[baseline][seeds[0]])
    lines = [
        f"Differences to {baseline}, mean over {len(seeds)} seeds; 95 % interval over {samples} resamplings of the"
        f" {images} images, points",
        "",
        f"| loss | {' | '.join(METRICS[name] for name in POINTS)} |",
        "|---|" + "---:|" * len(POINTS),
    ]
    for loss in others:
        cells = []
        for name in POINTS:
            value, *drawn = (means[loss][name] - means[baseline][name]) * 100
            low, high = torch.stack(drawn).nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
            cells.append(f"{value:+.2f} [{low:+.2f}, {high:+.2f}]")
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
