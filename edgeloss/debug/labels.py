"""Class indices in the target of a loss, and findings about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from edgeloss import inputs, neighborhoods
from edgeloss.debug.calls import LossCall
from edgeloss.debug.report import Finding
from edgeloss.debug.stats import MAX_VALUES, first_index
from edgeloss.debug.trees import short
from edgeloss.loss import EdgeAwareLoss

_USUAL_VOID = (-100, -1, 255)  # labels that a loss may ignore although its ignore_index is unknown


class Labels(NamedTuple):
    """The class indices of a target.

    Those of a multilabel loss are binary ones of B · C images, ordered as [B, C].

    Attributes:
        y: [B, *S] int64.
        valid: [B, *S] bool, a class and not ignored.
        outside: [B, *S] bool, not a class, and not known to be ignored by the loss.
        wrong: [B, *S] bool, those of ``outside`` that no loss is likely to ignore.
        edge_mask: [B, *S] bool, valid pixels with a valid neighbor of another label; None unless 2-D or 3-D.
        classes: at least 2.
        multilabel_classes: C of a multilabel loss, else None.
    """

    y: Tensor
    valid: Tensor
    outside: Tensor
    wrong: Tensor
    edge_mask: Tensor | None
    classes: int
    multilabel_classes: int | None = None

    @classmethod
    def from_call(cls, call: LossCall) -> Labels | None:
        """Return the labels of a call, None if its target does not hold class indices."""
        target, logits, ignore_index = call.target, call.logits, call.ignore_index
        dims = logits.dim() - 2
        if not isinstance(target, Tensor) or target.dtype not in inputs.LABEL_DTYPES or dims < 0:
            return None
        multilabel_classes = None
        if isinstance(call.loss_fn, EdgeAwareLoss) and call.loss_fn.multilabel:
            if target.dim() != logits.dim() or target.shape[:2] != logits.shape[:2]:
                return None
            multilabel_classes, target, logits = logits.shape[1], target.flatten(0, 1), inputs.by_class(logits)
        # Some losses upsample logits of lower resolution to the labels.
        if target.shape[1:] != logits.shape[2:] and (dims < 2 or target.dim() != dims + 1):
            return None
        if len(target) != len(logits):
            return None
        y, classes = target.long(), max(2, logits.shape[1])
        outside = (y < 0) | (y >= classes)
        valid = ~outside
        wrong = outside & ~torch.isin(y, y.new_tensor(_USUAL_VOID))
        if ignore_index is not None:
            valid = valid & (y != ignore_index)
            outside = wrong = outside & (y != ignore_index)
        edge_mask = neighborhoods.find_edges(y, valid, [1] * dims) if dims in (2, 3) else None
        return cls(y, valid, outside, wrong, edge_mask, classes, multilabel_classes)

    def as_given(self, values: Tensor) -> Tensor:
        """Return values of each image in the first axes of the target: [B, ...], of a multilabel loss [B, C, ...]."""
        return inputs.as_given(values, self.multilabel_classes)

    def fit(self, logits: Tensor) -> bool:
        """Return whether the labels have the resolution of the logits."""
        return self.y.shape[1:] == logits.shape[2:]

    def images_without_edge(self) -> Tensor:
        """Return a mask [B] bool of the images without an edge pixel."""
        edge_mask = torch.ones_like(self.valid) if self.edge_mask is None else self.edge_mask
        return ~edge_mask.flatten(1).any(1)

    def findings(self, call: LossCall, raised: bool) -> Iterator[Finding]:
        """Report out-of-range labels, and images or batches with nothing to learn from."""
        wrong = self.outside if raised else self.wrong
        if wrong.any():
            values = torch.unique(self.y[wrong]).tolist()
            shown = ", ".join(map(str, values[:MAX_VALUES])) + (", …" if len(values) > MAX_VALUES else "")
            message = (
                f"target: labels outside the classes 0 to {self.classes - 1} at {int(wrong.sum())} of"
                f" {wrong.numel()} pixels: {shown}; first at {first_index(self.as_given(wrong))}."
            )
            yield Finding("warning", message, "Map them to classes, or pass ignore_index to the loss.")
        if self.y.numel() and not self.valid.any():
            message = "target: no valid label, so there is nothing to learn from."
            yield Finding("warning", message, "Check the data loader and ignore_index, or skip such batches.")
        elif self.classes == 2 and not self.y[self.valid].any() and (self.y[~self.valid & ~self.outside] == 255).any():
            advice = "Pass target == 255 as the labels if 255 is the object, as in a mask of 0 and 255."
            yield Finding("warning", "target: only 0 and 255, which is ignored.", advice)
        elif isinstance(call.loss_fn, EdgeAwareLoss) and self.images_without_edge().any():
            without = self.as_given(self.images_without_edge()).nonzero()
            where = "images" if without.shape[1] == 1 else "[image, class]"
            listed = short(without.squeeze(1).tolist())
            yield Finding("note", f"target: no edge in {where} {listed}; only their cross-entropy counts.")
