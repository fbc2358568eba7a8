"""Logits and labels → the numbers of a figure: prediction, maps, gradients, scores, and what a report adds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import _call
from edgeloss import _reduction as reduction
from edgeloss._checks import inputs
from edgeloss._checks.options import SUMMANDS, Options
from edgeloss._reference import terms as reference
from edgeloss._reference.interpolate import cell_support
from edgeloss.fields import boundary_distance
from edgeloss.loss import EdgeAwareLoss
from edgeloss.viz.neighbors import find_neighbors
from edgeloss.viz.scores import Scores, compute_scores

LARGE = 2**21  # pixels of a picture of which less is computed and stored
_BAND = 2**22  # logits that are looked at together: malloc reuses blocks of up to 32 MB
_PAIRS = 2**18  # edge pixels and neighbors that are looked at together
_TOP = 3  # most probable classes of a pixel
_NEIGHBORS = 8  # per edge pixel
_OF_NEIGHBORS = "step", "nll", "share"  # arrays of :class:`Details` with a column per edge pixel
_MAX_PAIRS = 1_500_000  # neighbors in total: fewer per edge pixel if there are very many edge pixels
_FAR = 100.0, 25.0  # pixels; exact distances beyond it, in large pictures the latter, would take most of the time
Said = Callable[[str], None]  # takes what is being computed, such as "maps, row 512 of 4000"


class Details(NamedTuple):
    """What a report shows of a pixel besides the maps.

    R is at most 3, or the number of classes. The M edge pixels are in the order of the flattened batch; they have the T
    neighbors that contribute most to their two edge terms.

    Attributes:
        others: [R - 1, B, H, W] integer, the classes that are the most probable after the prediction, in falling order;
            -1 where a logit is nan, or for a class of probability 0.
        probabilities: [R, B, H, W], of the prediction and of the others; nan where a logit is nan.
        step: [2, T, M] int16, rows down and columns right from an edge pixel i to a neighbor n; (0, 0) if it has fewer.
        nll: [T, M], the neighbor's loss: -log p_n(y_i) on the same side, -log(1 - p_n(y_i)) on the other, of its
            probability of the class of the edge pixel.
        share: [T, M], π_n, the neighbor's share of the gradient of the term.
    """

    others: npt.NDArray[np.signedinteger[Any]]
    probabilities: npt.NDArray[Any]
    step: npt.NDArray[np.int16]
    nll: npt.NDArray[Any]
    share: npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Arrays:
    """The loss of a batch of 2-D images, pixel by pixel.

    Attributes:
        classes: the number of classes, 2 for binary logits.
        target: [B, H, W] int32, the labels; -1 at ignored pixels.
        prediction: [B, H, W] int32, the class of the largest logit; -1 where a logit is nan.
        terms: ``loss`` and the terms that the criterion returns, by name; ``region`` only if it has a weight.
        maps: the loss maps [B, H, W], by name, before class weights and focus; ``distance`` only if the criterion has a
            ``decay``. The term ``region`` has no map. Those of a report without a decay have ``pixel_distance``, to the
            nearest other label, inf beyond ``_FAR``.
        edge_shares: [B, C] float64, the share of the edge terms of an image in the loss that is of the edge pixels of a
            class, u n Φ(t); nan for images without an edge.
        gradient: [B, h, w] float64, the gradient of the loss with respect to the logits, as its L2 norm over the
            classes, in the resolution of the logits.
        region: [B, h, w] float64, the same of the region term alone, with its weight; None if it has no weight.
        details: those of a report; None for other figures.
    """

    classes: int
    target: npt.NDArray[np.int32]
    prediction: npt.NDArray[np.int32]
    terms: dict[str, float]
    maps: dict[str, npt.NDArray[Any]]
    edge_shares: npt.NDArray[np.float64]
    gradient: npt.NDArray[np.float64]
    region: npt.NDArray[np.float64] | None
    details: Details | None = None

    @functools.cached_property
    def scores(self) -> Scores:
        """The scores of the prediction."""
        return compute_scores(self.target, self.prediction, self.classes)

    @property
    def figures(self) -> dict[str, float]:
        """The terms of the loss and the scores, by key of :data:`edgeloss.viz.scores.FIGURES`."""
        return self.terms | self.scores.means


@dataclasses.dataclass(frozen=True)
class Scene:
    """A batch of 2-D images, and the loss to show.

    Attributes:
        options: of a single call.
        given: the class weights of that call.
        inputs: the checked tensors: logits [B, C, h, w] and target [B, H, W], as given.
        y: [B, H, W] int64, the labels; anything at ignored pixels.
        valid: [B, H, W] bool.
    """

    options: Options
    given: inputs.Given
    inputs: inputs.Inputs
    y: Tensor
    valid: Tensor

    @functools.cached_property
    def cells(self) -> Tensor:
        """The logits in float32 or float64, [B, C, h, w]; cells that no valid pixel reads are 0: 0 · nan is nan."""
        x = self.inputs.logits.detach()
        x = x if x.dtype == torch.float64 else x.float()
        if x.shape[2:] == self.y.shape[1:]:
            return x
        return torch.where(cell_support(self.valid[:, None].to(x.dtype), x.shape[2:]) > 0, x, 0.0)

    def logits_of(self, rows: slice) -> Tensor:
        """Return the logits of some rows at the resolution of the target, [B, C, *, W]: all of them may be too many."""
        x, height = self.cells, self.y.shape[1]
        if x.shape[2:] == self.y.shape[1:]:
            return x[:, :, rows]
        # Bilinear: between two rows of cells here, and along the columns by torch.
        at = torch.arange(rows.start, min(rows.stop, height), device=x.device, dtype=x.dtype)
        at = ((at + 0.5) * (x.shape[2] / height) - 0.5).clamp(min=0)
        low = at.long().clamp(max=x.shape[2] - 1)
        share = (at - low)[:, None]
        between = x[:, :, low] * (1 - share) + x[:, :, (low + 1).clamp(max=x.shape[2] - 1)] * share
        along = F.interpolate(between.flatten(0, 1), self.y.shape[2], mode="linear", align_corners=False)
        return along.view(*x.shape[:2], *along.shape[1:])

    def labels(self) -> npt.NDArray[np.int32]:
        """Return the labels [B, H, W], -1 at ignored pixels."""
        return self.y.to(torch.int32).masked_fill_(~self.valid, -1).cpu().numpy()

    def bands(self) -> list[tuple[slice, slice]]:
        """Return bands of rows, and each with the rows around it that its terms read: memory is that of one band."""
        (batch, height, width), channels = self.y.shape, self.inputs.logits.shape[1]
        around, spacing = self.inputs.radius[0], self.inputs.spacing
        if self.options.decay is not None:  # a neighbor may be a radius away, and its distance this long
            lengths = (2 * r * s for r, s in zip(self.inputs.radius, spacing, strict=True))
            around += int(math.hypot(*lengths) / spacing[0])
        rows = max(_BAND // (batch * channels * width), 4 * around, 1)
        return [
            (slice(row, min(row + rows, height)), slice(max(row - around, 0), row + rows + around))
            for row in range(0, height, rows)
        ]


def keep_silent(text: str) -> None:
    """Report no progress."""


@contextlib.contextmanager
def workers() -> Iterator[Executor]:
    """Yield as many threads as torch uses, each of which runs its operators by itself."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)  # of threads that are started from now on; that of this one has not changed


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
    return examine(read_scene(logits, target, criterion))


