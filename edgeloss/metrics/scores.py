"""All boundary metrics in one pass, as a torchmetrics class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from edgeloss.metrics.counts import BOUNDARY_F1, BOUNDARY_IOU, TRIMAP_IOU
from edgeloss.metrics.measure import Average, Convention, Empty, Kind, Labels, Measure, Reduction, Spacing
from edgeloss.metrics.modules import _SurfaceMetric
from edgeloss.metrics.surfaces import AVERAGE_DISTANCE, HAUSDORFF, SURFACE_DICE


class BoundaryScores(_SurfaceMetric):
    """Compute all boundary metrics over a set of images in one pass.

    Label maps are read once, borders are found once for all radii, and surfaces and their distances once for all
    surface metrics. Each score is that of its own class: :class:`BoundaryIoU`, :class:`BoundaryF1`,
    :class:`TrimapIoU`, :class:`HausdorffDistance`, :class:`AverageSurfaceDistance` and :class:`SurfaceDice`. Names of
    scores end in the radius, tolerance or percentile, and in ``px`` without a spacing. ``left_out`` counts the images
    without a distance, per class.

    Args:
        num_classes: C ≥ 2; with ``multilabel`` C ≥ 1.
        ratio: of Boundary IoU.
        radii: of Boundary F1.
        trimap_radii: of trimap IoU.
        percentiles: of the Hausdorff distance.
        tolerances: of surface Dice.
        reduction: as in :func:`edgeloss.metrics.boundary_iou`; None for the default of each metric: ``"set"`` for
            Boundary IoU, Boundary F1 and trimap IoU, ``"images"`` for the others.
        ignore_index, include_background, multilabel, convention, empty, spacing, across_void, average, validate: as in
            the metrics.
        kwargs: passed to :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import BoundaryScores
        >>> metric = BoundaryScores(2, radii=[1, 3], tolerances=[0])
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> pred = torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4])
        >>> scores = metric(pred, target)
        >>> list(scores)[:5]
        ['boundary_iou', 'boundary_f1_1px', 'boundary_f1_3px', 'trimap_iou_3px', 'hausdorff_distance_95']
        >>> scores["surface_dice_0px"]  # the outsides match, the border between the two classes does not
        tensor(0.7489)
    """

    higher_is_better = None
    plot_upper_bound = None

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: Labels = -100,
        include_background: bool = True,
        multilabel: bool = False,
        ratio: float = 0.02,
        radii: Sequence[float] = (1, 3, 5),
        trimap_radii: Sequence[float] = (3,),
        percentiles: Sequence[float] = (95, 100),
        tolerances: Sequence[float] = (1, 2),
        convention: Convention = "surface-distance",
        empty: Empty = "nan",
        spacing: Spacing = None,
        across_void: int = 0,
        average: Average | None = "macro",
        reduction: Reduction | None = None,
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        several = {"radii": radii, "trimap_radii": trimap_radii, "percentiles": percentiles, "tolerances": tolerances}
        for name, values in several.items():
            if isinstance(values, str) or not isinstance(values, Sequence):
                cure = f"{name}.tolist()" if hasattr(values, "tolist") else f"[{values!r}]"
                raise TypeError(f"{name}: expected a list of numbers, but got {values!r}; pass {cure}")
        shared = num_classes, ignore_index, include_background, multilabel, across_void, average

        def measure(kind: Kind, scored: dict[str, Any], **counted: Any) -> Measure:  # noqa: ANN401
            usual: Reduction = "images" if kind.counts_areas else "set"
            return Measure(kind, counted | {"spacing": spacing}, *shared, reduction or usual, validate, scored)

        unit, surfaces = "px" if spacing is None else "", {"convention": convention, "empty": empty}
        measures = {"boundary_iou": measure(BOUNDARY_IOU, {}, ratio=ratio)}
        for r in radii:
            measures[f"boundary_f1_{r:g}{unit}"] = measure(BOUNDARY_F1, {}, radius=r, class_agnostic=False)
        for r in trimap_radii:
            measures[f"trimap_iou_{r:g}{unit}"] = measure(TRIMAP_IOU, {}, radius=r)
        for p in percentiles:
            measures[f"hausdorff_distance_{p:g}"] = measure(HAUSDORFF, {}, percentile=p, **surfaces)
        measures["average_surface_distance"] = measure(AVERAGE_DISTANCE, {"symmetric": True}, **surfaces)
        for t in tolerances:
            measures[f"surface_dice_{t:g}{unit}"] = measure(SURFACE_DICE, {}, tolerance=t, convention=convention)
        super().__init__(measures, radii=radii, **kwargs)

    def compute(self) -> dict[str, Tensor]:
        """Compute the scores by name, each as its own class does."""
        return self._scores()
