"""A metric as an object: its options, checked once, from a batch to counts, and from counts to a score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from edgeloss import inputs
from edgeloss.options import check_choice, check_count, check_flag, check_label, check_positive, spacing_per_axis

Average = Literal["macro", "none"]
Score = Literal["f1", "precision", "recall"]
Spacing = float | Sequence[float] | None


@dataclass(frozen=True)
class Measure:
    """The options of a metric; an instance has passed all checks."""

    counter: Callable[..., Tensor]  # label maps [2, B, *S], a number of classes and ``counted`` → counts [rows, C]
    scorer: Callable[..., Tensor]  # counts, ``average``, the class that never occurs or None, and ``scored`` → a score
    counted: dict[str, Any]
    num_classes: int
    ignore_index: int | None
    multilabel: bool
    average: Average
    validate: bool | None
    scored: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every option."""
        options = self.counted | self.scored
        spacing = options["spacing"]
        spacing_per_axis(spacing, max(1, len(spacing)) if isinstance(spacing, Sequence) else 2)
        check_label("ignore_index", self.ignore_index)
        check_choice("average", self.average, get_args(Average))
        if self.validate is not None and not isinstance(self.validate, bool):
            raise TypeError(f"validate: expected a bool or None, but got {self.validate!r}")
        check_flag("multilabel", self.multilabel)
        check_count("num_classes", self.num_classes, 1 if self.multilabel else 2)
        if "ratio" in options or spacing is not None:
            name = "ratio" if "ratio" in options else "radius"
            check_positive(name, options[name])
        else:
            check_count("radius", options["radius"], 1)
        check_choice("score", options.get("score", "f1"), get_args(Score))
        for name in ("class_agnostic", "per_image"):
            check_flag(name, options.get(name, False))
        if self.multilabel and options.get("class_agnostic"):
            raise ValueError(
                "class_agnostic: expected False with multilabel=True, but got True; average the classes instead"
            )

    def count(self, pred: Tensor, target: Tensor) -> Tensor:
        """Return the counts of a batch; of a multilabel one those of label 1 of each class by itself, [rows, C]."""
        y = self.label_maps(pred, target)
        if not self.multilabel:
            return self.counter(y, self.num_classes, **self.counted)
        return torch.cat([self.counter(maps, 2, **self.counted)[:, 1:] for maps in y.unbind(2)], 1)

    def score(self, counts: Tensor) -> Tensor:
        """Return the score of counts: 0-d or [C]."""
        return self.scorer(counts, self.average, None if self.multilabel else self.ignore_index, **self.scored)

    def label_maps(self, pred: Tensor, target: Tensor) -> Tensor:
        """Return both as labels [2, B, *S], of a multilabel metric [2, B, C, *S], -1 on void in both; checked."""
        num_classes, multilabel = self.num_classes, self.multilabel
        inputs.check_label_map(target, multilabel=multilabel, classes=num_classes)
        size = "D, H, W" if target.dim() == 4 else "H, W"
        if multilabel and isinstance(pred, Tensor) and pred.is_floating_point():
            pred = pred > 0
        elif isinstance(pred, Tensor) and pred.is_floating_point():
            channels = (1, 2) if num_classes == 2 else (num_classes,)
            if pred.dim() != target.dim() + 1 or pred.shape[1] not in channels:
                raise ValueError(
                    f"pred: expected logits [B, {' or '.join(map(str, channels))}, {size}] for num_classes="
                    f"{num_classes}, but got {inputs.describe(pred)}; pass labels stored as floats as pred.long()"
                )
            pred = pred[:, 0] > 0 if pred.shape[1] == 1 else pred.argmax(1)
        else:
            inputs.check_target(pred, name="pred")
        if pred.shape != target.shape:
            raise ValueError(
                f"pred: expected {list(target.shape)}, the shape of the target, but got {list(pred.shape)};"
                " resize logits to the size of the target with F.interpolate"
            )
        if pred.device != target.device:
            raise ValueError(f"pred: expected device {target.device}, that of the target, but got {pred.device}")

        classes = 2 if multilabel else num_classes  # what labels stand for: absent and present, or a class each
        predicted = pred.long()
        y, valid = inputs.labels(target, classes, self.ignore_index)
        if self.validate or (self.validate is None and inputs.may_read(target, "async")):
            inputs.check_labels(y, classes, self.ignore_index)
            inputs.check_labels(predicted.masked_fill(~valid, 0), classes, name="pred")
        valid &= (predicted >= 0) & (predicted < classes)
        dtype = torch.int16 if classes < 2**15 else torch.int32  # narrow dtypes are faster
        return torch.stack([predicted.to(dtype), y.to(dtype)]).masked_fill_(~valid, -1)
