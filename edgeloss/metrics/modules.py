"""Boundary IoU, trimap IoU and Boundary F1 as torchmetrics classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from edgeloss.metrics import functional
from edgeloss.metrics.arguments import Average, Score, Spacing, check_options


class _Counting(Metric):
    """Base class of metrics whose state is one integer tensor of counts per class."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    _rows = 2  # of counts
    _count: Callable[..., Tensor]  # of label maps and a number of classes

    def __init__(
        self,
        num_classes: int,
        ignore_index: int | None,
        multilabel: bool,
        average: Average,
        validate: bool | None,
        counted: dict[str, Any],
        score: Score = "f1",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Check and store the options; ``counted`` are those of the counts."""
        check_options(num_classes, ignore_index, average, validate, multilabel=multilabel, score=score, **counted)
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.average = average
        self.validate = validate
        self.multilabel = multilabel
        self.counted = counted
        # A MetricCollection merges metrics whose states have equal names and, after the first batch, close values. The
        # counts of two radii may be equal then, so the name contains the options.
        named = {"ignore_index": ignore_index, **({"multilabel": True} if multilabel else {}), **counted}
        words = ", ".join(f"{key}={value}" for key, value in named.items())
        self._counts = f"counts of {type(self).__name__}({words})"
        classes = 1 if counted.get("class_agnostic") else num_classes
        self.add_state(self._counts, torch.zeros(self._rows, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: labels [B, *S], S = (H, W) or (D, H, W), or floating logits or probabilities [B, C, *S].
            target: labels [B, *S]. With ``multilabel`` both are [B, C, *S].
        """
        given = preds, target, self.num_classes, self.ignore_index, self.validate
        counts = functional.count_batch(self._count, *given, multilabel=self.multilabel, **self.counted)
        setattr(self, self._counts, getattr(self, self._counts) + counts)

    def compute(self) -> Tensor:
        """Compute the score of all batches since the last reset: 0-d or [C]."""
        return self._score(getattr(self, self._counts))

    def _score(self, counts: Tensor) -> Tensor:
        return functional.iou_from_counts(counts, self.average, self._class_of_void())

    def _class_of_void(self) -> int | None:
        return None if self.multilabel else self.ignore_index


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

    _count = staticmethod(functional.boundary_iou_counts)

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
        super().__init__(num_classes, ignore_index, multilabel, average, validate, counted, **kwargs)


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

    _count = staticmethod(functional.trimap_iou_counts)

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
        super().__init__(num_classes, ignore_index, multilabel, average, validate, counted, **kwargs)


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
    _count = staticmethod(functional.boundary_f1_counts)

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
        counted: dict[str, Any] = {"radius": radius, "spacing": spacing}
        counted |= {"class_agnostic": class_agnostic, "per_image": per_image}
        super().__init__(num_classes, ignore_index, multilabel, average, validate, counted, score, **kwargs)
        self.score = score

    def _score(self, counts: Tensor) -> Tensor:
        return functional.f1_from_counts(
            counts, self.score, self.average, self._class_of_void(), per_image=self.counted["per_image"]
        )
