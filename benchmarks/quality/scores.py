"""The metrics that runs are scored by."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edgeloss.extras import install_advice
from quality.calibration import Calibration
from quality.shapes import Shapes

if TYPE_CHECKING:  # slow to import
    from torchmetrics import Metric

RATIOS = {"boundary_iou_02": 0.02, "boundary_iou_005": 0.005}
RADII = (1, 2, 3, 5)
TRIMAP_RADII = (1, 3, 5)
METRICS = {
    "miou": "mIoU",
    **{name: f"Boundary IoU {ratio}" for name, ratio in RATIOS.items()},
    **{f"f1_{r}": f"boundary F1 {r} px" for r in RADII},
    **{f"precision_{r}": f"precision {r} px" for r in RADII},
    **{f"recall_{r}": f"recall {r} px" for r in RADII},
    **{f"trimap_{r}": f"trimap mIoU {r} px" for r in TRIMAP_RADII},
    "ece": "ECE ↓",
    "ece_edge": "ECE at edges ↓",
    "nll": "NLL ↓, nats",
    "nll_edge": "NLL at edges ↓, nats",
    "hd95": "HD95 ↓, px",
    "cldice": "clDice",
}
THIN = {"topomortar": "mortar", "sstem": "membrane"}  # the class of thin lines of a data set, for clDice
SHOWN = ("miou", "boundary_iou_005", "f1_1")  # in the plots and while training


def scale_of(name: str) -> int:
    """Return the factor of a metric in tables: 100 for percent, 1 for one with a unit of its own."""
    return 1 if name in ("nll", "nll_edge", "hd95", "loss", "edge_weight") else 100


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

    ``iou`` has one value per class, None for a class that does not occur.
    """
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassJaccardIndex

    from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU

    labels: dict[str, Any] = {"num_classes": num_classes, "ignore_index": void}
    known: dict[str, Callable[[], Metric]] = {
        **{name: partial(BoundaryIoU, ratio=ratio, **labels) for name, ratio in RATIOS.items()},
        **{
            f"{score}_{r}": partial(BoundaryF1, radius=r, score=score, **labels)
            for score in ("f1", "precision", "recall")
            for r in RADII
        },
        **{f"trimap_{r}": partial(TrimapIoU, radius=r, **labels) for r in TRIMAP_RADII},
    }
    collection = MetricCollection(
        {
            "iou": MulticlassJaccardIndex(average="none", zero_division=math.nan, **labels),
            **{name: make() for name, make in known.items() if name in metrics},
        }
    ).to(device)
    calibration, shapes = Calibration(void), Shapes(num_classes, void, thin)
    has_calibration, has_shapes = "ece" in metrics, "hd95" in metrics
    model.eval()
    for images, target_on_cpu in batches:
        logits, target = model(images.to(device)), target_on_cpu.to(device)
        predicted = logits.argmax(1)
        collection.update(predicted, target)
        if has_calibration:
            calibration.update(logits, target)
        if has_shapes:
            shapes.update(predicted, target)
    values = collection.compute()
    iou = values.pop("iou")
    added = (calibration.compute() if has_calibration else {}) | (shapes.compute() if has_shapes else {})
    return {
        "miou": round(iou.nanmean().item(), 6),
        **{name: round(value.item(), 6) for name, value in values.items()},
        **{name: _rounded(value) for name, value in added.items()},
        "iou": [_rounded(value) for value in iou.tolist()],
    }


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
