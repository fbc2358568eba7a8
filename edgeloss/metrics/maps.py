"""From predictions and labels as users pass them to label maps with -1 for void, checked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss._checks import inputs
from edgeloss._reference.neighborhoods import sliding_max


@dataclass(frozen=True)
class Reading:
    """How label maps are read.

    Attributes:
        num_classes: C.
        ignored: the labels of void pixels.
        multilabel: whether each class has labels 0 and 1 of its own.
        across_void: the width of void in pixels that labels are continued across.
        validate: whether to check values; None checks on all devices but CUDA.
    """

    num_classes: int
    ignored: tuple[int, ...]
    multilabel: bool
    across_void: int
    validate: bool | None

    def label_maps(self, pred: Tensor, target: Tensor) -> Tensor:
        """Return both as labels [2, B, *S], of a multilabel metric [2, B, C, *S], -1 on void in both; checked."""
        multilabel = self.multilabel
        pred, target = _whole(pred), _whole(target)
        if not multilabel:
            pred, target = self._without_channels(pred, target)
        inputs.check_label_map(target, multilabel=multilabel, classes=self.num_classes)
        if not isinstance(pred, Tensor) or not pred.is_floating_point():
            inputs.check_target(pred, name="pred")
        checked = self.validate or (self.validate is None and inputs.may_read(target, "async"))
        if checked and not multilabel:
            self._check_not_one_hot(pred, target)
        self._check_pair(pred, target)

        classes = 2 if multilabel else self.num_classes  # what labels stand for: absent and present, or a class each
        void = self.ignored[0] if self.ignored else None
        for other in self.ignored[1:]:
            target = target.long().masked_fill(target == other, self.ignored[0])
        y, valid = inputs.labels(target, classes, void)
        if checked:
            inputs.check_labels(y, classes, void)
        predicted = _predicted(pred, target, valid if checked else None)
        if checked:
            inputs.check_labels(predicted.masked_fill(~valid, 0), classes, name="pred")
        valid &= (predicted >= 0) & (predicted < classes)
        dtype = torch.int16 if classes < 2**15 else torch.int32  # narrow dtypes are faster
        maps = torch.stack([predicted.to(dtype), y.to(dtype)]).masked_fill_(~valid, -1)
        if self.across_void:
            spatial = maps.flatten(1, 2) if multilabel else maps
            maps = continue_labels(spatial, self.across_void).view_as(maps)
        return maps

    def _without_channels(self, pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Remove the axes of length 1 that are channels of labels, or the depth of a volume of one slice."""
        if not isinstance(target, Tensor) or not isinstance(pred, Tensor):
            return pred, target
        while target.dim() in (4, 5) and target.shape[1] == 1:
            target = target.squeeze(1)
        if not pred.is_floating_point():
            while pred.dim() > target.dim() and pred.shape[1] == 1:
                pred = pred.squeeze(1)
        elif pred.dim() == target.dim() + 2 and pred.shape[2] == 1:
            pred = pred.squeeze(2)
        return pred, target

    def _check_not_one_hot(self, pred: Tensor, target: Tensor) -> None:
        """Check that labels are not one-hot ones [B, C, H, W] or [B, H, W, C], which look like volumes."""
        for (name, labels), axis in itertools.product((("target", target), ("pred", pred)), (1, -1)):
            is_volume = name == "target" and pred.dim() == 5
            if labels.is_floating_point() or labels.dim() != 4 or labels.shape[axis] != self.num_classes or is_volume:
                continue
            if labels.numel() and bool(((labels == 0) | (labels == 1)).all() & (labels.sum(axis) == 1).all()):
                is_usual = name == "target" and axis == 1
                cure = "edgeloss.adapters.as_labels(target, logits)" if is_usual else f"{name}.long().argmax({axis})"
                raise ValueError(
                    f"{name}: expected labels [B, H, W] or [B, D, H, W], but got one-hot labels {list(labels.shape)};"
                    f" pass {cure}"
                )

    def _check_pair(self, pred: Tensor, target: Tensor) -> None:
        """Check that shapes and devices match."""
        num_classes, size = self.num_classes, "D, H, W" if target.dim() == 4 else "H, W"
        shape = pred.shape
        if pred.is_floating_point() and not self.multilabel:
            channels = (1, 2) if num_classes == 2 else (num_classes,)
            if pred.dim() != target.dim() + 1 or pred.shape[1] not in channels:
                raise ValueError(
                    f"pred: expected logits [B, {' or '.join(map(str, channels))}, {size}] for num_classes="
                    f"{num_classes}, but got {inputs.describe(pred)}; pass labels stored as floats as pred.long()"
                )
            shape = pred.shape[:1] + pred.shape[2:]
        if shape != target.shape:
            raise ValueError(
                f"pred: expected {list(target.shape)}, the shape of the target, but got {list(shape)};"
                " resize logits to the size of the target with F.interpolate"
            )
        if pred.device != target.device:
            raise ValueError(f"pred: expected device {target.device}, that of the target, but got {pred.device}")


