"""The metrics that runs are scored by."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgeloss.metrics
from baselines.common import one_hot
from edgeloss._checks.extras import install_advice
from edgeloss._reference.neighborhoods import find_edges
from result_table import Row

# The title of a metric of edgeloss.metrics, its class and options.
OURS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"boundary_iou_{str(r)[2:]}": (f"Boundary IoU {r}", "BoundaryIoU", {"ratio": r}) for r in (0.02, 0.005)},
    **{
        f"{score}_{r}": (f"{title} {r} px", "BoundaryF1", {"radius": r, "score": score})
        for score, title in {"f1": "boundary F1", "precision": "precision", "recall": "recall"}.items()
        for r in (1, 2, 3, 5)
    },
    **{f"trimap_{r}": (f"trimap mIoU {r} px", "TrimapIoU", {"radius": r}) for r in (1, 3, 5)},
    **{
        f"f1_any_{r}": (f"F1 of all borders {r} px", "BoundaryF1", {"radius": r, "class_agnostic": True})
        for r in (1, 2, 3)
    },
    "nsd_1": ("NSD 1 px", "SurfaceDice", {"tolerance": 1}),
}
# The scores that a row also has per class and per image, as lists under these names.
PER_CLASS = {"iou": "miou", "f1_class": "f1_1"}
PER_IMAGE = {"f1_image": "f1_1", "boundary_iou_image": "boundary_iou_005"}
# The titles of the scores, with the direction in which they improve; those without a unit are shares, shown in percent.
METRICS = {
    "miou": "mIoU ↑",
    **{name: f"{title} ↑" for name, (title, _, _) in OURS.items()},
    "ece": "ECE ↓",
    "ece_edge": "ECE at edges ↓",
    "nll": "NLL ↓, nats",
    "nll_edge": "NLL at edges ↓, nats",
    "hd95": "HD95 ↓, px",
    "cldice": "clDice ↑",
}
BINS = 15  # of the confidence, of equal width
# The class of thin lines of a data set, for clDice.
THIN = {"topomortar": "mortar", "sstem": "membrane", "cracks": "crack", "vessels": "vessel"}
SHOWN = ("miou", "boundary_iou_005", "f1_1", "f1_any_1")  # in the plots and while training


def scale_of(name: str) -> int:
    """Return the factor of a metric in tables: 100 for percent, 1 for one with a unit of its own."""
    return 1 if name in ("nll", "nll_edge", "hd95", "loss", "edge_weight") else 100


def is_complete(row: Row) -> bool:
    """Return whether a row has all scores, of which clDice is one of thin lines only, or is that of a diverged run."""
    expected = {*METRICS, *PER_CLASS, *PER_IMAGE, "pixels"} - {"cldice"}
    return "metrics" not in row or expected <= row["metrics"].keys()


def thin_class(data: str, classes: Sequence[str]) -> int | None:
    """Return the class of a data set that consists of thin lines; None if it has none.

    Raises:
        ImportError: if scikit-image is missing, which clDice needs.
    """
    if data not in THIN:
        return None
    if find_spec("skimage") is None:
        raise ImportError(f"clDice of {data} needs scikit-image; {install_advice('bench')}")
    return classes.index(THIN[data])


class Calibration:
    """Accumulate the expected calibration error (ECE) and the negative log-likelihood (NLL) over batches.

    Both are over all valid pixels, and over those that have another label next to them. The ECE is
    Σ_b |number right - sum of confidences| / number of pixels, over bins b of the confidence max_c p(c).

    Args:
        void: the ignored label.
    """

    def __init__(self, void: int) -> None:
        """Start with no pixels."""
        self.void = void
        self.excess = torch.zeros(2, BINS, dtype=torch.float64)  # of all pixels and of edges: right - confidence
        self.nll = torch.zeros(2, dtype=torch.float64)
        self.pixels = torch.zeros(2, dtype=torch.float64)

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add logits [B, C, *S] and their labels [B, *S]."""
        valid = target != self.void
        nll = F.cross_entropy(logits, target, ignore_index=self.void, reduction="none")
        confidence, predicted = logits.softmax(1).max(1)
        excess = (predicted == target).double() - confidence
        index = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        for row, mask in enumerate((valid, find_edges(target, valid, (1,) * (target.dim() - 1)))):
            self.excess[row] += torch.bincount(index[mask], excess[mask], BINS).cpu()
            self.nll[row] += nll[mask].double().sum().cpu()
            self.pixels[row] += mask.sum().cpu()

    def compute(self) -> dict[str, float]:
        """Return ``ece``, ``ece_edge``, ``nll`` and ``nll_edge``; nan where there is no pixel."""
        ece, ece_edge = (self.excess.abs().sum(1) / self.pixels).tolist()
        nll, nll_edge = (self.nll / self.pixels).tolist()
        return {"ece": ece, "ece_edge": ece_edge, "nll": nll, "nll_edge": nll_edge}


