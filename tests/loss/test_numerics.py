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

STRIPES = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]).expand(1, 8, 8)


def other_side(x: Tensor, y: Tensor, pixel: int) -> float:
    """Return O of a pixel of the first row of an image, as a sum, which kernels compute."""
    v = torch.zeros(y.shape)
    v[0, 0, pixel] = 1.0
    options: dict[str, Any] = {"ce_weight": 0.0, "same_side_weight": 0.0, "reduction": "sum", "radius": (0, 1)}
    return edge_aware_loss(x, y, pixel_weight=v, **options).item()


def test_leak_is_exact_where_one_minus_p_cancels() -> None:
    # The neighbor across the edge is certain of the wrong class: 1 - p = e^-40, which is 0 if computed as 1 - p.
    x = torch.tensor([[40.0, 40.0], [0.0, 0.0]]).view(1, 2, 1, 2)
    y = torch.tensor([[[0, 1]]])
    assert other_side(x, y, 0) == 40
    # Where p is tiny, log(1 - p) is -p, which is 0 if computed as log(1 - p).
    assert other_side(x, y, 1) == pytest.approx(math.exp(-40), rel=1e-5)


def softmax(x: Tensor) -> Any:
    """Return e^x / Σ e^x of the numbers, with the digits of a long double."""
    wide = x.double().numpy().astype(np.longdouble)
    e = np.exp(wide - wide.max())
    return e / e.sum()


# Far below the top, a logit minus the top has no digits left, and nor has a logsumexp.
GAPS = [(gap, dtype) for gap in (40.0, 100.0, 1e3, 1e4, 1e8, 1e30) for dtype in (torch.float32, torch.float64)]
GAPS += [(gap, torch.bfloat16) for gap in (100.0, 1e30)] + [(gap, torch.float16) for gap in (40.0, 6e4)]


@pytest.mark.parametrize(("gap", "upsample", "power"), pairwise(GAPS, [False, True], [0.0, 1.0, -1.0]), ids=str)
def test_gradient_of_the_other_side_at_any_gap(gap: tuple[float, torch.dtype], *, upsample: bool, power: float) -> None:
    top, dtype = gap
    # The pixel of label 1 is certain of class 0: the others share what is taken from it, as by a softmax over them.
    others = torch.tensor([0.3, -2.0, 0.3, 1.7, -0.4], dtype=dtype)
    x = torch.zeros(1, 6, 1, 1 if upsample else 2, dtype=dtype)
    x[0, 0], x[0, 1:, 0, -1] = top, others
    x.requires_grad_()
    options: dict[str, Any] = {"ce_weight": 0.0, "same_side_weight": 0.0, "reduction": "sum", "power": power}
    loss = edge_aware_loss(x, torch.tensor([[[0, 1]]]), upsample=upsample, **options)
    (gradient,) = torch.autograd.grad(loss, x)
    digits = max(float(torch.finfo(dtype).eps), 3e-6 if dtype == torch.float32 else 1e-14)
    expected = torch.from_numpy(np.append(1.0, -softmax(others)).astype(np.float64))
    torch.testing.assert_close(gradient[0, :, 0, -1].double(), expected, rtol=digits, atol=digits)


@pytest.mark.parametrize("indicator", [False, True])
@pytest.mark.parametrize(("gap", "dtype"), GAPS, ids=str)
def test_gradient_of_neighbor_nll_at_any_gap(gap: float, dtype: torch.dtype, *, indicator: bool) -> None:
    others = torch.tensor([0.3, -2.0, 0.3, 1.7, -0.4], dtype=dtype)
    x = torch.zeros(1, 6, 1, 2, dtype=dtype)
    x[0, 0], x[0, 1:, 0, 1] = gap, others
    x.requires_grad_()
    index = torch.zeros(1, 6, 1, 2, dtype=torch.bool)
    index[:, 1:] = True
    choice = index if indicator else torch.ones(1, 1, 2, dtype=torch.long)
    weight = torch.ones(1, 8, 1, 2)
    mask = torch.tensor([[[True, False]]])
    (gradient,) = torch.autograd.grad(neighbor_nll(x, choice, weight, mask).sum(), x)
    digits = max(float(torch.finfo(dtype).eps), 3e-6 if dtype == torch.float32 else 1e-14)
    shares = softmax(others) if indicator else np.eye(5)[0]
    expected = torch.from_numpy(np.append(1.0, -shares).astype(np.float64))
    torch.testing.assert_close(gradient[0, :, 0, 1].double(), expected, rtol=digits, atol=digits)


