"""Extreme shapes, logits and options: the loss is finite and close to the reference in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batches import run
from columns import Column, each_column
from pairwise import pairwise
from torch import Tensor

from edgeloss.functional import edge_aware_loss, loss_maps

by_backend = pytest.mark.usefixtures("each_backend")


@by_backend
def test_zero_weights_are_a_mean_over_nothing() -> None:
    x, y = torch.randn(1, 3, 4, 4, requires_grad=True), torch.zeros(1, 4, 4, dtype=torch.long)
    weights: list[dict[str, Tensor]] = [{"weight": torch.tensor([0.0, 1, 1])}, {"pixel_weight": torch.zeros(1, 4, 4)}]
    for given in weights:
        value, gradient = run(partial(edge_aware_loss, label_smoothing=0.1, **given), x, y)
        assert value == 0
        assert not gradient.any()


@by_backend
@pytest.mark.parametrize("size", [1e-19, 1e-23, 1e-42])
def test_weights_may_be_tiny(size: float) -> None:
    x, y = torch.randn(1, 3, 9, 9, requires_grad=True), torch.arange(81).view(1, 9, 9) // 27
    value, gradient = run(partial(edge_aware_loss, pixel_weight=torch.full((1, 9, 9), size)), x, y)
    if size > 1e-20:
        expected = run(edge_aware_loss, x, y)
        torch.testing.assert_close((value, gradient), tuple(expected), rtol=1e-4, atol=1e-6)
    else:  # a mean over nothing
        assert value == 0
        assert not gradient.any()
    _, gradient = run(partial(edge_aware_loss, weight=torch.full((3,), size)), x, y)
    assert gradient.isfinite().all()
    assert gradient.any()  # of the edge terms, which have weights of their own


# -------------------------------------------------------------------------------------------------- infinite and nan


@each_column
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("without_weight", ["cross-entropy", "pixel", "edges"])
def test_what_has_no_weight_may_be_infinite(without_weight: str, reduction: str, column: Column) -> None:
    y, results, place = torch.tensor([[[0, 0, 0, 0, 0, 0, 1, 1]] * 4]), [], 1  # no neighbor of an edge pixel
    options: dict[str, Any] = {"reduction": reduction, "ce_weight": 0.0, "region_weight": 0.0}
    if without_weight == "pixel":
        options |= {"pixel_weight": (torch.arange(32) != 9).float().view(1, 4, 8), "ce_weight": 1.0}
    elif without_weight == "edges":  # infinite is the same-side term of edge pixels of class 0
        options, place = options | {"edge_class_weight": torch.tensor([0.0, 1.0, 1.0])}, 4
    for value in (-torch.inf, 0.0):
        x = torch.randn(1, 3, 4, 8, generator=torch.Generator().manual_seed(0))
        x[0, 0, 1, place] = value
        loss = column.loss(x.requires_grad_(), y, **options)
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
    stripes = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]).expand(2, 10, 8)  # two regions
    x = torch.zeros(2, 4, 10, 8, dtype=dtype)
    x[0, 1, 2, 3] = torch.nan  # of class 1, next to class 2
    x.requires_grad_()
    loss, terms = edge_aware_loss(x, stripes, power=power, region_weight=1.0, return_terms=True)
    assert loss.isnan()
    assert all(value.isnan() for name, value in terms.items() if name != "edge_fraction")
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient[0].isnan().all()
    assert gradient[1].isfinite().all()
    maps = loss_maps(x, stripes, power=power)
    assert maps.cross_entropy.isnan().nonzero().tolist() == [[0, 2, 3]]
    around = [[0, 1, 2], [0, 1, 3], [0, 2, 2], [0, 3, 2], [0, 3, 3]]
    assert maps.same_side.isnan().nonzero().tolist() == around
    assert maps.other_side.isnan().nonzero().tolist() == [[0, i, 4] for i in (1, 2, 3)]


# F.interpolate multiplies -inf by 0.
@by_backend
@pytest.mark.parametrize(
    ("size", "each_backend"), [(6, "reference"), (6, "fused"), (24, "fused")], indirect=["each_backend"]
)
def test_a_class_that_cannot_be_does_not_count(size: int) -> None:
    x, y = torch.randn(1, 3, 6, 6), torch.randint(2, (1, size, size))
    x[:, 2] = -torch.inf
    # The number of classes enters the balance and the error of a uniform prediction.
    options: dict[str, Any] = {"edge_class_weight": None, "edge_focus": 0.0, "region_weight": 0.0, "upsample": True}
    losses = [lambda x, y, n=n: edge_aware_loss(x[:, :n], y, **options) for n in (3, 2)]
    torch.testing.assert_close(*[run(loss, x.requires_grad_(), y) for loss in losses])


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


# -------------------------------------------------------------------------------------------------------------- sums


def test_sum_over_many_pixels_is_in_float64() -> None:
    # 2^25 pixels of log 2: float32 can count only up to 2^24.
    x = torch.zeros(1, 1, 1, 1).expand(1, 2, 4096, 8192)
    y = torch.zeros(1, 1, 1, dtype=torch.uint8).expand(1, 4096, 8192)
    loss = edge_aware_loss(x, y, edge_weight=0.0, reduction="sum")
    assert loss.item() == pytest.approx(2**25 * math.log(2), rel=1e-7)


# ----------------------------------------------------------------------------------------------------------- options

OPTIONS: list[dict[str, Any]] = [
    # A neighbor that is many decays away has hardly any weight, and yet it may decide a mean of negative power.
    {"decay": 1.0, "distance": 1e3},
    {"decay": 1.0, "distance": 1e20},
    {"decay": 1.0, "distance": 30.0, "radius": 4},
    {"decay": 1e-9, "distance": 1e-9},
    {"decay": 1e-60, "distance": 1e-60},
    {"decay": 1e-20, "distance": 1e300},
    {"decay": 1.0, "spacing": 1e19},
    {"decay": 1.0, "spacing": (1e-19, 1.0)},
    {"decay": 1e39, "spacing": 1e39},
    {"decay": 2e-6, "spacing": 1e-6, "radius": 2},
    {"decay": 1e-39, "radius": 2},
    {"decay": 3.0, "radius": 2**62},
    {"radius": (2**63 - 1, 0)},
]


@pytest.mark.parametrize(
    ("options", "power", "dtype", "each_backend"),
    pairwise(OPTIONS, [-1.0, 0.0, 2.0], [torch.float32, torch.float64], ["reference", "fused"]),
    indirect=["each_backend"],
    ids=str,
)
@pytest.mark.usefixtures("each_backend")
def test_options_at_their_limits(options: dict[str, Any], power: float, dtype: torch.dtype) -> None:
    x, y = (300 * torch.randn(2, 3, 8, 9, dtype=dtype)).requires_grad_(), torch.randint(-1, 3, (2, 8, 9))
    options = options | {"ignore_index": -1, "power": power}
    exact, given = x.detach().double().requires_grad_(), dict(options)
    if "distance" in options:
        wide = options["distance"] * torch.rand(y.shape, dtype=torch.float64)
        given["distance"] = wide.to(dtype) if 1e-30 < options["distance"] < 1e30 else wide
        options["distance"] = given["distance"].double()
    found = run(partial(edge_aware_loss, **given), x, y)
    expected = run(partial(edge_aware_loss, **options, backend="reference"), exact, y)
    tolerance = {"rtol": 2e-5, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-13}
    torch.testing.assert_close(found, expected, **tolerance, check_dtype=False)
