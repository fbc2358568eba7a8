"""apply_where: a function on masked elements only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from edgeloss.numerics import apply_where

pytestmark = [
    # torch's forward mode and compiler call torch.jit.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    # At a graph break torch.compile reads the .grad of intermediate tensors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
INF, NAN = math.inf, math.nan


def inverse_gamma(x: Tensor) -> Tensor:
    """Join two branches, as docs/pitfalls.md does; the root has an infinite derivative at 0."""
    return apply_where(x > 0.003, torch.sqrt, x, lambda dark: 12.9 * dark)


def quotient(x: Tensor, divisor: Tensor) -> Tensor:
    return apply_where(divisor != 0, torch.div, (x, divisor), 0.0)


def reciprocal(x: Tensor) -> Tensor:
    return quotient(torch.ones(()), x)


def test_masked_division() -> None:
    """PyTorch issue 4132: a masked quotient by 0 has a gradient of nan."""
    x, divisor = torch.ones(2, requires_grad=True), torch.tensor([0.0, 1.0], requires_grad=True)
    (of_x,) = torch.autograd.grad((x / divisor)[divisor != 0].sum(), x)
    assert of_x.isnan().tolist() == [True, False]
    of_x, of_divisor = torch.autograd.grad(quotient(x, divisor).sum(), (x, divisor))
    assert of_x.tolist() == [0, 1]
    assert of_divisor.tolist() == [0, -1]


VALUES = [NAN, INF, -INF, 0.0, -1.0, 0.5, 2.0, 1e-30]


@given(st.lists(st.sampled_from(VALUES), max_size=9))
def test_logarithm_of_positive_elements(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    y = apply_where((x > 0) & (x < INF), torch.log, x, -7.0)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    inside = [0 < v < INF for v in values]
    assert y.tolist() == pytest.approx([math.log(v) if i else -7.0 for v, i in zip(values, inside, strict=True)])
    assert gradient.tolist() == pytest.approx([1 / v if i else 0.0 for v, i in zip(values, inside, strict=True)])
    assert second.tolist() == pytest.approx([-1 / v**2 if i else 0.0 for v, i in zip(values, inside, strict=True)])


def test_fn_sees_the_masked_elements_once() -> None:
    seen: list[tuple[list[float], list[float]]] = []

    def fn(a: Tensor, b: Tensor) -> Tensor:
        seen.append((a.tolist(), b.tolist()))
        return a + b

    mask = torch.tensor([[True, False, True], [False, False, True]])
    a, b = torch.arange(3.0), torch.tensor([[10.0], [20.0]])
    y = apply_where(mask, fn, (a, b), -1)
    assert seen == [([0.0, 2.0, 2.0], [10.0, 10.0, 20.0])]
    assert y.tolist() == [[10, -1, 12], [-1, -1, 22]]


# One mask for all samples, one per sample; only x, mask or fill as large as the result; no elements.
@pytest.mark.parametrize(
    ("x", "mask", "fill"),
    [
        ((4, 3, 5), (5,), ()),
        ((4, 3, 5), (4, 1, 1), (3, 1)),
        ((5,), (4, 3, 5), (1,)),
        ((1, 1), (5,), (4, 3, 1)),
        ((), (), ()),
        ((), (7,), ()),
        ((0, 3), (3,), (1, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("chosen", ["none", "some", "all"])
def test_batches_and_broadcasting(x: Any, mask: Any, fill: Any, chosen: str) -> None:
    """Compare value and two derivatives of a finite function with torch.where."""
    where = {"none": torch.zeros(mask), "some": torch.rand(mask), "all": torch.ones(mask)}[chosen] > 0.5
    leaves = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (x, fill)]
    weight = torch.randn(torch.broadcast_shapes(x, mask, fill), dtype=torch.float64)

    def derivatives(y: Tensor) -> list[Tensor]:
        first = torch.autograd.grad((y.square() * weight).sum(), leaves, create_graph=True)
        return [y, *first, *torch.autograd.grad(sum(g.sum() for g in first), leaves)]

    actual = derivatives(apply_where(where, torch.sin, leaves[0], leaves[1]))
    expected = derivatives(torch.where(where, leaves[0].sin(), leaves[1]))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("strided", [lambda t: t.mT, lambda t: t[:, ::2], lambda t: t[:1].expand(3, 4)])
def test_any_strides(strided: Callable[[Tensor], Tensor]) -> None:
    x = strided(torch.rand(3, 4))
    mask = strided(torch.rand(3, 4) > 0.5)
    assert torch.equal(apply_where(mask, torch.sqrt, x, 2.0), torch.where(mask, x.sqrt(), 2.0))


def test_gradient_of_what_fn_closes_over() -> None:
    x, mask = torch.tensor([0.0, 4.0]), torch.tensor([False, True])
    exponent, scale = torch.tensor(-0.5, requires_grad=True), torch.tensor(3.0, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return scale * x**exponent

    for y, expected in ((torch.where(mask, fn(x), 0.0), (NAN, NAN)), (apply_where(mask, fn, x, 0.0), (0.5, 2.0794))):
        found = torch.autograd.grad(y.sum(), (scale, exponent))
        assert [float(each) for each in found] == pytest.approx(expected, rel=1e-4, nan_ok=True)


def test_fill_by_a_function_of_the_other_elements() -> None:
    x = torch.tensor([[-4.0, 0.0], [4.0, 1.0]], requires_grad=True)
    y = apply_where(x > 0, torch.sqrt, x, lambda t: 1 / (t - 1))
    torch.testing.assert_close(y, torch.tensor([[-0.2, -1], [2, 1]]))
    torch.testing.assert_close(*torch.autograd.grad(y.sum(), x), torch.tensor([[-0.04, -1], [0.25, 0.5]]))


@pytest.mark.parametrize("given", [torch.bool, torch.int64, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("result", [torch.bool, torch.int32, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "fill",
    [False, 0, 0.5, NAN, torch.ones(3, dtype=torch.int16), torch.ones(3, dtype=torch.float64), torch.tensor(0.5)],
)
def test_dtype_is_that_of_where(given: torch.dtype, result: torch.dtype, fill: float | Tensor) -> None:
    x, mask = torch.ones(3, dtype=given), torch.tensor([True, False, True])
    y = apply_where(mask, lambda t: t.to(result), x, fill)
    torch.testing.assert_close(y, torch.where(mask, x.to(result), fill), rtol=0, atol=0, equal_nan=True)


def test_dtype_of_two_functions() -> None:
    x, mask = torch.arange(3), torch.tensor([True, False, True])
    assert apply_where(mask, torch.square, x, torch.neg).dtype == torch.int64
    assert apply_where(mask, torch.square, x, torch.sqrt).dtype == torch.float32


@pytest.mark.parametrize("x", [torch.rand(2, 3), torch.tensor(0.5), torch.zeros(2, 3)])
def test_gradcheck_backward_twice_forward_and_batched(x: Tensor) -> None:
    x = x.double().requires_grad_()
    mask = x > 0.3
    fill = torch.rand_like(x).requires_grad_()

    def fn(x: Tensor, fill: Tensor) -> Tensor:
        return apply_where(mask, torch.rsqrt, x, fill)

    everything = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert gradcheck(fn, (x, fill), **everything)
    assert gradgradcheck(fn, (x, fill), check_fwd_over_rev=True, check_batched_grad=True)


def test_function_transforms() -> None:
    x = torch.tensor([0.0, 1.0, 4.0])
    diagonal = torch.tensor([12.9, 0.5, 0.25])
    torch.testing.assert_close(torch.func.jacrev(inverse_gamma)(x), diagonal.diag())
    torch.testing.assert_close(torch.func.jacfwd(inverse_gamma)(x), diagonal.diag())
    hessian = torch.func.hessian(lambda x: inverse_gamma(x).sum())(x)
    torch.testing.assert_close(hessian, torch.tensor([0.0, -0.25, -0.25 / 8]).diag())


def test_vmap_batches_all_but_the_mask() -> None:
    x, mask = torch.rand(4, 3), torch.tensor([True, False, True])
    y = torch.vmap(lambda row: apply_where(mask, torch.sqrt, row, 0.0))(x)
    assert torch.equal(y, apply_where(mask, torch.sqrt, x, 0.0))
    with pytest.raises(RuntimeError, match="dynamic shape"):
        torch.vmap(reciprocal)(x)


# Masks of some, no, all and one element; batches; nan and inf with and without the mask.
COMPILED = [
    torch.tensor([0.0, 0.002, 0.5, 0.8, 1.0]),
    torch.zeros(5),
    torch.ones(5),
    torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]),
    torch.randn(3, 4).relu(),
    torch.randn(2, 3, 4).relu(),
    torch.tensor([NAN, -INF, 0.0, 1.0]),
]


@pytest.mark.parametrize(
    ("fn", "how"), [*itertools.product([inverse_gamma, reciprocal], ["one graph", "graph breaks", "inductor"])]
)
@pytest.mark.slow
def test_compiled_for_any_mask(fn: Callable[[Tensor], Tensor], how: str) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if how == "inductor" else "aot_eager")
    compiled = torch.compile(fn, backend=counter, fullgraph=how != "graph breaks")
    for number, x in enumerate(COMPILED):
        results = []
        for way in (fn, compiled):
            leaf = x.clone().requires_grad_()
            y = way(leaf)
            results.append((y, *torch.autograd.grad(y.square().sum(), leaf)))
        torch.testing.assert_close(results[1], results[0], equal_nan=True)
        if how != "graph breaks" and number < 4:  # one graph for any number of elements
            assert counter.frame_count == 1


MASK = torch.tensor([True, False])
WRONG: list[tuple[Any, Any, Any, Any, type[Exception], str]] = [
    (MASK.float(), torch.sqrt, MASK, 0, TypeError, r"mask: expected a bool tensor, but got float32 \[2\]; pass mask"),
    ([True], torch.sqrt, MASK, 0, TypeError, "mask: expected a bool tensor, but got list"),
    (MASK, torch.sqrt, 1.0, 0, TypeError, "x: expected a tensor or a tuple of tensors, but got float"),
    (MASK, torch.sqrt, (MASK, 1.0), 0, TypeError, r"x: expected .* but got bool \[2\], float"),
    (MASK, torch.sqrt, (), 0, TypeError, r"x: expected .* but got none"),
    (MASK, torch.sqrt, MASK, "0", TypeError, "fill: expected a number, a tensor or a function, but got str"),
    (MASK, torch.sqrt, torch.ones(3), 0, ValueError, r"shapes that broadcast, but got \[2\], \[3\]"),
    (MASK, torch.sqrt, MASK, torch.ones(4, 3), ValueError, r"that broadcast, but got \[2\], \[2\], \[4, 3\]"),
    (MASK, torch.sqrt, MASK.to("meta"), 0, ValueError, "on one device, but got cpu, meta"),
    (MASK, torch.sum, MASK, 0, ValueError, r"fn: expected a result \[1\] .* but got int64 \[\]"),
    (MASK, lambda t: 1.0, MASK, 0, ValueError, r"fn: expected a result \[1\] .* but got float"),
]


@pytest.mark.parametrize(("mask", "fn", "x", "fill", "error", "message"), WRONG)
def test_wrong_input(mask: Any, fn: Any, x: Any, fill: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        apply_where(mask, fn, x, fill)
