r"""From the sums of the terms to the loss, its maps and its figures: a function of one call.

Symbols are those of :mod:`edgeloss._reference.terms`: v = ``pixel_weight``, u = ``edge_class_weight``, b an image and c
a class. Classes are C, or the labels 0 and 1 of each class of a multilabel call, 2C.

    n_bc = Σ v_i over i in E_b with y_i = c            the edge pixels of a class in an image
    t_bc = Σ v_i edge_i / n_bc                         its mean edge term
    u_c ∝ 1 / (n_c + 0.05 Σ n / C), Σ u n = Σ n        the balance, of n_c = Σ_b n_bc, where u is not given
    ε(t) = 1 - e^(-t/λ),  λ = λ_o + λ_s                a mean share of error
    t_0 = λ_o log(C/(C-1)) + λ_s log C,  ε_0 = ε(t_0)  those of a uniform prediction
    Φ(t) = ∫_0^t min(1, ε(s)/ε_0)^γ ds                 the focus, γ = ``edge_focus``

    loss = λ_CE Σ v CE / W + λ_E Σ_bc u_c n_bc Φ(t_bc) / Σ_c u_c n_c + λ_R Σ_b W_b R_b / W

The kernels have this formula once more each, in csrc/cpu/sums.cpp and edgeloss/_kernels/triton/sums.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from edgeloss._checks.inputs import LEAST_NORMALIZER, Call, Inputs, check_that, may_read, result_dtype, widest
from edgeloss._checks.options import SUMMANDS, TERMS, Options

PRIOR = 0.05  # of the balance, as a share of the mean number of edge pixels of a class
NODES = 28  # of the quadrature of Φ: exact to roundings for γ up to 32 with 1,000 classes


class SumRow(IntEnum):
    """The rows of the sums over a batch, in the order in which the kernels return them."""

    CROSS_ENTROPY = 0  # Σ v · CE
    WEIGHT = 1  # W = Σ_valid v · weight[y]
    VALID = 2  # the number of valid pixels
    EDGES = 3  # |E|
    WRONG = 4  # the number of labels out of range; of the kernels only


class EdgeRow(IntEnum):
    """The rows of the sums over the edge pixels of a class in an image."""

    WEIGHT = 0  # n = Σ v
    SAME_SIDE = 1  # Σ v · S
    OTHER_SIDE = 2  # Σ v · O


class Value(IntEnum):
    """The places of what ``return_terms`` returns, by the lower-case name, in the vector that the kernels return."""

    CROSS_ENTROPY = 0
    SAME_SIDE = 1
    OTHER_SIDE = 2
    EDGE = 3
    REGION = 4
    EDGE_FRACTION = 5
    EDGE_FOCUSED = 6
    EDGE_FOCUS = 7


VALUES = tuple(value.name.lower() for value in Value)


class LossMaps(NamedTuple):
    """The terms of the loss per pixel, before any reduction, ``ce_weight`` or ``edge_weight``.

    Those of a multilabel loss are [B, C, *S].

    Attributes:
        cross_entropy: [B, *S] float, with class weights and label smoothing; 0 on ignored pixels.
        same_side: [B, *S] float, ≥ 0; 0 off the edge mask, and where an edge pixel has no neighbor of its own class.
        other_side: [B, *S] float, ≥ 0; 0 off the edge mask.
        edge: [B, *S] float, ``other_side_weight * other_side + same_side_weight * same_side``.
        edge_mask: [B, *S] bool, the pixels with a valid neighbor of another class.
        distance: [B, *S] float, distance to the nearest valid pixel of another class, in pixels or units of
            ``spacing``; inf on ignored pixels, and beyond the search window, 2 ‖radius · spacing‖ with a radius that
            ends with the image. A user-supplied field is returned as it is. None without ``decay``.
    """

    cross_entropy: Tensor
    same_side: Tensor
    other_side: Tensor
    edge: Tensor
    edge_mask: Tensor
    distance: Tensor | None


class Regions(NamedTuple):
    """The region term of a batch.

    Attributes:
        value: R of each image [B], differentiable.
        weight: Σ_valid v · weight[y] of each image [B], which add up to W.
    """

    value: Tensor
    weight: Tensor


class Kernels(Protocol):
    """A call of the kernels, which has its own derivative."""

    def reduce(self, normalizer: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss, 0-d, and its figures, a place for each :class:`Value`."""

    def attach(self, loss: Tensor, combined: Combined, edges: Places, of_region: Tensor | None) -> Tensor:
        """Make a map of the loss a function of the logits; ``of_region`` is the factor of R at each pixel."""


