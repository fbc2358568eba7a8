"""From a call to the sums of the loss and the loss, by the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from edgeloss._checks.inputs import Call, check_labels_of, is_checked, result_dtype
from edgeloss._checks.options import AFTER_SUMS
from edgeloss._kernels import library, operators
from edgeloss._kernels.arguments import Arguments, KernelOptions, Outputs, arguments_of, contiguous
from edgeloss._reduction import (
    Combined,
    EdgeRow,
    LossMaps,
    Places,
    Regions,
    SumRow,
    Sums,
    edge_term,
    mean_slope,
    ratio,
    weigh,
)
from edgeloss._reference.custom_ops import is_evenly_spaced

_COUNT = len(Outputs._fields)
_TENSORS = len(Arguments._fields) - len(KernelOptions._fields)  # the first arguments


def evaluate(call: Call) -> Sums:
    """Return what :func:`edgeloss._reference.terms.evaluate` does; labels are checked too."""
    inputs, options, uses_triton = call.inputs, call.options, library.is_of_triton(call.inputs.logits)
    if uses_triton and is_checked(inputs.target, options.validate):
        check_labels_of(inputs, options)
    arguments = arguments_of(call)
    tensors, numbers, is_compiling = arguments[:_TENSORS], arguments[_TENSORS:], torch.compiler.is_compiling()
    returned = operators.run("edge_loss", tensors, *numbers, of_gpus=uses_triton, has_derivative=is_compiling)
    if not is_compiling:
        is_read = not uses_triton and type(returned[0]) is Tensor and is_checked(inputs.target, options.validate)
        if is_read and returned[0].tolist()[SumRow.WRONG] > 0:  # to compare one as a tensor takes ten times as long
            check_labels_of(inputs, options)
    outputs = Outputs(*returned[:_COUNT])
    regions = Regions(outputs.region, outputs.image_weight) if arguments.regions else None
    of_pixels = _loss_maps(call, outputs.maps, returned[-1]) if call.maps else None
    edge_sums = outputs.edge_sums
    if inputs.tables > 1:  # those of a multilabel call by image
        edge_sums = edge_sums.view(len(EdgeRow), -1, inputs.tables * edge_sums.shape[2])
    kernels_of_call = _Call(uses_triton, arguments, outputs, returned[_COUNT:], call)
    return Sums(outputs.sums, edge_sums, of_pixels, regions, kernels_of_call)


class _Call:
    """A call of the kernels; it is an :class:`edgeloss._reduction.Kernels`."""

    def __init__(
        self,
        of_gpus: bool,
        given: Arguments,
        outputs: Outputs,
        state: Sequence[Tensor],
        call: Call,
    ) -> None:
        self._of_gpus, self._given, self._outputs, self._state = of_gpus, given, outputs, state
        self._inputs, self._options = call.inputs, call.options

    def reduce(self, normalizer: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss, 0-d, and its figures."""
        options, inputs, outputs = self._options, self._inputs, self._outputs
        is_compiling = torch.compiler.is_compiling()
        loss, slopes, values = operators.run(
            "reduce",
            (*outputs[:4], contiguous(inputs.edge_class_weight), normalizer),
            inputs.tables,
            inputs.is_balanced and (normalizer is None or len(normalizer) > 2),
            options.reduction == "mean",
            result_dtype(inputs.logits) == torch.float64,
            *[getattr(options, name) for name in AFTER_SUMS],
            of_gpus=self._of_gpus,
            has_derivative=is_compiling,
        )
        return (loss if is_compiling else self._attach(loss, slopes, None)), values

    def attach(self, loss: Tensor, combined: Combined, edges: Places, of_region: Tensor | None) -> Tensor:
        """Make a map of the loss a function of the logits."""
        inputs, options, outputs = self._inputs, self._options, self._outputs
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
            total = edges.sum(weigh(of_pixels, edge)).view_as(combined.t)
            own, others = (edges.spread(x.to(edge)) for x in (at_all, weigh(total, on_edges)))
            of_edges = of_pixels * own + weigh(others, inputs.pixel_weight)
            of_regions = outputs.image_weight
            if of_region is not None:
                of_regions = weigh(grad, of_region).flatten(1).sum(1, dtype=table.dtype).view(-1, inputs.tables).sum(1)
            of_terms = [
                table.new_full((1,), options.ce_weight),
                *(table.new_full((table.numel(),), w) for w in weights),
            ]
            return torch.cat([*of_terms, of_regions]), of_pixels.to(edge).contiguous(), of_edges.contiguous()

        return self._attach(loss, None, slopes_of)

    def _attach(self, loss: Tensor, *slopes: Any) -> Tensor:  # noqa: ANN401
        if not self._given.logits.requires_grad or not torch.is_grad_enabled():
            return loss
        # In one tuple, for less work per argument, and so that the loss is a new tensor to autograd, not an argument.
        given = self._of_gpus, self._given, self._state, loss, *slopes
        attached: Tensor = _EdgeLoss.apply(self._given.logits, given)  # type: ignore[no-untyped-call]
        return attached


