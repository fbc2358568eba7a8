"""The metrics of :mod:`edgeloss.metrics` as torchmetrics metrics, over the same functions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from edgeloss.metrics import functional
from edgeloss.metrics.functional import Average, Score


class _Counting(Metric):
    """A metric whose state is one tensor of counts per class, integers that add up over batches and ranks."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        rows: int,
        num_classes: int,
        ignore_index: int,
        average: Average,
        validate: bool | None,
        counted: dict[str, Any],
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.average = average
        self.validate = validate
        self.counted = counted
        # Of metrics whose states have equal names and after the first batch nearly equal values a MetricCollection
        # updates one only. Two radii may well agree there, so the name tells what is counted.
        words = ", ".join(f"{key}={value}" for key, value in {"ignore_index": ignore_index, **counted}.items())
        self._counts = f"counts of {type(self).__name__}({words})"
        classes = 1 if counted.get("class_agnostic") else num_classes
        self.add_state(self._counts, torch.zeros(rows, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: labels [B, H, W], or floating logits or probabilities [B, C, H, W].
            target: labels [B, H, W].
        """
        y = functional.label_maps(preds, target, self.num_classes, self.ignore_index, self.validate)
        setattr(self, self._counts, getattr(self, self._counts) + self._count(y))

    def compute(self) -> Tensor:
        """The score of all batches since the last reset: 0-d, or [C] with ``average="none"``."""
        return self._score(getattr(self, self._counts))

    @abstractmethod
    def _count(self, y: Tensor) -> Tensor:
        """The counts of one batch of label maps."""

    def _score(self, counts: Tensor) -> Tensor:
        return functional.iou(counts, self.average, self.ignore_index)


class BoundaryIoU(_Counting):
    """Boundary IoU over a set of images, as :func:`edgeloss.metrics.boundary_iou` defines it.

    Pixels are counted class by class over all images, of whatever sizes, and divided at the end.

    Args:
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels.
        ratio: width of the band over the diagonal of the image, > 0.
        average: ``"macro"`` for the mean over the classes that occur, ``"none"`` for every class by itself.
        validate: whether to look for labels out of range; None looks on any device but CUDA.
        **kwargs: of :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an option, and in ``update`` for a shape, device or label, that does not fit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import BoundaryIoU
        >>> metric = BoundaryIoU(2, ignore_index=255)
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> metric.update(target, target)
        >>> metric.update(1 - target, target)
        >>> metric.compute()  # one image of which all is right, and one of which nothing is
        tensor(0.3333)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int = -100,
        ratio: float = 0.02,
        average: Average = "macro",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        functional.check_options(num_classes, ignore_index, average, validate, ratio=ratio)
        super().__init__(2, num_classes, ignore_index, average, validate, {"ratio": ratio}, **kwargs)

    def _count(self, y: Tensor) -> Tensor:
        return functional.boundary_iou_counts(y, self.num_classes, **self.counted)


class TrimapIoU(_Counting):
    """Trimap IoU over a set of images, as :func:`edgeloss.metrics.trimap_iou` defines it.

    Pixels are counted class by class over all images and divided at the end.

    Args:
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels.
        radius: Euclidean, in pixels, ≥ 1.
        average: ``"macro"`` for the mean over the classes that occur, ``"none"`` for every class by itself.
        validate: whether to look for labels out of range; None looks on any device but CUDA.
        **kwargs: of :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an option, and in ``update`` for a shape, device or label, that does not fit.

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
        ignore_index: int = -100,
        radius: int = 1,
        average: Average = "macro",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        functional.check_options(num_classes, ignore_index, average, validate, radius=radius)
        super().__init__(2, num_classes, ignore_index, average, validate, {"radius": radius}, **kwargs)

    def _count(self, y: Tensor) -> Tensor:
        return functional.trimap_iou_counts(y, self.num_classes, **self.counted)


class BoundaryF1(_Counting):
    """Boundary F1, precision or recall over a set of images, as :func:`edgeloss.metrics.boundary_f1` defines them.

    A :class:`torchmetrics.MetricCollection` counts once for all three scores.

    Args:
        num_classes: C ≥ 2.
        ignore_index: the label of void pixels.
        radius: of the disk, in pixels, ≥ 1.
        average: ``"macro"`` for the mean over the classes that occur, ``"none"`` for every class by itself.
        score: ``"f1"``, ``"precision"`` or ``"recall"``.
        class_agnostic: take all borders as one, whatever classes they part.
        per_image: the mean over images of each image's score, as the scripts of DAVIS and of GSCNN take it.
        validate: whether to look for labels out of range; None looks on any device but CUDA.
        **kwargs: of :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an option, and in ``update`` for a shape, device or label, that does not fit.

    Example:
        >>> import torch
        >>> from torchmetrics import MetricCollection
        >>> from edgeloss.metrics import BoundaryF1
        >>> scores = MetricCollection({name: BoundaryF1(2, radius=2, score=name) for name in ("precision", "recall")})
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> scores(target.roll(3, -1), target)  # a border one pixel off, and another one three pixels off
        {'precision': tensor(0.5000), 'recall': tensor(1.)}
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int = -100,
        radius: int = 1,
        average: Average = "macro",
        score: Score = "f1",
        class_agnostic: bool = False,
        per_image: bool = False,
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted: dict[str, Any] = {"radius": radius, "class_agnostic": class_agnostic, "per_image": per_image}
        functional.check_options(num_classes, ignore_index, average, validate, score=score, **counted)
        super().__init__(4, num_classes, ignore_index, average, validate, counted, **kwargs)
        self.score = score

    def _count(self, y: Tensor) -> Tensor:
        return functional.boundary_f1_counts(y, self.num_classes, **self.counted)

    def _score(self, counts: Tensor) -> Tensor:
        return functional.f1(counts, self.score, self.average, self.ignore_index, per_image=self.counted["per_image"])
