"""The boundary metrics as torchmetrics classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning_utilities import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from edgeloss.metrics.counts import BOUNDARY_F1, BOUNDARY_IOU, TRIMAP_IOU
from edgeloss.metrics.measure import (
    Average,
    Convention,
    Empty,
    Labels,
    Measure,
    Reduction,
    Score,
    Spacing,
    added,
    warn_of_hidden_borders,
    warn_of_ignored_classes,
)
from edgeloss.metrics.surfaces import AVERAGE_DISTANCE, HAUSDORFF, SURFACE_DICE, count_left_out


class _Measured(Metric):
    """Base class of metrics whose state are counts: those of the set, or a list of those of images."""

    hides_borders: Tensor  # in how many batches void was next to every border

    is_differentiable = False
    higher_is_better: bool | None = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound: float | None = 1.0

    def __init__(self, measures: Mapping[str, Measure], *, radii: Sequence[float] = (), **kwargs: Any) -> None:  # noqa: ANN401
        """Store the measures by name, and create their states; ``radii`` of Boundary F1 are counted together."""
        super().__init__(**kwargs)
        self.measures, self._radii = dict(measures), tuple(radii)
        first = next(iter(measures.values()))
        warn_of_ignored_classes(first)
        shared = (
            "num_classes",
            "ignore_index",
            "include_background",
            "multilabel",
            "across_void",
            "average",
            "validate",
        )
        for option in shared:  # to be read
            setattr(self, option, getattr(first, option))
        self.add_state("hides_borders", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        for measure in measures.values():
            is_set, empty = measure.reduction == "set", self._no_counts(measure)
            name, left_out = _state_name(measure), _state_name(measure, "left out")
            self.add_state(name, added(empty, 0) if is_set else [], dist_reduce_fx="sum" if is_set else "cat")
            if measure.kind.counts_areas:
                self.add_state(left_out, torch.zeros(measure.num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def _no_counts(self, measure: Measure) -> Tensor:
        """Return the counts of no image, [0, rows, C]."""
        kind, classes = measure.kind, 1 if measure.counted.get("class_agnostic") else measure.num_classes
        dtype = torch.float64 if kind.counts_areas else torch.int64
        return torch.zeros(0, kind.rows, classes, dtype=dtype, device=self.device)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: labels [B, *S], S = (H, W) or (D, H, W), or floating logits or probabilities [B, C, *S].
            target: labels [B, *S]. With ``multilabel`` both are [B, C, *S].
        """
        maps = next(iter(self.measures.values())).read(preds, target, self._radii)
        for measure in {_state_name(measure): measure for measure in self.measures.values()}.values():
            counts, name = measure.count(maps), _state_name(measure)
            self.hides_borders = self.hides_borders + int(measure.hides_borders(counts, maps))
            if measure.kind.counts_areas:
                left_out = _state_name(measure, "left out")
                setattr(self, left_out, getattr(self, left_out) + count_left_out(counts))
            state = getattr(self, name)
            # Out of place, since a state from a block of inference mode may not be changed elsewhere.
            setattr(self, name, _joined([*state, counts]) if isinstance(state, list) else state + added(counts, 0))

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Compute the score of all images since the last reset: 0-d or [C], with ``reduction="none"`` [N] or [N, C]."""
        (score,) = self._scores().values()
        return score

    def _scores(self) -> dict[str, Tensor]:
        """Return the score of each measure by its name; warn once of all those whose borders void hides."""
        counts = {name: self._counts(measure) for name, measure in self.measures.items()}
        if self.hides_borders:
            warn_of_hidden_borders(
                measure.kind.name for name, measure in self.measures.items() if not counts[name][..., -1, :].any()
            )
        return {name: measure.score(counts[name]) for name, measure in self.measures.items()}

    def _counts(self, measure: Measure) -> Tensor:
        """Return the counts of a measure: [rows, C], or [N, rows, C] of images."""
        counts: Tensor | list[Tensor] = getattr(self, _state_name(measure))
        return torch.cat(counts or [self._no_counts(measure)]) if isinstance(counts, list) else counts

    def plot(self, val: Any = None, ax: Any = None) -> Any:  # noqa: ANN401
        """Plot values, by default that of :meth:`compute`; see :meth:`torchmetrics.Metric.plot`.

        Scores of classes in several images are averaged over the images, since a plot has one axis of values.
        """
        averaged = apply_to_collection(
            self.compute() if val is None else val, Tensor, lambda value: value.nanmean(0) if value.dim() > 1 else value
        )
        return self._plot(averaged, ax)

    def set_dtype(self, dst_type: str | torch.dtype) -> _Measured:
        """Return the metric as it is: counts of another dtype would be others."""
        return self

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        """Add a state to that of this metric, as ``forward`` and ``merge_state`` do."""
        super()._reduce_states(incoming_state)
        for name in self._defaults:
            if isinstance(state := getattr(self, name), list):
                setattr(self, name, _joined(state))

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Add up or gather the counts of all ranks, some of which may have no image."""
        for measure in self.measures.values():
            if isinstance(state := getattr(self, name := _state_name(measure)), list) and not state:
                setattr(self, name, [self._no_counts(measure)])
        super()._sync_dist(*args, **kwargs)


