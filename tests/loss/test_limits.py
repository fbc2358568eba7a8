"""Shapes, layouts and values at the limits of what the loss takes."""

from __future__ import annotations

import itertools
from typing import Any

import brute_force
import pytest
import torch
from cases import laid_out
from columns import COLUMNS, Column, each_column

REFERENCE, FUSED = COLUMNS


def fails(column: Column, reason: str, **more: Any) -> Any:
    """Mark a column whose test fails."""
    return pytest.param(column, marks=pytest.mark.xfail(strict=True, reason=reason, **more))


ENDS = {"reason": "a width of 0 ends the process", "run": False}


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 0, 5), (2, 0, 0), (0, 2, 3, 3), (2, 0, 3, 3), (2, 3, 0, 3)])
@each_column
def test_nothing_is_a_loss_of_zero(shape: tuple[int, ...], column: Column) -> None:
    forms = itertools.product((1, 3), (False, True), ("mean", "sum", "none"), (False, True), (0.0, 3.0))
    for classes, multilabel, reduction, upsample, region_weight in forms:
        batch, *size = shape
        x = torch.zeros(batch, classes, *((n + 1) // 2 if upsample else n for n in size), requires_grad=True)
        y = torch.zeros(*x.shape[: 1 + multilabel], *size, dtype=torch.int64)
        options: dict[str, Any] = {"multilabel": multilabel, "upsample": upsample, "region_weight": region_weight}
        loss, terms = column.loss(x, y, reduction=reduction, decay=1.0, return_terms=True, **options)
        assert loss.shape == (y.shape if reduction == "none" else ())
        assert not loss.any()
        assert not any(terms.values())
        assert not torch.autograd.grad(loss.sum(), x)[0].any()
        with torch.no_grad():
            assert not column.loss(x, y, reduction=reduction, **options).any()


@pytest.mark.parametrize("shape", [(2, 5, 0), (2, 3, 3, 0)])
@pytest.mark.parametrize("column", [REFERENCE, fails(FUSED, **ENDS)])
def test_a_width_of_zero_is_a_loss_of_zero(shape: tuple[int, ...], column: Column) -> None:
    test_nothing_is_a_loss_of_zero(shape, column)


@each_column
@pytest.mark.parametrize("resolution", ["same", "upsampled"])
@pytest.mark.parametrize("layout", ["transposed", "reversed", "expanded", "sliced"])
def test_labels_of_any_layout(layout: str, resolution: str, column: Column) -> None:
    calls: list[dict[str, Any]] = [{"reduction": reduction} for reduction in ("mean", "sum", "none")]
    calls += [{"multilabel": True}, {"region_weight": 3.0}, {"multilabel": True, "region_weight": 3.0}]
    for options in calls:
        x = torch.randn(2, 3, *((3, 4) if resolution == "upsampled" else (8, 9)), requires_grad=True)
        y = laid_out(torch.randint(2, (2, 3, 8, 9) if "multilabel" in options else (2, 8, 9)), layout)
        results = []
        for labels in (y, y.clone(memory_format=torch.contiguous_format)):
            loss = column.loss(x, labels, upsample=True, **options)
            with torch.no_grad():
                assert torch.equal(column.loss(x, labels, upsample=True, **options), loss)
            results.append((loss, *torch.autograd.grad(loss.sum(), x)))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("column", [REFERENCE, fails(FUSED, "the gradients of two terms are rounded before their sum")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("resolution", ["same", "upsampled"])
def test_gradients_of_half_precision_are_rounded_once(resolution: str, dtype: torch.dtype, column: Column) -> None:
    y = torch.randint(4, (2, 9, 11)).repeat_interleave(3, 1).repeat_interleave(3, 2)
    x = (2 * torch.randn(2, 4, *((27, 33) if resolution == "same" else (7, 9)))).to(dtype)
    options: dict[str, Any] = {"region_weight": 3.0, "reduction": "sum", "upsample": True}
    gradients = []
    for logits, each in ((x.double(), REFERENCE), (x, column)):
        logits.requires_grad_()
        gradients += torch.autograd.grad(each.loss(logits, y, **options), logits)
    expected, found = gradients[0], gradients[1].double()
    ulp = torch.finfo(dtype).eps * 2.0 ** expected.abs().clamp(min=torch.finfo(dtype).tiny).log2().floor()
    in_float32 = 2e-6 * float(expected.abs().max())
    assert ((found - expected).abs() <= 0.5 * ulp + in_float32).all()


@pytest.mark.parametrize("column", [REFERENCE, fails(FUSED, "a sum of many magnitudes loses the nearest neighbors")])
def test_a_field_of_distances_over_a_thousand_decays(column: Column) -> None:
    torch.manual_seed(135)
    x, y = 300 * torch.randn(1, 2, 3, 3, dtype=torch.float64), torch.randint(2, (1, 3, 3))
    distance = 1000 * torch.rand(1, 3, 3, dtype=torch.float64)
    options: dict[str, Any] = {"power": -1.0, "decay": 1.0}
    loss = column.loss(x.requires_grad_(), y, distance=distance, **options)
    expected, _ = brute_force.loss(x.detach().numpy(), y.numpy(), radius=(1, 1), distance=distance.numpy(), **options)
    torch.testing.assert_close(loss.item(), expected.item())
    exact = REFERENCE.loss(x, y, distance=distance, **options)
    torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (loss, exact)))


@each_column
@pytest.mark.parametrize("power", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_field_of_distances_over_1e20_decays(dtype: torch.dtype, power: float, column: Column) -> None:
    x, y = torch.randn(1, 3, 4, 5).to(dtype).requires_grad_(), torch.randint(3, (1, 4, 5))
    distance = torch.rand(1, 4, 5, dtype=torch.float64)
    loss = column.loss(x, y, power=power, decay=1.0, distance=1e20 * distance)
    # The nearest neighbor of each side has all the weight, as with distances that Python's floats can tell apart.
    exact = REFERENCE.loss(x.double(), y, power=0.0, decay=1.0, distance=1e5 * distance)
    torch.testing.assert_close(loss.double(), exact)
    torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (loss, exact)))


@pytest.mark.xfail(strict=True, reason="0 times inf is nan")
@each_column
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_cross_entropy_without_weight_may_be_infinite(reduction: str, column: Column) -> None:
    y = torch.tensor([[[0, 0, 0, 0, 0, 0, 1, 1]] * 4])
    results = []
    for value in (-torch.inf, 0.0):  # of the class of a pixel that is no neighbor of an edge pixel
        x = torch.randn(1, 3, 4, 8, generator=torch.Generator().manual_seed(0))
        x[0, 0, 1, 1] = value
        loss = column.loss(x.requires_grad_(), y, ce_weight=0.0, reduction=reduction)
        results.append((loss, *torch.autograd.grad(loss.sum(), x)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
