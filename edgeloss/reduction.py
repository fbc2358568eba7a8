"""From the terms of the loss to its value, its maps and its figures.

Symbols are those of :mod:`edgeloss.reference`, and v = ``pixel_weight``, 1 by default.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from edgeloss import library
from edgeloss.inputs import Inputs, result_dtype, widest
from edgeloss.options import Options


class SumRow(IntEnum):
    """The rows of the sums over a batch, in the order in which the kernels return them."""

    CROSS_ENTROPY = 0  # Σ v · CE
    SAME_SIDE = 1  # Σ_E v · u · S
    OTHER_SIDE = 2  # Σ_E v · u · O
    WEIGHT = 3  # W = Σ_valid v · weight[y]
    EDGE_WEIGHT = 4  # Σ_E v · u
    VALID = 5  # the number of valid pixels
    EDGES = 6  # |E|
    WRONG = 7  # the number of labels out of range; of the kernels only


TERM_ROWS = slice(SumRow.CROSS_ENTROPY, SumRow.WEIGHT)  # the rows that are terms of the loss
REGION = TERM_ROWS.stop  # the place of the region term in ``Options.term_weights``: after the terms of the sums
DENOMINATOR_ROWS = slice(SumRow.WEIGHT, SumRow.VALID)  # W and Σ_E v · u


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


class Evaluation(NamedTuple):
    """What a backend returns.

    Attributes:
        sums: a row for each :class:`SumRow`, of the reference but ``WRONG``, in float64 where the device has it.
        maps: None unless asked for.
        edge_counts: [C] int64, the edge pixels of each class, of a multilabel call [C, 2]; None unless asked for.
        regions: None where the region term has no weight.
        attach: makes a loss, 0-d or a map [B, *S], a function of the logits, by the factors of its terms; that of
            the region term in a map is a map. None if all is differentiable.
    """

    sums: Tensor
    maps: LossMaps | None
    edge_counts: Tensor | None = None
    regions: Regions | None = None
    attach: Callable[[Tensor, Scalars], Tensor] | None = None


Number = TypeVar("Number", Tensor, float)
Scalars: TypeAlias = Sequence[Any]  # floats if at hand, else 0-d tensors, whose operations take far longer
Terms: TypeAlias = dict[str, Tensor]
Result: TypeAlias = Tensor | tuple[Tensor, LossMaps] | tuple[Tensor, Terms] | tuple[Tensor, LossMaps, Terms]


def reduce(
    evaluation: Evaluation,
    inputs: Inputs,
    options: Options,
    edge_scale: Tensor | float | None,
    *,
    maps: bool,
    terms: bool,
) -> Result:
    """Return the loss, then its maps and terms if asked for; ``edge_scale`` is a factor of ``edge_weight``, 0-d."""
    sums, of_pixels, _, regions, attach = evaluation
    rows, dtype = scalars(sums), result_dtype(inputs.logits)
    denominators, kernels = shared_denominators(rows, sums, inputs, options), library.step_kernels(sums)
    totals: Scalars = ()
    if terms or attach is None or kernels is None:
        totals = term_totals(sums.unbind() if attach is None else rows, regions)
    if options.reduction == "none" and of_pixels is not None:
        loss, of_region = total_map(of_pixels, inputs, options, edge_scale, regions)
        if attach is not None:
            loss = attach(loss, [*term_factors([1.0, 1.0], options, edge_scale)[:REGION], of_region])
        loss = inputs.as_given(loss).to(dtype)
    else:
        if attach is None or kernels is None:
            factors = term_factors(denominators, options, edge_scale)
            loss = weighted_sum(totals, factors, sums, dtype)
        else:
            loss, factors = kernels.weigh(sums, regions, denominators, options, edge_scale, dtype)
        loss = loss if attach is None else attach(loss, factors)
    if not maps and not terms:
        return loss
    result: list[Tensor | LossMaps | Terms] = [loss]
    if maps and of_pixels is not None:
        result.append(LossMaps(*(x if x is None else inputs.as_given(x.detach()) for x in of_pixels)))  # type: ignore[arg-type]
    if terms:
        values = term_values(totals, denominators, rows, options)
        detached = vector(list(values.values()), sums).detach().to(dtype)
        result.append(dict(zip(values, detached.unbind(), strict=True)))
    return cast("Result", tuple(result))


# ----------------------------------------------------------------------------------------------------- the denominators


def places_of_labels(y: Tensor, tables: int) -> Tensor:
    """Return where class weights have the one of each label [B, *S]: at y, of a multilabel call among [2C]."""
    if tables == 1:
        return y
    table = torch.arange(y.shape[0], device=y.device) % tables  # len() would fix the size of an exported batch
    return y + 2 * table.view(-1, *[1] * (y.dim() - 1))


def edge_pixel_weight(inputs: Inputs, y: Tensor, edge_mask: Tensor) -> Tensor | None:
    """Return v · u of the edge pixels, [B, *S]; None where both are 1."""
    u, v = inputs.edge_class_weight, inputs.pixel_weight
    if u is None:
        return v
    u = u[torch.where(edge_mask, places_of_labels(y, inputs.tables), 0)]
    return u if v is None else u * v


def denominators(
    inputs: Inputs, y: Tensor, valid: Tensor, edge_mask: Tensor, vu: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return W = Σ_valid v · weight[y] and Σ_E v · u, 0-d each."""
    e, wide = edge_mask if vu is None else torch.where(edge_mask, vu, 0.0), widest(y.device)
    return weights_of_pixels(inputs, y, valid).sum(dtype=wide), e.sum(dtype=wide)


