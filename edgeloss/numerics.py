"""Gradients that stay finite under a mask, and a check that gradients are right."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from edgeloss._checks.inputs import check_kind, check_values, describe, dtype_name
from edgeloss._checks.options import is_number, suggest_keywords

__all__ = ["apply_where", "check_gradients"]


def apply_where(
    mask: Tensor,
    fn: Callable[..., Tensor],
    x: Tensor | Sequence[Tensor],
    fill: float | Tensor | Callable[..., Tensor],
) -> Tensor:
    r"""Compute ``fn(x)`` where the mask is True, and ``fill`` elsewhere.

    ``torch.where(mask, fn(x), fill)`` computes fn on all elements. Its backward pass multiplies the derivative of
    unselected elements by 0, and 0 · inf is nan. Here fn receives the masked elements only. Value and gradient are
    finite wherever those of fn are on the masked elements, even if x is nan or inf elsewhere. The same holds for the
    gradients of tensors that fn closes over. The gradient of x is exactly 0 elsewhere.

    Supports derivatives of any order in forward and backward mode, the transforms of :mod:`torch.func` (but ``vmap``
    can't batch the mask itself; pass batches directly), and ``torch.compile``, even with ``fullgraph=True``. Compiled
    code is differentiable only once. Synchronizes with the device, as indexing by a mask does.

    Args:
        mask: bool, any shape.
        fn: elementwise function. It is called once, with one 1-D tensor [N] per tensor of x that holds the N masked
            elements in row-major order, and returns a tensor [N] of any dtype. N may be 0.
        x: a tensor or a tuple of tensors on the device of the mask, broadcast with it and each other.
        fill: the result elsewhere: a number, a tensor (broadcast too), or a function like fn of the other elements.

    Returns:
        A tensor of the broadcast shape. Its dtype is that of ``torch.where(mask, fn(x), fill)``.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for incompatible shapes or devices, or if the result of fn is not [N].

    Source: array-api-extra has a function of this name, ``apply_where(cond, args, f1, f2, *, fill_value)``.

    Example:
        >>> import torch
        >>> from edgeloss.numerics import apply_where
        >>> x = torch.tensor([0.0, 0.25, 1.0], requires_grad=True)
        >>> torch.where(x > 0, x.sqrt(), 0.0).sum().backward()
        >>> x.grad
        tensor([   nan, 1.0000, 0.5000])
        >>> x.grad = None
        >>> apply_where(x > 0, torch.sqrt, x, 0.0).sum().backward()
        >>> x.grad
        tensor([0.0000, 1.0000, 0.5000])
    """
    inputs: list[Tensor] = list(x) if isinstance(x, Sequence) else [x]
    _check_types(mask, inputs, fill)
    if callable(fill):
        # False has the lowest dtype of all, so the result keeps the dtype of fill(x).
        fill = apply_where(~mask, fill, inputs, False)
    mask, *inputs = _broadcast(mask, inputs, fill)

    # index_select and index_copy instead of indexing by the mask: they are deterministic and support vmap.
    index = mask.flatten().nonzero().squeeze(1)
    selected = [tensor.flatten().index_select(0, index) for tensor in inputs]
    result = fn(*selected)
    if not isinstance(result, Tensor) or result.shape != index.shape:
        raise ValueError(f"fn: expected a result {list(index.shape)} like its inputs, but got {_got(result)}")
    elsewhere = torch.where(mask, result.new_zeros(mask.shape), fill)
    return elsewhere.flatten().index_copy(0, index, result.to(elsewhere.dtype)).view(mask.shape)


def _check_types(mask: object, inputs: Sequence[object], fill: object) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask: expected a bool tensor, but got {_got(mask)}; pass mask.bool() or a comparison")
    if not inputs or not all(isinstance(tensor, Tensor) for tensor in inputs):
        raise TypeError(f"x: expected a tensor or a tuple of tensors, but got {_listed(inputs)}")
    if not isinstance(fill, (Tensor, Number)) and not callable(fill):
        raise TypeError(f"fill: expected a number, a tensor or a function, but got {_got(fill)}")


def _broadcast(mask: Tensor, inputs: list[Tensor], fill: float | Tensor) -> list[Tensor]:
    """Broadcast mask and inputs to the shape of the result."""
    tensors = [mask, *inputs, fill] if isinstance(fill, Tensor) else [mask, *inputs]
    try:
        broadcast: list[Tensor] = list(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]
    except RuntimeError:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(f"mask, x, fill: expected shapes that broadcast, but got {shapes}") from None
    if any(tensor.device != mask.device for tensor in tensors):
        devices = ", ".join(str(tensor.device) for tensor in tensors)
        raise ValueError(f"mask, x, fill: expected tensors on one device, but got {devices}")
    return broadcast[: 1 + len(inputs)]


# ---------------------------------------------------------------------------------------------------- check_gradients


class _Tolerance(NamedTuple):
    """Step of the finite differences, and tolerances: a difference of atol + rtol · |gradient| is allowed."""

    eps: float
    atol: float
    rtol: float


@suggest_keywords
def check_gradients(
    fn: Callable[..., Any],
    *inputs: Any,  # noqa: ANN401
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Check autograd's gradient of fn against finite differences, in any dtype.

    ``torch.autograd.gradcheck`` rejects correct float32 gradients, since its step of 1e-6 is a few float32 roundings.
    This function runs it on float64 copies of the inputs, and then compares the gradient in the dtype of the inputs
    with the one in float64. On failure the message begins with the kind of problem, and names the worst element:

    * ``wrong gradient``: autograd and finite differences disagree in float64.
    * ``precision``: fn computes in less than float64 internally, or the gradient is right in float64 only.
    * ``no derivative``: the left and right derivatives differ, or fn is not finite next to this point.
    * ``not deterministic``: two calls differ. ``not finite``: the value of fn is not finite.

    Args:
        fn: function of the inputs that returns a real tensor or a tuple of them, in float64 for float64 inputs. A
            module is copied for every call, so that all calls begin with the same buffers, and converted to float64;
            its parameters are not checked (to check them, pass them as inputs with
            :func:`torch.func.functional_call`).
        inputs: arguments of fn, not modified. Checks the floating tensors that require grad, or all if none does. Use
            few elements, since each costs two calls.
        eps: step of the finite differences.
        atol: absolute tolerance.
        rtol: relative tolerance; in the dtype of the inputs at least 32 roundings.
        raise_exception: raise on failure instead of returning False.

    Returns:
        True if all gradients are right, else False.

    Raises:
        GradcheckError: (``torch.autograd.gradcheck.GradcheckError``, a RuntimeError) if a gradient is not right.
        TypeError: for a complex, sparse, nested or meta input, if fn returns no floating tensor, or if it does not
            accept float64 copies of inputs that it accepts.
        ValueError: if no input is a floating tensor, or ``eps``, ``atol`` or ``rtol`` is out of range.

    Example:
        >>> import torch
        >>> from edgeloss.numerics import check_gradients
        >>> check_gradients(torch.tanh, torch.tensor([0.1, 0.7]))
        True
        >>> check_gradients(torch.relu, torch.tensor([1.0, 0.0]))  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        torch.autograd.gradcheck.GradcheckError: no derivative: input 0 at [1], output 0 at [1]:
        expected 0.5, the finite difference, but got 0; the slope is 0 to the left and 1 to the right
    """
    if not callable(fn):
        raise TypeError(f"fn: expected a function, but got {_got(fn)}")
    for name, value in {"eps": eps, "atol": atol, "rtol": rtol}.items():
        if not is_number(value) or not 0 <= value < math.inf or (name == "eps" and value == 0):
            raise ValueError(f"{name}: expected a finite number {'>' if name == 'eps' else '≥'} 0, but got {value!r}")
    with torch.enable_grad():
        problem = _find_problem(fn, _leaves(inputs), _Tolerance(eps, atol, rtol))
    if problem and raise_exception:
        raise GradcheckError(problem)
    return not problem


def _find_problem(fn: Callable[..., Any], given: list[Any], tolerance: _Tolerance) -> str | None:
    """Check the gradients at the leaves; return the message of a failure, or None."""
    doubled = [x.detach().double().requires_grad_(x.requires_grad) if _is_floating(x) else x for x in given]
    exact_fn = fn
    if isinstance(fn, nn.Module):
        module: nn.Module = copy.deepcopy(fn)
        fn, exact_fn = _without_state(fn), _without_state(module.double())
    point = _Point(fn, given)  # an exception here is the caller's own
    try:
        exact = _Point(exact_fn, doubled)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"fn: expected a function that accepts float64 inputs too, but got {error!r}; pass the tensors that it"
            " closes over as inputs, or a module itself as fn"
        ) from error
    try:
        gradcheck(exact_fn, doubled, **tolerance._asdict())
        return _precision_problem(point, exact.jacobian(), tolerance)
    except GradcheckError as error:
        return _explain_failure(exact_fn, doubled, tolerance) or str(error)


