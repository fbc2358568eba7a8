"""Extreme shapes, logits and options: the loss is finite and close to the reference in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from columns import Column, each_column, interpolated
from pairwise import pairwise
from torch import Tensor

from edgeloss import neighborhoods
from edgeloss.functional import edge_aware_loss, loss_maps

by_backend = pytest.mark.usefixtures("each_backend")
REFERENCE = Column("reference")
SHAPES = [(0, 4, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0), (0, 2, 3, 3), (2, 0, 3, 3), (2, 3, 0, 3), (2, 3, 3, 0)]


def value_and_gradient(loss: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in float64."""
    return loss.detach().double(), torch.autograd.grad(loss.sum(), x)[0].double()


# ----------------------------------------------------------------------------------------------------------- nothing


@each_column
@pytest.mark.parametrize("shape", SHAPES)
def test_no_pixels_are_a_loss_of_zero(shape: tuple[int, ...], column: Column) -> None:
    forms = pairwise((1, 3), (False, True), ("mean", "sum", "none"), (False, True), (0.0, 3.0))
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


@by_backend
def test_zero_weights_are_a_mean_over_nothing() -> None:
    x, y = torch.randn(1, 3, 4, 4, requires_grad=True), torch.zeros(1, 4, 4, dtype=torch.long)
    weights: list[dict[str, Tensor]] = [{"weight": torch.tensor([0.0, 1, 1])}, {"pixel_weight": torch.zeros(1, 4, 4)}]
    for given in weights:
        value, gradient = value_and_gradient(edge_aware_loss(x, y, label_smoothing=0.1, **given), x)
        assert value == 0
        assert not gradient.any()


# -------------------------------------------------------------------------------------------------- infinite and nan


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


@by_backend
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("of_edges", [False, True])
def test_the_loss_of_a_pixel_without_weight_may_be_infinite(of_edges: bool, reduction: str) -> None:
    y, results = torch.tensor([[[0, 0, 0, 0, 0, 0, 1, 1]] * 4]), []
    options: dict[str, Any] = {"pixel_weight": torch.ones(1, 4, 8), "reduction": reduction}
    options["pixel_weight"][0, 1, 1] = 0
    if of_edges:  # infinite is the same-side term of edge pixels of class 0
        options |= {"edge_class_weight": torch.tensor([0.0, 1.0, 1.0]), "ce_weight": 0.0, "pixel_weight": None}
    for value in (-torch.inf, 0.0):
        x = torch.randn(1, 3, 4, 8, generator=torch.Generator().manual_seed(0))
        x[0, 0, 1, 4 if of_edges else 1] = value
        loss = edge_aware_loss(x.requires_grad_(), y, **options)
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


@by_backend
@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_nan_logit_is_not_hidden(power: float, dtype: torch.dtype) -> None:
    stripes = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]).expand(1, 10, 8)  # two regions
    x = torch.zeros(1, 4, 10, 8, dtype=dtype)
    x[0, 1, 2, 3] = torch.nan  # of class 1, next to class 2
    loss, terms = edge_aware_loss(x, stripes, power=power, region_weight=1.0, return_terms=True)
    assert loss.isnan()
    assert all(value.isnan() for name, value in terms.items() if name != "edge_fraction")
    maps = loss_maps(x, stripes, power=power)
    assert maps.cross_entropy.isnan().nonzero().tolist() == [[0, 2, 3]]
    around = [[0, 1, 2], [0, 1, 3], [0, 2, 2], [0, 3, 2], [0, 3, 3]]
    assert maps.same_side.isnan().nonzero().tolist() == around
    assert maps.other_side.isnan().nonzero().tolist() == [[0, i, 4] for i in (1, 2, 3)]


@by_backend
def test_a_class_that_cannot_be_does_not_count() -> None:
    x, y = torch.randn(1, 3, 6, 6), torch.randint(2, (1, 6, 6))
    x[:, 2] = -torch.inf
    x.requires_grad_()
    torch.testing.assert_close(*[value_and_gradient(edge_aware_loss(logits, y), x) for logits in (x, x[:, :2])])


# ------------------------------------------------------------------------------------------------------- sure pixels