def weights_of_pixels(inputs: Inputs, y: Tensor, valid: Tensor) -> Tensor:
    """Return what each pixel adds to W, v · weight[y], [B, *S]; 0 where not valid. Without both it is ``valid``."""
    wide, w = widest(y.device), valid
    if inputs.weight is not None:
        w = inputs.weight.to(wide)[torch.where(valid, places_of_labels(y, inputs.tables), 0)]
    if inputs.pixel_weight is not None:
        w = inputs.pixel_weight.to(wide) * w
    return w if w is valid else torch.where(valid, w, 0.0)


def is_shared(options: Options) -> bool:
    """Return whether the ranks of ``torch.distributed`` add up their denominators and counts."""
    return options.sync_normalizer and dist.is_available() and dist.is_initialized()


def shared_denominators(rows: Scalars, like: Tensor, inputs: Inputs, options: Options) -> Scalars:
    """Return the W and E that the loss divides by: of the batch, the user's, or the mean over the ranks.

    ``rows`` are the sums of an :class:`Evaluation`, and ``like`` is the tensor of them.
    """
    both = rows[DENOMINATOR_ROWS] if inputs.normalizer is None else [scalar(value) for value in inputs.normalizer]
    if options.reduction == "sum":
        return [torch.ones_like(value) if isinstance(value, Tensor) else 1.0 for value in both]
    # DDP averages the gradients of the ranks: Σ / (global denominator / world size) gives that of the whole batch.
    return scalars(_over_ranks(both, like) / dist.get_world_size()) if is_shared(options) else both


def _over_ranks(values: Scalars, like: Tensor) -> Tensor:
    total = vector(values, like)
    dist.all_reduce(total)
    return total


# ------------------------------------------------------------------------------------------- the balance of the classes


def count_edge_pixels(inputs: Inputs, y: Tensor, edge_mask: Tensor) -> Tensor:
    """Return the number of edge pixels of each class, [C] int64, without waiting for the device.

    Of a multilabel call, those of labels 0 and 1 of each class, [C, 2].
    """
    counts = torch.zeros(max(2, inputs.logits.shape[1]) * inputs.tables, dtype=torch.int64, device=y.device)
    place = torch.where(edge_mask, places_of_labels(y, inputs.tables), 0)
    counts.index_add_(0, place.flatten(), edge_mask.flatten().long())
    return counts if inputs.multilabel_classes is None else counts.view(-1, 2)


def balanced_weight(counts: Tensor, *, exponent: float = 1.0, steps: Tensor | None = None) -> Tensor:
    """Return u_c ∝ 1 / (n_c + prior)^exponent of counts n, float32, 1 for a class without edge pixels.

    The mean weight over all counted pixels is 1. With ``steps``, the number of steps that counted, 0-d, the prior is
    one more that showed every class equally often, so it does not depend on the size of the images; else it is 0.
    """
    if _are_at_hand(counts):  # one operation of torch on a few numbers takes as long as all of this
        n = counts.flatten().tolist()
        total = sum(n)
        prior = 0.0 if steps is None else total / (max(1, steps.item()) * max(1, len(n)))
        weight = [(k + prior) ** -exponent if k else 0.0 for k in n]
        scale = total / (sum(map(operator.mul, n, weight)) or 1.0)
        return torch.from_numpy(np.array([scale * w or 1.0 for w in weight], np.float32).reshape(counts.shape))
    seen, wide = counts > 0, counts.to(widest(counts.device))
    smooth = wide if steps is None else wide + wide.sum() / (steps.clamp(min=1) * max(1, counts.numel()))
    balanced = torch.where(seen, smooth, 1.0).pow_(-exponent)
    balanced *= wide.sum() / torch.dot(wide.flatten(), balanced.flatten())
    return balanced.masked_fill_(~seen, 1.0).float()


