"""From predictions and labels to boundary metrics, in 2-D and 3-D.

Each is a function of one batch, and a torchmetrics class over many batches (extra ``metrics``). Both share
three stages: label maps with -1 for void, counts per image and class, and scores from the counts. The counts of
Boundary IoU, Boundary F1 and trimap IoU are integers, so their sums are exact for any batch size, order and number of
ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeloss._checks.extras import install_advice
from edgeloss.metrics.functional import (
    average_surface_distance,
    boundary_f1,
    boundary_iou,
    hausdorff_distance,
    surface_dice,
    trimap_iou,
)

if TYPE_CHECKING:
    from edgeloss.metrics.modules import (
        AverageSurfaceDistance,
        BoundaryF1,
        BoundaryIoU,
        HausdorffDistance,
        SurfaceDice,
        TrimapIoU,
    )
    from edgeloss.metrics.scores import BoundaryScores

__all__ = [
    "AverageSurfaceDistance",
    "BoundaryF1",
    "BoundaryIoU",
    "BoundaryScores",
    "HausdorffDistance",
    "SurfaceDice",
    "TrimapIoU",
    "average_surface_distance",
    "boundary_f1",
    "boundary_iou",
    "hausdorff_distance",
    "surface_dice",
    "trimap_iou",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import the torchmetrics classes on first use: the functions do not need them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torchmetrics as _  # noqa: F401
    except ModuleNotFoundError:
        raise ImportError(f"edgeloss.metrics.{name} needs torchmetrics; {install_advice('metrics')}") from None
    from edgeloss.metrics import modules, scores

    return getattr(scores if name == "BoundaryScores" else modules, name)