class Shapes:
    """Accumulate HD95 and clDice of the predicted labels over batches.

    HD95 is MONAI's 95th percentile of the distances between the borders of a class in prediction and target, in
    pixels, the larger of the two directions. It is averaged over the images, then over the classes. A class counts in
    the images where both maps have it: where one lacks it the distance is not defined, and the other metrics are lower.

    clDice is that of Shit et al., CVPR 2021, for one class of thin lines: the harmonic mean of the share of the
    prediction's skeleton that is in the target's region, and vice versa. It is averaged over the images whose target
    has the class.

    Void pixels belong to no class in either map.

    Args:
        num_classes: C.
        void: the ignored label.
        thin: the class of clDice; None for no clDice.
    """

    def __init__(self, num_classes: int, void: int, thin: int | None = None) -> None:
        """Start with no images."""
        self.num_classes, self.void, self.thin = num_classes, void, thin
        self.hd95: list[Tensor] = []  # [B, C], nan where it is not defined
        self.cldice: list[float] = []

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add logits [B, C, *S] and their labels [B, *S]."""
        from monai.metrics import compute_hausdorff_distance

        labels = logits.argmax(1).masked_fill(target == self.void, self.void), target
        masks = [one_hot(each.cpu(), self.num_classes, self.void) for each in labels]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of MONAI: a class is absent; it calls a function of its own in an old way
            maps = [mask.float() for mask in masks]
            distance = compute_hausdorff_distance(*maps, include_background=True, percentile=95)
        of_pred, of_target = (mask.flatten(2).any(2) for mask in masks)
        self.hd95.append(distance.double().where(of_pred & of_target, torch.nan))
        if self.thin is not None:
            pairs = zip(*(mask[:, self.thin].numpy() for mask in masks), strict=True)
            self.cldice += [_cldice(*pair) for pair in pairs if pair[1].any()]

    def compute(self) -> dict[str, float]:
        """Return ``hd95`` and, with a thin class, ``cldice``; nan where nothing counted."""
        scores = {"hd95": torch.cat(self.hd95).nanmean(0).nanmean().item()}
        if self.thin is not None:
            scores["cldice"] = float(np.mean(self.cldice)) if self.cldice else math.nan
        return scores


def _cldice(pred: npt.NDArray[np.bool_], target: npt.NDArray[np.bool_]) -> float:
    from skimage.morphology import skeletonize

    if not pred.any():
        return 0.0
    precision, sensitivity = target[skeletonize(pred)].mean(), pred[skeletonize(target)].mean()
    return float(2 * precision * sensitivity / (precision + sensitivity)) if precision + sensitivity else 0.0


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    num_classes: int,
    void: int,
    device: str,
    *,
    metrics: Collection[str] = tuple(METRICS),
    thin: int | None = None,
) -> dict[str, Any]:
    """Compute metrics over a split: some of METRICS, of which HD95 and clDice of the class ``thin`` take longest.

    The names of PER_CLASS have one value per class, None for a class that does not occur, as have ``pixels``, the valid
    pixels of each; those of PER_IMAGE one per image.
    """
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassJaccardIndex

    labels: dict[str, Any] = {"num_classes": num_classes, "ignore_index": void}
    of_labels = {"iou": MulticlassJaccardIndex(average="none", zero_division=math.nan, **labels)}
    for name, (_, kind, options) in OURS.items():
        if name in metrics:
            of_labels[name] = getattr(edgeloss.metrics, kind)(**options, **labels)
    is_whole = "hd95" in metrics  # the last scores of a run, and not a point of its curve
    for names, how in ((PER_CLASS, {"average": "none"}), (PER_IMAGE, {"reduction": "none"})):
        for name, score in names.items() if is_whole else ():
            if score in OURS:
                _, kind, options = OURS[score]
                of_labels[name] = getattr(edgeloss.metrics, kind)(**options, **labels, **how)
    collection = MetricCollection(of_labels).to(device)
    others = {"ece": Calibration(void), "hd95": Shapes(num_classes, void, thin)}
    of_logits = [scores for name, scores in others.items() if name in metrics]
    model.eval()
    pixels = torch.zeros(num_classes, dtype=torch.int64)
    for images, target_on_cpu in batches:
        logits, target = model(images.to(device)), target_on_cpu.to(device)
        collection.update(logits.argmax(1), target)
        pixels += torch.bincount(target_on_cpu[target_on_cpu != void], minlength=num_classes)
        for scores in of_logits:
            scores.update(logits, target)
    values = collection.compute()
    lists = {name: values.pop(name) for name in (*PER_CLASS, *PER_IMAGE) if name in values}
    values = {"miou": lists["iou"].nanmean(), **values}
    results: dict[str, Any] = {name: round(value.item(), 6) for name, value in values.items()}
    for scores in of_logits:
        results |= {name: _rounded(value) for name, value in scores.compute().items()}
    results |= {name: [_rounded(value) for value in of_all.flatten().tolist()] for name, of_all in lists.items()}
    return {**results, "pixels": pixels.tolist()} if is_whole else results


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
