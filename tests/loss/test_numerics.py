"""Extreme inputs: the loss is finite and close to the float64 reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pairwise import pairwise
from torch import Tensor

from edgeloss.functional import edge_aware_loss, loss_maps, neighbor_nll

pytestmark = pytest.mark.usefixtures("each_backend")

CHECKERBOARD = (torch.arange(8)[:, None] + torch.arange(8)).remainder(2)[None]
HALVES = (torch.arange(8) >= 4).long().expand(1, 8, 8)
STRIPES = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]).expand(1, 8, 8)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"power": 1.0},
    {"power": -1.0},
    {"decay": 1.0, "radius": 2},
    {"power": 1.0, "decay": 1.0, "radius": 2},
    {"decay": 1e-3, "label_smoothing": 0.1},  # the farthest neighbors' weights are e^-1414, beyond float64
]


def logits_of(y: Tensor, right: float, wrong: float, dtype: torch.dtype) -> Tensor:
    x = torch.full((1, 4, *y.shape[1:]), wrong, dtype=dtype)
    return x.scatter_(1, y[:, None], right).requires_grad_()


EXTREMES = [  # right, wrong, dtype
    (1e30, -1e30, torch.float32),
    (-1e30, 1e30, torch.float32),
    (1e30, 1e30, torch.float32),
    (0.0, 1e30, torch.float32),
    (-1e30, 1e30, torch.bfloat16),
    (1e30, -1e30, torch.bfloat16),
    (65504.0, -65504.0, torch.float16),
    (-65504.0, 65504.0, torch.float16),
    (1e4, 1e4 - 21, torch.float32),  # p within 1e-9 of 1
    (1e4 - 21, 1e4, torch.float32),
    (-1e4, -1e4, torch.float32),
    (88.0, 0.0, torch.float32),  # the largest exponents that exp takes
    (-104.0, 0.0, torch.float32),
]


LABELS = {"checkerboard": CHECKERBOARD, "halves": HALVES, "stripes": STRIPES}


@pytest.mark.parametrize(("extreme", "settings", "labels"), pairwise(EXTREMES, SETTINGS, [*LABELS]), ids=str)
def test_extreme_logits(extreme: tuple[float, float, torch.dtype], settings: dict[str, Any], labels: str) -> None:
    (right, wrong, dtype), y = extreme, LABELS[labels]
    x = logits_of(y, right, wrong, dtype)
    exact = x.detach().double().requires_grad_()
    loss, maps = edge_aware_loss(x, y, return_maps=True, **settings)
    expected, expected_maps = edge_aware_loss(exact, y, return_maps=True, **settings)
    loss.backward()
    expected.backward()
    assert x.grad is not None
    assert exact.grad is not None
    assert loss.isfinite()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(maps.edge.double(), expected_maps.edge, rtol=1e-5, atol=1e-6)
    tolerance = max(1e-6, torch.finfo(dtype).eps)
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_extreme_logits_at_random(dtype: torch.dtype) -> None:
    for _ in range(20):
        scale = 65504.0 if dtype == torch.float16 else 1e30
        signs = torch.randint(-1, 2, (2, 5, 6, 6)).float()
        x = (signs * scale * torch.rand(2, 5, 6, 6) ** 4).to(dtype).requires_grad_()
        y = torch.randint(5, (2, 6, 6))
        for power in (1.0, 0.0, -1.0, 3.0):
            loss = edge_aware_loss(x, y, power=power, decay=0.5)
            (gradient,) = torch.autograd.grad(loss, x)
            assert loss.isfinite()
            assert gradient.isfinite().all()


def test_leak_is_exact_where_one_minus_p_cancels() -> None:
    # The neighbor across the edge is certain of the wrong class: 1 - p = e^-40, which is 0 if computed as 1 - p.
    x = torch.tensor([[40.0, 40.0], [0.0, 0.0]]).view(1, 2, 1, 2)
    y = torch.tensor([[[0, 1]]])
    maps = loss_maps(x, y)
    assert maps.other_side[0, 0, 0] == 40
    # Where p is tiny, log(1 - p) is -p, which is 0 if computed as log(1 - p).
    assert maps.other_side[0, 0, 1].item() == pytest.approx(float(torch.tensor(-40.0).exp()), rel=1e-5)


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
    p = torch.linspace(0.05, 0.999, 200, dtype=torch.float64)
    x = torch.zeros(1, classes, 1, 200)
    x[0, 0, 0] = torch.log(p * (classes - 1) / (1 - p)).float()
    y = (torch.arange(200) % 2).view(1, 1, 200)  # class 0 looks at its neighbors' p
    value = loss_maps(x, y, radius=(0, 1)).other_side[0, 0, ::2]
    expected = loss_maps(x.double(), y, radius=(0, 1)).other_side[0, 0, ::2]
    torch.testing.assert_close(value.double(), expected, rtol=5e-7 if classes == 2 else 1e-6, atol=0.0)


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_nan_logit_is_not_hidden(power: float, dtype: torch.dtype) -> None:
    x = torch.zeros(1, 4, 8, 8, dtype=dtype)
    x[0, 1, 2, 3] = torch.nan  # of class 1, next to class 2
    loss, maps = edge_aware_loss(x, STRIPES, power=power, return_maps=True)
    assert loss.isnan()
    assert maps.cross_entropy.isnan().nonzero().tolist() == [[0, 2, 3]]
    around = [[0, 1, 2], [0, 1, 3], [0, 2, 2], [0, 3, 2], [0, 3, 3]]
    assert maps.same_side.isnan().nonzero().tolist() == around
    assert maps.other_side.isnan().nonzero().tolist() == [[0, i, 4] for i in (1, 2, 3)]


@pytest.mark.parametrize("power", [1.0, -1.0, 0.1, -0.01, 1e-4, -1e-7, 1e-29, 1e-40, 1e6, -1e6])
def test_confident_logits_at_every_power(power: float) -> None:
    # A well trained network: the terms are small differences of large sums, and none may come out negative.
    y = torch.randint(2, (1, 16, 16))
    x = F.one_hot(y, 2).movedim(-1, 1) * (10 + 10 * torch.rand(1, 1, 16, 16))
    x[..., ::5] *= -0.1
    maps, exact = loss_maps(x, y, power=power), loss_maps(x.double(), y, power=power)
    assert (maps.same_side >= 0).all()
    assert (maps.other_side >= 0).all()
    torch.testing.assert_close(maps.edge.double(), exact.edge, rtol=2e-5, atol=5e-7)


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


def test_weights_do_not_underflow() -> None:
    # d / decay = 1e5: e^-1e5 is 0 in any float, but only the ratios of the weights count.
    x, y = torch.randn(1, 3, 4, 4), torch.randint(3, (1, 4, 4))
    constant = torch.full((1, 4, 4), 1e5)
    torch.testing.assert_close(edge_aware_loss(x, y, decay=1.0, distance=constant), edge_aware_loss(x, y))


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
    value, maps = edge_aware_loss(x, y, return_maps=True, **EXTREME_OPTIONS[name])
    expected, expected_maps = edge_aware_loss(x, y, return_maps=True, backend="reference", **EXTREME_OPTIONS[name])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(maps, expected_maps)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (value, expected)))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_term_without_weight_may_be_infinite(reduction: Any) -> None:
    x, y = torch.zeros(1, 2, 1, 4), torch.tensor([[[0, 0, 1, 1]]])
    x[0, 0, 0, 0] = -torch.inf  # its class, which the edge pixel next to it reads too
    options: dict[str, Any] = {"ce_weight": 0.0, "reduction": reduction}
    assert edge_aware_loss(x, y, same_side_weight=0.0, **options).isfinite().all()
    assert edge_aware_loss(x, y, **options).max() == torch.inf


@pytest.mark.parametrize("unit", [1.0, 1e20])
def test_weights_of_neighbors_may_be_far_apart(unit: float) -> None:
    torch.manual_seed(135)
    x, y = 300 * torch.randn(1, 2, 3, 3, dtype=torch.float64), torch.randint(2, (1, 3, 3))
    distance = unit * 1000 * torch.rand(1, 3, 3, dtype=torch.float64)
    options: dict[str, Any] = {"power": -1.0, "decay": 1.0, "distance": distance, "backend": "reference"}
    loss = edge_aware_loss(x.requires_grad_(), y, **options)
    expected = 359.460749468896 if unit == 1.0 else 234.768473690028  # by decimals of 60 digits
    assert loss.item() == pytest.approx(expected, rel=1e-13)
    (gradient,) = torch.autograd.grad(loss, x)
    for place in itertools.product(range(2), range(3), range(3)):
        step = torch.zeros_like(x)
        step[(0, *place)] = 1e-4
        ends = [edge_aware_loss(x.detach() + sign * step, y, **options).item() for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(gradient[(0, *place)].item(), abs=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("batch", "size"), [(0, (4, 4)), (2, (0, 4)), (2, (4, 4)), (0, (2, 3, 3)), (2, (2, 3, 3))], ids=str
)
def test_nothing_to_count(batch: int, size: tuple[int, ...], reduction: str) -> None:
    x = torch.randn(batch, 3, *size, requires_grad=True)
    y = torch.full((batch, *size), -100)
    loss, maps, terms = edge_aware_loss(x, y, reduction=reduction, decay=1.0, return_maps=True, return_terms=True)
    assert loss.shape == (y.shape if reduction == "none" else ())
    assert not loss.any()
    assert not any(terms.values())
    assert maps.edge.shape == y.shape
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    assert not gradient.any()


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
