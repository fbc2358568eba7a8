"""Gradients that stay finite, and a check that they are right."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from edgeloss.inputs import describe

__all__ = ["apply_where", "check_gradients"]


def apply_where(
    mask: Tensor,
    fn: Callable[..., Tensor],
    x: Tensor | Sequence[Tensor],
    fill: float | Tensor | Callable[..., Tensor],
) -> Tensor:
    r"""``fn(x)`` where the mask is set and ``fill`` elsewhere, computed on those elements only.

    ``torch.where(mask, fn(x), fill)`` computes fn everywhere and selects afterwards. Its backward pass multiplies what
    it did not select by 0, and 0 · inf is nan. Here fn never sees an element that it is not for: value and gradient
    are finite wherever fn's are on the masked elements, whatever x holds elsewhere, nan and inf included, and so are
    the gradients of tensors that fn closes over. Elsewhere x gets exactly no gradient.

    Differentiable any number of times, backward and forward, and by the transforms of :mod:`torch.func`, except that
    ``vmap`` can't batch the mask itself, since samples would differ in their number of elements; batches go in as they
    are. ``torch.compile`` takes it, with ``fullgraph=True`` in one graph for any number of elements, but
    differentiates compiled code only once. Finding the elements waits for the device, as indexing by a mask does.

    Args:
        mask: bool, any shape.
        fn: an elementwise function. It is called once, with one 1-D tensor [N] for each tensor of x, of the N masked
            elements in row-major order, and returns a tensor [N] of any dtype. N may be 0.
        x: a tensor or a tuple of them, on the mask's device. They are broadcast with the mask and each other.
        fill: the result elsewhere: a number; a tensor, broadcast too; or a function as fn is, of the other elements.

    Returns:
        A tensor of the broadcast shape. Its dtype is that to which ``torch.where`` promotes fn's result and ``fill``.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for shapes or devices that do not fit, or if fn returns anything but [N].

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
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask: expected a bool tensor, but got {_got(mask)}; pass mask.bool() or a comparison")
    if not inputs or not all(isinstance(tensor, Tensor) for tensor in inputs):
        raise TypeError(f"x: expected a tensor or a tuple of tensors, but got {', '.join(map(_got, inputs)) or 'none'}")
    if callable(fill):
        # False has the lowest dtype of all, so that the other branch keeps its own.
        fill = apply_where(~mask, fill, inputs, False)
    elif not isinstance(fill, (Tensor, Number)):
        raise TypeError(f"fill: expected a number, a tensor or a function, but got {_got(fill)}")

    together = (mask, *inputs, fill) if isinstance(fill, Tensor) else (mask, *inputs)
    try:
        mask, *inputs = torch.broadcast_tensors(*together)[: 1 + len(inputs)]  # type: ignore[no-untyped-call]
    except RuntimeError:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in together)
        raise ValueError(f"expected mask, x and fill of shapes that broadcast, but got {shapes}") from None
    if any(tensor.device != mask.device for tensor in together):
        devices = ", ".join(str(tensor.device) for tensor in together)
        raise ValueError(f"expected mask, x and fill on one device, but got {devices}")

    # By index_select and index_copy, not by the mask: they are deterministic, and vmap has rules for them.
    index = mask.flatten().nonzero().squeeze(1)
    chosen = [tensor.flatten().index_select(0, index) for tensor in inputs]
    result = fn(*chosen)
    if not isinstance(result, Tensor) or result.shape != index.shape:
        raise ValueError(f"fn: expected to return a tensor {list(index.shape)}, as its inputs, but got {_got(result)}")
    elsewhere = torch.where(mask, result.new_zeros(mask.shape), fill)
    return elsewhere.flatten().index_copy(0, index, result.to(elsewhere.dtype)).view(mask.shape)


