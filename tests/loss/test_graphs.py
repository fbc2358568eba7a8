"""In the graphs of torch.compile and torch.export: one graph for all sizes, with the results and checks of eager."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from columns import Column, each_column
from pairwise import pairwise
from torch import Tensor, nn
from torch.export import Dim

from edgeloss.functional import edge_aware_loss, neighbor_nll

pytestmark = pytest.mark.filterwarnings("error")
Loss = Callable[..., Any]
each_way = pytest.mark.parametrize("how", ["compile", "export"])


class Call(nn.Module):
    """A function as a module that can be exported."""

    def __init__(self, function: Loss, options: dict[str, Any]) -> None:
        """Store them."""
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *args: Tensor, **tensors: Any) -> Any:
        return self.function(*args, **self.options, **tensors)


def graph_of(how: str, eager: Call, *args: Tensor, axes: dict[int, Any] | None = None, **tensors: Any) -> Loss:
    """Return the graph of a call, for any size of the axes if it is exported, and for all sizes if it is compiled."""
    if how == "export":
        shapes = {"args": tuple(axes for _ in args)} if axes else None
        return torch.export.export(eager, args, tensors, dynamic_shapes=shapes).module()
    torch._dynamo.reset()
    return torch.compile(eager, fullgraph=True, dynamic=True if axes is not None else None, backend="aot_eager")


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_batch_needs_no_bound(strict: bool) -> None:
    x, y, shape = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8)), {0: Dim("batch")}
    call = Call(edge_aware_loss, {})
    graph = torch.export.export(call, (x, y), dynamic_shapes={"args": (shape, shape)}, strict=strict).module()
    x, y = torch.randn(5, 3, 8, 8), torch.randint(3, (5, 8, 8))
    torch.testing.assert_close(graph(x, y), edge_aware_loss(x, y))


def assert_same(graph: Loss, eager: Loss, x: Tensor, *tensors: Tensor) -> None:
    x = x.detach().requires_grad_()
    results = [(value, *torch.autograd.grad(value.sum(), x)) for value in (graph(x, *tensors), eager(x, *tensors))]
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


def skip_outside_ci() -> None:
    """Skip what torch traces for seconds, and whose operators another test compiles or exports."""
    if os.environ.get("CI") != "true":
        pytest.skip("slow: runs with CI=true")


CALLS: dict[str, dict[str, Any]] = {
    # Plain PyTorch has operations for every neighbor, which take seconds to trace.
    "power": {"power": 1.0, "radius": (0, 1), "decay": 2.0, "spacing": (1.0, 2.0)},
    "upsampled": {"upsample": True, "radius": (1, 0)},
    "multilabel": {"multilabel": True, "radius": (0, 1), "region_weight": 3.0},
}


@each_column
@each_way
@pytest.mark.parametrize("call", CALLS)
def test_loss(call: str, how: str, column: Column) -> None:
    if how == "compile" or column == Column("reference"):
        skip_outside_ci()

    def tensors(batch: int, *size: int) -> tuple[Tensor, Tensor]:
        low = [n // 2 for n in size] if call == "upsampled" else size
        return torch.randn(batch, 3, *low), torch.randint(2, (batch, *[3] * (call == "multilabel"), *size))

    eager = Call(column.loss, CALLS[call])
    graph = graph_of(how, eager, *tensors(2, 12, 14), axes={0: Dim("batch", min=2, max=64)})
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in [(2, 12, 14), (3, 12, 14), *([] if how == "export" else [(2, 22, 30)])]:
            x, y = tensors(*size)
            for labels in (y, torch.full_like(y, -100), torch.zeros_like(y)):
                assert_same(graph, eager, x, labels)
        with pytest.raises((RuntimeError, ValueError), match="target: expected labels"):
            graph(x.requires_grad_(), torch.full_like(y, 7))


TENSORS: dict[str, tuple[Any, Any, str]] = {
    "weight": (torch.rand(3), -torch.ones(3), "weight: expected finite values ≥ 0"),
    "edge_class_weight": (torch.rand(3), torch.full((3,), torch.nan), "edge_class_weight: expected finite values"),
    "pixel_weight": (torch.rand(2, 5, 6), torch.full((2, 5, 6), 1e30), "pixel_weight: expected finite values ≥ 0"),
    "distance": (torch.rand(2, 5, 6), -torch.ones(2, 5, 6), "distance: expected finite values ≥ 0"),
    "normalizer": (
        (torch.tensor(3.0), torch.tensor(4.0)),
        (torch.tensor(-1.0), torch.tensor(1.0)),
        "normalizer: expected 0, or finite numbers",
    ),
}


@each_way
@pytest.mark.slow
def test_every_tensor_is_checked(how: str) -> None:
    x, y = torch.randn(2, 3, 5, 6), torch.randint(3, (2, 5, 6))
    given, eager = {name: good for name, (good, _, _) in TENSORS.items()}, Call(edge_aware_loss, {"decay": 2.0})
    graph = graph_of(how, eager, x, y, **given)
    assert graph(x, y, **given) == eager(x, y, **given)
    for name, (_, bad, message) in TENSORS.items():
        with pytest.raises(RuntimeError, match=message):
            graph(x, y, **(given | {name: bad}))


@pytest.mark.parametrize(
    ("kind", "how", "backend"), pairwise(["index", "indicator", "mask"], ["compile", "export"], ["auto", "reference"])
)
def test_neighbor_nll(backend: str, kind: str, how: str) -> None:
    if how == "compile":
        skip_outside_ci()

    def tensors(*size: int) -> tuple[Tensor, ...]:
        index = torch.randint(3, (2, *size))
        if kind == "indicator":
            index = nn.functional.one_hot(index, 3).movedim(-1, 1)
        mask = (torch.rand(2, *size) > 0.3,) if kind == "mask" else ()
        return torch.randn(2, 3, *size), index, torch.rand(2, 8, *size), *mask

    eager = Call(neighbor_nll, {"backend": backend})
    graph = graph_of(how, eager, *tensors(5, 6), axes={} if how == "compile" else None)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in [(5, 6), *([(20, 9), (33, 40)] if how == "compile" else [])]:
            x, index, weight, *mask = tensors(*size)
            assert_same(graph, eager, x, index, weight, *mask)
    message = "expected an indicator" if kind == "indicator" else "index: expected labels in range"
    with pytest.raises(RuntimeError, match=message):
        graph(x, index + 7, weight, *mask)
    with pytest.raises(RuntimeError, match="weight: expected finite values ≥ 0"):
        graph(x, index, -weight, *mask)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_a_focus_that_changes_is_a_number_of_the_graph(backend: Any) -> None:
    x, y = torch.randn(2, 3, 8, 9), torch.randint(3, (2, 8, 9))
    torch._dynamo.reset()
    compiled = torch.compile(edge_aware_loss, fullgraph=True, backend="aot_eager")
    for focus in (8.0, 2.5, 3.5):  # torch takes the second one, and those after it, as symbols
        options: dict[str, Any] = {"edge_focus": focus, "backend": backend}
        torch.testing.assert_close(compiled(x, y, **options), edge_aware_loss(x, y, **options))
