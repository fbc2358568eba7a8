"""From checked inputs to the sums of the loss, by the fused kernels, and their derivatives for torch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss import library
from edgeloss.arguments import VALIDATE, EdgeLossInputs, Numbers, is_evenly_spaced, new_outputs
from edgeloss.inputs import Inputs, check_labels_of, is_checked, result_dtype, widest
from edgeloss.neighborhoods import FAR, clipped
from edgeloss.opaque import register_derivative
from edgeloss.options import NO_POWER, Options
from edgeloss.reduction import (
    REGION,
    TERM_ROWS,
    Evaluation,
    LossMaps,
    Regions,
    Scalars,
    SumRow,
    edge_term,
    scalar,
    vector,
    weigh,
)
from edgeloss.reference import readable_logits
from edgeloss.region import averages_of, has_regions
from edgeloss.triton import operators as triton_operators

operators = torch.ops.edgeloss
_NO_LABEL = -(2**63)  # that the kernels take for ignore_index=None
_FEW_CLASSES = 8  # as kFewClasses of csrc/saved_state.h
_ALIGNED = 64  # as kAligned of State there
_MOST_DECAYS = 25  # the span of distances over which weights of neighbors have a common scale in float32


class Outputs(NamedTuple):
    """What ``edge_loss`` returns, but for the state that its backward pass reads, which follows.

    Attributes:
        sums: [8] float64, a row for each :class:`edgeloss.reduction.SumRow`.
        edge_counts: [C] int64, the edge pixels of each class, of a multilabel call [2C], or empty where not asked for.
        region: R of each image [B] float64, or empty where not asked for, like its weight.
        region_weight: Σ_valid v · weight[y] of each image [B] float64.
        maps: the terms of each pixel, [3, B, *S], in the order of ``TERM_ROWS``, or empty where not asked for.
    """

    sums: Tensor
    edge_counts: Tensor
    region: Tensor
    region_weight: Tensor
    maps: Tensor


_COUNT = len(Outputs._fields)


def evaluate(inputs: Inputs, options: Options, *, edges: bool, maps: bool, count_edges: bool) -> Evaluation:
    """Return what :func:`edgeloss.reference.evaluate` does, by the fused kernels; labels are checked too."""
    logits, uses_triton = inputs.logits, library.uses_triton(inputs.logits)
    if uses_triton and is_checked(inputs.target, options.validate):
        check_labels_of(inputs, options)
    numbers = _numbers(inputs, options, edges=edges, maps=maps, count_edges=count_edges)
    if numbers.gathers and logits.shape[2:] != inputs.target.shape[1:]:  # pairs of pixels are of one resolution
        logits = readable_logits(logits, inputs.labels()[1])
    distance = inputs.distance if edges else None
    if distance is not None:
        wide = (distance.to(widest(distance.device)) / _unit(options)).clamp(max=FAR)
        distance = wide.to(result_dtype(logits)).contiguous()
    given = EdgeLossInputs(
        logits if is_evenly_spaced(logits) else logits.contiguous(),
        inputs.target.contiguous(),
        _contiguous(inputs.weight),
        _contiguous(inputs.pixel_weight),
        _contiguous(inputs.edge_class_weight),
        distance,
        numbers.integers,
        numbers.reals,
    )
    kernels = triton_operators.operators if uses_triton else operators
    attach = None
    if torch.compiler.is_compiling():  # the operator has its own derivative
        returned = kernels.edge_loss(*given)
    else:
        with torch._C._AutoDispatchBelowAutograd():
            returned = kernels.edge_loss.default(*given)
        attach = partial(_attach, kernels.edge_loss_backward.default, given, returned)
        if not uses_triton and is_checked(inputs.target, options.validate) and returned[0][SumRow.WRONG] > 0:
            check_labels_of(inputs, options)
    outputs = Outputs(*returned[:_COUNT])
    counts = None
    if count_edges:
        counts = outputs.edge_counts if inputs.multilabel_classes is None else outputs.edge_counts.view(-1, 2)
    regions = Regions(outputs.region, outputs.region_weight) if numbers.regions else None
    of_pixels = _loss_maps(inputs, options, outputs.maps, returned[-1], edges=edges) if maps else None
    return Evaluation(outputs.sums, of_pixels, counts, regions, attach)


def _loss_maps(inputs: Inputs, options: Options, maps: Tensor, memory: Tensor, *, edges: bool) -> LossMaps:
    cross_entropy, same_side, other_side = maps.unbind()
    pixels = cross_entropy.numel()
    mask = memory[:pixels].view(torch.bool).clone() if edges else memory.new_zeros(pixels, dtype=torch.bool)
    edge = edge_term(other_side, same_side, options)
    return LossMaps(cross_entropy, same_side, other_side, edge, mask.view_as(edge), inputs.distance)


def _numbers(inputs: Inputs, options: Options, *, edges: bool, maps: bool, count_edges: bool) -> Numbers:
    unit, radius, spacing = _unit(options), inputs.radius, inputs.spacing
    power = 0.0 if abs(options.power) <= NO_POWER else options.power
    decay = 0.0 if options.decay is None else options.decay / unit
    is_spread = inputs.distance is not None
    # Elsewhere the kernels count labels out of range, and evaluate() raises the error.
    is_checked_inside = torch.compiler.is_compiling() or library.uses_triton(inputs.logits)
    if decay and not is_spread:
        reach = zip(clipped(radius, inputs.target.shape), spacing, strict=True)
        is_spread = 2 * math.hypot(*(r * s / unit for r, s in reach)) > _MOST_DECAYS * decay
    return Numbers(
        ignore_index=_NO_LABEL if options.ignore_index is None else options.ignore_index,
        validate=VALIDATE[options.validate] if is_checked_inside else 0,
        tables=inputs.tables,
        edges=edges,
        count_edges=count_edges,
        regions=options.region_weight > 0,
        gathers=edges and (power != 0 or is_spread or maps),
        maps=maps,
        keeps_state=torch.compiler.is_compiling() or (torch.is_grad_enabled() and inputs.logits.requires_grad),
        radius=tuple(radius),
        label_smoothing=options.label_smoothing,
        power=power,
        decay=decay,
        spacing=tuple(s / unit for s in spacing),
    )


def _unit(options: Options) -> float:
    """Return a unit of length that suits the decay: a power of two, so that nothing is rounded."""
    return 1.0 if options.decay is None else 2.0 ** math.ceil(math.log2(options.decay))


def _contiguous(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.contiguous()


def gathered_terms(
    x: Tensor,
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    log_w: Tensor | None,
    radius: Sequence[int],
    power: float,
) -> tuple[Tensor, Tensor]:
    """Return what :func:`edgeloss.reference.edge_terms` does, by the CUDA kernels."""
    label = torch.where(valid, y, -1).to(torch.int16).contiguous()
    decays = None if log_w is None else -log_w.to(x.dtype).contiguous()
    x = x if is_evenly_spaced(x) else x.contiguous()
    same_side, other_side = operators.gathered_terms(x, label, mask.contiguous(), decays, power, list(radius))[0]
    return same_side, other_side


def _attach(
    backward: Callable[..., Tensor], given: EdgeLossInputs, returned: Sequence[Tensor], loss: Tensor, factors: Scalars
) -> Tensor:
    if not given.logits.requires_grad or not torch.is_grad_enabled():
        return loss
    # In a list, so that autograd takes the loss for a new tensor, not for a view of an argument.
    attached: Tensor = _EdgeLoss.apply(given.logits, backward, given, returned, [loss], factors)  # type: ignore[no-untyped-call]
    return attached


class _EdgeLoss(torch.autograd.Function):
    """The loss by what ``edge_loss`` has returned, as a function of its logits, for less work per call."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits: Tensor,
        backward: Callable[..., Tensor],
        given: EdgeLossInputs,
        returned: Sequence[Tensor],
        loss: list[Tensor],
        factors: Scalars,
    ) -> Tensor:
        weights = given.weight, given.pixel_weight, given.edge_class_weight
        ctx.save_for_backward(logits, *weights, given.distance, *returned[_COUNT:])
        ctx.backward, ctx.numbers = backward, (given.integers, given.reals)
        ctx.factors, ctx.region_weight = factors, Outputs(*returned[:_COUNT]).region_weight
        return loss[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        state = ctx.saved_tensors  # with autograd: torch.utils.checkpoint computes them again
        if grad.dim():
            state, given = _of_map(ctx, state, grad)
        else:
            factors, weight, kernels = ctx.factors, ctx.region_weight, library.step_kernels(grad)
            if kernels is not None and isinstance(factors, Tensor):
                given = kernels.spread(grad, factors, weight)
            else:
                slope = scalar(grad)
                slopes = vector([slope * x for x in factors], weight)
                given = slopes[:REGION], weight * slopes[REGION] if weight.numel() else None
        # With autograd where there is one: the operator refuses to be differentiated twice.
        with nullcontext() if torch.is_grad_enabled() else torch._C._AutoDispatchBelowAutograd():
            return ctx.backward(*given, *state, *ctx.numbers), None, None, None, None, None


def _of_map(
    ctx: Any,  # noqa: ANN401
    state: Sequence[Tensor],
    grad: Tensor,
) -> tuple[Sequence[Tensor], tuple[Tensor, Tensor | None]]:
    """Return the state, with the gradient of a map as a factor of its pixel weights, and the gradients of the sums."""
    logits, weight, v, *others = state
    *factors, of_region = ctx.factors
    of_images = None
    if of_region is not None:
        tables = Numbers.of(*ctx.numbers).tables
        of_images = weigh(grad, of_region).flatten(1).sum(1, dtype=torch.float64).view(-1, tables).sum(1)
    of_pixels = weigh(grad, v).to(result_dtype(logits)).contiguous()
    return (logits, weight, of_pixels, *others), (vector(factors, ctx.region_weight), of_images)


# What torch needs to know of the operators: the shapes they return, and their derivatives.


def _edge_loss_fake(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    inputs = EdgeLossInputs(*args, **kwargs)
    logits, target, numbers = inputs.logits, inputs.target, Numbers.of(inputs.integers, inputs.reals)
    gathers, keeps_state, classes = numbers.gathers, numbers.keeps_state, max(2, logits.shape[1])
    real, pixels, is_upsampled = result_dtype(logits), target.numel(), logits.shape[2:] != target.shape[1:]
    has_slopes = bool(numbers.regions and keeps_state) and has_regions(target.shape)
    has_statistics = gathers or (keeps_state and (is_upsampled or classes > _FEW_CLASSES))
    of_classes = target.shape[0] * classes if has_slopes else 0
    parts = (  # bytes, in the order of State in csrc/saved_state.h
        pixels * gathers,  # first, where _loss_maps reads it
        2 * real.itemsize * pixels * has_statistics,
        real.itemsize * pixels * bool(numbers.edges and numbers.decay > 0 and inputs.distance is None),
        real.itemsize * of_classes * math.prod(averages_of(target.shape)),
        of_classes,
        6 * real.itemsize * pixels * gathers,
    )
    memory = sum(-(-part // _ALIGNED) * _ALIGNED for part in parts)
    label = logits.new_empty(target.shape, dtype=torch.int16)
    return *new_outputs(inputs, numbers), label, logits.new_empty(memory, dtype=torch.uint8)


def _gradients_of_sums(sums: Tensor, edge_counts: None, region: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
    return sums[TERM_ROWS].contiguous(), region.contiguous() if region.numel() else None


def _gathered_terms_fake(
    logits: Tensor, label: Tensor, edge: Tensor, distance: Tensor | None, power: float, radius: list[int]
) -> tuple[Tensor, ...]:
    pixels = label.numel()
    return tuple(logits.new_empty(shape) for shape in ((2, *label.shape), (2, pixels), (pixels, 2, 3)))


def _neighbor_nll_fake(
    logits: Tensor, index: Tensor, weight: Tensor, mask: Tensor | None, radius: list[int]
) -> tuple[Tensor, ...]:
    value = logits.new_empty((logits.shape[0], *logits.shape[2:]), dtype=result_dtype(logits))
    pixels = value.numel()
    largest = weight.new_empty((1, pixels))
    return value, value.new_empty((2, pixels)), largest, value.new_empty((pixels, 3))


def _gradient_of_first(of_first: Tensor, *others: Tensor) -> tuple[Tensor]:
    return (of_first.contiguous(),)


def _refuse(ctx: Any, *grads: Tensor | None) -> None:  # noqa: ANN401
    raise RuntimeError("the fused loss can't be differentiated twice; pass backend='reference'")


def register(namespace: str) -> None:
    """Register shapes and derivatives of the operators of a namespace."""
    _register(namespace, "edge_loss", _edge_loss_fake, _gradients_of_sums)
    _register(namespace, "gathered_terms", _gathered_terms_fake, _gradient_of_first)
    _register(namespace, "neighbor_nll", _neighbor_nll_fake, _gradient_of_first)


def _register(namespace: str, name: str, *given: Any) -> None:  # noqa: ANN401
    register_derivative(namespace, name, *given)
    torch.library.register_autograd(f"{namespace}::{name}_backward", _refuse)


_OF_TRITON = triton_operators.fake, _gradients_of_sums, triton_operators.new_gradient
_register(triton_operators.NAMESPACE, "edge_loss", *_OF_TRITON)
if not library.MISSING:
    importlib.import_module("edgeloss._C")
    register("edgeloss")