@by_backend
@pytest.mark.parametrize("power", [1.0, -1.0, 0.1, -0.01, 1e-4, -1e-7, 1e-29, 1e-40, 1e6, -1e6])
def test_confident_logits_at_every_power(power: float) -> None:
    # A well trained network: the terms are small differences of large sums, and none may come out negative.
    y = torch.randint(2, (1, 16, 16))
    x = F.one_hot(y, 2).movedim(-1, 1) * (10 + 10 * torch.rand(1, 1, 16, 16))
    for logits in (x, torch.where(torch.arange(16) % 5 == 0, -0.1 * x, x)):
        terms, exact = (
            edge_aware_loss(each, y, power=power, return_terms=True)[1] for each in (logits, logits.double())
        )
        for name in ("same_side", "other_side"):
            assert terms[name] >= 0
            torch.testing.assert_close(terms[name].double(), exact[name], rtol=2e-5, atol=5e-7)


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


# -------------------------------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("power", [0.0, -1.0])
def test_maps_of_many_edge_pixels_are_formed_in_parts(power: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(2, 3, 9, 11), torch.randint(3, (2, 9, 11))
    expected = loss_maps(x, y, power=power, decay=1.0)
    monkeypatch.setattr(neighborhoods, "PART", 40)  # pairs at a time
    for found, whole in zip(loss_maps(x, y, power=power, decay=1.0), expected, strict=True):
        assert torch.equal(found, whole)


def test_sum_over_many_pixels_is_in_float64() -> None:
    # 2^25 pixels of log 2: float32 can count only up to 2^24.
    x = torch.zeros(1, 1, 1, 1).expand(1, 2, 4096, 8192)
    y = torch.zeros(1, 1, 1, dtype=torch.uint8).expand(1, 4096, 8192)
    loss = edge_aware_loss(x, y, edge_weight=0.0, reduction="sum")
    assert loss.item() == pytest.approx(2**25 * math.log(2), rel=1e-7)


# ----------------------------------------------------------------------------------------------------------- options


@by_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("spread", "radius"), [(1e3, 1), (1e20, 1), (30.0, 4)])
@pytest.mark.parametrize("power", [-1.0, 0.0, 2.0])
def test_distances_of_any_spread(power: float, spread: float, radius: int, dtype: torch.dtype) -> None:
    # A neighbor that is many decays away has hardly any weight, and yet it may decide a mean of negative power.
    x, y = (300 * torch.randn(1, 3, 6, 7, dtype=dtype)).requires_grad_(), torch.randint(-1, 3, (1, 6, 7))
    distance = spread * torch.rand(1, 6, 7, dtype=dtype)
    exact = x.detach().double().requires_grad_()
    options: dict[str, Any] = {"ignore_index": -1, "power": power, "decay": 1.0, "radius": radius}
    found = value_and_gradient(edge_aware_loss(x, y, distance=distance, **options), x)
    expected = edge_aware_loss(exact, y, distance=distance.double(), backend="reference", **options)
    tolerance = {"rtol": 2e-5, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-13}
    torch.testing.assert_close(found, value_and_gradient(expected, exact), **tolerance)


EXTREME_OPTIONS: dict[str, dict[str, Any]] = {
    "huge pixels": {"decay": 1.0, "spacing": 1e19},
    "flat pixels": {"decay": 1.0, "spacing": (1e-19, 1.0)},
    "pixels beyond float32": {"decay": 1e39, "spacing": 1e39},
    "micrometers in meters": {"decay": 2e-6, "spacing": 1e-6, "radius": 2},
    "tiny decay": {"decay": 1e-39, "radius": 2},
    "a field in meters": {"decay": 1e-9, "distance": torch.rand(2, 8, 9) * 1e-9},
    "a far field": {"decay": 1e-60, "distance": torch.rand(2, 8, 9, dtype=torch.float64) * 1e-60},
    "beyond all decays": {"decay": 1e-20, "distance": torch.full((2, 8, 9), 1e300, dtype=torch.float64)},
    "radius 2^62": {"radius": 2**62, "decay": 3.0},
    "radius 2^63 - 1": {"radius": (2**63 - 1, 0)},
}


@pytest.mark.parametrize("options", EXTREME_OPTIONS.values(), ids=EXTREME_OPTIONS)
def test_backends_agree_on_extreme_options(options: dict[str, Any]) -> None:
    x, y = torch.randn(2, 3, 8, 9, requires_grad=True), torch.randint(3, (2, 8, 9))
    losses = [edge_aware_loss(x, y, **options, backend=backend) for backend in ("auto", "reference")]
    torch.testing.assert_close(*[value_and_gradient(loss, x) for loss in losses], rtol=1.3e-6, atol=1e-5)
