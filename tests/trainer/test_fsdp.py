"""A network sharded over two processes: its gradient is that of one process with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

import fsdp
from edgeloss import EdgeAwareLoss

pytestmark = pytest.mark.slow


def batch() -> tuple[Tensor, Tensor]:
    """Four images, of which the first two have no edge and the others void pixels."""
    torch.manual_seed(1)
    labels = torch.zeros(4, 16, 16, dtype=torch.int64)
    labels[2:, 4:12, 4:12] = 1
    labels[2, :6] = -100
    return torch.randn(4, 3, 16, 16), labels


def gradients(network: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the gradient of a second step, whose weights depend on the first one."""
    criterion = EdgeAwareLoss(sync_normalizer=True)
    for _ in range(2):
        network.zero_grad()
        criterion(network(images), labels).backward()
    return [parameter.grad for parameter in network.parameters()]


def compare(rank: int, folder: Path) -> None:
    images, labels = batch()
    network = fsdp.network_of("cpu")
    fsdp.shard(network, "cpu")
    part = slice(2 * rank, 2 * rank + 2)
    found = [gradient.full_tensor() for gradient in gradients(network, images[part], labels[part])]
    if rank == 0:
        torch.save(found, folder / "gradients.pt")


def test_gradient_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, compare, tmp_path)
    for found, expected in zip(
        torch.load(tmp_path / "gradients.pt"), gradients(fsdp.network_of("cpu"), *batch()), strict=True
    ):
        assert expected.norm() > 1e-3
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
