"""A function of the logits, part by part: memory is that of one part, in the backward pass too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

PART = 2**20  # values that are computed at once
Part: TypeAlias = tuple[slice, slice]  # along the batch, and along the first spatial axis
WHOLE = slice(None)


def of_images(count: int, size: int) -> list[Part]:
    """Return parts of a number of images of ``size`` values: small ones together, large ones one after another."""
    rows = max(1, PART // max(1, size))
    return [(slice(i, i + rows), WHOLE) for i in range(0, max(1, count), rows)]


def of_rows(shape: Sequence[int], size: int) -> list[Part]:
    """Return parts of the rows along the first spatial axis of images [B, *S], with ``size`` values per row."""
    rows = max(1, PART // max(1, size))
    if rows >= shape[1] or not shape[0]:
        return of_images(shape[0], size * shape[1])
    return [(slice(b, b + 1), slice(i, i + rows)) for b in range(shape[0]) for i in range(0, shape[1], rows)]


def by_parts(
    function: Callable[..., Tensor], parts: Sequence[Part], x: Tensor, *others: Tensor
) -> tuple[Tensor, Tensor]:
    """Return x, or a view of it, and what the function returns of each part, concatenated.

    Of several parts, the backward pass computes each again, and adds their gradients to that of the view. x is
    [M, C, *S] and the others are [M, *S]; where the parts are whole along S, of any shape [M, N, ...].
    """
    if len(parts) == 1:
        return x, function(x, *others)
    is_transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if x.requires_grad and torch.is_grad_enabled() and not is_transformed:
        return cast("tuple[Tensor, Tensor]", _ByParts.apply(function, parts, x, *others))  # type: ignore[no-untyped-call]
    return x, torch.cat([function(*part) for part in _split(parts, x, *others)])


def _split(parts: Sequence[Part], x: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for batch, row in parts:
        yield x[batch, :, row], *(other[batch, row] for other in others)


class _ByParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        function: Callable[..., Tensor],
        parts: Sequence[Part],
        x: Tensor,
        *others: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, *others)
        ctx.function, ctx.parts = function, parts
        ctx.set_materialize_grads(False)
        values = [function(*part) for part in _split(parts, x, *others)]
        ctx.sizes = [len(part) for part in values]
        return x.view_as(x), torch.cat(values)

    @staticmethod
    def backward(ctx: Any, of_x: Tensor | None, of_values: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        if of_values is None:
            return None, None, of_x, *(None for _ in ctx.saved_tensors[1:])
        x, *others = ctx.saved_tensors
        nothing = (None for _ in others)
        if torch.is_grad_enabled():  # to be differentiated again
            values = torch.cat([ctx.function(*part) for part in _split(ctx.parts, x, *others)])
            (gradient,) = torch.autograd.grad(values, x, of_values, create_graph=True)
            return None, None, gradient if of_x is None else gradient + of_x, *nothing
        gradient = torch.zeros_like(x) if of_x is None else of_x  # safe to modify: only this node holds it
        for of_part, (batch, row), part in zip(
            torch.split(of_values, ctx.sizes), ctx.parts, _split(ctx.parts, x, *others), strict=True
        ):
            with torch.enable_grad():
                leaf = part[0].detach().requires_grad_()
                found = ctx.function(leaf, *part[1:])
            gradient[batch, :, row] += torch.autograd.grad(found, leaf, of_part)[0]
        return None, None, gradient, *nothing
