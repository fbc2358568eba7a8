"""From the arguments of the boundary metrics to label maps, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from edgeloss import inputs
from edgeloss.options import check_choice, check_count, check_flag, check_label, check_positive, spacing_per_axis

Average = Literal["macro", "none"]
Score = Literal["f1", "precision", "recall"]
Spacing = float | Sequence[float] | None


def check_options(
    num_classes: int,
    ignore_index: int | None,
    average: str,
    validate: bool | None,
    *,
    multilabel: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Check the options of a metric, which do not depend on the label maps.

    ``options`` are those of ``ratio``, ``radius``, ``spacing``, ``score``, ``class_agnostic`` and ``per_image`` that
    the metric has.
    """
    spacing = options.pop("spacing", None)
    spacing_per_axis(spacing, max(1, len(spacing)) if isinstance(spacing, Sequence) else 2)
    check_label("ignore_index", ignore_index)
    check_choice("average", average, get_args(Average))
    if validate is not None and not isinstance(validate, bool):
        raise TypeError(f"validate: expected a bool or None, but got {validate!r}")
    check_flag("multilabel", multilabel)
    check_count("num_classes", num_classes, 1 if multilabel else 2)
    for name, value in options.items():
        if name == "ratio" or (name == "radius" and spacing is not None):
            check_positive(name, value)
        elif name == "radius":
            check_count(name, value, 1)
        elif name == "score":
            check_choice(name, value, get_args(Score))
        else:
            check_flag(name, value)
    if multilabel and options.get("class_agnostic"):
        raise ValueError(
            "class_agnostic: expected False with multilabel=True, but got True; average the classes instead"
        )


def label_maps(
    pred: Tensor,
    target: Tensor,
    num_classes: int,
    ignore_index: int | None,
    validate: bool | None,
    *,
    multilabel: bool = False,
) -> Tensor:
    """Return prediction and target as labels [2, B, *S], of multilabel ones [2, B, C, *S], -1 on void in both."""
    inputs.check_label_map(target, multilabel=multilabel, classes=num_classes)
    size = "D, H, W" if target.dim() == 4 else "H, W"
    if multilabel and isinstance(pred, Tensor) and pred.is_floating_point():
        pred = pred > 0
    elif isinstance(pred, Tensor) and pred.is_floating_point():
        channels = (1, 2) if num_classes == 2 else (num_classes,)
        if pred.dim() != target.dim() + 1 or pred.shape[1] not in channels:
            raise ValueError(
                f"pred: expected logits [B, {' or '.join(map(str, channels))}, {size}] for num_classes={num_classes},"
                f" but got {inputs.describe(pred)}; pass labels stored as floats as pred.long()"
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
    y, valid = inputs.labels(target, classes, ignore_index)
    if validate or (validate is None and inputs.may_read(target, "async")):
        inputs.check_labels(y, classes, ignore_index)
        inputs.check_labels(predicted.masked_fill(~valid, 0), classes, name="pred")
    valid &= (predicted >= 0) & (predicted < classes)
    dtype = torch.int16 if classes < 2**15 else torch.int32  # narrow dtypes are faster
    return torch.stack([predicted.to(dtype), y.to(dtype)]).masked_fill_(~valid, -1)
