"""Gradients: correct, finite, twice differentiable, reproducible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from edgeloss.functional import edge_aware_loss, neighbor_nll

pytestmark = pytest.mark.usefixtures("each_backend")


# What is differentiated twice always runs in plain PyTorch.
reference_alone = pytest.mark.parametrize("each_backend", ["reference"], indirect=True)


def neighbor_nll_cases(**more: Any) -> Iterator[tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]]:
    """Logits in float64, and their map as a function of them, for two indices."""
    x = torch.randn(1, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(1, 8, 3, 4)
    weight[weight < 0.3] = 0
    for index in (torch.randint(3, (1, 3, 4)), torch.tensor([1, 0, 1]).view(1, 3, 1, 1).expand(1, 3, 3, 4)):
        yield x, partial(neighbor_nll, index=index, weight=weight, **more)


@reference_alone
def test_gradgradcheck_neighbor_nll() -> None:
    for x, value in neighbor_nll_cases(backend="reference"):
        assert torch.autograd.gradgradcheck(value, x)


@pytest.mark.parametrize("power", [1.0, 0.0, -1.0, 2.0])
def test_edge_gradients_equal_their_closed_form(power: float) -> None:
    # -∂S/∂x_n(c) = π_n (δ_ck - p_n(c)); ∂O/∂x_n(k) = π_n p_n(k), and for c ≠ k
    # -∂O/∂x_n(c) = π_n p_n(k) exp(x_n(c) - logsumexp_{c' ≠ k} x_n), π the softmax of q t.
    x = torch.randn(1, 3, 1, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[[1, 1, 0]]])
    log_p = F.log_softmax(x.detach(), 1)[0, :, 0]  # [C, W]
    p = log_p.exp()

    def gradient(**side: float) -> torch.Tensor:
        loss = edge_aware_loss(x, y, power=power, reduction="sum", ce_weight=0.0, edge_weight=1.0, **side)
        return torch.autograd.grad(loss, x)[0][0, :, 0]

    # E = {1, 2}; the middle pixel has one neighbor per side, so π = 1: S_1 = -log p_0(1), O_1 = -log(1 - p_2(1)),
    # O_2 = -log(1 - p_1(0)), and pixel 2 has no neighbor of its own class.
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[:, 0] = p[:, 0] - torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(gradient(other_side_weight=0.0), expected)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for n, k in ((2, 1), (1, 0)):
        rest = [c for c in range(3) if c != k]
        expected[k, n] = p[k, n]
        expected[rest, n] = -p[k, n] * F.softmax(x.detach()[0, rest, 0, n], 0)
    torch.testing.assert_close(gradient(same_side_weight=0.0), expected)


def test_not_the_last_layer() -> None:
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    y = torch.randint(3, (2, 6, 6))
    loss = edge_aware_loss(x, y)
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    (scaled,) = torch.autograd.grad(loss * 7, x)
    torch.testing.assert_close(scaled, 7 * plain)
    upstream = torch.rand(2, 6, 6, dtype=torch.float64)
    (of_map,) = torch.autograd.grad(edge_aware_loss(x, y, reduction="none"), x, upstream)
    (of_sum,) = torch.autograd.grad(edge_aware_loss(x, y, reduction="sum", pixel_weight=upstream), x)
    torch.testing.assert_close(of_map, of_sum)


def test_memory_follows_the_edges() -> None:
    # No [B, K, C, *S] tensor, even of the edge pixels alone: they are a tenth of the image, K = 48 neighbors each, so
    # that a tenth of it would be 5 times the logits. What is kept for backward is 4 times them: shifted, its exp, and
    # these two again for the pixels next to the border.
    x, y = torch.randn(1, 256, 64, 64, requires_grad=True), torch.zeros(1, 64, 64, dtype=torch.long)
    y[..., 32:] = 1
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = edge_aware_loss(x, y, radius=3)
    loss.backward()
    assert sum(kept.values()) < 4 * x.nbytes
