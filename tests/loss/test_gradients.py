"""Second derivatives of plain PyTorch, and the memory of its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgeloss.functional import edge_aware_loss, neighbor_nll


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((4, 5), {}),
        ((4, 5), {"power": 1.0, "decay": 1.0, "radius": 2}),
        ((4, 5), {"power": -1.0, "label_smoothing": 0.1, "weight": torch.tensor([1.0, 0.5, 2.0])}),
        ((4, 4), {"upsample": True}),
        ((2, 3, 3), {"power": 1.0, "decay": 0.7}),
    ],
)
def test_second_derivatives(classes: int, size: tuple[int, ...], options: dict[str, Any]) -> None:
    low = (2, 3) if "upsample" in options else size
    x = torch.randn(1, classes, *low, dtype=torch.float64, requires_grad=True)
    y = torch.randint(max(2, classes), (1, *size))
    y[..., 0] = 255
    if "weight" in options:
        options = options | {"weight": options["weight"][: max(2, classes)]}
    options = {"ignore_index": 255, "reduction": "sum", "backend": "reference"} | options
    assert torch.autograd.gradgradcheck(lambda logits: edge_aware_loss(logits, y, **options), x)


@pytest.mark.parametrize("kind", ["index", "indicator"])
def test_second_derivatives_of_neighbor_nll(kind: str) -> None:
    x = torch.randn(1, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(1, 8, 3, 4)
    weight[weight < 0.3] = 0
    index = torch.randint(3, (1, 3, 4))
    if kind == "indicator":
        index = torch.tensor([1, 0, 1]).view(1, 3, 1, 1).expand(1, 3, 3, 4)
    assert torch.autograd.gradgradcheck(lambda x: neighbor_nll(x, index, weight, backend="reference"), x)


@pytest.mark.usefixtures("each_backend")
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
