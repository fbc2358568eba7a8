"""The fused kernels: calls them, and registers their fake implementations and derivatives with torch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss import library, region
from edgeloss.inputs import Inputs, result_dtype, widest
from edgeloss.neighborhoods import FAR
from edgeloss.options import Options, Validate, radius_per_axis, spacing_per_axis
from edgeloss.reduction import Evaluation, weighted_sum
from edgeloss.reference import NO_POWER

operators = torch.ops.edgeloss
_VALIDATE: dict[Validate, int] = {"never": 0, "async": 1, "sync": 2}
_ROWS = [0, 1, 2, 4, 5, 6, 7, 8]
_NO_LABEL = -(2**63)  # that the kernels take for ignore_index=None


class SavedState(NamedTuple):
    """What ``edge_loss`` leaves to its backward pass: all but ``label`` are flat.

    Attributes:
        label: [B, *S] int16, the class k of a pixel, -1 where it does not count.
        flags: uint8, 1 at edges; empty where nothing reads it.
        stats: the two numbers of each pixel's softmax; empty where the kernels form them again.
        edge_list: int32, the edge pixels row by row.
        sides: numbers of both sides of each edge pixel.
        field: the distance of each pixel; empty where the kernels do not search for it.
    """

    label: Tensor
    flags: Tensor
    stats: Tensor
    edge_list: Tensor
    sides: Tensor
    field: Tensor


class Outputs(NamedTuple):
    """What ``edge_loss`` returns: sums and counts, the maps if asked for, and what the backward pass reads.

    Attributes:
        sums: [9] float64, a row for each :class:`edgeloss.reduction.SumRow`.
        edge_counts: [C] int64, the edge pixels of each class, of a multilabel call [2C], or empty where not asked for.
        cross_entropy: [pixels], or empty where not asked for, like every map.
        same_side: as cross_entropy.
        other_side: as cross_entropy.
        unused: empty.
        saved: what the backward pass reads.
    """

    sums: Tensor
    edge_counts: Tensor
    cross_entropy: Tensor
    same_side: Tensor
    other_side: Tensor
    unused: Tensor
    saved: SavedState

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor]) -> Outputs:
        """Name the results of the operator."""
        sums, edge_counts, cross_entropy, same_side, other_side, unused, *saved = tensors
        return cls(sums, edge_counts, cross_entropy, same_side, other_side, unused, SavedState(*saved))


def evaluate(inputs: Inputs, options: Options, *, edges: bool, count_edges: bool) -> Evaluation:
    """Return what :func:`edgeloss.reference.evaluate` does, by the fused kernels, which check the labels too."""
    regions = None
    if options.region_weight > 0:
        inputs, regions = region.evaluate(inputs, options)
    logits, target, dims = inputs.logits, inputs.target, inputs.target.dim() - 1
    decay, unit = _decay_and_unit(options)
    distance = inputs.distance
    if distance is not None:
        wide = (distance.to(widest(distance.device)) / unit).clamp(max=FAR)
        distance = wide.to(result_dtype(logits)).contiguous()
    given = _EdgeLossInputs(
        logits if is_evenly_spaced(logits) else logits.contiguous(),
        target.contiguous(),
        _contiguous(inputs.weight),
        _contiguous(inputs.pixel_weight),
        _contiguous(inputs.edge_class_weight),
        distance,
        _NO_LABEL if options.ignore_index is None else options.ignore_index,
        options.label_smoothing,
        radius_per_axis(options.radius, dims),
        0.0 if abs(options.power) <= NO_POWER else options.power,
        decay,
        [s / unit for s in spacing_per_axis(options.spacing, dims)],
        edges,
        False,
        False,
        count_edges,
        _VALIDATE[options.validate],
        inputs.tables,
    )
    if torch.compiler.is_compiling():  # the operator has its own derivative
        outputs, weigh = Outputs.from_tensors(operators.edge_loss(*given)), None
    else:
        with torch._C._AutoDispatchBelowAutograd():
            outputs = Outputs.from_tensors(operators.edge_loss.default(*given))
        weigh = partial(_weigh, given, outputs, regions)
    counts = None
    if count_edges:
        counts = outputs.edge_counts if inputs.multilabel_classes is None else outputs.edge_counts.view(-1, 2)
    return Evaluation(outputs.sums[_ROWS], None, counts, weigh, regions)


def _weigh(
    given: _EdgeLossInputs,
    outputs: Outputs,
    regions: Any,  # noqa: ANN401
    factors: Tensor,
    of_regions: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    loss: Tensor = _EdgeLoss.apply(given.logits, given, outputs, factors, dtype)  # type: ignore[no-untyped-call]
    return loss if regions is None else loss + torch.dot(regions.value, of_regions).to(dtype)  # type: ignore[arg-type]


def _contiguous(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.contiguous()


def _decay_and_unit(options: Options) -> tuple[float, float]:
    """Return the decay, 0 for none, in a unit of length that suits it: a power of two, so that nothing is rounded."""
    if options.decay is None:
        return 0.0, 1.0
    unit = 2.0 ** math.ceil(math.log2(options.decay))
    return options.decay / unit, unit


def is_evenly_spaced(x: Tensor) -> bool:
    """Return whether the pixels of each image are equally spaced in memory, as in contiguous tensors."""
    if x.is_contiguous():
        return True
    axes = [a for a in range(2, x.dim()) if x.size(a) != 1]
    return all(x.stride(a) == x.stride(b) * x.size(b) for a, b in pairwise(axes))


# What torch needs to know of the operators: the shapes they return, and their derivatives.


class _EdgeLossInputs(NamedTuple):
    """The arguments of the operator ``edge_loss``."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    pixel_weight: Tensor | None
    edge_class_weight: Tensor | None
    distance: Tensor | None
    ignore_index: int
    label_smoothing: float
    radius: list[int]
    power: float
    decay: float
    spacing: list[float]
    edges: bool
    false_edges: bool  # False
    maps: bool
    count_edges: bool
    validate: int
    tables: int


