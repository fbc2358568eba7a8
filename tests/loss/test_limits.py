"""Shapes, layouts and values at the limits of what the loss takes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import interpolated
from columns import Column, each_column

REFERENCE = Column("reference")
SHAPES = [(0, 4, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0), (0, 2, 3, 3), (2, 0, 3, 3), (2, 3, 0, 3), (2, 3, 3, 0)]


@each_column
@pytest.mark.parametrize("shape", SHAPES)
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


@each_column
@pytest.mark.parametrize("power", [0.0, 1.0, 0.5])
def test_an_infinite_gradient_at_an_ignored_pixel_goes_nowhere(power: float, column: Column) -> None:
    x = torch.randn(2, 3, 12, 14, requires_grad=True)
    y = (torch.arange(14) >= 10).long().repeat(2, 12, 1)
    y[torch.rand(y.shape) < 0.2] = 255
    loss = column.loss(x, y, ignore_index=255, power=power, reduction="none")
    assert (loss == 0).any()
    (gradient,) = torch.autograd.grad(loss.sqrt().sum(), x)  # sqrt has no slope at 0
    assert gradient.isfinite().all()


@each_column
@pytest.mark.parametrize("power", [0.0, 1.0, 0.3, -2.0])
def test_nothing_cancels_next_to_large_terms(power: float, column: Column) -> None:
    x, y = torch.randn(1, 3, 48, 40), torch.zeros(1, 48, 40, dtype=torch.long)
    y[..., 20:] = 1
    x[0, 2, 24, 10] = 1e30  # its terms are 1e30, those of all others about 1
    far = torch.zeros(1, 48, 40)
    far[..., :4, :] = 1.0  # that pixel is in none of their windows
    results = []
    for logits, each in ((x, column), (x.double(), REFERENCE)):
        loss = each.loss(logits.requires_grad_(), y, radius=17, power=power, ce_weight=0.0, pixel_weight=far)
        results.append((loss.double(), torch.autograd.grad(loss, logits)[0].double()))
    assert results[0][0] < 100
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-8)


@each_column
@pytest.mark.parametrize("power", [0.0, -1.0])
@pytest.mark.parametrize(("scale", "offset"), [(30.0, 1e4), (1e30, 0.0)])
def test_upsampled_logits_that_are_sure(scale: float, offset: float, power: float, column: Column) -> None:
    # Classes that are certain to within 1e-9 and beyond on both sides of the edge, and offsets that a rounded logsumexp
    # would drown in: the logits of a pixel must be the same to the last bit wherever they are interpolated.
    x, y = scale * torch.randn(1, 3, 5, 6) + offset * torch.randn(1, 1, 5, 6), torch.randint(3, (1, 17, 19))
    high = interpolated(x, (17, 19)).double().requires_grad_()
    loss, exact = column.loss(x.requires_grad_(), y, upsample=True, power=power), REFERENCE.loss(high, y, power=power)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-4, atol=0)
    (gradient,), (of_high,) = torch.autograd.grad(loss, x), torch.autograd.grad(exact, high)
    assert gradient.isfinite().all()
    if offset:
        (expected,) = torch.autograd.grad(interpolated(x, (17, 19)), x, of_high.float())
        # Logits of 1e4 are rounded to 1e-3.
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))