def _without_state(module: nn.Module) -> Callable[..., Any]:
    """Return a function that calls the module as it is now: a call may change its buffers."""
    return lambda *inputs: copy.deepcopy(module)(*inputs)


def _leaves(inputs: Sequence[Any]) -> list[Any]:
    """Copy the inputs; those whose gradients are to be checked require grad."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    for x in tensors:
        if x.is_complex():
            raise TypeError(f"inputs: expected real tensors, but got {describe(x)}")
        check_kind("inputs", x)
        check_values("inputs", x)
    if not any(map(_is_floating, inputs)):
        raise ValueError(f"inputs: expected at least one floating tensor, but got {_listed(inputs)}")
    is_chosen = any(x.requires_grad for x in tensors)

    def leaf(x: Tensor) -> Tensor:
        return x.detach().clone().requires_grad_(x.requires_grad if is_chosen else x.is_floating_point())

    return [leaf(x) if isinstance(x, Tensor) else x for x in inputs]


class _Point:
    """A function at some inputs: its outputs, of which those count that require grad, or all if none does."""

    def __init__(self, fn: Callable[..., Any], inputs: Sequence[Any]) -> None:
        self.leaves = {j: x for j, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad}
        result = fn(*inputs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        floating = [y for y in results if _is_floating(y)]
        if not floating:
            raise TypeError(f"fn: expected at least one floating tensor as its result, but got {_listed(results)}")
        outputs = [y for y in floating if y.requires_grad] or floating
        self.values = _flat(outputs)
        self.columns, self.rows = _places(self.leaves), _places(dict(enumerate(outputs)))

    def jacobian(self) -> Tensor:
        """Return autograd's Jacobian in float64, one row per output element."""
        y, leaves = self.values, list(self.leaves.values())
        rows = torch.zeros(len(y), sum(x.numel() for x in leaves), dtype=torch.float64, device=y.device)
        if y.requires_grad:
            for row, unit in zip(rows, torch.eye(len(y)).to(y), strict=True):
                row.copy_(_flat(torch.autograd.grad(y, leaves, unit, retain_graph=True, materialize_grads=True)))
        return rows

    def message(self, kind: str, row: int, column: int, expected: str, got: str) -> str:
        """Describe an element of the Jacobian that is not right."""
        (number, position), (output, place) = self.columns[column], self.rows[row]
        return f"{kind}: input {number} at {position}, output {output} at {place}: expected {expected}, but got {got}"


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def _worst(got: Tensor, expected: Tensor, allowed: Tensor) -> tuple[int, int, int]:
    """Return how many elements differ by more than is allowed, and row and column of the worst."""
    excess = ((got - expected).abs() / allowed).masked_fill(got == expected, 0.0).nan_to_num(nan=math.inf)
    failures = int((excess > 1).sum())
    return failures, *(divmod(int(excess.argmax()), excess.shape[1]) if failures else (0, 0))