def check_gradients(
    fn: Callable[..., Any],
    *inputs: Any,  # noqa: ANN401
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether autograd's gradient of fn is that of its finite differences, and holds in the inputs' own precision.

    ``torch.autograd.gradcheck`` fails for right gradients in float32: a step of 1e-6 is a few of its roundings. Here it
    runs on float64 copies of the inputs. Then the gradient in the inputs' own dtype is held against the one in float64.
    On failure the message names the worst element with both values, and begins with what is the matter:

    * ``wrong gradient``: autograd and finite differences disagree, in float64.
    * ``precision``: fn computes in less than float64 inside, or loses digits there, so that finite differences are
      noise; or the gradient is right in float64 and not in the inputs' dtype.
    * ``no derivative``: the slopes to the left and to the right differ, or fn is not finite beside this point.
    * ``not deterministic``: two calls differ. ``not finite``: fn's own value is not.

    Args:
        fn: a function of the inputs that returns a real tensor or a tuple of them, and computes in float64 when it is
            given float64. A module is copied and brought to float64 with its parameters and buffers, which are not
            checked themselves: for that pass them as inputs, with :func:`torch.func.functional_call`.
        inputs: arguments of fn. Of the floating tensors those that require grad are checked, or all if none does.
            Nothing is written into them. Few elements: every one of them costs two calls.
        eps: the step of the finite differences.
        atol: the difference that is allowed,
        rtol: plus this times the size of the gradient. In float16 and bfloat16, at least 32 of the roundings.
        raise_exception: raise on failure, rather than return False.

    Returns:
        True if all gradients are right, else False.

    Raises:
        GradcheckError: (``torch.autograd.gradcheck.GradcheckError``, a RuntimeError) if a gradient is not right.
        TypeError: for a complex input, or if fn takes the inputs but not their float64 copies.
        ValueError: if no input is a floating tensor.

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
    fn = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn  # its buffers may change with a call
    given = _leaves(inputs)
    doubled = [x.detach().double().requires_grad_(x.requires_grad) if _is_floating(x) else x for x in given]
    exact = copy.deepcopy(fn).double() if isinstance(fn, nn.Module) else fn
    with torch.enable_grad():
        outputs = _outputs(fn, given)  # an error here is the caller's own
        try:
            exact_outputs = _outputs(exact, doubled)
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"fn: expected a function that takes float64 inputs too, but it raised {error!r}; pass the tensors that"
                " it closes over as inputs, or the module itself as fn"
            ) from error
        try:
            gradcheck(exact, doubled, eps=eps, atol=atol, rtol=rtol)
            trouble = _trouble_in_own_precision(outputs, given, _jacobian(exact_outputs, doubled), atol, rtol)
        except GradcheckError as error:
            trouble = _diagnosis(exact, doubled, eps, atol, rtol) or str(error)
    if trouble and raise_exception:
        raise GradcheckError(trouble)
    return not trouble


