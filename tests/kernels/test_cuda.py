"""Tests that need a CUDA device: the loss with the kernels of Triton, and neighbor_nll where its kernels are built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from edgeloss import EdgeAwareLoss, check
from edgeloss.functional import edge_aware_loss, neighbor_nll

CUDA = "cuda"
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.mark.parametrize(
    ("images", "classes", "options"),
    [
        (2, 5, {}),
        (2, 5, {"region_weight": 0}),
        (2, 5, {"radius": 2, "power": -1.0, "decay": 1.0}),
        (2, 5, {"edge_focus": 0, "edge_class_weight": None, "reduction": "sum"}),
        (2, 1000, {"region_weight": 0}),
        (1024, 4, {"region_weight": 0}),
    ],
)
def test_the_loss_is_that_of_the_cpu(images: int, classes: int, options: dict[str, Any]) -> None:
    x, y = torch.randn(images, classes, 32, 40, dtype=torch.float64), torch.randint(classes, (images, 4, 5))
    y = y.repeat_interleave(8, 1).repeat_interleave(8, 2)
    y[torch.rand(y.shape) < 0.1] = 255
    results = []
    for device in ("cpu", CUDA):
        criterion, logits = EdgeAwareLoss(ignore_index=255, **options), x.to(device).requires_grad_()
        loss = criterion(logits, y.to(device))
        results.append((loss.detach().cpu(), torch.autograd.grad(loss, logits)[0].cpu()))
    torch.testing.assert_close(results[1], results[0])


def test_out_of_range_labels_raise_in_the_call_or_in_check() -> None:
    x, y = torch.zeros(1, 3, 4, 5, device=CUDA), torch.zeros(1, 4, 5, dtype=torch.long, device=CUDA)
    y[0, 1, 2] = 7
    with pytest.raises(ValueError, match="expected labels 0 to 2, or ignore_index=-100, but got 7 at 1 pixel"):
        edge_aware_loss(x, y, validate="sync")
    edge_aware_loss(x, y, backend="fused")
    with pytest.raises(ValueError, match="but got others at 1 pixel of the calls before"):
        check()
    check()


each_call = pytest.mark.parametrize("options", [{}, {"upsample": True}, {"decay": 1.5, "region_weight": 0.0}])


def step_of(options: dict[str, Any]) -> tuple[torch.Tensor, Callable[[], tuple[torch.Tensor, ...]]]:
    """Return logits, and what returns the loss and its gradient; its kernels are compiled."""
    low = [32, 40] if "upsample" in options else [64, 80]
    x, y = torch.randn(2, 5, *low, device=CUDA, requires_grad=True), torch.randint(5, (2, 64, 80), device=CUDA)

    def step() -> tuple[torch.Tensor, ...]:
        loss = edge_aware_loss(x, y, backend="fused", **{"region_weight": 3.0, **options})
        return loss.detach(), *torch.autograd.grad(loss, x)

    step()
    return x, step


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # x is older than the graph
@each_call
def test_a_cuda_graph_has_the_bits_of_a_step(options: dict[str, Any]) -> None:
    x, step = step_of(options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.data.neg_()
    graph.replay()
    assert all(map(torch.equal, captured, step()))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@each_call
def test_a_step_waits_for_nothing(options: dict[str, Any]) -> None:
    _, step = step_of(options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def of_neighbors(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(0, 1, 8, device=CUDA).view(1, 8, 1, 1).expand(2, 8, 64, 80)
    return neighbor_nll(x, index, weight, backend="fused")


@pytest.mark.parametrize("name", ["loss", "neighbor_nll"])
def test_calls_run_on_the_stream_of_the_caller(name: str, use: Any) -> None:
    function = partial(edge_aware_loss, region_weight=3.0, backend="fused") if name == "loss" else of_neighbors
    if name == "neighbor_nll":
        use(CUDA)
    x, y = torch.randn(2, 19, 64, 80, device=CUDA), torch.randint(19, (2, 64, 80), device=CUDA)
    expected, late = function(x, y), torch.empty_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        # Work on another stream would run before the copy, and read values that are not there yet.
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        found = function(late, y)
    torch.cuda.synchronize()
    assert torch.equal(found, expected)