def _precision_problem(point: _Point, exact: Tensor, tolerance: _Tolerance) -> str | None:
    """Find where the gradient in the dtype of the inputs differs from the exact one.

    The tolerance is relative to the largest gradient of the same output element.
    """
    got = point.jacobian()
    if not got.numel():
        return None
    rtol = max(tolerance.rtol, 32 * max(torch.finfo(x.dtype).eps for x in point.leaves.values()))
    failures, row, column = _worst(got, exact, tolerance.atol + rtol * exact.abs().amax(dim=1, keepdim=True))
    if not failures:
        return None
    dtype = point.leaves[point.columns[column][0]].dtype
    values = f"{exact[row, column]:.6g}, the gradient in float64", f"{got[row, column]:.6g} in {dtype_name(dtype)}"
    return point.message("precision", row, column, *values)


def _explain_failure(fn: Callable[..., Any], inputs: list[Any], tolerance: _Tolerance) -> str | None:
    """Explain why gradcheck fails; None if every element of the Jacobian is right."""
    with _Downcasts() as downcasts:  # type: ignore[no-untyped-call]
        point = _Point(fn, inputs)
    y = point.values
    # Eight calls, since a dropout of few elements may well repeat itself once.
    if not all(torch.allclose(y, _Point(fn, inputs).values, rtol=1e-7, atol=0.0, equal_nan=True) for _ in range(8)):
        return "not deterministic: calls of fn with equal inputs differ; check for dropout in training mode"
    if not y.isfinite().all():
        row = int(y.isfinite().int().argmin())
        number, position = point.rows[row]
        return f"not finite: output {number} at {position} is {y[row]}; pass inputs for which fn is finite"

    def slope(column: int, low: float, high: float) -> Tensor:
        number, position = point.columns[column]

        def moved(step: float) -> Tensor:
            x = inputs[number].detach().clone()
            x[tuple(position)] += step
            return _Point(fn, [*inputs[:number], x.requires_grad_(), *inputs[number + 1 :]]).values.detach()

        return (moved(high) - moved(low)) / (high - low)

    analytical = point.jacobian()
    columns = [slope(k, -tolerance.eps, tolerance.eps) for k in range(analytical.shape[1])]
    numerical = torch.stack(columns, dim=1)
    failures, *worst = _worst(analytical, numerical, tolerance.atol + tolerance.rtol * numerical.abs())
    if not failures:
        return None
    row, column = worst
    got, expected = analytical[row, column].item(), numerical[row, column].item()
    kind, expected, hint = _classify(
        lambda low, high: slope(column, low, high)[row].item(), got, expected, tolerance, downcasts.first
    )
    if kind == "wrong gradient" and not y.requires_grad:
        hint = "; no output requires grad, look for detach() in fn"
    if failures > 1:
        hint = f" (the worst of {failures} wrong elements of {analytical.numel()}){hint}"
    return point.message(kind, row, column, f"{expected:.6g}, the finite difference", f"{got:.6g}{hint}")


