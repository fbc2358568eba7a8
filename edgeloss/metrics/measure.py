"""A metric as an object: its options, checked once, from a batch to counts, and from counts to a score."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from edgeloss._checks import inputs
from edgeloss._checks.options import (
    check_choice,
    check_count,
    check_flag,
    check_in,
    check_label,
    check_positive,
    is_integer,
    is_number,
    spacing_per_axis,
)
from edgeloss.metrics.maps import Reading, labels_of

Average = Literal["macro", "micro", "weighted", "none"]
Reduction = Literal["set", "images", "none"]
Score = Literal["f1", "precision", "recall"]
Convention = Literal["surface-distance", "monai", "medpy"]
Empty = Literal["nan", "diagonal"]
Spacing = float | Sequence[float] | None
Labels = int | Sequence[int] | None


class LabelMaps:
    """A batch as metrics count it, and what several metrics of it share.

    Attributes:
        y: labels [2, B, *S] of prediction and target, -1 on void in both.
        num_classes: C.
        radii: radii of Boundary F1 that are counted together.
    """

    def __init__(self, y: Tensor, num_classes: int, radii: Sequence[float] = ()) -> None:
        """Store the label maps."""
        self.y, self.num_classes, self.radii = y, num_classes, radii
        self._shared: dict[tuple[Any, ...], Any] = {}

    def share(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Return what ``compute`` does, the first time under this key, and the same object from then on."""
        if key not in self._shared:
            self._shared[key] = compute()
        return self._shared[key]

    @cached_property
    def has_hidden_borders(self) -> bool:
        """Whether an image has void and several classes in the target; waits for the device."""
        target = self.y[1].flatten(1)
        if not target.numel():
            return False
        void = target < 0
        largest, smallest = target.amax(1), target.masked_fill(void, self.num_classes).amin(1)
        return bool((void.any(1) & (largest > smallest)).any())


class Kind(NamedTuple):
    """What a metric computes.

    Attributes:
        name: of its function.
        counter: label maps and options → counts per image [B, rows, C]; the last row is how much of each class the
            target has.
        scorer: counts [..., rows, C] and options → scores [..., C], nan for classes that do not occur.
        rows: of the counts.
        counts_areas: whether counts are values and areas of surfaces, and not integers.
        adds_up: whether counts may be added up over images and classes.
    """

    name: str
    counter: Callable[..., Tensor]
    scorer: Callable[..., Tensor]
    rows: int
    counts_areas: bool = False
    adds_up: bool = True


