"""The metrics that runs are scored by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

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
SHOWN = ("miou", "boundary_iou_005", "f1_1")  # in the plots and while training


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], num_classes: int, void: int, device: str
) -> dict[str, Any]:
    """Compute all metrics over a split.

    ``iou`` has one value per class, None for a class that does not occur.
    """
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassJaccardIndex

    from edgeloss.metrics import BoundaryF1, BoundaryIoU, TrimapIoU

    labels = {"num_classes": num_classes, "ignore_index": void}
    collection = MetricCollection(
        {
            "iou": MulticlassJaccardIndex(average="none", zero_division=math.nan, **labels),
            **{name: BoundaryIoU(ratio=ratio, **labels) for name, ratio in RATIOS.items()},
            **{
                f"{score}_{r}": BoundaryF1(radius=r, score=score, **labels)
                for score in ("f1", "precision", "recall")
                for r in RADII
            },
            **{f"trimap_{r}": TrimapIoU(radius=r, **labels) for r in RADII},
        }
    ).to(device)
    model.eval()
    for images, target in batches:
        collection.update(model(images.to(device)).argmax(1), target.to(device))
    values = collection.compute()
    return {
        "miou": round(values["iou"].nanmean().item(), 6),
        **{name: round(values[name].item(), 6) for name in METRICS if name != "miou"},
        "iou": [None if math.isnan(value) else round(value, 6) for value in values["iou"].tolist()],
    }
