"""The loss as frameworks call it: labels in other forms, several outputs with weights, outputs with names.

The loss itself is strict: labels are whole numbers [B, *S]. What frameworks pass instead is converted here, where the
call says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgeloss._checks.inputs import LABEL_DTYPES, check_logits, check_tensor, check_that, describe


def as_labels(target: Tensor, logits: Tensor, *, ignore_index: int | None = -100, multilabel: bool = False) -> Tensor:
    """Return a target of any common form as class indices [B, *S], or as labels of each class [B, C, *S].

    A channel is recognized by the dimensions of the logits. With several channels the target is one-hot; a pixel
    without a class in it is ignored. Values are checked, which waits for the device.

    Args:
        target: class indices [B, *S] or [B, 1, *S], integers or whole numbers of a floating dtype, or a one-hot
            indicator [B, C, *S] of 0 and 1. With ``multilabel`` [B, C, *S], integers or whole numbers.
        logits: [B, C, *S'], of any size.
        ignore_index: label of one-hot pixels without a class; None if each has one.
        multilabel: whether classes may overlap, as in ``EdgeAwareLoss(multilabel=True)``.

    Returns:
        [B, *S], with ``multilabel`` [B, C, *S]; the dtype of ``target`` if it holds class indices of a dtype that the
        loss supports, else int64.

    Raises:
        TypeError: if the target or the logits are not tensors.
        ValueError: if the shape does not fit, a value is no whole number, or a one-hot pixel has several classes, or
            none that it must have.

    Example:
        >>> import torch
        >>> logits = torch.zeros(1, 3, 1, 2)
        >>> as_labels(torch.tensor([[[[2.0, 0.0]]]]), logits)  # [B, 1, *S], as MONAI and nnU-Net store labels
        tensor([[[2, 0]]])
        >>> as_labels(torch.nn.functional.one_hot(torch.tensor([[[2, 0]]]), 3).movedim(-1, 1), logits)
        tensor([[[2, 0]]])
    """
    check_logits(logits)
    check_tensor("target", target, "a tensor")
    dims, classes = logits.dim(), logits.shape[1]
    if multilabel:
        if target.dim() != dims or target.shape[1] != classes:
            raise ValueError(
                f"target: expected labels of each class [B, {classes}, *S] for logits {list(logits.shape)}, but got"
                f" {describe(target)}"
            )
        return _whole_numbers(target)
    channels = target.shape[1] if target.dim() == dims else 1
    if target.dim() not in (dims - 1, dims) or channels not in (1, max(2, classes)):
        raise ValueError(
            f"target: expected [B, *S], [B, 1, *S] or one-hot [B, {max(2, classes)}, *S] for logits"
            f" {list(logits.shape)}, but got {describe(target)}"
        )
    if channels == 1:
        return _whole_numbers(target if target.dim() < dims else target.squeeze(1))
    check_that(((target == 0) | (target == 1)).all(), "target: expected a one-hot indicator of 0 and 1")
    count, first = target.sum(1, dtype=torch.int64), target.to(torch.uint8).argmax(1)
    several = "target: expected one class per pixel, but got a pixel with several; pass multilabel=True if they overlap"
    check_that((count <= 1).all(), several)
    if ignore_index is None:
        check_that((count > 0).all(), "target: expected a class for each pixel, but got one without; pass ignore_index")
        return first
    return torch.where(count > 0, first, ignore_index)


def _whole_numbers(labels: Tensor) -> Tensor:
    if not labels.is_floating_point():
        return labels if labels.dtype in LABEL_DTYPES else labels.long()
    check_that((labels == labels.round()).all(), "target: expected whole numbers, but got fractions or nan")
    return labels.long()


class Adapted(nn.Module):
    """Call a loss with what a framework passes to it.

    Args:
        criterion: a loss of logits [B, C, *S] and labels [B, *S], such as :class:`edgeloss.EdgeAwareLoss`.
        key: name of the logits in an output that is a dict or an object such as a ``ModelOutput``; None for outputs
            that are tensors or sequences.
        weights: weight of each output of a network that returns several (deep supervision). None for a single output.

    Shape:
        * output: [B, C, *S], or a sequence of them, one per weight.
        * target: of any form that :func:`as_labels` takes, or a sequence of them, one per weight. With a single target
          for outputs of several sizes, use ``EdgeAwareLoss(upsample=True)``.
        * loss: a scalar, the weighted sum.

    Raises:
        TypeError: if an output is no tensor.
        ValueError: if the numbers of outputs, targets and weights differ, or as :func:`as_labels` does.

    Example:
        >>> import torch
        >>> from edgeloss import EdgeAwareLoss
        >>> criterion = Adapted(EdgeAwareLoss(upsample=True), weights=[1.0, 0.5])
        >>> outputs = [torch.zeros(1, 3, 8, 8, requires_grad=True), torch.zeros(1, 3, 4, 4, requires_grad=True)]
        >>> criterion(outputs, torch.zeros(1, 1, 8, 8)).backward()
    """

    def __init__(self, criterion: nn.Module, *, key: str | None = None, weights: Sequence[float] | None = None) -> None:
        """Store the loss."""
        super().__init__()
        self.key = key
        self.weights = None if weights is None else [float(weight) for weight in weights]
        # One per output, which names the entries of state_dict().
        self.criteria = nn.ModuleList([criterion] * (1 if weights is None else len(weights)))

    def forward(self, output: Any, target: Tensor | Sequence[Tensor]) -> Tensor:  # noqa: ANN401
        """Compute the loss; the class describes the shapes."""
        if self.key is not None:
            output = output[self.key] if isinstance(output, Mapping) else getattr(output, self.key)
        outputs = [output] if self.weights is None else list(output)
        targets = [target] * len(outputs) if isinstance(target, Tensor) else list(target)
        if not len(self.criteria) == len(outputs) == len(targets):
            raise ValueError(
                f"output: expected {len(self.criteria)} outputs and as many targets or one, but got {len(outputs)} and"
                f" {len(targets)}"
            )
        losses: list[Tensor] = []
        for criterion, weight, logits, y in zip(self.criteria, self.weights or [1.0], outputs, targets, strict=True):
            ignore_index, multilabel = getattr(criterion, "ignore_index", -100), getattr(criterion, "multilabel", False)
            labels = as_labels(y, logits, ignore_index=ignore_index, multilabel=multilabel)
            losses.append(weight * criterion(logits, labels))
        return sum(losses[1:], losses[0])
