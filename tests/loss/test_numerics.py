"""Extreme inputs: the loss is finite and close to the float64 reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pairwise import pairwise
from torch import Tensor

from edgeloss.functional import edge_aware_loss, loss_maps, neighbor_nll

pytestmark = pytest.mark.usefixtures("each_backend")

STRIPES = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]).expand(1, 10, 8)  # two regions
OTHER_SIDE: dict[str, Any] = {"ce_weight": 0.0, "same_side_weight": 0.0, "reduction": "sum"}


@pytest.mark.parametrize("classes", [2, 1000])
def test_leak_is_exact_for_every_probability(classes: int) -> None:
    # As 1 - p it is 0 for a neighbor that is certain of the wrong class, and as log(1 - p) for one that is certain of
    # its own. Between them are both branches of log(1 - p), and where they meet.
    y, v = torch.tensor([[[0, 1]]]), torch.tensor([[[1.0, 0.0]]])
    for log_odds in [-40.0, *np.linspace(-3, 7, 60).tolist(), 40.0]:
        x = torch.zeros(1, classes, 1, 2)
        x[..., 1][:, 0] = log_odds + math.log(classes - 1)
        (p,) = x[0, :1, 0, 1].double() - math.log(classes - 1)
        found = edge_aware_loss(x, y, pixel_weight=v, **OTHER_SIDE)
        assert found.item() == pytest.approx(F.softplus(p, threshold=100).item(), rel=5e-7 if classes == 2 else 1e-5)


# Far below the top, a logit minus the top has no digits left, and nor has a logsumexp.
GAPS = [(gap, dtype) for gap in (40.0, 100.0, 1e3, 1e4, 1e8, 1e30) for dtype in (torch.float32, torch.float64)]
GAPS += [(gap, torch.bfloat16) for gap in (100.0, 1e30)] + [(gap, torch.float16) for gap in (40.0, 6e4)]
CALLS: list[Any] = [(power, upsample) for power in (0.0, 1.0, -1.0) for upsample in (False, True)]


@pytest.mark.parametrize(("gap", "call"), pairwise(GAPS, [*CALLS, "index", "indicator"]), ids=str)
def test_gradient_of_the_other_side_at_any_gap(gap: tuple[float, torch.dtype], call: Any) -> None:
    top, dtype = gap
    # The pixel of label 1 is certain of class 0: the others share what is taken from it, as by a softmax over them.
    others = torch.tensor([0.3, -2.0, 0.3, 1.7, -0.4], dtype=dtype)
    x = torch.zeros(1, 6, 1, 1 if call in CALLS and call[1] else 2, dtype=dtype)
    x[0, 0], x[0, 1:, 0, -1] = top, others
    x.requires_grad_()
    shares = others.double().softmax(0)
    if call in CALLS:
        loss = edge_aware_loss(x, torch.tensor([[[0, 1]]]), power=call[0], upsample=call[1], **OTHER_SIDE)
    else:  # neighbor_nll for class 1, or for all classes but class 0
        chosen = torch.arange(6).view(1, 6, 1, 1).expand(1, 6, 1, 2) > 0
        index = chosen if call == "indicator" else torch.ones(1, 1, 2, dtype=torch.long)
        loss = neighbor_nll(x, index, torch.ones(1, 8, 1, 2), torch.tensor([[[True, False]]])).sum()
        shares = shares if call == "indicator" else torch.eye(5, dtype=torch.float64)[0]
    (gradient,) = torch.autograd.grad(loss, x)
    digits = max(float(torch.finfo(dtype).eps), 3e-6 if dtype == torch.float32 else 1e-14)
    expected = torch.cat([torch.ones(1), -shares])
    torch.testing.assert_close(gradient[0, :, 0, -1].double(), expected, rtol=digits, atol=digits)


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_nan_logit_is_not_hidden(power: float, dtype: torch.dtype) -> None:
    x = torch.zeros(1, 4, 10, 8, dtype=dtype)
    x[0, 1, 2, 3] = torch.nan  # of class 1, next to class 2
    loss, terms = edge_aware_loss(x, STRIPES, power=power, region_weight=1.0, return_terms=True)
    assert loss.isnan()
    assert all(value.isnan() for name, value in terms.items() if name != "edge_fraction")
    maps = loss_maps(x, STRIPES, power=power)
    assert maps.cross_entropy.isnan().nonzero().tolist() == [[0, 2, 3]]
    around = [[0, 1, 2], [0, 1, 3], [0, 2, 2], [0, 3, 2], [0, 3, 3]]
    assert maps.same_side.isnan().nonzero().tolist() == around
    assert maps.other_side.isnan().nonzero().tolist() == [[0, i, 4] for i in (1, 2, 3)]


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


def test_a_class_that_cannot_be_does_not_count() -> None:
    x, y = torch.randn(1, 3, 6, 6), torch.randint(2, (1, 6, 6))
    x[:, 2] = -torch.inf
    results = []
    for logits in (x.requires_grad_(), x[:, :2]):
        loss = edge_aware_loss(logits, y)
        results.append((loss, *torch.autograd.grad(loss, x)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("spread", [1e3, 1e20])
@pytest.mark.parametrize("power", [-1.0, 0.0, 2.0])
def test_distances_of_any_spread(power: float, spread: float, dtype: torch.dtype) -> None:
    # A neighbor that is many decays away has hardly any weight, and yet it may decide a mean of negative power.
    x, y = (300 * torch.randn(1, 3, 6, 7, dtype=dtype)).requires_grad_(), torch.randint(-1, 3, (1, 6, 7))
    distance = spread * torch.rand(1, 6, 7, dtype=dtype)
    exact = x.detach().double().requires_grad_()
    options: dict[str, Any] = {"ignore_index": -1, "power": power, "decay": 1.0}
    value = edge_aware_loss(x, y, distance=distance, **options)
    expected = edge_aware_loss(exact, y, distance=distance.double(), backend="reference", **options)
    tolerance = {"rtol": 2e-5, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-13}
    torch.testing.assert_close(value.double(), expected, **tolerance)
    gradients = (torch.autograd.grad(loss, logits)[0].double() for loss, logits in ((value, x), (expected, exact)))
    torch.testing.assert_close(*gradients, **tolerance)


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


@pytest.mark.parametrize("name", EXTREME_OPTIONS)
def test_backends_agree_on_extreme_options(name: str) -> None:
    x, y = torch.randn(2, 3, 8, 9, requires_grad=True), torch.randint(3, (2, 8, 9))
    results = []
    for backend in ("auto", "reference"):
        loss = edge_aware_loss(x, y, **EXTREME_OPTIONS[name], backend=backend)
        results.append((loss, *torch.autograd.grad(loss, x)))
    torch.testing.assert_close(*results)


def test_zero_weights_are_a_mean_over_nothing() -> None:
    x, y = torch.randn(1, 3, 4, 4, requires_grad=True), torch.zeros(1, 4, 4, dtype=torch.long)
    weights: list[dict[str, Tensor]] = [{"weight": torch.tensor([0.0, 1, 1])}, {"pixel_weight": torch.zeros(1, 4, 4)}]
    for given in weights:
        loss = edge_aware_loss(x, y, label_smoothing=0.1, **given)
        assert loss == 0
        assert not torch.autograd.grad(loss, x)[0].any()


def test_sum_over_many_pixels_is_in_float64() -> None:
    # 2^25 pixels of log 2: float32 can count only up to 2^24.
    x = torch.zeros(1, 1, 1, 1).expand(1, 2, 4096, 8192)
    y = torch.zeros(1, 1, 1, dtype=torch.uint8).expand(1, 4096, 8192)
    loss = edge_aware_loss(x, y, edge_weight=0.0, reduction="sum")
    assert loss.item() == pytest.approx(2**25 * math.log(2), rel=1e-7)
