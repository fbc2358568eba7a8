"""One process, or several started by torchrun: the device of each, and sums over all of them."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")


@contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, if it did.

    After an error the group is not destroyed: that would wait for processes which wait for this one, while torchrun
    ends them all.

    Args:
        device: where to compute.

    Yields:
        The device of this process: with CUDA, each process has its own.
    """
    if not dist.is_torchelastic_launched():
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Numbers on the host use gloo on any device: that does not wait for the queue of a GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    yield device
    sum_over_ranks([0])  # no process leaves while another still needs it
    gc.collect()  # a DistributedDataParallel left over would keep threads of gloo alive until the interpreter ends
    dist.destroy_process_group()


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
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor)
    result: list[float] = tensor.tolist()
    return result


def gather(values: list[Item]) -> list[Item]:
    """Concatenate the lists of all processes; a collective that each must call."""
    if not dist.is_initialized():
        return values
    parts: list[list[Item]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]
