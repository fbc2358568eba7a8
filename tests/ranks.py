"""Start several ranks of ``torch.distributed`` in a test."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Ranks are forked from a process that has imported these and run nothing: an import of all takes seconds. At its
# creation, DistributedDataParallel imports torch._dynamo.
PRELOADED = ["pytest", "torch.distributed", "torch._dynamo", "edgeloss.functional"]
multiprocessing.set_forkserver_preload(PRELOADED)


def run_ranks(world: int, folder: Path, function: Callable[..., object], *arguments: Any) -> None:
    """Call ``function(rank, *arguments)`` in each of `world` ranks; they meet in a file of the folder."""
    mp.start_processes(_run, (world, folder, function, arguments), nprocs=world, start_method="forkserver")


def _run(rank: int, world: int, folder: Path, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    function(rank, *arguments)
    dist.destroy_process_group()