class _SurfaceMetric(_Measured):
    """Base class of metrics of distances between surfaces."""

    @property
    def left_out(self) -> Tensor:
        """The number of images that have each class in one map only, so that no distance exists: [C] int64."""
        measure = next(measure for measure in self.measures.values() if measure.kind.counts_areas)
        counts: Tensor = getattr(self, _state_name(measure, "left out"))
        return counts


def _joined(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors whose concatenation is that of ``parts``: few of them, each longer than those after it.

    A small tensor of each batch would lie between the large temporary ones of the next batches, and the allocator could
    not return their memory to the system. Joining neighbors of similar length copies each image a few times only.
    """
    joined: list[Tensor] = []
    for part in parts:
        joined.append(part.to(parts[0].device))  # with compute_on_cpu, the parts before are on the CPU
        while len(joined) > 1 and len(joined[-1]) >= len(joined[-2]):
            joined[-2:] = [torch.cat(joined[-2:])]
    return joined


def _state_name(measure: Measure, content: str = "counts") -> str:
    """Return the name of the state of a measure.

    A MetricCollection merges metrics whose states have equal names and, after the first batch, close values. The counts
    of two radii may be equal then, so the name contains the options.
    """
    options = {"ignore_index": measure.ignore_index}
    optional = {"multilabel": (measure.multilabel, False), "across_void": (measure.across_void, 0)}
    options |= {name: value for name, (value, default) in optional.items() if value != default}
    options |= {"of": "set" if measure.reduction == "set" else "images"} | measure.counted
    words = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"{content} of {measure.kind.name}({words})"


class BoundaryIoU(_Measured):
    """Compute Boundary IoU over a set of images.

    See :func:`edgeloss.metrics.boundary_iou`. Counts are added up over all images, which may differ
    in size, and divided at the end.

    The options are those of :func:`edgeloss.metrics.boundary_iou`; others are passed to
    :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device, label or logit.

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
        ignore_index: Labels = -100,
        include_background: bool = True,
        multilabel: bool = False,
        ratio: float = 0.02,
        spacing: Spacing = None,
        across_void: int = 0,
        average: Average | None = "macro",
        reduction: Reduction = "set",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted = {"ratio": ratio, "spacing": spacing}
        shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
        super().__init__({"boundary_iou": Measure(BOUNDARY_IOU, counted, *shared)}, **kwargs)


class TrimapIoU(_Measured):
    """Compute trimap IoU over a set of images.

    See :func:`edgeloss.metrics.trimap_iou`. Counts are added up over all images, which may differ
    in size, and divided at the end.

    The options are those of :func:`edgeloss.metrics.trimap_iou`; others are passed to
    :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device, label or logit.

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
        ignore_index: Labels = -100,
        include_background: bool = True,
        multilabel: bool = False,
        radius: float = 1,
        spacing: Spacing = None,
        across_void: int = 0,
        average: Average | None = "macro",
        reduction: Reduction = "set",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted = {"radius": radius, "spacing": spacing}
        shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
        super().__init__({"trimap_iou": Measure(TRIMAP_IOU, counted, *shared)}, **kwargs)


class BoundaryF1(_Measured):
    """Compute Boundary F1, precision or recall over a set of images.

    See :func:`edgeloss.metrics.boundary_f1`. Counts are added up over all images, which may differ
    in size, and divided at the end.
    A :class:`torchmetrics.MetricCollection` counts once for all three scores.

    The options are those of :func:`edgeloss.metrics.boundary_f1`; others are passed to
    :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device, label or logit.

    Example:
        >>> import torch
        >>> from torchmetrics import MetricCollection
        >>> from edgeloss.metrics import BoundaryF1
        >>> scores = MetricCollection({name: BoundaryF1(2, radius=2, score=name) for name in ("precision", "recall")})
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> scores(target.roll(3, -1), target)  # one border one pixel off, another three pixels off
        {'precision': tensor(0.5000), 'recall': tensor(1.)}
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: Labels = -100,
        include_background: bool = True,
        multilabel: bool = False,
        radius: float = 1,
        spacing: Spacing = None,
        across_void: int = 0,
        average: Average | None = "macro",
        reduction: Reduction = "set",
        score: Score = "f1",
        class_agnostic: bool = False,
        per_image: bool = False,
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        reduction = "images" if per_image is True and reduction == "set" else reduction
        counted = {"radius": radius, "spacing": spacing, "class_agnostic": class_agnostic}
        shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
        scored = {"score": score, "per_image": per_image}
        super().__init__({"boundary_f1": Measure(BOUNDARY_F1, counted, *shared, scored)}, **kwargs)


class HausdorffDistance(_SurfaceMetric):
    """Compute a percentile of the distances between surfaces, as HD95, over a set of images.

    See :func:`edgeloss.metrics.hausdorff_distance`. Images are scored separately, and may differ
    in size. ``left_out`` counts the images without a distance, per class.

    The options are those of :func:`edgeloss.metrics.hausdorff_distance`; others are passed to
    :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import HausdorffDistance
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> metric = HausdorffDistance(2, percentile=100, include_background=False)
        >>> metric.update(torch.tensor([[[0, 0, 0, 0, 0, 1, 1, 1]] * 4]), target)
        >>> metric.update(torch.zeros_like(target), target)  # class 1 is missed
        >>> metric.compute(), metric.left_out
        (tensor(1.), tensor([0, 1]))
    """

    higher_is_better = False
    plot_upper_bound = None

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: Labels = -100,
        include_background: bool = True,
        multilabel: bool = False,
        percentile: float = 95,
        convention: Convention = "surface-distance",
        empty: Empty = "nan",
        spacing: Spacing = None,
        across_void: int = 0,
        average: Average | None = "macro",
        reduction: Reduction = "images",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted = {"percentile": percentile, "convention": convention, "empty": empty, "spacing": spacing}
        shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
        super().__init__({"hausdorff_distance": Measure(HAUSDORFF, counted, *shared)}, **kwargs)


class AverageSurfaceDistance(_SurfaceMetric):
    """Compute the average distance between surfaces over a set of images.

    See :func:`edgeloss.metrics.average_surface_distance`. Images are scored separately, and may differ
    in size. ``left_out`` counts the images without a distance, per class.

    The options are those of :func:`edgeloss.metrics.average_surface_distance`; others are passed to
    :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import AverageSurfaceDistance
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> metric = AverageSurfaceDistance(2, convention="monai", spacing=0.5)
        >>> metric(target, target)
        tensor(0.)
    """

    higher_is_better = False
    plot_upper_bound = None

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: Labels = -100,
        include_background: bool = True,
        multilabel: bool = False,
        symmetric: bool = True,
        convention: Convention = "surface-distance",
        empty: Empty = "nan",
        spacing: Spacing = None,
        across_void: int = 0,
        average: Average | None = "macro",
        reduction: Reduction = "images",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted = {"convention": convention, "empty": empty, "spacing": spacing}
        shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
        scored = {"symmetric": symmetric}
        super().__init__({"average_surface_distance": Measure(AVERAGE_DISTANCE, counted, *shared, scored)}, **kwargs)


class SurfaceDice(_SurfaceMetric):
    """Compute surface Dice (NSD) over a set of images.

    See :func:`edgeloss.metrics.surface_dice`. Images are scored separately, and may differ in size.

    The options are those of :func:`edgeloss.metrics.surface_dice`; others are passed to
    :class:`torchmetrics.Metric`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an invalid option or, in ``update``, an invalid shape, device, label or logit.

    Example:
        >>> import torch
        >>> from edgeloss.metrics import SurfaceDice
        >>> target = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]] * 4])
        >>> metric = SurfaceDice(2, tolerance=2)
        >>> metric(torch.tensor([[[0, 0, 0, 0, 0, 0, 1, 1]] * 4]), target)
        tensor(1.)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: Labels = -100,
        include_background: bool = True,
        multilabel: bool = False,
        tolerance: float = 1,
        convention: Convention = "surface-distance",
        spacing: Spacing = None,
        across_void: int = 0,
        average: Average | None = "macro",
        reduction: Reduction = "images",
        validate: bool | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the options."""
        counted = {"tolerance": tolerance, "convention": convention, "spacing": spacing}
        shared = num_classes, ignore_index, include_background, multilabel, across_void, average, reduction, validate
        super().__init__({"surface_dice": Measure(SURFACE_DICE, counted, *shared)}, **kwargs)
