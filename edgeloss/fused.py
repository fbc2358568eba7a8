"""The fused kernels: calls them, and tells torch what their operators return and how they are differentiated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from edgeloss import library, reference
from edgeloss.options import Validate
from edgeloss.reference import Evaluation, LossMaps

operators = torch.ops.edgeloss
_VALIDATE: dict[Validate, int] = {"never": 0, "async": 1, "sync": 2}


def evaluate(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None,
    edge_class_weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    other_side_weight: float,
    same_side_weight: float,
    radius: Sequence[int],
    power: float,
    decay: float | None,
    spacing: Sequence[float],
    pixel_weight: Tensor | None,
    distance: Tensor | None,
    edges: bool,
    false_edges: bool,
    maps: bool,
    validate: Validate,
) -> Evaluation:
    """What :func:`edgeloss.reference.evaluate` finds, by the fused kernels, which check the labels too."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    # Beyond 1e30 all are far, and no difference of two may overflow.
    near = None if distance is None else distance.clamp(max=1e30).to(dtype).contiguous()
    sums, ce, same, other, false, _, flags, _, _, _, field = operators.edge_loss(
        logits if _evenly_spaced(logits) else logits.contiguous(),
        target.contiguous(),
        None if weight is None else weight.contiguous(),
        None if pixel_weight is None else pixel_weight.contiguous(),
        None if edge_class_weight is None else edge_class_weight.contiguous(),
        near,
        ignore_index,
        label_smoothing,
        list(radius),
        0.0 if abs(power) <= reference.NO_POWER else power,
        0.0 if decay is None else decay,
        list(spacing),
        edges,
        false_edges,
        maps,
        _VALIDATE[validate],
    )
    found = None
    if maps:
        shape = target.shape
        ce, same, other, false = (
            part.view(shape) if there else torch.zeros_like(ce).view(shape)
            for part, there in ((ce, True), (same, edges), (other, edges), (false, false_edges))
        )
        if distance is None and decay is not None:
            distance = field.view(shape) if edges else torch.full_like(ce, math.inf)
        found = LossMaps(
            ce,
            same,
            other,
            false,
            reference.edge(other, same, other_side_weight, same_side_weight),
            flags.view(shape) == 1 if edges else torch.zeros(shape, dtype=torch.bool, device=target.device),
            None if distance is None else distance.to(dtype, copy=True),  # backward needs the field as it is
        )
    wide = sums.detach()
    return Evaluation(sums[:4], (wide[4], wide[5]), (wide[7], wide[6]), found)


def neighbor_nll(logits: Tensor, index: Tensor, weight: Tensor, mask: Tensor | None, radius: Sequence[int]) -> Tensor:
    """What :func:`edgeloss.reference.neighbor_nll` finds, by the fused kernels.

    Without a mask it is set everywhere. A centre whose index is out of range, or whose indicator has no class, does not
    count.
    """

    def spaced(x: Tensor) -> Tensor:
        return x if x.dim() == logits.dim() and _evenly_spaced(x) else x.contiguous()

    mask = None if mask is None else mask.contiguous()
    value: Tensor = operators.neighbor_nll(*map(spaced, (logits, index, weight)), mask, list(radius))[0]
    return value


def _evenly_spaced(x: Tensor) -> bool:
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
