"""Surface metrics of binary masks by other libraries, under the names of ours."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Scores = dict[str, float]
PERCENTILES, TOLERANCES = (50, 95, 100), (1.0, 2.5)


def monai(pred: Any, target: Any, spacing: tuple[float, ...]) -> Scores:
    """Return the scores of MONAI."""
    from monai.metrics.hausdorff_distance import compute_hausdorff_distance
    from monai.metrics.surface_dice import compute_surface_dice
    from monai.metrics.surface_distance import compute_average_surface_distance

    masks = [torch.from_numpy(mask)[None, None].float() for mask in (pred, target)]
    options: dict[str, Any] = {"include_background": True, "spacing": list(spacing)}
    scores = {f"hd{p}": compute_hausdorff_distance(*masks, percentile=p, **options) for p in PERCENTILES}
    for name, symmetric in (("assd", True), ("asd", False)):
        scores[name] = compute_average_surface_distance(*masks, symmetric=symmetric, **options)
    for t in TOLERANCES:
        scores[f"nsd{t}"] = compute_surface_dice(*masks, class_thresholds=[t], **options)
    return {name: float(value) for name, value in scores.items()}


def surface_distance(pred: Any, target: Any, spacing: tuple[float, ...]) -> Scores:
    """Return the scores of DeepMind's surface-distance, whose version 0.1 uses names that NumPy and SciPy removed."""
    from scipy import ndimage
    from surface_distance import metrics as library

    vars(library)["ndimage"] = types.SimpleNamespace(filters=ndimage, morphology=ndimage)
    vars(library)["np"] = types.SimpleNamespace(**{**vars(np), "Inf": np.inf, "NaN": np.nan})
    distances = library.compute_surface_distances(target, pred, spacing)
    scores = {f"hd{p}": library.compute_robust_hausdorff(distances, p) for p in PERCENTILES}
    scores["asd"] = library.compute_average_surface_distance(distances)[1]
    sides = [(distances[f"distances_{way}"], distances[f"surfel_areas_{way[: way.index('_')]}"]) for way in
             ("gt_to_pred", "pred_to_gt")]  # fmt: skip
    scores["assd"] = sum((d * a).sum() for d, a in sides) / sum(a.sum() for _, a in sides)  # of its lists
    for t in TOLERANCES:
        scores[f"nsd{t}"] = library.compute_surface_dice_at_tolerance(distances, t)
    return scores


def medpy(pred: Any, target: Any, spacing: tuple[float, ...]) -> Scores:
    """Return the scores of MedPy, which has no surface Dice and no other percentiles."""
    from medpy.metric import binary

    named = {"hd95": binary.hd95, "hd100": binary.hd, "assd": binary.assd, "asd": binary.asd}
    return {name: float(function(pred, target, voxelspacing=spacing)) for name, function in named.items()}


MESH_SCORES = {"hd95": "HD_95", "hd100": "HD_100", "assd": "ASSD", "nsd2.5": "NSD_2.5"}


def meshmetrics(pred: Any, target: Any, spacing: tuple[float, ...]) -> Scores:
    """Return the scores of MeshMetrics, which has other surfaces and so agrees with none of our conventions."""
    from meshmetrics import compute_metrics

    scores = compute_metrics(target, pred, spacing=spacing, taus=(2.5,), metrics=("hd", "assd", "nsd"))
    return {name: scores[theirs] for name, theirs in MESH_SCORES.items()}


LIBRARIES: dict[str, Callable[..., Scores]] = {"monai": monai, "surface-distance": surface_distance, "medpy": medpy}


def ours(pred: Any, target: Any, spacing: tuple[float, ...], convention: Any) -> Scores:
    """Return our scores, in float64."""
    from edgeloss.metrics import average_surface_distance, hausdorff_distance, surface_dice

    maps = [torch.from_numpy(mask)[None] for mask in (pred, target)]
    shared: dict[str, Any] = {"convention": convention, "spacing": spacing, "average": "none"}
    scores = {f"hd{p}": hausdorff_distance(*maps, 2, percentile=p, **shared) for p in PERCENTILES}
    for name, symmetric in (("assd", True), ("asd", False)):
        scores[name] = average_surface_distance(*maps, 2, symmetric=symmetric, **shared)
    for t in TOLERANCES:
        scores[f"nsd{t}"] = surface_dice(*maps, 2, tolerance=t, **shared)
    return {name: value[1].item() for name, value in scores.items()}


def compare(pred: Any, target: Any, spacing: tuple[float, ...], library: str) -> tuple[int, list[str]]:
    """Return how many scores of bool masks were compared, and those that differ by more than rounding.

    MONAI rounds the ranks of percentiles to float32.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = LIBRARIES[library](pred, target, spacing)
    own = ours(pred, target, spacing, library)
    differ = [
        f"{name}: {own[name]} and {value}"
        for name, value in theirs.items()
        if not math.isclose(own[name], value, rel_tol=5e-5, abs_tol=1e-6)
    ]
    return len(theirs), differ