def _edge_loss_fake(
    *args: Any,  # noqa: ANN401
    output_sizes: Callable[..., Sequence[tuple[str, int, int, int, int]]],
    **kwargs: Any,  # noqa: ANN401
) -> tuple[Tensor, ...]:
    inputs = _EdgeLossInputs(*args, **kwargs)
    logits, target = inputs.logits, inputs.target
    in_place = int(logits.shape[1]) if logits.shape[2:] == target.shape[1:] else 0  # 0 of upsampled logits
    options = inputs.power, inputs.decay, inputs.edges, inputs.false_edges, inputs.maps, inputs.count_edges
    sizes = output_sizes(*options, inputs.distance is not None, in_place, inputs.tables)
    *returned, saved = Outputs.from_tensors([_empty_output(size, logits, target) for size in sizes])
    return (*returned, *saved._replace(label=saved.label.new_empty(target.shape)))


def _empty_output(size: tuple[str, int, int, int, int], logits: Tensor, target: Tensor) -> Tensor:
    dtype, constant, per_pixel, per_row, per_class = size
    pixels, rows, classes = target.numel(), math.prod(target.shape[:-1]), max(2, logits.shape[1])
    return logits.new_empty(
        constant + per_pixel * pixels + per_row * rows + per_class * classes,
        dtype=result_dtype(logits) if dtype == "real" else getattr(torch, dtype),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    _save(ctx, _EdgeLossInputs(*inputs), Outputs.from_tensors(output).saved)


def _save(ctx: Any, given: _EdgeLossInputs, saved: SavedState) -> None:  # noqa: ANN401
    if given.distance is not None:
        saved = saved._replace(field=given.distance)
    ctx.save_for_backward(given.logits, given.weight, given.pixel_weight, given.edge_class_weight, *saved)
    ctx.options = given.label_smoothing, given.radius, given.power, given.decay, given.tables
    ctx.set_materialize_grads(False)


def _edge_loss_backward(
    ctx: Any,  # noqa: ANN401
    sums: Tensor | None,
    edge_counts: None = None,
    ce: Tensor | None = None,
    same: Tensor | None = None,
    other: Tensor | None = None,
    unused: Tensor | None = None,
    *saved: None,
) -> tuple[Tensor | None, ...]:
    terms = None if sums is None else sums[:4].contiguous()
    return _only(_gradient(ctx, ctx.saved_tensors, terms, ce, same, other, unused), len(_EdgeLossInputs._fields))


def _gradient(
    ctx: Any,  # noqa: ANN401
    state: tuple[Tensor, ...],
    terms: Tensor | None,
    *maps: Tensor | None,
) -> Tensor:
    """Return the gradient of the logits from those of the sums of the terms, and of the maps."""
    if terms is None:
        terms = state[0].new_zeros(len(maps), dtype=torch.float64)
    of_maps = [None if grad is None or not grad.numel() else grad.contiguous() for grad in maps]
    gradient: Tensor = operators.edge_loss_backward.default(terms, *of_maps, *state, *ctx.options)
    return gradient


class _EdgeLoss(torch.autograd.Function):
    """What the operator ``edge_loss`` has returned as a function of its logits, with less work around each call.

    With a factor of each term the weighted sum of the terms; without factors the maps.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits: Tensor,
        given: _EdgeLossInputs,
        outputs: Outputs,
        factors: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor | tuple[Tensor, ...]:
        _save(ctx, given, outputs.saved)
        ctx.factors = factors
        ctx.set_materialize_grads(factors is not None)
        if factors is not None:
            return weighted_sum(outputs.sums[_ROWS], None, factors, None, dtype)
        return outputs.cross_entropy, outputs.same_side, outputs.other_side, outputs.unused

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        terms, maps = (None, grads) if ctx.factors is None else (F.pad(grads[0] * ctx.factors, [0, 1]), [None] * 4)
        state = ctx.saved_tensors  # with autograd: torch.utils.checkpoint computes them again
        if torch.is_grad_enabled():  # the operator refuses to be differentiated twice
            return _only(_gradient(ctx, state, terms, *maps), 5)
        with torch._C._AutoDispatchBelowAutograd():
            return _only(_gradient(ctx, state, terms, *maps), 5)


def _only(gradient: Tensor, arguments: int) -> tuple[Tensor | None, ...]:
    """Return the gradients of an operator that has one of its first argument alone."""
    return (gradient, *(None for _ in range(1, arguments)))


def _neighbor_nll_fake(
    logits: Tensor, index: Tensor, weight: Tensor, mask: Tensor | None, radius: list[int]
) -> tuple[Tensor, ...]:
    value = logits.new_empty((logits.shape[0], *logits.shape[2:]), dtype=result_dtype(logits))
    pixels = value.numel()
    return (
        value,
        value.new_empty((2, pixels)),
        value.new_empty((1, pixels), dtype=weight.dtype),
        value.new_empty((3, pixels)),
    )


def _neighbor_nll_setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    logits, index, weight, _, radius = inputs
    ctx.save_for_backward(logits, index, weight, *output[1:])
    ctx.radius = radius


def _neighbor_nll_backward(ctx: Any, grad: Tensor, *of_state: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    gradient = operators.neighbor_nll_backward(grad.contiguous(), *ctx.saved_tensors, ctx.radius)
    return _only(gradient, arguments=5)


def _refuse(ctx: Any, *grads: Tensor | None) -> None:  # noqa: ANN401
    raise RuntimeError("the fused loss can't be differentiated twice; pass backend='reference'")


def register(namespace: str, compiled: Any) -> None:  # noqa: ANN401
    """Register shapes and derivatives of the operators.

    Args:
        namespace: of the operators.
        compiled: the module that holds them.
    """
    fake = partial(_edge_loss_fake, output_sizes=compiled.output_sizes)
    torch.library.register_fake(f"{namespace}::edge_loss", fake)
    torch.library.register_autograd(f"{namespace}::edge_loss", _edge_loss_backward, setup_context=_setup_context)
    torch.library.register_fake(f"{namespace}::edge_loss_backward", lambda *args: torch.empty_like(args[5]))
    torch.library.register_autograd(f"{namespace}::edge_loss_backward", _refuse)
    torch.library.register_fake(f"{namespace}::neighbor_nll", _neighbor_nll_fake)
    torch.library.register_autograd(
        f"{namespace}::neighbor_nll", _neighbor_nll_backward, setup_context=_neighbor_nll_setup_context
    )
    torch.library.register_fake(f"{namespace}::neighbor_nll_backward", lambda *args: torch.empty_like(args[1]))
    torch.library.register_autograd(f"{namespace}::neighbor_nll_backward", _refuse)


if not library.MISSING:
    register("edgeloss", importlib.import_module("edgeloss._C"))
