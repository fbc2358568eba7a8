"""check_gradients: right gradients pass, and failures are classified."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from edgeloss import EdgeAwareLoss
from edgeloss.numerics import apply_where, check_gradients

X = torch.tensor([0.3, 1.2, 2.5])


def function(backward: Callable[[Tensor, Tensor], Tensor], forward: Callable[[Tensor], Tensor] = torch.square) -> Any:
    """Return a function, by default the square, with a given backward pass."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return backward(ctx.saved_tensors[0], grad)

    return Function.apply


def in_numpy_float32(x: Tensor) -> Tensor:
    """Compute the square with a rounding that torch can't observe, as a kernel may."""
    return torch.from_numpy(x.detach().numpy().astype("float32")).to(x) ** 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        torch.tanh,
        lambda x: torch.softmax(x, 0),
        lambda x: (x.sum(), x.square(), x.detach()),
        lambda x: x.expand(2, 3).prod(),
        lambda x: apply_where(x > 1, torch.log, x, 0.0),
        function(lambda x, grad: 2 * x * grad),
    ],
)
def test_right_gradients(fn: Any, dtype: torch.dtype) -> None:
    assert check_gradients(fn, X.to(dtype))


# No element, no axis, overlapping memory, other strides: gradcheck does not support all of them.
@pytest.mark.parametrize("x", [torch.zeros(0), torch.tensor(0.3), X[:1].expand(3), torch.rand(2, 3, 2).mT])
def test_any_shape(x: Tensor) -> None:
    assert check_gradients(torch.tanh, x)


def test_the_loss() -> None:
    logits, target = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    assert check_gradients(EdgeAwareLoss(weight=torch.tensor([1.0, 2.0, 3.0])), logits, target)


def test_a_module_is_copied() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert check_gradients(module, torch.randn(4, 3))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype


def test_inputs_are_unchanged() -> None:
    x, labels = X.clone().requires_grad_(), torch.tensor([2, 0])
    assert check_gradients(lambda x, labels, power: x[labels] ** power, x, labels, 3)
    assert x.grad is None
    assert torch.equal(x, X)


def test_works_under_no_grad() -> None:
    with torch.no_grad():
        assert check_gradients(torch.tanh, X)
        assert not check_gradients(function(lambda x, grad: x * grad), X, raise_exception=False)


def test_only_inputs_that_require_grad_are_checked_if_any_does() -> None:
    def fn(a: Tensor, b: Tensor) -> Tensor:
        return a.square() + function(lambda x, grad: x * grad)(b)

    assert check_gradients(fn, X.clone().requires_grad_(), X)
    with pytest.raises(GradcheckError, match="wrong gradient: input 1 "):
        check_gradients(fn, X, X)


def test_tolerances() -> None:
    slightly_wrong = function(lambda x, grad: 2.01 * x * grad)
    assert not check_gradients(slightly_wrong, X, raise_exception=False)
    assert check_gradients(slightly_wrong, X, rtol=0.01)
    assert check_gradients(slightly_wrong, X, atol=0.1)
    # A step that is large compared with the period of the function.
    assert not check_gradients(lambda x: (100 * x).sin(), X, eps=1e-2, raise_exception=False)


def lossy(x: Tensor) -> Tensor:
    return (1 - torch.sigmoid(x)).log()


def masked(x: Tensor) -> Tensor:
    """Return 2 x at 1/4, with a masked division by 0."""
    return torch.where(x > 0.5, 1 / (x - 0.25), 2.0 * x)


