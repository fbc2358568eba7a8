"""Results of the benchmark of quality that are easy to average by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quality.runs import Run
from quality.scores import METRICS


def result_of(loss: str, seed: int, score: float | None, **options: float) -> dict[str, Any]:
    """Return a result with the same score for all metrics; None for a diverged run."""
    run = Run(loss, options, seed)
    common = {
        "run": asdict(run),
        "split": "val",
        "classes": ["road", "car"],
        "images": {"train": 367, "evaluated": 101},
    }
    if score is None:
        return {**common, "failed": "the loss is nan", "curve": {}}
    metrics = dict.fromkeys(METRICS, score)
    curve = {name: [score] * 2 for name in METRICS} | {"epoch": [1, 2]}
    if loss == "module":
        curve["edge_weight"] = [1, 0.5]
    return {**common, "metrics": metrics, "curve": curve}


RESULTS = [
    result_of("ours", 2, 0.46),
    result_of("ours", 0, 0.43),
    result_of("ours", 1, 0.46),
    *(result_of("ce", seed, score) for seed, score in enumerate((0.40, 0.42, 0.44))),
    result_of("weighted", 0, 0.41, k=2),
    result_of("cpg", 0, 0.45),
    result_of("cpg", 3, 0.47),  # a seed without cross-entropy
    result_of("cpg", 1, None),
    result_of("abl", 0, None),
]

# Of the runs that the fixture `trained` trains.
PLAN = {
    "data": {"shapes": {"epochs": 1, "size": [24, 32]}},
    "runs": [{"loss": "ce", "seeds": [0]}, {"loss": "ours", "seeds": [0], "options": {"class_balance": 1}}],
}