class Sums(NamedTuple):
    """What a backend returns of a call.

    Attributes:
        batch: a row for each :class:`SumRow`, of the reference but ``WRONG``, in float64 where the device has it.
        edges: [3, B, C], a row for each :class:`EdgeRow`; of a multilabel call [3, B, 2C].
        maps: None unless asked for.
        regions: None where the region term has no weight.
        kernels: the call, whose sums have no derivative; None if all is differentiable.
    """

    batch: Tensor
    edges: Tensor
    maps: LossMaps | None
    regions: Regions | None = None
    kernels: Kernels | None = None

    def rows_of(self, term: str) -> tuple[Tensor, slice]:
        """Return the tensor that has the sums of a term, and which rows of it they are."""
        if term == "region" and self.regions is not None:
            return self.regions.value, slice(None)
        of, row = (self.batch, SumRow) if term == "cross_entropy" else (self.edges, EdgeRow)
        return of, slice(row[term.upper()], row[term.upper()] + 1)


class Combined(NamedTuple):
    """The loss of sums, and what the loss of a pixel takes from them.

    Attributes:
        loss: 0-d.
        values: what ``return_terms`` returns, 0-d each.
        u: the class weights [C], or [2C]; None for ones.
        t: the mean edge terms [B, C], or [B, 2C].
        focused: Φ(t), as t.
        slope: φ(t), as t, detached.
    """

    loss: Tensor
    values: dict[str, Tensor]
    u: Tensor | None
    t: Tensor
    focused: Tensor
    slope: Tensor


class LossResult(NamedTuple):
    """The loss of a call, and what it was made of.

    Attributes:
        loss: 0-d, or a map in the shape of the target.
        names: of the values.
        values: a vector, detached: what ``return_terms`` returns.
        sums: what the backend returned.
    """

    loss: Tensor
    names: Sequence[str]
    values: Tensor
    sums: Sums

    def terms(self) -> dict[str, Tensor]:
        """Return the values by name, in the dtype of the loss; 0 for a term that has no weight and no kernels."""
        values = self.values.to(self.loss.dtype)
        lacking = {term.name: values.new_zeros(()) for term in TERMS if term.name not in self.names}
        return dict(zip(self.names, values.unbind(), strict=True)) | lacking


Number = TypeVar("Number", Tensor, float)