class _EdgeLoss(torch.autograd.Function):
    """The loss by what ``edge_loss`` has returned, as a function of its logits, for less work per call."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, of_call: tuple[Any, ...]) -> Tensor:  # noqa: ANN401
        loss: Tensor
        of_gpus, given, state, loss, slopes, slopes_of = of_call
        ctx.save_for_backward(slopes, logits, given.weight, given.pixel_weight, given.distance, *state)
        ctx.of_gpus, ctx.options, ctx.slopes_of = of_gpus, given[-len(KernelOptions._fields) :], slopes_of
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # With autograd: torch.utils.checkpoint computes them again.
        slopes, logits, weight, v, *state = ctx.saved_tensors
        scale: Tensor | None = grad
        of_edges = None
        if ctx.slopes_of is not None:
            scale, (slopes, v, of_edges) = None, ctx.slopes_of(grad)
        tensors = scale, slopes, of_edges, logits, weight, v, *state
        gradient = operators.run(
            "edge_loss_backward",
            tensors,
            *ctx.options,
            of_gpus=ctx.of_gpus,
            has_derivative=torch.is_grad_enabled(),  # the operator refuses to be differentiated twice
        )
        return gradient, None


def _loss_maps(call: Call, maps: Tensor, memory: Tensor) -> LossMaps:
    cross_entropy, same_side, other_side = maps.unbind()
    pixels = cross_entropy.numel()
    mask = memory[:pixels].view(torch.bool).clone() if call.edges else memory.new_zeros(pixels, dtype=torch.bool)
    edge = edge_term(other_side, same_side, call.options)
    return LossMaps(cross_entropy, same_side, other_side, edge, mask.view_as(edge), call.inputs.distance)


def pair_terms(
    x: Tensor,
    y: Tensor,
    valid: Tensor,
    mask: Tensor,
    log_w: Tensor | None,
    radius: Sequence[int],
    power: float,
) -> tuple[Tensor, Tensor]:
    """Return what :func:`edgeloss._reference.terms.edge_terms` does, by the kernels that nvcc compiles."""
    label = torch.where(valid, y, -1).to(torch.int16).contiguous()
    decays = None if log_w is None else -log_w.to(x.dtype).contiguous()
    x = x if is_evenly_spaced(x) else x.contiguous()
    terms = operators.of_library.pair_terms(x, label, mask.contiguous(), decays, power, list(radius))[0]
    same_side, other_side = terms
    return same_side, other_side


def neighbor_nll(logits: Tensor, index: Tensor, weight: Tensor, mask: Tensor | None, radius: Sequence[int]) -> Tensor:
    """Return what :func:`edgeloss._reference.neighbor_nll.by_torch` does, by the kernels.

    Without a mask it is set everywhere. A pixel whose index is out of range, or whose indicator has no class, is left
    out.
    """

    def spaced(x: Tensor) -> Tensor:
        return x if x.dim() == logits.dim() and is_evenly_spaced(x) else x.contiguous()

    value: Tensor
    value, *_ = operators.of_library.neighbor_nll(*map(spaced, (logits, index, weight)), contiguous(mask), list(radius))
    return value