@dataclass(frozen=True)
class Measure:
    """The options of a metric; an instance has passed all checks.

    ``counted`` are the options of the counter, ``scored`` those of the scorer.
    """

    kind: Kind
    counted: dict[str, Any]
    num_classes: int
    ignore_index: Labels
    include_background: bool
    multilabel: bool
    across_void: int
    average: Average | None
    reduction: Reduction
    validate: bool | None
    scored: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every option."""
        self._check_shared()
        options, spacing = self.counted | self.scored, self.counted["spacing"]
        spacing_per_axis(spacing, max(1, len(spacing)) if isinstance(spacing, Sequence) else 2)
        if "ratio" in options:
            check_positive("ratio", options["ratio"])
        if "radius" in options:
            if spacing is None:
                check_count("radius", options["radius"], 1)
            else:
                check_positive("radius", options["radius"])
        check_in("percentile", options.get("percentile", 100), 0, 100)
        tolerance = options.get("tolerance", 0)
        if not is_number(tolerance) or not 0 <= tolerance < math.inf:
            raise ValueError(f"tolerance: expected a finite number ≥ 0, but got {tolerance!r}")
        choices = {"score": Score, "convention": Convention, "empty": Empty}
        for name, words in choices.items():
            check_choice(name, options.get(name, get_args(words)[0]), get_args(words))
        for name in ("class_agnostic", "per_image", "symmetric"):
            check_flag(name, options.get(name, False))
        if self.multilabel and options.get("class_agnostic"):
            raise ValueError(
                "class_agnostic: expected False with multilabel=True, but got True; average the classes instead"
            )
        if not self.include_background and options.get("class_agnostic"):
            raise ValueError(
                "class_agnostic: expected False with include_background=False, but got True; the borders of all classes"
                " are one, those of class 0 too"
            )

    def _check_shared(self) -> None:
        """Check the options that all metrics have."""
        for label in labels_of(self.ignore_index):
            if not is_integer(label):
                raise TypeError(f"ignore_index: expected an int, a list of them or None, but got {self.ignore_index!r}")
            check_label("ignore_index", label)
        check_flag("multilabel", self.multilabel)
        check_count("num_classes", self.num_classes, 1 if self.multilabel else 2)
        check_flag("include_background", self.include_background)
        if self.multilabel and not self.include_background:
            raise ValueError(
                "include_background: expected True with multilabel=True, but got False; leave out the maps of class 0"
            )
        check_count("across_void", self.across_void, 0)
        averages: tuple[Any, ...] = get_args(Average) if self.kind.adds_up else ("macro", "weighted", "none")
        if self.average is not None:
            check_choice("average", self.average, averages)
        reductions = get_args(Reduction) if self.kind.adds_up else ("images", "none")
        check_choice("reduction", self.reduction, reductions)
        if self.validate is not None and not isinstance(self.validate, bool):
            raise TypeError(f"validate: expected a bool or None, but got {self.validate!r}")

    @property
    def ignored_classes(self) -> list[int]:
        """The classes whose pixels are void."""
        if self.multilabel:
            return []
        return [label for label in labels_of(self.ignore_index) if 0 <= label < self.num_classes]

    @property
    def reading(self) -> Reading:
        """How the label maps are read."""
        ignored = labels_of(self.ignore_index)
        return Reading(self.num_classes, ignored, self.multilabel, self.across_void, self.validate)

    def evaluate(self, pred: Tensor, target: Tensor) -> Tensor:
        """Return the score of a batch."""
        warn_of_ignored_classes(self)
        maps = self.read(pred, target)
        counts = self.count(maps)
        if self.reduction == "set":
            counts = added(counts, 0)
        if self.hides_borders(counts, maps):
            warn_of_hidden_borders([self.kind.name])
        return self.score(counts)

    def read(self, pred: Tensor, target: Tensor, radii: Sequence[float] = ()) -> list[LabelMaps]:
        """Return the checked label maps, of a multilabel metric a binary map per class."""
        y = self.reading.label_maps(pred, target)
        if not self.multilabel:
            return [LabelMaps(y, self.num_classes, radii)]
        return [LabelMaps(maps, 2, radii) for maps in y.unbind(2)]

    def count(self, maps: Iterable[LabelMaps]) -> Tensor:
        """Return the counts of each image [B, rows, C]; of a multilabel metric those of label 1 of each class."""
        counts = [self.kind.counter(each, **self.counted) for each in maps]
        return torch.cat([each[..., 1:] for each in counts], -1) if self.multilabel else counts[0]

    def hides_borders(self, counts: Tensor, maps: Iterable[LabelMaps]) -> bool:
        """Return whether a batch has several classes next to void, but no border; False where values are not read."""
        if not (self.validate or (self.validate is None and inputs.may_read(counts, "async"))):
            return False
        return not bool(counts[..., -1, :].any()) and any(each.has_hidden_borders for each in maps)

    def score(self, counts: Tensor) -> Tensor:
        """Return the score of counts [rows, C], or with another reduction than "set" of [N, rows, C]."""
        weights, dtype = counts[..., -1, :], torch.get_default_dtype()
        left_out = [] if self.counted.get("class_agnostic") else self.ignored_classes
        if not self.include_background and counts.shape[-1] > 1:
            left_out = [*left_out, 0]
        if self.average == "micro" and counts.shape[-1] > 1:
            kept = [c for c in range(counts.shape[-1]) if c not in left_out]
            counts, left_out = added(counts[..., kept], -1).unsqueeze(-1), []
        scores = self.kind.scorer(counts, **self.scored)
        scores[..., left_out] = math.nan
        if self.reduction == "images":
            # Sorted, so that the sum does not depend on the order of the images, to the last bit.
            scores = scores.to(inputs.widest(scores.device)).sort(0).values.nanmean(0)
            weights = weights.sum(0)
        return self._averaged(scores, weights).to(dtype)

    def _averaged(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Average scores [..., C] over the classes that occur; a single score stays as it is."""
        if scores.shape[-1] == 1:
            return scores[..., 0]
        if self.average == "macro":
            return scores.nanmean(-1)
        if self.average == "weighted":
            weights = weights.to(scores.dtype).masked_fill(scores.isnan(), 0)
            return (weights * scores.nan_to_num(0)).sum(-1) / weights.sum(-1)
        return scores


def added(counts: Tensor, axis: int) -> Tensor:
    """Add up counts [..., rows, C] over images or classes, without those that have no value."""
    if counts.is_floating_point():
        counts = counts.masked_fill(counts.isnan().any(-2, keepdim=True), 0)
    return counts.sum(axis)


def warn_of_ignored_classes(measure: Measure) -> None:
    """Warn if the pixels of a class are void."""
    if classes := measure.ignored_classes:
        hint = "; to leave class 0 out of the average pass include_background=False" if 0 in classes else ""
        are = "is one of" if len(classes) == 1 else "are among"
        warnings.warn(
            f"ignore_index: {', '.join(map(str, classes))} {are} the {measure.num_classes} classes: their pixels are"
            f" void, and borders next to them do not count{hint}",
            stacklevel=4,
        )


def warn_of_hidden_borders(metrics: Iterable[str]) -> None:
    """Warn that void covers every border that some metrics, given by their names, count; not if there are none."""
    if names := ", ".join(dict.fromkeys(metrics)):
        warnings.warn(
            f"{names}: no border of the target is next to another class, since void (ignore_index) lies between all"
            " classes, so that a perfect prediction scores nan; pass across_void=k (edgeloss metrics --across-void k)"
            " to continue labels across void of at most k pixels",
            stacklevel=4,
        )