# ----------------------------------------------------------------------------------------------- edges that are learned


class EdgeSum(IntEnum):
    """The places of what ``edge_focus`` keeps, in a vector."""

    ERROR = 0  # Σ_E v · u · edge of the step under way
    UNIFORM = 1  # what it is for a uniform prediction
    WEIGHT = 2  # (other_side_weight + same_side_weight) Σ_E v · u
    MEAN_ERROR = 3  # the average of e over the steps before, 1 if there is none
    STEPS = 4  # t, the number of these steps


ERRORS = slice(EdgeSum.ERROR, EdgeSum.UNIFORM + 1)
OF_STEP = slice(EdgeSum.ERROR, EdgeSum.WEIGHT + 1)
LONGEST_MEAN = 100  # steps


def new_edge_sums() -> Tensor:
    """Return what ``edge_focus`` keeps before the first step, a place for each :class:`EdgeSum`."""
    return torch.eye(len(EdgeSum), dtype=torch.float64)[EdgeSum.MEAN_ERROR].clone()


def edge_sums_of_0_2(running: Tensor) -> Tensor:
    """Return the sums that replace those of a state of version 0.2, [3], which decayed by 0.99 per step."""
    mean, steps = fold_step(torch.cat([running, new_edge_sums().to(running)[EdgeSum.MEAN_ERROR :]]))
    return vector([0.0, 0.0, 0.0, mean, steps * LONGEST_MEAN], running)


def edge_error_sums(sums: Tensor, options: Options, classes: int) -> Scalars:
    """Return what a call adds to the sums of its step, the places ``OF_STEP``; also that of the other ranks."""
    _, same_side, other_side, _, e, *_ = scalars(sums)
    uniform, weight = uniform_edge_term(classes, options), options.other_side_weight + options.same_side_weight
    added = [edge_term(other_side, same_side, options), e * uniform, e * weight]
    return scalars(_over_ranks(added, sums)) if is_shared(options) else added


def uniform_edge_term(classes: int, options: Options) -> float:
    """Return what an edge pixel adds for a uniform prediction of C ≥ 2 classes."""
    return edge_term(math.log(classes / (classes - 1)), math.log(classes), options)


def fold_step(edge_sums: Tensor) -> Scalars:
    """Return the places from ``MEAN_ERROR`` after the step under way, whose error has become a part of the average.

    A step without an edge changes nothing, nor does one whose edge terms are not finite: the optimizer skips it.
    """
    error, uniform, weight, mean, steps = scalars(edge_sums)
    is_found = (error < math.inf) & (weight > 0)  # not for nan
    # A mean of logarithms may round to less than 0.
    if not isinstance(mean, Tensor):
        if is_found:
            steps += 1.0
            found = math.expm1(-error / weight) / math.expm1(-uniform / weight)
            rate = max(1 / steps, 1 / LONGEST_MEAN)
            mean = (1 - rate) * mean + rate * min(max(found, 0.0), 1.0)
        return mean, steps
    wrong, wrong_of_uniform = (edge_sums[ERRORS] / -weight).expm1_().unbind()
    steps = steps + is_found
    rate = torch.where(is_found, (1 / steps).clamp(min=1 / LONGEST_MEAN), 0.0)
    share = torch.where(is_found, wrong / wrong_of_uniform, 0.0).clamp(0, 1)
    return (1 - rate) * mean + rate * share, steps


def edge_focus_scale(mean_error: Tensor | float, focus: float) -> Tensor | float:
    """Return f, the average error to the power of γ = ``focus``, 0-d."""
    scale: Tensor | float = mean_error**focus
    return _keep(scale) if isinstance(scale, Tensor) and torch.compiler.is_compiling() else scale


@torch.library.custom_op("edgeloss::keep", mutates_args=())
def _keep(values: Tensor) -> Tensor:
    """Copy values that the backward pass is not to compute again: the state they come from has changed by then."""
    return values.clone()


_keep.register_fake(torch.empty_like)


# ---------------------------------------------------------------------------------------------------- the terms as sums


def term_totals(rows: Scalars, regions: Regions | None) -> Scalars:
    """Return the sum of each term over the batch, before its weight, in the order of ``Options.term_weights``."""
    if regions is None:
        return *rows[TERM_ROWS], 0.0
    of_regions = torch.dot(regions.value, regions.weight)
    return *rows[TERM_ROWS], of_regions if isinstance(rows[0], Tensor) else scalar(of_regions)


