"""The fused kernels: calls them, and tells torch what their operators return and how they are differentiated."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgeloss import library
from edgeloss.inputs import Inputs, result_dtype
from edgeloss.options import Options, Validate, radius_per_axis, spacing_per_axis
from edgeloss.reduction import REDUCED_ROWS, Evaluation, TermMaps
from edgeloss.reference import NO_POWER

operators = torch.ops.edgeloss
_VALIDATE: dict[Validate, int] = {"never": 0, "async": 1, "sync": 2}


class Outputs(NamedTuple):
    """What ``edge_loss`` returns: the sums, the maps if asked for, and what the backward pass reads.

    Attributes:
        sums: [9] float64, a row for each :class:`edgeloss.reduction.SumRow`.
        cross_entropy: [1, pixels], or [0, pixels] where not asked for, like every map.
        same_side: as cross_entropy.
        other_side: as cross_entropy.
        false_edge: as cross_entropy.
        sides: [B, *S] int16.
        flags: [1, pixels] uint8, 1 at edge pixels; [0, pixels] where nothing reads it.
        stats: [2, pixels] or [0, pixels].
        listed: int32.
        numbers: [R, pixels].
        distance: [1, pixels] where the kernels search for it, else [0, pixels].
    """

    sums: Tensor
    cross_entropy: Tensor
    same_side: Tensor
    other_side: Tensor
    false_edge: Tensor
    sides: Tensor
    flags: Tensor
    stats: Tensor
    listed: Tensor
    numbers: Tensor
    distance: Tensor


def evaluate(inputs: Inputs, options: Options, *, edges: bool, false_edges: bool, maps: bool) -> Evaluation:
    """Return what :func:`edgeloss.reference.evaluate` does, by the fused kernels, which check the labels too."""
    logits, target, dims = inputs.logits, inputs.target, inputs.target.dim() - 1
    # Beyond 1e30 all distances are far, and no difference of two may overflow.
    near = None if inputs.distance is None else inputs.distance.clamp(max=1e30).to(result_dtype(logits)).contiguous()
    outputs = Outputs(
        *operators.edge_loss(
            logits if is_evenly_spaced(logits) else logits.contiguous(),
            target.contiguous(),
            *(
                None if weight is None else weight.contiguous()
                for weight in (inputs.weight, inputs.pixel_weight, inputs.edge_class_weight)
            ),
            near,
            options.ignore_index,
            options.label_smoothing,
            radius_per_axis(options.radius, dims),
            0.0 if abs(options.power) <= NO_POWER else options.power,
            0.0 if options.decay is None else options.decay,
            spacing_per_axis(options.spacing, dims),
            edges,
            false_edges,
            maps,
            _VALIDATE[options.validate],
        )
    )
    terms = _term_maps(outputs, inputs, options, edges, false_edges) if maps else None
    return Evaluation(outputs.sums[REDUCED_ROWS], terms)


def _term_maps(outputs: Outputs, inputs: Inputs, options: Options, edges: bool, false_edges: bool) -> TermMaps:
    cross_entropy = outputs.cross_entropy.view(inputs.target.shape)

    def term(part: Tensor, there: bool) -> Tensor:
        return part.view_as(cross_entropy) if there else torch.zeros_like(cross_entropy)

    edge_mask = torch.zeros_like(cross_entropy, dtype=torch.bool)
    if edges:
        edge_mask = outputs.flags.view_as(cross_entropy) == 1
    distance = inputs.distance
    if distance is None and options.decay is not None:
        distance = outputs.distance.view_as(cross_entropy) if edges else torch.full_like(cross_entropy, math.inf)
    return TermMaps(
        cross_entropy=cross_entropy,
        same_side=term(outputs.same_side, edges),
        other_side=term(outputs.other_side, edges),
        false_edge=term(outputs.false_edge, false_edges),
        edge_mask=edge_mask,
        # A copy: the backward pass needs the field as it is.
        distance=None if distance is None else distance.to(cross_entropy.dtype, copy=True),
    )


def is_evenly_spaced(x: Tensor) -> bool:
    """Whether the pixels of an image lie at equal steps in memory, as in contiguous and channels_last tensors."""
    axes = [a for a in range(2, x.dim()) if x.size(a) != 1]
    return all(x.stride(a) == x.stride(b) * x.size(b) for a, b in pairwise(axes))


# What torch needs to know of the operators: the shapes they give, and their derivatives.


def _edge_loss_fake(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pixel_weight: Tensor | None,
    edge_class_weight: Tensor | None,
    distance: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    radius: list[int],
    power: float,
    decay: float,
    spacing: list[float],
    edges: bool,
    false_edges: bool,
    maps: bool,
    validate: int,
    device: str | None = None,
) -> tuple[Tensor, ...]:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    pixels = target.numel()

    def empty(count: int, dtype: torch.dtype = dtype) -> Tensor:
        return logits.new_empty((count, pixels), dtype=dtype)

    searches = edges and decay > 0 and distance is None
    numbers = 2 * ((1 if power in (0.0, 1.0) else 2) + (decay > 0))
    # The state that forward leaves to backward is in part each device's own.
    if (device or logits.device.type) == "cpu":
        flags = int(edges and (maps or searches))
        stats = 2 if logits.shape[1] > 2 or logits.shape[2:] != target.shape[1:] else 0
        listed = pixels + (3 if false_edges else 2) * math.prod(target.shape[:-1]) if edges else 0
        if false_edges:
            numbers += 1 if power == 0 else 3
    else:
        flags, stats, listed = int(edges), 2, 0
    return (
        logits.new_empty(9, dtype=torch.float64),
        empty(int(maps)),
        empty(int(maps and edges)),
        empty(int(maps and edges)),
        empty(int(maps and false_edges)),
        logits.new_empty(target.shape, dtype=torch.int16),
        empty(flags, torch.uint8),
        empty(stats),
        logits.new_empty(listed, dtype=torch.int32),
        empty(numbers * edges),
        empty(int(searches)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    logits, _, *weights, distance, _, smoothing, radius, power, decay, _, _, _, _, _ = inputs
    field = output[10] if distance is None else distance
    ctx.save_for_backward(logits, *weights, *output[5:10], field)
    ctx.options = smoothing, radius, power, decay
    ctx.set_materialize_grads(False)


def _edge_loss_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    saved = ctx.saved_tensors
    sums = grads[0]
    if sums is None:
        sums = saved[0].new_zeros(9, dtype=torch.float64)
    of_maps = [None if grad is None or not grad.numel() else grad.contiguous() for grad in grads[1:5]]
    gradient = operators.edge_loss_backward(sums.contiguous(), *of_maps, *saved, *ctx.options)
    return (gradient, *[None] * 15)


def _neighbor_nll_fake(
    logits: Tensor, index: Tensor, weight: Tensor, mask: Tensor | None, radius: list[int]
) -> tuple[Tensor, ...]:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    value = logits.new_empty((logits.shape[0], *logits.shape[2:]), dtype=dtype)
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
    return gradient, None, None, None, None


def _refuse(ctx: Any, *grads: Tensor | None) -> None:  # noqa: ANN401
    raise RuntimeError("the fused loss can't be differentiated twice; pass backend='reference'")


def register(library: str, device: str | None = None) -> None:
    """Tell torch of a library's operators; ``device`` is the one whose state they keep, by default the logits'."""
    torch.library.register_fake(f"{library}::edge_loss", partial(_edge_loss_fake, device=device))
    torch.library.register_autograd(f"{library}::edge_loss", _edge_loss_backward, setup_context=_setup_context)
    torch.library.register_fake(f"{library}::edge_loss_backward", lambda *args: torch.empty_like(args[5]))
    torch.library.register_autograd(f"{library}::edge_loss_backward", _refuse)
    torch.library.register_fake(f"{library}::neighbor_nll", _neighbor_nll_fake)
    torch.library.register_autograd(
        f"{library}::neighbor_nll", _neighbor_nll_backward, setup_context=_neighbor_nll_setup_context
    )
    torch.library.register_fake(f"{library}::neighbor_nll_backward", lambda *args: torch.empty_like(args[1]))
    torch.library.register_autograd(f"{library}::neighbor_nll_backward", _refuse)


if not library.MISSING:
    register("edgeloss")