def _classify(
    slope: Callable[[float, float], float], got: float, expected: float, tolerance: _Tolerance, downcast: str | None
) -> tuple[str, float, str]:
    """Return the kind of a failure, the best finite difference, and a hint.

    ``slope`` is the finite difference between two steps from the element, ``expected`` that at the given step, and
    ``got`` autograd's gradient; ``downcast`` is the first operation that leaves float64, if there is one.
    """
    eps, atol, rtol = tolerance
    # Where a derivative exists, the left and right slopes agree at some step. Lost digits hide it at small steps.
    steps = [eps * 10**k for k in range(5)]
    left, right = [slope(-step, 0.0) for step in steps], [slope(0.0, step) for step in steps]
    central = [(a + b) / 2 for a, b in zip(left, right, strict=True)]
    smooth = [abs(b - a) <= atol + 0.05 * max(abs(a), abs(b)) for a, b in zip(left, right, strict=True)]
    agrees = [abs(got - c) <= atol + rtol * abs(c) for c in central]
    noisy = abs(central[0] - central[1]) > atol + rtol * abs(central[1])
    if downcast:
        return "precision", expected, f"; fn leaves float64 ({downcast}), keep the dtype of the inputs"
    if not any(smooth):
        hint = f"; the slope is {left[0]:.6g} to the left and {right[0]:.6g} to the right"
        return "no derivative", expected, hint
    if noisy and (right_steps := [step for step, a, b in zip(steps, smooth, agrees, strict=True) if a and b]):
        return "precision", expected, f"; fn loses digits internally, with eps={right_steps[0]:g} they agree"
    hint = "" if math.isfinite(got) else "; look for 0 · inf behind a mask, see edgeloss.numerics.apply_where"
    return "wrong gradient", central[smooth.index(True)], hint


class _Downcasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the first operation that converts float64 to a lower floating dtype."""

    first: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        exact = any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in args)
        if self.first is None and exact and _is_floating(result) and result.dtype != torch.float64:
            self.first = f"{func} returns {dtype_name(result.dtype)}"
        return result


def _places(tensors: Mapping[int, Tensor]) -> list[tuple[int, list[int]]]:
    """Return the number of the tensor of each of all elements, and the position there."""
    return [(number, list(place)) for number, tensor in tensors.items() for place in np.ndindex(*tensor.shape)]


def _is_floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _got(value: object) -> str:
    return describe(value) if isinstance(value, Tensor) else type(value).__name__


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(_got, values)) or "none"
