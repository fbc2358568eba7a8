"""From checked inputs to the sums of the loss and the loss, by the fused kernels, and their derivatives for torch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from edgeloss._checks.inputs import Inputs, check_labels_of, is_checked, result_dtype, widest
from edgeloss._checks.options import NO_POWER, Options
from edgeloss._kernels import library
from edgeloss._kernels.arguments import VALIDATE, EdgeLossInputs, Numbers, Outputs, new_outputs
from edgeloss._kernels import operators as triton_operators
from edgeloss._reduction import (
    VALUES,
    Combined,
    EdgeRow,
    Evaluation,
    LossMaps,
    Regions,
    SumRow,
    at_pixels,
    edge_term,
    mean_slope,
    ratio,
    weigh,
)
from edgeloss._reference.custom_ops import is_evenly_spaced, register_derivative
from edgeloss._reference.neighborhoods import FAR, clipped
from edgeloss._reference.region import averages_of, has_regions
from edgeloss._reference.terms import readable_logits, sums_by_class

operators = torch.ops.edgeloss
_NO_LABEL = -(2**63)  # that the kernels take for ignore_index=None
_FEW_CLASSES = 8  # as kFewClasses of csrc/cpu/saved_state.h
_ALIGNED = 64  # as kAligned of State there
_MOST_DECAYS = 25  # the span of distances over which weights of neighbors have a common scale in float32
_COUNT = len(Outputs._fields)


def evaluate(inputs: Inputs, options: Options, *, edges: bool, maps: bool) -> Evaluation:
    """Return what :func:`edgeloss._reference.terms.evaluate` does, by the fused kernels; labels are checked too."""
    logits, uses_triton = inputs.logits, library.uses_triton(inputs.logits)
    if uses_triton and is_checked(inputs.target, options.validate):
        check_labels_of(inputs, options)
    numbers = _numbers(inputs, options, edges=edges, maps=maps)
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
        distance,
        numbers.integers,
        numbers.reals,
    )
    kernels = triton_operators.operators if uses_triton else operators
    if torch.compiler.is_compiling():  # the operators have their own derivatives
        returned = kernels.edge_loss(*given)
    else:
        with torch._C._AutoDispatchBelowAutograd():
            returned = kernels.edge_loss.default(*given)
        is_read = not uses_triton and type(returned[0]) is Tensor and is_checked(inputs.target, options.validate)
        if is_read and returned[0][SumRow.WRONG] > 0:
            check_labels_of(inputs, options)
    outputs = Outputs(*returned[:_COUNT])
    regions = Regions(outputs.region, outputs.region_weight) if numbers.regions else None
    of_pixels = _loss_maps(inputs, options, outputs.maps, returned[-1], edges=edges) if maps else None
    edge_sums = outputs.edge_sums.view(len(EdgeRow), -1, inputs.tables * outputs.edge_sums.shape[2])
    return Evaluation(outputs.sums, edge_sums, of_pixels, regions, _Call(kernels, given, returned, inputs, options))


class _Call:
    """A call of the kernels; it is an :class:`edgeloss._reduction.Kernels`."""

    def __init__(
        self,
        kernels: Any,  # noqa: ANN401
        given: EdgeLossInputs,
        returned: Sequence[Tensor],
        inputs: Inputs,
        options: Options,
    ) -> None:
        self._kernels, self._given, self._returned = kernels, given, returned
        self._inputs, self._options = inputs, options

    def reduce(self, normalizer: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss, 0-d, and its figures."""
        options, inputs, outputs = self._options, self._inputs, self._outputs
        given = (
            *outputs[:4],
            _contiguous(inputs.edge_class_weight),
            normalizer,
            inputs.tables,
            inputs.is_balanced and (normalizer is None or len(normalizer) > 2),
            options.reduction == "mean",
            result_dtype(inputs.logits) == torch.float64,
            options.ce_weight,
            options.edge_weight,
            options.other_side_weight,
            options.same_side_weight,
            options.region_weight,
            options.edge_focus,
        )
        if torch.compiler.is_compiling():
            loss, _, values = self._kernels.reduce(*given)
            return loss, values
        with torch._C._AutoDispatchBelowAutograd():
            loss, slopes, values = self._kernels.reduce.default(*given)
        return self._attach(loss, slopes, None), values

    def attach(self, loss: Tensor, combined: Combined, of_region: Tensor | None) -> Tensor:
        """Make a map of the loss a function of the logits."""
        inputs, options, outputs = self._inputs, self._options, self._outputs
        y, valid = inputs.labels()
        u = torch.ones_like(combined.t[:1]) if combined.u is None else combined.u
        per_edge, n = mean_slope(combined), outputs.edge_sums[EdgeRow.WEIGHT].view_as(combined.t)
        at_all, on_edges = (u * per_edge, u * ratio(combined.slope - per_edge, n * combined.t))
        edge = edge_term(outputs.maps[EdgeRow.OTHER_SIDE], outputs.maps[EdgeRow.SAME_SIDE], options)
        table = outputs.edge_sums[0]
        weights = options.edge_weight * options.same_side_weight, options.edge_weight * options.other_side_weight

        def slopes_of(grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Return what arrives at the sums, and factors of each pixel for the cross-entropy and for the edge terms.

            The derivative of Σ g v u edge Φ(t)/t by the edge term of a pixel of class c in image b is
            v u [g Φ(t)/t + (φ - Φ(t)/t) / (n t) Σ_bc g v edge].
            """
            of_pixels = weigh(grad, inputs.pixel_weight)
            total = sums_by_class(weigh(of_pixels, edge), y, valid, table.shape[1]).view_as(combined.t)
            own, others = (at_pixels(x, inputs.tables, y, valid).to(edge) for x in (at_all, weigh(total, on_edges)))
            of_edges = of_pixels * own + weigh(others, inputs.pixel_weight)
            of_regions = outputs.region_weight
            if of_region is not None:
                of_regions = weigh(grad, of_region).flatten(1).sum(1, dtype=table.dtype).view(-1, inputs.tables).sum(1)
            of_terms = [
                table.new_full((1,), options.ce_weight),
                *(table.new_full((table.numel(),), w) for w in weights),
            ]
            return torch.cat([*of_terms, of_regions]), of_pixels.to(edge).contiguous(), of_edges.contiguous()

        return self._attach(loss, None, slopes_of)

    @property
    def _outputs(self) -> Outputs:
        return Outputs(*self._returned[:_COUNT])

    def _attach(self, loss: Tensor, *slopes: Any) -> Tensor:  # noqa: ANN401
        if not self._given.logits.requires_grad or not torch.is_grad_enabled():
            return loss
        backward = self._kernels.edge_loss_backward.default
        # In a list, so that autograd takes the loss for a new tensor, not for a view of an argument.
        given = self._given, self._returned[_COUNT:], [loss]
        attached: Tensor = _EdgeLoss.apply(self._given.logits, backward, *given, *slopes)  # type: ignore[no-untyped-call]
        return attached


class _EdgeLoss(torch.autograd.Function):
    """The loss by what ``edge_loss`` has returned, as a function of its logits, for less work per call."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits: Tensor,
        backward: Callable[..., Tensor],
        given: EdgeLossInputs,
        state: Sequence[Tensor],
        loss: list[Tensor],
        slopes: Tensor | None,
        slopes_of: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]] | None,
    ) -> Tensor:
        ctx.save_for_backward(slopes, logits, given.weight, given.pixel_weight, given.distance, *state)
        ctx.backward, ctx.numbers, ctx.slopes_of = backward, given[-2:], slopes_of
        return loss[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # With autograd: torch.utils.checkpoint computes them again.
        slopes, logits, weight, v, *state = ctx.saved_tensors
        scale: Tensor | None = grad
        of_edges = None
        if ctx.slopes_of is not None:
            scale, (slopes, v, of_edges) = None, ctx.slopes_of(grad)
        # With autograd where there is one: the operator refuses to be differentiated twice.
        with nullcontext() if torch.is_grad_enabled() else torch._C._AutoDispatchBelowAutograd():
            gradient = ctx.backward(scale, slopes, of_edges, logits, weight, v, *state, *ctx.numbers)
        return gradient, *(None for _ in range(6))


def _loss_maps(inputs: Inputs, options: Options, maps: Tensor, memory: Tensor, *, edges: bool) -> LossMaps:
    cross_entropy, same_side, other_side = maps.unbind()
    pixels = cross_entropy.numel()
    mask = memory[:pixels].view(torch.bool).clone() if edges else memory.new_zeros(pixels, dtype=torch.bool)
    edge = edge_term(other_side, same_side, options)
    return LossMaps(cross_entropy, same_side, other_side, edge, mask.view_as(edge), inputs.distance)


def _numbers(inputs: Inputs, options: Options, *, edges: bool, maps: bool) -> Numbers:
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
    """Return what :func:`edgeloss._reference.terms.edge_terms` does, by the CUDA kernels."""
    label = torch.where(valid, y, -1).to(torch.int16).contiguous()
    decays = None if log_w is None else -log_w.to(x.dtype).contiguous()
    x = x if is_evenly_spaced(x) else x.contiguous()
    same_side, other_side = operators.gathered_terms(x, label, mask.contiguous(), decays, power, list(radius))[0]
    return same_side, other_side


# What torch needs to know of the operators: the shapes they return, and their derivatives.


def _edge_loss_fake(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    inputs = EdgeLossInputs(*args, **kwargs)
    logits, target, numbers = inputs.logits, inputs.target, Numbers.of(inputs.integers, inputs.reals)
    gathers, keeps_state, classes = numbers.gathers, numbers.keeps_state, max(2, logits.shape[1])
    real, pixels, is_upsampled = result_dtype(logits), target.numel(), logits.shape[2:] != target.shape[1:]
    has_slopes = bool(numbers.regions and keeps_state) and has_regions(target.shape)
    has_statistics = gathers or (keeps_state and (is_upsampled or classes > _FEW_CLASSES))
    of_classes = target.shape[0] * classes if has_slopes else 0
    parts = (  # bytes, in the order of State in csrc/cpu/saved_state.h
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


def _gradients_of_sums(sums: Tensor, edge_sums: Tensor, region: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
    of_sums = sums[SumRow.CROSS_ENTROPY, None], edge_sums[EdgeRow.SAME_SIDE :].flatten(), region
    return None, torch.cat(of_sums), None


def _reduce_fake(sums: Tensor, edge_sums: Tensor, region: Tensor, *others: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    wide = others[6]
    slopes = sums.new_empty(1 + 2 * edge_sums[0].numel() + region.numel())
    return sums.new_empty((), dtype=torch.float64 if wide else torch.float32), slopes, sums.new_empty(len(VALUES))


def _keep_slopes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    ctx.save_for_backward(output[1])
    ctx.shapes, ctx.others = [x.shape for x in inputs[:3]], len(inputs) - 3
    ctx.mark_non_differentiable(*output[1:])


def _differentiate_reduce(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    """Return what arrives at the sums: only those of the terms have a derivative."""
    of_sums, of_edges, of_region = ctx.shapes
    slopes = ctx.saved_tensors[0] * grad
    rest = slopes.new_zeros(of_sums[0] - 1)
    of_terms = slopes[1 : slopes.shape[0] - of_region[0]].view(2, *of_edges[1:])
    no_weights = slopes.new_zeros((1, *of_edges[1:]))
    given = torch.cat([slopes[:1], rest]), torch.cat([no_weights, of_terms]), slopes[slopes.shape[0] - of_region[0] :]
    return *given, *(None for _ in range(ctx.others))


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
    _register_reduce(namespace)
    _register(namespace, "gathered_terms", _gathered_terms_fake, _gradient_of_first)
    _register(namespace, "neighbor_nll", _neighbor_nll_fake, _gradient_of_first)


def _register_reduce(namespace: str) -> None:
    torch.library.register_fake(f"{namespace}::reduce", _reduce_fake)
    torch.library.register_autograd(f"{namespace}::reduce", _differentiate_reduce, setup_context=_keep_slopes)


def _register(namespace: str, name: str, *given: Any) -> None:  # noqa: ANN401
    register_derivative(namespace, name, *given)
    torch.library.register_autograd(f"{namespace}::{name}_backward", _refuse)


_register(triton_operators.NAMESPACE, "edge_loss", triton_operators.fake, _gradients_of_sums)
_register_reduce(triton_operators.NAMESPACE)
if not library.MISSING:
    importlib.import_module("edgeloss._C")
    register("edgeloss")
