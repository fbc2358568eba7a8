"""One process, or those that torchrun started: which device is this one's, and what all of them say together."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")


@contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started; a process started without it stays alone.

    After an error the group is left as it is: to dissolve it in order would wait for processes that wait for this one,
    while torchrun ends them all.

    Args:
        device: where to compute.

    Yields:
        The device of this process: with CUDA each has one of its own.
    """
    if not dist.is_torchelastic_launched():
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Numbers of the host go over gloo whatever the device: that does not wait for what a GPU still has to do.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    yield device
    sum_over_ranks([0])  # nobody leaves while another still needs it
    dist.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Add up the numbers of all processes, one by one; each must call it."""
    if not dist.is_initialized():
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor)
    result: list[float] = tensor.tolist()
    return result


def gather(values: list[Item]) -> list[Item]:
    """Join the lists of all processes into one; each must call it."""
    if not dist.is_initialized():
        return values
    parts: list[list[Item]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]