def term_factors(denominators: Scalars, options: Options, edge_scale: Tensor | float | None) -> Scalars:
    """Return the factor of each term in the loss: its weight over its denominator, W or E; 0 over nothing."""
    per_w, per_e = (ratio(1.0, value) for value in denominators)
    per_e = per_e if edge_scale is None else per_e * edge_scale
    weights = options.term_weights().values()
    return [weight * per for weight, per in zip(weights, (per_w, per_e, per_e, per_w), strict=True)]


def weighted_sum(totals: Scalars, factors: Scalars, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of the totals times their factors, 0-d; without those of factor 0, which may be infinite."""
    if not isinstance(totals[0], Tensor):
        loss = sum(total * factor for total, factor in zip(totals, factors, strict=True) if factor)
        return torch.full((), loss, dtype=dtype)
    of_terms = vector(factors, like)
    return torch.dot(vector(totals, like).masked_fill(of_terms == 0, 0.0), of_terms).to(dtype)


def term_values(totals: Scalars, denominators: Scalars, rows: Scalars, options: Options) -> dict[str, Any]:
    """Return what the loss is made of, before ``ce_weight``, ``edge_weight`` and ``region_weight``."""
    w, e = denominators
    cross_entropy, same_side, other_side, region = (ratio(*pair) for pair in zip(totals, (w, e, e, w), strict=True))
    return {
        "cross_entropy": cross_entropy,
        "same_side": same_side,
        "other_side": other_side,
        "edge": edge_term(other_side, same_side, options),
        "region": region,
        "edge_fraction": ratio(rows[SumRow.EDGES], rows[SumRow.VALID]),
    }


# ---------------------------------------------------------------------------------------------------- the terms as maps


def total_map(
    maps: LossMaps, inputs: Inputs, options: Options, edge_scale: Tensor | float | None, regions: Regions | None
) -> tuple[Tensor, Tensor | None]:
    """Return v · (ce_weight · CE + region_weight · weight[y] · R + u · edge_weight · edge), [B, *S], and R's factor."""
    (y, valid), v, of_region = inputs.labels(), inputs.pixel_weight, None
    vu = edge_pixel_weight(inputs, y, valid)
    off_edges, edge = _combine((options.ce_weight, maps.cross_entropy)), _combine((options.edge_weight, maps.edge))
    edge = edge if edge_scale is None else edge * edge_scale
    off_edges = weigh(off_edges, v)
    if regions is not None:
        real = result_dtype(inputs.logits)
        of_image = regions.value.to(real).repeat_interleave(inputs.tables).view(-1, *[1] * (y.dim() - 1))
        of_region = options.region_weight * weights_of_pixels(inputs, y, valid).to(real)
        off_edges = off_edges + of_image * of_region
    return off_edges + weigh(edge, vu), of_region


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


# ------------------------------------------------------------------------------------------------------ a few numbers


def scalars(values: Tensor) -> Scalars:
    """Return the elements of a vector, without gradients, as floats if they are at hand."""
    return values.tolist() if _are_at_hand(values) else values.detach().unbind()


def scalar(value: Tensor) -> Tensor | float:
    """Return a 0-d tensor as a float if it is at hand, else in the widest dtype of its device."""
    return value.item() if _are_at_hand(value) else value.to(widest(value.device))


def _are_at_hand(values: Tensor) -> bool:
    """Return whether values can be read without waiting for a device, and in no graph, which records tensors only."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    return type(values) is Tensor and values.is_cpu  # a subclass may have no values


def vector(values: Scalars, like: Tensor) -> Tensor:
    """Return scalars as a vector again: floats as float64, others with the dtype of a tensor, on its device."""
    if not any(isinstance(value, Tensor) for value in values):
        return torch.from_numpy(np.array(values, np.float64))  # in less than half the time of torch.tensor
    return torch.stack([x if isinstance(x, Tensor) else like.new_full((), x) for x in values])


def write(values: Scalars, into: Tensor) -> None:
    """Replace the elements of a vector, in place, for CUDA graphs."""
    if _are_at_hand(into):
        into.numpy()[:] = values  # in a third of the time of a copy
    else:
        into.copy_(vector(values, into))


def ratio(part: Tensor | float, whole: Tensor | float) -> Any:  # noqa: ANN401
    """Return a part of a whole, 0 of nothing."""
    if isinstance(whole, Tensor):
        return torch.where(whole > 0, part / whole, 0.0)
    return part / whole if whole > 0 else 0.0
