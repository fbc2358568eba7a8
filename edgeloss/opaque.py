"""From functions with shapes that depend on data to operators in the graphs of torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R", Tensor, tuple[Tensor, Tensor])

# The state of a thread in which autograd records; in an operator it does not.
_RECORDING = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def save(ctx: Any, values: Sequence[Any]) -> None:  # noqa: ANN401
    """Store tensors and other values for a backward pass."""
    ctx.save_for_backward(*(value for value in values if isinstance(value, Tensor)))
    ctx.others = [None if isinstance(value, Tensor) else (value,) for value in values]


def saved(ctx: Any) -> list[Any]:  # noqa: ANN401
    """Return what :func:`save` has stored."""
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if other is None else other[0] for other in ctx.others]


def opaque_to_compilers(shapes: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function one operator where a graph is recorded, and leave it as it is elsewhere.

    The function returns new tensors, and is differentiable by its first argument; the operator is so once. All
    parameters have annotations that a schema can express.

    Args:
        shapes: returns what the function does, of any values; receives the same arguments.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        eager: Callable[..., R] = function
        name = f"edgeloss::{function.__name__}"
        operator = torch.library.custom_op(name, function, mutates_args=())
        operator.register_fake(shapes)
        arguments = torch.library.infer_schema(function, mutates_args=()).rpartition(" -> ")[0]

        def gradient(grads: list[Tensor], x: Tensor, *args: Any) -> Tensor:  # noqa: ANN401
            with torch._C._ForceDispatchKeyGuard(*_RECORDING), torch.enable_grad():
                leaf = x.detach().requires_grad_()
                values: Any = eager(leaf, *args)
                return torch.autograd.grad(values, leaf, grads)[0]

        schema = f"(Tensor[] grads, {arguments[1:]} -> Tensor"
        backward = torch.library.custom_op(f"{name}_backward", gradient, mutates_args=(), schema=schema)
        backward.register_fake(lambda grads, x, *_: torch.empty_like(x))

        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: R) -> None:  # noqa: ANN401
            save(ctx, inputs)

        def differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
            inputs: list[Any] = saved(ctx)
            return (backward(list(grads), *inputs), *(None for _ in inputs[1:]))

        operator.register_autograd(differentiate, setup_context=setup_context)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return (operator if torch.compiler.is_compiling() else function)(*args, **kwargs)

        return call

    return decorate
