"""The numbers behind the figures, as NumPy arrays."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss import hints, inputs, reference
from edgeloss.loss import EdgeAwareLoss


class Arrays(NamedTuple):
    """The loss of a batch of 2-D images, pixel by pixel.

    Attributes:
        classes: the number of classes, 2 for binary logits.
        target: [B, H, W] int64, the labels; -1 at ignored pixels.
        prediction: [B, H, W] int64, the class of the largest logit; -1 where a logit is nan.
        terms: ``loss`` and the terms that the criterion returns, by name; ``region`` only if it has a weight.
        maps: the loss maps [B, H, W], by name; ``distance`` only if the criterion has a ``decay``. The term
            ``region`` has no map.
        gradient: [B, h, w] float64, the gradient of the loss with respect to the logits, as its L2 norm over the
            classes, in the resolution of the logits.
    """

    classes: int
    target: npt.NDArray[np.int64]
    prediction: npt.NDArray[np.int64]
    terms: dict[str, float]
    maps: dict[str, npt.NDArray[Any]]
    gradient: npt.NDArray[np.float64]


def compute_arrays(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None) -> Arrays:
    """Compute prediction, loss maps and gradient of a batch of 2-D images.

    Gradients of half-precision logits are computed in float32, where a mean over many pixels does not round them to 0.
    Works under ``no_grad`` and ``inference_mode``, and does not modify the arguments.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device.
        target: [B, H, W] or [H, W] integer, on the same device.
        criterion: the loss; ``EdgeAwareLoss()`` if None. With ``reduction="none"``, the gradient is that of the sum.

    Returns:
        The arrays, on the CPU.

    Raises:
        ValueError: if logits or target are volumes (pass a slice), have no pixels or do not fit each other, and as
            ``criterion`` does.

    Example:
        >>> arrays = compute_arrays(torch.zeros(3, 4, 5), torch.zeros(4, 5, dtype=torch.int64))
        >>> arrays.prediction.shape, round(arrays.terms["loss"], 4)
        ((1, 4, 5), 1.0986)
    """
    criterion, logits, target = prepare(logits, target, criterion)
    with torch.inference_mode(False), torch.enable_grad():  # on copies: inference tensors have no backward
        leaf = logits.detach().clone()
        leaf = (leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf).requires_grad_()
        loss, maps, terms = criterion(leaf, target.clone(), return_maps=True, return_terms=True)
        loss = loss.sum()
        (gradient,) = torch.autograd.grad(loss, leaf)

    y, valid = reference.labels(target, logits.shape[1], criterion.ignore_index)
    scores = reference.readable_logits(leaf.detach(), valid)
    best = scores.max(1)  # several times faster than argmax; nan where a logit is
    terms_by_name = {"loss": loss.item()} | {name: term.item() for name, term in terms.items()}
    arrays = {name: value.cpu().numpy() for name, value in maps._asdict().items() if value is not None}
    if not criterion.region_weight:
        del terms_by_name["region"]
    return Arrays(
        classes=scores.shape[1],
        target=y.masked_fill(~valid, -1).cpu().numpy(),
        prediction=best.indices.masked_fill(best.values.isnan(), -1).cpu().numpy(),
        terms=terms_by_name,
        maps=arrays,
        gradient=gradient_norm(gradient).cpu().numpy(),
    )


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return the L2 norm over the classes, [B, C, *S] → [B, *S] float64."""
    # In double precision: the squares of small float32 gradients would be 0. Class by class: vector_norm is slower, and
    # a copy in double precision of all classes may not fit into memory.
    norm = torch.zeros_like(gradient[:, 0], dtype=torch.float64)
    for one in gradient.unbind(1):
        double = one.double()
        norm.addcmul_(double, double)
    return norm.sqrt_()


def compute_top_classes(
    logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None, count: int = 3
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Compute the most probable classes of each pixel; arguments as in :func:`compute_arrays`.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating.
        target: [B, H, W] or [H, W] integer.
        criterion: the loss; its ``ignore_index`` and ``upsample`` are used.
        count: T, the number of classes, at most C.

    Returns:
        The classes [T, B, H, W] in falling order of probability, first the prediction, -1 where a logit is nan; and
        their probabilities, nan where a logit is nan.
    """
    criterion, logits, target = prepare(logits, target, criterion)
    _, valid = reference.labels(target, logits.shape[1], criterion.ignore_index)
    scores = reference.readable_logits(logits.detach(), valid)
    best = scores.max(1, keepdim=True)
    first, failed = best.indices, best.values.isnan()
    classes = scores.topk(min(count, scores.shape[1]), dim=1).indices
    # topk and max may order equal values differently: put the prediction first.
    classes = torch.cat([first, classes.where(classes != first, classes[:, :1])[:, 1:]], dim=1)
    p = scores.softmax(1).gather(1, classes).masked_fill(failed, torch.nan)
    return classes.masked_fill(failed, -1).movedim(1, 0).cpu().numpy(), p.movedim(1, 0).cpu().numpy()


def prepare(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None) -> tuple[EdgeAwareLoss, Tensor, Tensor]:
    """Return a copy of the criterion for a single call, and the batch with all its axes."""
    if criterion is not None and not hasattr(criterion, "multilabel"):  # a compiled one is another class
        got = f"{type(criterion).__qualname__}; for cross-entropy pass EdgeAwareLoss(edge_weight=0, region_weight=0)"
        raise TypeError(f"criterion: expected an EdgeAwareLoss, but got {got}")
    criterion = EdgeAwareLoss() if criterion is None else copy.copy(criterion)
    if criterion.multilabel:
        raise ValueError(
            "criterion: expected a loss of classes that exclude each other, but got multilabel=True; for class c pass"
            " logits[:, c : c + 1], target[:, c] and criterion.of_class(c)"
        )
    # As in the mode of the criterion, but the edge pixels of a picture are not counted.
    criterion.edge_weight, criterion.training = criterion.options()["edge_weight"], False
    criterion.sync_normalizer = False  # one rank draws: the others would not join a collective
    if criterion.validate == "async":
        criterion.validate = "sync"  # there is no later call to report a bad label
    return criterion, *_batched(logits, target)


def _batched(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits as [B, C, H, W] and target as [B, H, W]."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits: expected a tensor, but got {hints.not_logits(logits)}")
    inputs.check_target(target)
    if logits.ndim == 5:
        raise ValueError(
            f"logits: expected 2-D images, but got a volume {list(logits.shape)}; "
            "pass a slice, such as logits[:, :, d] and target[:, d]"
        )
    if logits.ndim == 3:
        logits = logits[None]
    if target.ndim == 2:
        target = target[None]
    if logits.ndim != 4 or target.ndim != 3 or len(logits) != len(target):
        raise ValueError(
            "logits and target: expected [B, C, H, W] or [C, H, W] and [B, H, W] or [H, W], "
            f"but got {list(logits.shape)} and {list(target.shape)}"
        )
    if not logits.numel() or not target.numel():
        raise ValueError(
            f"logits and target: expected at least one pixel, but got {list(logits.shape)} and {list(target.shape)}"
        )
    return logits, target
