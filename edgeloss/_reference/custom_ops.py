"""From functions with shapes that depend on data to operators in the graphs of torch.compile and torch.export.

The operators of the kernels have their shapes and derivatives registered in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R", Tensor, tuple[Tensor, Tensor])

# The state of a thread in which autograd records; in an operator it does not.
_RECORDING = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def opaque_to_compilers(shapes: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function one operator where a graph is recorded, and leave it as it is elsewhere.

    The function returns new tensors, and is differentiable by its first argument; the operator is so once. All
    parameters have annotations that a schema can express.

    Args:
        shapes: returns what the function does, of any values; receives the same arguments.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        eager: Callable[..., R] = function
        name = function.__name__
        operator = torch.library.custom_op(f"edgeloss::{name}", function, mutates_args=())
        arguments = torch.library.infer_schema(function, mutates_args=()).rpartition(" -> ")[0]

        def gradient(grads: list[Tensor], x: Tensor, *args: Any) -> Tensor:  # noqa: ANN401
            with torch._C._ForceDispatchKeyGuard(*_RECORDING), torch.enable_grad():
                leaf = x.detach().requires_grad_()
                values: Any = eager(leaf, *args)
                return torch.autograd.grad(values, leaf, grads)[0]

        schema = f"(Tensor[] grads, {arguments[1:]} -> Tensor"
        torch.library.custom_op(f"edgeloss::{name}_backward", gradient, mutates_args=(), schema=schema)
        register_derivative("edgeloss", name, shapes, lambda *grads: (list(grads),))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return (operator if torch.compiler.is_compiling() else function)(*args, **kwargs)

        return call

    return decorate


def register_derivative(
    namespace: str,
    name: str,
    shapes: Callable[..., Any],
    gradients: Callable[..., tuple[Any, ...]],
) -> None:
    """Register the shapes of an operator, and as its derivative the operator of that name and ``_backward``.

    This one takes what ``gradients`` makes of those of the results, then the arguments and results that it names, and
    returns the gradient of the first argument.
    """
    operator, backward = (getattr(getattr(torch.ops, namespace), n).default for n in (name, f"{name}_backward"))
    arguments, takes = operator._schema.arguments, [argument.name for argument in backward._schema.arguments]
    names = [value.name for value in (*arguments, *operator._schema.returns)]
    read, first = [names.index(name) for name in takes if name in names], takes.index(names[0])

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
        values = (*inputs, *output) if isinstance(output, tuple) else (*inputs, output)
        ctx.save_for_backward(*(values[i] for i in read if isinstance(values[i], Tensor)))
        ctx.others = [None if isinstance(values[i], Tensor) else (values[i],) for i in read]

    def differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if other is None else other[0] for other in ctx.others]
        return backward(*gradients(*grads), *saved), *(None for _ in arguments[1:])

    torch.library.register_fake(f"{namespace}::{name}", shapes)
    torch.library.register_fake(f"{namespace}::{name}_backward", lambda *args: new_gradient(args[first]))
    torch.library.register_autograd(f"{namespace}::{name}", differentiate, setup_context=setup_context)


def is_evenly_spaced(x: Tensor) -> bool:
    """Return whether the pixels of each image are equally spaced in memory, as in contiguous tensors."""
    if x.is_contiguous():
        return True
    axes = [a for a in range(2, x.dim()) if x.size(a) != 1]
    return all(x.stride(a) == x.stride(b) * x.size(b) for a, b in pairwise(axes))


def new_gradient(logits: Tensor) -> Tensor:
    """Return a new tensor for the gradient of logits, with pixels that are evenly spaced in memory."""
    gradient = torch.empty_like(logits)
    return gradient if is_evenly_spaced(gradient) else torch.empty_like(logits, memory_format=torch.contiguous_format)