WRONG = r"wrong gradient: "
AT_2 = r"input 0 at \[2\], "
HALF, NO_UPSTREAM = function(lambda x, grad: x * grad), function(lambda x, grad: 2 * x)
IN_FLOAT32 = function(lambda x, grad: 2 * x * grad, in_numpy_float32)
ZERO_AT_5 = function(lambda x, grad: torch.where(x == 5, 0 * grad, 2 * x * grad))
SMALL_SLOPE = function(lambda x, grad: 1e-4 * grad, lambda x: x**3)
WORST = r"output 0 at \[2\]: expected 5, the finite difference, but got 2.5 \(the worst of 3 wrong elements of 9\)$"
TO_FLOAT16 = r"precision: .*; fn leaves float64 \(aten._to_copy.default returns float16\)"
TO_FLOAT32 = r"precision: .*; fn leaves float64 \(aten._to_copy.default returns float32\), keep"
INTERNAL = r".*but got 5 .*; fn loses digits internally, with eps=0.001 they agree$"
DIGITS = r"output 0 at \[1\]: expected -11.1111, the gradient in float64, but got -11.3\d* in float32$"
NO_SLOPE = r"no derivative: input 0 at "
MESSAGES: list[tuple[Any, Tensor, str]] = [
    # Half the gradient, worst where it is largest; the upstream gradient missing; detached.
    (HALF, X, WRONG + AT_2 + WORST),
    (NO_UPSTREAM, X, WRONG + AT_2 + r"output 0 at \[0\]: expected 0, .*got 5 "),
    (lambda x: x.detach() * 2, X, WRONG + ".*expected 2, .*got 0 .*; no output requires grad, look for detach"),
    # Of several outputs and axes.
    (
        lambda x: (x.sum(), ZERO_AT_5(x)),
        torch.arange(6.0).view(2, 3),
        WRONG + r"input 0 at \[1, 2\], output 1 at \[1, 2\]: expected 10, .*but got 0$",
    ),
    # A masked inf.
    (masked, torch.tensor([0.25, 0.75]), WRONG + r"input 0 at \[0\].*expected 2, .*got nan.*apply_where$"),
    # Curvature that misleads larger steps.
    (lambda x: HALF(x.log()), torch.tensor([1e-4]), WRONG + ".*but got -92103.4$"),
    # Wrong by the error of a finite difference with a larger step: not mistaken for noise.
    (SMALL_SLOPE, torch.tensor(0.0), WRONG + ".*but got 0.0001$"),
    # An internal rounding, alone and together with a wrong gradient.
    (lambda x: x.float().exp(), X, TO_FLOAT32),
    (lambda x: x.half().exp().to(x), X, TO_FLOAT16),
    (IN_FLOAT32, X, "precision: " + AT_2 + INTERNAL),
    (function(lambda x, grad: x * grad, in_numpy_float32), X, WRONG),
    (lossy, torch.tensor([1.0, 20.0]), r"precision: input 0 at \[1\], .*but got -1; fn loses digits internally"),
    # Right in float64 only: digits lost next to a large number, an overflow.
    (lambda x: 1 / (x + 1e5 - 1e5), torch.tensor([0.5, 0.3]), r"precision: input 0 at \[1\], " + DIGITS),
    (lambda x: (x + 1e4).exp().log(), torch.tensor([-9.5e3]), "precision: .*expected .*, but got nan in float32$"),
    # Kinks and jumps, at the point and within a step of it.
    (torch.relu, torch.tensor([1.0, 0.0]), NO_SLOPE + r"\[1\].*0 to the left and 1 to the right$"),
    (torch.relu, torch.tensor(1e-7), NO_SLOPE + r"\[\].*0.1 to the left and 1 to the right$"),
    (torch.floor, torch.tensor([1.5, 2.0]), NO_SLOPE + r"\[1\].*1e\+06 to the left and 0 to the"),
    (torch.sqrt, torch.tensor([0.0, 1.0]), NO_SLOPE + r"\[0\].*got inf.*nan to the left"),
    (lambda x: x.abs().sqrt(), torch.tensor(0.0), "no derivative: .*got nan; the slope is -1000 .* and 1000"),
    (torch.log, torch.tensor([1.0, 0.0]), r"not finite: output 0 at \[1\] is -inf"),
    (nn.Dropout(), X, "not deterministic: calls of fn with equal inputs differ; check for dropout in training mode"),
]


@pytest.mark.parametrize(("fn", "x", "message"), MESSAGES)
def test_the_message_names_the_problem(fn: Any, x: Tensor, message: str) -> None:
    with pytest.raises(GradcheckError) as caught:
        check_gradients(fn, x)
    assert re.match(message, str(caught.value)), caught.value
    assert not check_gradients(fn, x, raise_exception=False)


def test_other_failures_of_gradcheck() -> None:
    """Other failures keep the message of gradcheck, as for a changing backward pass."""
    calls = iter(range(1000))
    changing = function(lambda x, grad: (2 * x + (next(calls) % 2) * 1e-7) * grad)
    with pytest.raises(GradcheckError, match="not reentrant"):
        check_gradients(changing, X)


@pytest.mark.parametrize(
    ("fn", "inputs", "error", "message"),
    [
        (torch.abs, (torch.tensor([1j]),), TypeError, r"expected real tensors, but got complex64 \[1\]"),
        (torch.abs, (torch.tensor([1]), 2.0), ValueError, r"at least one floating tensor, but got int64 \[1\], float"),
        (torch.abs, (), ValueError, "at least one floating tensor, but got none"),
        (lambda x: x @ torch.ones(3), (X,), TypeError, "a function that accepts float64 inputs too.*as inputs"),
        (lambda x: x @ torch.ones(2), (X,), RuntimeError, "inconsistent tensor size"),  # the caller's own error
        (None, (X,), TypeError, "fn: expected a function, but got NoneType"),
        (torch.Tensor.long, (X,), TypeError, "fn: expected at least one floating tensor as its result, but got int64"),
        (lambda x: None, (X,), TypeError, "fn: expected at least one floating .* as its result, but got NoneType"),
        (lambda x: (), (X,), TypeError, "fn: expected at least one floating tensor as its result, but got none"),
        (torch.tanh, (X.to("meta"),), TypeError, "inputs: expected a tensor with values, but got one on the meta"),
        (torch.tanh, (X.to_sparse(),), TypeError, "inputs: expected a dense tensor, but got a sparse_coo one"),
    ],
)  # fmt: skip
def test_wrong_input(fn: Any, inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_gradients(fn, *inputs)


@pytest.mark.parametrize("options", [{"eps": 0.0}, {"eps": -1e-6}, {"eps": "a"}, {"atol": -1.0}, {"rtol": math.nan}])
def test_tolerances_out_of_range(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"^{name}: expected a finite number [>≥] 0, but got "):
        check_gradients(torch.tanh, X, **options)