def examine_images(
    logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None, *, details: bool, said: Said = keep_silent
) -> list[Arrays]:
    """Compute the arrays of the images of a batch, each as a batch of its own.

    Args:
        logits: as of :func:`compute_arrays`.
        target: as of :func:`compute_arrays`.
        criterion: the loss; ``EdgeAwareLoss()`` if None.
        details: add those of a report.
        said: is called with what is being computed.
    """
    logits, target = batched(logits, target)
    check_labels(read_scene(logits, target, criterion))  # of all images, so that an error names the one
    count, pairs = _NEIGHBORS * details, _MAX_PAIRS // len(target)
    return [
        examine(read_scene(x[None], y[None], criterion), said, neighbors=count, most_pairs=pairs)
        for x, y in zip(logits, target, strict=True)
    ]


def examine(scene: Scene, said: Said = keep_silent, *, neighbors: int = 0, most_pairs: int = 2**62) -> Arrays:
    """Return the arrays of a scene, with the details if ``neighbors`` are asked for.

    Args:
        scene: the images.
        said: is called with what is being computed.
        neighbors: how many to find of each edge pixel.
        most_pairs: how many to return of all together; but at least one of each edge pixel.
    """
    labels = scene.labels()
    terms, edge_shares, gradient, region = _evaluate(scene, said)
    scene.cells  # noqa: B018, which several threads would compute at once
    whole: dict[str, npt.NDArray[Any]] = {}

    def fill(band: tuple[slice, slice]) -> dict[str, npt.NDArray[Any]]:
        values = _examine_band(scene, band, neighbors)
        for name in [name for name in values if name not in _OF_NEIGHBORS]:
            part = values.pop(name)
            if name not in whole:  # of several threads, one stores its array: np.empty writes nothing
                whole.setdefault(name, np.empty((*part.shape[:-2], *scene.y.shape[1:]), part.dtype))
            whole[name][..., band[0], :] = part
        return values

    distance, near = None, []
    with workers() as pool:
        if neighbors and scene.options.decay is None:
            far = _FAR[labels.size > LARGE]
            distance = pool.submit(boundary_distance, labels, ignore_index=-1, max_distance=far)
        for (rows, _), found in zip(scene.bands(), pool.map(fill, scene.bands()), strict=True):
            said(f"maps, row {rows.stop} of {scene.y.shape[1]}")
            near.append(found)
    if distance is not None:
        whole["pixel_distance"] = distance.result()
    details = None
    if neighbors:
        whole |= {name: np.concatenate([part[name] for part in near], -1) for name in _OF_NEIGHBORS}
        count = max(most_pairs // max(whole["nll"].shape[1], 1), 1)
        whole |= {name: whole[name][..., :count, :] for name in _OF_NEIGHBORS}
        details = Details(*map(whole.pop, Details._fields))
    return Arrays(
        classes=max(2, scene.inputs.logits.shape[1]),
        target=labels,
        prediction=whole.pop("prediction"),
        terms=terms,
        maps=whole,
        edge_shares=edge_shares,
        gradient=gradient,
        region=region,
        details=details,
    )


@torch.no_grad()
def _examine_band(scene: Scene, band: tuple[slice, slice], neighbors: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a band of rows by name, with the neighbors of its edge pixels if they are asked for."""
    rows, around = band
    own = slice(rows.start - around.start, rows.stop - around.start)
    given = scene.inputs._replace(logits=scene.logits_of(around), target=scene.inputs.target[:, around])
    take = functools.partial(find_neighbors, power=scene.options.power, count=neighbors, width=given.target.shape[2])
    x, maps, near = reference.evaluate_maps(inputs.Call(given, scene.options), own, take, _PAIRS)
    values = {name: torch.cat([part[name] for part in near], -1) for name in near[0]}
    values |= {name: part for name, part in maps._asdict().items() if part is not None}
    prediction = x.max(1)
    values["prediction"] = prediction.indices.to(torch.int32).masked_fill_(prediction.values.isnan(), -1)
    if neighbors:
        values["others"], values["probabilities"] = _most_probable(x, prediction.indices)
    return {name: part.cpu().numpy() for name, part in values.items()}


def stack_arrays(parts: Sequence[Arrays]) -> Arrays:
    """Return several images as one batch, with the terms of the first and without details."""
    first, *others = parts
    if not others:
        return first
    names = ["target", "prediction", "edge_shares", "gradient", *(["region"] if first.region is not None else [])]
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    maps = {name: np.concatenate([part.maps[name] for part in parts]) for name in first.maps}
    return dataclasses.replace(first, maps=maps, details=None, **joined)


def _evaluate(
    scene: Scene, said: Said
) -> tuple[dict[str, float], npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64] | None]:
    """Return the terms of the loss, the shares of its edge terms, and the size of its gradient and of the regions'."""
    options = scene.options
    with torch.inference_mode(False), torch.enable_grad():  # on copies: inference tensors have no backward
        leaf, target = scene.inputs.logits.detach().clone(), scene.inputs.target.clone()
        leaf = (leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf).requires_grad_()
        said("gradient")
        result, call = _call.evaluate(leaf, target, options, scene.given, with_terms=True)
        terms = {name: value.item() for name, value in ({"loss": result.loss} | result.terms()).items()}
        shares = _edge_shares(result.sums, call)
        (gradient,) = torch.autograd.grad(result.loss, leaf)
        size = gradient_norm(gradient).cpu().numpy()
        if not options.region_weight:
            del terms["region"]
            return terms, shares, size, None
        del gradient, result
        said("gradient of the region term")
        others: dict[str, Any] = {weight: 0.0 for name, weight in SUMMANDS.items() if name != "region"}
        alone = dataclasses.replace(options, **others)
        result, _ = _call.evaluate(leaf, target, alone, scene.given)
        (gradient,) = torch.autograd.grad(result.loss, leaf)
        return terms, shares, size, gradient_norm(gradient).cpu().numpy()


def _edge_shares(sums: reduction.Sums, call: inputs.Call) -> npt.NDArray[np.float64]:
    combined = reduction.combine(sums, call, None)
    weight = reduction.weigh(sums.edges[reduction.EdgeRow.WEIGHT], combined.u)
    by_class = reduction.weigh(combined.focused, weight).detach().double()
    return (by_class / by_class.sum(1, keepdim=True)).cpu().numpy()


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return the L2 norm over the classes, [B, C, *S] → [B, *S] float64."""
    # In double precision: the squares of small float32 gradients would be 0. Class by class: vector_norm is slower, and
    # a copy in double precision of all classes may not fit into memory.
    norm = torch.zeros_like(gradient[:, 0], dtype=torch.float64)
    for one in gradient.unbind(1):
        double = one.double()
        norm.addcmul_(double, double)
    return norm.sqrt_()


def _most_probable(x: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable classes after the prediction, and the probabilities of all, of logits [B, C, H, W].

    A class is -1 where a logit is nan, or for a probability of 0; of equal logits, the first one comes first.
    """
    left, classes = x.clone(), [prediction[:, None]]
    for _ in range(min(_TOP, x.shape[1]) - 1):
        left.scatter_(1, classes[-1], -torch.inf)
        classes.append(left.max(1, keepdim=True).indices)
    found = torch.cat(classes, 1)
    probabilities = x.softmax(1).gather(1, found)
    dtype = torch.int16 if x.shape[1] < 2**15 else torch.int32
    absent = x.gather(1, found[:, :1]).isnan() | (probabilities == 0)
    others = found.to(dtype).masked_fill_(absent, -1)[:, 1:]
    return others.movedim(1, 0), probabilities.movedim(1, 0)


def read_scene(logits: Tensor, target: Tensor, criterion: EdgeAwareLoss | None) -> Scene:
    """Check the arguments of :func:`compute_arrays`, and return what all computations read."""
    if criterion is not None and not hasattr(criterion, "multilabel"):  # a compiled one is another class
        got = f"{type(criterion).__qualname__}; for cross-entropy pass EdgeAwareLoss(edge_weight=0, region_weight=0)"
        raise TypeError(f"criterion: expected an EdgeAwareLoss, but got {got}")
    criterion = EdgeAwareLoss() if criterion is None else criterion
    if criterion.multilabel:
        raise ValueError(
            "criterion: expected a loss of classes that exclude each other, but got multilabel=True; for class c pass"
            " logits[:, c : c + 1], target[:, c] and criterion.of_class(c)"
        )
    options = dataclasses.replace(
        Options.from_attributes(criterion),
        reduction="sum" if criterion.reduction == "none" else criterion.reduction,
        sync_normalizer=False,  # one rank draws: the others would not join a collective
        validate="sync" if criterion.validate == "async" else criterion.validate,  # no later call reports a bad label
    )
    logits, target = batched(logits, target)
    given = inputs.Given(criterion.weight, criterion.edge_class_weight)
    checked = inputs.check_inputs(logits, target, options, given)
    return Scene(options, given, checked, *checked.labels())


def check_labels(scene: Scene) -> None:
    """Raise the error of the loss for labels out of range."""
    if scene.options.validate != "never":
        inputs.check_labels_of(scene.inputs, scene.options)


def batched(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits as [B, C, H, W] and target as [B, H, W]."""
    inputs.check_tensor("logits", logits, "a tensor")
    inputs.check_target(target)
    logits = logits[None] if logits.ndim == 3 else logits
    target = target[None] if target.ndim == 2 else target
    if logits.ndim != 4 or not logits.numel() or not target.numel():
        raise ValueError(
            "logits and target: expected 2-D images of at least one pixel, [B, C, H, W] or [C, H, W] and [B, H, W] or"
            f" [H, W], but got {list(logits.shape)} and {list(target.shape)}; of a volume pass a slice, such as"
            " logits[:, :, d] and target[:, d]"
        )
    inputs.check_pair(logits, target, upsample=True)  # a criterion without it checks the sizes again
    return logits, target
