"""Sums and lists over all processes of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Sum each number over all processes; a collective that each must call."""
    if not dist.is_initialized():
        return list(values)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    result: list[float] = tensor.tolist()
    return result
