"""``neighbor_nll`` against the write-up's line, as printed but for the ``gtind[:, None]`` that batches need."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss.functional import edge_aware_loss, loss_maps, neighbor_nll

OFFSETS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]


def neighbours(values: Tensor) -> Tensor:
    """[B, *, H, W] → [B, 8, *, H, W], 0 outside."""
    height, width = values.shape[-2:]
    padded = F.pad(values, (1, 1, 1, 1))
    return torch.stack([padded[..., 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width] for dy, dx in OFFSETS], 1)


def literal(prob: Tensor, gtind: Tensor, gtdf: Tensor, edge: Tensor) -> Tensor:
    """The line; gtdf is 0 for neighbours outside the image."""
    probnb = neighbours(prob)
    line = -torch.log(((probnb * gtind[:, None]).sum(-3) * gtdf).sum(-3) / gtdf.sum(-3))
    return torch.where(edge, line, 0.0)


def inside(batch: int, height: int, width: int) -> Tensor:
    return neighbours(torch.ones(batch, height, width, dtype=torch.float64))


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("kind", ["index", "one-hot", "several classes"])
def test_literal_line(batch: int, classes: int, kind: str) -> None:
    x = torch.randn(batch, classes, 6, 7, dtype=torch.float64, requires_grad=True)
    index = torch.randint(classes, (batch, 6, 7))
    indicator = F.one_hot(index, classes).movedim(-1, 1)
    if kind == "several classes":
        indicator = indicator | torch.randint(2, indicator.shape)
    weight = torch.rand(batch, 8, 6, 7, dtype=torch.float64)
    weight[torch.rand_like(weight) < 0.3] = 0
    weight[:, :, 2:4, 2:4] = 0  # no neighbour has weight there
    used = weight * inside(batch, 6, 7)
    edge = used.sum(1) > 0
    expected = literal(x.softmax(1), indicator.double(), used, edge)
    value = neighbor_nll(x, index if kind == "index" else indicator, weight)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    assert not value[:, 2:4, 2:4].any()

    mask = edge & (torch.rand(batch, 6, 7) < 0.5)
    value = neighbor_nll(x, index if kind == "index" else indicator, weight, mask)
    torch.testing.assert_close(value, torch.where(mask, expected, 0.0), rtol=1e-12, atol=1e-12)

    # The write-up's way has a nan gradient where it masks 0/0; on the mask the two agree.
    (gradient,) = torch.autograd.grad(value.sum(), x)
    safe = torch.where(mask[:, None], used, 1.0)
    (expected_gradient,) = torch.autograd.grad(literal(x.softmax(1), indicator.double(), safe, mask).sum(), x)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("weighted", [False, True])
def test_other_side_is_the_line_with_flipped_one_hot(batch: int, weighted: bool) -> None:
    x = torch.randn(batch, 2, 6, 7, dtype=torch.float64) * 3
    y = torch.randint(2, (batch, 6, 7))
    field = torch.rand(batch, 6, 7, dtype=torch.float64) * 4
    flipped = F.one_hot(1 - y, 2).movedim(-1, 1).double()
    differs = neighbours(y.double()) != y[:, None]
    w = neighbours((-field / 1.5).exp()) if weighted else 1.0
    gtdf = differs * inside(batch, 6, 7) * w
    maps = loss_maps(x, y, decay=1.5, distance=field) if weighted else loss_maps(x, y)
    assert maps.edge_mask.any()
    expected = literal(x.softmax(1), flipped, gtdf, maps.edge_mask)
    torch.testing.assert_close(maps.other_side, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(neighbor_nll(x, 1 - y, gtdf), expected, rtol=1e-12, atol=1e-12)


def test_probabilities_go_in_as_logarithms() -> None:
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    index, weight = torch.randint(4, (2, 5, 5)), torch.rand(2, 8, 5, 5)
    value, of_prob = neighbor_nll(x, index, weight), neighbor_nll(x.softmax(1).log(), index, weight)
    torch.testing.assert_close(value, of_prob)
    torch.testing.assert_close(torch.autograd.grad(of_prob.sum(), x), torch.autograd.grad(value.sum(), x))


def test_three_dimensions_and_radius() -> None:
    x = torch.randn(1, 3, 2, 3, 4, dtype=torch.float64)
    y = torch.randint(3, (1, 2, 3, 4))
    count = 3 * 5 * 1 - 1
    weight = torch.rand(1, count, 2, 3, 4, dtype=torch.float64)
    value = neighbor_nll(x, y, weight, radius=(1, 2, 0))
    p = x.softmax(1)
    offsets = [(a, b) for a in (-1, 0, 1) for b in (-2, -1, 0, 1, 2) if (a, b) != (0, 0)]
    i = (1, 1, 2)
    pairs = [(k, (i[0] + a, i[1] + b, i[2])) for k, (a, b) in enumerate(offsets)]
    pairs = [(k, n) for k, n in pairs if 0 <= n[0] < 2 and 0 <= n[1] < 3]
    w = torch.stack([weight[(0, k, *i)] for k, _ in pairs])
    terms = torch.stack([p[(0, y[(0, *i)], *n)] for _, n in pairs])
    torch.testing.assert_close(value[(0, *i)], -((w * terms).sum() / w.sum()).log())


def test_neighbours_without_weight_are_not_read() -> None:
    x = torch.randn(1, 3, 4, 4)
    x[..., 3] = torch.nan
    weight = torch.ones(1, 8, 4, 4)
    weight[:, [2, 4, 7]] = 0  # the three offsets to the right
    weight[..., 3] = 0
    value = neighbor_nll(x.requires_grad_(), torch.zeros(1, 4, 4, dtype=torch.long), weight)
    assert value.isfinite().all()
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[..., 3].any()


@pytest.mark.parametrize(("scale", "dtype"), [(1e30, torch.float32), (65504.0, torch.float16)])
def test_extremes_are_finite(scale: float, dtype: torch.dtype) -> None:
    x = (torch.randint(-1, 2, (2, 3, 5, 5)).float() * scale).to(dtype).requires_grad_()
    y = torch.randint(3, (2, 5, 5))
    weight = torch.full((2, 8, 5, 5), 1e-38)
    for index in (y, F.one_hot(y, 3).movedim(-1, 1)):
        value = neighbor_nll(x, index, weight)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("factor", [1e-50, 1e50])
def test_only_the_ratios_of_the_weights_count(factor: float) -> None:
    x, y = torch.randn(2, 3, 5, 5), torch.randint(3, (2, 5, 5))
    weight = torch.rand(2, 8, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(neighbor_nll(x, y, weight * factor), neighbor_nll(x, y, weight))


def test_an_index_is_read_on_the_mask_only() -> None:
    x = torch.randn(1, 3, 1, 1)  # its neighbours are all outside
    assert neighbor_nll(x, torch.full((1, 1, 1), 7), torch.ones(1, 8, 1, 1)) == 0


def test_weights_are_not_differentiable() -> None:
    x, y = torch.randn(1, 3, 5, 5, requires_grad=True), torch.randint(3, (1, 5, 5))
    weight = torch.rand(1, 8, 5, 5, requires_grad=True)
    neighbor_nll(x, y, weight).sum().backward()
    assert weight.grad is None


def test_a_loss_of_ones_own() -> None:
    # The same side of an equally weighted edge pixel, by hand.
    x, y = torch.randn(1, 3, 5, 5, dtype=torch.float64), torch.randint(3, (1, 5, 5))
    weight = (neighbours(y.double() + 1) == y[:, None] + 1).double()
    maps = loss_maps(x, y)
    value = neighbor_nll(x, y, weight, maps.edge_mask)
    torch.testing.assert_close(value, maps.same_side)
    same_side = edge_aware_loss(x, y, ce_weight=0.0, other_side_weight=0.0, reduction="sum", edge_weight=1.0)
    torch.testing.assert_close(same_side, value.sum())


X = torch.zeros(1, 3, 4, 4)
Y = torch.zeros(1, 4, 4, dtype=torch.long)
W = torch.ones(1, 8, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, Y, W[:, :7]), ValueError, r"weight: expected \[1, 8, 4, 4\], but got \[1, 7, 4, 4\]"),
        ((X, Y, -W), ValueError, r"weight: expected finite values ≥ 0, but got -1.0 at \[0, 0, 0, 0\]"),
        ((X, Y, W.long()), TypeError, r"weight: expected a floating tensor, but got int64"),
        ((X, Y + 3, W), ValueError, r"index: expected labels 0 to 2, but got 3 at 16 pixels"),
        ((X, Y.float(), W), TypeError, r"index: expected class indices .* but got float32"),
        ((X, Y[:, None].expand(1, 3, 4, 4) + 2, W), ValueError, r"index: expected an indicator .* of 0 and 1"),
        ((X, Y[:, None].expand(1, 3, 4, 4), W), ValueError, r"index: expected at least one class"),
        ((X, Y, W, W[:, 0]), ValueError, r"mask: expected bool \[1, 4, 4\] on cpu, but got float32 \[1, 4, 4\]"),
        ((X, Y, W, [True]), TypeError, r"mask: expected a bool tensor, but got list"),
        ((X, [0], W), TypeError, r"index: expected a tensor of class indices, but got list"),
        ((X, Y.to("meta"), W), ValueError, r"index: expected device cpu, as the logits, but got meta"),
        ((X[:, :1], Y, W), ValueError, r"logits: expected at least 2 classes"),
        ((X[0], Y, W), ValueError, r"logits: expected \[B, C, H, W\]"),
    ],
)
def test_wrong_input(arguments: tuple[Tensor, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        neighbor_nll(*arguments)
