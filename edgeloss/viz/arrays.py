"""The numbers behind the figures, as NumPy arrays."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import hints, inputs, reference
from edgeloss.functional import edge_aware_loss
from edgeloss.loss import EdgeAwareLoss
from edgeloss.options import radius_per_axis
from edgeloss.reference import LossMaps

_BAND = 2**23  # logits that are looked at together
Said = Callable[[str], None]  # takes what is being computed, such as "maps, row 512 of 4000"


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
        region: [B, h, w] float64, the same of the region term alone, with its weight; None if it has no weight.
    """

    classes: int
    target: npt.NDArray[np.int64]
    prediction: npt.NDArray[np.int64]
    terms: dict[str, float]
    maps: dict[str, npt.NDArray[Any]]
    gradient: npt.NDArray[np.float64]
    region: npt.NDArray[np.float64] | None


@dataclasses.dataclass(frozen=True)
class Scene:
    """A batch of 2-D images, and the loss to show.

    Attributes:
        criterion: a copy for a single call.
        logits: [B, C, h, w], as given.
        target: [B, H, W], as given.
        y: [B, H, W] int64, the labels; anything at ignored pixels.
        valid: [B, H, W] bool.
    """

    criterion: EdgeAwareLoss
    logits: Tensor
    target: Tensor
    y: Tensor
    valid: Tensor

    @functools.cached_property
    def _cells(self) -> Tensor:
        """The logits in float32 or float64, [B, C, h, w]; cells that no valid pixel reads are 0: 0 · nan is nan."""
        x = self.logits.detach()
        x = x if x.dtype == torch.float64 else x.float()
        if x.shape[2:] == self.y.shape[1:]:
            return x
        return torch.where(reference.cell_support(self.valid[:, None].to(x.dtype), x.shape[2:]) > 0, x, 0.0)

    def logits_of(self, rows: slice) -> Tensor:
        """Return the logits of some rows at the resolution of the target, [B, C, *, W]: all of them may be too many."""
        x, height = self._cells, self.y.shape[1]
        if x.shape[2:] == self.y.shape[1:]:
            return x[:, :, rows]
        # Bilinear: between two rows of cells here, and along the columns by torch.
        at = torch.arange(rows.start, min(rows.stop, height), device=x.device, dtype=x.dtype)
        at = ((at + 0.5) * (x.shape[2] / height) - 0.5).clamp(min=0)
        low = at.long().clamp(max=x.shape[2] - 1)
        share = (at - low)[:, None]
        between = x[:, :, low] * (1 - share) + x[:, :, (low + 1).clamp(max=x.shape[2] - 1)] * share
        return F.interpolate(between, (len(at), self.y.shape[2]), mode="bilinear", align_corners=False)

    @property
    def classes(self) -> int:
        """The number of classes, 2 for binary logits."""
        return max(2, self.logits.shape[1])

    def read(self, rows: slice) -> Tensor:
        """Return the logits of at least two classes in some rows, [B, max(2, C), *, W]."""
        return reference.readable_logits(self.logits_of(rows), self.valid[:, rows])

    def bands(self) -> list[tuple[slice, slice]]:
        """Return bands of rows, and each with the rows around it that its terms read: memory is that of one band."""
        (batch, height, width), channels = self.y.shape, self.logits.shape[1]
        # A neighbor may be a radius away, and its distance that of a label two more away.
        around = radius_per_axis(self.criterion.radius, 2)[0] * (1 if self.criterion.decay is None else 3)
        rows = max(_BAND // (batch * channels * width), 4 * around, 1)
        return [
            (slice(row, min(row + rows, height)), slice(max(row - around, 0), row + rows + around))
            for row in range(0, height, rows)
        ]


def keep_silent(text: str) -> None:
    """Report no progress."""


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
    return arrays_of(read_scene(logits, target, criterion))


def arrays_of(scene: Scene, said: Said = keep_silent) -> Arrays:
    """Return the arrays of a scene."""
    terms, gradient, region = _gradients(scene, said)
    maps = _maps(scene, said)
    for rows, _ in scene.bands():
        best = scene.read(rows).max(1)  # several times faster than argmax; nan where a logit is
        _fill(maps, "prediction", scene.y.shape, rows, best.indices.masked_fill(best.values.isnan(), -1))
    return Arrays(
        classes=scene.classes,
        target=scene.y.masked_fill(~scene.valid, -1).cpu().numpy(),
        prediction=maps.pop("prediction"),
        terms=terms,
        maps=maps,
        gradient=gradient,
        region=region,
    )


def stack_arrays(parts: Sequence[Arrays]) -> Arrays:
    """Return several images as one batch, with the terms of the first."""

    def joined(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return values[0] if len(values) == 1 else np.concatenate(values)

    first = parts[0]
    return first._replace(
        target=joined([part.target for part in parts]),
        prediction=joined([part.prediction for part in parts]),
        maps={name: joined([part.maps[name] for part in parts]) for name in first.maps},
        gradient=joined([part.gradient for part in parts]),
        region=None if first.region is None else joined([cast(Any, part.region) for part in parts]),
    )


def _gradients(
    scene: Scene, said: Said
) -> tuple[dict[str, float], npt.NDArray[np.float64], npt.NDArray[np.float64] | None]:
    """Return the loss with its terms, and the size of its gradient and of that of its region term."""
    total = copy.copy(scene.criterion)
    if total.reduction == "none":
        total.reduction = "sum"
    region = copy.copy(total)
    region.ce_weight = region.edge_weight = region.edge_focus = 0.0

    def differentiate(criterion: EdgeAwareLoss, *, terms: bool) -> tuple[dict[str, float], npt.NDArray[np.float64]]:
        with torch.inference_mode(False), torch.enable_grad():  # on copies: inference tensors have no backward
            leaf = scene.logits.detach().clone()
            leaf = (leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf).requires_grad_()
            result = criterion(leaf, scene.target.clone(), return_terms=terms)
            loss, named = cast("tuple[Tensor, dict[str, Tensor]]", result if terms else (result, {}))
            (gradient,) = torch.autograd.grad(loss, leaf)
        values = {"loss": loss.item()} | {name: term.item() for name, term in named.items()}
        return values, gradient_norm(gradient).cpu().numpy()

    said("gradient")
    terms, gradient = differentiate(total, terms=True)
    if not total.region_weight:
        del terms["region"]
        return terms, gradient, None
    said("gradient of the region term")
    return terms, gradient, differentiate(region, terms=False)[1]


def _maps(scene: Scene, said: Said) -> dict[str, npt.NDArray[Any]]:
    """Return the loss maps by name."""
    options = scene.criterion.options() | {"reduction": "sum", "region_weight": 0.0, "validate": "never"}
    whole: dict[str, npt.NDArray[Any]] = {}
    for rows, around in scene.bands():
        said(f"maps, row {rows.start} of {scene.y.shape[1]}")
        with torch.no_grad():
            result = edge_aware_loss(scene.logits_of(around), scene.target[:, around], **options, return_maps=True)
        own = slice(rows.start - around.start, rows.stop - around.start)
        for name, values in cast("tuple[Tensor, LossMaps]", result)[1]._asdict().items():
            if values is not None:
                _fill(whole, name, scene.y.shape, rows, values[:, own])
    return whole


def _fill(whole: dict[str, npt.NDArray[Any]], name: str, shape: Sequence[int], rows: slice, values: Tensor) -> None:
    """Store some rows of an array, along its last axis but one; the first rows create it."""
    array = values.cpu().numpy()
    whole.setdefault(name, np.empty((*array.shape[:-2], *shape[-2:]), array.dtype))[..., rows, :] = array


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return the L2 norm over the classes, [B, C, *S] → [B, *S] float64."""
    # In double precision: the squares of small float32 gradients would be 0. Class by class: vector_norm is slower, and
    # a copy in double precision of all classes may not fit into memory.
    norm = torch.zeros_like(gradient[:, 0], dtype=torch.float64)
    for one in gradient.unbind(1):
        double = one.double()
        norm.addcmul_(double, double)
    return norm.sqrt_()


def top_classes(scene: Scene, count: int = 3) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return the most probable classes of each pixel.

    Args:
        scene: the images.
        count: T, the number of classes, at most C.

    Returns:
        The classes [T, B, H, W] in falling order of probability, first the prediction, -1 where a logit is nan; and
        their probabilities, nan where a logit is nan.
    """
    whole: dict[str, npt.NDArray[Any]] = {}
    for rows, _ in scene.bands():
        scores = scene.read(rows).detach()
        best = scores.max(1, keepdim=True)
        first, failed = best.indices, best.values.isnan()
        classes = scores.topk(min(count, scores.shape[1]), dim=1).indices
        # topk and max may order equal values differently: put the prediction first.
        classes = torch.cat([first, classes.where(classes != first, classes[:, :1])[:, 1:]], dim=1)
        p = (scores.gather(1, classes) - scores.logsumexp(1, keepdim=True)).exp().masked_fill(failed, torch.nan)
        _fill(whole, "classes", scene.y.shape, rows, classes.masked_fill(failed, -1).to(torch.int32).movedim(1, 0))
        _fill(whole, "probabilities", scene.y.shape, rows, p.movedim(1, 0))
    return whole["classes"], whole["probabilities"]


def read_scene(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None) -> Scene:
    """Check the arguments of :func:`compute_arrays`, and return what all computations read."""
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
    logits, target = batched(logits, target)
    y, valid = reference.labels(target, logits.shape[1], criterion.ignore_index)
    sizes = list(zip(logits.shape[2:], target.shape[1:], strict=True))
    if any(given != wanted if not criterion.upsample else given > wanted for given, wanted in sizes):
        criterion(logits, target)  # raises
    return Scene(criterion, logits, target, y, valid)


def batched(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
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
