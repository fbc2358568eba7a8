"""Boundary IoU, trimap IoU and Boundary F1 as torchmetrics classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from edgeloss.metrics.functional import (
    boundary_f1_counts,
    boundary_iou_counts,
    f1_from_counts,
    iou_from_counts,
    trimap_iou_counts,
)
from edgeloss.metrics.measure import Average, Measure, Score, Spacing


class _Counting(Metric):
    """Base class of metrics whose state is one integer tensor of counts per class."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    _rows = 2  # of counts

    def __init__(self, measure: Measure, **kwargs: Any) -> None:  # noqa: ANN401
        """Store the options, and create the counts."""
        super().__init__(**kwargs)
        self.measure = measure
        for option in ("num_classes", "ignore_index", "multilabel", "average", "validate"):  # to be read
            setattr(self, option, getattr(measure, option))
        # A MetricCollection merges metrics whose states have equal names and, after the first batch, close values. The
        # counts of two radii may be equal then, so the name contains the options.
        multilabel = {"multilabel": True} if measure.multilabel else {}
        named = {"ignore_index": measure.ignore_index, **multilabel, **measure.counted}
        words = ", ".join(f"{key}={value}" for key, value in named.items())
        self._counts = f"counts of {type(self).__name__}({words})"
        classes = 1 if measure.counted.get("class_agnostic") else measure.num_classes
        self.add_state(self._counts, torch.zeros(self._rows, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: labels [B, *S], S = (H, W) or (D, H, W), or floating logits or probabilities [B, C, *S].
            target: labels [B, *S]. With ``multilabel`` both are [B, C, *S].
        """
        setattr(self, self._counts, getattr(self, self._counts) + self.measure.count(preds, target))

    def compute(self) -> Tensor:
        """Compute the score of all batches since the last reset: 0-d or [C]."""
        return self.measure.score(getattr(self, self._counts))


class BoundaryIoU(_Counting):
    """Compute Boundary IoU over a set of images.

    See :func:`edgeloss.metrics.boundary_iou`. Pixels are counted per class over all images, which may differ in size,
    and divided at the end.

    The options are those of :func:`edgeloss.metrics.boundary_iou`; others are passed to :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device or label.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import BoundaryIoU
        >>> metric = BoundaryIoU(2, ignore_index=255)
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> metric.update(target, target)
        >>> metric.update(1 - target, target)
        >>> metric.compute()  # one image all correct, one image all wrong
        tensor(0.3333)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int | None = -100,
        multilabel: bool = False,
        ratio: float = 0.02,
        spacing: Spacing = None,
        average: Average = "macro",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted = {"ratio": ratio, "spacing": spacing}
        shared = num_classes, ignore_index, multilabel, average, validate
        super().__init__(Measure(boundary_iou_counts, iou_from_counts, counted, *shared), **kwargs)


class TrimapIoU(_Counting):
    """Compute trimap IoU over a set of images.

    See :func:`edgeloss.metrics.trimap_iou`. Pixels are counted per class over all images and divided at the end.

    The options are those of :func:`edgeloss.metrics.trimap_iou`; others are passed to :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device or label.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import TrimapIoU
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> metric = TrimapIoU(2, radius=3)
        >>> metric(target, target)
        tensor(1.)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int | None = -100,
        multilabel: bool = False,
        radius: float = 1,
        spacing: Spacing = None,
        average: Average = "macro",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted = {"radius": radius, "spacing": spacing}
        shared = num_classes, ignore_index, multilabel, average, validate
        super().__init__(Measure(trimap_iou_counts, iou_from_counts, counted, *shared), **kwargs)


class BoundaryF1(_Counting):
    """Compute Boundary F1, precision or recall over a set of images.

    See :func:`edgeloss.metrics.boundary_f1`. A :class:`torchmetrics.MetricCollection` counts once for all three scores.

    The options are those of :func:`edgeloss.metrics.boundary_f1`; others are passed to :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device or label.

    Example:
        >>> import torch
        >>> from torchmetrics import MetricCollection
        >>> from edgeloss.metrics import BoundaryF1
        >>> scores = MetricCollection({name: BoundaryF1(2, radius=2, score=name) for name in ("precision", "recall")})
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> scores(target.roll(3, -1), target)  # one border one pixel off, another three pixels off
        {'precision': tensor(0.5000), 'recall': tensor(1.)}
    """

    _rows = 4

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int | None = -100,
        multilabel: bool = False,
        radius: float = 1,
        spacing: Spacing = None,
        average: Average = "macro",
        score: Score = "f1",
        class_agnostic: bool = False,
        per_image: bool = False,
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        shared = num_classes, ignore_index, multilabel, average, validate
        counted = {"radius": radius, "spacing": spacing, "class_agnostic": class_agnostic, "per_image": per_image}
        scored = {"score": score, "per_image": per_image}
        super().__init__(Measure(boundary_f1_counts, f1_from_counts, counted, *shared, scored), **kwargs)