def _whole(labels: Tensor) -> Tensor:
    """Return labels of an integer dtype that the loss does not take, such as int8 and uint16, as int64."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        return labels
    return labels if labels.dtype in inputs.LABEL_DTYPES else labels.long()


def _predicted(pred: Tensor, target: Tensor, valid: Tensor | None) -> Tensor:
    """Return predicted labels as int64, in the shape of the target; with the mask of valid pixels, check the logits."""
    if not pred.is_floating_point():
        return pred.long()
    if pred.shape == target.shape or pred.shape[1] == 1:  # a logit per label
        largest = pred.view_as(target)
        predicted = largest > 0
        if valid is not None and pred.numel():
            low, high = largest.aminmax()
            if low >= 0 and 0 < high <= 1:
                raise ValueError(
                    f"pred: expected logits, label 1 where they are > 0, but got values from {low.item():g} to"
                    f" {high.item():g}, as of probabilities; pass probabilities > 0.5, or logits > 0"
                )
    else:
        largest, predicted = pred.max(1)
    if valid is not None and bool((largest.isnan() & valid).any()):
        first = (largest.isnan() & valid).nonzero()[0].tolist()
        raise ValueError(f"pred: expected logits without nan on valid pixels, but got nan at {first}; find its source")
    return predicted.long()


def continue_labels(maps: Tensor, width: int) -> Tensor:
    """Give void pixels where void is at most ``width`` pixels wide the labels of the nearest valid pixel.

    Void is wider where a square of ``width`` + 1 pixels, or a cube, fits in; the outside of the image is void. Both
    maps [2, B, *S] take their labels from the same pixels.
    """
    from scipy.ndimage import distance_transform_edt  # a heavy import that `import edgeloss` should not need

    void = maps[1] < 0
    wide = ~_windows((~void).to(torch.uint8), width + 1, pad=width).bool()  # squares without a valid pixel
    thin = void & ~_windows(wide.to(torch.uint8), width + 1, pad=0).bool()
    continued = maps.clone()
    for image in thin.flatten(1).any(1).nonzero().flatten().tolist():
        holes = thin[image].nonzero(as_tuple=True)
        nearest = distance_transform_edt(void[image].cpu().numpy(), return_distances=False, return_indices=True)
        source = tuple(torch.from_numpy(index).long().to(maps.device)[holes] for index in nearest)
        for labels, filled in zip(maps[:, image], continued[:, image], strict=True):
            filled[holes] = labels[source]
    return continued


def _windows(values: Tensor, size: int, pad: int) -> Tensor:
    """Return the largest of each window of ``size`` values along every axis of [B, *S]."""
    values = F.pad(values, [pad] * (2 * (values.dim() - 1)))
    for axis in range(1, values.dim()):
        values = sliding_max(values, size, axis)
    return values


def labels_of(ignore_index: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the labels to ignore."""
    if ignore_index is None:
        return ()
    return tuple(ignore_index) if isinstance(ignore_index, Sequence) else (ignore_index,)