@pytest.mark.parametrize("classes", [2, 1000])
def test_leak_is_exact_around_one_half(classes: int) -> None:
    # Both branches of log(1 - p), and where they meet; with many classes p = 1/2 needs a logit of log(classes - 1).
    y = torch.tensor([[[0, 1]]])
    for p in np.linspace(0.05, 0.999, 60):
        x = torch.zeros(1, classes, 1, 2)
        x[..., 1][:, 0] = math.log(p * (classes - 1) / (1 - p))
        expected = other_side(x.double(), y, 0)
        assert other_side(x, y, 0) == pytest.approx(expected, rel=5e-7 if classes == 2 else 1e-6)


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_nan_logit_is_not_hidden(power: float, dtype: torch.dtype) -> None:
    x = torch.zeros(1, 4, 8, 8, dtype=dtype)
    x[0, 1, 2, 3] = torch.nan  # of class 1, next to class 2
    loss, terms = edge_aware_loss(x, STRIPES, power=power, return_terms=True)
    assert loss.isnan()
    assert all(terms[name].isnan() for name in ("cross_entropy", "same_side", "other_side"))
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


def test_any_decay_and_field() -> None:
    x, y = torch.randn(2, 3, 6, 7), torch.randint(3, (2, 6, 7))
    big = torch.full((2, 6, 7), 1e300, dtype=torch.float64)
    assert edge_aware_loss(x, y, decay=1e-39, radius=2).isfinite()
    torch.testing.assert_close(edge_aware_loss(x, y, decay=1e-20, distance=big), edge_aware_loss(x, y))


def test_impossible_classes_are_fine_where_they_are_not_the_label() -> None:
    y = torch.tensor([[[0, 0, 1, 1]]])
    x = torch.zeros(1, 2, 1, 4)
    x[0, 1, 0, 0] = -torch.inf
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(edge_aware_loss(x, y), x)
    assert gradient.isfinite().all()


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
    "tiny decay": {"decay": 1e-9},
    "a field in meters": {"decay": 1e-9, "distance": torch.rand(2, 8, 9) * 1e-9},
    "a far field": {"decay": 1e-60, "distance": torch.rand(2, 8, 9, dtype=torch.float64) * 1e-60},
    "radius 2^62": {"radius": 2**62, "decay": 3.0},
    "radius 2^63 - 1": {"radius": (2**63 - 1, 0)},
}


@pytest.mark.parametrize("name", EXTREME_OPTIONS)
def test_backends_agree_on_extreme_options(name: str) -> None:
    x, y = torch.randn(2, 3, 8, 9, requires_grad=True), torch.randint(3, (2, 8, 9))
    value, expected = (
        edge_aware_loss(x, y, **EXTREME_OPTIONS[name], backend=backend) for backend in ("auto", "reference")
    )
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (value, expected)))


def test_zero_weights_are_a_mean_over_nothing() -> None:
    x, y = torch.randn(1, 3, 4, 4, requires_grad=True), torch.zeros(1, 4, 4, dtype=torch.long)
    weight = torch.tensor([0.0, 1.0, 1.0])
    for loss in (
        edge_aware_loss(x, y, weight=weight, label_smoothing=0.1),
        edge_aware_loss(x, y, pixel_weight=torch.zeros(1, 4, 4)),
    ):
        (gradient,) = torch.autograd.grad(loss, x)
        assert loss == 0
        assert not gradient.any()


def test_sum_over_many_pixels_is_in_float64() -> None:
    # 2^25 pixels of log 2: float32 can count only up to 2^24.
    x = torch.zeros(1, 1, 1, 1).expand(1, 2, 4096, 8192)
    y = torch.zeros(1, 1, 1, dtype=torch.uint8).expand(1, 4096, 8192)
    loss = edge_aware_loss(x, y, edge_weight=0.0, reduction="sum")
    assert loss.item() == pytest.approx(2**25 * 0.6931471805599453, rel=1e-7)


def test_the_original_failure_a_masked_division_poisons_backward() -> None:
    # An early version computed 1/0 on pixels without an edge and masked it to 0: the value is finite, the gradient not.
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    torch.where(x == 0, torch.zeros(()), 1 / x).sum().backward()
    assert x.grad is not None
    assert x.grad.isnan().tolist() == [True, False]
    # The loss on an image whose gradient that made 99.97 % nan: one edge pixel pair in 100 × 100.
    logits = torch.randn(1, 2, 100, 100, requires_grad=True)
    y = torch.zeros(1, 100, 100, dtype=torch.long)
    y[0, 50, 50] = 1
    edge_aware_loss(logits, y, decay=1.0).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
