"""What the figures show, as NumPy arrays: everything that is computed, apart from everything that is drawn."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeloss import reference
from edgeloss.loss import EdgeAwareLoss
from edgeloss.options import radius_per_axis, spacing_per_axis


class Arrays(NamedTuple):
    """One batch of 2-D images, seen by the loss.

    Attributes:
        classes: how many classes there are; 2 for the one logit of the binary case.
        target: [B, H, W] int64, the labels; -1 on ignored pixels.
        prediction: [B, H, W] int64, the class of the largest logit; -1 where a logit is nan.
        terms: 0-d, by name: ``loss`` and what the criterion returns as its terms.
        maps: the loss maps as arrays [B, H, W], by name; ``distance`` only where the criterion has a ``decay``, and
            ``false_edge``, as among the terms, only where it has a ``false_edge_weight``.
        gradient: [B, h, w] float64, the L2 norm over the classes of the loss's gradient with respect to the logits, in
            the logits' own resolution.
    """

    classes: int
    target: npt.NDArray[np.int64]
    prediction: npt.NDArray[np.int64]
    terms: dict[str, float]
    maps: dict[str, npt.NDArray[Any]]
    gradient: npt.NDArray[np.float64]


def compute_arrays(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None) -> Arrays:
    """The prediction, the loss maps and the gradient for a batch of 2-D images.

    Half-precision logits are read as they are and differentiated in float32, so that a mean over many pixels does not
    round their gradients to 0. Works under ``no_grad`` and ``inference_mode``; nothing is written into the arguments.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating, any device.
        target: [B, H, W] or [H, W] integer, on the same device.
        criterion: the loss to look into; ``EdgeAwareLoss()`` if None. A map of ``reduction="none"`` is summed up first.

    Returns:
        Arrays, on the CPU.

    Raises:
        ValueError: a volume (pass a slice), no pixel, or other shapes than these; and whatever ``criterion`` refuses.
    """
    criterion, logits, target = _prepared(logits, target, criterion)
    with torch.inference_mode(False), torch.enable_grad():  # copies, since tensors of inference mode know no backward
        leaf = logits.detach().clone()
        leaf = (leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf).requires_grad_()
        loss, maps, terms = criterion(leaf, target.clone(), return_maps=True, return_terms=True)
        loss = loss.sum()
        (gradient,) = torch.autograd.grad(loss, leaf)

    y, valid = reference.labels(target, logits.shape[1], criterion.ignore_index)
    scores = reference.readable_logits(leaf.detach(), valid)
    told = {"loss": loss.item()} | {name: term.item() for name, term in terms.items()}
    arrays = {name: value.cpu().numpy() for name, value in maps._asdict().items() if value is not None}
    if not criterion.false_edge_weight:  # nobody looked for any
        del told["false_edge"], arrays["false_edge"]
    return Arrays(
        classes=scores.shape[1],
        target=y.masked_fill(~valid, -1).cpu().numpy(),
        prediction=scores.argmax(1).masked_fill(scores.isnan().any(1), -1).cpu().numpy(),
        terms=told,
        maps=arrays,
        # In double precision: the squares of small float32 gradients would be 0.
        gradient=torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64).cpu().numpy(),
    )


class Likely(NamedTuple):
    """The classes that a prediction holds for most probable, the first before all others.

    Attributes:
        classes: [T, B, H, W] int64; -1 where a logit is nan.
        probabilities: [T, B, H, W] float; nan there.
    """

    classes: npt.NDArray[np.int64]
    probabilities: npt.NDArray[Any]


def compute_likely(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None, count: int = 3) -> Likely:
    """The most probable classes of each pixel; arguments as in :func:`compute_arrays`.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating.
        target: [B, H, W] or [H, W] integer.
        criterion: the loss; its ``ignore_index`` and ``upsample`` count.
        count: how many classes T; fewer where there are not as many.

    Returns:
        Likely, on the CPU.
    """
    criterion, logits, target = _prepared(logits, target, criterion)
    _, valid = reference.labels(target, logits.shape[1], criterion.ignore_index)
    scores = reference.readable_logits(logits.detach(), valid)
    failed = scores.isnan().any(1, keepdim=True)
    first = scores.argmax(1, keepdim=True)
    classes = scores.topk(min(count, scores.shape[1]), dim=1).indices
    # Among equals topk and argmax may choose differently: the prediction comes first.
    classes = torch.cat([first, classes.where(classes != first, classes[:, :1])[:, 1:]], dim=1)
    p = scores.softmax(1).gather(1, classes).masked_fill(failed, torch.nan)
    return Likely(classes.masked_fill(failed, -1).movedim(1, 0).cpu().numpy(), p.movedim(1, 0).cpu().numpy())


class Neighbors(NamedTuple):
    """What the neighbours of each edge pixel add to its two terms: the T that weigh most, of all its neighbours.

    The edge pixels i, M of them, come in the order of the flattened batch.

    Attributes:
        step: [2, T, M] int64, rows down and columns right from the edge pixel; (0, 0) where there are fewer than T.
        probability: [T, M] float, p_n(y_i), what the neighbour gives to the class of the edge pixel.
        nll: [T, M] float, its part before the mean: -log p_n(y_i) on the same side, -log(1 - p_n(y_i)) on the other.
        share: [T, M] float, its part π_n of the term's gradient.
    """

    step: npt.NDArray[np.int64]
    probability: npt.NDArray[Any]
    nll: npt.NDArray[Any]
    share: npt.NDArray[Any]


def compute_neighbors(
    logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None = None, count: int = 8
) -> Neighbors:
    """Which neighbours an edge pixel's loss comes from; arguments as in :func:`compute_arrays`.

    Those come first that weigh most: weight times ``nll``, which for ``power=0`` is their part of the term.

    Args:
        logits: [B, C, H, W] or [C, H, W] floating.
        target: [B, H, W] or [H, W] integer.
        criterion: the loss; its radius, power and decay count.
        count: how many neighbours T to tell of; fewer where there are not as many.

    Returns:
        Neighbors, on the CPU.
    """
    criterion, logits, target = _prepared(logits, target, criterion)
    radius = radius_per_axis(criterion.radius, 2)
    spacing = spacing_per_axis(criterion.spacing, 2)
    y, valid = reference.labels(target, logits.shape[1], criterion.ignore_index)
    x = reference.readable_logits(logits.detach(), valid)
    mask = reference.find_edges(y, valid, radius)
    distance = None
    if criterion.decay is not None:
        near = (valid & reference.within_reach(mask, radius)).flatten().nonzero().squeeze(1)
        distance = x.new_zeros(y.numel())
        distance[near] = reference.local_distance(y, valid, near, radius, spacing).to(x.dtype)
        distance = distance.view_as(y)
    found = reference.neighbor_pairs(x, y, valid, mask, reference.log_weights(distance, criterion.decay), radius)
    with torch.inference_mode(False), torch.enable_grad():
        leaf = found.t.clone().requires_grad_()
        terms = torch.cat(reference.side_terms(found, leaf, criterion.power)).sum()
        share = -torch.autograd.grad(terms, leaf)[0]

    nll = -found.t
    p = torch.where(found.is_same, found.t.exp(), -found.t.expm1())
    weighs = (nll * found.log_w.exp()).nan_to_num(torch.inf)  # what isn't finite weighs most
    # The pairs of one edge pixel side by side, those that weigh most first; the stable sort keeps that order.
    order = weighs.argsort(descending=True)
    order = order[found.row[order].argsort(stable=True)]
    row = found.row[order]
    rank = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    order, rank = order[rank < count], rank[rank < count]
    row, n = found.row[order], found.n[order]

    width = y.shape[2]
    center = found.center[row]
    table = x.new_full((3, count, len(found.center)), torch.nan)
    table[:, rank, row] = torch.stack([p[order], nll[order], share[order].to(x.dtype)])
    step = torch.zeros(2, count, len(found.center), dtype=torch.int64, device=y.device)
    # Of one image both: the difference of the rows is that of the rows in the whole batch.
    step[:, rank, row] = torch.stack([n // width - center // width, n % width - center % width])
    probability, nll, share = table.cpu().numpy()
    return Neighbors(step.cpu().numpy(), probability, nll, share)


def _prepared(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None) -> tuple[EdgeAwareLoss, Tensor, Tensor]:
    """A criterion for one look at a batch, and the batch."""
    criterion = EdgeAwareLoss() if criterion is None else copy.copy(criterion)
    criterion.sync_normalizer = False  # a figure is one rank's affair: the others would be waited for in vain
    if criterion.validate == "async":
        criterion.validate = "sync"  # there is no next call that would tell of a bad label
    return criterion, *_batched(logits, target)


def _batched(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits as [B, C, H, W] and target as [B, H, W]."""
    if logits.ndim == 5:
        raise ValueError(
            f"expected 2-D images but got a volume, logits {list(logits.shape)}: "
            "pass a slice, such as logits[:, :, d] and target[:, d]"
        )
    if logits.ndim == 3:
        logits = logits[None]
    if target.ndim == 2:
        target = target[None]
    if logits.ndim != 4 or target.ndim != 3 or len(logits) != len(target):
        raise ValueError(
            "expected logits [B, C, H, W] or [C, H, W] and target [B, H, W] or [H, W] "
            f"but got {list(logits.shape)} and {list(target.shape)}"
        )
    if not logits.numel() or not target.numel():
        raise ValueError(
            f"expected at least one pixel but got logits {list(logits.shape)} and target {list(target.shape)}"
        )
    return logits, target
