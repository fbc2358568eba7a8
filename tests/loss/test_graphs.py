"""Plain PyTorch in the graphs of torch.compile and torch.export: one graph, with the results and checks of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgeloss.functional import edge_aware_loss, neighbor_nll

pytestmark = pytest.mark.filterwarnings("error")
Loss = Callable[..., Any]


class Call(nn.Module):
    """A function as a module that can be exported."""

    def __init__(self, function: Loss, options: dict[str, Any]) -> None:
        """Store them."""
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors, **self.options)


def graph_of(how: str, eager: Call, tensors: tuple[Tensor, ...]) -> Loss:
    if how == "export":
        return torch.export.export(eager, tensors).module()
    torch._dynamo.reset()
    return torch.compile(eager, fullgraph=True, backend="aot_eager")


def assert_same(graph: Loss, eager: Loss, x: Tensor, *tensors: Tensor) -> None:
    x.requires_grad_()
    results = [(value, *torch.autograd.grad(value.sum(), x)) for value in (graph(x, *tensors), eager(x, *tensors))]
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["compile", "export"])
@pytest.mark.parametrize(
    "options",
    [
        {"decay": 2.0, "spacing": (1.0, 2.0), "reduction": "none"},
        {"power": 1.0},
        {"upsample": True},
    ],
    ids=str,
)
def test_reference_loss(options: dict[str, Any], how: str) -> None:
    eager = Call(edge_aware_loss, {"backend": "reference"} | options)
    x, y = torch.randn(2, 3, *((3, 4) if "upsample" in options else (6, 8))), torch.randint(3, (2, 6, 8))
    graph = graph_of(how, eager, (x, y))
    for labels in (y, torch.full_like(y, -100), torch.zeros_like(y)):
        assert_same(graph, eager, x, labels)
    with pytest.raises(RuntimeError, match="target: expected labels in range"):
        graph(x, torch.full_like(y, 7))


@pytest.mark.parametrize("how", ["compile", "export"])
@pytest.mark.parametrize("kind", ["index", "indicator", "mask"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_neighbor_nll(backend: str, kind: str, how: str) -> None:
    eager = Call(neighbor_nll, {"backend": backend})
    x, weight = torch.randn(2, 3, 5, 6), torch.rand(2, 8, 5, 6)
    index = torch.randint(3, (2, 5, 6))
    if kind == "indicator":
        index = nn.functional.one_hot(index, 3).movedim(-1, 1)
    mask = (torch.rand(2, 5, 6) > 0.3,) if kind == "mask" else ()
    graph = graph_of(how, eager, (x, index, weight, *mask))
    assert_same(graph, eager, x, index, weight, *mask)
    message = "expected an indicator" if kind == "indicator" else "index: expected labels in range"
    with pytest.raises(RuntimeError, match=message):
        graph(x, index + 7, weight, *mask)
    with pytest.raises(RuntimeError, match="weight: expected finite values ≥ 0"):
        graph(x, index, -weight, *mask)


def test_one_graph_serves_all_sizes() -> None:
    eager = Call(edge_aware_loss, {"backend": "reference"})
    torch._dynamo.reset()
    compiled = torch.compile(eager, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in ((4, 6), (5, 7), (9, 8)):
            assert_same(compiled, eager, torch.randn(2, 3, *size), torch.randint(3, (2, *size)))


def test_an_export_serves_all_batch_sizes() -> None:
    eager, batch = Call(edge_aware_loss, {"backend": "reference"}), torch.export.Dim("batch", min=2)
    x, y = torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5))
    graph = torch.export.export(eager, (x, y), dynamic_shapes=[({0: batch}, {0: batch})]).module()
    assert_same(graph, eager, torch.randn(7, 3, 4, 5), torch.randint(3, (7, 4, 5)))