def _leaves(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs; those whose gradients are to be checked require grad."""
    for x in inputs:
        if isinstance(x, Tensor) and x.is_complex():
            raise TypeError(f"inputs: expected real tensors, but got {describe(x)}")
    if not any(_is_floating(x) for x in inputs):
        got = ", ".join(map(_got, inputs)) or "none"
        raise ValueError(f"inputs: expected at least one floating tensor, but got {got}")
    checked = _checked(inputs) or [j for j, x in enumerate(inputs) if _is_floating(x)]
    return [
        x.detach().clone().requires_grad_(j in checked) if isinstance(x, Tensor) else x for j, x in enumerate(inputs)
    ]


def _checked(inputs: Sequence[Any]) -> list[int]:
    """Which of the inputs have a gradient to check."""
    return [j for j, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]


def _outputs(fn: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    """What gradcheck looks at: the outputs that require grad, or all floating ones if none does."""
    result = fn(*inputs)
    floating = [y for y in (result if isinstance(result, (tuple, list)) else (result,)) if _is_floating(y)]
    return [y for y in floating if y.requires_grad] or floating


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def _jacobian(outputs: Sequence[Tensor], inputs: Sequence[Any]) -> Tensor:
    """Autograd's, float64: a row for each element of the outputs, a column for each of the checked inputs."""
    y, leaves = _flat(outputs), [inputs[j] for j in _checked(inputs)]
    rows = torch.zeros(len(y), sum(x.numel() for x in leaves), dtype=torch.float64, device=y.device)
    if y.requires_grad:
        for row, one in zip(rows, torch.eye(len(y)).to(y), strict=True):
            row.copy_(_flat(torch.autograd.grad(y, leaves, one, retain_graph=True, materialize_grads=True)))
    return rows


def _excess(got: Tensor, expected: Tensor, allowed: Tensor) -> Tensor:
    """The difference in units of what is allowed; inf where only one is finite, 0 where both are equally infinite."""
    return ((got - expected).abs() / allowed).masked_fill(got == expected, 0.0).nan_to_num(nan=math.inf)


def _trouble_in_own_precision(
    outputs: Sequence[Tensor], given: Sequence[Any], exact: Tensor, atol: float, rtol: float
) -> str | None:
    """Where the gradient in the inputs' own dtype is not the exact one, beside the largest of the same output."""
    got = _jacobian(outputs, given)
    if not got.numel():
        return None
    rtol = max(rtol, 32 * max(torch.finfo(given[j].dtype).eps for j in _checked(given)))
    excess = _excess(got, exact, atol + rtol * exact.abs().amax(dim=1, keepdim=True))
    if not (excess > 1).any():
        return None
    worst = row, column = _unravel(int(excess.argmax()), excess)
    j, at = _element(column, given, _checked(given))
    i, to = _element(row, outputs)
    return (
        f"precision: input {j} at {at}, output {i} at {to}: expected {exact[worst]:.6g}, the right gradient, which"
        f" float64 gives, but got {got[worst]:.6g} in {_dtype_name(given[j])}"
    )


def _diagnosis(fn: Callable[..., Any], inputs: list[Any], eps: float, atol: float, rtol: float) -> str | None:
    """Why gradcheck fails, at the worst element; None if every element of the Jacobian is right."""
    with _Downcasts() as downcasts:  # type: ignore[no-untyped-call]
        outputs = _outputs(fn, inputs)
    y = _flat(outputs)
    # Eight calls, since a dropout of few elements may well do the same twice.
    if not all(torch.allclose(y, _flat(_outputs(fn, inputs)), rtol=1e-7, atol=0.0, equal_nan=True) for _ in range(8)):
        return "not deterministic: calls of fn on equal inputs differ; dropout in training mode?"
    if not y.isfinite().all():
        row = int(y.isfinite().int().argmin())
        i, to = _element(row, outputs)
        return f"not finite: output {i} at {to} is {y[row]}; check where fn is finite"

    def slope(j: int, at: list[int], low: float, high: float) -> Tensor:
        def moved(step: float) -> Tensor:
            x = inputs[j].detach().clone()
            x[tuple(at)] += step
            return _flat(_outputs(fn, [*inputs[:j], x.requires_grad_(), *inputs[j + 1 :]])).detach()

        return (moved(high) - moved(low)) / (high - low)

    analytical = _jacobian(outputs, inputs)
    columns = [_element(k, inputs, _checked(inputs)) for k in range(analytical.shape[1])]
    numerical = torch.stack([slope(j, at, -eps, eps) for j, at in columns], dim=1)
    excess = _excess(analytical, numerical, atol + rtol * numerical.abs())
    if not (excess > 1).any():
        return None
    row, column = _unravel(int(excess.argmax()), excess)
    j, at = columns[column]
    i, to = _element(row, outputs)
    got, expected = analytical[row, column].item(), numerical[row, column].item()

    # Where there is a derivative, the slopes to both sides agree at some step. Lost digits hide it from small steps.
    steps = [eps * 10**k for k in range(5)]
    left = [slope(j, at, -step, 0.0)[row].item() for step in steps]
    right = [slope(j, at, 0.0, step)[row].item() for step in steps]
    central = [(a + b) / 2 for a, b in zip(left, right, strict=True)]
    smooth = [abs(b - a) <= atol + 0.05 * max(abs(a), abs(b)) for a, b in zip(left, right, strict=True)]
    agrees = [abs(got - c) <= atol + rtol * abs(c) for c in central]
    noisy = abs(central[0] - central[1]) > atol + rtol * abs(central[1])
    if downcasts.first:
        kind, hint = "precision", f"; fn leaves float64, {downcasts.first}: keep the dtype of the inputs"
    elif not any(smooth):
        kind, hint = "no derivative", f"; the slope is {left[0]:.6g} to the left and {right[0]:.6g} to the right"
    elif noisy and (there := [step for step, a, b in zip(steps, smooth, agrees, strict=True) if a and b]):
        kind, hint = "precision", f"; fn loses digits inside: with eps={there[0]:g} they agree"
    else:
        kind, hint = "wrong gradient", ""
        expected = central[smooth.index(True)]
        if not y.requires_grad:
            hint = "; no output requires grad: detached on the way?"
        elif not math.isfinite(got):
            hint = "; 0 · inf of what a mask leaves out? see edgeloss.numerics.apply_where"
    if (wrong := int((excess > 1).sum())) > 1:
        hint = f" (the worst of {wrong} that fail, of {excess.numel()}){hint}"
    return (
        f"{kind}: input {j} at {at}, output {i} at {to}: expected {expected:.6g}, the finite difference, but got"
        f" {got:.6g}{hint}"
    )


class _Downcasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that makes lower floating numbers of float64."""

    first: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        exact = any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in args)
        if self.first is None and exact and _is_floating(result) and result.dtype != torch.float64:
            self.first = f"{func} gives {_dtype_name(result)}"
        return result


def _element(k: int, tensors: Sequence[Any], of: Sequence[int] | None = None) -> tuple[int, list[int]]:
    """Of the elements of all tensors, one after another, the number and index of the k-th."""
    for i in range(len(tensors)) if of is None else of:
        if k < tensors[i].numel():
            return i, list(_unravel(k, tensors[i]))
        k -= tensors[i].numel()
    raise IndexError(k)


def _unravel(k: int, x: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(k), x.shape))


def _is_floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _got(value: object) -> str:
    return describe(value) if isinstance(value, Tensor) else type(value).__name__