def reduce(sums: Sums, call: Call) -> LossResult:
    """Return the loss of sums, and its figures."""
    inputs, options, kernels = call.inputs, call.options, sums.kernels
    normalizer = shared_normalizer(sums, call)
    if kernels is not None and options.reduction != "none":
        if normalizer is not None:
            check_normalizer(sums, call, normalizer)
        loss, values = kernels.reduce(normalizer)
        return LossResult(loss, VALUES, values, sums)
    combined = combine(sums, call, normalizer)
    loss = combined.loss
    if options.reduction == "none" and sums.maps is not None:
        y, valid = inputs.labels()
        edges = Places(y, sums.maps.edge_mask, combined.t.shape[1] // inputs.tables)
        of_region = None
        if sums.regions is not None:
            of_region = options.region_weight * weights_of_pixels(inputs, y, valid).to(result_dtype(inputs.logits))
        loss = total_map(sums, call, combined, edges, of_region)
        if kernels is not None:
            loss = kernels.attach(loss, combined, edges, of_region)
        loss = inputs.as_given(loss)
    values = torch.stack([*combined.values.values()]).detach()
    return LossResult(loss.to(result_dtype(inputs.logits)), tuple(combined.values), values, sums)


# ----------------------------------------------------------------------------------------------------- the loss of sums


def combine(sums: Sums, call: Call, normalizer: Tensor | None) -> Combined:
    """Return the loss of sums; ``normalizer`` is W and n, or W and E, and None for those of the call."""
    (of_batch, of_edges, _, regions, _), (inputs, options, *_) = sums, call
    n, same_side, other_side = of_edges.unbind()
    own = torch.cat([of_batch[SumRow.WEIGHT, None], n.sum(0)])
    w, *_ = divisors = own if normalizer is None else normalizer
    is_scalar = len(divisors) == 2  # W and E: there are two classes at least
    u = balance(divisors[1:]) if inputs.is_balanced and not is_scalar else inputs.edge_class_weight
    u = None if u is None else u.to(n)
    e = divisors[1] if is_scalar else weigh(divisors[1:], u).sum()
    if normalizer is not None:
        check_normalizer(sums, call, normalizer)
    # A smaller denominator counts as 0: a weight divided by it would leave float32.
    w, e = (torch.where(total < LEAST_NORMALIZER, 0.0, total) for total in (w, e))
    edge, by_class = edge_term(other_side, same_side, options), weigh(n, u)
    # Select before any arithmetic: the terms of a class without weight may be infinite.
    t = ratio(torch.where(by_class > 0, edge, 0.0), n)
    focused, slope = focus(t, options, 2 if inputs.tables > 1 or n.shape[1] == 2 else n.shape[1])
    mean_phi = ratio((slope * by_class).sum(), e)
    if options.reduction == "sum":
        w, e = torch.ones_like(w), torch.ones_like(e)
    of_regions = torch.zeros_like(w) if regions is None else torch.dot(regions.value, regions.weight)
    values = {
        "cross_entropy": ratio(of_batch[SumRow.CROSS_ENTROPY], w),
        "same_side": ratio(weigh(same_side, u).sum(), e),
        "other_side": ratio(weigh(other_side, u).sum(), e),
        "edge": ratio(weigh(edge, u).sum(), e),
        "region": ratio(of_regions, w),
        "edge_fraction": ratio(of_batch[SumRow.EDGES], of_batch[SumRow.VALID]),
        "edge_focused": ratio(weigh(focused, by_class).sum(), e),
        "edge_focus": mean_phi,
    }
    loss = _combine(*((getattr(options, weight), values[name]) for name, weight in SUMMANDS.items()))
    return Combined(loss, values, u, t, focused, slope)


def balance(n: Tensor) -> Tensor:
    """Return u ∝ 1 / (n + prior) of the edge pixels n of each class [C], with a mean of 1 over all of them."""
    total = n.sum()
    u = ratio(torch.ones_like(n), n + PRIOR * total / len(n))
    return u * ratio(total, torch.dot(u, n))


def focus(t: Tensor, options: Options, classes: int) -> tuple[Tensor, Tensor]:
    """Return Φ(t) and its slope φ(t) = min(1, ε/ε_0)^γ; only Φ is differentiable."""
    gamma, scale = options.edge_focus, options.other_side_weight + options.same_side_weight
    if not gamma or not scale:
        return t, torch.ones_like(t)
    t_0 = uniform_edge_term(classes, options)

    def slope(s: Tensor) -> Tensor:
        return (torch.expm1(-s / scale) / math.expm1(-t_0 / scale)).clamp(max=1.0) ** gamma

    # By quadrature up to t_0, and linear beyond. Of t = 0 the power may have an infinite slope, which is not to be
    # multiplied by 0.
    is_linear, is_zero = t > t_0, t <= 0
    inner = torch.where(is_linear | is_zero, t_0, t)
    # Kept from call to call, but in graphs and of fake tensors: to copy them waits, and CUDA graphs can't hold a copy.
    is_kept = type(t) is Tensor and not torch.compiler.is_compiling()
    nodes, weights = (_kept_nodes if is_kept else _node_tensors)(gamma, t.dtype, t.device)
    area = inner * (slope(inner[..., None] * nodes) * weights).sum(-1)
    value = torch.where(is_zero, 0.0, area + torch.where(is_linear, t - t_0, 0.0))
    return value, slope(t.detach().clamp(min=0.0))


def focus_nodes(gamma: float) -> tuple[list[float], list[float]]:
    """Return x_j and w_j with Φ(t) = t Σ_j w_j φ(t x_j) for t ≤ t_0.

    With x = z^p, φ(t x) dx is like z^(p γ + p - 1) dz near 0: for p = (12 + γ/2) / (γ + 1) like z^(11 + γ/2) dz, which
    the nodes z of Gauss and Legendre integrate. A smaller p of a large γ would crowd them where φ is flat.
    """
    return _powers(gamma) if torch.compiler.is_compiling() else _cached_powers(gamma)


def _powers(gamma: float) -> tuple[list[float], list[float]]:
    p = (12 + gamma / 2) / (gamma + 1)
    return [z**p for z, _ in _GAUSS], [w * p * z ** (p - 1) for z, w in _GAUSS]


def _node_tensors(gamma: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = (torch.tensor(x, dtype=dtype, device=device) for x in focus_nodes(gamma))
    return nodes, weights


@lru_cache(maxsize=64)
def _kept_nodes(gamma: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # autograd may save them
        return _node_tensors(gamma, dtype, device)


_GAUSS = [(float(1 + z) / 2, float(w) / 2) for z, w in zip(*np.polynomial.legendre.leggauss(NODES), strict=True)]
_cached_powers = lru_cache(maxsize=64)(_powers)


def uniform_edge_term(classes: int, options: Options) -> float:
    """Return t_0, the edge term of a uniform prediction of C ≥ 2 classes."""
    return edge_term(-math.log1p(-1 / classes), math.log(classes), options)


# ----------------------------------------------------------------------------------------------------- the denominators


def shared_normalizer(sums: Sums, call: Call) -> Tensor | None:
    """Return the W and n, or W and E, that the loss divides by, in a vector; None for those of the call.

    With ``sync_normalizer`` they are the mean over the ranks: DDP averages the gradients of the ranks, and Σ / (global
    denominator / world size) gives that of the whole batch. Without a gradient there is nothing to average, and no rank
    waits for others.
    """
    inputs, options = call.inputs, call.options
    is_shared = options.sync_normalizer and options.reduction != "sum" and torch.is_grad_enabled()
    is_shared = is_shared and dist.is_available() and dist.is_initialized()
    if inputs.normalizer is None and not is_shared:
        return None
    own = sums.batch[SumRow.WEIGHT], sums.edges[EdgeRow.WEIGHT].sum(0)
    w, n = own if inputs.normalizer is None else inputs.normalizer
    total = torch.cat([w.view(1), n.view(-1)]).to(sums.batch)
    if is_shared:
        total = total.detach().clone()
        dist.all_reduce(total)
        total = total / dist.get_world_size()
    return total


def check_normalizer(sums: Sums, call: Call, normalizer: Tensor) -> None:
    """Raise an error where a user-supplied denominator of a term is 0 and that of the call is not."""
    inputs, options, w, n = call.inputs, call.options, normalizer[0], normalizer[1:]
    if torch.compiler.is_compiling() or type(w) is not Tensor or inputs.normalizer is None:
        return
    if options.reduction == "sum" or options.validate == "never" or not may_read(w, options.validate):
        return
    expected = (
        "normalizer: expected that of all labels of the step, but got {} = 0 for a call with {}; pass the sums of"
    )
    expected += " functional.normalizers over the calls of the step"
    if options.ce_weight or options.region_weight:
        check_that((w > 0) | (sums.batch[SumRow.WEIGHT] == 0), expected.format("W", "valid pixels"))
    if options.edge_weight:
        u = inputs.edge_class_weight
        own = weigh(sums.edges[EdgeRow.WEIGHT].sum(0), u if u is None else u.to(n))
        if len(n) > 1:
            check_that(((n > 0) | (own == 0)).all(), expected.format("n", "edges of that class"))
        else:
            check_that((n[0] > 0) | (own.sum() == 0), expected.format("E", "edges"))


def places_of_labels(y: Tensor, tables: int) -> Tensor:
    """Return where class weights have the one of each label [B, *S]: at y, of a multilabel call among [2C]."""
    if tables == 1:
        return y
    table = torch.arange(y.shape[0], device=y.device) % tables  # len() would fix the size of an exported batch
    return y + 2 * table.view(-1, *[1] * (y.dim() - 1))


def weights_of_pixels(inputs: Inputs, y: Tensor, valid: Tensor) -> Tensor:
    """Return what each pixel adds to W, v · weight[y], [B, *S]; 0 where not valid. Without both it is ``valid``."""
    wide, w = widest(y.device), valid
    if inputs.weight is not None:
        w = inputs.weight.to(wide)[torch.where(valid, places_of_labels(y, inputs.tables), 0)]
    if inputs.pixel_weight is not None:
        w = inputs.pixel_weight.to(wide) * w
    return w if w is valid else torch.where(valid, w, 0.0)


# ---------------------------------------------------------------------------------------------------- the terms as maps


def total_map(sums: Sums, call: Call, combined: Combined, edges: Places, of_region: Tensor | None) -> Tensor:
    """Return v · (ce_weight · CE + region_weight · weight[y] · R + u · edge_weight · edge · Φ(t)/t)."""
    (inputs, options, *_), maps, regions = call, sums.maps, sums.regions
    assert maps is not None
    v = inputs.pixel_weight
    total = weigh(_combine((options.ce_weight, maps.cross_entropy)), v)
    if regions is not None:
        of_image = regions.value.to(total).repeat_interleave(inputs.tables).view(-1, *[1] * (total.dim() - 1))
        total = total + weigh(of_image, of_region)
    factor = edges.spread(weigh(mean_slope(combined), combined.u).to(total))
    edge = _combine((options.edge_weight, maps.edge))
    return total + weigh(edge, factor if v is None else factor * v)


def mean_slope(combined: Combined) -> Tensor:
    """Return Φ(t)/t, by which the map of the loss adds up to its sum; φ where t is 0."""
    return torch.where(combined.t > 0, ratio(combined.focused, combined.t), combined.slope)


class Places:
    """Where each pixel of a mask belongs in a table [B, C] of images and classes, by its label.

    The other pixels have a column of their own, so that no label is read there and no value either.
    """

    def __init__(self, y: Tensor, mask: Tensor, classes: int) -> None:
        rows = torch.arange(y.shape[0], device=y.device)  # len() would fix the size of an exported batch
        rows = (rows * (classes + 1)).view(-1, *[1] * (y.dim() - 1))
        self._place = (torch.where(mask, y, classes) + rows).flatten()
        self._shape, self._classes = y.shape, classes

    def spread(self, values: Tensor) -> Tensor:
        """Return values [B, C], in any shape of as many, at the pixels, [B, *S]; 0 off the mask."""
        table = F.pad(values.reshape(self._shape[0], self._classes), (0, 1))
        return table.flatten().index_select(0, self._place).view(self._shape)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sums of a map over the pixels of the mask, by image and class, [B, C]."""
        wide = widest(values.device)
        sums = torch.zeros(self._shape[0] * (self._classes + 1), dtype=wide, device=values.device)
        sums = sums.scatter_add(0, self._place, values.to(wide).flatten())  # which keeps no values for its derivative
        return sums.view(self._shape[0], self._classes + 1)[:, :-1].contiguous()


def weigh(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return a map times a weight of each pixel, 1 if None; 0 where it is 0: the value may be infinite there."""
    return values if weight is None else torch.where(weight == 0, 0.0, values * weight)


def edge_term(other_side: Number, same_side: Number, options: Options) -> Number:
    """Return ``other_side_weight · O + same_side_weight · S``."""
    return _combine((options.other_side_weight, other_side), (options.same_side_weight, same_side))


def _combine(*terms: tuple[float, Number]) -> Number:
    """Return the sum of weight times value, without the values that have no weight, which may be inf."""
    weighted = [weight * value for weight, value in terms if weight]
    if weighted:
        return sum(weighted[1:], weighted[0])
    value = terms[0][1]
    return value.masked_fill(torch.ones_like(value, dtype=torch.bool), 0.0) if isinstance(value, Tensor) else 0.0


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return a part of a whole, 0 of nothing."""
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1.0), 0.0)
